"""Keep Spark's Python workers ready for jobs that plan queries."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

KEEP_WARM_INTERVAL_S = 30.0


class KeepWarm:
    """Runs a tiny job at the start and from time to time, so that Python workers exist.

    Workers start while the pipelines do, and Spark ends those that are idle for a minute.
    """

    def __init__(self, context: SparkContext) -> None:
        """Take the context; the first job is due at once."""
        self._cores = context.defaultParallelism
        self._due = time.monotonic()
        self._thread: threading.Thread | None = None

    def tick(self) -> None:
        """Run the job if it is due."""
        if time.monotonic() >= self._due and not (self._thread and self._thread.is_alive()):
            self._due = time.monotonic() + KEEP_WARM_INTERVAL_S
            self._thread = threading.Thread(target=self._ping, daemon=True)
            self._thread.start()

    def _ping(self) -> None:
        with contextlib.suppress(Exception):  # the session may have ended; only speed is lost
            from pyspark.sql import SparkSession

            from instep.pipeline.micro_batch import arrow, task

            numbers = SparkSession.builder.getOrCreate().range(0, self._cores, 1, self._cores)
            arrow.map_batches(numbers, task.ping, "id long").collect()
