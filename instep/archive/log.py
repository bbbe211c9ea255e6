"""An archive together with its topic, as one log that begins where the first of them does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from instep.archive.reader import ArchiveReader
from instep.archive.table import ArchiveTable, Ranges
from instep.document import event
from instep.kafka.logs import Log
from instep.kafka.offsets import LogRecord


class ArchivedLog:
    """Reads the archive from its beginning to its positions, and the topic otherwise."""

    def __init__(
        self, table: ArchiveTable, topic: Log, partitions: Collection[int], *, keeps_deleted: bool
    ) -> None:
        """Take the archive, its topic and the topic's partitions.

        Without `keeps_deleted`, leave out the records of a key that a record without a value
        follows: their documents were deleted, and must not come back.
        """
        self._reader, self._topic, self._keeps_deleted = ArchiveReader(table), topic, keeps_deleted
        self._firsts, self._positions = table.firsts(partitions), table.positions(partitions)
        self._skipped = table.skipped()

    def starts(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset that archive or topic has of each partition."""
        in_topic = self._topic.starts(partitions)
        return {part: min(self._firsts.get(part, at), at) for part, at in in_topic.items()}

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the end of each partition of the topic."""
        return self._topic.ends(partitions)

    def at_time(self, partitions: Collection[int], when: datetime) -> dict[int, int]:
        """Return the first offset with a timestamp at or after a time; the end if none has."""
        archived = self._reader.at_time(int(event.utc(when).timestamp() * 1000))
        return self._topic.at_time(partitions, when) | {
            part: offset for part, offset in archived.items() if part in partitions
        }

    def records(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[LogRecord]:
        """Yield the records of ranges, one partition after the other."""
        for part, (start, end) in ranges.items():
            deleted = {} if self._keeps_deleted else self._deleted(part, start, end)
            for record in self._records(part, start, end):
                if record.value is None or record.offset > deleted.get(record.key, -1):
                    yield record

    def lost(self, ranges: Mapping[int, tuple[int, int]]) -> Ranges:
        """Return the parts of ranges that neither the archive nor the topic has."""
        in_topic = self._topic.starts(ranges)
        found: Ranges = {}
        for part, (start, end) in ranges.items():
            before, archived, after = self._parts(part, start, end)
            gaps = [_common(archived, skipped) for skipped in self._skipped.get(part, ())]
            gaps += [_common(one, (0, in_topic[part])) for one in (before, after)]
            if gaps := sorted(gap for gap in gaps if gap[0] < gap[1]):
                found[part] = gaps
        return found

    def _records(self, partition: int, start: int, end: int) -> Iterator[LogRecord]:
        before, archived, after = self._parts(partition, start, end)
        yield from self._topic.records({partition: before})
        yield from self._reader.records({partition: archived})
        yield from self._topic.records({partition: after})

    def _deleted(self, partition: int, start: int, end: int) -> dict[bytes | None, int]:
        """Return the offset of the last record without a value of each key that has one."""
        before, archived, after = self._parts(partition, start, end)
        found: dict[bytes | None, int] = {}
        for record in self._topic.records({partition: before}):
            if record.value is None:
                found[record.key] = record.offset
        found |= self._reader.deletes(partition, *archived)
        for record in self._topic.records({partition: after}):
            if record.value is None:
                found[record.key] = record.offset
        return found

    def _parts(
        self, partition: int, start: int, end: int
    ) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Divide a range: before the archive, in the archive, and behind it; any may be empty."""
        first, position = self._firsts.get(partition, 0), self._positions.get(partition, 0)
        archived = _common((start, end), (first, position))
        return (start, min(end, first)), archived, (max(start, position), end)


def _common(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the intersection of two half-open ranges; its end may be before its start."""
    return max(one[0], other[0]), min(one[1], other[1])
