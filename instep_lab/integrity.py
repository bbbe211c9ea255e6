"""Whether the clients of a trial did what their history says, and read the log as it is. Pure.

A statement about Kafka must not rest on a client of the lab that is broken. A reader of an
append-only log can be checked for nothing:

    gap        within one assignment, offsets increase by one
    unplaced   an acknowledgement tells the offset
    elsewhere  an acknowledged record is at the offset that was acknowledged
    misdated   a reader finds a timestamp between the hand-over of the record and the answer
    disputed   all readers find the same record at an offset
    unsent     what is read was sent
    disorder   a sender hands over the records of a key in the order of their numbers
    twice      an idempotent sender hands a record over once, so that it is in the log once
    scattered  a sender with keys puts the records of a key into one partition
    unworked   a consumer that ended by itself has worked on everything that it read
    reworked   a consumer works on a record as often as it reads it
    too far    a consumer that commits after the work has worked on what it commits
    rerouted   a pool that routes by key works on the records of a key in one thread
    behind     a group continues at what it committed synchronously
    beyond     a group does not continue after everything that it tried to commit
    unfinished a consumer that commits when it closes has tried to
    early      a reader that ends at the end of the log has reached that of every partition

What fails here makes the claim INCONCLUSIVE.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from instep_lab import history
from instep_lab.history import ClientOperation, OperationKind, OperationStatus

EXAMPLES_MAX = 5
CLOCK_MS = 10  # by which two readings of a clock may differ from the order of what they time
# The controls that say whether the records of a claim were checked.
CLIENTS_CHECKED = "the clients did what they recorded, and read the log as it is"
LOG_CHECKED = "the log has every record that was sent at full speed, and no more"
# The claims that need neither, and why.
UNCHECKED = {
    "send-4": "it asks clients for their defaults",
    "send-12": "it asks clients for their defaults",
    "topic-1": "it creates topics without records",
    "topic-2": "it changes topics without records",
    "storage-4": "it counts the folders of topics without records",
    "queue-1": "a control of its own says that every measured message arrived exactly once",
    "queue-2": "a control of its own says that every measured message arrived exactly once",
    "queue-4": "a control of its own says that every measured message arrived exactly once",
    "speed-1": "a control of its own says that the table has a row for every event",
}
SYNCHRONOUS = "sync"  # the note of a synchronous commit
_PLACED = (OperationKind.WORK, OperationKind.COMMIT)

Place = tuple[str, int, int]  # topic, partition and offset
Member = tuple[str, str]  # a group and one of its members


def is_checked(claim: str, controls: Collection[str]) -> bool:
    """Return whether one of these controls of a claim has checked its records, if it has any."""
    return claim in UNCHECKED or CLIENTS_CHECKED in controls or LOG_CHECKED in controls


@dataclass(frozen=True, slots=True)
class Checked:
    """How many operations were checked, and what is wrong with them."""

    operations: int
    faults: list[str]

    def __str__(self) -> str:
        if not self.faults:
            return f"{self.operations:,} operations checked"
        more = f" and {len(self.faults) - EXAMPLES_MAX} more" * (len(self.faults) > EXAMPLES_MAX)
        return f"{'; '.join(self.faults[:EXAMPLES_MAX])}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the plans of a scenario promise, and what its experiment allows.

    Members are consumers by group and name, senders are producers by name. `knows_commits` has the
    groups whose members record every commit that they try, and `sends_once` the topics that only
    idempotent producers write to. Senders in `sets_timestamps` have the clock of the readers.
    `gaps_allowed` is for logs that have gaps themselves: after
    transactions and compaction. After a lost disk, a log may begin again at offset 0: what was
    acknowledged there says nothing.
    """

    commits_after_work: Collection[Member] = ()
    commits_at_end: Collection[Member] = ()
    continues_at_commit: Collection[Member] = ()
    knows_commits: Collection[str] = ()
    reads_to_end: Collection[Member] = ()
    routes_by_key: Collection[Member] = ()
    learns_offsets: Collection[str] = ()
    sends_keys: Collection[str] = ()
    sends_once: Collection[str] = ()
    sets_timestamps: Collection[str] = ()
    gaps_allowed: bool = False
    disk_lost: bool = False


