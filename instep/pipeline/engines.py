"""The engines of one Spark session; each is started when the first pipeline needs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from instep import settings
from instep.kafka.connection import Cluster
from instep.pipeline.engine import Engine
from instep.pipeline.resident.pipelines import ResidentPipelines

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


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
        slot_users: int = 1,
    ) -> None:
        """Take the session's context, and a folder for temporary files.

        `tasks_max` limits the resident tasks, for example to the number of partitions. They keep
        their slots, so they take only their share if there are other `slot_users`.
        """
        self._context, self._cluster, self._folder = context, cluster, folder
        self._pipelines, self._tasks_max = pipelines, tasks_max
        self._slot_users = slot_users
        self._micro_batch: Engine | None = None
        self._transforming: Engine | None = None
        self._resident: ResidentPipelines | None = None

    def of(self, name: str) -> Engine:
        """Return the engine of a pipeline."""
        if self._pipelines[name].transform is not None:
            if self._transforming is None:
                from instep.pipeline.transformed.flow import TransformingEngine

                self._transforming = TransformingEngine(
                    self._sql_session(), self._cluster, self._folder
                )
            return self._transforming
        if self._pipelines[name].chosen_engine == "micro-batch":
            if self._micro_batch is None:
                from instep.pipeline.micro_batch.flow import MicroBatchEngine

                self._micro_batch = MicroBatchEngine(
                    self._sql_session(), self._cluster, self._folder
                )
            return self._micro_batch
        if self._resident is None:
            self._resident = ResidentPipelines(
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

    def _sql_session(self) -> SparkSession:
        # Imported here: resident tasks need neither SQL nor Arrow.
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()  # on the active context

    def _resident_pipelines(self) -> dict[str, settings.Pipeline]:
        return {
            name: pipeline
            for name, pipeline in self._pipelines.items()
            if pipeline.chosen_engine == "resident"
        }

    def _tasks(self) -> int:
        """Return the number of resident tasks."""
        return resident_tasks(self._context, self._slot_users, self._tasks_max)


def resident_tasks(context: SparkContext, slot_users: int, tasks_max: int | None) -> int:
    """Return the number of resident tasks of one kind: its share of Spark's slots, or less."""
    slots = max(1, context.defaultParallelism // slot_users)
    return max(1, min(slots, tasks_max or slots))
