"""Claims about where a group starts reading."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from instep.kafka import groups, offsets, topics
from instep.kafka.admin import topic_admin
from instep.report.tables import Cell
from instep_lab import history
from instep_lab.claim import experiment
from instep_lab.clients.consuming import CommitMode, Consuming, Library
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind
from instep_lab.trial import Scenario, Trial

PARTITIONS = 3
KEYS = 30
HOURS_AGO = (48, 36, 24, 12, 1)
HOUR_MS = 3_600_000
FOREVER = "-1"
NO_OFFSET = "_AUTO_OFFSET_RESET"
ABOUT_OFFSETS = {NO_OFFSET, "NoOffsetForPartitionError", "OffsetOutOfRangeError"}
# an idempotent publisher requests its id first: half a second for each of the many small sends
AT_ONCE = {"enable.idempotence": False}

Places = dict[int, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one consumer did: its first offset and record count in each partition, and errors."""

    began: Places
    read: Places
    errors: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.read.values())


def _backlog(trial: Trial, scenario: Scenario, topic: str, count: int) -> None:
    """Publish records of the last two days, numbered from 0 within each key."""
    now_ms, each = int(time.time() * 1000), count // len(HOURS_AGO)
    for slice_, hours in enumerate(HOURS_AGO):
        old = now_ms - hours * HOUR_MS
        plan = Publishing(
            topic=topic,
            count=each,
            keys=KEYS,
            seed=f"{trial.seed}-{slice_}",
            first=slice_ * each,
            timestamp_ms=old,
            config=AT_ONCE,
        )
        scenario.publish(plan)


def _more(trial: Trial, scenario: Scenario, topic: str, count: int, first: int) -> None:
    plan = Publishing(
        topic=topic,
        count=count,
        keys=KEYS,
        seed=f"{trial.seed}-{first}",
        first=first,
        config=AT_ONCE,
    )
    scenario.publish(plan)


def _ends(trial: Trial, topic: str) -> Places:
    return offsets.latest(trial.cluster.kafka, topic, range(PARTITIONS))


def _firsts(trial: Trial, topic: str) -> Places:
    return offsets.earliest(trial.cluster.kafka, topic, range(PARTITIONS))


