"""Sending at full speed and reading single records, for measurements without a history."""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from instep import errors
from instep_lab import workload
from instep_lab.clients import consuming, process, publishing
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import DeliveryMode, Measured, Measuring, Variant

FAST: Mapping[str, Any] = {
    "linger.ms": 20,
    "batch.size": 500_000,
    "queue.buffering.max.messages": 500_000,
}
MEASURED_MAX_S = 600.0


def fill(
    connection: Mapping[str, Any],
    topic: str,
    count: int,
    size: int = 100,
    config: Mapping[str, Any] | None = None,
) -> float:
    """Send records with keys and wait for all acknowledgements; return the seconds it took.

    The first record is sent and acknowledged before that time begins: to connect, to fetch the
    metadata and to request a producer id take half a second.
    """
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({**publishing.DEFAULTS, **FAST, **(config or {}), **connection})
    values = _values(size)
    began = time.monotonic()
    for number in range(count):
        key, value = values[number % len(values)]
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if number == 0:
            producer.flush(120)
            began = time.monotonic()
        elif number % 1_000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    took = time.monotonic() - began
    if failed or left:
        raise errors.InstepError(
            f"{len(failed) + left:,} of {count:,} records were not delivered: {failed[:1]}"
        )
    return took


def measure(plan: Measuring, connection: Mapping[str, Any], file: Path) -> list[Measured]:
    """Measure all variants in turns; return what each achieved in each round, in their order.

    `connection` is that of the plan's library. Java's client runs in its own process, one for all
    rounds, and writes its results to the file.
    """
    if plan.library is Library.JAVA:
        return _measure_java(plan, connection, file)
    found = []
    for number in range(-1, plan.rounds):
        for variant in plan.variants:
            measured = _measure(plan, variant, connection, warms=number < 0)
            if number >= 0:
                found.append(measured)
    return found


def _measure_java(plan: Measuring, connection: Mapping[str, Any], file: Path) -> list[Measured]:
    started = process.ClientProcess(plan, connection, file)
    try:
        if status := started.wait(MEASURED_MAX_S):
            raise errors.InstepError(
                f"the Java client that was measured ended with {status}:\n{started.output()}"
            )
    finally:
        started.close()
    lines = file.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Measured) for line in lines]


class _Producer:
    """A producer that is measured."""

    def __init__(self, plan: Measuring, variant: Variant, connection: Mapping[str, Any]) -> None:
        self._topic, self._mode = plan.topic, variant.mode
        self._producer = Producer({**publishing.DEFAULTS, **variant.config, **connection})
        self._values = _values(plan.size)
        self.failed = 0
        self.took_ms: list[float] = []
        self.send(0, self._count)
        self.flush()

    def send(self, number: int, delivered: Any) -> None:
        key, value = self._values[number % len(self._values)]
        # Without the argument, the client has nothing to call: that is cheaper than a function.
        callback = {} if delivered is None else {"on_delivery": delivered}
        while True:
            try:
                self._producer.produce(self._topic, value, key, **callback)
                return
            except BufferError:
                self._producer.poll(0.05)

    def flush(self) -> None:
        self.failed += self._producer.flush(120)

    def full_speed(self, count: int) -> float:
        """Return the records per second."""
        callback = None if self._mode is DeliveryMode.FORGET else self._count
        waits = self._mode is DeliveryMode.WAIT
        began = time.monotonic()
        for number in range(count):
            self.send(number, callback)
            if waits:
                self._producer.flush(120)
            elif number % 1_000 == 0:
                self._producer.poll(0)
        self.flush()
        return count / (time.monotonic() - began)

    def steady(self, count: int, per_s: float) -> None:
        """Collect the time from each send to its answer."""
        began = time.monotonic()
        for number in range(count):
            while (ahead := began + number / per_s - time.monotonic()) > 0:
                self._producer.poll(ahead)
            self.send(number, functools.partial(self._take, time.monotonic()))
            self._producer.poll(0)
        # Not by flush: it would send what linger.ms still holds back.
        while len(self._producer):
            self._producer.poll(0.1)

    def _count(self, error: KafkaError | None, _: Message) -> None:
        self.failed += error is not None

    def _take(self, sent: float, error: KafkaError | None, _: Message) -> None:
        self.took_ms.append((time.monotonic() - sent) * 1_000)
        self.failed += error is not None


def _measure(
    plan: Measuring, variant: Variant, connection: Mapping[str, Any], *, warms: bool
) -> Measured:
    producer = _Producer(plan, variant, connection)
    per_s = producer.full_speed(variant.count // (publishing.WARM_UP_PART if warms else 1))
    if warms or not variant.paced:
        return Measured(variant=variant.name, per_s=per_s, failed=producer.failed)
    producer.steady(variant.paced, variant.paced_per_s)
    return Measured(
        variant=variant.name,
        per_s=per_s,
        median_ms=statistics.median(producer.took_ms),
        late_ms=statistics.quantiles(producer.took_ms, n=100)[-1],
        failed=producer.failed,
    )


@functools.cache
def _values(size: int) -> list[tuple[bytes, bytes]]:
    """Return keys and values that need not be made while the time is measured."""
    return [
        (f"k{number}".encode(), workload.WorkloadRecord(f"k{number}", number, size).value)
        for number in range(1_000)
    ]


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


def sent_by_broker(
    connection: Mapping[str, Any], topic: str, count: int, size: int
) -> dict[int, int]:
    """Send records to partition 0; return the bytes sent to each broker, by its id."""
    traffic = _Traffic("txbytes")
    producer = Producer({**publishing.DEFAULTS, **traffic.config, **connection})
    value = workload.WorkloadRecord("k0", 0, size).value
    for _ in range(count):
        producer.produce(topic, value, partition=0)
    if left := producer.flush(60):
        raise errors.InstepError(f"{left:,} of {count:,} records were not delivered")
    return traffic.wait(producer.poll, count * size)


def received_by_broker(
    connection: Mapping[str, Any],
    topic: str,
    count: int,
    size: int,
    config: Mapping[str, Any],
) -> dict[int, int]:
    """Read the records of partition 0; return the bytes received from each broker, by its id."""
    traffic = _Traffic("rxbytes")
    # Small fetches: the first one may still be answered by the leader.
    own = {"group.id": "reader", "fetch.message.max.bytes": 50_000, "queued.min.messages": 1}
    consumer = Consumer({**consuming.DEFAULTS, **own, **traffic.config, **config, **connection})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read, deadline = 0, time.monotonic() + 60
        while read < count:
            if time.monotonic() > deadline:
                raise errors.InstepError(f"only {read:,} of {count:,} records arrived within 60 s")
            message = consumer.poll(0.1)
            read += message is not None and message.error() is None
        return traffic.wait(consumer.poll, count * size)
    finally:
        consumer.close()


class _Traffic:
    """The bytes that a client exchanged with each broker, from its statistics."""

    def __init__(self, direction: str) -> None:
        self._direction = direction
        self._bytes: dict[int, int] = {}
        self.config = {"statistics.interval.ms": 50, "stats_cb": self._note}

    def _note(self, statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        # The addresses to start with have negative ids.
        self._bytes = {one["nodeid"]: one[self._direction] for one in brokers if one["nodeid"] >= 0}

    def wait(self, poll: Callable[[float], object], least: int) -> dict[int, int]:
        """Wait until the statistics cover this many bytes."""
        deadline = time.monotonic() + 10
        while sum(self._bytes.values()) < least:
            if time.monotonic() > deadline:
                raise errors.InstepError(
                    f"the client's statistics have {self._bytes} of {least:,} bytes"
                )
            poll(0.05)
        return self._bytes
