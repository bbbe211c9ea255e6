"""The pipeline in a warm process: repeated runs, as with `run --once`, in one Spark session."""

from __future__ import annotations

import contextlib
from pathlib import Path

from instep import settings
from instep.kafka.connection import Cluster
from instep.local import class_archives
from instep.pipeline import session
from instep.pipeline.engines import Engines
from instep.pipeline.runner import Runner
from instep_bench import contestant_program


class Host:
    """One Spark session, opened with the settings of the first order."""

    def __init__(self) -> None:
        self._folder = session.RunFolder()

    def apply(self, order: contestant_program.Order) -> contestant_program.OrderResult:
        declared = settings.load(Path(order.config))
        pipeline = settings.pipeline(declared, order.pipeline)
        files = class_archives.spark_files(queries=settings.any_query(declared, [order.pipeline]))
        context = session.open_context(declared.spark, files, self._folder)
        chosen = {order.pipeline: pipeline}
        with (
            contextlib.closing(Cluster(declared.kafka, declared.kafka.bootstrap or "")) as cluster,
            Engines(context, cluster, self._folder.path, chosen) as engines,
        ):
            engine = engines.of(order.pipeline)
            runner = Runner(order.pipeline, pipeline, cluster, engine, once=True)
            runner.start()
            runner.join()
        if runner.error is not None:
            raise runner.error
        return contestant_program.OrderResult()


if __name__ == "__main__":
    contestant_program.serve(Host().apply)
