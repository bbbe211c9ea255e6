"""Topics, records and consumer groups of the cluster."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from instep import errors
from instep.console import regexes, rendering
from instep.console.live import Part, StreamPlace
from instep.console.requests import ConsolePage, PageRequest
from instep.console.workspace import RecentValue
from instep.kafka import groups, layout, offsets, places
from instep.kafka.admin import consumer_groups, filters, resets, tail, topic_details
from instep.kafka.admin.consumer_groups import Listing
from instep.kafka.admin.resets import GroupMove, GroupMoveResult
from instep.kafka.admin.tail import Condition, TailRange, TailRecord
from instep.kafka.connection import Cluster

SHOWN = 50
RECORDS_MAX = 500
SCANNED_MAX = 1_000_000  # offsets that a page reads for a filter
FOLLOWED_MAX = 200
FOLLOWED_SCAN_MAX = 50_000  # offsets that are read at once for a key or a filter
VALUE_CHARACTERS = 300
# a partition of a plan that was shown: topic, number, where the group was, and where it goes
SHOWN_MOVE = re.compile(r"([^: ]+):([0-9]{1,9}):(?:[0-9]{1,19}|None):([0-9]{1,19})")

log = logging.getLogger("instep.console")
audit = logging.getLogger("instep.console.audit")  # Kafka does not keep who has moved a group


class TopicRow(msgspec.Struct, frozen=True):
    """A topic in the list. What is unknown is None."""

    name: str
    partitions: int
    replicas: int
    unhealthy: int
    records_estimated: int | None
    last_record_ms: int | None


class DoneReset(msgspec.Struct, frozen=True):
    """A reset that was executed, kept for its page."""

    group: str
    actor: str
    results: list[GroupMoveResult]
    command: str


# --- topics ---------------------------------------------------------------------------------------


def topics(view: PageRequest) -> Response:
    """List topics, one page at a time; offsets are read of those that are shown."""
    pattern, number = view.text("match"), view.integer("page", 1, 1_000_000)
    internal = bool(view.text("internal"))
    cluster = view.workspace.cluster()
    listed = view.workspace.recent("layouts", lambda: layout.read(cluster))
    layouts = listed.value.topics
    names = [
        name
        for name in layout.matching(layouts, _glob(pattern))
        if internal or not layouts[name].is_internal
    ]
    shown = [layouts[name] for name in names[(number - 1) * SHOWN : number * SHOWN]]
    return view.render(
        "topics.html",
        "Topics",
        rows=_topic_rows(cluster, shown),
        listed_at=listed.at,
        total=len(names),
        number=number,
        has_more=number * SHOWN < len(names),
        pattern=pattern,
        internal=internal,
        command_line=view.workspace.command("topics", "list", items=filter(None, [_glob(pattern)])),
    )


def topic(view: PageRequest) -> Response:
    """Show one topic in detail."""
    name = view.require("topic")
    [detail] = topic_details.describe(view.workspace.cluster(), [name])
    followers = [
        one for one, declared in view.workspace.declared.pipelines.items() if declared.topic == name
    ]
    return view.render(
        "topic.html",
        f"Topic {name}",
        detail=detail,
        followers=followers,
        command_line=view.workspace.command("topics", "describe", items=[name]),
    )


def _topic_rows(cluster: Cluster, shown: list[layout.Layout]) -> list[TopicRow]:
    pairs = [(one.topic, partition) for one in shown for partition in one.with_leader]
    spans = offsets.spans(cluster, pairs, newest=True) if pairs else {}
    rows = []
    for one in shown:
        known = [spans.get((one.topic, part.partition)) for part in one.partitions]
        complete = [span for span in known if span is not None]
        times = [span.newest_ms for span in complete if span.newest_ms is not None]
        is_complete = len(complete) == len(known)
        rows.append(
            TopicRow(
                one.topic,
                len(one.partitions),
                one.replicas,
                sum(part.is_under_replicated or part.leader is None for part in one.partitions),
                sum(span.offsets for span in complete) if is_complete else None,
                max(times, default=None),
            )
        )
    return rows


def _glob(pattern: str) -> str | None:
    """Return a pattern for names; a text without wildcards matches anywhere in a name."""
    if not pattern:
        return None
    return pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"


# --- records --------------------------------------------------------------------------------------


class RecordSearch(msgspec.Struct, frozen=True):
    """What to read of a topic, as the URL says."""

    topic: str
    place: str
    partitions: list[int]
    key: str
    condition: str
    limit: int
    uncommitted: bool
    older_than: str = ""  # the offsets of the partitions before which records are wanted
    newer_from: str = ""  # or from which on

    @property
    def is_conditional(self) -> bool:
        """Return whether not every record matches."""
        return bool(self.key or self.condition)

    @property
    def key_bytes(self) -> bytes | None:
        """Return the key that records must have."""
        return self.key.encode() if self.key else None

    @property
    def values(self) -> dict[str, Any]:
        """Return the parameters of the URL."""
        return {
            "topic": self.topic,
            "from": self.place,
            "partition": ",".join(map(str, self.partitions)),
            "key": self.key,
            "filter": self.condition,
            "limit": self.limit,
            "uncommitted": "1" if self.uncommitted else "",
        }

    def command(self, *, follow: bool = False) -> list[str]:
        """Return the arguments of the command that does the same."""
        arguments = ["peek", "--limit", str(self.limit)]
        if self.place:
            arguments += ["--offset", self.place]
        for number in self.partitions:
            arguments += ["--partition", str(number)]
        if self.key:
            arguments += ["--key", self.key]
        if self.condition:
            arguments += ["--filter", self.condition]
        if self.uncommitted:
            arguments.append("--uncommitted")
        return [*arguments, "--follow"] if follow else arguments


def records(view: PageRequest) -> Response:
    """Show records from a place on; those with a key; those that meet a condition."""
    search = _search(view)
    found: list[TailRecord] = []
    wanted: TailRange | None = None
    problem: errors.InstepError | None = None
    is_live = bool(view.text("live"))
    older: dict[str, Any] | None = None
    newer: dict[str, Any] | None = None
    if not is_live:
        try:
            cluster = view.workspace.cluster()
            wanted, found = _read(cluster, search)
            older, newer = _neighbours(cluster, search, wanted, found)
        except errors.SettingsError as error:  # the form stays, to be corrected
            problem = error
    return view.render(
        "records.html",
        f"Records of {search.topic}",
        http_status=400 if problem else 200,
        search=search,
        found=found,
        wanted=wanted,
        problem=problem,
        is_live=is_live,
        most=FOLLOWED_MAX,
        characters=VALUE_CHARACTERS,
        url=f"/live/records?{urlencode(search.values)}",
        older=older,
        newer=newer,
        command_line=None
        if search.older_than or search.newer_from
        else view.workspace.command(*search.command(follow=is_live), items=[search.topic]),
    )


class FollowedRecords(msgspec.Struct, frozen=True):
    """Records that have arrived, and how many offsets before them may be left out.

    The log of partitions that have moved back ends before the records that were shown.
    """

    found: list[TailRecord]
    left_out: int
    moved_back: list[int]


def live_records(view: PageRequest) -> Part:
    """Return new records as they arrive, from where the browser was, or from the end of the log."""
    search = _search(view)
    positions: dict[int, int] = {}
    ended: list[errors.SettingsError] = []

    def part() -> tuple[object, Callable[[], str]]:
        if ended:  # the same search would take too long again
            raise ended[0].with_traceback(None)
        if not positions:
            positions.update(_followed_from(view, search))
        try:
            fresh = _fresh(view.workspace.cluster(), search, positions)
        except errors.SettingsError as error:
            ended.append(error)
            raise
        mark = StreamPlace(_offsets_text(positions))
        return mark, lambda: rendering.render(
            "records_part.html",
            view=view,
            fresh=fresh,
            characters=VALUE_CHARACTERS,
        )

    return part


def _followed_from(view: PageRequest, search: RecordSearch) -> dict[int, int]:
    """Return the offsets from which on records are followed."""
    cluster = view.workspace.cluster()
    place = places.parse_range(search.place or "end")
    wanted = tail.resolve_range(
        cluster,
        search.topic,
        place,
        search.partitions,
        search.key_bytes,
        committed=not search.uncommitted,
    )
    begin = {number: start for number, (start, _) in wanted.ranges.items()}
    # browsers send the header when they connect again by themselves
    after = view.request.headers.get("last-event-id") or view.text("after")
    return begin | {part: offset for part, offset in _offsets(after).items() if part in begin}


def _offsets(text: str) -> dict[int, int]:
    """Parse an offset of each partition, as the URLs of these pages have them."""
    found = {}
    for one in text.split():
        partition, _, offset = one.partition(":")
        if not all(
            part.isascii() and part.isdigit() and len(part) < 20 for part in (partition, offset)
        ):
            raise errors.SettingsError("the URL has a wrong place", "reload the page")
        found[int(partition)] = int(offset)
    return found


def _offsets_text(found: Mapping[int, int]) -> str:
    return " ".join(f"{partition}:{offset}" for partition, offset in sorted(found.items()))


def _fresh(cluster: Cluster, search: RecordSearch, positions: dict[int, int]) -> FollowedRecords:
    """Return the records from these offsets on, and move the offsets behind them."""
    committed = not search.uncommitted
    now = offsets.latest(cluster, search.topic, list(positions), committed)
    # of a burst, the newest records are enough; those that match may be few among many
    scanned = FOLLOWED_SCAN_MAX // max(1, len(positions))
    most = max(FOLLOWED_MAX, scanned) if search.is_conditional else FOLLOWED_MAX
    moved_back = sorted(number for number, start in positions.items() if now[number] < start)
    starts = {number: min(start, now[number]) for number, start in positions.items()}
    ranges = {
        number: (max(start, now[number] - most), now[number]) for number, start in starts.items()
    }
    wanted = _tail_range(search, ranges, newest_first=True)
    found: list[TailRecord] = []
    if wanted.offsets:
        with regexes.opened() as opened:
            matches = _condition(search, opened)
            found = list(tail.records(cluster, wanted, matches, FOLLOWED_MAX))
    left_out = sum(begin - starts[number] for number, (begin, _) in ranges.items())
    if len(found) == FOLLOWED_MAX:
        left_out += wanted.offsets - FOLLOWED_MAX
    positions |= now
    return FollowedRecords(found, left_out, moved_back)


def _search(view: PageRequest) -> RecordSearch:
    if view.hides_values and view.text("filter"):
        raise errors.SettingsError(
            "this console hides values, so it does not search in them either",
            "search by key, by time or by offset",
        )
    texts = [part.strip() for part in view.text("partition").split(",") if part.strip()]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
        raise errors.SettingsError(
            f"{view.text('partition')!r} does not name partitions", "write e.g. 0 or 0,2"
        )
    return RecordSearch(
        view.require("topic"),
        view.text("from").strip(),
        sorted({int(text) for text in texts}),
        view.text("key"),
        view.text("filter"),
        view.integer("limit", SHOWN, RECORDS_MAX),
        bool(view.text("uncommitted")),
        view.text("older"),
        view.text("newer"),
    )


def _read(cluster: Cluster, search: RecordSearch) -> tuple[TailRange, list[TailRecord]]:
    if search.older_than:
        return _read_older(cluster, search, _offsets(search.older_than))
    if search.newer_from:
        return _read_newer(cluster, search, _offsets(search.newer_from))
    committed = not search.uncommitted
    if not search.place and not search.is_conditional:
        return tail.newest(
            cluster, search.topic, search.limit, search.partitions, committed=committed
        )
    place = places.parse_range(search.place or "start")
    wanted = tail.resolve_range(
        cluster, search.topic, place, search.partitions, search.key_bytes, committed=committed
    )
    if search.is_conditional and wanted.offsets > SCANNED_MAX:
        raise errors.SettingsError(
            f"the search would read {wanted.offsets:,} records",
            f"choose a later place to search at most {SCANNED_MAX:,}, or use the command below",
        )
    return wanted, _found(cluster, search, wanted)


def _read_older(
    cluster: Cluster, search: RecordSearch, ends: dict[int, int]
) -> tuple[TailRange, list[TailRecord]]:
    """Read the last records before these offsets.

    Markers, compacted records and those that do not match take offsets: read more if need be.
    """
    first = offsets.earliest(cluster, search.topic, list(ends))
    back = search.limit
    while True:
        ranges = {part: (max(first[part], end - back), end) for part, end in ends.items()}
        wanted = _tail_range(search, ranges, newest_first=True)
        found = _found(cluster, search, wanted)
        is_whole = all(start <= first[part] for part, (start, _) in ranges.items())
        if len(found) >= search.limit or is_whole:
            return wanted, found
        if wanted.offsets * tail.WIDEN_FACTOR > SCANNED_MAX:
            return wanted, found
        back *= tail.WIDEN_FACTOR


def _read_newer(
    cluster: Cluster, search: RecordSearch, starts: dict[int, int]
) -> tuple[TailRange, list[TailRecord]]:
    """Read the first records from these offsets on."""
    now = offsets.latest(cluster, search.topic, list(starts), not search.uncommitted)
    most = SCANNED_MAX // len(starts)
    ranges = {part: (start, min(now[part], start + most)) for part, start in starts.items()}
    wanted = _tail_range(search, ranges, newest_first=False)
    return wanted, _found(cluster, search, wanted)


def _tail_range(
    search: RecordSearch, ranges: dict[int, tuple[int, int]], *, newest_first: bool
) -> TailRange:
    return TailRange(
        search.topic,
        ranges,
        newest_first=newest_first,
        committed=not search.uncommitted,
        key=search.key_bytes,
    )


def _found(cluster: Cluster, search: RecordSearch, wanted: TailRange) -> list[TailRecord]:
    with regexes.opened() as opened:
        matches = _condition(search, opened)
        return list(tail.records(cluster, wanted, matches, search.limit))


def _neighbours(
    cluster: Cluster, search: RecordSearch, wanted: TailRange, found: list[TailRecord]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the URLs' parameters of the records before and behind; None where the log ends."""
    older = {part: start for part, (start, _) in wanted.ranges.items()}
    newer = {part: max(start, end) for part, (start, end) in wanted.ranges.items()}
    if not older:
        return None, None
    if len(found) >= search.limit:  # the rest of the range is not shown
        shown: dict[int, list[int]] = {}
        for one in found:
            shown.setdefault(one.partition, []).append(one.offset)
        if wanted.newest_first:
            older = {part: min(shown.get(part, [end])) for part, end in newer.items()}
        else:
            newer = {part: max(shown.get(part, [start - 1])) + 1 for part, start in older.items()}
    first = offsets.earliest(cluster, search.topic, list(older))
    now = offsets.latest(cluster, search.topic, list(older), not search.uncommitted)
    has_older = any(offset > first[part] for part, offset in older.items())
    has_newer = any(offset < now[part] for part, offset in newer.items())
    return (
        {**search.values, "from": "", "older": _offsets_text(older)} if has_older else None,
        {**search.values, "from": "", "newer": _offsets_text(newer)} if has_newer else None,
    )


