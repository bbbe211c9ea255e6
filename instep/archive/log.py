"""An archive together with its topic, as one log that begins where the archive does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from instep.archive.reader import ArchiveReader
from instep.archive.table import ArchiveTable
from instep.document import event
from instep.kafka.logs import Log
from instep.kafka.offsets import LogRecord


class ArchivedLog:
    """Reads the archive below its positions, and the topic from there on."""

    def __init__(
        self, table: ArchiveTable, topic: Log, partitions: Collection[int], *, keeps_deleted: bool
    ) -> None:
        """Take the archive, its topic and the topic's partitions.

        Without `keeps_deleted`, leave out the records of a key that a record without a value
        follows: their documents were deleted, and must not come back.
        """
        self._reader, self._topic, self._keeps_deleted = ArchiveReader(table), topic, keeps_deleted
        self._firsts, self._positions = table.firsts(partitions), table.positions(partitions)

    def starts(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset at which the archive of each partition began."""
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

    def _records(self, partition: int, start: int, end: int) -> Iterator[LogRecord]:
        archived_to = self._positions.get(partition, 0)
        yield from self._reader.records({partition: (start, min(end, archived_to))})
        yield from self._topic.records({partition: (max(start, archived_to), end)})

    def _deleted(self, partition: int, start: int, end: int) -> dict[bytes | None, int]:
        """Return the offset of the last record without a value of each key that has one."""
        archived_to = self._positions.get(partition, 0)
        found = self._reader.deletes(partition, start, min(end, archived_to))
        for record in self._topic.records({partition: (max(start, archived_to), end)}):
            if record.value is None:
                found[record.key] = record.offset
        return found
