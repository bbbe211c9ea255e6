"""Test what events add to KPI rows: the same, in whatever order and batches they arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.kpis import counting
from instep.kpis.counting import (
    Additions,
    Cells,
    KpiKey,
    KpiKind,
    KpiRules,
    KpiValues,
    PartitionClock,
    ReadChange,
    StatusChange,
)
from instep.sinks.stored_values import chunks

MINUTE = 60_000
RULES = KpiRules((("printing", "QUEUED", "PRINTED"),), 5 * MINUTE)

changes = st.builds(
    StatusChange,
    st.integers(0, 40 * MINUTE),
    st.sampled_from(["QUEUED", "PRINTED", "LOST"]),
    st.sampled_from([None, "1", "2", "3", "4"]),
)


def key(minute: int, kind: KpiKind, name: str) -> KpiKey:
    return KpiKey(minute * MINUTE, kind, name)


def rows(added: Additions) -> dict[KpiKey, KpiValues]:
    cells: Cells = {}
    counting.apply(cells, added)
    return {one: counting.values_of(one, buckets) for one, buckets in cells.items() if buckets}


def rows_of(*events: tuple[int, str, str]) -> dict[KpiKey, KpiValues]:
    return rows(counting.additions([StatusChange(*event) for event in events], RULES))


def test_a_status_is_counted_in_the_minute_of_its_event() -> None:
    found = rows_of((59_999, "QUEUED", "1"), (60_000, "LOST", "2"))
    assert found == {
        key(0, KpiKind.STATUS, "QUEUED"): KpiValues(1),
        key(1, KpiKind.STATUS, "LOST"): KpiValues(1),
    }


def test_a_duration_is_counted_in_the_minute_in_which_it_ended() -> None:
    found = rows_of((1_000, "QUEUED", "1"), (61_000, "PRINTED", "2"))
    assert found[key(1, KpiKind.DURATION, "printing")] == KpiValues(1, 59_904 + 256, 59_904 + 256)


def test_a_duration_goes_from_the_first_event_to_the_first_after_it() -> None:
    found = rows_of(
        (10, "PRINTED", "0"), (20, "QUEUED", "1"), (30, "QUEUED", "2"),
        (120, "PRINTED", "3"), (200, "PRINTED", "4"),
    )  # fmt: skip
    assert found[key(0, KpiKind.DURATION, "printing")] == KpiValues(1, 100, 100)


def test_a_version_counts_once_with_its_first_event() -> None:
    found = rows_of((10, "QUEUED", "1"), (20, "LOST", "1"))
    assert found == {key(0, KpiKind.STATUS, "QUEUED"): KpiValues(1)}


def test_a_document_is_a_new_one_after_a_pause() -> None:
    found = rows_of((0, "QUEUED", "1"), (5 * MINUTE + 1, "PRINTED", "2"))
    assert not any(one.kind is KpiKind.DURATION for one in found)


def test_an_event_at_the_watermark_is_not_too_late() -> None:
    clock = PartitionClock(10 * MINUTE)
    assert clock.take(ReadChange(0, 10 * MINUTE, "D", StatusChange(0, "QUEUED")), RULES) == key(
        10, KpiKind.TOO_LATE, "QUEUED"
    )
    assert clock.take(ReadChange(1, 0, "D", StatusChange(5 * MINUTE, "QUEUED")), RULES) is None
    assert clock.now_ms == 10 * MINUTE


@pytest.mark.parametrize("wrong_ms", [-1, 1_790_000_000_000_000])
def test_a_timestamp_that_is_no_time_does_not_move_the_clock(wrong_ms: int) -> None:
    assert times_after(PartitionClock(MINUTE), wrong_ms) == [MINUTE]
    assert times_after(PartitionClock(), wrong_ms) == [None]


def test_a_jump_of_one_record_does_not_move_the_clock() -> None:
    times = times_after(PartitionClock(MINUTE), 99 * MINUTE, 2 * MINUTE, 99 * MINUTE, 3 * MINUTE)
    assert times == [MINUTE, 2 * MINUTE, 2 * MINUTE, 3 * MINUTE]


def test_the_next_record_confirms_a_jump() -> None:
    assert times_after(PartitionClock(MINUTE), 99 * MINUTE, 101 * MINUTE) == [MINUTE, 101 * MINUTE]
    assert times_after(PartitionClock(MINUTE), 99 * MINUTE, 97 * MINUTE) == [MINUTE, 99 * MINUTE]
    assert times_after(PartitionClock(), 99 * MINUTE, 99 * MINUTE) == [None, 99 * MINUTE]


def test_of_two_jumps_the_clock_takes_the_nearer_one() -> None:
    """A topic that was quiet for longer than the watermark, and a wrong timestamp after that."""
    for jumps in [(9_999 * MINUTE, 99 * MINUTE), (99 * MINUTE, 9_999 * MINUTE)]:
        times = times_after(PartitionClock(MINUTE), *jumps, 100 * MINUTE)
        assert times == [MINUTE, 99 * MINUTE, 100 * MINUTE]


def times_after(clock: PartitionClock, *timestamps_ms: int) -> list[int | None]:
    """Return the time after each record. Every record is read by another batch."""
    times = []
    for timestamp_ms in timestamps_ms:
        clock = PartitionClock(*clock.times_ms)
        clock.take(ReadChange(0, timestamp_ms, "D", StatusChange(10**15, "QUEUED")), RULES)
        times.append(clock.now_ms)
    return times


@given(st.lists(changes, max_size=12), st.randoms(use_true_random=False), st.integers(1, 5))
def test_order_repeats_and_batches_make_no_difference(
    events: list[StatusChange], chance: object, size: int
) -> None:
    arrived = [*events, *events[: len(events) // 2]]
    chance.shuffle(arrived)  # type: ignore[attr-defined]
    total: Additions = Counter()
    known: set[StatusChange] = set()
    for batch in chunks(arrived, size):
        before = counting.additions(known, RULES)
        known |= set(batch)
        total.update(counting.additions(known, RULES))
        total.subtract(before)
    assert rows(total) == rows(counting.additions(events, RULES))


@given(st.lists(st.tuples(changes, st.integers(0, 6 * MINUTE)), max_size=15))
def test_what_is_forgotten_makes_no_difference(
    arrivals: Sequence[tuple[StatusChange, int]],
) -> None:
    """Events that no event can reach any more are dropped after every event."""
    clock = PartitionClock()
    total: Additions = Counter()
    kept: list[StatusChange] = []
    accepted: list[StatusChange] = []
    for change, late_ms in sorted(arrivals, key=lambda one: one[0].at_ms + one[1]):
        if clock.take(ReadChange(0, change.at_ms + late_ms, "D", change), RULES):
            continue
        accepted.append(change)
        total.update(counting.additions([*kept, change], RULES))
        total.subtract(counting.additions(kept, RULES))
        kept = counting.remembered([*kept, change], RULES, clock.now_ms)
    assert rows(total) == rows(counting.additions(accepted, RULES))