def _condition(search: RecordSearch, opened: regexes.Regexes) -> Condition | None:
    return filters.parse([search.condition], opened.compile) if search.condition else None


# --- groups ---------------------------------------------------------------------------------------


def group_list(view: PageRequest) -> Response:
    """List consumer groups, one page at a time."""
    pattern, number = view.text("match"), view.integer("page", 1, 1_000_000)
    cluster = view.workspace.cluster()
    read = view.workspace.recent("groups", lambda: consumer_groups.listings(cluster))
    listed, failures = read.value
    wanted = set(layout.matching([one.group for one in listed], _glob(pattern)))
    matching = [one for one in listed if one.group in wanted]
    shown: list[Listing] = matching[(number - 1) * SHOWN : number * SHOWN]
    lags = _lags(view, [one.group for one in shown])
    return view.render(
        "groups.html",
        "Consumer groups",
        rows=shown,
        lags=lags.value,
        listed_at=min(read.at, lags.at),
        failures=failures,
        total=len(matching),
        number=number,
        has_more=number * SHOWN < len(matching),
        pattern=pattern,
        mirrored={one.group: _mirrored(view, one.group) for one in shown},
        command_line=view.workspace.command("groups", "list", items=filter(None, [_glob(pattern)])),
    )


def _lags(view: PageRequest, names: list[str]) -> RecentValue[dict[str, int | None]]:
    """Return the lag of each group; unknown ones are left out."""
    cluster = view.workspace.cluster()

    def read() -> dict[str, int | None]:
        try:
            return consumer_groups.lags(cluster, names)
        except errors.InstepError as error:  # a group may be of others
            log.debug("the lags of groups are unknown: %s", error.what)
            return {}

    return view.workspace.recent(("lags", *names), read)


