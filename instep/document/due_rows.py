"""Which rows of a further table events write: the guard of a pipeline with several tables.

The pipeline's own verdict on an event comes first:

- a table without an order takes the events that are *applied*;
- a table with an order of its own also takes those that are *stale* or *repeated*, unless the
  document has no row in the main table, and its own guard decides on the row;
- an event that is ignored or parked makes no row anywhere;
- a delete that is applied deletes the document's rows, or is ignored, as the table's `deletes`
  says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from instep.document.guard import DocumentId, Rules, Verdict
from instep.document.records import Event


class DueRows(msgspec.Struct, frozen=True):
    """What events do to a further table: the documents whose rows go first, then the rows."""

    deleted: set[DocumentId]
    rows: list[tuple[DocumentId, Event]]  # with the document of each


class TableRules(msgspec.Struct, frozen=True):
    """The rules of the main table, and those of the further table with a number."""

    main: Rules
    further: Rules
    number: int


def due(
    events: Sequence[Event],
    verdicts: Sequence[Verdict],
    rules: TableRules,
    absent: Collection[DocumentId] = (),
) -> DueRows:
    """Return what events, in log order, do to a further table.

    `absent` are the documents that had no row in the main table before the events.
    """
    gone, deleted = set(absent), set[DocumentId]()
    rows: list[tuple[DocumentId, Event] | None] = []
    places: dict[DocumentId, list[int]] = {}  # of each document's rows
    for event, verdict in zip(events, verdicts, strict=True):
        document = event.document
        if event.values is None:
            if verdict is Verdict.APPLIED and rules.main.deletes == "row":
                gone.add(document)
            if verdict is Verdict.APPLIED and rules.further.deletes == "row":
                deleted.add(document)
                for place in places.pop(document, ()):
                    rows[place] = None
        elif event.further and takes(verdict, rules.further, is_gone=document in gone):
            for row in event.further[rules.number]:
                places.setdefault(document, []).append(len(rows))
                rows.append((document, row))
        if event.values is not None and verdict is Verdict.APPLIED:
            gone.discard(document)
    return DueRows(deleted, [row for row in rows if row is not None])


def takes(verdict: Verdict, rules: Rules, *, is_gone: bool) -> bool:
    """Return whether a further table with these rules takes an event with this verdict.

    `is_gone` is whether the document has no row in the main table.
    """
    if verdict is Verdict.APPLIED:
        return True
    return rules.ordered and verdict in (Verdict.STALE, Verdict.REPEATED) and not is_gone
