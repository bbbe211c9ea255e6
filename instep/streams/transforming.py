"""Streams with a transformation: Spark transforms batches of records, and the driver publishes.

A transaction belongs to a producer, and a producer to a partition for as long as the stream runs:
whoever takes over a partition has to fence it, which takes up to half a second. Spark gives each
batch to any Python worker, so tasks do not publish. They send what the transformation yields to the
driver, which keeps the producers. A batch has at most `BATCH_BYTES_MAX` for that reason, and what
it publishes `OUTPUT_BYTES_MAX`: if a transformation yields more, the batches become smaller.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses
from pyspark.sql import types as T  # noqa: N812 - the name that everybody uses

from instep import errors
from instep.document.decoding import Record
from instep.kafka.connection import Cluster
from instep.pipeline import counts, failures, transformation
from instep.pipeline.apply.batch import BatchOutcome
from instep.pipeline.apply.transaction import digest
from instep.pipeline.micro_batch import arrow, arrow_records
from instep.pipeline.transformation import PREFIX, Transformation
from instep.pipeline.transformed import batches
from instep.pipeline.transformed.batch_flow import BatchFlow
from instep.pipeline.transformed.batches import Range, TaskBatch
from instep.pipeline.transformed.collector import ResultNumbers, headers_of
from instep.pipeline.transformed.transformer import Transformer, record_frame
from instep.pipeline.transformed.worker import RecordSource
from instep.streams.output import OutputRecord
from instep.streams.partition_publishers import PartitionPublishers
from instep.streams.plan import StreamPlan
from instep.streams.publisher import SourceRecords

BATCH_ROWS_MAX = 40_000
BATCH_BYTES_MAX = 16 * 1024 * 1024
OUTPUT_BYTES_MAX = 64 * 1024 * 1024  # of what a batch publishes: it is in the driver's memory
VALUE, KEY, HEADERS = "value", "key", "headers"
PUBLISHED = (VALUE, KEY, HEADERS)
HEADERS_TYPE = "array<struct<key string, value binary>>"
# A row is a record to publish, or says how far a range was read: then it has `records`.
OUTPUT_COLUMNS = ("partition", "offset", "timestamp_ms", "key", "value", "headers")
READ_SCHEMA = (
    f"partition int, offset long, timestamp_ms long, key binary, value binary,"
    f" headers {HEADERS_TYPE}, records long, next_offset long, digest string"
)


class TransformingStreams:
    """Starts the flows of a run's streams with a transformation."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path) -> None:
        """Take the session, the cluster, and a folder for notes between processes."""
        self._spark, self._cluster, self._folder = spark, cluster, folder

    def start(
        self,
        plan: StreamPlan,
        next_offsets: Mapping[int, int],
        number: int,  # noqa: ARG002 - flows share nothing that it would tell apart
        *,
        once: bool,
        wake: Callable[[], None],
    ) -> TransformingStreamFlow:
        """Start a flow. It reads the positions itself; here are the partitions."""
        flow = TransformingStreamFlow(
            self._spark, self._cluster, self._folder, plan, next_offsets, once=once, wake=wake
        )
        flow.start()
        return flow


class OutputPlan:
    """The plan that turns a batch of records into what is published. It is made once."""

    def __init__(
        self, spark: SparkSession, source: RecordSource, stream: StreamPlan, *, tasks: int = 1
    ) -> None:
        """Load and check the transformation; raise SettingsError if it does not fit."""
        declared = Transformation(
            f"streams.{stream.name}", sql=stream.stream.sql, python=stream.stream.python
        )
        found = declared.apply(record_frame(spark, source, tasks), source.topic)
        transformation.refuse_moved_rows(found, declared.place)
        published = published_columns(declared.place, found.fields)
        carried = [F.col(PREFIX + name).alias(name) for name in OUTPUT_COLUMNS[:3]]
        self.context = spark.sparkContext
        self.outputs = found.frame.select(*carried, *published)
        self.batch = arrow.map_batches(self.outputs, with_reads, READ_SCHEMA)

    def given(self, records: Sequence[Record]) -> list[OutputRecord]:
        """Return what is published of records of one partition, in their order."""
        TaskBatch(given=list(records), headers=True).announce(self.context)
        found = self.outputs.toArrow()
        return [one for _, outputs, _ in by_partition(found) for one in outputs]

    def failed(self, record: Record, why: str) -> OutputRecord:
        """Return what stands for a record on which the transformation fails."""
        return OutputRecord(record.offset, 0, record.key, record.value, record.headers, why)


