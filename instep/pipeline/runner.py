"""The thread that keeps one pipeline running.

States: starting → running ⇄ waiting → ended. If a server is unreachable, the runner waits with
back-off and starts the flow again in the same Spark session. An error that does not pass by itself
ends this pipeline only; the others continue.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar

from instep import errors, settings, sinks
from instep.kafka import groups, offsets
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.pipeline import continuity, failures, monitors, pending, progress, retries
from instep.pipeline.applier import TaskPlan
from instep.pipeline.apply import batch
from instep.pipeline.engine import Engine, Flow
from instep.sinks import inspection, runs
from instep.sinks.ledger import fenced
from instep.sinks.sink import Sink
from instep.sinks.target import Position, Target

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 15.0
# For errors that may or may not pass: unknown ones, deadlocks, refused permissions.
DOUBTFUL_TRIES_MAX = 6
FORGET_AFTER_S = 60.0  # after this time without an error, failures are counted from 0 again
CHECK_INTERVAL_S = 5.0
TABLE_CHECK_INTERVAL_S = 30.0  # reads the database's catalogue, which costs more than the ledger
DOUBT_S = 2.0
MIRROR_INTERVAL_S = 1.0
MIRROR_OWNER_INTERVAL_S = 10.0
TICK_INTERVAL_S = 0.1

Checked = TypeVar("Checked")


class RunnerState(StrEnum):
    """The state of a runner."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class Runner(threading.Thread):
    """Runs one pipeline in a thread of its own, so that it waits for its servers alone."""

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
        super().__init__(name=name, daemon=True)
        self.pipeline, self.cluster, self.engine, self.once = pipeline, cluster, engine, once
        self.state = RunnerState.STARTING
        self.error: errors.InstepError | None = None
        self.waiting_for = ""
        self.started_at = datetime.now(UTC)
        self.restarts = 0
        self.progress = progress.Progress()
        self._is_lost = is_lost
        self._suspended = threading.Event()
        self._stop_requested = threading.Event()
        self._wake = threading.Event()  # set when there is something new to see
        self._flow: Flow | None = None
        self._topic: Topic | None = None
        self._target: Target | None = None
        self._sink: Sink | None = None
        self._epoch = 0
        self._ledger: dict[int, Position] = {}  # as of the last check
        self._applied: dict[int, int] = {}  # the positions that this flow has reported
        self._mirrored_positions: dict[int, int] = {}
        self._check_owner_at = 0.0
        self._failures = 0
        self._doubtful_failures = 0
        self._failed_at = 0.0
        self._retry_at = 0.0
        self._waiting_since = 0.0
        self._checked_at = self._table_checked_at = self._mirrored_at = time.monotonic()
        self._stopping = threading.Lock()  # held while the flow is stopped
        self._totals_before: dict[str, int] | None = None  # the ledger's totals before this run
        self._lag = monitors.LagWatch(
            name,
            cluster,
            pipeline.topic,
            self.progress,
            lambda: self.state is not RunnerState.WAITING,
        )
        self._heartbeat = monitors.HeartbeatWatch(name, pipeline, self._report)
        self._retries = retries.Retries(
            name, pipeline, lambda: self._epoch if self.state is not RunnerState.STARTING else 0
        )

    def run(self) -> None:
        """Keep the pipeline running until it ends or `stop` is called."""
        self._lag.start()
        self._heartbeat.start()
        self._retries.start()
        while self.state is not RunnerState.ENDED and not self._stop_requested.is_set():
            self._wake.clear()
            self._guarded(self._tick)
            flow = self._flow
            self._wake.wait(TICK_INTERVAL_S if flow is None else flow.poll_interval_s)
        self._lag.end()
        self._stop_flow()
        self._retries.end(
            once_more=self.once and self.state is RunnerState.ENDED and self.error is None
        )
        self._adopt_final_totals()
        self._heartbeat.end()
        self._mirror()
        self._close_sink()

    def stop(self, patience_s: float) -> None:
        """Stop the flow. The database rolls back an open transaction."""
        self._stop_requested.set()
        self._wake.set()
        self._stop_flow()
        self.join(patience_s)

    def suspend(self) -> None:
        """Stop the flow, and start none until `resume` provides another Spark session."""
        self._suspended.set()
        self._stop_flow()
        if self.state is not RunnerState.ENDED:
            self._wait_for("a new Spark session")

    def resume(self, engine: Engine) -> None:
        """Continue at the ledger in another Spark session."""
        self.engine = engine
        self._suspended.clear()

    def waiting_s(self) -> float:
        """Return for how long the pipeline has been waiting."""
        if self.state is not RunnerState.WAITING:
            return 0.0
        return time.monotonic() - self._waiting_since

    def _has_no_session(self) -> bool:
        return self._suspended.is_set() or self._is_lost()

    def _tick(self) -> None:
        if self._has_no_session():
            return
        now, running = time.monotonic(), self._flow
        if running is None:
            if now >= self._retry_at:
                self._start()
            return
        self._read_progress(running)
        if not running.is_active():
            self._flow_ended(running)
        elif now - self._checked_at >= CHECK_INTERVAL_S:
            self._checked_at = now
            self._check_log(self._check_ledger())
            if now - self._table_checked_at >= TABLE_CHECK_INTERVAL_S:
                self._table_checked_at = now
                self._check_table()
        if now - self._mirrored_at >= MIRROR_INTERVAL_S:
            self._mirrored_at = now
            self._mirror()

    # --- starting ---------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the flow at the ledger's position.

        1. Check that the topic is the one in the ledger.
        2. Take a new epoch, which fences older runs, and read the ledger in the same transaction.
           If a newer run has fenced this one since its last start, end.
        3. Check that the log still holds what was applied and what comes next.
        4. Start the flow at the ledger's offsets.
        """
        if self._target is None:
            target = inspection.inspect(self.name, self.pipeline)
        else:
            target = inspection.refuse_changed(self._target, self.pipeline)
        self._close_sink()  # the server or the file behind it may have been replaced
        sink = self._open_sink(target)
        with sink.translated():
            known = sink.ledger.positions()
        topic = self._confirmed(
            lambda: continuity.describe(self.cluster, self.name, self.pipeline.topic, known)
        )
        # Before the epoch is taken: a start with a wrong address must not fence the right run.
        continuity.refuse_replaced(self.name, topic, known)  # 1
        begins = pending.begins(self.cluster, topic, self.pipeline, known)
        partitions = [Position(p, at, 0, topic.cluster_id, topic.id) for p, at in begins.items()]
        self._epoch, ledger = sink.ledger.take_epoch(partitions, self._epoch)  # 2
        continuity.refuse_expired(self.cluster, self.name, topic, ledger)  # 3
        self._confirmed(lambda: continuity.refuse_diverged(self.cluster, self.name, topic, ledger))
        with sink.translated():
            applied = sink.ledger.applied_ranges()
        writer = batch.Writer(self._epoch, topic.cluster_id, topic.id, applied)
        self._adopt_totals(ledger)
        self._topic, self._target, self._ledger = topic, target, ledger
        self._lag.partitions = tuple(topic.partitions)
        self._checked_at = self._table_checked_at = time.monotonic()
        self._applied = {}
        plan = TaskPlan(target, self.pipeline, writer, self.cluster.kafka, self.cluster.bootstrap)
        self._flow = self.engine.start(plan, ledger, once=self.once, wake=self._wake.set)  # 4
        if self._suspended.is_set():  # `suspend` was called before the flow could be seen
            self._stop_flow()
            return
        self.state = RunnerState.RUNNING

    def _confirmed(self, check: Callable[[], Checked]) -> Checked:
        """Run a check; if it finds the topic gone or diverged, run it again after a pause.

        A broker that has just started may not know its topics or their ends yet.
        """
        try:
            return check()
        except (errors.TopicGone, errors.LogDiverged):
            self._stop_requested.wait(DOUBT_S)
            return check()

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

    def _read_progress(self, running: Flow) -> None:
        """Add what the flow has reported since the last call."""
        for report in running.reports():
            self.progress.add(report)
            self._applied |= report.positions
            if report.counts["records"]:
                self._failures = self._doubtful_failures = 0

    def _flow_ended(self, ended: Flow) -> None:
        """Handle a flow that is no longer active: it is done or has failed."""
        failure = ended.failure()
        self._read_progress(ended)
        self._flow = None
        if failure is None or self._stop_requested.is_set():
            self.state = RunnerState.ENDED
        else:
            self._failed(failure)

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
            lambda: continuity.describe(self.cluster, self.name, self.pipeline.topic, ledger)
        )
        if topic.id != self._topic.id:
            raise continuity.replaced(self.name, topic.name)
        # Check the previous ledger too: a log that lost its end may have grown past it since.
        ledgers = [ledger]
        if self._ledger != ledger:
            ledgers.insert(0, self._ledger)
        for known in ledgers:
            self._confirmed(
                functools.partial(continuity.refuse_diverged, self.cluster, self.name, topic, known)
            )
        self._ledger = ledger
        if self._flow is not None:
            self._flow.add_partitions(topic.partitions)
            self._lag.partitions = tuple(topic.partitions)
        if self._flow is not None and (what := self._flow.waits_for()):
            self._wait_for(what)
        elif self.state is RunnerState.WAITING:
            self.state = RunnerState.RUNNING
        if time.monotonic() - self._failed_at > FORGET_AFTER_S:
            self._failures = self._doubtful_failures = 0

    def _guarded(self, step: Callable[[], None]) -> None:
        engine = self.engine
        try:
            step()
        except errors.InstepError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the thread must not die unnoticed
            failure = failures.read(str(error)) or failures.unexplained(error)
        else:
            return
        # Otherwise the session was replaced meanwhile, and the error belongs to the old one.
        if self.engine is engine:
            self._failed(failure)

    def _failed(self, error: errors.InstepError) -> None:
        """Handle an error by its type: retry for ever, retry a few times, or end."""
        if self._stop_requested.is_set() or self._has_no_session():
            return
        first_start = self.state is RunnerState.STARTING
        if isinstance(error, errors.DatabaseUnreachable):
            self._close_sink()
        if isinstance(error, errors.Unreachable) and self._flow is not None:
            # The flow itself waits for a while, and need not be restarted if that is enough.
            self._wait_for(error.what)
            return
        self._stop_flow()
        waits = isinstance(error, (errors.Unreachable, errors.StartAgain))
        # TopicMissing: the next start checks again and raises a named stop if the topic is gone.
        may_pass = (errors.Transient, errors.NotAuthorised, errors.TopicMissing)
        doubtful = type(error) is errors.InstepError or isinstance(error, may_pass)
        self._doubtful_failures += doubtful
        self._failed_at = time.monotonic()
        if first_start or not (waits or doubtful) or self._doubtful_failures >= DOUBTFUL_TRIES_MAX:
            if isinstance(error, errors.NotAuthorised) and not first_start:
                error = errors.AccessLost(error.what, f"{error.remedy}; then: instep run")
            self.error = error
            self.state = RunnerState.ENDED
            return
        self._failures += 1
        self.restarts += 1
        backoff_s = min(BACKOFF_FIRST_S * 2 ** (self._failures - 1), BACKOFF_MAX_S)
        self._retry_at = time.monotonic() + backoff_s
        self._wait_for(error.what)

    def _wait_for(self, what: str) -> None:
        if self.state is not RunnerState.WAITING:
            self._waiting_since = time.monotonic()
        self.state = RunnerState.WAITING
        self.waiting_for = what

    def _stop_flow(self) -> None:
        """Stop the flow; if another thread is already stopping it, wait for that thread."""
        with self._stopping:
            running, self._flow = self._flow, None
            if running is not None:
                running.stop()

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
