"""The history kept affordable: old rows removed in chunks, each in a short transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from instep.pipeline.turns import Desk
from instep.sinks import setaside

CHUNK_ROWS = 5_000

Progress = Callable[[int], None]


def prune(desk: Desk, before: datetime, *, execute: bool, progress: Progress = lambda _: None) -> int:
    """Remove rows that were committed before a time; how many went, or would go.

    Along the log, as commits follow it: a chunk without an old row ends its partition. Rows whose verdict came later, by a
    release, are younger than their neighbours and stay.
    """
    with desk.look() as sink:
        logs = setaside.history_logs(sink)
    gone = 0
    for topic, partition in logs:
        offset = -1
        while True:
            with desk.sink.transaction(keep=execute):
                rows = setaside.history_after(desk.sink, topic, partition, offset, CHUNK_ROWS)
                old = [place for place, at in rows if at < before]
                gone += setaside.remove_history(desk.sink, old)
            progress(gone)
            if not old:
                break
            offset = rows[-1][0].offset
    return gone
