"""The contestants of `instep bench sink`: both doors of the sink, JDBC, and Spark's noop sink.

All run in one Spark session. An order names the contestant and the folder that its query reads.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

import instep
from instep import settings
from instep_bench import contestant_program
from instep_bench import sink as bench
from instep_bench.baselines import spark_jdbc


class SinkDoors:
    """One Spark session; each order runs a query over all files of a folder."""

    def __init__(self) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        self._folder = Path(sys.argv[1]).parent
        self._runs = 0

    def apply(self, order: contestant_program.Order) -> contestant_program.OrderResult:
        declared = settings.load(Path(order.config))
        pipeline = settings.pipeline(declared, order.pipeline)
        spark = spark_jdbc.session(declared.spark)
        name, folder = order.options
        self._runs += 1
        rows = (
            spark.readStream.schema(spark_jdbc.EVENT)
            .option("maxFilesPerTrigger", 1)
            .parquet(folder)
        )
        if name == bench.JDBC:
            table = spark_jdbc.StagedTable(spark, pipeline)
            with table.prepared():
                return self._run(rows.writeStream.foreachBatch(table.upsert_batch))
        return self._run(self._writer(rows, name, pipeline))

    def _writer(self, rows: DataFrame, name: str, pipeline: settings.Pipeline) -> DataStreamWriter:
        sink = f"{pipeline.table}-{self._runs}"  # a sink of its own for every query
        if name == bench.FOR_EACH:
            table = instep.table(pipeline.table, key="doc_id", order="version")
            return rows.writeStream.foreachBatch(instep.sink(pipeline.target, table, name=sink))
        if name == bench.FORMAT:
            return rows.writeStream.format("instep").options(
                url=pipeline.target, table=pipeline.table, key="doc_id", order="version", name=sink
            )
        return rows.writeStream.format("noop")

    def _run(self, writer: DataStreamWriter) -> contestant_program.OrderResult:
        checkpoint = str(self._folder / f"checkpoint-{self._runs}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        reports: list[Any] = [one for one in query.recentProgress if one["numInputRows"]]
        durations = [float(one["durationMs"]["triggerExecution"]) for one in reports]
        return contestant_program.OrderResult(batches_ms=durations)


if __name__ == "__main__":
    contestant_program.serve(SinkDoors().apply)
