"""Test ranges of ids against plain sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from instep.sources import id_ranges
from instep.sources.id_ranges import KnownIds

IDS = st.integers(1, 60)


def _added(known: KnownIds, ids: set[int]) -> None:
    known.add(id_ranges.as_ranges(sorted(ids)))


def _unknown(known: KnownIds, after: int, up_to: int) -> set[int]:
    return {
        id_
        for first, last in known.unknown(after)
        for id_ in range(first, (up_to if last is None else last) + 1)
    }


@given(st.lists(st.sets(IDS), max_size=8), st.integers(0, 70))
def test_all_ids_but_the_known_ones_are_read(batches: list[set[int]], after: int) -> None:
    known = KnownIds()
    for ids in batches:
        _added(known, ids)
    expected = set(range(after + 1, 100)) - set().union(*batches)
    assert _unknown(known, after, 99) == expected


@given(st.sets(st.integers(1, 2_000), min_size=300))
def test_of_many_ranges_the_longest_are_kept(ids: set[int]) -> None:
    known = KnownIds()
    _added(known, ids)
    found = _unknown(known, 0, 2_100)
    assert found >= set(range(1, 2_101)) - ids
    lengths = sorted(
        (last - first + 1 for first, last in id_ranges.as_ranges(sorted(ids))), reverse=True
    )
    left_out = 2_100 - len(found)
    assert left_out == sum(lengths[: id_ranges.RANGES_MAX])


def test_what_was_forgotten_is_read_again() -> None:
    known = KnownIds()
    _added(known, {1, 2, 3})
    assert known.unknown(0) == [(4, None)]
    known.clear()
    assert known.unknown(0) == [(1, None)]