def _middle(trial: Trial, topic: str) -> Places:
    return {partition: end // 2 for partition, end in _ends(trial, topic).items()}


def _commit(trial: Trial, topic: str, group: str, places: Mapping[int, int]) -> None:
    groups.mirror(trial.cluster.kafka, group, topic, places)


def _config(reset: str | None, protocol: str = "classic") -> dict[str, Any]:
    return {"auto.offset.reset": reset, "group.protocol": protocol}


def _no_reset(client: str) -> str:
    """Return the value of auto.offset.reset that asks for an error, as this client spells it."""
    if client == Library.KAFKA_PYTHON:
        return "none"
    return "error"


def _read(
    trial: Trial, scenario: Scenario, plan: Consuming, new: int = 0, first: int = 0
) -> Reading:
    """Read to the end or to an error; then send more, numbered from `first`, and read that too."""
    parts: Sequence[int] = range(PARTITIONS)
    if plan.assigned is not None:
        parts = plan.assigned
    with scenario.background(plan) as (counted, _):
        for sends in dict.fromkeys((0, new)):
            if sends:
                _more(trial, scenario, plan.topic, sends, first)
            ends = _ends(trial, plan.topic)

            def reached(ends: Places = ends) -> bool:
                at_end = sum(counted.ends.get(part) == ends[part] for part in parts)
                missing = len(counted.errors)
                if plan.library is Library.LIBRDKAFKA:
                    missing = counted.errors.count(NO_OFFSET)
                return at_end + missing >= len(parts) or bool(
                    counted.errors and not plan.continue_after_error
                )

            trial.wait(reached, f"{plan.member} to read to the end")
        began, read = dict(counted.ends), dict.fromkeys(parts, 0)
    found = [
        one
        for one in history.of(scenario.history(), OperationKind.READ, group=plan.group)
        if one.member == plan.member
    ]
    # Backwards, so that the first record of each partition is assigned last.
    for one in reversed(found):
        began[one.partition or 0] = one.offset or 0
        read[one.partition or 0] += 1
    return Reading(began, read, tuple(counted.errors))


def _is_about_offsets(found: Reading) -> bool:
    """Return whether there were errors, all of them about a missing start offset."""
    return bool(found.errors) and ABOUT_OFFSETS.issuperset(found.errors)


def _numbers(scenario: Scenario, group: str) -> list[int]:
    return [
        one.number or 0 for one in history.of(scenario.history(), OperationKind.READ, group=group)
    ]


def _new_group(
    trial: Trial, topic: str, config: dict[str, Any], name: str, **rest: Any
) -> Consuming:
    return Consuming(topic=topic, group=trial.group(), member=name, config=config, **rest)


@experiment(
    "start-1",
    statement="A new group with auto.offset.reset=latest reads only records that arrive after it",
    method=(
        "Write records with timestamps of the last two days. Start a new group with latest, and "
        "send more records once it is at the end. Also count what it skips while it joins, and "
        "after a restart before its first commit."
    ),
    advice=(
        "Use latest only where the past does not matter. Records that arrive before the first "
        "commit of the group may be skipped too."
    ),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def new_group_with_latest(trial: Trial) -> None:
    count, new = trial.scaled(1_000, 20_000), trial.scaled(300, 3_000)
    scenario = trial.scenario("two days")
    topic = trial.topic(PARTITIONS, retention_ms=FOREVER)
    _backlog(trial, scenario, topic, count)
    published, skipped = count, list[list[Cell]]()
    for protocol in trial.cluster.protocols:
        everything = _read(
            trial,
            scenario,
            _new_group(trial, topic, _config("earliest", protocol), f"{protocol}, earliest"),
        )
        trial.control(
            f"{protocol}: the backlog can be read",
            everything.count == published,
            f"{everything.count:,} of {published:,}",
        )

        plan = _new_group(
            trial,
            topic,
            _config("latest", protocol),
            f"{protocol}, latest",
            commit=CommitMode.NEVER,
        )
        _read(trial, scenario, plan, new, first=published)
        numbers = _numbers(scenario, plan.group)
        old, fresh = (
            sum(number < published for number in numbers),
            sum(number >= published for number in numbers),
        )
        trial.statement(f"{protocol}: no older record is read", old == 0, f"{old} of {published:,}")
        trial.statement(
            f"{protocol}: records that arrive once it is at the end are read",
            fresh == new,
            f"{fresh} of {new}",
        )

        _more(trial, scenario, topic, new, first=published + new)
        again = _read(trial, scenario, _with(plan, member=f"{protocol}, again"))
        published += 2 * new
        away = new - again.count
        trial.limit(
            f"{protocol}: records that arrive while it is away, before its first commit,"
            " are skipped",
            away > 0,
            f"{away} of {new}",
        )
        skipped.append([protocol, "while the group was away, before its first commit", away])
        skipped.append(
            [
                protocol,
                "at 300 records per second while the group was joining",
                _missed_while_joining(trial, protocol),
            ]
        )
    trial.table(
        "Records skipped although they were sent after the group's first start",
        ["protocol", "sent", "skipped"],
        skipped,
    )


def _missed_while_joining(trial: Trial, protocol: str) -> int:
    """Count the records sent between the start of a consumer and the first record it read.

    A publisher sends at a steady rate.
    """
    scenario = trial.scenario(f"{protocol}, joining")
    topic = trial.topic(PARTITIONS)
    steady = Publishing(topic=topic, count=100_000, keys=KEYS, seed=trial.seed, per_s=300)
    plan = _new_group(trial, topic, _config("latest", protocol), "joining", commit=CommitMode.NEVER)
    with scenario.background(steady):
        trial.wait(lambda: sum(_ends(trial, topic).values()) > KEYS, "the publisher")
        began_ns = time.monotonic_ns()
        with scenario.background(plan) as (counted, _):
            trial.wait(lambda: counted.read > 100, "the consumer to read")
    operations, first = scenario.history(), dict[int | None, int]()
    for one in history.of(operations, OperationKind.READ):
        first.setdefault(one.partition, one.offset or 0)
    sent = [
        one
        for one in history.of(operations, OperationKind.SEND)
        if one.at_ns - one.took_ns > began_ns
    ]
    return sum((one.offset or 0) < first.get(one.partition, 0) for one in sent)


def _with(plan: Consuming, **changed: Any) -> Consuming:
    return msgspec.structs.replace(plan, **changed)


@experiment(
    "start-2",
    statement="A new group with auto.offset.reset=earliest reads everything",
    method=(
        "Write records with timestamps of the last two days. Start a new group with earliest and "
        "read to the end. Repeat after the older half of the records was deleted, as retention "
        "does."
    ),
    advice=(
        "Use earliest for any reader that must not miss a record, and retain records for longer "
        "than it may take until a reader starts."
    ),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS", "TOPIC_RETENTION_SHORT"),
)
def new_group_with_earliest(trial: Trial) -> None:
    count, new = trial.scaled(1_000, 20_000), trial.scaled(300, 3_000)
    scenario = trial.scenario("two days")
    topic = trial.topic(PARTITIONS, retention_ms=FOREVER)
    _backlog(trial, scenario, topic, count)
    for number, protocol in enumerate(trial.cluster.protocols):
        published = count + number * new
        found = _read(
            trial,
            scenario,
            _new_group(trial, topic, _config("earliest", protocol), protocol),
            new,
            first=published,
        )
        trial.statement(
            f"{protocol}: everything is read",
            found.count == published + new,
            f"{found.count:,} of {published:,} old and {new:,} new",
        )
    total = count + len(trial.cluster.protocols) * new
    first = topics.trim(trial.cluster.kafka, topic, _middle(trial, topic))
    late_reader = _read(trial, scenario, _new_group(trial, topic, _config("earliest"), "late"))
    trial.limit(
        "records deleted before the group started are not read",
        late_reader.count < total and late_reader.began == first,
        f"{late_reader.count:,} of {total:,}, from the first remaining record",
    )


@experiment(
    "start-3",
    statement="Changing auto.offset.reset has no effect on a group that has committed offsets",
    method=(
        "A group reads and commits with one value, records arrive while it is away, and it "
        "returns with the other value, in both directions. Repeat with a partition that has no "
        "commit, and with a committed offset that was deleted."
    ),
    advice=(
        "To move a group, reset its offsets (instep groups reset). The setting only applies "
        "where there is no valid commit."
    ),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def reset_policy_of_committed_group(trial: Trial) -> None:
    count = trial.scaled(300, 3_000)
    for protocol in trial.cluster.protocols:
        for before, after in (("earliest", "latest"), ("latest", "earliest")):
            scenario = trial.scenario(f"{protocol}, {before} to {after}")
            topic = trial.topic(PARTITIONS)
            _more(trial, scenario, topic, count, first=0)
            plan = _new_group(trial, topic, _config(before, protocol), before)
            _read(trial, scenario, plan, count, first=count)
            committed = groups.positions(trial.cluster.kafka, plan.group, topic)
            _more(trial, scenario, topic, count, first=2 * count)
            found = _read(
                trial, scenario, _with(plan, member=after, config=_config(after, protocol))
            )
            trial.statement(
                f"{protocol}, {before} to {after}: it continues from the committed offset",
                found.began == committed and found.count == count,
                f"began at {_show(found.began)}, committed {_show(committed)},"
                f" read {found.count} of {count} new",
            )
    scenario = trial.scenario("no valid commit")
    topic = trial.topic(PARTITIONS)
    _more(trial, scenario, topic, 3 * count, first=0)
    middle, ends = _middle(trial, topic), _ends(trial, topic)
    partly = {part: middle[part] for part in range(PARTITIONS - 1)}
    began = {
        reset: _began_after(trial, scenario, topic, partly, reset)[PARTITIONS - 1]
        for reset in ("earliest", "latest")
    }
    trial.limit(
        "a partition without a commit of the group follows the setting",
        began == {"earliest": 0, "latest": ends[PARTITIONS - 1]},
        f"earliest began at {began['earliest']}, latest at {began['latest']}",
    )
    first = topics.trim(
        trial.cluster.kafka, topic, {part: place + 1 for part, place in middle.items()}
    )
    after_expiry = {
        reset: _began_after(trial, scenario, topic, middle, reset)
        for reset in ("earliest", "latest")
    }
    trial.limit(
        "a committed offset that was deleted follows the setting",
        after_expiry == {"earliest": first, "latest": ends},
        f"committed {_show(middle)}; earliest began at {_show(after_expiry['earliest'])},"
        f" latest at {_show(after_expiry['latest'])}",
    )


def _began_after(
    trial: Trial, scenario: Scenario, topic: str, committed: Places, reset: str
) -> Places:
    """Return where a group with these commits begins with this setting."""
    plan = _new_group(trial, topic, _config(reset), f"{reset} after {len(committed)} commits")
    _commit(trial, topic, plan.group, committed)
    return _read(trial, scenario, plan).began


def _show(places: Mapping[int, int]) -> str:
    return ", ".join(str(offset) for _, offset in sorted(places.items())) or "nowhere"


@experiment(
    "start-4",
    statement="A new group always starts at the newest record, whatever auto.offset.reset says",
    method=(
        "Write records with timestamps of the last two days. Start new groups with earliest, "
        "with latest and without the setting, with two protocols and two clients, and check "
        "where each begins."
    ),
    advice="Set auto.offset.reset explicitly: latest is only the default of the clients.",
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def default_start_of_new_group(trial: Trial) -> None:
    count = trial.scaled(500, 20_000)
    scenario = trial.scenario("two days")
    topic = trial.topic(PARTITIONS, retention_ms=FOREVER)
    _backlog(trial, scenario, topic, count)
    ends, rows = _ends(trial, topic), list[list[Cell]]()
    for client in (*trial.cluster.protocols, Library.KAFKA_PYTHON):
        for reset in ("earliest", "latest", None):
            name = f"{client}, {reset or 'not set'}"
            found = _read(trial, scenario, _of_client(trial, topic, client, reset, name))
            rows.append([str(client), reset or "not set", _show(found.began), found.count])
            evidence = (
                f"began at {_show(found.began)} of {_show(ends)}, read {found.count} of {count}"
            )
            if reset == "earliest":
                trial.statement(
                    f"{client}: it starts at the newest with earliest",
                    found.began == ends,
                    evidence,
                )
            else:
                trial.control(f"{name}: it starts at the newest", found.began == ends, evidence)
    trial.table(
        "Where a new group begins", ["client", "auto.offset.reset", "offsets", "read"], rows
    )


def _of_client(trial: Trial, topic: str, client: str, reset: str | None, name: str) -> Consuming:
    """Return a plan for a new group, with a protocol of librdkafka or with kafka-python."""
    if client == Library.KAFKA_PYTHON:
        config = {"auto_offset_reset": reset}
        return Consuming(
            topic=topic,
            group=trial.group(),
            member=name,
            config=config,
            library=Library.KAFKA_PYTHON,
        )
    return Consuming(topic=topic, group=trial.group(), member=name, config=_config(reset, client))


@experiment(
    "start-5",
    statement=(
        "With auto.offset.reset=none a consumer gets an error if a partition has no committed "
        "offset"
    ),
    method=(
        "Commit offsets for all, some and none of three partitions. Start two clients with none "
        "(librdkafka calls it error), let them continue after the error, and count what each "
        "reads."
    ),
    advice=(
        "Choose none (error in librdkafka) where skipping records and reading them again would "
        "both do harm, and stop on the error: librdkafka continues to read the other partitions."
    ),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def missing_offset_with_none(trial: Trial) -> None:
    count = trial.scaled(300, 3_000)
    rows: list[list[Cell]] = []
    for client in (*trial.cluster.protocols, Library.KAFKA_PYTHON):
        scenario = trial.scenario(client)
        topic = trial.topic(PARTITIONS)
        _more(trial, scenario, topic, count, first=0)
        middle = _middle(trial, topic)
        for committed in (PARTITIONS, PARTITIONS - 1, 0):
            plan = _with(
                _of_client(trial, topic, client, _no_reset(client), f"{committed} committed"),
                continue_after_error=True,
            )
            _commit(trial, topic, plan.group, {part: middle[part] for part in range(committed)})
            found = _read(trial, scenario, plan)
            named = sorted(set(found.errors))
            evidence = f"{', '.join(named) or 'no error'}, {found.count} records read"
            rows.append([str(client), committed, ", ".join(named) or "none", found.count])
            if committed == PARTITIONS:
                trial.control(f"{client}: no error when all are committed", not named, evidence)
            else:
                missing = f"{PARTITIONS - committed} of {PARTITIONS}"
                statement = f"{client}: an error with {missing} partitions uncommitted"
                trial.statement(statement, _is_about_offsets(found), evidence)
    trial.table(
        "Errors and records of a consumer that continues after the error",
        ["client", "committed", "error", "read"],
        rows,
    )


@experiment(
    "start-6",
    statement="subscribe and assign start from the same offset",
    method=(
        "Read one topic with subscribe and with assign, with and without commits of the group, "
        "with earliest and with latest, with two clients; and with assign without a group."
    ),
    advice=(
        "With the same group id both continue from its commits. assign without a group stores no "
        "offsets: keep them yourself."
    ),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def subscribe_and_assign(trial: Trial) -> None:
    count = trial.scaled(300, 3_000)
    scenario = trial.scenario("both ways")
    topic = trial.topic(PARTITIONS)
    _more(trial, scenario, topic, count, first=0)
    middle, ends, rows = _middle(trial, topic), _ends(trial, topic), list[list[Cell]]()
    for client in ("classic", Library.KAFKA_PYTHON):
        for committed in (True, False):
            for reset in ("earliest", "latest"):
                situation = f"{client}, {'with' if committed else 'without'} commits, {reset}"
                began: list[Places] = []
                for assigned in (None, list(range(PARTITIONS))):
                    name = f"{situation}, {'subscribe' if assigned is None else 'assign'}"
                    plan = _with(
                        _of_client(trial, topic, client, reset, name),
                        assigned=assigned,
                        commit=CommitMode.NEVER,
                    )
                    if committed:
                        _commit(trial, topic, plan.group, middle)
                    began.append(_read(trial, scenario, plan).began)
                rows.append([situation, *(_show(one) for one in began)])
                expected = {"earliest": dict.fromkeys(ends, 0), "latest": ends}[reset]
                if committed:
                    expected = middle
                trial.control(
                    f"{situation}: subscribe begins where expected",
                    began[0] == expected,
                    _show(began[0]),
                )
                trial.statement(
                    f"{situation}: assign begins at the same offsets",
                    began[0] == began[1],
                    f"{_show(began[0])} and {_show(began[1])}",
                )
    alone = _with(
        _of_client(trial, topic, Library.KAFKA_PYTHON, "earliest", "no group"),
        group="",
        assigned=list(range(PARTITIONS)),
    )
    twice = [
        _read(trial, scenario, _with(alone, member=f"no group, {number}"))
        for number in ("first", "again")
    ]
    rows.append(
        [
            "kafka-python, no group, earliest, twice",
            "not possible",
            "; ".join(_show(one.began) for one in twice),
        ]
    )
    trial.limit(
        "assign without a group starts from the beginning every time",
        all(one.began == dict.fromkeys(ends, 0) and one.count == count for one in twice),
        f"the same {twice[1].count} records were read twice",
    )
    trial.table("Where reading began, by partition", ["scenario", "subscribe", "assign"], rows)


@experiment(
    "start-7",
    statement=(
        "A group whose committed offset was removed by retention falls back to auto.offset.reset"
    ),
    method=(
        "A group reads a few records and stays away. Retention removes the segments that it has "
        "not read. It returns with earliest, latest and none, with two clients."
    ),
    advice=(
        "Retain records for longer than a reader may be away. Use none (error in librdkafka) to "
        "learn about the loss: earliest skips what is gone, latest also skips everything that is "
        "left, and neither reports it."
    ),
    rules=("TOPIC_RETENTION_SHORT", "PIPELINE_RECORDS_EXPIRE_SOON", "PIPELINE_RECORDS_EXPIRED"),
)
def offset_removed_by_retention(trial: Trial) -> None:
    scenario = trial.scenario("retention")
    # Retention deletes whole segments, so there must be several.
    topic = trial.topic(PARTITIONS, retention_ms=FOREVER, segment_bytes=str(1 << 20))
    committed, fresh = dict.fromkeys(range(PARTITIONS), 10), 300
    now_ms = int(time.time() * 1000)
    scenario.publish(
        Publishing(
            topic=topic,
            count=5_000,
            size=1_000,
            keys=KEYS,
            seed=trial.seed,
            timestamp_ms=now_ms - 48 * HOUR_MS,
            config=AT_ONCE,
        )
    )
    _more(trial, scenario, topic, fresh, first=5_000)
    plans: dict[tuple[str, str], Consuming] = {}
    for client in (*trial.cluster.protocols, Library.KAFKA_PYTHON):
        for reset in ("earliest", "latest", _no_reset(client)):
            plan = _with(
                _of_client(trial, topic, client, reset, f"{client}, {reset}"),
                continue_after_error=True,
            )
            _commit(trial, topic, plan.group, committed)
            plans[client, reset] = plan
    _expire(trial, topic, committed)
    firsts, ends, rows = _firsts(trial, topic), _ends(trial, topic), list[list[Cell]]()
    lost = sum(firsts[part] - committed[part] for part in committed)
    trial.control(
        "records that the groups have not read are gone",
        all(firsts[part] > committed[part] for part in committed)
        and any(ends[part] > firsts[part] for part in committed),
        f"{lost:,} gone, {sum(ends.values()) - sum(firsts.values()):,} left",
    )
    for (client, reset), plan in plans.items():
        found = _read(trial, scenario, plan)
        named = ", ".join(sorted(set(found.errors))) or "no error"
        evidence = f"began at {_show(found.began)}, read {found.count:,}, {named}"
        rows.append([client, reset, _show(found.began), found.count, named])
        if reset in ("earliest", "latest"):
            expected = {"earliest": firsts, "latest": ends}[reset]
            trial.statement(
                f"{client}: {reset} is followed",
                found.began == expected and not found.errors,
                evidence,
            )
        else:
            trial.statement(
                f"{client}: {reset} is followed",
                _is_about_offsets(found) and found.count == 0,
                evidence,
            )
    trial.table(
        f"After the loss: committed {_show(committed)}, log from {_show(firsts)} to {_show(ends)}",
        ["client", "auto.offset.reset", "began at", "read", "error"],
        rows,
    )


def _expire(trial: Trial, topic: str, committed: Places) -> None:
    """Let retention remove records older than a day.

    A user's cluster checks retention only every few minutes: delete the records there.
    """
    if trial.cluster.own is None:
        topics.trim(trial.cluster.kafka, topic, _middle(trial, topic))
        return
    topic_admin.alter(trial.cluster.kafka, topic, {"retention.ms": str(24 * HOUR_MS)}, ())
    trial.note("retention.ms=1 day")
    trial.wait(
        lambda: all(first > committed[part] for part, first in _firsts(trial, topic).items()),
        "retention to remove the old segments",
    )
