"""The history kept affordable: old rows removed in chunks, each in a short transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from instep.pipeline.turns import Desk
from instep.sinks import setaside

CHUNK_ROWS = 10_000

Progress = Callable[[int], None]


def prune(desk: Desk, before: datetime, *, execute: bool, progress: Progress = lambda _: None) -> int:
    """Remove rows that were committed before a time; how many went, or would go. A document is pruned at once."""
    gone, after = 0, None
    while True:
        with desk.sink.transaction(keep=execute):
            until = setaside.history_end(desk.sink, after, CHUNK_ROWS)
            gone += setaside.remove_history(desk.sink, after, until, before)
        progress(gone)
        if until is None:
            return gone
        after = until
