"""Streams without a transformation, in resident tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from instep.kafka import offsets
from instep.kafka.connection import Cluster
from instep.pipeline.resident.engine import ResidentEngine, ResidentFlow
from instep.streams.plan import StreamPlan
from instep.streams.share import StreamShares, encode_plan

if TYPE_CHECKING:
    from pyspark import SparkContext


class ResidentStreams:
    """The resident engine of a run's streams."""

    def __init__(self, context: SparkContext, cluster: Cluster, *, tasks: int) -> None:
        """Start this number of tasks."""
        self._cluster = cluster
        shares = StreamShares(cluster.kafka, cluster.bootstrap)
        self._engine = ResidentEngine(context, "stream", shares, tasks=tasks)

    def start(
        self,
        plan: StreamPlan,
        next_offsets: Mapping[int, int],
        number: int,
        *,
        once: bool,
        wake: Callable[[], None],
    ) -> ResidentFlow:
        """Start a flow. Its tasks read the positions themselves; here are the partitions."""
        ends = None
        if once:
            ends = offsets.latest(self._cluster, plan.stream.source, list(next_offsets))
        return self._engine.start(
            (plan.name, number), encode_plan(plan), list(next_offsets), ends=ends, wake=wake
        )

    def close(self) -> None:
        """End the tasks."""
        self._engine.close()
