"""The Spark query of one pipeline: read a topic, apply its records in tasks, return counts."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses
from pyspark.sql.streaming.query import StreamingQuery

from instep.pipeline import counts
from instep.pipeline.applier import TaskPlan
from instep.pipeline.micro_batch import arrow, arrow_records, task

OBSERVED = "instep"
TRIGGER = "100 milliseconds"  # planning a batch takes about as long
POLL_RECORDS = 10_000


def start(
    spark: SparkSession,
    plan: TaskPlan,
    *,
    kafka: Mapping[str, str],
    offsets: Mapping[int, int],
    rows_max: int,
    checkpoint: Path,
    once: bool,
) -> StreamingQuery:
    """Start the query at the ledger's offsets, with a new checkpoint.

    Only the ledger says what was applied. A checkpoint of an earlier query is never used.
    """
    records = stream_records(
        spark,
        plan.target.topic,
        kafka,
        offsets,
        rows_max,
        headers=plan.target.mapping.reads_headers,
    )
    counted = arrow.map_batches(records, functools.partial(task.run, plan), task.SPARK_SCHEMA)
    totals = [F.sum(name).alias(name) for name in counts.NAMES]
    # Queries share the cores fairly, whatever the backlog of one of them.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", plan.target.pipeline)
    writer = (
        counted.observe(OBSERVED, *totals)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    # Spark's own record of progress may be lost without harm, so it is written asynchronously.
    writer = writer.option("asyncProgressTrackingEnabled", "true").option(
        "asyncProgressTrackingCheckpointIntervalMs", "1000"
    )
    return writer.trigger(processingTime=TRIGGER).start()


def stream_records(
    spark: SparkSession,
    topic: str,
    kafka: Mapping[str, str],
    offsets: Mapping[int, int],
    rows_max: int,
    *,
    headers: bool,
) -> DataFrame:
    """Return the committed records of a topic from these offsets on, as they are published."""
    reader = spark.readStream.format("kafka")
    for name, value in kafka.items():
        reader = reader.option(f"kafka.{name}", value)
    records = (
        reader.option("subscribe", topic)
        .option("startingOffsets", _offsets_json(topic, offsets))
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", rows_max)
        .option("kafka.isolation.level", "read_committed")
        # Spark polls only inside a task: a broker that waits for more data delays the whole batch.
        .option("kafka.fetch.max.wait.ms", "1")
        # After each poll Spark requests the log's ends and seeks, and fetches again what was
        # prefetched. A few large polls cost less.
        .option("kafka.max.poll.records", POLL_RECORDS)
        .option("includeHeaders", headers)
        .load()
        .select(*_columns(headers=headers))
    )
    if str(spark.sparkContext.master).startswith("local"):
        # More tasks than cores would only wait. A task applies its partitions one after the other.
        records = records.coalesce(spark.sparkContext.defaultParallelism)
    return records


def read(
    spark: SparkSession,
    topic: str,
    kafka: Mapping[str, str],
    start: Mapping[int, int],
    end: Mapping[int, int],
    *,
    headers: bool = False,
    whole_partitions: bool = False,
) -> DataFrame:
    """Return the committed records of a topic between two offsets of each partition.

    With `whole_partitions`, a task reads all records of a partition; otherwise several may.
    """
    partitions = sorted(partition for partition in end if start[partition] < end[partition])
    if not partitions:
        return spark.createDataFrame([], record_schema(headers=headers))
    reader = spark.read.format("kafka")
    for name, value in kafka.items():
        reader = reader.option(f"kafka.{name}", value)
    return (
        # Assign instead of subscribe, to leave out partitions that are empty or new.
        reader.option("assign", json.dumps({topic: partitions}))
        .option("startingOffsets", _offsets_json(topic, {p: start[p] for p in partitions}))
        .option("endingOffsets", _offsets_json(topic, {p: end[p] for p in partitions}))
        .option("failOnDataLoss", "true")
        .option("minPartitions", 1 if whole_partitions else spark.sparkContext.defaultParallelism)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", "1")
        .option("includeHeaders", headers)
        .load()
        .select(*_columns(headers=headers))
    )


def _offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


def record_schema(*, headers: bool) -> str:
    """Return the columns of records as a Spark schema."""
    schema = "partition int, offset long, timestamp_ms long, key binary, value binary"
    return f"{schema}, {arrow_records.HEADERS} {arrow_records.HEADERS_SPARK}" if headers else schema


def _columns(*, headers: bool) -> list[Column | str]:
    columns: list[Column | str] = [
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
    ]
    return [*columns, arrow_records.HEADERS] if headers else columns
