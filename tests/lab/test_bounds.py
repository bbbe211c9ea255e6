"""Test the bounds of a share: known values, and agreement with the definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep_lab import bounds


@pytest.mark.parametrize(
    ("hits", "trials", "text"),
    [
        (0, 30, "0 of 30 kills: at most 10 %"),
        (0, 5, "0 of 5 kills: at most 46 %"),
        (0, 1, "0 of 1 kill: at most 95 %"),
        (30, 30, "30 of 30 kills: at least 90 %"),
        (3, 30, "3 of 30 kills: 2 % to 24 %"),
        (0, 0, "0 of 0 kills"),
    ],
)
def test_text(hits: int, trials: int, text: str) -> None:
    assert bounds.describe(hits, trials, "kill") == text


@given(
    st.integers(1, 200).flatmap(
        lambda trials: st.tuples(st.integers(0, trials - 1), st.just(trials))
    )
)
def test_the_upper_bound_makes_so_few_hits_a_rare_event(case: tuple[int, int]) -> None:
    hits, trials = case
    share = bounds.upper(hits, trials)
    probability = sum(
        math.comb(trials, count) * share**count * (1 - share) ** (trials - count)
        for count in range(hits + 1)
    )
    assert probability == pytest.approx(bounds.RISK, rel=1e-6)


@given(
    st.integers(1, 200).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials)))
)
def test_the_observed_share_lies_between_the_bounds(case: tuple[int, int]) -> None:
    hits, trials = case
    assert bounds.lower(hits, trials) <= hits / trials <= bounds.upper(hits, trials)
