"""Run a pipeline with a transformation: the tasks of each batch apply what Spark made of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from instep.document.decoding import Record
from instep.document.results import Result
from instep.kafka.connection import Cluster
from instep.pipeline import counts, failures
from instep.pipeline.applier import Applier, TaskPlan, log_has_records
from instep.pipeline.micro_batch import arrow, task
from instep.pipeline.transformed import batches, worker
from instep.pipeline.transformed.batch_flow import BatchFlow
from instep.pipeline.transformed.batches import Range, TaskBatch
from instep.pipeline.transformed.collector import closed
from instep.pipeline.transformed.transformer import EventPlan, Transformer
from instep.pipeline.transformed.worker import RecordSource
from instep.sinks.target import Position


class TransformingEngine:
    """Starts the flows of pipelines with a transformation."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path) -> None:
        """Take the session, the cluster to read from and a folder for notes between processes."""
        self._spark, self._cluster, self._folder = spark, cluster, folder

    def start(
        self,
        plan: TaskPlan,
        ledger: Mapping[int, Position],
        *,
        once: bool,
        wake: Callable[[], None],
    ) -> TransformingFlow:
        """Start a flow at the ledger's offsets."""
        flow = TransformingFlow(self._spark, self._cluster, self._folder, plan, ledger, once, wake)
        flow.start()
        return flow


class TransformingFlow(BatchFlow):
    """The flow of one pipeline. The ledger says where to begin."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        folder: Path,
        plan: TaskPlan,
        ledger: Mapping[int, Position],
        once: bool,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(
            spark,
            cluster,
            plan.target.pipeline,
            plan.target.topic,
            {part: position.next_offset for part, position in ledger.items()},
            batch_rows_max=plan.pipeline.batch_rows_max,
            once=once,
            wake=wake,
        )
        self._plan, self._folder = plan, folder
        self._events = self._event_plan(spark)
        applied = arrow.map_batches(
            self._events.events, functools.partial(worker.apply, plan), task.SPARK_SCHEMA
        )
        self._applied: DataFrame = applied

    def _event_plan(self, spark: SparkSession) -> EventPlan:
        plan, transform = self._plan, self._plan.pipeline.transform
        assert transform is not None
        source = RecordSource(plan.kafka, plan.bootstrap, plan.target.topic)
        return EventPlan(
            spark,
            source,
            plan.target.pipeline,
            transform,
            plan.target.mapping,
            tasks=self._tasks,
        )

    def transform(self, records: Sequence[Record]) -> list[Result]:
        """Return the results of records of the log."""
        return Transformer(self._events)(records)

    # --- in the thread ----------------------------------------------------------------------------

    def _apply(self, ranges: Sequence[Range], ends: Mapping[int, int]) -> Mapping[int, int]:
        counted = self._applied_counts(ranges)
        read_to = {partition: end for partition, _, end in ranges}
        self._report(counted, self._offsets | read_to, ends)
        return read_to

    def _applied_counts(self, ranges: Sequence[Range]) -> dict[str, int]:
        tasks = batches.divided(ranges, self._tasks)
        batch = TaskBatch(tasks, headers=self._events.headers, folder=str(self._folder))
        batch.announce(self._context)
        try:
            rows = self._applied.collect()
        except (PySparkException, Py4JJavaError) as error:
            if self._stopped.is_set() or failures.read(str(error)) is not None:
                raise
            return self._apply_one_by_one(ranges)
        return {name: sum(row[name] for row in rows) for name in counts.NAMES}

    def _apply_one_by_one(self, ranges: Sequence[Range]) -> dict[str, int]:
        """Apply a batch in which the transformation fails: find the records on which it does."""
        transform = Transformer(self._events, self._stopped.is_set)
        outcomes = []
        begins = {partition: start for partition, start, _ in ranges}

        def log_holds(partition: int, start: int, end: int) -> bool:
            begin = begins[partition]
            return start < begin and log_has_records(self._plan, partition, start, min(begin, end))

        with contextlib.closing(Applier(self._plan, self._stopped)) as applier:
            for partition, start, end in ranges:
                for records in self._chunks(partition, start, end):
                    found = transform(records)
                    unseen = len(records) - sum(one.records for one in found)
                    outcomes.append(
                        applier.apply(
                            partition, closed(found, records[-1], unseen), log_holds=log_holds
                        )
                    )
        return counts.total(outcomes)
