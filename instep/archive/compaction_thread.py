"""A thread of the driver that joins small files and removes files that are no longer needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from instep import errors, settings
from instep.archive import compaction, table
from instep.archive.files import locate
from instep.archive.table import ArchiveTable

INTERVAL_S = 30.0
VACUUM_INTERVAL_S = 6 * 3_600.0
END_PATIENCE_S = 2.0


class CompactionThread:
    """Keeps the number of files low. An error here never ends the archive: it tries again."""

    def __init__(self, name: str, archive: settings.Archive, epoch: Callable[[], int]) -> None:
        """Take the archive, and what returns the epoch of its run; 0 before the first start."""
        self._thread = threading.Thread(target=self._run, name=f"{name} compaction", daemon=True)
        self._name, self._archive, self._epoch = name, archive, epoch
        self._ended = threading.Event()
        self._vacuum_due = time.monotonic() + VACUUM_INTERVAL_S
        self.joined = 0
        self.failure: str | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """End the thread. A compaction that is not finished leaves the table as it is."""
        self._ended.set()
        self._thread.join(END_PATIENCE_S)

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            if not self._epoch():
                continue
            try:
                self._tidy()
            except errors.InstepError as error:
                self.failure = error.what
            except Exception as error:  # noqa: BLE001 - small files do no harm to the archive
                self.failure = f"{type(error).__name__}: {error}"
            else:
                self.failure = None

    def _tidy(self) -> None:
        opened = table.require(self._name, locate(self._archive.path))
        self.joined += tidy(opened, self._archive, self._epoch(), self._ended.is_set, today())
        if self._archive.vacuum_after_hours and time.monotonic() >= self._vacuum_due:
            self._vacuum_due = time.monotonic() + VACUUM_INTERVAL_S
            opened.vacuum(self._archive.vacuum_after_hours, execute=True)


def tidy(
    opened: ArchiveTable,
    archive: settings.Archive,
    epoch: int,
    is_ended: Callable[[], bool] = lambda: False,
    current: str | None = None,
) -> int:
    """Join small files; return how many were joined. Those of the current day can wait."""
    count = 0
    for joined in compaction.plan(opened.files(), archive.file_mb * 1_000_000, current):
        if is_ended():
            break
        if compaction.compact(opened, epoch, joined):
            count += len(joined)
    return count


def today() -> str:
    """Return the current day (UTC), whose files are joined less eagerly."""
    return f"{datetime.now(UTC):%Y-%m-%d}"
