"""The micro-batch engine: each pipeline is a streaming query of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from instep import errors
from instep.kafka.connection import Cluster, java_config
from instep.pipeline import counts, failures
from instep.pipeline.applier import TaskPlan
from instep.pipeline.engine import Report
from instep.pipeline.micro_batch import direct_reader, query
from instep.sinks.target import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class MicroBatchEngine:
    """Starts streaming queries in a Spark session."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path) -> None:
        """Take the session, the cluster to read from and a folder for checkpoints."""
        self._spark, self._cluster, self._folder = spark, cluster, folder

    def start(
        self,
        plan: TaskPlan,
        ledger: Mapping[int, Position],
        *,
        once: bool,
        wake: Callable[[], None],  # noqa: ARG002 - a query calls nobody
    ) -> MicroBatchFlow:
        """Start a query at the ledger's offsets."""
        running = query.start(
            self._spark,
            plan,
            kafka=java_config(plan.kafka, plan.bootstrap),
            offsets={partition: position.next_offset for partition, position in ledger.items()},
            rows_max=plan.pipeline.batch_rows_max,
            # A new checkpoint for every start: the ledger decides where to continue, not Spark.
            checkpoint=self._folder / f"checkpoint-{uuid.uuid4().hex}",
            once=once,
        )
        return MicroBatchFlow(running, plan, self._cluster)


class MicroBatchFlow:
    """One streaming query."""

    poll_interval_s = 0.1

    def __init__(self, running: StreamingQuery, plan: TaskPlan, cluster: Cluster) -> None:
        self._query, self._plan, self._cluster = running, plan, cluster
        self._last_report = ""
        self._applied_directly: list[Report] = []

    def is_active(self) -> bool:
        """Return whether the query runs."""
        return self._query.isActive

    def failure(self) -> errors.InstepError | None:
        """Return why the query failed.

        If records that Spark cannot read may be the reason, apply them; then the query only has to
        start again after them.
        """
        failure = self._query.exception()
        if failure is None:
            return None
        if error := failures.read(str(failure)):
            return error
        for partition, end, outcome in direct_reader.apply(self._plan, self._cluster):
            report = Report(counts.counts(outcome), {partition: end}, {partition: end})
            self._applied_directly.append(report)
        if self._applied_directly:
            return errors.StartAgain("the next records, which Spark cannot read, are applied")
        return failures.unexplained(failure)

    def waits_for(self) -> str | None:
        """Return None: Spark does not tell how long a query has been waiting for a core."""
        return None

    def reports(self) -> list[Report]:
        """Return the progress reports that are new since the last call."""
        # The public property costs dozens of calls to the JVM for each report; this one costs one.
        reports = self._query._jsq.recentProgress()
        new_reports = []
        for index in range(len(reports) - 1, -1, -1):
            # By time, not by batch number: an idle query reports the number of its next batch.
            if reports[index].timestamp() <= self._last_report:
                break
            new_reports.append(reports[index])
        if new_reports:
            self._last_report = new_reports[0].timestamp()
        directly, self._applied_directly = self._applied_directly, []
        topic = self._plan.target.topic
        return [read_report(report.json(), topic) for report in reversed(new_reports)] + directly

    def add_partitions(self, partitions: Collection[int]) -> None:
        """Do nothing: Spark finds new partitions itself."""

    def stop(self) -> None:
        """Stop the query. The database rolls back an open transaction."""
        # If it does not end in time, the epoch keeps it harmless. Or Spark has ended.
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            self._query.stop()


def read_report(text: str, topic: str) -> Report:
    """Read Spark's progress report."""
    report: dict[str, Any] = json.loads(text)
    source = report["sources"][0]
    offsets = functools.partial(_offsets, topic=topic)
    observed = report.get("observedMetrics", {}).get(query.OBSERVED, {})
    counted = {name: int(observed.get(name) or 0) for name in counts.NAMES}
    return Report(counted, offsets(source["endOffset"]), offsets(source["latestOffset"]))


def _offsets(reported: Any, topic: str) -> dict[int, int]:
    if isinstance(reported, str):
        reported = json.loads(reported)
    by_partition = (reported or {}).get(topic) or {}
    return {int(partition): offset for partition, offset in by_partition.items()}
