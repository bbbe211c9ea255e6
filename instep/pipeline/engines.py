"""The engines of one Spark session; each is started when the first pipeline needs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from instep import settings
from instep.kafka.connection import Cluster
from instep.pipeline.engine import Engine
from instep.pipeline.resident.engine import ResidentEngine

if TYPE_CHECKING:
    from pyspark import SparkContext


class Engines:
    """Engines for a fixed set of pipelines."""

    def __init__(
        self,
        context: SparkContext,
        cluster: Cluster,
        folder: Path,
        pipelines: Mapping[str, settings.Pipeline],
        *,
        tasks_max: int | None = None,
    ) -> None:
        """Take the session's context, and a folder for temporary files.

        `tasks_max` limits the resident tasks, for example to the number of partitions.
        """
        self._context, self._cluster, self._folder = context, cluster, folder
        self._pipelines, self._tasks_max = pipelines, tasks_max
        self._micro_batch: Engine | None = None
        self._resident: ResidentEngine | None = None

    def of(self, name: str) -> Engine:
        """Return the engine of a pipeline."""
        if self._pipelines[name].engine == "micro-batch":
            if self._micro_batch is None:
                # Imported here: resident tasks need neither SQL nor Arrow.
                from pyspark.sql import SparkSession

                from instep.pipeline.micro_batch.flow import MicroBatchEngine

                spark = SparkSession.builder.getOrCreate()  # on the active context
                self._micro_batch = MicroBatchEngine(spark, self._cluster, self._folder)
            return self._micro_batch
        if self._resident is None:
            self._resident = ResidentEngine(
                self._context,
                self._cluster,
                self._resident_pipelines(),
                tasks=self._tasks(),
            )
        return self._resident

    def close(self) -> None:
        """End the resident tasks."""
        resident, self._resident = self._resident, None
        if resident is not None:
            resident.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resident_pipelines(self) -> dict[str, settings.Pipeline]:
        return {
            name: pipeline
            for name, pipeline in self._pipelines.items()
            if pipeline.engine == "resident"
        }

    def _tasks(self) -> int:
        """Return the number of resident tasks.

        They keep their slots, so queries of the other engine need slots that stay free.
        """
        slots: int = self._context.defaultParallelism
        if len(self._resident_pipelines()) < len(self._pipelines):
            slots = max(1, slots // 2)
        return max(1, min(slots, self._tasks_max or slots))
