"""What went wrong, from a history alone. Each checker is a pure function that finds one anomaly, with the records that show it.

    lost        sent with an answer, and never worked
    repeated    worked more than once
    inverted    worked after a later one of the same key
    went back   worked again after a later one of the same key
    unsorted    came after one that was sent later, whatever their keys
    reordered   read from a partition after a higher offset, within one assignment
    unsent      read, and nobody sent it: the trial itself is broken
    aborted     read, though its transaction was taken back
    pauses      times in which a group read nothing while others sent

Unknown is never taken for an answer: a send without one is neither lost when it is missing nor wrong when it is there.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from instep_lab import history
from instep_lab.history import Operation, OperationKind, OperationStatus

EXAMPLES_MAX = 10

Record = tuple[str | None, int | None]


@dataclass(frozen=True, slots=True)
class Anomalies:
    """How often an anomaly was found, among how many that could have had it, and a few that show it."""

    anomaly: str
    count: int
    of: int
    examples: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def share(self) -> float | None:
        """None where nothing could have shown it: then its absence says nothing."""
        return self.count / self.of if self.of else None


def lost(
    operations: Sequence[Operation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.WORK,
) -> Anomalies:
    """Acknowledged records that were never worked (or read)."""
    sent = [one.record for one in history.of(operations, OperationKind.SEND)]
    done = {one.record for one in history.of(operations, by, group=group)}
    missing = [record for record in dict.fromkeys(sent) if record not in done]
    return _found("lost", missing, len(set(sent)))


def repeated(
    operations: Sequence[Operation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.WORK,
) -> Anomalies:
    """Records that were worked (or read) more than once; each further time counts."""
    counts = Counter(one.record for one in history.of(operations, by, group=group))
    again = [record for record, count in counts.items() for _ in range(count - 1)]
    return _found("repeated", again, len(counts))


def inverted(
    operations: Sequence[Operation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.WORK,
) -> Anomalies:
    """Records that were worked for the first time after a later one of the same key."""
    highest: dict[str | None, int] = {}
    seen: set[Record] = set()
    late: list[Record] = []
    for one in history.of(operations, by, group=group):
        if one.number is None or one.record in seen:
            continue
        seen.add(one.record)
        if one.number < highest.get(one.key, one.number):
            late.append(one.record)
        highest[one.key] = max(one.number, highest.get(one.key, one.number))
    return _found("inverted", late, len(seen))


def went_back(
    operations: Sequence[Operation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.WORK,
) -> Anomalies:
    """Repeats that came after a later record of the same key: a reader without a guard returns to an older state."""
    highest: dict[str | None, int] = {}
    seen: set[Record] = set()
    back: list[Record] = []
    for one in history.of(operations, by, group=group):
        if one.number is None:
            continue
        if one.record in seen and one.number < highest[one.key]:
            back.append(one.record)
        seen.add(one.record)
        highest[one.key] = max(one.number, highest.get(one.key, one.number))
    return _found("went back", back, len(seen))


def unsorted(
    operations: Sequence[Operation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.READ,
) -> Anomalies:
    """Records that came after one that was sent later, whatever their keys: the order over a whole topic."""
    sent = sorted(
        history.of(operations, OperationKind.SEND, None), key=lambda one: one.at_ns - one.took_ns
    )
    place = {one.record: number for number, one in enumerate(sent)}
    highest, late, seen = -1, [], 0
    for one in history.of(operations, by, group=group):
        if one.record not in place:
            continue
        seen += 1
        if place[one.record] < highest:
            late.append(one.record)
        highest = max(highest, place[one.record])
    return _found("unsorted", late, seen)


def reordered(operations: Sequence[Operation], group: str | None = None) -> Anomalies:
    """Reads of a partition that went back to a lower offset without a new assignment."""
    highest: dict[tuple[str, str, int | None], int] = {}
    back: list[str] = []
    reads = 0
    for one in operations:
        if group is not None and one.group != group:
            continue
        place = (one.group, one.member, one.partition)
        if one.kind in (OperationKind.ASSIGN, OperationKind.REVOKE):
            highest.pop(place, None)
        elif one.kind is OperationKind.READ and one.offset is not None:
            reads += 1
            if one.offset <= highest.get(place, -1):
                back.append(
                    f"{one.group}/{one.member}: {one.partition}:{one.offset} after {highest[place]}"
                )
            highest[place] = max(one.offset, highest.get(place, -1))
    return Anomalies("reordered", len(back), reads, tuple(back[:EXAMPLES_MAX]))


def unsent(operations: Sequence[Operation], group: str | None = None) -> Anomalies:
    """Records that were read and that no client tried to send."""
    tried = {one.record for one in history.of(operations, OperationKind.SEND, None)}
    read = [one.record for one in history.of(operations, OperationKind.READ, group=group)]
    return _found("unsent", [record for record in read if record not in tried], len(read))


def aborted(operations: Sequence[Operation], group: str | None = None) -> Anomalies:
    """Records that were read although their transaction was aborted. A transaction that failed to commit was."""
    ended = {
        one.transaction: one.outcome
        for one in history.of(operations, OperationKind.COMMIT, None)
        if one.transaction is not None
    }
    taken_back = {
        one.record
        for one in history.of(operations, OperationKind.SEND, None)
        if ended.get(one.transaction or "") is OperationStatus.FAIL
    }
    read = [one.record for one in history.of(operations, OperationKind.READ, group=group)]
    return _found("aborted", [record for record in read if record in taken_back], len(read))


def pauses(operations: Sequence[Operation], group: str, longer_than_ns: int) -> list[int]:
    """The lengths, in ns, of the times in which the group read nothing, between its first read and its last."""
    times = sorted(one.at_ns for one in history.of(operations, OperationKind.READ, group=group))
    gaps = (after - before for before, after in itertools.pairwise(times))
    return sorted((gap for gap in gaps if gap > longer_than_ns), reverse=True)


def shares(operations: Sequence[Operation], group: str) -> dict[str, int]:
    """How many records each member of the group read."""
    found: dict[str, int] = defaultdict(int)
    for one in history.of(operations, OperationKind.READ, group=group):
        found[one.member] += 1
    return dict(found)


def _found(anomaly: str, records: Sequence[Record], of: int) -> Anomalies:
    return Anomalies(
        anomaly,
        len(records),
        of,
        tuple(f"{key}#{number}" for key, number in records[:EXAMPLES_MAX]),
    )
