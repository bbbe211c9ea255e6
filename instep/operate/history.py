"""The history kept affordable: old rows removed in chunks, each in a short transaction of its own."""

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
    """Remove rows that were committed before a time; how many went, or would go. A document is pruned at once."""
    gone, after = 0, None
    while True:
        with session.sink.transaction(keep=execute):
            until = session.sink.journal.history_chunk_end(after, CHUNK_ROWS)
            gone += session.sink.journal.remove_history(after, until, before)
        progress(gone)
        if until is None:
            return gone
        after = until
