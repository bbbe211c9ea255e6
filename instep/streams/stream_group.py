"""The streams of a run: their checks, engines and runners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client.registry import Collector

from instep import errors, settings
from instep.document.showing import counted
from instep.kafka import backlog
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster
from instep.pipeline.engines import resident_tasks
from instep.pipeline.job import RunContext
from instep.streams import starts
from instep.streams.metrics import Streams
from instep.streams.resident import ResidentStreams
from instep.streams.runner import StreamRunner


class StreamGroup:
    """The streams of a run. Those without a transformation share resident tasks."""

    kind = "stream"

    def __init__(self, declared: settings.Settings, names: Sequence[str]) -> None:
        self.names = list(names)
        self._chosen = {name: settings.stream(declared, name) for name in names}
        self._backlogs: dict[str, dict[int, PartitionBacklog]] = {}
        self._runners: list[StreamRunner] = []
        self._resident: ResidentStreams | None = None

    @property
    def is_resident(self) -> bool:
        """Return whether any stream copies records in resident tasks."""
        return not all(stream.is_transformed for stream in self._chosen.values())

    @property
    def has_queries(self) -> bool:
        """Return whether any stream has a transformation."""
        return any(stream.is_transformed for stream in self._chosen.values())

    def check(self, cluster: Cluster) -> list[errors.Unreachable]:
        """Inspect topics and positions; return an error for each stream if brokers are away."""
        for name, stream in self._chosen.items():
            if stream.is_transformed:
                raise errors.SettingsError(
                    f"stream {name!r} has a transformation, which this release checks but does"
                    " not run",
                    "remove sql and python to copy records, or name other jobs: instep run NAME",
                )
        unreachable: list[errors.Unreachable] = []
        for name, stream in self._chosen.items():
            try:
                starts.inspect(cluster, name, stream)
            except errors.Unreachable as error:
                unreachable.append(error)
            except (errors.TopicGone, errors.LogDiverged):
                continue  # a broker that has just started: the runner looks again
        return unreachable

    def measure(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        """Print what waits for each stream."""
        for name, stream in self._chosen.items():
            try:
                start = starts.inspect(cluster, name, stream)
                partitions = backlog.read(cluster, stream.source, start.next_offsets)
            except errors.InstepError:  # the runner gets the same error, and waits or ends
                continue
            self._backlogs[name] = partitions
            records = sum(partition.records for partition in partitions.values())
            say(f"{name}: {counted(records, 'record')} waiting; starting Spark")

    def open(self, context: RunContext) -> Sequence[StreamRunner]:
        """Start the engines and create a runner for each stream."""
        self._context = context
        engine = self._open_engine()
        for name, stream in self._chosen.items():
            runner = StreamRunner(
                name,
                stream,
                context.cluster,
                engine,
                once=context.once,
                is_lost=context.opened.is_lost,
            )
            if partitions := self._backlogs.get(name):
                ends = {part: one.end for part, one in partitions.items()}
                positions = {part: end - partitions[part].records for part, end in ends.items()}
                runner.progress.begin(positions, ends)
            self._runners.append(runner)
        return self._runners

    def tick(self) -> None:
        """Do nothing: nothing has to be kept ready."""

    def release(self) -> None:
        """End the engines."""
        engine, self._resident = self._resident, None
        if engine is not None:
            engine.close()

    def resume(self) -> None:
        """Continue every stream at its positions."""
        engine = self._open_engine()
        for runner in self._runners:
            runner.resume(engine)

    def collector(self) -> Collector:
        """Return the metrics of the streams."""
        return Streams(self._runners)

    def _open_engine(self) -> ResidentStreams:
        # More resident tasks than partitions would have nothing to do.
        tasks_max = None
        if len(self._backlogs) == len(self._chosen):
            tasks_max = sum(map(len, self._backlogs.values()))
        context = self._context.opened.context
        tasks = resident_tasks(context, self._context.slot_users, tasks_max)
        self._resident = ResidentStreams(context, self._context.cluster, tasks=tasks)
        return self._resident
