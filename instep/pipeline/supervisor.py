"""`instep run`: run jobs in one Spark session, until stopped or to the end of the log.

The caller provides the jobs as groups of one kind each (see `job.py`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from instep import settings
from instep.kafka.connection import Cluster, java_config
from instep.metrics_server import MetricsServer
from instep.pipeline import session
from instep.pipeline.job import Job, JobGroup, RunContext, RunnerState
from instep.pipeline.reporter import Reporter
from instep.pipeline.stop import Stop
from instep.spark_options import SparkFiles
from instep.terminal import Tone

TICK_INTERVAL_S = 0.25
END_WITHIN_S = 4.0
RUNNER_END_PATIENCE_S = 1.0


def run(
    spark: settings.Spark,
    groups: Sequence[JobGroup],
    cluster: Cluster,
    files: SparkFiles,
    *,
    once: bool = False,
    metrics_port: int | None = None,
    verbose: bool = False,
    observe: Observe | None = None,
    stop: Stop | None = None,
) -> list[Job]:
    """Run the jobs of these groups until the end, and return them.

    Once all have ended, raise the first error that ended one of them. `observe` makes what
    reports on them; by default that is a Reporter on stderr. Without `stop`, the run is a command:
    signals end it, and the process with it if Spark does not end in time.
    """
    stop = stop or Stop(exits=True)
    observe = observe or functools.partial(Reporter, verbose=verbose)
    _check(groups, cluster)
    for group in groups:
        group.measure(cluster, observe([]).say)
    jobs: list[Job] = []
    server = None
    if metrics_port is not None:
        server = MetricsServer(metrics_port, _Metrics(groups))
    users = slot_users(groups)
    spark = msgspec.structs.replace(spark, master=session.with_slots_for(spark.master, users))
    opened = session.Session(spark, files, verbose=verbose)
    try:
        with stop.signals():
            shared = _SharedSession(opened, groups)
            stop.started()
            try:
                context = RunContext(opened, cluster, once, users)
                for group in groups:
                    jobs += group.open(context)
                _work(shared, jobs, stop, server, observe(jobs))
            finally:
                with _deadline(stop, END_WITHIN_S):
                    shared.close()
                    opened.stop()
    finally:
        if server:
            server.close()
        opened.folder.remove()
    failed = next((job.error for job in jobs if job.error), None)
    if failed is not None:
        raise failed
    return jobs


def slot_users(groups: Sequence[JobGroup]) -> int:
    """Return among how many users Spark's slots are divided."""
    residents = sum(group.is_resident for group in groups)
    return residents + any(group.has_queries for group in groups)


def _check(groups: Sequence[JobGroup], cluster: Cluster) -> None:
    """Raise before Spark starts if settings are wrong or no job can reach its servers."""
    java_config(cluster.kafka, cluster.bootstrap)
    unreachable = [error for group in groups for error in group.check(cluster)]
    if len(unreachable) == sum(len(group.names) for group in groups):
        raise unreachable[0]


class Observer(Protocol):
    """Receives the course of a run: state changes, a tick four times a second, and the end."""

    def say(self, text: str, tone: Tone = Tone.NONE, /) -> None: ...

    def tick(self) -> None: ...

    def stop(self) -> None: ...

    def end(self) -> None: ...


Observe = Callable[[Sequence[Job]], Observer]


class _Metrics(Collector):
    """The metrics of all groups."""

    def __init__(self, groups: Sequence[JobGroup]) -> None:
        self._collectors = [group.collector() for group in groups]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for collector in self._collectors:
            yield from collector.collect()


class _SharedSession:
    """The current Spark session and the groups that use it."""

    def __init__(self, opened: session.Session, groups: Sequence[JobGroup]) -> None:
        self.opened, self._groups = opened, groups
        _ = opened.context  # start Spark

    def tick(self) -> None:
        """Keep the session ready; raise if its JVM has ended."""
        session.refuse_dead(self.opened.context)
        for group in self._groups:
            group.tick()

    def renew(self, jobs: Sequence[Job]) -> None:
        """Move every job to a new Spark session and folder; each continues at its position."""
        _in_parallel([job.suspend for job in jobs])
        self.close()
        self.opened.renew()
        for group in self._groups:
            group.resume()

    def close(self) -> None:
        """End what the groups have in the session."""
        for group in self._groups:
            group.release()


def _work(
    shared: _SharedSession,
    jobs: Sequence[Job],
    stop: Stop,
    server: MetricsServer | None,
    reporter: Observer,
) -> None:
    if server:
        reporter.say(f"metrics at {server.address}")
    shared.tick()
    for job in jobs:
        job.start()
    try:
        while not stop.wait(TICK_INTERVAL_S) and any(
            job.state is not RunnerState.ENDED for job in jobs
        ):
            if shared.opened.is_lost():
                reporter.say(
                    f"the temporary folder {shared.opened.folder.path} was removed;"
                    " starting a new Spark session",
                    Tone.WARNING,
                )
                shared.renew(jobs)
                stop.started()
            shared.tick()
            reporter.tick()
    finally:
        reporter.stop()
        with _deadline(stop, END_WITHIN_S):
            _in_parallel([functools.partial(job.stop, RUNNER_END_PATIENCE_S) for job in jobs])
        reporter.end()


def _in_parallel(calls: Sequence[Callable[[], None]]) -> None:
    """Run the calls in parallel, because stopping a query may take seconds."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def _deadline(stop: Stop, seconds: float) -> Iterator[None]:
    """End the process if Spark does not end in time. The database rolls back open transactions."""
    if not stop.exits or not stop.is_requested():
        yield
        return
    left_s = max(0.5, stop.requested_at + seconds - time.monotonic())
    timer = threading.Timer(left_s, os._exit, args=(0,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
