"""Samples of each pipeline's status, taken by one thread per pipeline for all open pages.

However many pages are open, a pipeline is read once per interval. Each pipeline has a thread of
its own, so that a database that does not answer holds up no other page.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from instep.console.charts import Points
from instep.operate.status import PipelineStatus

WATCHED_INTERVAL_S = 2.0
IDLE_INTERVAL_S = 10.0
WATCHED_FOR_S = 10.0  # after the last page asked
KEPT_S = 3600.0
KEPT_INTERVAL_S = 5.0
FIRST_PATIENCE_S = 1.5
TICK_S = 0.25
STALE_AFTER_S = 30.0

# The text of an unexpected error may contain values; the console's output has it.
REPORT = "look at the console's output"

log = logging.getLogger("instep.console")

# what the kept samples hold of a status
VALUES: Mapping[str, Callable[[PipelineStatus], float | None]] = {
    "lag": lambda status: status.lag_records,
    "applied": lambda status: status.run.applied_per_s if status.run else None,
    "p50": lambda status: status.run.freshness_p50_s if status.run else None,
    "p99": lambda status: status.run.freshness_p99_s if status.run else None,
}


# seconds ago, and values, oldest first
Past = Sequence[tuple[float, dict[str, float | None]]]


class StatusSample(msgspec.Struct, frozen=True):
    """A pipeline's status, and when it was read."""

    at: datetime
    status: PipelineStatus
    number: int

    @property
    def is_stale(self) -> bool:
        """Return whether the servers have not answered for a while."""
        return (datetime.now(UTC) - self.at).total_seconds() > STALE_AFTER_S


class PipelineSampler:
    """Reads the status of one pipeline again and again."""

    def __init__(
        self,
        name: str,
        read: Callable[[], PipelineStatus],
        read_past: Callable[[], Past] = list,
    ) -> None:
        """Take the functions that read the status, and what the pipeline kept of the last hour.

        The first never raises errors of instep.
        """
        self.name, self._read = name, read
        self._read_past: Callable[[], Past] | None = read_past  # until it has answered
        self.latest: StatusSample | None = None
        self._kept: deque[tuple[float, dict[str, float | None]]] = deque()
        self._lock = threading.Lock()
        self._watched_at = float("-inf")
        self._first = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name} status", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Let the thread end after its current reading."""
        self._ended.set()

    def watch(self, patience_s: float = FIRST_PATIENCE_S) -> StatusSample | None:
        """Return the latest sample, and read more often for a while.

        The first sample is waited for briefly; None means that the servers have not answered yet.
        """
        self._watched_at = time.monotonic()
        self._first.wait(patience_s)
        return self.latest

    def points(self, value: str) -> Points:
        """Return the kept values with their times as seconds before now."""
        now = time.monotonic()
        with self._lock:
            return [(at - now, kept[value]) for at, kept in self._kept]

    def _run(self) -> None:
        while not self._ended.is_set():
            started = time.monotonic()
            self._take()
            while not self._ended.wait(TICK_S):
                now = time.monotonic()
                is_watched = now - self._watched_at < WATCHED_FOR_S
                if now - started >= (WATCHED_INTERVAL_S if is_watched else IDLE_INTERVAL_S):
                    break

    def _take(self) -> None:
        try:
            status = self._read()
        except Exception as error:
            # one reading that failed must not be the last one
            log.exception("reading the status of %s failed", self.name)
            what = f"unexpected error: {type(error).__name__}"
            status = PipelineStatus(self.name, "", "", "", error=f"{what}\n{REPORT}")
        number = self.latest.number + 1 if self.latest else 1
        self.latest = StatusSample(datetime.now(UTC), status, number)
        self._first.set()
        past, now = self._past(), time.monotonic()
        with self._lock:
            self._kept.extendleft((now - age_s, values) for age_s, values in reversed(past))
            if not self._kept or now - self._kept[-1][0] >= KEPT_INTERVAL_S:
                self._kept.append((now, {name: value(status) for name, value in VALUES.items()}))
            while self._kept[0][0] < now - KEPT_S:
                self._kept.popleft()

    def _past(self) -> Past:
        """Return what was kept before the console started; the first time that it can be read."""
        if self._read_past is None:
            return []
        try:
            past = self._read_past()
        except Exception as error:  # noqa: BLE001 - the status says what is wrong
            log.debug("the last hour of %s is not known yet: %r", self.name, error)
            return []
        self._read_past = None
        began_s = time.monotonic() - self._kept[0][0] if self._kept else 0.0
        return [(age_s, values) for age_s, values in past if began_s < age_s < KEPT_S]
