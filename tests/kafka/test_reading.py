"""Test reading ranges of a topic in columns, on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from instep import settings
from instep.kafka import connection, reading
from instep.kafka.offsets import LogRecord
from instep.kafka.reading import RecordColumns
from instep.local.broker import LocalCluster

RECORDS = 90


@pytest.fixture(scope="module")
def opened(broker: LocalCluster) -> Iterator[connection.Cluster]:
    with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def filled(opened: connection.Cluster, new_topic: Callable[..., str]) -> str:
    """Return a topic with keys, deletes, headers and empty values in two partitions."""
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": opened.bootstrap})
    for number in range(RECORDS):
        producer.produce(
            topic,
            [b"value %d" % number, b"", None][number % 3],
            None if number % 5 == 0 else b"key %d" % number,
            number % 2,
            timestamp=1_000 + number,
            headers=[("no", b"%d" % number), ("no", None)] if number % 4 == 0 else [],
        )
    assert producer.flush(30) == 0
    return topic


def records(chunks: list[RecordColumns]) -> list[LogRecord]:
    """Return the records of chunks, those of each partition in their order."""
    found = [
        LogRecord(*facts)
        for one in chunks
        for facts in zip(
            one.partitions,
            one.offsets,
            one.timestamps_ms,
            one.keys,
            one.values,
            one.headers or [()] * len(one.offsets),
            strict=True,
        )
    ]
    return sorted(found, key=lambda record: record.partition)


def test_columns_have_what_records_have(
    opened: connection.Cluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_RECORDS", 7)
    ranges = {0: (3, 40), 1: (0, 45)}
    expected = sorted(reading.read(opened, filled, ranges), key=lambda record: record.partition)
    chunks = list(reading.columns(opened, filled, ranges, headers=True))
    assert records(chunks) == expected
    assert [len(one.offsets) for one in chunks] == [7] * 11 + [5]
    assert not any(one.is_cut for one in chunks)
    chunks = list(reading.columns(opened, filled, ranges, headers=False))
    assert all(one.headers is None for one in chunks)
    assert [one.offset for one in records(chunks)] == [one.offset for one in expected]


def test_reading_is_cut_at_a_number_of_bytes(opened: connection.Cluster, filled: str) -> None:
    [found] = reading.columns(opened, filled, {0: (0, 45)}, headers=False, bytes_max=50)
    sizes = [
        len(key or b"") + len(value or b"")
        for key, value in zip(found.keys, found.values, strict=True)
    ]
    assert found.is_cut
    assert sum(sizes) >= 50 > sum(sizes[:-1])
    [found] = reading.columns(opened, filled, {0: (0, 45)}, headers=False, bytes_max=5_000)
    assert (len(found.offsets), found.is_cut) == (45, False)
