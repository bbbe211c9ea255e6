"""Run a pipeline with a transformation: one Spark job for each batch, with a plan made once.

Planning a query costs Spark about 100 ms of CPU time. Structured Streaming plans each batch;
here the plan stays, and only the ranges that its tasks read change. The ledger says where to
begin, so there is no checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from instep import errors
from instep.document.decoding import Record, record_of
from instep.document.results import Result
from instep.kafka import offsets, reading
from instep.kafka.connection import Cluster
from instep.pipeline import counts, failures
from instep.pipeline.applier import Applier, TaskPlan, is_full, log_has_records
from instep.pipeline.engine import Report
from instep.pipeline.micro_batch import arrow, task
from instep.pipeline.transformed import worker
from instep.pipeline.transformed.batches import Range, TaskBatch
from instep.pipeline.transformed.collector import closed
from instep.pipeline.transformed.transformer import EventPlan, Transformer
from instep.pipeline.transformed.worker import RecordSource
from instep.sinks.target import Position

IDLE_S = 0.1  # between two looks for new records
STOP_PATIENCE_S = 10.0


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


class TransformingFlow:
    """One flow, in a thread of its own."""

    poll_interval_s = 0.1

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
        self._plan, self._cluster, self._wake, self._once = plan, cluster, wake, once
        self._context = spark.sparkContext
        self._folder = folder
        self._offsets = {part: position.next_offset for part, position in ledger.items()}
        self._tasks = max(1, min(self._context.defaultParallelism, len(self._offsets)))
        self._events = self._event_plan(spark)
        applied = arrow.map_batches(
            self._events.events, functools.partial(worker.apply, plan), task.SPARK_SCHEMA
        )
        self._applied: DataFrame = applied
        self._group = f"instep-{uuid.uuid4().hex}"
        self._stopped = threading.Event()
        self._error: errors.InstepError | None = None
        self._reports: list[Report] = []
        name = f"{plan.target.pipeline} batches"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

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

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_active(self) -> bool:
        """Return whether it still runs."""
        return self._thread.is_alive()

    def failure(self) -> errors.InstepError | None:
        """Return why it ended; None if it reached the end of the log or was stopped."""
        return self._error

    def waits_for(self) -> str | None:
        """Return None: a job that waits for a core does not say so."""
        return None

    def reports(self) -> list[Report]:
        """Return the reports that are new since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def add_partitions(self, partitions: Collection[int]) -> None:
        """Read these partitions too, from their start."""
        for partition in partitions:
            self._offsets.setdefault(partition, 0)

    def transform(self, records: Sequence[Record]) -> list[Result]:
        """Return the results of records of the log."""
        return Transformer(self._events)(records)

    def stop(self) -> None:
        """Stop it. The database rolls back an open transaction."""
        self._stopped.set()
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            self._context.cancelJobGroup(self._group)
        if self._thread.ident and self._thread is not threading.current_thread():
            self._thread.join(STOP_PATIENCE_S)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, self._plan.target.pipeline)
            self._context.setLocalProperty("spark.scheduler.pool", self._plan.target.pipeline)
            self._apply_batches()
        except errors.InstepError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - the runner reports it
            self._error = failures.read(str(error)) or failures.unexplained(error)
        finally:
            if self._stopped.is_set():
                self._error = None
            self._wake()

    def _apply_batches(self) -> None:
        last = self._ends() if self._once else None
        while not self._stopped.is_set():
            ends = last or self._ends()
            ranges = self._ranges(ends)
            if not ranges:
                if last is not None:
                    return
                self._stopped.wait(IDLE_S)
                continue
            counted = self._apply(ranges)
            self._offsets |= {partition: end for partition, _, end in ranges}
            self._reports.append(Report(counted, dict(self._offsets), dict(ends)))
            self._wake()

    def _ends(self) -> dict[int, int]:
        return offsets.latest(self._cluster, self._plan.target.topic, list(self._offsets))

    def _ranges(self, ends: Mapping[int, int]) -> list[Range]:
        """Return what the next batch reads of each partition: an equal share at most."""
        waiting = [p for p, start in self._offsets.items() if start < ends.get(p, 0)]
        share = max(1, self._plan.pipeline.batch_rows_max // max(1, len(waiting)))
        return [(p, s := self._offsets[p], min(ends[p], s + share)) for p in sorted(waiting)]

    def _apply(self, ranges: Sequence[Range]) -> dict[str, int]:
        tasks: list[list[Range]] = [[] for _ in range(self._tasks)]
        largest_first = sorted(ranges, key=lambda one: one[1] - one[2])
        for number, one in enumerate(largest_first):
            tasks[number % self._tasks].append(one)
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
        transform = Transformer(self._events)
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

    def _chunks(self, partition: int, start: int, end: int) -> Sequence[list[Record]]:
        chunks: list[list[Record]] = [[]]
        size = 0
        span = {partition: (start, end)}
        for found in reading.read(self._cluster, self._plan.target.topic, span):
            chunks[-1].append(record_of(found))
            size += len(found.value or b"")
            if is_full(chunks[-1], size):
                chunks.append([])
                size = 0
        return [chunk for chunk in chunks if chunk]
