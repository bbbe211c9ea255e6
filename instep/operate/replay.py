"""`instep replay`: a stretch of the log applied again under the guard, to mend a table that was damaged.

The ledger and its epoch stay as they are; records that the pipeline has not come to yet are left to it. What is in the table
on purpose stays so: dead letters, parked documents and what people skipped or dropped are passed over. No transition is
judged again and no document parked: what the table refuses now is said and left.

An event whose order value is above the stored one is applied, one below is stale, as in the flow. One that *equals* it wrote
the row, so it mends the row where that differs; but only if it is known to be the one that did. The history says so; without
it a version's first event is known when the log is read from its start, and an instant's last when it is read to the ledger.
A delete, which has no order value, is replayed only if the history says that nothing came after it.

Without an order the later in the log wins, so a stretch must reach the ledger: events are folded to one state per document
before anything is written, and an older status never shows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from instep import errors
from instep.document import guard
from instep.document.decoding import Event, record_of
from instep.document.guard import Document, Stored, Values, Verdict
from instep.document.reasons import Reason
from instep.kafka import offsets, places, reading
from instep.kafka.connection import Cluster
from instep.pipeline import continuity
from instep.pipeline.apply import maintenance, slow
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.sinks.journal_entries import Action, RecordPosition, RowOrigins
from instep.sinks.stored_values import chunks
from instep.sinks.target import Position

CHUNK_EVENTS = 5_000
REFUSED = "refused"


class ReplayRange(msgspec.Struct, frozen=True):
    """Which part of the log, by partition, and of which documents (all, if none is named)."""

    ranges: dict[int, tuple[int, int]]
    from_start: bool
    to_ledger: bool
    documents: frozenset[Document] = frozenset()

    @property
    def records(self) -> int:
        return sum(max(0, end - start) for start, end in self.ranges.values())


def stretch(
    session: MaintenanceSession,
    cluster: Cluster,
    *,
    documents: Collection[str] = (),
    first: places.Place | None = None,
    last: places.Place | None = None,
    partitions: Collection[int] = (),
) -> ReplayRange:
    """The part of the log that is meant; it ends at the ledger at the latest."""
    with session.read() as sink:
        ledger = sink.ledger.positions()
    topic = continuity.describe(cluster, session.name, session.sink.target.topic, ledger)
    continuity.refuse_replaced(session.name, topic, ledger)
    strange = sorted(set(partitions) - set(topic.partitions))
    if strange:
        raise errors.SettingsError(
            f"topic {topic.name!r} has no partition {', '.join(map(str, strange))}",
            f"it has {', '.join(map(str, topic.partitions))}",
        )
    chosen = sorted(set(partitions or topic.partitions) & set(ledger))
    begin = places.resolve(cluster, topic.name, chosen, first or places.FromStart())
    end = places.resolve(cluster, topic.name, chosen, last or places.FromEnd())
    log_start = offsets.earliest(cluster, topic.name, chosen)
    ranges = {
        part: (begin[part], max(begin[part], min(end[part], ledger[part].next_offset)))
        for part in chosen
    }
    to_ledger = all(end[part] >= ledger[part].next_offset for part in chosen)
    if not session.sink.target.rules.ordered and not to_ledger:
        raise errors.SettingsError(
            f"pipeline {session.name!r} has no order, so a stretch that ends before the ledger would bring older statuses back",
            "leave --to out",
        )
    from_start = all(begin[part] == log_start[part] == 0 for part in chosen)
    return ReplayRange(
        ranges, from_start, to_ledger, frozenset(map(session.decoder.document, documents))
    )


def replay(
    session: MaintenanceSession, cluster: Cluster, part: ReplayRange, *, execute: bool
) -> Iterator[Change]:
    """A line for every document whose row changes, or would, or that the table refuses, as they are found."""
    over = _passed_over(session)
    if not session.sink.target.rules.ordered:
        yield from _replay_unordered(session, cluster, part, over, execute)
        return
    seen: dict[Document, int] = {}  # the highest order value met so far
    for partition, bounds in part.ranges.items():
        events = _events(session, cluster, {partition: bounds}, part.documents, over)
        while some := list(itertools.islice(events, CHUNK_EVENTS)):
            yield from session.retry(
                functools.partial(_repair, session, part, partition, some, seen, execute)
            )


class Overtaken:
    """Which events have been overtaken, where no order value tells: the log is asked for a later one of their documents."""

    def __init__(self, session: MaintenanceSession, open_cluster: Callable[[], Cluster]) -> None:
        self._desk, self._open_cluster = session, open_cluster

    def __call__(self, position: Position, events: Sequence[Event]) -> set[int]:
        """The offsets of those of a partition's events whose documents have had a later event."""
        session = self._desk
        if session.sink.target.rules.ordered:
            return set()
        asked = frozenset(event.document for event in events)
        start = min(event.offset for event in events) + 1
        with self._open_cluster() as cluster:
            ahead = {position.partition: (start, position.next_offset)}
            newest = {
                later.document: later.offset
                for later in _events(session, cluster, ahead, asked, _passed_over(session))
            }
        return {event.offset for event in events if newest.get(event.document, -1) > event.offset}


