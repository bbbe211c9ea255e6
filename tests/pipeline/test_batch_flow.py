"""Test what the thread of a batch flow shares with the runner's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from instep.kafka.connection import Cluster
from instep.pipeline.transformed.batch_flow import BatchFlow
from instep.pipeline.transformed.batches import Range

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
def flow(spark: SparkSession, cluster: Cluster) -> _IdleFlow:
    return _IdleFlow(
        spark,
        cluster,
        "flow",
        "topic",
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
