"""The thread that keeps one stream running."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Protocol

from instep import errors, settings
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.pipeline import continuity, progress_text
from instep.pipeline.engine import Flow
from instep.pipeline.flow_runner import FlowRunner
from instep.streams import position, starts
from instep.streams.plan import StreamPlan, reader_of, target_gone
from instep.streams.position import StreamPosition
from instep.streams.starts import StreamStart

POSITION_CHECK_INTERVAL_S = 30.0  # reads every position


class StreamEngine(Protocol):
    """Runs the flows of streams in a Spark session."""

    def start(
        self,
        plan: StreamPlan,
        next_offsets: Mapping[int, int],
        number: int,
        *,
        once: bool,
        wake: Callable[[], None],
    ) -> Flow:
        """Start a flow; `number` tells it from earlier flows of the same stream."""


class StreamRunner(FlowRunner):
    """Runs one stream in a thread of its own."""

    def __init__(
        self,
        name: str,
        stream: settings.Stream,
        cluster: Cluster,
        engine: StreamEngine,
        *,
        once: bool,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the thread. `is_lost` returns whether the run's folder was removed."""
        super().__init__(name, cluster, stream.source, once=once, is_lost=is_lost)
        self._stream, self._engine = stream, engine
        self._reader = reader_of(name)
        self._run = uuid.uuid4().hex
        self._epoch = 0  # taken at the first start
        self._numbers = itertools.count(1)
        self._source: Topic | None = None
        self._plan: StreamPlan | None = None
        self._positions: dict[int, StreamPosition] = {}
        self._positions_checked_at = 0.0

    def resume(self, engine: StreamEngine) -> None:
        """Continue at the positions in another Spark session."""
        self._engine = engine
        self._resume()

    def progress_text(self) -> str:
        """Return rate, lag, freshness and totals."""
        totals = self.progress.totals
        return (
            f"{progress_text.flow(self.progress, 'published')}, {totals['applied']:,} published,"
            f" {totals['dead']:,} dead"
        )

    def totals_text(self) -> str:
        """Return the totals of the run."""
        totals = self.progress.totals
        return (
            f"{totals['records']:,} records: {totals['applied']:,} published,"
            f" {totals['dead']:,} dead letters; {self.restarts} restarts"
        )

    def warning(self) -> str | None:
        """Return the warning that records became dead letters."""
        dead = self.progress.totals["dead"]
        if not dead:
            return None
        return (
            f"{self.name}: {dead:,} records could not be published and are in topic"
            f" {self._stream.dead_letters!r}; see: instep peek {self._stream.dead_letters}"
        )

    def _current_session(self) -> object:
        return self._engine

    # --- starting ---------------------------------------------------------------------------------

    def _start_flow(self) -> Flow:
        """Check topics and positions, take an epoch, and start at the positions."""
        start = self._confirmed(
            lambda: starts.inspect(self.cluster, self.name, self._stream, thorough=True)
        )
        self._take_epoch(start.positions)
        starts.prepare(self.cluster, self.name, start)
        self._plan = self._planned(start)
        self._source, self._positions = start.source, start.positions
        self._positions_checked_at = time.monotonic()
        self._lag.partitions = tuple(start.source.partitions)
        return self._engine.start(
            self._plan,
            start.next_offsets,
            next(self._numbers),
            once=self.once,
            wake=self._wake.set,
        )

    def _planned(self, start: StreamStart) -> StreamPlan:
        return StreamPlan(
            self.name,
            self._stream,
            start.target.cluster_id,
            start.source.id,
            start.target.id,
            len(start.target.partitions),
            self._epoch,
            self._run,
            {p: at for p, at in start.begins.items() if p not in start.in_doubt},
            starts.record_bytes_max(self.cluster, self._stream.target),
            starts.record_bytes_max(self.cluster, self._stream.dead_letters),
            starts.timestamp_bounds(self.cluster, self._stream),
        )

    def _take_epoch(self, positions: Mapping[int, StreamPosition]) -> None:
        """Take an epoch above all others at the first start; end if a newer run has a higher one.

        The epoch fences nobody. It says later which of two runs goes on, if both write.
        """
        if not self._epoch:
            self._epoch = max((one.epoch for one in positions.values()), default=0) + 1
        self._refuse_fenced(positions)

    def _refuse_fenced(self, positions: Mapping[int, StreamPosition]) -> None:
        for one in positions.values():
            if one.writer > (self._epoch, self._run):
                raise position.fenced(self.name, one, self._epoch)

    # --- watching ---------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise if a topic was replaced or has grown, or if a newer run has taken over."""
        assert self._source is not None
        assert self._plan is not None
        source = self._confirmed(
            lambda: continuity.describe(
                self.cluster, self._reader, self._stream.source, self._positions
            )
        )
        if source.id != self._source.id:
            raise continuity.replaced(self._reader, source.name)
        try:
            target = topics.describe(self.cluster, self._stream.target)
        except errors.TopicMissing as error:
            raise target_gone(self.name, self._stream.target) from error
        self._plan.refuse_changed_target(target)
        if time.monotonic() - self._positions_checked_at >= POSITION_CHECK_INTERVAL_S:
            self._positions_checked_at = time.monotonic()
            self._check_positions(source)
        if len(source.partitions) > len(self._source.partitions) and not self.once:
            raise errors.StartAgain(
                f"topic {source.name!r} has {len(source.partitions)} partitions now"
            )

    def _check_positions(self, source: Topic) -> None:
        positions = starts.read_positions(self.cluster, self.name)
        self._refuse_fenced(positions)
        self._confirmed(
            lambda: continuity.refuse_diverged(self.cluster, self._reader, source, positions)
        )
        self._positions = positions
