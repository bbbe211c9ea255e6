"""The progress of a pipeline: counts from the flow's reports and the ledger, and the lag."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from instep.document.due import OverdueSummary
from instep.pipeline import counts
from instep.pipeline.engine import Report
from instep.sinks import runs
from instep.sinks.runs import MinuteFigures


class Progress:
    """The totals of a run, and a window of the last seconds for rates and freshness.

    The runner adds reports in its thread, while others show them or serve them as metrics.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, window_s: float = 10.0) -> None:
        self._now = now
        self._window_s = window_s
        self._window: deque[tuple[float, dict[str, int]]] = deque()
        self._lock = threading.Lock()
        self._started = now()
        self.totals = dict.fromkeys(counts.NAMES, 0)
        self.positions: dict[int, int] = {}
        self.lag: int | None = None  # to the end of the log; None: unknown
        self.held_back = 0  # the part of the lag that is behind an open transaction
        self.held_by: list[str] = []  # for each partition that is held back, a sentence
        self.overdue: OverdueSummary | None = None  # None: no status has a limit, or unknown yet
        self.redriven = {"released": 0, "refused": 0}  # attempts of this run
        self.given_up: int | None = None  # parked documents; None: no redrive, or unknown yet
        self.alarms: dict[str, str] = {}  # by subject, such as "overdue documents", a sentence
        self._begun: dict[int, int] = {}  # the positions before the flow's first report
        self._ends: dict[int, int] = {}

    def begin(self, positions: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Take the ledger's positions and the log's ends, to know the lag from the start."""
        self._begun = dict(positions)
        self.see_ends(ends)

    def see_ends(self, ends: Mapping[int, int]) -> None:
        """Take the ends of the log, including records behind open transactions."""
        self._ends = dict(ends)
        self._measure()

    def _measure(self) -> None:
        positions = self._begun | self.positions
        self.lag = sum(max(0, end - positions.get(p, 0)) for p, end in self._ends.items())

    def set_alarm(self, subject: str, sentence: str | None) -> None:
        """Raise an alarm, or end it with None."""
        if sentence is None:
            self.alarms.pop(subject, None)
        else:
            self.alarms[subject] = sentence

    def settle(self, totals: Mapping[str, int]) -> None:
        """Take the ledger's totals: a flow that failed does not report its last commits."""
        for name, count in totals.items():
            if name in self.totals:
                self.totals[name] = max(self.totals[name], count)

    def add(self, report: Report) -> None:
        """Add what a flow reported."""
        for name, count in report.counts.items():
            self.totals[name] += count
        with self._lock:
            self._window.append((self._now(), report.counts))
        self.positions |= report.positions
        self._ends |= {
            partition: max(end, self._ends.get(partition, 0))
            for partition, end in report.ends.items()
        }
        self._measure()

    def rate(self) -> float:
        """Return the events applied per second, over the window."""
        seconds = min(self._window_s, max(self._now() - self._started, 1.0))
        return sum(counted["applied"] for counted in self._recent()) / seconds

    def freshness_s(self, share: float) -> float | None:
        """Return an upper bound of this quantile of the window's freshness; None without events."""
        recent = self._recent()
        buckets = [sum(counted[name] for counted in recent) for name in counts.BUCKETS]
        return quantile(buckets, share)

    def minute(
        self, before: Mapping[str, int], seconds: float, *, is_running: bool
    ) -> MinuteFigures:
        """Return the figures since the totals were `before`, this many seconds ago."""
        since = {name: count - before[name] for name, count in self.totals.items()}
        buckets = [since[name] for name in counts.BUCKETS]
        return MinuteFigures(
            lag=self.lag if is_running else None,
            applied_per_s=since["applied"] / seconds,
            freshness_p50_s=finite(quantile(buckets, 0.5)),
            freshness_p99_s=finite(quantile(buckets, 0.99)),
        )

    def _recent(self) -> list[dict[str, int]]:
        """Return the counts of the window."""
        with self._lock:
            while self._window and self._window[0][0] < self._now() - self._window_s:
                self._window.popleft()
            return [counted for _, counted in self._window]


def quantile(buckets: list[int], share: float) -> float | None:
    """Return the upper bound of the bucket in which the quantile lies; infinite for the last."""
    wanted = sum(buckets) * share
    if not wanted:
        return None
    seen = 0
    for count, bound in zip(buckets, (*counts.FRESHNESS_BOUNDS_S, float("inf")), strict=True):
        seen += count
        if seen >= wanted:
            return bound
    return float("inf")


def finite(freshness_s: float | None) -> float | None:
    """Return a freshness that databases can keep: they have no infinity."""
    return None if freshness_s is None else min(freshness_s, runs.FRESHNESS_MAX_S)
