"""A task waits for more records only if that saves transactions."""

from __future__ import annotations

import pytest

from instep.pipeline.resident.share import Linger

LIMIT_S = 0.005


def after(*, rate: float, cost_s: float) -> Linger:
    """Return the state after many reads of one record each."""
    linger = Linger(LIMIT_S)
    for _ in range(100):
        linger.see(1, 1 / rate, cost_s)
    return linger


def test_expensive_transactions_wait_up_to_the_limit() -> None:
    assert after(rate=900, cost_s=0.002).wait_s() == LIMIT_S


def test_cheap_transactions_wait_in_proportion_to_their_cost() -> None:
    assert after(rate=900, cost_s=0.0002).wait_s() == pytest.approx(0.002)


def test_records_that_arrive_slowly_do_not_wait() -> None:
    assert after(rate=100, cost_s=0.002).wait_s() == 0.0


def test_a_limit_of_zero_never_waits() -> None:
    linger = Linger(0)
    linger.see(1_000, 0.001, 1.0)
    assert linger.wait_s() == 0.0
