"""`instep run`: run pipelines in one Spark session, until stopped or to the end of the log."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from instep import errors, settings
from instep.document.showing import counted
from instep.kafka import backlog, topics
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster, java_config
from instep.metrics_server import MetricsServer
from instep.pipeline import pending, session
from instep.pipeline.engine import Engine
from instep.pipeline.engines import Engines
from instep.pipeline.metrics import Pipelines
from instep.pipeline.reporter import Reporter
from instep.pipeline.runner import Runner, RunnerState
from instep.pipeline.stop import Stop
from instep.sinks import inspection
from instep.spark_options import SparkFiles
from instep.terminal import Tone

if TYPE_CHECKING:
    from pyspark import SparkContext

TICK_INTERVAL_S = 0.25
KEEP_WARM_INTERVAL_S = 30.0
END_WITHIN_S = 4.0
RUNNER_END_PATIENCE_S = 1.0


def run(
    declared: settings.Settings,
    names: Sequence[str],
    cluster: Cluster,
    files: SparkFiles,
    *,
    once: bool = False,
    metrics_port: int | None = None,
    verbose: bool = False,
    observe: Observe | None = None,
    stop: Stop | None = None,
) -> list[Runner]:
    """Run the named pipelines until the end, and return their runners.

    Once all have ended, raise the first error that ended one of them. `observe` makes what
    reports on them; by default that is a Reporter on stderr. Without `stop`, the run is a command:
    signals end it, and the process with it if Spark does not end in time.
    """
    stop = stop or Stop(exits=True)
    observe = observe or functools.partial(Reporter, verbose=verbose)
    chosen = {name: settings.pipeline(declared, name) for name in names}
    _check(chosen, cluster)
    backlogs = _measure(chosen, cluster, observe([]).say)
    runners: list[Runner] = []
    server = None
    if metrics_port is not None:
        server = MetricsServer(metrics_port, Pipelines(runners))
    opened = session.Session(_spark_settings(declared, chosen), files, verbose=verbose)
    try:
        with stop.signals():
            pool = _EnginePool(opened, cluster, chosen, backlogs)
            stop.started()
            try:
                runners += [
                    Runner(
                        name,
                        pipeline,
                        cluster,
                        pool.of(name),
                        once=once,
                        is_lost=opened.is_lost,
                    )
                    for name, pipeline in chosen.items()
                ]
                for runner in runners:
                    if partitions := backlogs.get(runner.name):
                        ends = {p: partition.end for p, partition in partitions.items()}
                        positions = {p: end - partitions[p].records for p, end in ends.items()}
                        runner.progress.begin(positions, ends)
                _work(pool, runners, stop, server, observe(runners))
            finally:
                with _deadline(stop, END_WITHIN_S):
                    pool.close()
                    opened.stop()
    finally:
        if server:
            server.close()
        opened.folder.remove()
    failed = next((runner.error for runner in runners if runner.error), None)
    if failed is not None:
        raise failed
    return runners


def _spark_settings(
    declared: settings.Settings, chosen: dict[str, settings.Pipeline]
) -> settings.Spark:
    """Return the settings of Spark, with enough slots if the run has pipelines of both engines."""
    if len({pipeline.engine for pipeline in chosen.values()}) == 1:
        return declared.spark
    return msgspec.structs.replace(
        declared.spark, master=session.with_slots_for_both(declared.spark.master)
    )


def _measure(
    chosen: dict[str, settings.Pipeline], cluster: Cluster, say: Callable[[str], None]
) -> dict[str, dict[int, PartitionBacklog]]:
    """Print what waits for each pipeline, before Spark starts, which takes seconds."""
    backlogs: dict[str, dict[int, PartitionBacklog]] = {}
    for name, pipeline in chosen.items():
        try:
            partitions = pending.ahead(cluster, name, pipeline)
        except errors.InstepError:  # the runner gets the same error, and waits or ends
            continue
        backlogs[name] = partitions
        records = sum(partition.records for partition in partitions.values())
        say(f"{name}: {counted(records, 'record')} waiting; starting Spark")
        held_back = {p: one.held_back for p, one in partitions.items() if one.held_back}
        transactions = backlog.open_transactions(cluster, pipeline.topic, held_back)
        for text in backlog.describe_held_back(held_back, transactions):
            say(f"{name}: {text}")
    return backlogs


def _check(chosen: dict[str, settings.Pipeline], cluster: Cluster) -> None:
    """Raise before Spark starts if settings are wrong or no pipeline can reach its servers."""
    java_config(cluster.kafka, cluster.bootstrap)
    unreachable: list[errors.Unreachable] = []
    for name, pipeline in chosen.items():
        try:
            inspection.inspect(name, pipeline)
            topics.describe(cluster, pipeline.topic)
        except errors.Unreachable as error:
            unreachable.append(error)
    if len(unreachable) == len(chosen):
        raise unreachable[0]


class Observer(Protocol):
    """Receives the course of a run: state changes, a tick four times a second, and the end."""

    def say(self, text: str, tone: Tone = Tone.NONE, /) -> None: ...

    def tick(self) -> None: ...

    def stop(self) -> None: ...

    def end(self) -> None: ...


Observe = Callable[[Sequence[Runner]], Observer]


class _EnginePool:
    """The engines of the current Spark session, and what keeps the session ready."""

    def __init__(
        self,
        opened: session.Session,
        cluster: Cluster,
        chosen: dict[str, settings.Pipeline],
        backlogs: dict[str, dict[int, PartitionBacklog]],
    ) -> None:
        self.opened, self._cluster, self._chosen = opened, cluster, chosen
        # More resident tasks than partitions would have nothing to do.
        self._tasks_max: int | None = None
        if len(backlogs) == len(chosen):
            self._tasks_max = sum(map(len, backlogs.values()))
        self._open()

    def _open(self) -> None:
        self._engines = Engines(
            self.opened.context,
            self._cluster,
            self.opened.folder.path,
            self._chosen,
            tasks_max=self._tasks_max,
        )
        self._warm: _KeepWarm | None = None
        if any(pipeline.engine == "micro-batch" for pipeline in self._chosen.values()):
            self._warm = _KeepWarm(self.opened.context)

    def of(self, name: str) -> Engine:
        """Return the engine of a pipeline."""
        return self._engines.of(name)

    def tick(self) -> None:
        """Keep the session ready; raise if its JVM has ended."""
        session.refuse_dead(self.opened.context)
        if self._warm is not None:
            self._warm.tick()

    def renew(self, runners: Sequence[Runner]) -> None:
        """Move every pipeline to a new Spark session and folder; each continues at its ledger."""
        _in_parallel([runner.suspend for runner in runners])
        self._engines.close()
        self.opened.renew()
        self._open()
        for runner in runners:
            runner.resume(self.of(runner.name))

    def close(self) -> None:
        """End the engines."""
        self._engines.close()


def _work(
    pool: _EnginePool,
    runners: Sequence[Runner],
    stop: Stop,
    server: MetricsServer | None,
    reporter: Observer,
) -> None:
    if server:
        reporter.say(f"metrics at {server.address}")
    pool.tick()
    for runner in runners:
        runner.start()
    try:
        while not stop.wait(TICK_INTERVAL_S) and any(
            runner.state is not RunnerState.ENDED for runner in runners
        ):
            if pool.opened.is_lost():
                reporter.say(
                    f"the temporary folder {pool.opened.folder.path} was removed;"
                    " starting a new Spark session",
                    Tone.WARNING,
                )
                pool.renew(runners)
                stop.started()
            pool.tick()
            reporter.tick()
    finally:
        reporter.stop()
        with _deadline(stop, END_WITHIN_S):
            _stop_all(runners)
        reporter.end()


def _stop_all(runners: Sequence[Runner]) -> None:
    _in_parallel([functools.partial(runner.stop, RUNNER_END_PATIENCE_S) for runner in runners])


def _in_parallel(calls: Sequence[Callable[[], None]]) -> None:
    """Run the calls in parallel, because stopping a query may take seconds."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _KeepWarm:
    """Runs a tiny job at the start and from time to time, so that Python workers exist.

    Workers start while the pipelines do, and Spark ends those that are idle for a minute.
    """

    def __init__(self, context: SparkContext) -> None:
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