def check(operations: Sequence[ClientOperation], expected: Expected) -> Checked:
    """Check the history of one scenario."""
    has_gaps = expected.gaps_allowed or any(one.transaction for one in operations)
    may_skip = has_gaps or expected.disk_lost
    found = [
        *_out_of_sequence(operations, gaps_allowed=has_gaps),
        *_unplaced(operations, expected.learns_offsets),
        *(() if expected.disk_lost else _elsewhere(operations)),
        *(() if expected.disk_lost else _misdated(operations, expected.sets_timestamps)),
        *_disputed(operations),
        *_unsent(operations),
        *_disordered(operations),
        *_twice(operations, expected.sends_once),
        *_scattered(operations, expected.sends_keys),
        *_unworked(operations),
        *_reworked(operations),
        *_too_far(operations, expected.commits_after_work),
        *_rerouted(operations, expected.routes_by_key),
        *_behind(operations, expected.continues_at_commit),
        *(() if may_skip else _beyond(operations, expected)),
        *_unfinished(operations, expected.commits_at_end),
        *_early(operations, expected.reads_to_end),
    ]
    return Checked(len(operations), found)


def _out_of_sequence(operations: Iterable[ClientOperation], *, gaps_allowed: bool) -> Iterator[str]:
    """Yield reads that do not follow the previous one of the same assignment."""
    last: dict[tuple[str, str, str, int | None], int] = {}
    assigned: set[tuple[str, str, int | None]] = set()
    for one in operations:
        reader = (one.group, one.member, one.partition)
        if one.kind in (OperationKind.ASSIGN, OperationKind.REVOKE):
            assigned.add(reader)
            for known in [key for key in last if (key[0], key[1], key[3]) == reader]:
                del last[known]
        elif _is_read(one) and reader in assigned and one.offset is not None:
            key = (one.group, one.member, one.topic, one.partition)
            before = last.get(key)
            last[key] = one.offset
            if before is None or one.offset == before + 1:
                continue
            if one.offset > before and gaps_allowed:
                continue
            yield f"{one.member} read offset {one.offset} of {_part(one)} after {before}"


def _unplaced(
    operations: Sequence[ClientOperation], learns_offsets: Collection[str]
) -> Iterator[str]:
    """Yield acknowledged records without an offset, of senders whose broker tells it."""
    for one in history.of(operations, OperationKind.SEND):
        if one.member in learns_offsets and one.offset is None:
            yield f"{_record(one)} was acknowledged without an offset"


def _elsewhere(operations: Sequence[ClientOperation]) -> Iterator[str]:
    """Yield acknowledged records that were read, but not at the acknowledged offset."""
    found: dict[Place, tuple[str | None, int | None]] = {}
    records = set()
    for one in operations:
        if _is_read(one) and (place := _place(one)):
            found[place] = one.record
            records.add((one.topic, one.record))
    for one in history.of(operations, OperationKind.SEND):
        place = _place(one)
        # a record that is nowhere was lost, which is for the checkers
        if place is None or (one.topic, one.record) not in records:
            continue
        key, number = found.get(place, one.record)
        if (key, number) != one.record:
            yield (
                f"{_record(one)} was acknowledged at offset {one.offset} of {_part(one)},"
                f" where {key}#{number} is"
            )


def _misdated(
    operations: Sequence[ClientOperation], sets_timestamps: Collection[str]
) -> Iterator[str]:
    """Yield records with a timestamp before their hand-over or after the answer.

    The timestamp in the broker's answer says less: for a repeat that the broker has recognised, it
    is that of the last record of the batch.
    """
    sent: dict[Place, tuple[int, int]] = {}
    for one in history.of(operations, OperationKind.SEND):
        if one.member not in sets_timestamps or one.timestamp_ms is None:
            continue
        if place := _place(one):
            answered_ms = one.timestamp_ms + one.took_ns // 1_000_000
            sent[place] = one.timestamp_ms - CLOCK_MS, answered_ms + CLOCK_MS
    for one in operations:
        if not _is_read(one) or one.timestamp_ms is None or (place := _place(one)) not in sent:
            continue
        first, last = sent[place]
        if not first <= one.timestamp_ms <= last:
            yield (
                f"{_record(one)} was sent from {first} to {last} ms and read with the timestamp"
                f" {one.timestamp_ms}"
            )


def _disputed(operations: Iterable[ClientOperation]) -> Iterator[str]:
    found: dict[Place, ClientOperation] = {}
    for one in operations:
        if _is_read(one) and (place := _place(one)):
            first = found.setdefault(place, one)
            if first.record != one.record:
                yield f"offset {one.offset} of {_part(one)} is {_record(first)} and {_record(one)}"


