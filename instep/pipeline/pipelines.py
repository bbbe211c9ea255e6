"""The pipelines of a run: their checks, engines and runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prometheus_client.registry import Collector

from instep import errors, settings
from instep.document.showing import counted
from instep.kafka import backlog, topics
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster
from instep.pipeline import metrics, pending
from instep.pipeline.engine import Engine
from instep.pipeline.engines import Engines
from instep.pipeline.job import RunContext
from instep.pipeline.keep_warm import KeepWarm
from instep.pipeline.runner import Runner
from instep.sinks import inspection


class PipelineGroup:
    """The pipelines of a run. Those of the resident engine share its tasks."""

    kind = "pipeline"

    def __init__(self, chosen: Mapping[str, settings.Pipeline]) -> None:
        self.names = list(chosen)
        self._chosen = dict(chosen)
        self._backlogs: dict[str, dict[int, PartitionBacklog]] = {}
        self._runners: list[Runner] = []
        self._engines: Engines | None = None
        self._warm: KeepWarm | None = None

    @property
    def is_resident(self) -> bool:
        """Return whether any pipeline uses the resident engine."""
        return any(pipeline.chosen_engine == "resident" for pipeline in self._chosen.values())

    @property
    def has_queries(self) -> bool:
        """Return whether any pipeline uses the micro-batch engine."""
        return any(pipeline.chosen_engine == "micro-batch" for pipeline in self._chosen.values())

    def check(self, cluster: Cluster) -> list[errors.Unreachable]:
        """Inspect topics and tables; return the servers that cannot be reached."""
        unreachable: list[errors.Unreachable] = []
        for name, pipeline in self._chosen.items():
            try:
                inspection.inspect(name, pipeline)
                topics.describe(cluster, pipeline.topic)
            except errors.Unreachable as error:
                unreachable.append(error)
        return unreachable

    def measure(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        """Print what waits for each pipeline."""
        for name, pipeline in self._chosen.items():
            if lacks_order(pipeline):
                say(
                    f'WARNING: {name}: event.document is not "@key", and event.order is missing:'
                    " results of one document may come from several partitions, and the last to be"
                    " committed wins; set one of the two"
                )
            try:
                partitions = pending.ahead(cluster, name, pipeline)
            except errors.InstepError:  # the runner gets the same error, and waits or ends
                continue
            self._backlogs[name] = partitions
            records = sum(partition.records for partition in partitions.values())
            say(f"{name}: {counted(records, 'record')} waiting; starting Spark")
            held_back = {p: one.held_back for p, one in partitions.items() if one.held_back}
            transactions = backlog.open_transactions(cluster, pipeline.topic, held_back)
            for text in backlog.describe_held_back(held_back, transactions):
                say(f"{name}: {text}")

    def open(self, context: RunContext) -> Sequence[Runner]:
        """Start the engines and create a runner for each pipeline."""
        self._context = context
        self._open_engines()
        for name in self._chosen:
            runner = self._runner(name)
            if partitions := self._backlogs.get(name):
                ends = {p: partition.end for p, partition in partitions.items()}
                positions = {p: end - partitions[p].records for p, end in ends.items()}
                runner.progress.begin(positions, ends)
            self._runners.append(runner)
        return self._runners

    def tick(self) -> None:
        """Keep Python workers ready for queries."""
        if self._warm is not None:
            self._warm.tick()

    def release(self) -> None:
        """End the engines."""
        if self._engines is not None:
            self._engines.close()

    def resume(self) -> None:
        """Continue every pipeline at its ledger."""
        self._open_engines()
        for runner in self._runners:
            runner.resume(self._engine(runner.name))

    def collector(self) -> Collector:
        """Return the metrics of the pipelines."""
        return metrics.Pipelines(self._runners)

    def _engine(self, name: str) -> Engine:
        assert self._engines is not None
        return self._engines.of(name)

    def _runner(self, name: str) -> Runner:
        return Runner(
            name,
            self._chosen[name],
            self._context.cluster,
            self._engine(name),
            once=self._context.once,
            is_lost=self._context.opened.is_lost,
        )

    def _open_engines(self) -> None:
        # More resident tasks than partitions would have nothing to do.
        tasks_max = None
        if len(self._backlogs) == len(self._chosen):
            tasks_max = sum(map(len, self._backlogs.values()))
        opened = self._context.opened
        self._engines = Engines(
            opened.context,
            self._context.cluster,
            opened.folder.path,
            self._chosen,
            tasks_max=tasks_max,
            slot_users=self._context.slot_users,
        )
        self._warm = KeepWarm(opened.context) if self.has_queries else None


def lacks_order(pipeline: settings.Pipeline) -> bool:
    """Return whether nothing may order what a transformation makes of several partitions."""
    event = pipeline.event
    return pipeline.transform is not None and event.order is None and event.documents != ("@key",)
