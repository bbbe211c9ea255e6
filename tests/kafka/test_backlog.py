"""Test what waits in a log, up to its end, and which transaction blocks it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from instep.kafka import backlog, connection
from instep.kafka.admin_extras import OpenTransaction
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.offsets import LogRecord
from tests.support.open_transaction import hanging_transaction
from tests.support.waiting import wait_until

NOW = datetime(2026, 11, 16, 10, tzinfo=UTC)
RECORD = LogRecord(0, 5, int(NOW.timestamp() * 1000) - 3_000, b"a", b"{}")


@pytest.mark.parametrize(
    ("position", "end", "committed_end", "record", "records", "held_back", "age_s"),
    [
        (5, 5, 5, None, 0, 0, 0.0),
        (5, 7, 7, RECORD, 2, 0, 3.0),
        (5, 7, 7, None, 0, 0, 0.0),  # markers only
        (5, 9, 7, RECORD, 4, 2, 3.0),
        (5, 9, 5, None, 4, 4, None),
        (5, 9, 7, None, 2, 2, None),  # markers, then an open transaction
        (8, 9, 7, None, 1, 1, None),
    ],
)
def test_waiting_and_held_back_records_are_counted(
    position: int,
    end: int,
    committed_end: int,
    record: LogRecord | None,
    records: int,
    held_back: int,
    age_s: float | None,
) -> None:
    one = PartitionBacklog(0, position, end, committed_end, record)
    assert (one.records, one.held_back, one.age_s(NOW)) == (records, held_back, age_s)


def test_held_back_records_are_explained() -> None:
    known = OpenTransaction(1, 7, 4001, NOW, "o")
    later = OpenTransaction(1, 9, 4002, NOW, None)
    assert backlog.describe_held_back({1: 3, 2: 1}, [later, known]) == [
        (
            "3 records behind an open transaction since 2026-11-16T10:00:00Z, producer id 4001,"
            " transactional id 'o', partition 1"
        ),
        "1 record behind an open transaction, partition 2",
    ]


def test_an_abandoned_transaction_is_counted_and_named(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic, before = new_topic(2), datetime.now(UTC)
    with hanging_transaction(
        cluster.bootstrap, topic, (b"a", b"1"), (b"a", b"2"), partition=1
    ) as transactional_id:
        plain = Producer({"bootstrap.servers": cluster.bootstrap})
        plain.produce(topic, b"3", partition=1)  # acknowledged, and hidden behind the transaction
        assert plain.flush(30) == 0
        found = backlog.read(cluster, topic, {0: 0, 1: 0})
        assert [(one.records, one.held_back) for one in found.values()] == [(0, 0), (3, 3)]
        [holder] = backlog.open_transactions(cluster, topic, [0, 1])
        assert (holder.partition, holder.start_offset, holder.transactional_id) == (
            1,
            0,
            transactional_id,
        )
        assert holder.since is not None
        assert abs((holder.since - before).total_seconds()) < 60
        assert backlog.still_held_back({0: 0, 1: 3}, {0: 0, 1: 0}) == {1: 3}

    def freed() -> bool:
        return backlog.read(cluster, topic, {1: 0})[1].held_back == 0

    wait_until(freed, "the transaction to be aborted")
    # two aborted records, a plain one and the marker
    assert backlog.read(cluster, topic, {1: 0})[1].records == 4
    assert backlog.open_transactions(cluster, topic, [0, 1]) == []
