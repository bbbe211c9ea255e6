"""Test places in a log on a real broker, with and without transactions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer, TopicPartition

from instep import errors
from instep.kafka import connection, groups, offsets
from instep.local.broker import LocalCluster
from tests.support.producing import IN_ORDER
from tests.support.waiting import wait_until


@pytest.fixture
def transactional(broker: LocalCluster) -> Iterator[Producer]:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": f"tx-{uuid.uuid4().hex}",
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    yield producer
    producer.close()


@pytest.fixture
def plain(broker: LocalCluster) -> Iterator[Producer]:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 0,
            "enable.idempotence": True,
            **IN_ORDER,
        }
    )
    yield producer
    producer.close()


def write(
    producer: Producer, topic: str, partition: int, *values: bytes, timestamp_ms: int = 0
) -> None:
    for value in values:
        producer.produce(topic, value, b"key", partition, timestamp=timestamp_ms)
    assert producer.flush(20) == 0


def test_the_ends_of_a_log_are_read(
    cluster: connection.Cluster, new_topic: Callable[..., str], plain: Producer
) -> None:
    topic = new_topic(3)
    write(plain, topic, 0, b"a", b"b")
    write(plain, topic, 2, b"c")
    assert offsets.earliest(cluster, topic, [0, 1, 2]) == {0: 0, 1: 0, 2: 0}
    assert offsets.latest(cluster, topic, [0, 2]) == {0: 2, 2: 1}
    assert offsets.latest(cluster, topic, []) == {}


def test_deleted_records_move_the_start(
    cluster: connection.Cluster, new_topic: Callable[..., str], plain: Producer
) -> None:
    topic = new_topic(1)
    write(plain, topic, 0, b"a", b"b", b"c")
    for answer in cluster.admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        answer.result(60)
    assert offsets.earliest(cluster, topic, [0]) == {0: 2}
    found = offsets.first_records(cluster, topic, {0: 0})[0]
    assert found is not None
    assert (found.offset, found.value) == (2, b"c")


def test_offsets_are_found_by_time(
    cluster: connection.Cluster, new_topic: Callable[..., str], plain: Producer
) -> None:
    topic = new_topic(2)
    morning = datetime(2026, 11, 1, 8, tzinfo=UTC)
    for hour in range(3):
        at_ms = int((morning + timedelta(hours=hour)).timestamp() * 1000)
        write(plain, topic, 0, b"x", b"y", timestamp_ms=at_ms)
    assert offsets.at_time(cluster, topic, [0, 1], morning) == {0: 0, 1: 0}
    assert offsets.at_time(cluster, topic, [0, 1], morning + timedelta(minutes=1)) == {0: 2, 1: 0}
    assert offsets.at_time(
        cluster, topic, [0, 1], morning.replace(tzinfo=None) + timedelta(hours=2)
    ) == {0: 4, 1: 0}
    assert offsets.at_time(cluster, topic, [0, 1], morning + timedelta(days=1)) == {0: 6, 1: 0}
    assert offsets.at_time(cluster, topic, [0], datetime(1900, 1, 1, tzinfo=UTC)) == {0: 0}


def test_the_first_records_of_many_partitions_are_read_at_once(
    cluster: connection.Cluster, new_topic: Callable[..., str], plain: Producer
) -> None:
    topic = new_topic(12)
    for partition in range(0, 12, 2):
        write(plain, topic, partition, b"0", b"1", b"2", timestamp_ms=1_700_000_000_000 + partition)
    found = offsets.first_records(cluster, topic, dict.fromkeys(range(12), 1))
    for partition in range(12):
        record = found[partition]
        if partition % 2:
            assert record is None
        else:
            assert record == offsets.LogRecord(
                partition, 1, 1_700_000_000_000 + partition, b"key", b"1"
            )


def test_positions_at_and_beyond_the_end_have_no_record(
    cluster: connection.Cluster, new_topic: Callable[..., str], plain: Producer
) -> None:
    topic = new_topic(2)
    write(plain, topic, 0, b"a")
    assert offsets.first_records(cluster, topic, {0: 1, 1: 7}) == {0: None, 1: None}
    assert offsets.first_records(cluster, topic, {}) == {}


def test_aborted_records_and_markers_are_skipped(
    cluster: connection.Cluster, new_topic: Callable[..., str], transactional: Producer
) -> None:
    topic = new_topic(2)
    # partition 0: a 0, marker 1, x 2, abort marker 3, c 4, marker 5
    # partition 1: a 0, marker 1, x 2, abort marker 3
    transactional.begin_transaction()
    write(transactional, topic, 0, b"a")
    write(transactional, topic, 1, b"a")
    transactional.commit_transaction(20)
    transactional.begin_transaction()
    write(transactional, topic, 0, b"x")
    write(transactional, topic, 1, b"x")
    transactional.abort_transaction(20)
    transactional.begin_transaction()
    write(transactional, topic, 0, b"c")
    transactional.commit_transaction(20)
    wait_until(lambda: offsets.latest(cluster, topic, [0, 1]) == {0: 6, 1: 4})

    def first(at: int) -> list[int | None]:
        found = offsets.first_records(cluster, topic, {0: at, 1: at})
        return [record.offset if (record := found[partition]) else None for partition in (0, 1)]

    assert first(0) == [0, 0]
    assert first(1) == [4, None]
    assert first(2) == [4, None]
    assert first(3) == [4, None]
    assert first(4) == [4, None]
    assert first(5) == [None, None]


def test_an_open_transaction_hides_the_records_behind_it(
    cluster: connection.Cluster,
    new_topic: Callable[..., str],
    transactional: Producer,
    plain: Producer,
) -> None:
    topic = new_topic(1)
    write(plain, topic, 0, b"before")
    transactional.begin_transaction()
    write(transactional, topic, 0, b"open")
    write(plain, topic, 0, b"behind")
    assert offsets.latest(cluster, topic, [0]) == {0: 1}
    assert offsets.latest(cluster, topic, [0], committed=False) == {0: 3}
    assert offsets.first_records(cluster, topic, {0: 1}) == {0: None}
    transactional.abort_transaction(20)
    wait_until(lambda: offsets.latest(cluster, topic, [0]) == {0: 4})
    found = offsets.first_records(cluster, topic, {0: 1})[0]
    assert found is not None
    assert found.value == b"behind"


def test_reading_joins_no_group_and_commits_nothing(
    cluster: connection.Cluster, new_topic: Callable[..., str], plain: Producer
) -> None:
    topic = new_topic(1)
    write(plain, topic, 0, b"a")
    offsets.first_records(cluster, topic, {0: 0})
    assert groups.positions(cluster, connection.READER_GROUP, topic) == {}


def test_a_missing_topic_and_a_missing_partition_are_distinguished(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    with pytest.raises(errors.TopicMissing, match="does not exist"):
        offsets.latest(cluster, "no-such-topic", [0])
    with pytest.raises(errors.TopicMissing, match="no partition 7"):
        offsets.earliest(cluster, new_topic(2), [0, 7])


def test_a_mirrored_group_can_be_read_by_other_tools(
    broker: LocalCluster, cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic, group = new_topic(3), f"contracts-{uuid.uuid4().hex}"
    assert groups.positions(cluster, group, topic) == {}
    groups.mirror(cluster, group, topic, {0: 5, 1: 0})
    groups.mirror(cluster, group, topic, {0: 6})
    groups.mirror(cluster, group, topic, {})
    assert groups.positions(cluster, group, topic) == {0: 6, 1: 0}
    assert group in [
        listed.group_id for listed in cluster.admin.list_consumer_groups().result(60).valid
    ]
    with pytest.raises(errors.TopicMissing):
        groups.mirror(cluster, group, "no-such-topic", {0: 1})


def test_a_group_with_foreign_offsets_is_not_a_mirror(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic, group = new_topic(2), f"contracts-{uuid.uuid4().hex}"
    groups.refuse_foreign(cluster, group, topic, [0, 1])
    groups.mirror(cluster, group, topic, {0: 5})
    assert groups.foreign_offsets(cluster, group, topic, [0, 1]) == []
    groups.commit(cluster, group, {(topic, 1): 3})
    with pytest.raises(errors.SettingsError, match="offsets of another program"):
        groups.refuse_foreign(cluster, group, topic, [0, 1])
