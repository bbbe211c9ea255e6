"""Threads beside a runner: one measures the lag to the end of the log, one keeps the run's heartbeat in the target database.

Neither touches the data or the query. What goes wrong here is tried again at the next interval, and ends nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping

from instep import errors, settings
from instep.kafka import backlog, offsets
from instep.kafka.connection import Cluster
from instep.kafka.offsets import Span
from instep.pipeline.progress import Progress
from instep.sinks import runs, target
from instep.sinks.runs import Heartbeat, RunReport

LOOK_INTERVAL_S = 1.0
CHANGE_INTERVAL_S = 0.1
HELD_AFTER_S = 3.0  # ordinary transactions are shorter
NAME_INTERVAL_S = 30.0  # who holds the log back is asked with a client of its own
END_PATIENCE_S = 5.0
STARTING = "starting"


class HeldBack:
    """Tells a transaction that holds the log back from the many that are open for a moment. Pure: the caller has the clock."""

    def __init__(self) -> None:
        self._stuck: dict[
            int, tuple[int, float]
        ] = {}  # committed end, and since when it stands there

    def see(
        self, spans: Mapping[int, Span], stands: Mapping[int, int], now: float
    ) -> dict[int, int]:
        """Partitions whose committed end has stood still below the end for a while, and the offsets that wait there."""
        held = {}
        for partition, span in spans.items():
            if span.committed_end >= span.end:
                self._stuck.pop(partition, None)
                continue
            at, since = self._stuck.get(partition, (-1, now))
            if at != span.committed_end:
                since = now
            self._stuck[partition] = (span.committed_end, since)
            if now - since >= HELD_AFTER_S:
                held[partition] = span.end - max(span.committed_end, stands.get(partition, 0))
        return held


class LagWatch:
    """Keeps `progress.lag` and what is held back up to date, also while the query has nothing to do."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        topic: str,
        progress: Progress,
        wanted: Callable[[], bool],
    ) -> None:
        """`wanted` says whether the log is worth asking now: a broker that is being waited for is not."""
        self._thread = threading.Thread(target=self._run, name=f"{name} lag", daemon=True)
        self._cluster, self._topic, self._progress, self._wanted = cluster, topic, progress, wanted
        self.partitions: tuple[int, ...] = ()  # set when the query starts
        self._held = HeldBack()
        self._named_at = -NAME_INTERVAL_S
        self._over = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(LOOK_INTERVAL_S):
            if self.partitions and self._wanted():
                with contextlib.suppress(errors.InstepError):
                    self._look()

    def end(self) -> None:
        self._over.set()

    def _look(self) -> None:
        spots = [(self._topic, partition) for partition in self.partitions]
        spans = {spot[1]: span for spot, span in offsets.spans(self._cluster, spots).items()}
        if len(spans) < len(spots):
            return  # a partition without a leader: its end is not known
        progress = self._progress
        progress.see_ends({partition: span.end for partition, span in spans.items()})
        held = self._held.see(spans, progress.positions, time.monotonic())
        if held:
            self._name(held)
        else:
            progress.held_by, self._named_at = [], -NAME_INTERVAL_S
        progress.held_back = sum(held.values())

    def _name(self, held: Mapping[int, int]) -> None:
        if time.monotonic() - self._named_at >= NAME_INTERVAL_S:
            found = backlog.open_transactions(self._cluster, self._topic, held)
            self._named_at = time.monotonic()
            self._progress.held_by = backlog.explained(held, found)


class HeartbeatWatch:
    """Reports the run's state to the target database: at every change, and every few seconds."""

    def __init__(
        self,
        name: str,
        pipeline: settings.Pipeline,
        state: Callable[[], tuple[int, str, str | None, str | None]],
    ) -> None:
        """`state` gives the epoch, the state, the code of an error and a detail."""
        self._thread = threading.Thread(target=self._run, name=f"{name} heartbeat", daemon=True)
        self._pipeline, self._target, self._state = name, pipeline.target, state
        self._over = threading.Event()
        self._started = self._changed_at = time.monotonic()
        self._last: tuple[int, str, str | None, str | None] | None = None
        self._due = 0.0

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        heartbeat = Heartbeat(self._pipeline, target.database_url(self._target))
        over = False
        while not over:
            over = self._over.wait(CHANGE_INTERVAL_S)
            self._look(heartbeat)
        heartbeat.close()

    def end(self) -> None:
        """Write the last state; a database that does not answer is not waited for."""
        self._over.set()
        self._thread.join(END_PATIENCE_S)

    def _look(self, heartbeat: Heartbeat) -> None:
        now, state = time.monotonic(), self._state()
        if state[1] == STARTING:
            return  # it has not fenced anybody yet, and may be setting the database up
        if state != self._last:
            if self._last is None or state[1] != self._last[1]:
                self._changed_at = now
            self._last, self._due = state, now
        if now >= self._due:
            self._due = now + runs.INTERVAL_S
            epoch, word, code, detail = state
            report = RunReport(
                epoch, word, now - self._started, now - self._changed_at, code, detail
            )
            with contextlib.suppress(
                Exception
            ):  # a heartbeat is a courtesy: the ledger has the truth
                heartbeat.beat(report)
