"""Which part of the log a pipeline has applied, for `instep reconcile`.

The ledger says where the current range began (`since_offset`) and how far it goes.
`instep_applied` keeps the ranges from before each rewind. Offsets outside these ranges were
skipped: the pipeline started later (`start`), or a rewind moved it ahead. Their events were never
applied, unless somebody replayed them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import msgspec

from instep.sinks.ledger import merge_ranges
from instep.sinks.target import Position

Ranges = list[tuple[int, int]]  # sorted, with a gap between any two


class Coverage(msgspec.Struct, frozen=True):
    """The ranges of offsets by partition that were applied and skipped, of what the log holds."""

    applied: dict[int, Ranges]
    skipped: dict[int, Ranges]

    @property
    def offsets_skipped(self) -> int:
        """Return the number of skipped offsets."""
        return sum(end - start for ranges in self.skipped.values() for start, end in ranges)


def covered(
    ledger: Mapping[int, Position],
    before: Mapping[int, Ranges],
    first: Mapping[int, int],
    begin: Mapping[int, int],
) -> Coverage:
    """Return what was applied below the ledger's position.

    `before` holds the ranges of `instep_applied`, `first` the log's first offsets. `begin` says
    where a partition began whose ledger row does not: earlier releases wrote such rows.
    """
    applied, skipped = {}, {}
    for partition, row in ledger.items():
        since = begin.get(partition, 0) if row.since_offset is None else row.since_offset
        low = first.get(partition, 0)
        recorded = [*before.get(partition, []), (since, row.next_offset)]
        ranges = merge_ranges(
            (max(start, low), min(end, row.next_offset)) for start, end in recorded
        )
        applied[partition] = ranges
        # What was skipped are the gaps before, between and after the applied ranges.
        gap_starts = [low, *(end for _, end in ranges)]
        gap_ends = [*(start for start, _ in ranges), row.next_offset]
        gaps = zip(gap_starts, gap_ends, strict=True)
        skipped[partition] = [(start, end) for start, end in gaps if start < end]
    return Coverage(applied, skipped)


def from_offsets(ledger: Mapping[int, Position], begin: Mapping[int, int]) -> Coverage:
    """Return the coverage of a pipeline that applied everything from the given offsets on."""
    applied = {}
    for partition, row in ledger.items():
        applied[partition] = merge_ranges([(begin.get(partition, 0), row.next_offset)])
    return Coverage(applied, {})


def segment(ranges: Ranges, offset: int) -> int:
    """Return the number of the range (odd) or of the gap between ranges (even) of an offset."""
    at = bisect_right(ranges, offset, key=lambda bounds: bounds[0])
    is_inside = at > 0 and offset < ranges[at - 1][1]
    return 2 * at - 1 if is_inside else 2 * at


def contains(ranges: Ranges, offset: int) -> bool:
    """Return whether an offset lies in one of the ranges."""
    return segment(ranges, offset) % 2 == 1
