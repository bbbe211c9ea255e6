"""Test the adaptive schedule with a clock that the test sets, and the pace of requests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instep.bridge import http_client, pacing, schedule
from instep.bridge.schedule import Intervals

LIMITS = Intervals(10.0, 3600.0)
CHANCE = st.floats(0, 1)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["changed", "same", "failed"]), CHANCE), max_size=60))
def test_every_delay_is_within_the_limits(answers: list[tuple[str, float]]) -> None:
    interval: float | None = None
    failures = 0
    for answer, chance in answers:
        if answer == "failed":
            failures += 1
            delay = schedule.failure_delay(failures, LIMITS, chance)
        else:
            before, failures = interval, 0
            interval = schedule.next_interval(interval, LIMITS, changed=answer == "changed")
            delay = schedule.delay(interval, LIMITS, chance)
            if before is not None:
                assert interval <= before if answer == "changed" else interval >= before
        assert LIMITS.least_s <= delay <= LIMITS.most_s


@settings(max_examples=25)
@given(st.integers(60, 600), CHANCE)
def test_a_document_that_changes_often_is_asked_more_often(period_s: int, chance: float) -> None:
    """Simulate a day of two documents: one changes every few minutes, one never."""

    def requests(changes_every_s: float | None) -> int:
        now, seen_at, asked, interval = 0.0, 0.0, 0, None
        while now < 86_400:
            changed = changes_every_s is not None and now // changes_every_s != seen_at
            seen_at = now // changes_every_s if changes_every_s else 0.0
            interval = schedule.next_interval(interval, LIMITS, changed=changed)
            now += schedule.delay(interval, LIMITS, chance)
            asked += 1
        return asked

    busy, quiet = requests(period_s), requests(None)
    assert quiet <= 40
    assert busy > 3 * quiet


@given(st.integers(1, 500), CHANCE)
def test_retries_wait_longer_each_time_but_not_for_ever(attempt: int, chance: float) -> None:
    delay = schedule.retry_delay(attempt, chance)
    assert 0.5 <= delay <= schedule.RETRY_MAX_S
    assert delay <= schedule.RETRY_S * 2.0 ** (attempt - 1)


class Clock:
    """A clock that only a sleeping pacer moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0

        async def sleep(seconds: float) -> None:
            self.now += seconds

        monkeypatch.setattr(asyncio, "sleep", sleep)

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_an_upper_bound_in_every_period(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pacer = pacing.Pacer(4.0, clock)

    async def work() -> list[float]:
        times = [await pacer.slot() for _ in range(10)]
        clock.now += 60  # no burst after a quiet time
        return times + [await pacer.slot() for _ in range(10)]

    times = asyncio.run(work())
    for begin in times:
        assert sum(begin <= one < begin + 1 for one in times) <= 5


def test_trouble_of_the_source_pauses_all_requests_and_success_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    pacer = pacing.Pacer(1000.0, clock)
    pauses = []
    for _ in range(12):
        started = asyncio.run(pacer.slot())
        if pacer.failed(started):
            pauses.append(round(pacer.paused_s))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert pacer.pauses == 8
    pacer.succeeded()
    assert not pacer.failed(asyncio.run(pacer.slot()))


def test_requests_that_were_open_when_a_pause_began_do_not_prolong_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    pacer = pacing.Pacer(1000.0, clock)
    started = asyncio.run(pacer.slot())
    assert [pacer.failed(started) for _ in range(9)] == [False] * 4 + [True] + [False] * 4


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("0", 0.0),
        ("99999999999", 300.0),
        ("Sun, 01 Nov 2026 08:00:20 GMT", 20.0),
        ("Sun, 01 Nov 2020 08:00:20 GMT", 0.0),
        ("Sun, 01 Nov 9999 08:00:20 GMT", 300.0),
        ("soon", None),
        ("-5", None),
        ("٣", None),
    ],
)
def test_retry_after_is_read_and_bounded(value: str | None, seconds: float | None) -> None:
    assert http_client.retry_after(value, datetime(2026, 11, 1, 8, tzinfo=UTC)) == seconds
