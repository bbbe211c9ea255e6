"""What a pipeline has done so far, from the counts that its query reports and the ledger sums up; and what still waits."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from instep.pipeline import query, task


class Batch(msgspec.Struct, frozen=True):
    """One micro-batch that was committed, in all partitions."""

    counts: dict[str, int]
    positions: dict[int, int]
    ends: dict[int, int]  # of what is committed in the log, as far as the query knows


def read(text: str, topic: str) -> Batch:
    """A batch from Spark's progress report."""
    report: dict[str, Any] = json.loads(text)
    source = report["sources"][0]
    ends = _offsets(source["endOffset"], topic)
    latest = _offsets(source["latestOffset"], topic)
    observed = report.get("observedMetrics", {}).get(query.OBSERVED, {})
    counts = {name: int(observed.get(name) or 0) for name in task.SCHEMA.names}
    return Batch(counts, ends, latest)


def _offsets(found: Any, topic: str) -> dict[int, int]:
    if isinstance(found, str):
        found = json.loads(found)
    return {
        int(partition): offset for partition, offset in ((found or {}).get(topic) or {}).items()
    }


class Progress:
    """Sums over a run, and a window of the last seconds for rates and freshness."""

    def __init__(self, now: Callable[[], float] = time.monotonic, window_s: float = 10.0) -> None:
        self._now = now
        self._window_s = window_s
        self._window: deque[tuple[float, dict[str, int]]] = deque()
        self._started = now()
        self.totals = dict.fromkeys(task.SCHEMA.names, 0)
        self.positions: dict[int, int] = {}
        self.lag: int | None = None  # to the end of the log; None: not known yet
        self.held_back = 0  # of the lag: offsets behind an open transaction
        self.held_by: list[
            str
        ] = []  # a sentence for each partition that an open transaction holds back
        self._begun: dict[
            int, int
        ] = {}  # where partitions stood before the first report of the query
        self._ends: dict[int, int] = {}

    def begin(self, positions: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Take the positions of the ledger and the ends of the log, so that the lag is known before the query reports."""
        self._begun = dict(positions)
        self.see_ends(ends)

    def see_ends(self, ends: Mapping[int, int]) -> None:
        """Take the ends of the log, open transactions included."""
        self._ends = dict(ends)
        self._measure()

    def _measure(self) -> None:
        stands = {**self._begun, **self.positions}
        self.lag = sum(
            max(0, end - stands.get(partition, 0)) for partition, end in self._ends.items()
        )

    def settle(self, totals: Mapping[str, int]) -> None:
        """Take the sums that the ledger has: a query that failed does not report what its last tasks committed."""
        for name, count in totals.items():
            if name in self.totals:
                self.totals[name] = max(self.totals[name], count)

    def add(self, batch: Batch) -> None:
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
