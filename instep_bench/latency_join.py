"""Computes the age of each event at its commit from the records of the sender and the tasks. Pure.

The time from due to commit has four parts: publish, until the broker's answer; wait, until the task
that read the event began; batch, until its transaction opened; write, until its commit returned. A
task may begin before the sender has received the broker's answer. The wait is then zero, and
publish ends when the task began.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from instep.report.percentiles import percentile_values
from instep_bench.commit_log import CommitTimes

NS = 1_000_000  # in a millisecond
IN_STEP_MS = 1_000.0
PARTS = ("publish", "wait", "batch", "write")
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
CURVE = (0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.8, 99.9, 99.95, 99.98, 99.99)


class SentEvent(msgspec.Struct, frozen=True, array_like=True):
    """One sent event: its times and its place in the log.

    The times are when it was due, when the client got it, and when the broker's answer arrived.
    """

    number: int
    due_ns: int
    sent_ns: int
    answered_ns: int
    partition: int
    offset: int

    @property
    def late_ms(self) -> float:
        """How late the sender was, compared with its schedule."""
        return max(0, self.sent_ns - self.due_ns) / NS


class EventTiming(msgspec.Struct, frozen=True):
    """An event from its due time to its commit, in milliseconds."""

    due_ns: int
    committed_ns: int
    late_ms: float
    publish: float
    wait: float
    batch: float
    write: float

    @property
    def total(self) -> float:
        """Milliseconds from the due time to the commit: the sum of the four parts."""
        return (self.committed_ns - self.due_ns) / NS


def join(
    sent: Iterable[SentEvent], commits: Iterable[CommitTimes]
) -> tuple[list[EventTiming], list[SentEvent]]:
    """Return the timings of the events with a recorded commit, and the events without one.

    Both are in the order of sending. An event belongs to the first commit that reaches it. If a
    kill came between a commit and its record, that is the next commit of the partition: the result
    may be too late, but never too early.
    """
    reached = _advances(commits)
    timings: list[EventTiming] = []
    missing: list[SentEvent] = []
    for event in sent:
        ends, advances = reached.get(event.partition, ([], []))
        at = bisect.bisect_left(ends, event.offset)
        if at == len(ends):
            missing.append(event)
        else:
            timings.append(_timing(event, advances[at]))
    return timings, missing


def _advances(commits: Iterable[CommitTimes]) -> dict[int, tuple[list[int], list[CommitTimes]]]:
    """Return per partition the last offsets and the commits that advanced it."""
    found: dict[int, tuple[list[int], list[CommitTimes]]] = defaultdict(lambda: ([], []))
    for commit in sorted(commits, key=lambda one: one.committed_ns):
        ends, advances = found[commit.partition]
        if not ends or commit.last > ends[-1]:
            ends.append(commit.last)
            advances.append(commit)
    return dict(found)


def _timing(event: SentEvent, commit: CommitTimes) -> EventTiming:
    fetched_ns = max(event.due_ns, min(event.answered_ns, commit.began_ns))
    began_ns = max(fetched_ns, commit.began_ns)
    return EventTiming(
        due_ns=event.due_ns,
        committed_ns=commit.committed_ns,
        late_ms=event.late_ms,
        publish=(fetched_ns - event.due_ns) / NS,
        wait=(began_ns - fetched_ns) / NS,
        batch=max(0, commit.opened_ns - began_ns) / NS,
        write=(commit.committed_ns - max(began_ns, commit.opened_ns)) / NS,
    )


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return the percentiles by the names in PERCENTILES, or nothing if there are no values."""
    known = list(values)
    if not known:
        return {}
    return dict(zip(PERCENTILES, percentile_values(known, PERCENTILES.values()), strict=True))


def curve(values: Iterable[float]) -> list[tuple[float, float]]:
    """Return the freshness of the slowest event in 10, 100, …, as long as there are enough."""
    known = list(values)
    if not known:
        return []
    one_in = [round(100 / (100 - percent), 2) for percent in CURVE]
    points = zip(one_in, percentile_values(known, CURVE), strict=True)
    return [(count, value) for count, value in points if count <= len(known)]


def thirds(timings: Sequence[EventTiming]) -> list[list[EventTiming]]:
    """Return three equal parts in the order of sending, to show the variation within one run."""
    if not timings:
        return []
    size = math.ceil(len(timings) / 3)
    return [list(timings[start : start + size]) for start in range(0, len(timings), size)]


def period(timings: Sequence[EventTiming], fault_ns: int) -> tuple[list[EventTiming], float]:
    """Return the events that a fault delayed, and the seconds until the table was back in step.

    The table is back in step when the last late event has been committed. An event is late if it is
    older than a second, or than twice the oldest event before the fault if that is more.
    """
    before = [timing.total for timing in timings if timing.committed_ns <= fault_ns]
    in_step_ms = max(IN_STEP_MS, 2 * max(before, default=0.0))
    after = [timing for timing in timings if timing.committed_ns > fault_ns]
    back_ns = max(
        (timing.committed_ns for timing in after if timing.total > in_step_ms), default=fault_ns
    )
    delayed = [timing for timing in after if timing.committed_ns <= back_ns]
    return delayed, (back_ns - fault_ns) / NS / 1000
