"""Test the histogram of durations: its error, and its quantiles."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from instep.kpis import histogram


@given(st.integers(0, 10**12))
def test_the_middle_of_a_bucket_differs_by_less_than_0_8_percent(duration: int) -> None:
    lowest = histogram.bucket(duration)
    assert lowest <= duration
    assert histogram.bucket(lowest) == lowest
    assert abs(histogram.middle(lowest) - duration) <= duration * 0.008


@given(st.integers(0, 127))
def test_a_short_duration_is_exact(duration: int) -> None:
    assert histogram.middle(histogram.bucket(duration)) == duration


@given(st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from([1, 50, 95, 100]))
def test_a_quantile_is_that_of_the_ranked_durations(durations: list[int], percent: int) -> None:
    buckets = Counter(map(histogram.bucket, durations))
    ranked = sorted(durations)[-(-len(durations) * percent // 100) - 1]
    assert histogram.quantile(buckets, percent) == histogram.middle(histogram.bucket(ranked))


def test_no_duration_has_no_quantile() -> None:
    assert histogram.quantile({}, 50) is None
