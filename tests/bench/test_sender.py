"""Test that the schedule does not wait for slow sends, with a clock that the test controls."""

from __future__ import annotations

from instep_bench import sender


class Clock:
    """A clock that only sleeping and slow sends move."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def test_a_punctual_sender_sends_events_when_they_are_due() -> None:
    clock, order = Clock(), list[int]()
    due = sender.due_times(1_000, sender.Leg(0, 4, 1_000))
    assert due == [1_000, 1_001_000, 2_001_000, 3_001_000]
    assert list(sender.pace(due, order.append, clock, clock.sleep)) == due
    assert order == [0, 1, 2, 3]


def test_a_late_sender_skips_no_event_and_keeps_the_due_times() -> None:
    clock, order = Clock(), list[int]()

    def send(index: int) -> None:
        order.append(index)
        clock.now_ns += 5_500_000 if index == 1 else 0

    due = sender.due_times(0, sender.Leg(0, 10, 1_000))
    sent = sender.pace(due, send, clock, clock.sleep)
    assert order == list(range(10))
    late_ms = [(was - should) / 1e6 for was, should in zip(sent, due, strict=True)]
    assert late_ms == [0, 0, 4.5, 3.5, 2.5, 1.5, 0.5, 0, 0, 0]
