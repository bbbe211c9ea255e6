"""The contestants of `instep bench stream`: streams, both stages together, and Spark's Kafka sink.

All run in one Spark session. An order names the pipeline, beside which the settings declare one
stream, and the contestant.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from instep import settings
from instep.kafka.connection import Cluster
from instep.pipeline.engines import Engines
from instep.pipeline.runner import Runner
from instep.streams.resident import ResidentStreams
from instep.streams.runner import StreamEngine, StreamRunner
from instep.streams.transforming import TransformingStreams
from instep.waiting import wait_until
from instep_bench import contestant_program
from instep_bench import stream as bench
from instep_bench.baselines import spark_jdbc

POLL_INTERVAL_S = 0.01


class StreamRuns:
    """One Spark session; each order publishes a topic from its start to its end."""

    def __init__(self) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable

    def apply(self, order: contestant_program.Order) -> contestant_program.OrderResult:
        declared = settings.load(Path(order.config))
        [name] = declared.streams
        spark = spark_jdbc.session(declared.spark)
        [contestant] = order.options
        if contestant == bench.SPARK:
            self._spark_sink(spark, declared, name)
        elif bench.KINDS[contestant].has_pipeline:
            self._two_stages(spark, declared, name, order.pipeline)
        else:
            slots = spark.sparkContext.defaultParallelism
            with contextlib.ExitStack() as closing:
                self._stream(spark, declared, name, slots, closing).join()
        return contestant_program.OrderResult()

    def _stream(
        self,
        spark: Any,
        declared: settings.Settings,
        name: str,
        tasks: int,
        closing: contextlib.ExitStack,
    ) -> _CheckedRunner:
        """Start a stream up to the end of its topic."""
        cluster = closing.enter_context(Cluster(declared.kafka, declared.kafka.bootstrap or ""))
        stream = settings.stream(declared, name)
        engine: StreamEngine
        if stream.is_transformed:
            folder = closing.enter_context(tempfile.TemporaryDirectory())
            engine = TransformingStreams(spark, cluster, Path(folder))
        else:
            engine = closing.enter_context(
                contextlib.closing(ResidentStreams(spark.sparkContext, cluster, tasks=tasks))
            )
        runner = _CheckedRunner(name, stream, cluster, engine, once=True)
        runner.start()
        return runner

    def _two_stages(
        self, spark: Any, declared: settings.Settings, name: str, pipeline_name: str
    ) -> None:
        pipeline = settings.pipeline(declared, pipeline_name)
        context = spark.sparkContext
        with contextlib.ExitStack() as closing:
            first = self._stream(
                spark, declared, name, max(1, context.defaultParallelism // 2), closing
            )
            cluster = closing.enter_context(Cluster(declared.kafka, declared.kafka.bootstrap or ""))
            folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
            engines = closing.enter_context(
                Engines(context, cluster, folder, {pipeline_name: pipeline}, slot_users=2)
            )
            second = Runner(pipeline_name, pipeline, cluster, engines.of(pipeline_name), once=False)
            second.start()
            closing.callback(second.stop, 30.0)
            first.join()
            published = first.progress.totals["applied"]

            def has_all() -> bool:
                if second.error is not None:
                    raise second.error
                return second.progress.totals["records"] >= published

            if not wait_until(has_all, contestant_program.PATIENCE_S, interval_s=POLL_INTERVAL_S):
                raise TimeoutError(f"the second stage stays at {second.progress.totals}")

    def _spark_sink(self, spark: Any, declared: settings.Settings, name: str) -> None:
        stream, bootstrap = settings.stream(declared, name), declared.kafka.bootstrap or ""
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", stream.source)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .load()
            .select("key", "value", "headers")
        )
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                records.writeStream.format("kafka")
                .option("kafka.bootstrap.servers", bootstrap)
                .option("kafka.compression.type", "lz4")
                .option("includeHeaders", "true")
                .option("topic", stream.target)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()


class _CheckedRunner(StreamRunner):
    """A stream whose end raises what ended it."""

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self.error is not None:
            raise self.error


if __name__ == "__main__":
    contestant_program.serve(StreamRuns().apply)
