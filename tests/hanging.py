"""A Kafka transaction that nobody ends: its producer began it, sent records, and was abandoned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer


@contextmanager
def hanging_transaction(bootstrap: str, topic: str, *records: tuple[bytes, bytes], partition: int = -1) -> Iterator[str]:
    """Gives the transactional id. At the end another producer of the same id has the transaction aborted."""
    # long enough for the coordinator not to abort it during the test
    config = {"bootstrap.servers": bootstrap, "transactional.id": f"hangs-{topic}", "transaction.timeout.ms": 600_000}
    abandoned = Producer(config)
    abandoned.init_transactions()
    abandoned.begin_transaction()
    for key, value in records:
        abandoned.produce(topic, key=key, value=value, partition=partition)  # -1: by the key
    assert abandoned.flush(30) == 0
    del abandoned
    try:
        yield str(config["transactional.id"])
    finally:
        Producer(config).init_transactions()