def _passed_over(session: MaintenanceSession) -> set[RecordPosition]:
    with session.read() as sink:
        return sink.journal.unapplied()


def _events(
    session: MaintenanceSession,
    cluster: Cluster,
    ranges: Mapping[int, tuple[int, int]],
    documents: frozenset[Document],
    over: set[RecordPosition],
) -> Iterator[Event]:
    """The events that the flow applied, or would have, in log order per partition. Those that do not fit were set aside."""
    topic = session.sink.target.topic
    keys = (
        {str(document).encode() for document in documents}
        if session.sink.target.mapping.is_keyed
        else set()
    )
    for record in reading.read(cluster, topic, ranges):
        if (keys and record.key not in keys) or RecordPosition(
            topic, record.partition, record.offset
        ) in over:
            continue
        found, _ = session.decoder.decode_all([record_of(record)])
        yield from (
            one
            for one in found
            if one.refusal is None and (not documents or one.document in documents)
        )


# --- with an order: chunk by chunk --------------------------------------------------------------------


def _repair(
    session: MaintenanceSession,
    part: ReplayRange,
    partition: int,
    events: Sequence[Event],
    seen: dict[Document, int],
    execute: bool,
) -> list[Change]:
    sink, at = session.sink, maintenance.now()
    with session.transaction(execute=execute) as ledger:
        asked = {event.document for event in events}
        held = sink.journal.parked_among(asked)
        next_offset = ledger[partition].next_offset if partition in ledger else 0
        stored = sink.stored(asked)
        wrote = sink.journal.row_origins(asked) if sink.target.history else None
        due: list[Event] = []
        met: dict[Document, int] = {}
        for event in events:
            if event.offset >= next_offset or event.document in held:
                continue
            before = stored.get(event.document, guard.ABSENT)
            tie = before.present and event.order is not None and event.order == before.order
            highest = met.get(event.document, seen.get(event.document))
            if (tie or event.values is None) and not _is_last_word(
                session, part, partition, event, wrote, highest
            ):
                continue
            if tie and not sink.target.rules.order_is_time:
                stored[event.document] = msgspec.structs.replace(before, order=event.order - 1)  # type: ignore[operator]
            due.append(event)
            if event.order is not None:
                met[event.document] = event.order if highest is None else max(event.order, highest)
        lines = _write(
            session,
            due,
            stored,
            lambda event: RecordPosition(sink.target.topic, partition, event.offset),
            execute,
        )
        session.record(Action.REPLAYED, lines, at)
    seen |= met  # not before: a turn that the database gave up is taken again
    return lines


def _is_last_word(
    session: MaintenanceSession,
    part: ReplayRange,
    partition: int,
    event: Event,
    wrote: RowOrigins | None,
    highest: int | None,
) -> bool:
    """Whether a document's row is known to have been written, or removed, by this event.

    The history may have been pruned: what it does not know is told as if there were none.
    """
    if wrote is not None:
        known = (
            wrote.last(event.document)
            if event.order is None
            else wrote.by_order(event.document, event.order)
        )
        if known is not None:
            return known == RecordPosition(session.sink.target.topic, partition, event.offset)
    if event.values is None:
        return False
    if session.sink.target.rules.order_is_time:
        return part.to_ledger
    return part.from_start and (highest is None or highest < (event.order or 0))


# --- without one: folded first ------------------------------------------------------------------------


