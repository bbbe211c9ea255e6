"""Find overdue documents while a pipeline runs: `[pipelines.NAME.due]`.

The flow is never delayed by this: it writes nothing more than without limits. A thread with a
connection of its own scans the table for documents with a limited status, and keeps those that
will be overdue before the next scan. Between two scans it only reads these again, when they are
due. A scan may be as slow as the table is large: the next one comes after fifty times as long.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from instep import durations, settings, sinks
from instep.document import due
from instep.document.due import OverdueCounter, OverdueSummary
from instep.pipeline.progress import Progress
from instep.sinks import inspection, status_ages
from instep.sinks.connection import READING
from instep.sinks.sink import Sink

ALARM = "overdue documents"  # among the alarms of the progress
LATE_ALARM = "late scans for overdue documents"
REFRESH_INTERVAL_S = 5.0
START_PAUSE_S = 5.0  # a run that has just started applies its backlog first
FAILURE_PAUSE_S = 5.0
END_PATIENCE_S = 2.0
SCAN_SHARE = 50  # a scan takes at most this part of the time
HORIZON_FIRST = timedelta(hours=1)
HORIZON_MIN = timedelta(minutes=1)
KEPT_MAX = 100_000


class OverdueWatch:
    """Keeps a pipeline's overdue documents in its progress, in its own thread."""

    def __init__(
        self,
        name: str,
        pipeline: settings.Pipeline,
        progress: Progress,
        epoch: Callable[[], int],
    ) -> None:
        """Create the thread. `epoch` returns the epoch of the running query, 0 if there is none."""
        self._thread = threading.Thread(target=self._run, name=f"{name} overdue", daemon=True)
        self._name, self._pipeline, self._progress = name, pipeline, progress
        self._limits, self._epoch = pipeline.due_after, epoch
        self._ended = threading.Event()
        self._sink: Sink | None = None
        self._sink_epoch = 0
        self._counter: OverdueCounter | None = None
        self._horizon = HORIZON_FIRST
        self._scan_at = 0.0  # by the monotonic clock

    def start(self) -> None:
        """Start the thread, if any status has a limit."""
        if self._limits:
            self._thread.start()

    def end(self) -> None:
        """End the thread. Do not wait long for a database that does not answer."""
        self._ended.set()
        if self._thread.ident:
            self._thread.join(END_PATIENCE_S)

    def refresh(self) -> None:
        """Find what is overdue now."""
        sink = self._opened()
        with sink.translated():
            now = status_ages.clock(sink)
        counter = self._counter
        if counter is None or time.monotonic() >= self._scan_at or now >= counter.covered_until:
            counter = self._scan(sink, now)
        elif documents := counter.take_due(now):
            counter.add(status_ages.among(sink, self._limits, documents), now)
        self._publish(counter.summary(now))

    # --- parts ------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = START_PAUSE_S
        while not self._ended.wait(pause_s):
            pause_s = REFRESH_INTERVAL_S
            if self._epoch():
                try:
                    self.refresh()
                except Exception:  # noqa: BLE001 - the pipeline itself reports database errors
                    pause_s = FAILURE_PAUSE_S
                    self._close()
        self._close()

    def _scan(self, sink: Sink, now: datetime) -> OverdueCounter:
        began = time.monotonic()
        counter = OverdueCounter(self._limits, now, self._horizon, KEPT_MAX)
        for page in status_ages.pages(sink, self._limits):
            counter.add(page, now)
            if self._ended.is_set():
                break
        ended = time.monotonic()
        pause_s = max(REFRESH_INTERVAL_S, SCAN_SHARE * (ended - began))
        self._scan_at, self._counter = ended + pause_s, counter
        self._horizon = max(HORIZON_MIN, timedelta(seconds=2 * pause_s))
        self._warn_of_late_scans(timedelta(seconds=ended - began), timedelta(seconds=pause_s))
        return counter

    def _warn_of_late_scans(self, took: timedelta, pause: timedelta) -> None:
        """Say so if a document may get a status and be overdue between two scans.

        A scan notes only what has the status already. The events themselves are not looked at:
        that would cost the flow.
        """
        short = [status for status, limit in self._limits.items() if limit < pause]
        sentence = None
        if short:
            named = ", ".join(f"{status} ({self._pipeline.due[status]})" for status in short)
            sentence = (
                f"overdue documents may be found up to {durations.shown(took + pause)} late: a scan"
                f" of the table takes {durations.shown(took)}, and the limit of {named} is shorter"
                " than the pause until the next one; an index on the status column makes scans"
                " faster"
            )
        self._progress.set_alarm(LATE_ALARM, sentence)

    def _publish(self, summary: OverdueSummary) -> None:
        self._progress.overdue = summary
        sentence = due.describe(summary, self._pipeline.due)
        if sentence is not None:
            if self._progress.lag:
                sentence += f", while {self._progress.lag:,} records wait in the log"
            sentence += f"; list them: instep overdue {shlex.quote(self._name)}"
        self._progress.set_alarm(ALARM, sentence)

    def _opened(self) -> Sink:
        """Return the connection; open another one for a new query: the table may have changed."""
        epoch = self._epoch()
        if self._sink is not None and epoch and epoch != self._sink_epoch:
            self._close()
        if self._sink is None:
            target = inspection.inspect(self._name, self._pipeline, READING)
            self._sink = sinks.open_sink(target, READING)
            self._sink_epoch = epoch
        return self._sink

    def _close(self) -> None:
        sink, self._sink, self._counter = self._sink, None, None
        if sink is not None:
            with contextlib.suppress(Exception):
                sink.close()
