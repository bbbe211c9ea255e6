"""Test that the schedule does not wait for slow sends, and that a leg can be ended."""

from __future__ import annotations

import contextlib
import uuid

from instep import settings
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.local import broker as kafka
from instep_bench import sender
from tests.support.waiting import wait_until


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
    due = list(sender.due_times(1_000, sender.Leg(0, 4, 1_000)))
    assert due == [1_000, 1_001_000, 2_001_000, 3_001_000]
    assert list(sender.pace(due, order.append, clock=clock, sleep=clock.sleep)) == due
    assert order == [0, 1, 2, 3]


def test_a_late_sender_skips_no_event_and_keeps_the_due_times() -> None:
    clock, order = Clock(), list[int]()

    def send(index: int) -> None:
        order.append(index)
        clock.now_ns += 5_500_000 if index == 1 else 0

    due = list(sender.due_times(0, sender.Leg(0, 10, 1_000)))
    sent = sender.pace(due, send, clock=clock, sleep=clock.sleep)
    assert order == list(range(10))
    late_ms = [(was - should) / 1e6 for was, should in zip(sent, due, strict=True)]
    assert late_ms == [0, 0, 4.5, 3.5, 2.5, 1.5, 0.5, 0, 0, 0]


def test_a_leg_can_be_ended_early() -> None:
    clock, order = Clock(), list[int]()
    due = sender.due_times(0, sender.Leg(0, 1_000_000_000, 1_000))
    sent = sender.pace(due, order.append, lambda: len(order) == 3, clock, clock.sleep)
    assert list(sent) == [0, 1_000_000, 2_000_000]
    assert order == [0, 1, 2]


def test_a_sender_ends_a_leg_when_ordered_and_sends_the_next(broker: kafka.LocalCluster) -> None:
    topic = f"sender-{uuid.uuid4().hex[:8]}"
    with contextlib.closing(Cluster(settings.Kafka(), broker.bootstrap)) as cluster:
        topics.create(cluster, topic, 1)
    with sender.EventSender(sender.EventSource(broker.bootstrap, topic, 10)) as sending:
        sending.begin(sender.Leg(0, 1_000_000, 100))
        with contextlib.closing(Cluster(settings.Kafka(), broker.bootstrap)) as cluster:
            wait_until(lambda: offsets.latest(cluster, topic, [0])[0] > 0, "the first event")
        sending.end()
        first = sending.finish()
        assert 0 < len(first) < 1_000_000
        assert [event.offset for event in first] == list(range(len(first)))
        sending.end()  # too late for the leg before, and not meant for the next one
        second = sending.send(sender.Leg(len(first), 5, 1_000))
        assert [event.number for event in second] == [len(first) + index for index in range(5)]