class _Fold:
    """What a document is after all its events: deleted, made anew, changed; and where the last of them lies."""

    __slots__ = ("deleted", "offset", "partition", "values")

    def __init__(self) -> None:
        self.deleted = False
        self.values: Values | None = None
        self.partition = self.offset = 0

    def add(self, partition: int, event: Event, rules: guard.Rules) -> None:
        if event.values is None and rules.deletes in ("ignore", "park"):
            return
        self.partition, self.offset = partition, event.offset
        if event.values is not None:
            self.values = guard.merged(self.values, event.values)
        elif rules.deletes == "clear":
            self.values = guard.merged(self.values, rules.cleared)
        else:
            self.deleted, self.values = True, None

    def events(self, document: Document) -> Iterator[Event]:
        if self.deleted:
            yield Event(self.offset, document, None, None, None, None)
        if self.values is not None:
            yield Event(self.offset, document, None, None, None, self.values)


def _replay_unordered(
    session: MaintenanceSession,
    cluster: Cluster,
    part: ReplayRange,
    over: set[RecordPosition],
    execute: bool,
) -> Iterator[Change]:
    folds: dict[Document, _Fold] = {}
    read_to = {partition: start for partition, (start, _) in part.ranges.items()}

    def catch_up(ends: Mapping[int, int]) -> None:
        for partition, end in ends.items():
            if partition in read_to and end > read_to[partition]:
                for event in _events(
                    session, cluster, {partition: (read_to[partition], end)}, part.documents, over
                ):
                    folds.setdefault(event.document, _Fold()).add(
                        partition, event, session.sink.target.rules
                    )
                read_to[partition] = end

    def repair_documents(some: Sequence[Document]) -> list[Change]:
        sink, at = session.sink, maintenance.now()
        with session.transaction(execute=execute) as ledger:
            catch_up({partition: position.next_offset for partition, position in ledger.items()})
            held = sink.journal.parked_among(some)
            due = [
                event
                for document in some
                if document not in held
                for event in folds[document].events(document)
            ]

            def place(event: Event) -> RecordPosition:
                return RecordPosition(
                    sink.target.topic, folds[event.document].partition, event.offset
                )

            lines = _write(session, due, sink.stored(some), place, execute)
            session.record(Action.REPLAYED, lines, at)
        return lines

    catch_up({partition: end for partition, (_, end) in part.ranges.items()})
    for some in chunks(list(folds), CHUNK_EVENTS):
        yield from session.retry(lambda some=some: repair_documents(some))  # type: ignore[misc]


# --- writing ------------------------------------------------------------------------------------------


def _write(
    session: MaintenanceSession,
    events: Sequence[Event],
    stored: Mapping[Document, Stored],
    place: Callable[[Event], RecordPosition],
    execute: bool,
) -> list[Change]:
    """Write the rows that change, and only those: each is tried first and looked at, as a database alone knows what it keeps."""
    of: dict[Document, list[Event]] = {}
    for event in events:
        of.setdefault(event.document, []).append(event)
    lines: list[Change] = []
    waiting = [list(of)] if of else []
    while waiting:
        some = waiting.pop()
        try:
            lines += _try(
                session,
                [event for document in some for event in of[document]],
                stored,
                place,
                execute,
            )
        except errors.RowRefused as error:
            if len(some) > 1:
                half = len(some) // 2
                waiting += [some[half:], some[:half]]
            else:
                last = of[some[0]][-1]
                lines.append(
                    Change(
                        place(last),
                        str(some[0]),
                        REFUSED,
                        Reason.REFUSED_BY_TARGET.value,
                        error.what,
                    )
                )
    return lines


def _try(
    session: MaintenanceSession,
    events: Sequence[Event],
    stored: Mapping[Document, Stored],
    place: Callable[[Event], RecordPosition],
    execute: bool,
) -> list[Change]:
    sink = session.sink
    rules = slow.relaxed(sink.target.rules)
    verdicts = guard.settle(events, stored, rules).verdicts
    applied = [
        event for event, verdict in zip(events, verdicts, strict=True) if verdict is Verdict.APPLIED
    ]
    before = sink.table.look_up(event.document for event in applied)
    with sink.table.unguarded():
        with sink.savepoint(keep=False):
            sink.write(guard.settle(applied, stored, rules))
            after = sink.table.look_up(event.document for event in applied)
        changed = [
            event for event in applied if before.get(event.document) != after.get(event.document)
        ]
        if execute and changed:
            with sink.savepoint():
                sink.write(guard.settle(changed, stored, rules))
    last = {event.document: event for event in changed}
    return [
        Change(
            place(event),
            str(document),
            Verdict.APPLIED.value,
            **maintenance.row_change(document, before, after),
        )
        for document, event in last.items()
    ]