def group(view: PageRequest) -> Response:
    """Show one group: members, positions, lag."""
    name = view.require("group")
    found = consumer_groups.describe(view.workspace.cluster(), name)
    return view.render(
        "group.html",
        f"Group {name}",
        group=found,
        topics=sorted({position.topic for position in found.positions}),
        mirrored=_mirrored(view, name),
        command_line=view.workspace.command("groups", "describe", items=[name]),
    )


def reset(view: PageRequest) -> Response:
    """Show the plan of a reset, or execute what was shown."""
    name, place = view.require("group"), view.require("to")
    chosen = view.texts("topic")
    cluster = view.workspace.cluster()
    listed = [part for one in chosen for part in ("--topic", one)] or ["--all-topics"]
    command = view.workspace.command(
        "groups", "reset", *listed, f"--to={place}", "--execute", items=[name]
    )
    if view.request.method == "POST":
        results = resets.execute(cluster, name, _as_shown(view, cluster, name))
        audit.info("%s has reset a group: %s", view.person.name, command)
        kept = DoneReset(name, view.person.name, results, command)
        return view.redirect(f"/group/reset/done?{urlencode({'id': view.workspace.keep(kept)})}")
    pairs = resets.select_partitions(cluster, name, chosen, all_topics=not chosen)
    moves = resets.plan(cluster, name, pairs, resets.ToPlace(places.parse_place(place)))
    query = {"group": name, "to": place, "topic": chosen}
    return view.render(
        "reset.html",
        f"Reset group {name}",
        name=name,
        place=place,
        moves=moves,
        members=consumer_groups.members(cluster, name),
        mirrored=_mirrored(view, name),
        seen=_summary(moves),
        query=urlencode(query, doseq=True),
        command_line=command,
    )


