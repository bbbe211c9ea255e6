"""Which part of the log a pipeline has applied, for `instep reconcile`.

The ledger says where the present stretch began (`since_offset`) and how far it goes; `instep_applied` keeps the stretches from
before the ledger was moved. Offsets outside of them were passed over: the pipeline started later (`start`), or a rewind moved
it ahead. Their events were never applied, unless somebody replayed them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import msgspec

from instep.sinks.ledger import merge_ranges
from instep.sinks.target import Position

Ranges = list[tuple[int, int]]  # in order, none touching the next


class Coverage(msgspec.Struct, frozen=True):
    """Per partition the ranges of offsets that were applied, and those that were passed over, of what the log still holds."""

    applied: dict[int, Ranges]
    passed_over: dict[int, Ranges]

    @property
    def offsets_passed_over(self) -> int:
        return sum(end - start for ranges in self.passed_over.values() for start, end in ranges)


def covered(
    ledger: Mapping[int, Position],
    before: Mapping[int, Ranges],
    first: Mapping[int, int],
    begin: Mapping[int, int],
) -> Coverage:
    """What was applied below the ledger's position.

    `before` are the stretches in `instep_applied`, `first` the log's first offsets. `begin` is where a partition began whose
    ledger row does not say so, as an earlier release wrote it.
    """
    applied, passed_over = {}, {}
    for partition, row in ledger.items():
        since = begin.get(partition, 0) if row.since_offset is None else row.since_offset
        low = first.get(partition, 0)
        known = [*before.get(partition, []), (since, row.next_offset)]
        ranges = merge_ranges((max(start, low), min(end, row.next_offset)) for start, end in known)
        applied[partition] = ranges
        edges = [low, *(edge for one in ranges for edge in one), row.next_offset]
        passed_over[partition] = [
            (start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end
        ]
    return Coverage(applied, passed_over)


def begun(ledger: Mapping[int, Position], begin: Mapping[int, int]) -> Coverage:
    """Everything from where somebody says that the pipeline began."""
    ranges = {p: [(begin.get(p, 0), row.next_offset)] for p, row in ledger.items()}
    return Coverage({p: merge_ranges(some) for p, some in ranges.items()}, {})


def place(ranges: Ranges, offset: int) -> int:
    """A number that offsets of one stretch share: odd inside of a range, even between two."""
    at = bisect_right(ranges, offset, key=lambda one: one[0])
    return 2 * at - 1 if at and offset < ranges[at - 1][1] else 2 * at


def holds(ranges: Ranges, offset: int) -> bool:
    """Whether one of the ranges holds an offset."""
    return place(ranges, offset) % 2 == 1
