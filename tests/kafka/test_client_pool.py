"""Test clients that are kept for the next request, on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from instep import settings
from instep.kafka import admin_extras, connection, offsets, reading, topics
from instep.kafka.client_pool import ClientPool
from instep.local.broker import LocalCluster
from tests.support.waiting import wait_until

RECORDS = 200
IDLE_MAX = 2


@pytest.fixture
def keeping(broker: LocalCluster) -> Iterator[connection.Cluster]:
    """Return a cluster that keeps clients, as the console's does."""
    with connection.Cluster(settings.Kafka(), broker.bootstrap, idle_max=IDLE_MAX) as cluster:
        yield cluster


def publish(cluster: connection.Cluster, topic: str, count: int = RECORDS) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%s %d" % (topic.encode(), number), partition=number % 3)
    assert producer.flush(30) == 0


def read(cluster: connection.Cluster, topic: str, start: int = 0) -> list[tuple[int, int, bytes]]:
    ends = offsets.latest(cluster, topic, range(3))
    ranges = {number: (start, end) for number, end in ends.items()}
    return sorted(
        (one.partition, one.offset, one.value or b"")
        for one in reading.read(cluster, topic, ranges)
    )


def scanner_from_pool(cluster: connection.Cluster) -> object:
    with cluster.borrow_scanner() as loan:
        return loan.client


def test_a_reader_is_kept_and_reads_only_what_was_asked(
    keeping: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    """Leave nothing behind: neither of a whole range nor of one that was left early."""
    names = [new_topic(3), new_topic(3)]
    for name in names:
        publish(keeping, name)
    expected = {name: read(keeping, name) for name in names}
    kept = scanner_from_pool(keeping)
    for attempt in range(30):
        name, start = names[attempt % 2], attempt % 7
        whole = dict.fromkeys(range(3), (0, 60))
        next(reading.messages(keeping, names[attempt % 3 % 2], whole))
        assert read(keeping, name, start) == [one for one in expected[name] if one[1] >= start]
    assert scanner_from_pool(keeping) is kept


def test_readers_of_several_threads_are_their_own(
    keeping: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    names = [new_topic(3) for _ in range(4)]
    for name in names:
        publish(keeping, name)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: read(keeping, name), names * 5))
    for name, records in zip(names * 5, found, strict=True):
        assert len(records) == RECORDS
        assert all(value.startswith(name.encode()) for _, _, value in records)


def test_a_kept_reader_notices_that_a_topic_was_created_again(
    keeping: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    name = new_topic(3)
    publish(keeping, name)
    assert len(read(keeping, name)) == RECORDS
    topics.delete(keeping, name)
    topics.create(keeping, name, 3)
    publish(keeping, name, 9)
    assert len(read(keeping, name)) == 9


def test_a_reader_is_not_kept_after_an_error(keeping: connection.Cluster) -> None:
    kept = scanner_from_pool(keeping)
    loan = keeping.borrow_scanner()
    assert loan.client is kept
    loan.__exit__(RuntimeError)
    assert scanner_from_pool(keeping) is not kept


def test_clients_work_after_a_restart_of_the_broker() -> None:
    with (
        LocalCluster() as brokers,
        connection.Cluster(settings.Kafka(), brokers.bootstrap, 3, idle_max=IDLE_MAX) as cluster,
    ):
        topics.create(cluster, "restarted", 3)
        publish(cluster, "restarted")
        assert len(read(cluster, "restarted")) == RECORDS
        with admin_extras.connect(cluster) as extras:
            assert extras is not None
            assert extras.log_dirs(["restarted"])
        brokers.nodes[0].stop()
        with admin_extras.connect(cluster) as gone:
            assert gone is None
        brokers.nodes[0].start()

        def has_sizes() -> bool:
            with admin_extras.connect(cluster) as extras:
                return bool(extras and extras.log_dirs(["restarted"]))

        wait_until(has_sizes, "the broker's answer")
        assert len(read(cluster, "restarted")) == RECORDS


def test_the_second_client_is_kept(keeping: connection.Cluster) -> None:
    with admin_extras.connect(keeping) as first:
        assert first is not None
    with admin_extras.connect(keeping) as second:
        assert second is first
        second.is_broken = True  # as after a request without an answer
    with admin_extras.connect(keeping) as third:
        assert third is not None
        assert third is not first
        assert third.racks()


def test_only_some_clients_are_kept_and_none_after_the_end() -> None:
    made: list[int] = []
    closed: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    pool = ClientPool(make, closed.append, idle_max=2)
    loans = [pool.borrow() for _ in range(4)]
    for loan in loans[:3]:
        loan.__exit__(None)
    assert closed == [2]
    pool.close()
    assert sorted(closed) == [0, 1, 2]
    loans[3].__exit__(None)
    assert sorted(closed) == [0, 1, 2, 3]


def test_a_command_keeps_no_client(cluster: connection.Cluster) -> None:
    assert scanner_from_pool(cluster) is not scanner_from_pool(cluster)
