"""Read the records of an archive again: by partition, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from instep import errors
from instep.archive import columns, files
from instep.archive.files import DataFile
from instep.archive.table import ArchiveTable
from instep.kafka.offsets import LogRecord

WINDOW_OFFSETS = 200_000  # of one partition, which are sorted in memory


class ArchiveReader:
    """Reads one version of the table: commits that follow do not disturb it."""

    def __init__(self, table: ArchiveTable) -> None:
        self._table = table
        self._files = table.files()

    def ends(self) -> dict[int, tuple[int, int]]:
        """Return for each partition of the archive its first offset and its position."""
        partitions = range(max((file.partitions[1] for file in self._files), default=-1) + 1)
        positions, firsts = self._table.positions(partitions), self._table.firsts(partitions)
        return {part: (firsts.get(part, 0), end) for part, end in positions.items()}

    def records(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[LogRecord]:
        """Yield the records of half-open ranges of offsets, one partition after the other."""
        for partition, (start, end) in ranges.items():
            for rows in self.windows(partition, start, end):
                yield from columns.records(rows)

    def windows(self, partition: int, start: int, end: int) -> Iterator[pa.Table]:
        """Yield the rows of a range in order, a bounded number at a time."""
        for bounds in self._windows(partition, start, end):
            yield self.rows(partition, *bounds)

    def _windows(self, partition: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Divide a range; leave out what no file has."""
        while start < end:
            held = self._holding(partition, start, end)
            if not held:
                return
            start = max(start, min(file.offsets[0] for file in held))
            stop = min(end, start + WINDOW_OFFSETS)
            yield start, stop
            start = stop

    def rows(self, partition: int, start: int, end: int) -> pa.Table:
        """Return the rows of a range, sorted by offset."""
        held = self._holding(partition, start, end)
        return self._read(held, _in_range(partition, start, end)).sort_by("offset")

    def _holding(self, partition: int, start: int, end: int) -> list[DataFile]:
        return [file for file in self._files if file.may_hold(partition, start, end)]

    def _read(
        self,
        held: Sequence[DataFile],
        where: pc.Expression,
        names: Sequence[str] = tuple(columns.IN_FILES.names),
    ) -> pa.Table:
        """Return rows of these files. Raise ArchiveUnusable if one of them is gone."""
        try:
            return files.read(self._table.location, held, where, names)
        except OSError as error:
            raise errors.ArchiveUnusable(
                f"archive {self._table.name!r}: a file of the table at {self._table.location.path}"
                f" cannot be read: {error}"
            ) from error

    def count(self, partition: int, start: int, end: int) -> tuple[int, int]:
        """Return how many offsets of a range have a row, and how many rows are repeated."""
        found = repeated = 0
        for window in self._windows(partition, start, end):
            held = self._holding(partition, *window)
            offsets = self._read(held, _in_range(partition, *window), ["offset"])["offset"]
            distinct = pc.count_distinct(offsets).as_py()
            found += distinct
            repeated += len(offsets) - distinct
        return found, repeated

    def at_time(self, timestamp_ms: int) -> dict[int, int]:
        """Return the first offset of each partition with this timestamp or a later one."""
        late = [file for file in self._files if file.timestamps[1] >= timestamp_ms]
        where = pc.field("timestamp_ms") >= timestamp_ms
        rows = self._read(late, where, ["partition", "offset"])
        first = rows.group_by("partition").aggregate([("offset", "min")])
        pairs = zip(first["partition"].to_pylist(), first["offset_min"].to_pylist(), strict=True)
        return dict(pairs)

    def deletes(self, partition: int, start: int, end: int) -> dict[bytes | None, int]:
        """Return the offset of the last record without a value of each key that has one."""
        where = _in_range(partition, start, end) & pc.field("value").is_null()
        rows = self._read(self._holding(partition, start, end), where, ["offset", "key"])
        offsets, keys = rows["offset"].to_pylist(), rows["key"].to_pylist()
        found: dict[bytes | None, int] = {}
        for offset, key in zip(offsets, keys, strict=True):
            found[key] = max(offset, found.get(key, -1))
        return found


def _in_range(partition: int, start: int, end: int) -> pc.Expression:
    return (
        (pc.field("partition") == partition)
        & (pc.field("offset") >= start)
        & (pc.field("offset") < end)
    )
