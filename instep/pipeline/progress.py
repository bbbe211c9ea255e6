"""The progress of a pipeline: counts from the query's reports and the ledger, and the lag."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from instep.pipeline import query, task


class Batch(msgspec.Struct, frozen=True):
    """One committed micro-batch, over all partitions."""

    counts: dict[str, int]
    positions: dict[int, int]
    ends: dict[int, int]  # the committed ends of the log, as far as the query knows


def read(text: str, topic: str) -> Batch:
    """Read a batch from Spark's progress report."""
    report: dict[str, Any] = json.loads(text)
    source = report["sources"][0]
    ends = _offsets(source["endOffset"], topic)
    latest = _offsets(source["latestOffset"], topic)
    observed = report.get("observedMetrics", {}).get(query.OBSERVED, {})
    counts = {name: int(observed.get(name) or 0) for name in task.SCHEMA.names}
    return Batch(counts, ends, latest)


def _offsets(reported: Any, topic: str) -> dict[int, int]:
    if isinstance(reported, str):
        reported = json.loads(reported)
    by_partition = (reported or {}).get(topic) or {}
    return {int(partition): offset for partition, offset in by_partition.items()}


class Progress:
    """The totals of a run, and a window of the last seconds for rates and freshness."""

    def __init__(self, now: Callable[[], float] = time.monotonic, window_s: float = 10.0) -> None:
        self._now = now
        self._window_s = window_s
        self._window: deque[tuple[float, dict[str, int]]] = deque()
        self._started = now()
        self.totals = dict.fromkeys(task.SCHEMA.names, 0)
        self.positions: dict[int, int] = {}
        self.lag: int | None = None  # to the end of the log; None: unknown
        self.held_back = 0  # the part of the lag that is behind an open transaction
        self.held_by: list[str] = []  # for each partition that is held back, a sentence
        self._begun: dict[int, int] = {}  # the positions before the query's first report
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

    def settle(self, totals: Mapping[str, int]) -> None:
        """Take the ledger's totals: a query that failed does not report its last commits."""
        for name, count in totals.items():
            if name in self.totals:
                self.totals[name] = max(self.totals[name], count)

    def add(self, batch: Batch) -> None:
        """Add a batch that the query reported."""
        for name, count in batch.counts.items():
            self.totals[name] += count
        self._window.append((self._now(), batch.counts))
        self.positions |= batch.positions
        self._ends |= {
            partition: max(end, self._ends.get(partition, 0))
            for partition, end in batch.ends.items()
        }
        self._measure()

    def rate(self) -> float:
        """Return the events applied per second, over the window."""
        self._trim()
        seconds = min(self._window_s, max(self._now() - self._started, 1.0))
        return sum(counts["applied"] for _, counts in self._window) / seconds

    def freshness_s(self, share: float) -> float | None:
        """Return an upper bound of this quantile of the window's freshness; None without events."""
        self._trim()
        buckets = [sum(counts[name] for _, counts in self._window) for name in task.BUCKETS]
        return quantile(buckets, share)

    def _trim(self) -> None:
        while self._window and self._window[0][0] < self._now() - self._window_s:
            self._window.popleft()


def quantile(buckets: list[int], share: float) -> float | None:
    """Return the upper bound of the bucket in which the quantile lies; infinite for the last."""
    wanted = sum(buckets) * share
    if not wanted:
        return None
    seen = 0
    for count, bound in zip(buckets, (*task.FRESHNESS_BOUNDS_S, float("inf")), strict=True):
        seen += count
        if seen >= wanted:
            return bound
    return float("inf")
