"""The streaming query of a KPI: tasks decode records, and the driver counts each micro-batch."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from instep import errors, sinks
from instep.kafka.connection import Cluster, java_config
from instep.kafka.topic_identity import SameTopic, TopicIdentity
from instep.kpis import reading
from instep.kpis.definition import KpiDefinition
from instep.kpis.merge import KpiMerge, log_reader
from instep.kpis.reading import ReadRecords
from instep.pipeline import continuity, counts, failures
from instep.pipeline.applier import TRANSIENT_TRIES_MAX, TaskPlan
from instep.pipeline.apply.batch import find_probe
from instep.pipeline.engine import Report
from instep.pipeline.micro_batch import arrow, query
from instep.sinks.sink import Sink
from instep.sinks.target import Position
from instep.waiting import retrying

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER = "500 milliseconds"  # rows are about a second behind; planning a batch costs 0.1 s of CPU


class KpiEngine:
    """Starts the queries of KPIs in a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        folder: Path,
        definitions: Mapping[str, KpiDefinition],
    ) -> None:
        """Take the session, the cluster to read from and a folder for checkpoints."""
        self._spark, self._cluster, self._folder = spark, cluster, folder
        self._definitions = definitions

    def start(
        self,
        plan: TaskPlan,
        ledger: Mapping[int, Position],
        *,
        once: bool,
        wake: Callable[[], None],
    ) -> KpiFlow:
        """Start a query at the ledger's offsets, with a new checkpoint."""
        definition = self._definitions[plan.target.pipeline]
        positions = {partition: position.next_offset for partition, position in ledger.items()}
        records = query.stream_records(
            self._spark,
            plan.target.topic,
            java_config(plan.kafka, plan.bootstrap),
            positions,
            plan.pipeline.batch_rows_max,
            headers=definition.event.reads_headers,
        )
        messages = arrow.map_batches(
            records, functools.partial(reading.run, definition), reading.SPARK_SCHEMA
        )
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", definition.name)
        flow = KpiFlow(definition, plan, positions, self._cluster, wake)
        writer = messages.writeStream.foreachBatch(flow.count).option(
            "checkpointLocation", str(self._folder / f"checkpoint-{uuid.uuid4().hex}")
        )
        trigger = writer.trigger(processingTime=TRIGGER)
        if once:
            trigger = writer.trigger(availableNow=True)
        flow.begin(trigger.start())
        return flow


class KpiFlow:
    """One streaming query, and the transaction that counts what it reads."""

    poll_interval_s = 0.1

    def __init__(
        self,
        definition: KpiDefinition,
        plan: TaskPlan,
        positions: Mapping[int, int],
        cluster: Cluster,
        wake: Callable[[], None],
    ) -> None:
        self._plan, self._cluster, self._wake = plan, cluster, wake
        self._query: StreamingQuery | None = None
        self._sink: Sink | None = None
        self._failure: errors.InstepError | None = None
        self._reports: list[Report] = []
        self._identity = TopicIdentity(
            plan.kafka, plan.bootstrap, plan.target.topic, plan.writer.topic_id
        )
        self._merge = KpiMerge(definition, plan.writer, positions, probe=find_probe())

    def begin(self, started: StreamingQuery) -> None:
        """Take the query, which calls `count` from now on."""
        self._query = started

    def count(self, messages: DataFrame, _batch_id: int) -> None:
        """Count a micro-batch. Spark repeats none: after an error the query ends."""
        try:
            packed = [bytes(row[0]) for row in messages.collect()]
            self._count(reading.unpacked(packed))
        except errors.InstepError as error:
            self._failure = error
            raise
        except Exception:
            raise
        except BaseException as error:
            # Spark would wait for ever for an answer of this function.
            raise RuntimeError(f"the micro-batch was interrupted: {error!r}") from error

    def _count(self, reads: list[ReadRecords]) -> None:
        if not reads:
            return
        same_topic = self._same_topic()
        outcomes = retrying(
            lambda: self._merge.apply(self._opened(), reads, same_topic),
            lambda error: isinstance(error, errors.Transient),
            tries_max=TRANSIENT_TRIES_MAX,
        )
        positions = {partition: self._merge.positions[partition] for partition in outcomes}
        self._reports.append(Report(counts.total(list(outcomes.values())), positions))
        self._wake()

    def _same_topic(self) -> SameTopic:
        """Return the check that records which were read by now are of the ledger's topic."""
        reader, topic = log_reader(self._plan.target.pipeline), self._plan.target.topic
        return SameTopic(
            self._identity,
            lambda: self._cluster,
            replaced=functools.partial(continuity.replaced, reader, topic),
            gone=functools.partial(continuity.gone, reader, topic, ()),
        )

    def _opened(self) -> Sink:
        if self._sink is None:
            self._sink = sinks.open_sink(self._plan.target)
        return self._sink

    def is_active(self) -> bool:
        """Return whether the query runs."""
        return self._query is not None and self._query.isActive

    def failure(self) -> errors.InstepError | None:
        """Return why the query failed."""
        assert self._query is not None
        failure = self._query.exception()
        self._close()
        if failure is None:
            return None
        return self._failure or failures.read(str(failure)) or failures.unexplained(failure)

    def waits_for(self) -> str | None:
        """Return None: Spark does not tell how long a query has been waiting for a core."""
        return None

    def reports(self) -> list[Report]:
        """Return what was counted since the last call."""
        count = len(self._reports)
        new, self._reports[:count] = self._reports[:count], []
        return new

    def add_partitions(self, partitions: Collection[int]) -> None:
        """Do nothing: Spark finds new partitions itself."""

    def stop(self) -> None:
        """Stop the query. The database rolls back an open transaction."""
        # If it does not end in time, the epoch keeps it harmless. Or Spark has ended.
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            if self._query is not None:
                self._query.stop()
        self._close()

    def _close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()
        self._identity.close()
