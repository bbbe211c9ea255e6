"""Test which part of the log counts as applied."""

from __future__ import annotations

import pytest

from instep.reconcile import coverage
from instep.reconcile.coverage import Ranges
from instep.sinks.target import Position


def at(next_offset: int, since: int | None) -> dict[int, Position]:
    return {0: Position(0, next_offset, 1, "c", "t", since_offset=since)}


@pytest.mark.parametrize(
    ("ledger", "before", "first", "applied", "skipped"),
    [
        (at(9, 0), [], 0, [(0, 9)], []),
        (at(9, 4), [], 0, [(4, 9)], [(0, 4)]),  # started later
        (at(9, 7), [(0, 3)], 0, [(0, 3), (7, 9)], [(3, 7)]),  # moved ahead
        (at(9, 1), [(0, 3), (7, 12)], 0, [(0, 9)], []),  # moved back, and not yet where it was
        (at(9, 7), [(0, 3)], 5, [(7, 9)], [(5, 7)]),  # the log begins at 5 now
        (at(9, 9), [], 0, [], [(0, 9)]),  # nothing applied yet
        (at(9, None), [], 0, [(2, 9)], [(0, 2)]),  # the row of an earlier release: by the settings
    ],
)
def test_applied_and_skipped_ranges_follow_from_the_ledger(
    ledger: dict[int, Position], before: Ranges, first: int, applied: Ranges, skipped: Ranges
) -> None:
    found = coverage.covered(ledger, {0: before}, {0: first}, {0: 2})
    assert (found.applied, found.skipped) == ({0: applied}, {0: skipped})
    assert found.offsets_skipped == sum(end - start for start, end in skipped)
    held = {offset for offset in range(15) if coverage.contains(applied, offset)}
    assert held == {offset for start, end in applied for offset in range(start, end)}


def test_offsets_of_one_range_share_a_number() -> None:
    ranges = [(2, 4), (6, 7)]
    assert [coverage.segment(ranges, offset) for offset in range(9)] == [0, 0, 1, 1, 2, 2, 3, 4, 4]


def test_a_named_place_takes_precedence() -> None:
    found = coverage.from_offsets(at(9, 7), {0: 2})
    assert (found.applied, found.skipped) == ({0: [(2, 9)]}, {})
