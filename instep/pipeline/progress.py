"""What a pipeline has done so far, from the counts that its query reports."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from instep.pipeline import query, task


class Batch(msgspec.Struct, frozen=True):
    """One micro-batch that was committed, in all partitions."""

    counts: dict[str, int]
    positions: dict[int, int]
    lag: int


def read(text: str, topic: str) -> Batch:
    """A batch from Spark's progress report."""
    report: dict[str, Any] = json.loads(text)
    source = report["sources"][0]
    ends = _offsets(source["endOffset"], topic)
    latest = _offsets(source["latestOffset"], topic)
    observed = report.get("observedMetrics", {}).get(query.OBSERVED, {})
    counts = {name: int(observed.get(name) or 0) for name in task.SCHEMA.names}
    return Batch(counts, ends, sum(max(0, latest.get(p, 0) - end) for p, end in ends.items()))


def _offsets(found: Any, topic: str) -> dict[int, int]:
    if isinstance(found, str):
        found = json.loads(found)
    return {int(partition): offset for partition, offset in ((found or {}).get(topic) or {}).items()}


class Progress:
    """Sums over a run, and a window of the last seconds for rates and freshness."""

    def __init__(self, now: Callable[[], float] = time.monotonic, window_s: float = 10.0) -> None:
        self._now = now
        self._window_s = window_s
        self._window: deque[tuple[float, dict[str, int]]] = deque()
        self._started = now()
        self.totals = dict.fromkeys(task.SCHEMA.names, 0)
        self.positions: dict[int, int] = {}
        self.lag: int | None = None

    def add(self, batch: Batch) -> None:
        for name, count in batch.counts.items():
            self.totals[name] += count
        self._window.append((self._now(), batch.counts))
        self.positions |= batch.positions
        self.lag = batch.lag

    def rate(self) -> float:
        """Events applied a second, over the window."""
        self._trim()
        seconds = min(self._window_s, max(self._now() - self._started, 1.0))
        return sum(counts["applied"] for _, counts in self._window) / seconds

    def freshness_s(self, share: float) -> float | None:
        """The freshness that this share of the window's events kept to: an upper bound; None when there were none."""
        self._trim()
        buckets = [sum(counts[name] for _, counts in self._window) for name in task.BUCKETS]
        return quantile(buckets, share)

    def _trim(self) -> None:
        while self._window and self._window[0][0] < self._now() - self._window_s:
            self._window.popleft()


def quantile(buckets: list[int], share: float) -> float | None:
    """The bound of the bucket in which this share of the values is reached; infinite in the last."""
    wanted = sum(buckets) * share
    if not wanted:
        return None
    seen = 0
    for count, bound in zip(buckets, (*task.FRESHNESS_BOUNDS_S, float("inf")), strict=True):
        seen += count
        if seen >= wanted:
            return bound
    return float("inf")
