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
from instep.pipeline.keep_warm import KeepWarm
from instep.streams import starts
from instep.streams.metrics import Streams
from instep.streams.resident import ResidentStreams
from instep.streams.runner import StreamEngine, StreamRunner


class StreamGroup:
    """The streams of a run. Those without a transformation share resident tasks."""

    kind = "stream"

    def __init__(self, declared: settings.Settings, names: Sequence[str]) -> None:
        self.names = list(names)
        self._chosen = {name: settings.stream(declared, name) for name in names}
        self._backlogs: dict[str, dict[int, PartitionBacklog]] = {}
        self._runners: list[StreamRunner] = []
        self._resident: ResidentStreams | None = None
        self._transforming: StreamEngine | None = None
        self._warm: KeepWarm | None = None

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
        self._open_engines()
        for name, stream in self._chosen.items():
            runner = StreamRunner(
                name,
                stream,
                context.cluster,
                self._engine(stream),
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
        """Keep Python workers ready for queries."""
        if self._warm is not None:
            self._warm.tick()

    def release(self) -> None:
        """End the engines."""
        engine, self._resident = self._resident, None
        self._transforming = self._warm = None
        if engine is not None:
            engine.close()

    def resume(self) -> None:
        """Continue every stream at its positions."""
        self._open_engines()
        for runner in self._runners:
            runner.resume(self._engine(self._chosen[runner.name]))

    def collector(self) -> Collector:
        """Return the metrics of the streams."""
        return Streams(self._runners)

    def _engine(self, stream: settings.Stream) -> StreamEngine:
        engine = self._transforming if stream.is_transformed else self._resident
        assert engine is not None
        return engine

    def _open_engines(self) -> None:
        opened, cluster = self._context.opened, self._context.cluster
        if self.is_resident:
            self._resident = ResidentStreams(opened.context, cluster, tasks=self._tasks())
        if self.has_queries:
            # Imported here: resident tasks need neither SQL nor Arrow.
            from pyspark.sql import SparkSession

            from instep.streams.transforming import TransformingStreams

            spark = SparkSession.builder.getOrCreate()  # on the active context
            self._transforming = TransformingStreams(spark, cluster, opened.folder.path)
            self._warm = KeepWarm(opened.context)

    def _tasks(self) -> int:
        """Return the number of resident tasks: more than partitions would have nothing to do."""
        copied = [name for name, stream in self._chosen.items() if not stream.is_transformed]
        tasks_max = None
        if all(name in self._backlogs for name in copied):
            tasks_max = sum(len(self._backlogs[name]) for name in copied)
        return resident_tasks(self._context.opened.context, self._context.slot_users, tasks_max)
