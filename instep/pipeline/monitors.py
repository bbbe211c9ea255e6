"""Threads beside a runner: one measures the lag, one writes the run's heartbeat.

Neither touches the data or the flow. After an error they try again at the next interval; an error
here never ends a pipeline.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from instep import errors, settings
from instep.document.due import OverdueCount
from instep.kafka import backlog, offsets
from instep.kafka.connection import Cluster
from instep.kafka.offsets import Span
from instep.pipeline.progress import Progress, finite
from instep.sinks import runs, target
from instep.sinks.runs import Heartbeat, MinuteFigures, RunReport

MEASURE_INTERVAL_S = 1.0
IDLE_INTERVAL_S = 5.0  # while nothing arrives: a measurement costs as much as many events
STATE_INTERVAL_S = 0.25
HELD_AFTER_S = 3.0  # ordinary transactions are shorter
NAME_INTERVAL_S = 30.0  # naming the transactions needs its own client
END_PATIENCE_S = 5.0
STARTING, RUNNING = "starting", "running"


class HeldBack:
    """Recognises transactions that hold the log back, as opposed to those open for a moment.

    It is pure: the caller provides the time.
    """

    def __init__(self) -> None:
        # By partition, the committed end and since when it has not moved.
        self._stuck: dict[int, tuple[int, float]] = {}

    def see(
        self, spans: Mapping[int, Span], positions: Mapping[int, int], now: float
    ) -> dict[int, int]:
        """Return the partitions that are held back, with the number of offsets that wait.

        A partition is held back if its committed end has not moved for a while and is below the
        end of the log.
        """
        held_back = {}
        for partition, span in spans.items():
            if span.committed_end >= span.end:
                self._stuck.pop(partition, None)
                continue
            at, since = self._stuck.get(partition, (-1, now))
            if at != span.committed_end:
                since = now
            self._stuck[partition] = (span.committed_end, since)
            if now - since >= HELD_AFTER_S:
                reached = max(span.committed_end, positions.get(partition, 0))
                held_back[partition] = span.end - reached
        return held_back


class LagWatch:
    """Keeps lag and held-back offsets up to date, even while the flow is idle."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        topic: str,
        progress: Progress,
        is_enabled: Callable[[], bool],
    ) -> None:
        """Create the thread. It skips a measurement while `is_enabled` returns False."""
        self._thread = threading.Thread(target=self._run, name=f"{name} lag", daemon=True)
        self._cluster, self._topic, self._progress = cluster, topic, progress
        self._is_enabled = is_enabled
        self.partitions: tuple[int, ...] = ()  # set when the flow starts
        self._held_back = HeldBack()
        self._named_at = -NAME_INTERVAL_S
        self._records, self._measured_at = -1, 0.0
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(MEASURE_INTERVAL_S):
            if self.partitions and self._is_enabled() and self._is_due():
                with contextlib.suppress(errors.InstepError):
                    self._measure()
                    self._measured_at = time.monotonic()

    def _is_due(self) -> bool:
        """Return whether to measure now: every second, or less often while nothing happens."""
        records, self._records = self._records, self._progress.totals["records"]
        at_rest = records == self._records and self._progress.lag == 0
        return not at_rest or time.monotonic() - self._measured_at >= IDLE_INTERVAL_S

    def end(self) -> None:
        """End the thread after its current measurement."""
        self._ended.set()

    def _measure(self) -> None:
        pairs = [(self._topic, partition) for partition in self.partitions]
        spans = {pair[1]: span for pair, span in offsets.spans(self._cluster, pairs).items()}
        if len(spans) < len(pairs):
            return  # a partition without a leader: its end is unknown
        progress = self._progress
        progress.see_ends({partition: span.end for partition, span in spans.items()})
        held_back = self._held_back.see(spans, progress.positions, time.monotonic())
        if held_back:
            self._name_transactions(held_back)
        else:
            progress.held_by, self._named_at = [], -NAME_INTERVAL_S
        progress.held_back = sum(held_back.values())

    def _name_transactions(self, held_back: Mapping[int, int]) -> None:
        if time.monotonic() - self._named_at >= NAME_INTERVAL_S:
            transactions = backlog.open_transactions(self._cluster, self._topic, held_back)
            self._named_at = time.monotonic()
            self._progress.held_by = backlog.describe_held_back(held_back, transactions)


class HeartbeatWatch:
    """Writes the run's state to the target database, at every change and every few seconds.

    A change is another state, or a document that became overdue or is no longer.
    """

    def __init__(
        self,
        name: str,
        pipeline: settings.Pipeline,
        state: Callable[[], tuple[int, str, str | None, str | None]],
        progress: Progress,
    ) -> None:
        """Create the thread. `state` returns epoch, state, error code and detail."""
        self._thread = threading.Thread(target=self._run, name=f"{name} heartbeat", daemon=True)
        self._pipeline, self._target, self._state = name, pipeline.target, state
        self._progress = progress
        self._ended = threading.Event()
        self._started = self._changed_at = time.monotonic()
        self._last: tuple[int, str, str | None, str | None] | None = None
        self._overdue: dict[str, OverdueCount] | None = None
        self._due = 0.0
        self._minute_at, self._minute_totals = self._started, dict(progress.totals)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        heartbeat = Heartbeat(self._pipeline, target.database_url(self._target))
        ended = False
        while not ended:
            ended = self._ended.wait(STATE_INTERVAL_S)
            self._beat(heartbeat)
        heartbeat.close()

    def end(self) -> None:
        """Write the last state. Do not wait long for a database that does not answer."""
        self._ended.set()
        self._thread.join(END_PATIENCE_S)

    def _beat(self, heartbeat: Heartbeat) -> None:
        now, state = time.monotonic(), self._state()
        if state[1] == STARTING:
            return  # it has no epoch yet, and may be creating instep's tables
        if state != self._last:
            if self._last is None or state[1] != self._last[1]:
                self._changed_at = now
            self._last, self._due = state, now
        overdue = self._progress.overdue
        if overdue is not None and overdue.statuses != self._overdue:
            self._overdue, self._due = overdue.statuses, now
        if now >= self._due:
            self._due = now + runs.INTERVAL_S
            epoch, name, code, detail = state
            report = RunReport(
                epoch,
                name,
                now - self._started,
                now - self._changed_at,
                code,
                detail,
                None if overdue is None else msgspec.json.encode(overdue).decode(),
                self._progress.rate(),
                finite(self._progress.freshness_s(0.5)),
                finite(self._progress.freshness_s(0.99)),
                self._minute(now, name),
            )
            with contextlib.suppress(Exception):  # a lost heartbeat does no harm
                heartbeat.beat(report)

    def _minute(self, now: float, state: str) -> MinuteFigures | None:
        """Return the figures of the minute that has ended, if one has."""
        seconds = now - self._minute_at
        if seconds < runs.TREND_INTERVAL_S:
            return None
        figures = self._progress.minute(self._minute_totals, seconds, is_running=state == RUNNING)
        self._minute_at, self._minute_totals = now, dict(self._progress.totals)
        return figures
