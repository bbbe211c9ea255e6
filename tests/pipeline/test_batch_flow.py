"""Test what the thread of a batch flow shares with the runner's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from instep import errors
from instep.kafka import reading, topics
from instep.kafka.connection import Cluster
from instep.pipeline.transformed import batch_flow
from instep.pipeline.transformed.batch_flow import BatchFlow
from instep.pipeline.transformed.batches import Range
from tests.support.producing import IN_ORDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _IdleFlow(BatchFlow):
    def _apply(self, ranges: Sequence[Range], ends: Mapping[int, int]) -> Mapping[int, int]:
        return ends


class _Interrupting(Mapping[int, int]):
    """Offsets that let the runner's thread work while they are read."""

    def __init__(self, offsets: dict[int, int], then: Callable[[], object]) -> None:
        self._offsets, self._then = offsets, then

    def __getitem__(self, partition: int) -> int:
        self._then()
        return self._offsets[partition]

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


@pytest.fixture
def flow(spark: SparkSession, cluster: Cluster, topic: str) -> _IdleFlow:
    return _IdleFlow(
        spark,
        cluster,
        "flow",
        topic,
        {0: 0, 1: 5},
        batch_rows_max=100,
        once=False,
        wake=lambda: None,
    )


def test_no_report_is_lost_while_others_are_taken(flow: _IdleFlow) -> None:
    positions = _Interrupting({0: 3}, flow.reports)
    flow._report({"rows": 3}, positions, {})
    assert [one.positions for one in flow.reports()] == [{0: 3}]


def test_partitions_are_added_while_a_batch_is_planned(flow: _IdleFlow) -> None:
    ends = _Interrupting({0: 3, 1: 9, 2: 4}, lambda: flow.add_partitions([1, 2]))
    assert flow._ranges(ends) == [(0, 0, 3), (1, 5, 9)]
    assert flow._ranges(ends) == [(0, 0, 3), (1, 5, 9), (2, 0, 4)]


def _publish(cluster: Cluster, topic: str, count: int, value: bytes = b"value") -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for number in range(count):
        producer.produce(topic, value, b"%d" % number, partition=0)
    assert producer.flush(30) == 0


def test_a_range_is_read_in_chunks_of_limited_size(
    flow: _IdleFlow, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_flow, "RECORDS_MAX", 4)
    monkeypatch.setattr(batch_flow, "BYTES_MAX", 1_000)
    _publish(cluster, topic, 9)
    _publish(cluster, topic, 3, b"x" * 600)
    chunks = [[record.offset for record in chunk] for chunk in flow._chunks(0, 0, 12)]
    assert chunks == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [11]]
    assert [[record.offset for record in chunk] for chunk in flow._chunks(0, 2, 3)] == [[2]]
    assert list(flow._chunks(0, 12, 12)) == []


def test_a_chunk_is_read_when_the_one_before_it_is_done(
    flow: _IdleFlow, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one is in memory; and if records expire meanwhile, they are not passed over."""
    monkeypatch.setattr(batch_flow, "RECORDS_MAX", 4)
    _publish(cluster, topic, 12)
    chunks = flow._chunks(0, 0, 12)
    assert [record.offset for record in next(chunks)] == [0, 1, 2, 3]
    topics.trim(cluster, topic, {0: 6})
    with pytest.raises(errors.OffsetsExpired):
        next(chunks)


def test_a_flow_that_was_stopped_reads_no_further_chunk(
    flow: _IdleFlow, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_flow, "RECORDS_MAX", 4)
    _publish(cluster, topic, 12)
    chunks = flow._chunks(0, 0, 12)
    next(chunks)
    flow._stopped.set()
    with pytest.raises(errors.StartAgain):
        next(chunks)


def test_a_task_never_passes_over_records_that_expired(cluster: Cluster, topic: str) -> None:
    _publish(cluster, topic, 12)
    topics.trim(cluster, topic, {0: 6})
    ranges = {0: (4, 12)}
    with pytest.raises(errors.OffsetsExpired):
        list(reading.columns(cluster, topic, ranges, headers=False))
    [found] = reading.columns(cluster, topic, {0: (6, 12)}, headers=False)
    assert found.offsets == [*range(6, 12)]
