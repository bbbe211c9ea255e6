"""Test the percentiles that reports show, also those of very few values."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from instep.report.percentiles import percentile_values

PERCENTS = (0.0, 1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0)
MEASURED = st.floats(min_value=0, max_value=1e6)
ROUNDING = 1e-6


def test_values_between_two_measured_ones_are_interpolated() -> None:
    assert percentile_values([4.0, 1.0, 3.0, 2.0], (0, 25, 50, 100)) == [1.0, 1.75, 2.5, 4.0]


def test_a_single_value_is_each_of_its_percentiles() -> None:
    assert percentile_values([7.0], PERCENTS) == [7.0] * len(PERCENTS)


def test_fine_percentiles() -> None:
    assert percentile_values(range(10_001), (99.9, 99.95, 99.99)) == [9_990, 9_995, 9_999]


@given(st.lists(MEASURED, min_size=1, max_size=300))
def test_a_percentile_lies_between_the_two_nearest_values(values: list[float]) -> None:
    ordered = sorted(values)
    for percent, value in zip(PERCENTS, percentile_values(values, PERCENTS), strict=True):
        place = round(percent / 100 * (len(ordered) - 1), 6)
        assert value >= ordered[math.floor(place)] - ROUNDING
        assert value <= ordered[math.ceil(place)] + ROUNDING