def reset_done(view: PageRequest) -> Response:
    """Show what a reset did."""
    kept = view.workspace.result(view.require("id"))
    if not isinstance(kept, DoneReset):
        raise errors.SettingsError(
            "the result of this reset is not kept any more", "look at the group's positions"
        )
    return view.render("reset_done.html", f"Group {kept.group} was reset", done=kept)


def _as_shown(view: PageRequest, cluster: Cluster, name: str) -> list[GroupMove]:
    """Return the plan that was shown; raise if the group or the log has moved.

    The end of the log and a time before now move on, so the plan is made again from its offsets.
    """
    seen = view.text("seen")
    found = filter(None, map(SHOWN_MOVE.fullmatch, seen.split(" ")))
    new = {(move[1], int(move[2])): int(move[3]) for move in found}
    moves = resets.plan(cluster, name, list(new), resets.ToOffsets(new)) if new else []
    if not moves or seen != _summary(moves):
        raise errors.SettingsError(
            "the plan has changed since it was shown: the group or the log has moved; nothing was"
            " changed",
            "go back, look at the new plan, and confirm it",
        )
    return moves


def _summary(moves: list[GroupMove]) -> str:
    return " ".join(f"{move.topic}:{move.partition}:{move.current}:{move.new}" for move in moves)


def _mirrored(view: PageRequest, name: str) -> str | None:
    return groups.mirrored_pipeline(view.workspace.pipelines(), name)


PAGES = (
    ConsolePage("/topics", topics),
    ConsolePage("/topic", topic),
    ConsolePage("/records", records),
    ConsolePage("/groups", group_list),
    ConsolePage("/group", group),
    ConsolePage("/group/reset", reset, ("GET", "POST"), writes=True),
    ConsolePage("/group/reset/done", reset_done, writes=True),
)
STREAMS: Mapping[str, Callable[[PageRequest], Part]] = {"/live/records": live_records}
