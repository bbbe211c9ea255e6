"""The fast path: upsert the latest values of each document, with the guard in the statement.

Nothing that is stored has to be read. Two ways, in this order:

1. **Upsert and count.** The number of written rows must be the number of documents. Then nothing
   stored was as new, and the verdicts follow from the batch alone. Only documents with several
   events need a look at their rows, since the count says nothing of their earlier events.
2. **Stage.** Otherwise the upsert is rolled back. The values go to a temporary table, the database
   says for which documents something as new is stored, and the rest is upserted from there. The
   next hundred batches begin here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instep.document import guard
from instep.document.decoding import Event
from instep.document.guard import Verdict
from instep.sinks import fast_path
from instep.sinks.sink import Sink

AtStep = Callable[[int], None]


def is_possible(sink: Sink) -> bool:
    """Return whether an upsert does what the guard says for this table."""
    return fast_path.is_open(sink)


def write(sink: Sink, events: Sequence[Event], at_step: AtStep) -> list[Verdict] | None:
    """Write the events and return the verdict on each.

    Return None, with nothing written, if these events need the slow path.
    """
    at_step(5)
    reduced = guard.reduce(events, sink.target.rules)
    if reduced is None:
        return None
    if sink.table.is_optimistic(reduced):
        late = fast_path.late_of_several(sink, reduced)
        if late is None:
            return None
        verdicts, expected_rows = guard.rejudge(reduced, events, late, sink.target.rules)
        at_step(6)
        if fast_path.attempt(sink, reduced, expected_rows):
            return verdicts
    late = fast_path.stage(sink, reduced)
    if late is None:
        return None
    verdicts, expected_rows = guard.rejudge(reduced, events, late, sink.target.rules)
    at_step(6)
    fast_path.write_staged(sink, expected_rows)
    return verdicts
