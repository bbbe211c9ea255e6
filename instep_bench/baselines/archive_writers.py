"""The contestants of `instep bench archive`: an archive, and Spark's own file sink.

Both run in one Spark session. An order names the archive, whose settings say the topic and the
folder, and the contestant.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from instep import settings
from instep.archive.files import locate
from instep.archive.runner import ArchiveRunner
from instep.archive.share import ArchivePlan, ArchiveShares
from instep.kafka.connection import Cluster
from instep.pipeline.resident.engine import ResidentEngine
from instep_bench import archive as bench
from instep_bench import contestant_program
from instep_bench.baselines import spark_jdbc


class ArchiveWriters:
    """One Spark session; each order archives a topic from its start to its end."""

    def __init__(self) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable

    def apply(self, order: contestant_program.Order) -> contestant_program.OrderResult:
        declared = settings.load(Path(order.config))
        chosen = settings.archive(declared, order.pipeline)
        spark = spark_jdbc.session(declared.spark)
        if order.options == [bench.FILE_SINK]:
            self._file_sink(spark, declared, chosen)
        else:
            self._archive(spark, declared, order.pipeline, chosen)
        return contestant_program.OrderResult()

    def _archive(
        self, spark: Any, declared: settings.Settings, name: str, chosen: settings.Archive
    ) -> None:
        context, bootstrap = spark.sparkContext, declared.kafka.bootstrap or ""
        plan = ArchivePlan(chosen.topic, locate(chosen.path), chosen.commit_every_s)
        shares = ArchiveShares(declared.kafka, bootstrap, {name: plan})
        engine = ResidentEngine(context, "archive", shares, tasks=context.defaultParallelism)
        with contextlib.closing(engine), Cluster(declared.kafka, bootstrap) as cluster:
            runner = ArchiveRunner(name, chosen, cluster, engine, once=True)
            runner.start()
            runner.join()
        if runner.error is not None:
            raise runner.error

    def _file_sink(self, spark: Any, declared: settings.Settings, chosen: settings.Archive) -> None:
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", declared.kafka.bootstrap or "")
            .option("subscribe", chosen.topic)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .load()
            .withColumn("day", F.to_date("timestamp"))
        )
        query = (
            records.writeStream.format("parquet")
            .partitionBy("day")
            .option("path", chosen.path)
            .option("compression", "zstd")
            .option("checkpointLocation", f"{chosen.path}-checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    contestant_program.serve(ArchiveWriters().apply)