def _unsent(operations: Sequence[ClientOperation]) -> Iterator[str]:
    sent = {one.record for one in history.of(operations, OperationKind.SEND, None)}
    if not sent:
        return  # the workload was published by another scenario
    for one in operations:
        if _is_read(one) and one.record not in sent:
            yield f"{_record(one)} was read, and nobody sent it"


def _disordered(operations: Iterable[ClientOperation]) -> Iterator[str]:
    """Yield records that their sender handed over after a later record of the same key."""
    handed: dict[tuple[str, str | None], set[tuple[int, int]]] = defaultdict(set)
    for one in operations:
        if _is_read(one) and one.sender and one.sequence is not None and one.number is not None:
            handed[one.sender, one.key].add((one.sequence, one.number))
    for (_, key), pairs in handed.items():
        highest = -1
        for _, number in sorted(pairs):
            if number < highest:
                yield f"{key}#{number} was handed over after {key}#{highest}"
            highest = max(highest, number)


def _twice(operations: Iterable[ClientOperation], sends_once: Collection[str]) -> Iterator[str]:
    """Yield records that are in the log twice although one producer handed them over once."""
    first: dict[tuple[str, int, str], Place] = {}
    for one in operations:
        if not _is_read(one) or one.topic not in sends_once or one.sequence is None:
            continue
        place = _place(one)
        if place is None:
            continue
        known = first.setdefault((one.sender, one.sequence, one.topic), place)
        if known != place:
            yield f"{_record(one)} is at offsets {known[2]} and {place[2]} of an idempotent sender"


def _scattered(operations: Sequence[ClientOperation], sends_keys: Collection[str]) -> Iterator[str]:
    """Yield keys whose records one sender put into several partitions."""
    first: dict[tuple[str, str, str | None], int] = {}
    for one in history.of(operations, OperationKind.SEND):
        if one.member not in sends_keys or one.partition is None or one.partition < 0:
            continue
        known = first.setdefault((one.member, one.topic, one.key), one.partition)
        if known != one.partition:
            yield f"{_record(one)} is in partition {one.partition}, others of its key in {known}"


def _unworked(operations: Sequence[ClientOperation]) -> Iterator[str]:
    """Yield what a consumer that ended by itself has read, but not worked on."""
    waiting: dict[Member, dict[Place, ClientOperation]] = defaultdict(dict)
    for one in operations:
        member = (one.group, one.member)
        if _is_read(one) and (place := _place(one)):
            waiting[member][place] = one
        elif one.kind is OperationKind.WORK and (place := _place(one)):
            waiting[member].pop(place, None)
        elif one.kind is OperationKind.END:
            for left in waiting.pop(member, {}).values():
                yield f"{left.member} read {_record(left)} and did not work on it"


def _reworked(operations: Iterable[ClientOperation]) -> Iterator[str]:
    """Yield records that a consumer worked on more often than it had read them."""
    left: Counter[tuple[Member, Place]] = Counter()
    for one in operations:
        place = _place(one)
        if place is None:
            continue
        done = ((one.group, one.member), place)
        if _is_read(one):
            left[done] += 1
        elif one.kind is OperationKind.WORK:
            left[done] -= 1
            if left[done] < 0:
                yield f"{one.member} worked on {_record(one)} more often than it read it"


def _too_far(
    operations: Iterable[ClientOperation], commits_after_work: Collection[Member]
) -> Iterator[str]:
    worked: dict[Member, set[tuple[int | None, int]]] = defaultdict(set)
    for one in operations:
        member = (one.group, one.member)
        if one.offset is None or member not in commits_after_work:
            continue
        if one.kind is OperationKind.WORK:
            worked[member].add((one.partition, one.offset))
        elif (
            one.kind is OperationKind.COMMIT
            and one.outcome is not OperationStatus.FAIL
            and (one.partition, one.offset - 1) not in worked[member]
        ):
            yield f"{one.member} committed offset {one.offset} without the work before it"


def _rerouted(
    operations: Iterable[ClientOperation], routes_by_key: Collection[Member]
) -> Iterator[str]:
    """Yield records of a key that another thread worked on."""
    threads: dict[tuple[Member, str | None], str] = {}
    for one in operations:
        member = (one.group, one.member)
        if one.kind is OperationKind.WORK and member in routes_by_key:
            first = threads.setdefault((member, one.key), one.note)
            if first != one.note:
                yield f"{_record(one)} was worked on by {one.note}, others of its key by {first}"