class BatchOutputs:
    """What a batch publishes of each partition, and how far it was read."""

    def __init__(self, found: pa.Table, begins: Mapping[int, int]) -> None:
        """Take the rows of `OutputPlan.batch`, and where each partition begins."""
        self.size: int = found.nbytes
        is_output = pc.is_null(found["records"])
        self.outputs: dict[int, list[OutputRecord]] = {part: [] for part in begins}
        timestamps: dict[int, list[int]] = {part: [] for part in begins}
        for partition, outputs, published_ms in by_partition(found.filter(is_output)):
            self.outputs[partition], timestamps[partition] = outputs, published_ms
        self.read_to: dict[int, int] = {}
        self.sources: dict[int, SourceRecords] = {}  # of partitions that had records
        for row in found.filter(pc.invert(is_output)).to_pylist():
            partition = row["partition"]
            self.read_to[partition] = row["next_offset"]
            if row["records"]:
                self.sources[partition] = SourceRecords(
                    begins[partition],
                    row["offset"],
                    row["records"],
                    row["digest"],
                    timestamps[partition],
                )


class TransformingStreamFlow(BatchFlow):
    """The flow of one stream."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        folder: Path,
        plan: StreamPlan,
        next_offsets: Mapping[int, int],
        *,
        once: bool,
        wake: Callable[[], None],
    ) -> None:
        """Take the partitions; the positions say where they begin."""
        stream = plan.stream
        super().__init__(
            spark,
            cluster,
            plan.name,
            stream.source,
            next_offsets,
            batch_rows_max=min(stream.batch_rows_max, BATCH_ROWS_MAX),
            once=once,
            wake=wake,
        )
        self._plan, self._folder = plan, folder
        source = RecordSource(cluster.kafka, cluster.bootstrap, stream.source)
        self._outputs = OutputPlan(spark, source, plan, tasks=self._tasks)
        self._publishers = PartitionPublishers(plan, cluster, self._stopped.is_set)
        self._positions: dict[int, int] = {}  # what is committed
        self._rows_most = self._rows_max

    # --- in the thread ----------------------------------------------------------------------------

    def _open(self) -> None:
        self._offsets = self._publishers.open(list(self._offsets))
        self._positions = dict(self._offsets)

    def _apply(self, ranges: Sequence[Range], ends: Mapping[int, int]) -> Mapping[int, int]:
        try:
            found = self._transformed(ranges)
        except errors.OutputsTooLarge:
            self._rows_max = max(1, max(end - start for _, start, end in ranges) // 2)
            if any(end - start > 1 for _, start, end in ranges):
                return {}  # the next batch is smaller
            found = None
        if found is None:
            return self._publish_one_by_one(ranges, ends)
        if found.size < OUTPUT_BYTES_MAX // 4:
            self._rows_max = min(self._rows_max * 2, self._rows_most)
        # Requested after all these records were read, so one answer serves them all.
        same_source = self._publishers.same_source()
        self._settle_partitions(list(found.sources), ends)
        for partition, source in found.sources.items():
            self._publishers.add(partition, found.outputs[partition], source)
        if found.sources:
            self._publishers.commit(list(found.sources.items()), same_source)
        # Where a range ends without records, there is nothing to commit.
        self._positions |= {
            part: end for part, end in found.read_to.items() if part not in found.sources
        }
        return found.read_to

    def _transformed(self, ranges: Sequence[Range]) -> BatchOutputs | None:
        """Let Spark transform a batch; return None if the transformation fails on a record."""
        batch = TaskBatch(
            batches.divided(ranges, self._tasks),
            headers=True,
            folder=str(self._folder),
            bytes_max=BATCH_BYTES_MAX // self._tasks,
            output_bytes_max=OUTPUT_BYTES_MAX // self._tasks,
        )
        batch.announce(self._context)
        try:
            table = self._outputs.batch.toArrow()
        except (PySparkException, Py4JJavaError) as error:
            if self._stopped.is_set():
                raise
            if (known := failures.read(str(error))) is not None:
                raise known from error
            return None
        return BatchOutputs(table, {partition: start for partition, start, _ in ranges})

    def _publish_one_by_one(
        self, ranges: Sequence[Range], ends: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Publish a batch in which the transformation fails: find the records on which it does."""
        transform = Transformer(self._outputs, self._stopped.is_set)
        for partition, start, end in ranges:
            for records in self._chunks(partition, start, end):
                same_source = self._publishers.same_source()
                outputs, source = transform(records), SourceRecords.of(records)
                self._settle_partitions([partition], ends)
                self._publishers.add(partition, outputs, source)
                self._publishers.commit([(partition, source)], same_source)
        return {partition: end for partition, _, end in ranges}

    def _settle(self, ends: Mapping[int, int]) -> None:
        self._settle_partitions(self._publishers.open_partitions, ends)

    def _settle_partitions(self, partitions: Sequence[int], ends: Mapping[int, int]) -> None:
        """Wait for the commits of these partitions, and report them."""
        outcomes: list[BatchOutcome] = []
        for partition, next_offset, outcome in self._publishers.settle(partitions):
            self._positions[partition] = next_offset
            outcomes.append(outcome)
        if outcomes:
            self._report(counts.total(outcomes), self._positions, ends)

    def _close(self) -> None:
        self._stopped.set()  # ends the attempts of commits
        self._publishers.close()


