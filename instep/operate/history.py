"""Prune the history: remove old rows in chunks, each in a short transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from instep.pipeline.apply.maintenance import MaintenanceSession

CHUNK_ROWS = 10_000

Progress = Callable[[int], None]


def prune(
    session: MaintenanceSession,
    before: datetime,
    *,
    execute: bool,
    progress: Progress = lambda _: None,
) -> int:
    """Remove the rows committed before a time; return how many were, or would be, removed.

    All rows of a document are removed in the same transaction.
    """
    removed, after = 0, None
    while True:
        with session.sink.transaction(keep=execute):
            until = session.sink.journal.history_chunk_end(after, CHUNK_ROWS)
            removed += session.sink.journal.remove_history(after, until, before)
        progress(removed)
        if until is None:
            return removed
        after = until
