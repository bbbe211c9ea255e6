"""Pipelines in resident tasks: what the driver does to start their flows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from instep import settings
from instep.kafka import offsets
from instep.kafka.connection import Cluster
from instep.pipeline.applier import TaskPlan
from instep.pipeline.resident.engine import ResidentEngine, ResidentFlow
from instep.pipeline.resident.pipeline_share import PipelineShares, encode_plan
from instep.sinks import target
from instep.sinks.target import Position

if TYPE_CHECKING:
    from pyspark import SparkContext


class ResidentPipelines:
    """The resident engine of a run's pipelines."""

    def __init__(
        self,
        context: SparkContext,
        cluster: Cluster,
        pipelines: Mapping[str, settings.Pipeline],
        *,
        tasks: int,
    ) -> None:
        """Start this number of tasks for these pipelines."""
        urls = {
            name: target.database_url(pipeline.target).render_as_string(hide_password=False)
            for name, pipeline in pipelines.items()
        }
        shares = PipelineShares(cluster.kafka, cluster.bootstrap, dict(pipelines), urls)
        self._cluster = cluster
        self._engine = ResidentEngine(context, "pipeline", shares, tasks=tasks)

    def start(
        self,
        plan: TaskPlan,
        ledger: Mapping[int, Position],
        *,
        once: bool,
        wake: Callable[[], None],
    ) -> ResidentFlow:
        """Start a flow. Its tasks read the ledger themselves; here it names the partitions."""
        key = (plan.target.pipeline, plan.writer.epoch)
        ends = offsets.latest(self._cluster, plan.target.topic, list(ledger)) if once else None
        encoded = encode_plan(plan.target, plan.writer)
        return self._engine.start(key, encoded, ledger, ends=ends, wake=wake)

    def close(self) -> None:
        """End the tasks."""
        self._engine.close()
