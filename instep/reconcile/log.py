"""The log of a pipeline for `instep reconcile`: where it begins, where it ends, what waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from instep import errors, settings
from instep.kafka import backlog, offsets, places
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.pipeline import continuity
from instep.pipeline.continuity import LogReader
from instep.reconcile.spark_progress import Progress
from instep.sinks.sink import Sink
from instep.sinks.target import Position

POLL_INTERVAL_S = 0.2
STANDSTILL_S = 5.0

Offsets = dict[int, int]


class PipelineLog:
    """The topic that a pipeline's ledger knows, and where the pipeline began in it."""

    def __init__(
        self,
        cluster: Cluster,
        sink: Sink,
        pipeline: settings.Pipeline,
        begin: str | None,
        *,
        from_source: bool,
        reader: LogReader | None = None,
    ) -> None:
        """Take what reads the log, if it is no pipeline."""
        self.cluster, self.sink = cluster, sink
        self.pipeline = pipeline
        name = sink.target.pipeline
        with sink.translated():
            ledger = sink.ledger.positions()
        reader = reader or continuity.pipeline(name)
        self.topic = continuity.describe(cluster, reader, sink.target.topic, ledger)
        continuity.refuse_replaced(reader, self.topic, ledger)
        continuity.refuse_expired(cluster, reader, self.topic, ledger)
        continuity.refuse_diverged(cluster, reader, self.topic, ledger)
        if not from_source:
            if not ledger:
                raise errors.SettingsError(
                    f"{reader.job} has no ledger: it has never run",
                    "run it first: instep run --once",
                )
            if begin is None:
                _refuse_unknown_start(name, pipeline, ledger)
        self.begin = beginning(cluster, self.topic, pipeline, begin)
        # Ends of partitions that readers cannot reach because of an open transaction.
        self.held_back: Offsets = {}

    def ends(self) -> Offsets:
        """Return the ends of the committed records."""
        return offsets.latest(self.cluster, self.topic.name, self.topic.partitions)

    def first_offsets(self) -> Offsets:
        """Return the first offsets that the log still holds."""
        return offsets.earliest(self.cluster, self.topic.name, self.topic.partitions)

    def wait_for_ledger(
        self, wait_s: float, say: Callable[[str], None], progress: Progress
    ) -> Offsets:
        """Wait until the ledger reaches the end of the log; return that end.

        Stop waiting after `wait_s`, or when neither the ledger nor the end moves for some seconds:
        a running pipeline reaches the end quickly.
        """
        goal = offsets.latest(self.cluster, self.topic.name, self.topic.partitions, committed=False)
        deadline, moved_at, last_seen = time.monotonic() + wait_s, time.monotonic(), None
        start: Offsets = {}
        while True:
            committed = self.ends()
            ends = {p: min(end, goal[p]) for p, end in committed.items()}
            self.held_back = backlog.still_held_back(goal, committed)
            with self.sink.translated():
                positions = {p: row.next_offset for p, row in self.sink.ledger.positions().items()}
            start = start or positions
            if start and wait_s > 0:
                done, total = _distance(start, positions), _distance(start, ends)
                progress("waiting for the pipeline", done, total, "records")
            if (positions, ends) != last_seen:
                if not self.held_back and not self.waiting(positions, ends):
                    return ends
                if last_seen is None and wait_s > 0:
                    say("waiting for the pipeline to reach the end of the log")
                moved_at, last_seen = time.monotonic(), (positions, ends)
            if time.monotonic() >= min(deadline, moved_at + STANDSTILL_S):
                return ends
            time.sleep(POLL_INTERVAL_S)

    def waiting(self, positions: Mapping[int, int], ends: Offsets) -> Offsets:
        """Return the positions of those partitions that hold records between position and end.

        Transaction markers are not records.
        """
        starts = {p: positions.get(p, self.begin.get(p, 0)) for p in ends}
        behind = {p: at for p, at in starts.items() if at < ends[p]}
        if not behind:
            return {}
        records = offsets.first_records(self.cluster, self.topic.name, behind)
        return {
            p: behind[p]
            for p, record in records.items()
            if record is not None and record.offset < ends[p]
        }


def _distance(start: Offsets, to: Offsets) -> int:
    return sum(to.get(p, 0) - first for p, first in start.items())


def _refuse_unknown_start(
    name: str, pipeline: settings.Pipeline, ledger: Mapping[int, Position]
) -> None:
    """Raise if a pipeline began at the latest record and its ledger does not say where that was.

    Ledgers of earlier releases do not.
    """
    unknown = any(row.since_offset is None for row in ledger.values())
    if pipeline.start == "latest" and unknown:
        raise errors.SettingsError(
            f'pipeline {name!r} has start = "latest", and its ledger does not say where it began',
            "name the place with --from, e.g. --from @2026-11-01T08:00:00Z",
        )


def beginning(
    cluster: Cluster, topic: Topic, pipeline: settings.Pipeline, begin: str | None
) -> Offsets:
    """Return where the comparison begins: at the given place, else at the pipeline's `start`."""
    start_time = settings.start_time(pipeline.start)
    place: places.Place
    if begin is not None:
        place = places.parse_place(begin)
    elif start_time is not None:
        place = places.AtTime(start_time)
    else:
        place = places.FromStart()
    return dict(places.resolve(cluster, topic.name, topic.partitions, place))
