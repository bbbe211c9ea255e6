"""`instep reconcile --archive`: compare an archive with what its topic still holds.

Both are read in the order of the log, a chunk at a time. Chunks are compared as Arrow tables; only
where they differ, record by record. Spark is not needed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import pyarrow as pa

from instep import settings
from instep.archive import checks, columns, table
from instep.archive.files import locate
from instep.archive.reader import ArchiveReader
from instep.archive.table import Ranges
from instep.document.records import Record
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.kafka.partition_reader import PartitionReader
from instep.kafka.topics import Topic

CHUNK_RECORDS = 20_000
CHUNK_BYTES = 32 * 1024 * 1024
WAIT_S = 1.0
EXAMPLES_MAX = 100
DIFFERENCES = ("missing", "repeated", "different", "extra")

Progress = Callable[[int, int], None]


class ArchiveVerdict(StrEnum):
    """The result of a comparison."""

    IN_STEP = "in step"
    HELD_BACK = "in step so far"
    DIFFERENT = "not in step"


class ArchiveDifference(msgspec.Struct, frozen=True):
    """A record that the archive lacks, has several times, or has with another content."""

    kind: str  # missing, repeated, different, extra
    partition: int
    offset: int


class ArchiveReport(msgspec.Struct, frozen=True):
    """What a comparison found."""

    archive: str
    topic: str
    verdict: ArchiveVerdict
    compared: int  # records of the topic below the archive's positions
    missing: int
    repeated: int
    different: int
    extra: int  # of the archive only; with compaction the topic may have removed them: not counted
    only_archived: int  # offsets that the topic no longer holds
    lost: int  # offsets that the topic no longer holds, and that were never archived
    behind: int  # offsets that the topic holds, and that are not archived yet
    held_back: int  # the part of them behind an open transaction
    skipped: Ranges  # lost, and somebody decided to continue behind them
    lost_ranges: Ranges
    late_ranges: Ranges  # in the topic and behind `start`, but the archive began later
    removed: dict[int, int]  # rows of each partition that were archived and are no longer there
    examples: list[ArchiveDifference]


def compare(
    cluster: Cluster,
    name: str,
    archive: settings.Archive,
    progress: Progress = lambda *_: None,
) -> ArchiveReport:
    """Compare an archive with its topic, up to the archive's positions."""
    found = table.require(name, locate(archive.path))
    topic = checks.describe(cluster, name, archive.topic, found)
    checks.refuse_replaced(name, topic, found)
    comparison = _ArchiveComparison(cluster, topic, archive.start, found, progress)
    return comparison.report(name)