def _early(
    operations: Iterable[ClientOperation], reads_to_end: Collection[Member]
) -> Iterator[str]:
    """Yield partitions that a reader still held when it ended before their end."""
    held: dict[Member, set[int | None]] = defaultdict(set)
    at_end: dict[Member, set[int | None]] = defaultdict(set)
    for one in operations:
        member = (one.group, one.member)
        if member not in reads_to_end:
            continue
        match one.kind:
            case OperationKind.ASSIGN:
                held[member].add(one.partition)
            case OperationKind.REVOKE:
                held[member].discard(one.partition)
                at_end[member].discard(one.partition)
            case OperationKind.POSITION:
                at_end[member].add(one.partition)
            case OperationKind.END:
                for partition in sorted(
                    held.pop(member, set()) - at_end.pop(member, set()), key=str
                ):
                    yield f"{one.member} ended before the end of partition {partition}"


def _behind(
    operations: Iterable[ClientOperation], continues_at_commit: Collection[Member]
) -> Iterator[str]:
    """Yield assignments that start before what the group committed synchronously by then."""
    committed: dict[tuple[str, int | None], int] = {}
    due: dict[tuple[Member, int | None], int] = {}
    for one in operations:
        member, part = (one.group, one.member), (one.group, one.partition)
        if member not in continues_at_commit:
            continue
        match one.kind:
            case OperationKind.COMMIT if one.note == SYNCHRONOUS and one.offset is not None:
                if one.outcome is OperationStatus.OK:
                    committed[part] = one.offset
            case OperationKind.ASSIGN:
                due[member, one.partition] = committed.get(part, 0)
            case OperationKind.READ if _is_read(one) and one.offset is not None:
                start = due.pop((member, one.partition), 0)
                if one.offset < start:
                    yield (
                        f"{one.member} read offset {one.offset} of {_part(one)} although its group"
                        f" had committed {start}"
                    )


def _beyond(operations: Iterable[ClientOperation], expected: Expected) -> Iterator[str]:
    """Yield assignments that start after everything that the group tried to commit by then."""
    tried: dict[tuple[str, int | None], int] = {}
    due: dict[tuple[Member, int | None], int] = {}
    for one in operations:
        member, part = (one.group, one.member), (one.group, one.partition)
        if member not in expected.continues_at_commit or one.group not in expected.knows_commits:
            continue
        match one.kind:
            case OperationKind.COMMIT if one.offset is not None:
                tried[part] = max(one.offset, tried.get(part, 0))
            case OperationKind.ASSIGN if part in tried:
                due[member, one.partition] = tried[part]
            case OperationKind.READ if _is_read(one) and one.offset is not None:
                start = due.pop((member, one.partition), one.offset)
                # A member that has to give the partition up may commit until then.
                if one.offset > max(start, tried.get(part, 0)):
                    yield (
                        f"{one.member} read offset {one.offset} of {_part(one)} first, although its"
                        f" group had committed at most {start}"
                    )


def _unfinished(
    operations: Iterable[ClientOperation], commits_at_end: Collection[Member]
) -> Iterator[str]:
    """Yield partitions that a consumer ended with and did not try to commit after its last work."""
    uncommitted: dict[Member, dict[int | None, int]] = defaultdict(dict)
    ended: set[Member] = set()
    for one in operations:
        member = (one.group, one.member)
        if member not in commits_at_end or (one.offset is None and one.kind in _PLACED):
            continue
        match one.kind:
            case OperationKind.WORK:
                uncommitted[member][one.partition] = (one.offset or 0) + 1
            case OperationKind.COMMIT:
                if uncommitted[member].get(one.partition) == one.offset:
                    del uncommitted[member][one.partition]
            case OperationKind.REVOKE if member not in ended:
                uncommitted[member].pop(one.partition, None)
            case OperationKind.END:
                ended.add(member)
    for group, name in sorted(ended):
        for partition in sorted(uncommitted[group, name], key=str):
            yield f"{name} ended without a commit of its work on partition {partition}"


def _is_read(one: ClientOperation) -> bool:
    return one.kind is OperationKind.READ and one.outcome is OperationStatus.OK


def _place(one: ClientOperation) -> Place | None:
    if one.partition is None or one.offset is None or one.offset < 0:
        return None  # the broker does not tell the offset of a repeat that it has recognised
    return one.topic, one.partition, one.offset


def _part(one: ClientOperation) -> str:
    return f"partition {one.partition}"


def _record(one: ClientOperation) -> str:
    return f"{one.key}#{one.number}"
