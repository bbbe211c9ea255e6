"""Kafka transactions that stay open, and waiting for the end of others."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from instep.kafka import connection, offsets
from tests.support.waiting import wait_until


@contextmanager
def hanging_transaction(
    bootstrap: str, topic: str, *records: tuple[bytes, bytes], partition: int = -1
) -> Iterator[str]:
    """Open a transaction, abandon its producer, and yield the transactional id.

    At the end, another producer with the same id aborts the transaction.
    """
    # long enough that the coordinator does not abort it during the test
    config = {
        "bootstrap.servers": bootstrap,
        "transactional.id": f"hangs-{topic}",
        "transaction.timeout.ms": 600_000,
    }
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


def wait_until_ended(cluster: connection.Cluster, topic: str, partitions: Collection[int]) -> None:
    """Wait until no transaction is open.

    A commit or an abort is acknowledged before its markers are in the log.
    """

    def ended() -> bool:
        return offsets.latest(cluster, topic, partitions) == offsets.latest(
            cluster, topic, partitions, committed=False
        )

    wait_until(ended, "the markers of the last transaction")
