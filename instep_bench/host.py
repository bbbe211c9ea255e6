"""The pipeline in a warm process: repeated runs, as with `run --once`, in one Spark session."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from pathlib import Path

from instep import settings
from instep.kafka.connection import Cluster
from instep.local import artifacts
from instep.pipeline import session
from instep.pipeline.runner import Runner
from instep_bench import contestant_program

POLL_INTERVAL_S = 0.02


class Host:
    """One Spark session, opened with the settings of the first order."""

    def __init__(self) -> None:
        self._folder = session.RunFolder()
        self._runs = 0

    def apply(self, order: contestant_program.Order) -> contestant_program.OrderResult:
        declared = settings.load(Path(order.config))
        spark = session.open_session(declared.spark, artifacts.jars("spark-kafka"), self._folder)
        pipeline = settings.pipeline(declared, order.pipeline)
        self._runs += 1
        folder = self._folder.path / str(self._runs)
        query = None
        with contextlib.closing(Cluster(declared.kafka, declared.kafka.bootstrap or "")) as cluster:
            runner = Runner(order.pipeline, pipeline, cluster, spark, folder, once=True)
            runner.start()
            while runner.is_alive():
                query = runner._query or query
                runner.join(POLL_INTERVAL_S)
        if runner.error is not None:
            raise runner.error
        reports = query._jsq.recentProgress() if query is not None else []
        first = datetime.fromisoformat(reports[0].timestamp()).timestamp() if len(reports) else 0.0
        return contestant_program.OrderResult(first_fetch=first, last_commit=time.time())


if __name__ == "__main__":
    contestant_program.serve(Host().apply)
