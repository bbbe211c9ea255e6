"""Test waiting for a condition, and retrying."""

from __future__ import annotations

import threading

import pytest

from instep.waiting import retrying, setter, wait_until


def test_waiting_ends_as_soon_as_the_condition_holds() -> None:
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), timeout_s=10, interval_s=0)


def test_waiting_for_a_condition_that_never_holds_times_out() -> None:
    assert not wait_until(lambda: False, timeout_s=0.01, interval_s=0)


def test_a_condition_is_checked_once_even_with_a_timeout_of_zero() -> None:
    assert wait_until(lambda: True, timeout_s=0)


class Passing(Exception):
    pass


class Attempt:
    """Fails with the given errors, one after another, and then succeeds."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.tries = 0

    def __call__(self) -> str:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"


def is_passing(error: Exception) -> bool:
    return isinstance(error, Passing)


def test_an_attempt_is_repeated_until_it_succeeds() -> None:
    attempt = Attempt(Passing(), Passing())
    assert retrying(attempt, is_passing, pause_s=0) == "done"
    assert attempt.tries == 3


def test_an_error_that_does_not_pass_is_raised_at_once() -> None:
    attempt = Attempt(Passing(), ValueError(), Passing())
    with pytest.raises(ValueError):  # noqa: PT011 - the class is what matters
        retrying(attempt, is_passing, pause_s=0)
    assert attempt.tries == 2


def test_the_last_error_is_raised_after_the_last_try() -> None:
    attempt = Attempt(*(Passing() for _ in range(9)))
    with pytest.raises(Passing):
        retrying(attempt, is_passing, tries_max=3, pause_s=0)
    assert attempt.tries == 3


def test_the_last_error_is_raised_when_the_time_is_over() -> None:
    attempt = Attempt(*(Passing() for _ in range(9)))
    with pytest.raises(Passing):
        retrying(attempt, is_passing, timeout_s=-1)
    assert attempt.tries == 1


def test_a_handler_of_a_signal_can_set_an_event_whose_lock_is_held() -> None:
    event = threading.Event()
    set_event = setter(event)
    with event._cond:  # type: ignore[attr-defined]
        set_event()
        assert not event.is_set()
    assert event.wait(30)
