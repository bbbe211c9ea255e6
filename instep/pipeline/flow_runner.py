"""The thread that keeps one job running: what runners of all kinds have in common.

States: starting → running ⇄ waiting → ended. If a server is unreachable, the runner waits with
back-off and starts the flow again in the same Spark session. An error that does not pass by itself
ends this job only; the others continue.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from instep import errors
from instep.kafka.connection import Cluster
from instep.pipeline import failures, monitors, progress
from instep.pipeline.engine import Flow
from instep.pipeline.job import RunnerState

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 15.0
# For errors that may or may not pass: unknown ones, deadlocks, refused permissions.
DOUBTFUL_TRIES_MAX = 6
FORGET_AFTER_S = 60.0  # after this time without an error, failures are counted from 0 again
CHECK_INTERVAL_S = 5.0
DOUBT_S = 2.0
TICK_INTERVAL_S = 0.1

Checked = TypeVar("Checked")


class FlowRunner(threading.Thread):
    """Runs one job in its own thread, so that it waits for its servers alone."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        topic: str,
        *,
        once: bool,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the thread of a job that reads a topic.

        `is_lost` returns whether the run's folder was removed. Errors are then not failures of the
        job.
        """
        super().__init__(name=name, daemon=True)
        self.cluster, self.once = cluster, once
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
        self._applied: dict[int, int] = {}  # the positions that this flow has reported
        self._failures = 0
        self._doubtful_failures = 0
        self._failed_at = 0.0
        self._retry_at = 0.0
        self._waiting_since = 0.0
        self._checked_at = time.monotonic()
        self._stopping = threading.Lock()  # held while the flow is stopped
        self._lag = monitors.LagWatch(
            name, cluster, topic, self.progress, lambda: self.state is not RunnerState.WAITING
        )

    # --- what a subclass does ---------------------------------------------------------------------

    @abstractmethod
    def _start_flow(self) -> Flow:
        """Check everything that must hold before a start, and start a flow at its position."""

    @abstractmethod
    def _check(self) -> None:
        """Check while the flow runs what nobody else would notice. Called every few seconds."""

    @abstractmethod
    def _current_session(self) -> object:
        """Return what the flow is started in; `resume` provides another one."""

    def _open(self) -> None:
        """Start the threads beside the runner."""

    def _finish(self) -> None:
        """Do what remains when the flow has been stopped."""

    def _after_tick(self) -> None:
        """Do what is due beside the flow."""

    # --- the thread -------------------------------------------------------------------------------

    def run(self) -> None:
        """Keep the job running until it ends or `stop` is called."""
        self._lag.start()
        self._open()
        while self.state is not RunnerState.ENDED and not self._stop_requested.is_set():
            self._wake.clear()
            self._guarded(self._tick)
            flow = self._flow
            self._wake.wait(TICK_INTERVAL_S if flow is None else flow.poll_interval_s)
        self._lag.end()
        self._stop_flow()
        self._finish()

    def stop(self, patience_s: float) -> None:
        """Stop the flow. An open transaction is rolled back."""
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

    def waiting_s(self) -> float:
        """Return for how long the job has been waiting."""
        if self.state is not RunnerState.WAITING:
            return 0.0
        return time.monotonic() - self._waiting_since

    def _resume(self) -> None:
        """Let the job start again."""
        self._suspended.clear()

    def _has_no_session(self) -> bool:
        return self._suspended.is_set() or self._is_lost()

    def _tick(self) -> None:
        if self._has_no_session():
            return
        now, running = time.monotonic(), self._flow
        if running is None:
            if now >= self._retry_at:
                self._start_again()
            return
        self._read_progress(running)
        if not running.is_active():
            self._flow_ended(running)
        elif now - self._checked_at >= CHECK_INTERVAL_S:
            self._checked_at = now
            self._check()
            self._see_waiting()
        self._after_tick()

    def _start_again(self) -> None:
        flow = self._start_flow()
        self._applied = {}
        self._checked_at = time.monotonic()
        self._flow = flow
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

    def _see_waiting(self) -> None:
        """Note whether the flow waits for something, after a check without an error."""
        if self._flow is not None and (what := self._flow.waits_for()):
            self._wait_for(what)
        elif self.state is RunnerState.WAITING:
            self.state = RunnerState.RUNNING
        if time.monotonic() - self._failed_at > FORGET_AFTER_S:
            self._failures = self._doubtful_failures = 0

    def _guarded(self, step: Callable[[], None]) -> None:
        session = self._current_session()
        try:
            step()
        except errors.InstepError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the thread must not die unnoticed
            failure = failures.read(str(error)) or failures.unexplained(error)
        else:
            return
        # Otherwise the session was replaced meanwhile, and the error belongs to the old one.
        if self._current_session() is session:
            self._failed(failure)

    def _failed(self, error: errors.InstepError) -> None:
        """Handle an error by its type: retry for ever, retry a few times, or end."""
        if self._stop_requested.is_set() or self._has_no_session():
            return
        first_start = self.state is RunnerState.STARTING
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
