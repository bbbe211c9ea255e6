"""Collect the records of partitions, and commit them with their positions. Spark is not needed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

import pyarrow as pa

from instep import errors
from instep.archive import columns, files
from instep.archive.files import DataFile
from instep.archive.table import ArchiveTable
from instep.document.records import Record


class ArchiveWriter:
    """Writes the partitions of one task. What it has collected is in memory until it commits.

    If it dies, the position says where the next writer reads on. Files that no commit refers to
    are no part of the table.
    """

    def __init__(self, table: ArchiveTable, epoch: int) -> None:
        self._table, self._epoch = table, epoch
        self._rows: dict[int, list[pa.Table]] = {}
        self._starts: dict[int, int] = {}  # the position behind which the collected rows begin
        self._ends: dict[int, int] = {}
        self.records = self.size = 0

    def positions(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the next offset of each of these partitions, as the table has it now."""
        self._table.refresh()
        self._table.refuse_fenced(self._epoch)
        return self._table.positions(partitions)

    def take(self, positions: dict[int, int]) -> None:
        """Begin to collect partitions at these positions of the table."""
        self._starts |= positions
        self._ends |= positions

    def release(self, partitions: Collection[int]) -> None:
        """Collect no more of these partitions; nothing of them may be left uncommitted."""
        for partition in partitions:
            self._starts.pop(partition, None)
            self._ends.pop(partition, None)

    def add(self, partition: int, records: Sequence[Record]) -> None:
        """Collect records of a partition, in their order."""
        rows = columns.of_records(partition, records)
        self._rows.setdefault(partition, []).append(rows)
        self._ends[partition] = rows.column("offset")[-1].as_py() + 1
        self.records += rows.num_rows
        self.size += rows.nbytes

    def commit(self) -> dict[int, int]:
        """Commit what was collected; return the new position of each partition concerned."""
        if not self._rows:
            return {}
        rows = pa.concat_tables([rows for part in sorted(self._rows) for rows in self._rows[part]])
        ranges = {part: (self._starts[part], self._ends[part]) for part in self._rows}
        counts = {part: sum(one.num_rows for one in self._rows[part]) for part in self._rows}
        written: list[DataFile] = []
        try:
            for day, part in columns.days(rows):
                written.append(files.write(self._table.location, day, part))
            self._table.append(self._epoch, written, ranges, counts)
        except OSError as error:
            files.remove(self._table.location, written)
            raise errors.ArchiveUnusable(
                f"archive {self._table.name!r} cannot write to {self._table.location.path}: {error}"
            ) from error
        except (errors.Fenced, errors.StartAgain):  # refused for certain: no version has the files
            files.remove(self._table.location, written)
            raise
        except errors.ArchiveUnusable:
            self._remove_uncommitted(written)
            raise
        positions = {part: end for part, (_, end) in ranges.items()}
        self._starts |= positions
        self._rows, self.records, self.size = {}, 0, 0
        return positions

    def _remove_uncommitted(self, written: Sequence[DataFile]) -> None:
        """Remove files of a commit that failed, as far as it is certain that it did.

        In an object store, a request that seemed to fail may still arrive.
        """
        if not self._table.location.is_local:
            return
        with contextlib.suppress(errors.InstepError):
            self._table.refresh()
            known = {file.path for file in self._table.files()}
            files.remove(self._table.location, [one for one in written if one.path not in known])
