"""Write the rows of further tables: what the pipeline's verdicts on a batch make due there.

On the fast path, a further table is written like the main one, with its own due rows as events.
On the slow path, all tables are decided together, so that a row that any of them refuses parks
the document, and nothing of its event is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from instep.document import due_rows, guard
from instep.document.decoding import Event
from instep.document.due_rows import DueRows, TableRules
from instep.document.guard import Changes, DocumentId, Stored, Verdict
from instep.sinks.sink import FurtherSink, Sink


def due(
    sink: Sink,
    number: int,
    events: Sequence[Event],
    verdicts: Sequence[Verdict],
    absent: Iterable[DocumentId] = (),
) -> DueRows:
    """Return what events do to the further table with this number."""
    rules = TableRules(sink.target.rules, sink.further[number].target.rules, number)
    return due_rows.due(events, verdicts, rules, set(absent))


class FurtherBatch:
    """A further table while a batch is applied on the slow path.

    It knows what is stored of the rows that the batch may write, and which rows a deleted
    document has.
    """

    def __init__(self, sink: Sink, number: int) -> None:
        self._sink, self._number = sink, number
        self._table: FurtherSink = sink.further[number]
        self._stored: dict[DocumentId, Stored] = {}
        self._rows: dict[DocumentId, set[DocumentId]] = {}  # by document
        self._due: DueRows | None = None

    def read(self, events: Sequence[Event]) -> None:
        """Read what is stored of the rows that these events may write or delete."""
        rows = [row for event in events if event.further for row in event.further[self._number]]
        self._stored = self._table.stored(row.document for row in rows)
        deleting = [event.document for event in events if event.values is None]
        if self._table.target.rules.deletes == "row" and deleting:
            found = self._table.rows_of(deleting)
            self._rows = {document: set(rows) for document, rows in found.items()}

    def decide(
        self,
        events: Sequence[Event],
        verdicts: Sequence[Verdict],
        stored: Mapping[DocumentId, Stored],
    ) -> Changes:
        """Return what events do to the table. `stored` is the main table before them."""
        absent = {
            event.document
            for event in events
            if not stored.get(event.document, guard.ABSENT).present
        }
        self._due = due(self._sink, self._number, events, verdicts, absent)
        removed = {row for document in self._due.deleted for row in self._rows.get(document, ())}
        known = {row: one for row, one in self._stored.items() if row not in removed}
        changes = guard.settle([row for _, row in self._due.rows], known, self._table.target.rules)
        return msgspec.structs.replace(changes, deletes=sorted(removed, key=str))

    def take(self, changes: Changes) -> None:
        """Remember what was written, for the events behind it."""
        assert self._due is not None
        for document in self._due.deleted:
            for row in self._rows.pop(document, ()):
                self._stored.pop(row, None)
        for document, row_event in self._due.rows:
            self._rows.setdefault(document, set()).add(row_event.document)
        self._stored.update(changes.after())
