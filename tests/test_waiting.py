"""Test waiting for a condition."""

from __future__ import annotations

from instep.waiting import wait_until


def test_returns_as_soon_as_the_condition_holds() -> None:
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), timeout_s=10, interval_s=0)


def test_a_condition_that_never_holds_ends_with_the_time() -> None:
    assert not wait_until(lambda: False, timeout_s=0.01, interval_s=0)


def test_a_condition_is_checked_even_without_time() -> None:
    assert wait_until(lambda: True, timeout_s=0)
