"""The thread that keeps one pipeline running: its checks, its ledger, and what runs beside it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence

from instep import errors, settings, sinks
from instep.document.decoding import Record
from instep.document.results import Result
from instep.kafka import groups, offsets
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.pipeline import (
    continuity,
    monitors,
    overdue_watch,
    pending,
    progress_text,
    quarantine_summary,
    retries,
    retry_policy,
)
from instep.pipeline.applier import TaskPlan
from instep.pipeline.apply import batch
from instep.pipeline.engine import Engine, Flow, Transforms
from instep.pipeline.flow_runner import FlowRunner
from instep.pipeline.job import RunnerState as RunnerState
from instep.sinks import inspection, runs
from instep.sinks.ledger import fenced
from instep.sinks.sink import Sink
from instep.sinks.target import Position, Target

TABLE_CHECK_INTERVAL_S = 30.0  # reads the database's catalogue, which costs more than the ledger
MIRROR_INTERVAL_S = 1.0
MIRROR_OWNER_INTERVAL_S = 10.0


class Runner(FlowRunner):
    """Runs one pipeline in its own thread, so that it waits for its servers alone."""

    def __init__(
        self,
        name: str,
        pipeline: settings.Pipeline,
        cluster: Cluster,
        engine: Engine,
        *,
        once: bool,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the thread.

        `is_lost` returns whether the run's folder was removed. Errors are then not failures of the
        pipeline.
        """
        super().__init__(name, cluster, pipeline.topic, once=once, is_lost=is_lost)
        self.pipeline, self.engine = pipeline, engine
        self._reader = continuity.pipeline(name)
        self._topic: Topic | None = None
        self._target: Target | None = None
        self._sink: Sink | None = None
        self._epoch = 0
        self._ledger: dict[int, Position] = {}  # as of the last check
        self._mirrored_positions: dict[int, int] = {}
        self._check_owner_at = 0.0
        self._table_checked_at = self._mirrored_at = time.monotonic()
        self._totals_before: dict[str, int] | None = None  # the ledger's totals before this run
        self._heartbeat = monitors.HeartbeatWatch(name, pipeline, self._report, self.progress)
        self._retries = [
            retries.Retries(
                name, pipeline, policy, self._running_epoch, self.progress, self._transform
            )
            for policy in retry_policy.of_pipeline(pipeline)
        ]
        self._transforming: Transforms | None = None
        self._overdue = overdue_watch.OverdueWatch(
            name, pipeline, self.progress, self._running_epoch
        )

    def _open(self) -> None:
        self._heartbeat.start()
        for one in self._retries:
            one.start()
        self._overdue.start()

    def _finish(self) -> None:
        self._overdue.end()
        for one in self._retries:
            one.end(once_more=self.once and self.state is RunnerState.ENDED and self.error is None)
        self._adopt_final_totals()
        self._heartbeat.end()
        self._mirror()
        self._close_sink()

    def resume(self, engine: Engine) -> None:
        """Continue at the ledger in another Spark session."""
        self.engine = engine
        self._resume()

    def progress_text(self) -> str:
        """Return rate, lag, freshness and totals."""
        totals = self.progress.totals
        return (
            f"{progress_text.flow(self.progress, 'applied')}, {totals['applied']:,} applied,"
            f" {totals['parked']:,} parked, {totals['dead']:,} dead"
        )

    def totals_text(self) -> str:
        """Return the totals of the run."""
        totals = self.progress.totals
        return (
            f"{totals['records']:,} records: {totals['applied']:,} applied,"
            f" {totals['stale']:,} stale, {totals['repeated']:,} repeated,"
            f" {totals['ignored']:,} ignored, {totals['parked']:,} parked,"
            f" {totals['dead']:,} dead letters; {self.restarts} restarts"
        )

    def warning(self) -> str | None:
        """Return the warning that most events went to quarantine."""
        return quarantine_summary.warning(
            self.name, self.pipeline, self.progress.totals, self.started_at
        )

    def _running_epoch(self) -> int:
        """Return the epoch; 0 before the first start."""
        return self._epoch if self.state is not RunnerState.STARTING else 0

    def _current_session(self) -> object:
        return self.engine

    def _after_tick(self) -> None:
        if time.monotonic() - self._mirrored_at >= MIRROR_INTERVAL_S:
            self._mirrored_at = time.monotonic()
            self._mirror()

    # --- starting ---------------------------------------------------------------------------------

    def _start_flow(self) -> Flow:
        """Start the flow at the ledger's position.

        1. Check that the topic is the one in the ledger.
        2. Take a new epoch, which fences older runs, and read the ledger in the same transaction.
           If a newer run has fenced this one since its last start, end.
        3. Check that the log still holds what was applied and what comes next.
        4. Start the flow at the ledger's offsets.
        """
        target = self._inspected()
        self._close_sink()  # the server or the file behind it may have been replaced
        sink = self._open_sink(target)
        with sink.translated():
            known = sink.ledger.positions()
        topic = self._confirmed(
            lambda: continuity.describe(self.cluster, self._reader, self.pipeline.topic, known)
        )
        # Before the epoch is taken: a start with a wrong address must not fence the right run.
        continuity.refuse_replaced(self._reader, topic, known)  # 1
        begins = pending.begins(self.cluster, topic, self.pipeline.start, known)
        partitions = [Position(p, at, 0, topic.cluster_id, topic.id) for p, at in begins.items()]
        self._epoch, ledger = sink.ledger.take_epoch(partitions, self._epoch)  # 2
        continuity.refuse_expired(self.cluster, self._reader, topic, ledger)  # 3
        self._confirmed(
            lambda: continuity.refuse_diverged(self.cluster, self._reader, topic, ledger)
        )
        with sink.translated():
            applied = sink.ledger.applied_ranges()
        writer = batch.Writer(self._epoch, topic.cluster_id, topic.id, applied)
        self._adopt_totals(ledger)
        self._topic, self._target, self._ledger = topic, target, ledger
        self._lag.partitions = tuple(topic.partitions)
        self._table_checked_at = time.monotonic()
        plan = TaskPlan(target, self.pipeline, writer, self.cluster.kafka, self.cluster.bootstrap)
        flow = self.engine.start(plan, ledger, once=self.once, wake=self._wake.set)  # 4
        if isinstance(flow, Transforms):
            self._transforming = flow
        return flow

    def _transform(self, records: Sequence[Record]) -> list[Result]:
        """Transform records beside the flow, as it does."""
        if self._transforming is None:
            raise errors.Transient("the flow that transforms records has not started")
        return self._transforming.transform(records)

    def _inspected(self) -> Target:
        """Return the target; raise if it does not fit, or changed since the last start."""
        if self._target is None:
            return inspection.inspect(self.name, self.pipeline)
        return inspection.refuse_changed(self._target, self.pipeline)

    def _adopt_totals(self, ledger: Mapping[int, Position]) -> None:
        """Take over the ledger's totals: a failed flow does not report its last commits."""
        now = dict.fromkeys(batch.TOTALS, 0)
        for position in ledger.values():
            for name in now:
                now[name] += position.totals.get(name, 0)
        if self._totals_before is None:
            self._totals_before = now
        self.progress.settle(
            {name: now[name] - before for name, before in self._totals_before.items()}
        )

    def _adopt_final_totals(self) -> None:
        """Take over the ledger's totals at the end, unless a newer run has added to them."""
        waits_for_server = self.state is RunnerState.WAITING and not self._suspended.is_set()
        if self._totals_before is None or self._target is None or waits_for_server:
            return
        with contextlib.suppress(errors.InstepError):
            sink = self._open_sink(self._target)
            with sink.translated():
                ledger = sink.ledger.positions()
            if all(position.epoch <= self._epoch for position in ledger.values()):
                self._adopt_totals(ledger)
                self.progress.positions |= {
                    partition: position.next_offset for partition, position in ledger.items()
                }

    def _report(self) -> tuple[int, str, str | None, str | None]:
        """Return epoch, state, error code and detail for the heartbeat."""
        state, error = self.state, self.error
        if state is not RunnerState.ENDED and not self._stop_requested.is_set():
            detail = self.waiting_for if state is RunnerState.WAITING else None
            return self._epoch, state.value, None, detail
        if error is None:
            return self._epoch, runs.STOPPED, None, None
        return self._epoch, runs.STOPPED, errors.code_of(error), error.what

    # --- watching ---------------------------------------------------------------------------------

    def _check(self) -> None:
        self._check_log(self._check_ledger())
        if time.monotonic() - self._table_checked_at >= TABLE_CHECK_INTERVAL_S:
            self._table_checked_at = time.monotonic()
            self._check_table()

    def _failed(self, error: errors.InstepError) -> None:
        if isinstance(error, errors.DatabaseUnreachable):
            self._close_sink()
        super()._failed(error)

    def _open_sink(self, target: Target) -> Sink:
        """Return the runner's own connection to the target; tasks have theirs."""
        if self._sink is None:
            self._sink = sinks.open_sink(target)
        return self._sink

    def _close_sink(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def _check_ledger(self) -> dict[int, Position]:
        """Read the ledger; raise if a newer run, a rewind or a restored backup has changed it.

        Tasks check this too, but only when there is something to apply.
        """
        assert self._target is not None
        sink = self._open_sink(self._target)
        with sink.translated():
            ledger = sink.ledger.positions()
        newest = max((position.epoch for position in ledger.values()), default=0)
        if newest > self._epoch:
            raise fenced(self.name, newest, self._epoch)
        moved_back = self._moved_back(ledger)
        for partition in self._ledger:
            now = ledger.get(partition)
            if now is None or now.epoch < self._epoch or partition in moved_back:
                where = "was removed"
                if now is not None:
                    where = f"was moved to {now.next_offset}"
                raise errors.LedgerMoved(
                    f"the ledger of {self.name!r}, partition {partition}, {where}"
                )
        return ledger

    def _moved_back(self, ledger: dict[int, Position]) -> list[int]:
        """Return the partitions whose ledger is behind what this flow has applied.

        The flow's position may also be past transaction markers, which the ledger ignores, so
        only a record in between counts.
        """
        behind = {
            p: ledger[p].next_offset
            for p, end in self._applied.items()
            if p in ledger and ledger[p].next_offset < end
        }
        if not behind:
            return []
        records = offsets.first_records(self.cluster, self.pipeline.topic, behind)
        return [
            partition
            for partition, record in records.items()
            if record and record.offset < self._applied[partition]
        ]

    def _check_table(self) -> None:
        """Raise if the table was altered.

        A changed unique key or collation decides how rows must be written, but refuses none.
        """
        assert self._target is not None
        inspection.refuse_constrained(self._target, self.pipeline)

    def _check_log(self, ledger: dict[int, Position]) -> None:
        """Raise if the topic was replaced or its log has diverged: an engine would not notice."""
        assert self._topic is not None
        topic = self._confirmed(
            lambda: continuity.describe(self.cluster, self._reader, self.pipeline.topic, ledger)
        )
        if topic.id != self._topic.id:
            raise continuity.replaced(self._reader, topic.name)
        # Check the previous ledger too: a log that lost its end may have grown past it since.
        ledgers = [ledger]
        if self._ledger != ledger:
            ledgers.insert(0, self._ledger)
        for known in ledgers:
            self._confirmed(
                functools.partial(
                    continuity.refuse_diverged, self.cluster, self._reader, topic, known
                )
            )
        self._ledger = ledger
        if self._flow is not None:
            self._flow.add_partitions(topic.partitions)
            self._lag.partitions = tuple(topic.partitions)

    def _mirror(self) -> None:
        """Commit the position to the pipeline's own consumer group, so that other tools see it.

        A group that another program uses is left alone.
        """
        positions, group = dict(self.progress.positions), groups.mirror_name(self.name)
        if positions != self._mirrored_positions and self.state is not RunnerState.WAITING:
            # Errors do not matter: only the ledger counts.
            with contextlib.suppress(errors.InstepError):
                if time.monotonic() >= self._check_owner_at:
                    groups.refuse_foreign(self.cluster, group, self.pipeline.topic, positions)
                    self._check_owner_at = time.monotonic() + MIRROR_OWNER_INTERVAL_S
                groups.mirror(self.cluster, group, self.pipeline.topic, positions)
                self._mirrored_positions = positions
