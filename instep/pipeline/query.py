"""The Spark query of one pipeline: a topic in, a task per partition or per core, counts out."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.streaming.query import StreamingQuery

from instep.pipeline import arrow, arrow_records, task

OBSERVED = "instep"
TRIGGER = "100 milliseconds"
POLL_RECORDS = 10_000


def start(
    spark: SparkSession,
    plan: task.TaskPlan,
    *,
    kafka: Mapping[str, str],
    offsets: Mapping[int, int],
    rows_max: int,
    checkpoint: Path,
    once: bool,
) -> StreamingQuery:
    """Start the query at the ledger's offsets, with a fresh checkpoint: the ledger is the truth, the checkpoint a cache."""
    records = _records(
        spark,
        plan.target.topic,
        kafka,
        offsets,
        rows_max,
        headers=plan.target.mapping.reads_headers,
    )
    if str(spark.sparkContext.master).startswith("local"):
        # more tasks than cores would only wait for each other; each applies its partitions one after the other
        records = records.coalesce(spark.sparkContext.defaultParallelism)
    counts = arrow.map_batches(records, functools.partial(task.run, plan), task.SPARK_SCHEMA)
    totals = [F.sum(name).alias(name) for name in task.SCHEMA.names]
    # queries share the cores fairly, whatever the backlog of one of them
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", plan.target.pipeline)
    writer = (
        counts.observe(OBSERVED, *totals)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    # losing Spark's own record of progress is safe, as the ledger has it
    quick = writer.option("asyncProgressTrackingEnabled", "true").option(
        "asyncProgressTrackingCheckpointIntervalMs", "1000"
    )
    return quick.trigger(processingTime=TRIGGER).start()


def _records(
    spark: SparkSession,
    topic: str,
    kafka: Mapping[str, str],
    offsets: Mapping[int, int],
    rows_max: int,
    *,
    headers: bool,
) -> DataFrame:
    reader = spark.readStream.format("kafka")
    for name, value in kafka.items():
        reader = reader.option(f"kafka.{name}", value)
    return (
        reader.option("subscribe", topic)
        .option(
            "startingOffsets",
            json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}}),
        )
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", rows_max)
        .option("kafka.isolation.level", "read_committed")
        # Spark polls only inside a task: a broker that waits for more data holds the whole batch up
        .option("kafka.fetch.max.wait.ms", "1")
        # after each poll Spark asks for the log's ends and seeks, and what was fetched ahead is fetched again
        .option("kafka.max.poll.records", POLL_RECORDS)
        .option("includeHeaders", headers)
        .load()
        .select(*_columns(headers=headers))
    )


def read(
    spark: SparkSession,
    topic: str,
    kafka: Mapping[str, str],
    start: Mapping[int, int],
    end: Mapping[int, int],
    *,
    headers: bool = False,
) -> DataFrame:
    """The committed records of a topic between offsets, as a batch; with their headers where they are needed."""
    asked = sorted(partition for partition in end if start[partition] < end[partition])
    if not asked:
        return spark.createDataFrame([], record_schema(headers=headers))
    reader = spark.read.format("kafka")
    for name, value in kafka.items():
        reader = reader.option(f"kafka.{name}", value)
    return (
        # assigned, not subscribed: partitions with nothing to read, or that came to be just now, are not asked for
        reader.option("assign", json.dumps({topic: asked}))
        .option(
            "startingOffsets",
            json.dumps({topic: {str(partition): start[partition] for partition in asked}}),
        )
        .option(
            "endingOffsets",
            json.dumps({topic: {str(partition): end[partition] for partition in asked}}),
        )
        .option("failOnDataLoss", "true")
        .option("minPartitions", spark.sparkContext.defaultParallelism)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", "1")
        .option("includeHeaders", headers)
        .load()
        .select(*_columns(headers=headers))
    )


def record_schema(*, headers: bool) -> str:
    """The columns of records in Spark's words."""
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
