"""The progress of Spark jobs, in tasks, for a progress line."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

POLL_INTERVAL_S = 0.5

Progress = Callable[[str, int, int, str], None]  # what, done, total, unit


@contextlib.contextmanager
def followed(spark: SparkSession, what: str, progress: Progress) -> Iterator[None]:
    """Report the tasks of the jobs that this thread starts inside the block.

    Spark adds jobs as it goes, so the total grows.
    """
    context: SparkContext = spark.sparkContext
    context.setJobGroup(what, what)
    done = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(context.statusTracker(), what, progress, done), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        with contextlib.suppress(Py4JError, OSError):  # the session may have ended
            context._jsc.clearJobGroup()


def _follow(tracker: StatusTracker, what: str, progress: Progress, done: threading.Event) -> None:
    with contextlib.suppress(Py4JError, OSError):  # the session has ended
        while not done.wait(POLL_INTERVAL_S):
            completed, total = tasks(tracker, what)
            if total:
                progress(what, completed, total, "tasks")


def tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Return how many tasks of a job group are completed, and how many exist so far."""
    completed = total = 0
    for job in tracker.getJobIdsForGroup(group):
        job_info = tracker.getJobInfo(job)
        for stage in job_info.stageIds if job_info else ():
            stage_info = tracker.getStageInfo(stage)
            if stage_info is not None:
                completed += stage_info.numCompletedTasks
                total += stage_info.numTasks
    return completed, total
