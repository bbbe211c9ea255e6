"""The tests' own producers, which keep the order of what they send."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Producer

from instep.kafka import connection

# One request at a time: no batch overtakes one that is retried, which may happen to the first one
# on a new topic. Idempotence does not prevent it there: from a producer that is new to a partition,
# a broker accepts any sequence number.
IN_ORDER: dict[str, Any] = {"max.in.flight.requests.per.connection": 1}


def fill(
    cluster: connection.Cluster, topic: str, *counts: int, timestamp_ms: int | None = None
) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    begins_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(
                topic, f"{number}".encode(), partition=partition, timestamp=begins_ms + number
            )
    assert producer.flush(30) == 0
