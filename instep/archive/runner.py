"""The thread that keeps one archive running: what its table and its log must be."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from instep import errors, settings
from instep.archive import checks, registration, table
from instep.archive.compaction_thread import CompactionThread
from instep.archive.files import locate
from instep.archive.table import ArchivedTopic, ArchiveTable
from instep.kafka import groups, offsets
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.pipeline import progress_text
from instep.pipeline.engine import Flow
from instep.pipeline.flow_runner import FlowRunner
from instep.pipeline.job import RunnerState
from instep.pipeline.resident.engine import ResidentEngine

MIRROR_INTERVAL_S = 1.0


class ArchiveRunner(FlowRunner):
    """Runs one archive in a thread of its own."""

    def __init__(
        self,
        name: str,
        archive: settings.Archive,
        cluster: Cluster,
        engine: ResidentEngine,
        *,
        once: bool,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the thread."""
        super().__init__(name, cluster, archive.topic, once=once, is_lost=is_lost)
        self._archive, self._engine = archive, engine
        self._location = locate(archive.path)
        self._table: ArchiveTable | None = None
        self._topic: Topic | None = None
        self._epoch = 0
        self._mirrored: dict[int, int] = {}
        self._mirrored_at = time.monotonic()
        self._compaction = CompactionThread(name, archive, lambda: self._epoch)

    def resume(self, engine: ResidentEngine) -> None:
        """Continue at the table's positions in another Spark session."""
        self._engine = engine
        self._resume()

    def progress_text(self) -> str:
        """Return rate, lag and totals."""
        flow = progress_text.flow(self.progress, "archived")
        return f"{flow}, {self.progress.totals['records']:,} archived"

    def totals_text(self) -> str:
        """Return the totals of the run."""
        records = self.progress.totals["records"]
        return (
            f"{records:,} records archived, {self._compaction.joined:,} files joined;"
            f" {self.restarts} restarts"
        )

    def warning(self) -> str | None:
        """Return why files could not be joined, if that is so."""
        failure = self._compaction.failure
        return failure and f"{self.name}: small files were not joined: {failure}"

    def _current_session(self) -> object:
        return self._engine

    def _open(self) -> None:
        self._compaction.start()

    def _finish(self) -> None:
        self._compaction.end()
        self._mirror()

    def _after_tick(self) -> None:
        if time.monotonic() - self._mirrored_at >= MIRROR_INTERVAL_S:
            self._mirrored_at = time.monotonic()
            self._mirror()

    def _start_flow(self) -> Flow:
        """Start the flow at the table's positions.

        1. Check that the table is the archive of this topic; create it if there never was one,
           which Kafka knows.
        2. Take a new epoch, which fences older runs.
        3. Check that the log holds what was archived and what comes next.
        """
        found = table.find(self.name, self._location)
        topic = self._confirmed(
            lambda: checks.describe(self.cluster, self.name, self._archive.topic, found)
        )
        if found is None:  # 1
            found = self._created(topic)
        found.refuse_changed()
        checks.refuse_replaced(self.name, topic, found)
        registration.register(self.cluster, self.name, found)
        known = found.positions(topic.partitions)
        begins = checks.begins(self.cluster, topic, self._archive.start, known)
        self._epoch = found.take_epoch(begins, self._epoch)  # 2
        positions = found.positions(topic.partitions)
        checks.refuse_expired(self.cluster, self.name, topic, positions)  # 3
        self._confirmed(
            lambda: checks.refuse_diverged(self.cluster, self.name, topic, found, positions)
        )
        self._topic, self._table = topic, found
        self._lag.partitions = tuple(topic.partitions)
        ends = offsets.latest(self.cluster, topic.name, positions) if self.once else None
        return self._engine.start(
            (self.name, self._epoch), b"", positions, ends=ends, wake=self._wake.set
        )

    def _created(self, topic: Topic) -> ArchiveTable:
        checks.refuse_gone(self.cluster, self.name, topic, self._location)
        identity = ArchivedTopic(topic.name, topic.id, topic.cluster_id)
        return table.create(self.name, self._location, identity)

    def _check(self) -> None:
        """Raise if the table or the topic was replaced or altered; read new partitions too."""
        assert self._table is not None
        assert self._topic is not None
        archive = self._table
        archive.refresh()
        archive.refuse_fenced(self._epoch)
        archive.refuse_changed()
        topic = self._confirmed(
            lambda: checks.describe(self.cluster, self.name, self._archive.topic, archive)
        )
        checks.refuse_replaced(self.name, topic, archive)
        new = set(topic.partitions) - set(self._topic.partitions)
        if new and self._flow is not None and not self.once:
            archive.add_partitions(self._epoch, dict.fromkeys(new, 0))
            self._flow.add_partitions(sorted(new))
        self._topic = topic
        self._lag.partitions = tuple(topic.partitions)

    def _mirror(self) -> None:
        """Commit the positions to the archive's own consumer group, for other tools."""
        positions = dict(self.progress.positions)
        if positions == self._mirrored or self.state is RunnerState.WAITING:
            return
        group = groups.mirror_name(self.name)
        with contextlib.suppress(errors.InstepError):
            groups.refuse_foreign(self.cluster, group, self._archive.topic, positions)
            groups.mirror(self.cluster, group, self._archive.topic, positions)
            self._mirrored = positions