class _ArchiveComparison:
    """The counts of a comparison, partition by partition."""

    def __init__(
        self,
        cluster: Cluster,
        topic: Topic,
        start: str,
        found: table.ArchiveTable,
        progress: Progress,
    ) -> None:
        self._cluster, self._topic, self._start, self._table = cluster, topic, start, found
        self._reader = ArchiveReader(found)
        self._progress = progress
        self._positions = checks.positions(found, topic)
        self._firsts = dict.fromkeys(self._positions, 0) | found.firsts(topic.partitions)
        self._log_firsts = offsets.earliest(cluster, topic.name, topic.partitions)
        self._is_compacted = topics.is_compacted(cluster, topic.name)
        self._counts: Counter[str] = Counter()
        self._examples: list[ArchiveDifference] = []

    def report(self, name: str) -> ArchiveReport:
        ends = offsets.latest(self._cluster, self._topic.name, self._topic.partitions, False)
        committed = offsets.latest(self._cluster, self._topic.name, self._topic.partitions)
        ranges = {
            part: (max(self._firsts[part], self._log_firsts[part]), position)
            for part, position in self._positions.items()
        }
        total = sum(max(0, end - start) for start, end in ranges.values())
        done = 0
        for part, (start, end) in ranges.items():
            for reached in self._partition(part, start, end):
                self._progress(done + reached - start, total)
            done += max(0, end - start)
        behind = {part: self._behind(part, committed[part]) for part in self._topic.partitions}
        held = sum(max(0, ends[part] - committed[part]) for part in ends)
        only = sum(
            max(0, min(position, self._log_firsts[part]) - self._firsts[part])
            for part, position in self._positions.items()
        )
        lost = checks.expired(self._cluster, self._topic, self._positions)
        late, removed = self._late(), self._removed()
        counts = self._counts
        counts["lost"] = sum(end - start for start, end in lost.values())
        verdict = ArchiveVerdict.IN_STEP
        differs = any(counts[kind] for kind in DIFFERENCES)
        if differs or lost or late or removed:
            verdict = ArchiveVerdict.DIFFERENT
        elif held:
            verdict = ArchiveVerdict.HELD_BACK
        return ArchiveReport(
            name,
            self._topic.name,
            verdict,
            counts["compared"],
            counts["missing"],
            counts["repeated"],
            counts["different"],
            counts["extra"],
            only,
            counts["lost"],
            sum(behind.values()) + held,
            held,
            self._table.skipped(),
            {part: [bounds] for part, bounds in lost.items()},
            late,
            removed,
            self._examples,
        )

    def _late(self) -> Ranges:
        """Return what `start` includes, and the archive began behind."""
        if self._start == "latest":
            return {}
        wanted = self._log_firsts
        if (since := settings.start_time(self._start)) is not None:
            wanted = offsets.at_time(self._cluster, self._topic.name, self._topic.partitions, since)
        return {
            part: [(wanted[part], first)]
            for part, first in self._firsts.items()
            if wanted[part] < first
        }

    def _removed(self) -> dict[int, int]:
        """Return how many rows of each partition were archived and are no longer there.

        Of what the topic still holds, the comparison has named each row. The rest can only be
        counted: offsets without a record are normal. Counts repeated rows of that part too.
        """
        removed: dict[int, int] = {}
        for part, archived in self._table.rows(self._positions).items():
            first, position = self._firsts[part], self._positions[part]
            compared = min(position, max(first, self._log_firsts[part]))
            before, repeated = self._reader.count(part, first, compared)
            after, _ = self._reader.count(part, compared, position)
            self._counts["repeated"] += repeated
            if before + after < archived:
                removed[part] = archived - before - after
        return removed

    def _behind(self, partition: int, committed_end: int) -> int:
        """Return the offsets from the position to the end, unless only markers are left there."""
        position = self._positions.get(partition)
        if position is None:
            return committed_end - self._log_firsts[partition]
        position = max(position, self._log_firsts[partition])  # what is before it is lost
        if position >= committed_end:
            return 0
        found = offsets.first_records(self._cluster, self._topic.name, {partition: position})
        return committed_end - position if found[partition] is not None else 0

    def _partition(self, partition: int, start: int, end: int) -> Iterator[int]:
        """Compare a range; yield how far it is."""
        for records in self._log(partition, start, end):
            stop = records[-1].offset + 1
            self._chunk(partition, start, stop, records)
            start = stop
            yield start
        if start < end:  # what follows in the log are markers, or what compaction has removed
            self._chunk(partition, start, end, [])

    def _log(self, partition: int, start: int, end: int) -> Iterator[list[Record]]:
        """Yield the records of a range of the topic."""
        if start >= end:
            return
        reader = PartitionReader(self._cluster, self._topic.name, headers=True, once=True)
        with contextlib.closing(reader):
            reader.add({partition: start})
            while True:
                read = reader.read(WAIT_S, 0.0, CHUNK_RECORDS, CHUNK_BYTES).get(partition, [])
                below = [record for record in read if record.offset < end]
                if below:
                    yield below
                if len(below) < len(read) or partition in reader.ended:
                    return
                if read and read[-1].offset >= end - 1:
                    return

    def _chunk(self, partition: int, start: int, stop: int, records: Sequence[Record]) -> None:
        expected = columns.of_records(partition, records)
        found = self._reader.rows(partition, start, stop)
        self._counts["compared"] += len(records)
        if not found.equals(expected):
            self._differences(partition, expected, found)

    def _differences(self, partition: int, expected: pa.Table, found: pa.Table) -> None:
        wanted = {row["offset"]: row for row in expected.to_pylist()}
        stored: dict[int, dict[str, Any]] = {}
        for row in found.to_pylist():
            offset = row["offset"]
            if offset in stored:
                self._note("repeated", partition, offset)
            elif offset not in wanted:
                if not self._is_compacted:
                    self._note("extra", partition, offset)
            elif row != wanted[offset]:
                self._note("different", partition, offset)
            stored[offset] = row
        for offset in wanted.keys() - stored.keys():
            if not _holds(self._table.skipped(), partition, offset):
                self._note("missing", partition, offset)

    def _note(self, kind: str, partition: int, offset: int) -> None:
        self._counts[kind] += 1
        if len(self._examples) < EXAMPLES_MAX:
            self._examples.append(ArchiveDifference(kind, partition, offset))


def _holds(ranges: Mapping[int, Sequence[tuple[int, int]]], partition: int, offset: int) -> bool:
    return any(start <= offset < end for start, end in ranges.get(partition, ()))
