"""Filling a topic at full speed and reading single records, for measurements without a history."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from instep import errors
from instep_lab import workload
from instep_lab.clients import consuming, publishing

FAST: Mapping[str, Any] = {
    "linger.ms": 20,
    "batch.size": 500_000,
    "queue.buffering.max.messages": 500_000,
}


def fill(
    connection: Mapping[str, Any],
    topic: str,
    count: int,
    size: int = 100,
    config: Mapping[str, Any] | None = None,
) -> float:
    """Send records with keys and wait for all acknowledgements; return the seconds it took."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({**publishing.DEFAULTS, **FAST, **(config or {}), **connection})
    values = [
        (f"k{number}".encode(), workload.WorkloadRecord(f"k{number}", number, size).value)
        for number in range(1_000)
    ]
    began = time.monotonic()
    for number in range(count):
        key, value = values[number % len(values)]
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1_000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    took = time.monotonic() - began
    if failed or left:
        raise errors.InstepError(
            f"{len(failed) + left:,} of {count:,} records were not delivered: {failed[:1]}"
        )
    return took


def seek_times(
    connection: Mapping[str, Any], topic: str, offsets: Sequence[int], group: str
) -> list[float]:
    """Return the seconds from seeking each offset of partition 0 to receiving its record."""
    # Small fetches: the time to read ahead would be measured as well.
    limits = {
        "fetch.message.max.bytes": 1_000,
        "queued.min.messages": 1,
        "fetch.queue.backoff.ms": 0,
    }
    consumer = Consumer({**consuming.DEFAULTS, **limits, **connection, "group.id": group})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        if consumer.poll(30) is None:
            raise errors.InstepError(f"no record of topic {topic!r} arrived within 30 s")
        found = []
        for offset in offsets:
            began = time.monotonic()
            consumer.seek(TopicPartition(topic, 0, offset))
            while (
                (message := consumer.poll(30)) is None
                or message.error()
                or message.offset() != offset
            ):
                if time.monotonic() - began > 30:
                    raise errors.InstepError(
                        f"offset {offset} of topic {topic!r} did not arrive within 30 s"
                    )
            found.append(time.monotonic() - began)
        return found
    finally:
        consumer.close()
