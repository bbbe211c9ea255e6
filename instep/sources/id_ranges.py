"""Ids as ranges of consecutive numbers, and which ids need not be read again."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

RANGES_MAX = 100  # that a query leaves out; the database looks at each of them


def as_ranges(ids: Sequence[int]) -> list[list[int]]:
    """Return ids as ranges of consecutive numbers: the first and the last id of each."""
    found: list[list[int]] = []
    for id_ in sorted(ids):
        if found and id_ == found[-1][1] + 1:
            found[-1][1] = id_
        else:
            found.append([id_, id_])
    return found


class KnownIds:
    """Ids that were read. The longest ranges are kept; the others are forgotten."""

    def __init__(self) -> None:
        self._ranges: list[list[int]] = []  # in order, with at least one id between two of them

    def add(self, added: list[list[int]]) -> None:
        """Add ranges of ids."""
        for first, last in added:
            begin = bisect.bisect_left(self._ranges, first - 1, key=lambda one: one[1])
            end = bisect.bisect_right(self._ranges, last + 1, key=lambda one: one[0])
            touched = self._ranges[begin:end]
            if touched:
                first, last = min(first, touched[0][0]), max(last, touched[-1][1])
            self._ranges[begin:end] = [[first, last]]
        if len(self._ranges) > RANGES_MAX:
            longest = sorted(self._ranges, key=lambda one: one[0] - one[1])
            self._ranges = sorted(longest[:RANGES_MAX])

    def unknown(self, after: int) -> list[tuple[int, int | None]]:
        """Return the other ids above one as ranges; the last range has no end."""
        found: list[tuple[int, int | None]] = []
        begin = after + 1
        for first, last in self._ranges:
            if first > begin:
                found.append((begin, first - 1))
            begin = max(begin, last + 1)
        return [*found, (begin, None)]

    def clear(self) -> None:
        """Forget all ids."""
        self._ranges = []