# --- what runs in the tasks -----------------------------------------------------------------------


def with_reads(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass on what is published, and add a row for each range: how far it was read."""
    batch = batches.current()
    size = 0
    for outputs in found:
        size += outputs.nbytes
        if size > batch.output_bytes_max:
            raise failures.TaskFailed(errors.OutputsTooLarge("a batch yields too much"))
        missing = [pa.nulls(len(outputs), field.type) for field in _READ_FIELDS]
        yield pa.RecordBatch.from_arrays([*outputs.columns, *missing], schema=ROW_SCHEMA)
    read = batches.take(batch)
    rows = []
    for partition, start, end in batch.ranges:
        seen = read.ranges.get(partition)
        reached = end
        if read.is_cut:
            reached = seen.last.offset + 1 if seen is not None else start
        row: dict[str, Any] = {"partition": partition, "records": 0, "next_offset": reached}
        if seen is not None:
            row |= {
                "offset": seen.last.offset,
                "records": seen.records,
                "digest": digest(seen.last),
            }
        rows.append(row)
    yield pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)


_READ_FIELDS = [
    pa.field("records", pa.int64()),
    pa.field("next_offset", pa.int64()),
    pa.field("digest", pa.string()),
]
ROW_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", arrow_records.HEADERS_TYPE),
        *_READ_FIELDS,
    ]
)


# --- records and columns --------------------------------------------------------------------------


def by_partition(found: pa.Table) -> Iterator[tuple[int, list[OutputRecord], list[int]]]:
    """Yield each partition with its records and their timestamps; those of one offset numbered."""
    numbers, partitions = ResultNumbers(), found["partition"]
    for partition in pc.unique(partitions).to_pylist():
        rows = found.filter(pc.equal(partitions, partition)).select(list(OUTPUT_COLUMNS))
        _, offset, timestamp_ms, key, value, headers = rows.columns
        offsets, timestamps = offset.to_pylist(), timestamp_ms.to_pylist()
        outputs = map(
            OutputRecord,
            offsets,
            numbers.of(partition, offsets),
            key.to_pylist(),
            value.to_pylist(),
            headers_of(headers),
            itertools.repeat(None),
            timestamps,
        )
        yield partition, list(outputs), timestamps


def published_columns(place: str, fields: T.StructType) -> list[Column]:
    """Return key, value and headers of what is published, from the columns that a user made."""
    for name in fields.names:
        if name not in PUBLISHED:
            raise errors.SettingsError(
                f"{place} yields the column {name!r}, which has no place in a record",
                f"a record has `{VALUE}`, `{KEY}` and `{HEADERS}`; put the column into the value:"
                f" to_json(struct({name}, …)) AS {VALUE}",
            )
    if VALUE not in fields.names:
        raise errors.SettingsError(
            f"{place} does not yield the column {VALUE!r}",
            f"name what is published: to_json(struct(…)) AS {VALUE}",
        )
    columns = [
        _bytes(place, fields[name]) if name in fields.names else F.col(PREFIX + name)
        for name in (KEY, VALUE)
    ]
    headers = F.col(PREFIX + HEADERS)
    if HEADERS in fields.names:
        headers = _headers(place, fields[HEADERS])
    key, value = columns
    return [key.alias(KEY), value.alias(VALUE), headers.alias(HEADERS)]


def _bytes(place: str, field: T.StructField) -> Column:
    if not isinstance(field.dataType, T.StringType | T.BinaryType):
        raise errors.SettingsError(
            f"{place} yields {field.dataType.simpleString()} as {field.name!r}, which is neither"
            " text nor binary",
            f"use to_json(…) AS {field.name}, or CAST(… AS STRING) AS {field.name}",
        )
    return F.col(field.name).cast("binary")


def _headers(place: str, field: T.StructField) -> Column:
    kind = field.dataType
    if not (
        isinstance(kind, T.MapType)
        and isinstance(kind.keyType, T.StringType)
        and isinstance(kind.valueType, T.StringType | T.BinaryType)
    ):
        raise errors.SettingsError(
            f"{place} yields {kind.simpleString()} as {HEADERS!r}, which is not a map of text",
            f"use map('name', value, …) AS {HEADERS}; without the column, a record keeps its own",
        )
    return F.map_entries(F.col(HEADERS)).cast(HEADERS_TYPE)
