"""Checkers: pure functions that each find one anomaly in a history, with example records.

    lost        acknowledged, but never worked
    repeated    worked more than once
    inverted    worked for the first time after a later record of the same key
    went back   worked again after a later record of the same key
    unsorted    came after a record that was sent later, of any key
    reordered   read from a partition after a higher offset, within one assignment
    unsent      read, but sent by no client: the trial itself is broken
    aborted     read, although its transaction was aborted
    unread      acknowledged, but not read by a group
    pauses      times in which a group read nothing while others sent

An unknown outcome is never taken for an answer: a record whose send was not answered is neither
lost if it is missing nor an error if it is there.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from instep_lab import history
from instep_lab.history import ClientOperation, OperationKind, OperationStatus

EXAMPLES_MAX = 10
UNSORTED = "unsorted"

Record = tuple[str | None, int | None]


@dataclass(frozen=True, slots=True)
class Anomalies:
    """How often an anomaly occurred.

    `of` is the number of records that could have shown it; `examples` are a few that did.
    """

    anomaly: str
    count: int
    of: int
    examples: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def share(self) -> float | None:
        """The share of records with the anomaly; None if no record could have shown it."""
        return self.count / self.of if self.of else None


def lost(
    operations: Sequence[ClientOperation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.WORK,
) -> Anomalies:
    """Find acknowledged records that were never worked (or read)."""
    sent = [one.record for one in history.of(operations, OperationKind.SEND)]
    done = {one.record for one in history.of(operations, by, group=group)}
    missing = [record for record in dict.fromkeys(sent) if record not in done]
    return _anomalies("lost", missing, len(set(sent)))


def repeated(
    operations: Sequence[ClientOperation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.WORK,
) -> Anomalies:
    """Find records that were worked (or read) more than once; every further time counts."""
    counts = Counter(one.record for one in history.of(operations, by, group=group))
    repeats = [record for record, count in counts.items() for _ in range(count - 1)]
    return _anomalies("repeated", repeats, len(counts))


def inverted(
    operations: Sequence[ClientOperation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.WORK,
) -> Anomalies:
    """Find records that were worked for the first time after a later record of the same key."""
    highest: dict[str | None, int] = {}
    seen: set[Record] = set()
    late: list[Record] = []
    for one in history.of(operations, by, group=group):
        # Only the first time counts: a repeat is no inversion (see `went_back`).
        if one.number is None or one.record in seen:
            continue
        seen.add(one.record)
        if one.number < highest.get(one.key, one.number):
            late.append(one.record)
        highest[one.key] = max(one.number, highest.get(one.key, one.number))
    return _anomalies("inverted", late, len(seen))


def went_back(
    operations: Sequence[ClientOperation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.WORK,
) -> Anomalies:
    """Find repeats that came after a later record of the same key.

    They take a reader without a guard back to an older state.
    """
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
    return _anomalies("went back", back, len(seen))


def unsorted(
    operations: Sequence[ClientOperation],
    group: str | None = None,
    *,
    by: OperationKind = OperationKind.READ,
) -> Anomalies:
    """Find records that came after one that was sent later, of any key.

    This checks the order of the topic as a whole.
    """
    # By the start of each send: responses arrive in any order.
    sent = sorted(
        history.of(operations, OperationKind.SEND, None), key=lambda one: one.at_ns - one.took_ns
    )
    position = {one.record: number for number, one in enumerate(sent)}
    highest, late, count = -1, [], 0
    for one in history.of(operations, by, group=group):
        if one.record not in position:
            continue
        count += 1
        if position[one.record] < highest:
            late.append(one.record)
        highest = max(highest, position[one.record])
    return _anomalies(UNSORTED, late, count)


def reordered(operations: Sequence[ClientOperation], group: str | None = None) -> Anomalies:
    """Find reads of a partition that went back to a lower offset within one assignment."""
    highest: dict[tuple[str, str, int | None], int] = {}
    back: list[str] = []
    reads = 0
    for one in operations:
        if group is not None and one.group != group:
            continue
        reader = (one.group, one.member, one.partition)
        if one.kind in (OperationKind.ASSIGN, OperationKind.REVOKE):
            # A new assignment may start at an older commit.
            highest.pop(reader, None)
        elif one.kind is OperationKind.READ and one.offset is not None:
            reads += 1
            if one.offset <= highest.get(reader, -1):
                back.append(
                    f"{one.group}/{one.member}:"
                    f" {one.partition}:{one.offset} after {highest[reader]}"
                )
            highest[reader] = max(one.offset, highest.get(reader, -1))
    return Anomalies("reordered", len(back), reads, tuple(back[:EXAMPLES_MAX]))


def unsent(operations: Sequence[ClientOperation], group: str | None = None) -> Anomalies:
    """Find records that were read although no client tried to send them."""
    tried = {one.record for one in history.of(operations, OperationKind.SEND, None)}
    read = [one.record for one in history.of(operations, OperationKind.READ, group=group)]
    return _anomalies("unsent", [record for record in read if record not in tried], len(read))


def aborted(operations: Sequence[ClientOperation], group: str | None = None) -> Anomalies:
    """Find records that were read although their transaction was aborted.

    A transaction that failed to commit counts as aborted.
    """
    ended = {
        one.transaction: one.outcome
        for one in history.of(operations, OperationKind.COMMIT, None)
        if one.transaction is not None
    }
    aborted_records = {
        one.record
        for one in history.of(operations, OperationKind.SEND, None)
        if ended.get(one.transaction or "") is OperationStatus.FAIL
    }
    read = [one.record for one in history.of(operations, OperationKind.READ, group=group)]
    return _anomalies(
        "aborted", [record for record in read if record in aborted_records], len(read)
    )


def pauses(operations: Sequence[ClientOperation], group: str, longer_than_ns: int) -> list[int]:
    """Return the lengths, in ns, of the pauses between reads of a group, longest first.

    Only pauses between the first and the last read count.
    """
    times = sorted(one.at_ns for one in history.of(operations, OperationKind.READ, group=group))
    gaps = (after - before for before, after in itertools.pairwise(times))
    return sorted((gap for gap in gaps if gap > longer_than_ns), reverse=True)


def shares(operations: Sequence[ClientOperation], group: str) -> dict[str, int]:
    """Return how many records each member of the group read."""
    counts: dict[str, int] = defaultdict(int)
    for one in history.of(operations, OperationKind.READ, group=group):
        counts[one.member] += 1
    return dict(counts)


def unread(operations: Sequence[ClientOperation], group: str, first: int = 0) -> Anomalies:
    """Find acknowledged records, from this number on, that a group has not read."""
    recent = [
        one
        for one in operations
        if one.kind is not OperationKind.SEND or (one.number or 0) >= first
    ]
    found = lost(recent, group, by=OperationKind.READ)
    return dataclasses.replace(found, anomaly="unread")


def _anomalies(anomaly: str, records: Sequence[Record], of: int) -> Anomalies:
    return Anomalies(
        anomaly,
        len(records),
        of,
        tuple(f"{key}#{number}" for key, number in records[:EXAMPLES_MAX]),
    )
