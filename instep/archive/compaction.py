"""Join small files to larger ones, sorted by partition and offset, while others write.

The rows are read and written without any lock. Only the commit counts: if the writer is faster,
the commit is tried again on the newer version, and the writer never waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from instep import errors
from instep.archive import files
from instep.archive.files import DataFile
from instep.archive.table import ArchiveTable

SMALL_FILES_MAX = 32  # of the current day; those of other days are joined as soon as there are two
SMALL_SHARE = 0.75  # a file is small below this share of the wanted size


def plan(found: Sequence[DataFile], size: int, current: str | None) -> list[list[DataFile]]:
    """Return which files to join, each list to one file of about this size. Pure.

    The current day gets further files soon, so its files wait until there are many.
    """
    days: dict[str | None, list[DataFile]] = {}
    for file in found:
        if file.size < size * SMALL_SHARE:
            days.setdefault(file.day, []).append(file)
    joins: list[list[DataFile]] = []
    for day, small in days.items():
        if len(small) >= (SMALL_FILES_MAX if day is not None and day == current else 2):
            joins += _parts(sorted(small, key=lambda file: (file.offsets, file.path)), size)
    return joins


def _parts(small: Sequence[DataFile], size: int) -> Iterator[list[DataFile]]:
    """Yield neighbours in the log that have about this size together."""
    part: list[DataFile] = []
    for file in small:
        if part and sum(one.size for one in part) + file.size > size:
            if len(part) > 1:
                yield part
            part = []
        part.append(file)
    if len(part) > 1:
        yield part


def compact(table: ArchiveTable, epoch: int, joined: Sequence[DataFile]) -> bool:
    """Join files; return False if one of them is gone from the table meanwhile."""
    try:
        rows = files.read(table.location, joined)
        rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
        added = [files.write(table.location, joined[0].day, rows)]
    except OSError as error:
        raise errors.ArchiveUnusable(
            f"archive {table.name!r} cannot be compacted at {table.location.path}: {error}"
        ) from error
    try:
        is_done = table.replace(epoch, joined, added)
    except errors.Fenced:
        files.remove(table.location, added)
        raise
    if not is_done:
        files.remove(table.location, added)
    return is_done
