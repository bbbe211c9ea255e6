"""The archives of a run: their checks, their resident tasks and their runners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client.registry import Collector

from instep import errors, settings
from instep.archive import metrics, status
from instep.archive.files import locate
from instep.archive.runner import ArchiveRunner
from instep.archive.share import ArchivePlan, ArchiveShares
from instep.document.showing import counted
from instep.kafka import topics
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster
from instep.pipeline.job import RunContext
from instep.pipeline.resident.engine import ResidentEngine


class ArchiveGroup:
    """The archives of a run, which share resident tasks."""

    kind = "archive"
    is_resident = True
    has_queries = False

    def __init__(self, declared: settings.Settings, names: Sequence[str]) -> None:
        self.names = list(names)
        self._chosen = {name: settings.archive(declared, name) for name in names}
        self._backlogs: dict[str, dict[int, PartitionBacklog]] = {}
        self._runners: list[ArchiveRunner] = []
        self._engine: ResidentEngine | None = None

    def check(self, cluster: Cluster) -> list[errors.Unreachable]:
        """Look for the topics; return the servers that cannot be reached."""
        unreachable: list[errors.Unreachable] = []
        for archive in self._chosen.values():
            try:
                topics.describe(cluster, archive.topic)
            except errors.Unreachable as error:
                unreachable.append(error)
        return unreachable

    def measure(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        """Print what waits for each archive."""
        for name, archive in self._chosen.items():
            try:
                backlogs = status.ahead(cluster, name, archive)
            except errors.InstepError:  # the runner gets the same error, and waits or ends
                continue
            self._backlogs[name] = backlogs
            records = sum(one.records for one in backlogs.values())
            say(f"{name}: {counted(records, 'record')} waiting; starting Spark")

    def open(self, context: RunContext) -> Sequence[ArchiveRunner]:
        """Start the resident tasks and create a runner for each archive."""
        self._context = context
        engine = self._open_engine()
        for name, archive in self._chosen.items():
            runner = ArchiveRunner(
                name,
                archive,
                context.cluster,
                engine,
                once=context.once,
                is_lost=context.opened.is_lost,
            )
            if backlogs := self._backlogs.get(name):
                ends = {p: one.end for p, one in backlogs.items()}
                runner.progress.begin({p: one.position for p, one in backlogs.items()}, ends)
            self._runners.append(runner)
        return self._runners

    def tick(self) -> None:
        """Do nothing: the runners have threads of their own."""

    def release(self) -> None:
        """End the tasks."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def resume(self) -> None:
        """Continue every archive at its position."""
        engine = self._open_engine()
        for runner in self._runners:
            runner.resume(engine)

    def collector(self) -> Collector:
        """Return the metrics of the archives."""
        return metrics.Archives(self._runners)

    def _open_engine(self) -> ResidentEngine:
        cluster, spark = self._context.cluster, self._context.opened.context
        slots = max(1, spark.defaultParallelism // self._context.slot_users)
        if len(self._backlogs) == len(self._chosen):
            slots = min(slots, max(1, sum(map(len, self._backlogs.values()))))
        plans = {
            name: ArchivePlan(one.topic, locate(one.path), one.commit_every_s)
            for name, one in self._chosen.items()
        }
        shares = ArchiveShares(cluster.kafka, cluster.bootstrap, plans)
        self._engine = ResidentEngine(spark, self.kind, shares, tasks=slots)
        return self._engine
