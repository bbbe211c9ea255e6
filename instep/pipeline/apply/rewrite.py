"""Write events again that were applied before, where that changes a row: for `instep replay`.

The caller holds the transaction and the ledger's lock, and gives what is stored of the documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from instep.document import guard
from instep.document.decoding import Event
from instep.document.guard import Changes, DocumentId, Stored, Verdict
from instep.pipeline.apply import slow
from instep.pipeline.apply.further import FurtherBatch
from instep.sinks.sink import Sink


class RewrittenRow(msgspec.Struct, frozen=True):
    """A document that changed, or would: its last event, and its main row before and after."""

    event: Event
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def write_changed(
    sink: Sink, events: Sequence[Event], stored: Mapping[DocumentId, Stored], *, execute: bool
) -> list[RewrittenRow]:
    """Write the events, roll back, and with `execute` write those again that changed a row.

    Only the database knows what it makes of a value, so only a trial shows which rows change.
    """
    rules = slow.relaxed(sink.target.rules)
    verdicts = guard.settle(events, stored, rules).verdicts
    applied = [
        event for event, verdict in zip(events, verdicts, strict=True) if verdict is Verdict.APPLIED
    ]
    before = sink.table.look_up(event.document for event in applied)
    further_before = _further_rows(sink, applied)
    with sink.unguarded():
        with sink.savepoint(keep=False):
            sink.write(_settled(sink, applied, stored, rules))
            after = sink.table.look_up(event.document for event in applied)
            further_after = _further_rows(sink, applied)
        changed = [
            event
            for event in applied
            if before.get(event.document) != after.get(event.document)
            or further_before.get(event.document) != further_after.get(event.document)
        ]
        if execute and changed:
            with sink.savepoint():
                sink.write(_settled(sink, changed, stored, rules))
    last = {event.document: event for event in changed}
    return [
        RewrittenRow(event, before.get(document), after.get(document))
        for document, event in last.items()
    ]


def _settled(
    sink: Sink, events: Sequence[Event], stored: Mapping[DocumentId, Stored], rules: guard.Rules
) -> Changes:
    changes = guard.settle(events, stored, rules)
    further = []
    for number in range(len(sink.further)):
        table = FurtherBatch(sink, number)
        table.read(events)
        further.append(table.decide(events, changes.verdicts, stored))
    return msgspec.structs.replace(changes, further=tuple(further))


def _further_rows(sink: Sink, events: Sequence[Event]) -> dict[DocumentId, list[Any]]:
    """Return by document what the further tables have of it."""
    found: dict[DocumentId, list[Any]] = {}
    for table in sink.further:
        by_document = table.rows_of({event.document for event in events})
        rows = table.table.look_up(row for of_one in by_document.values() for row in of_one)
        for document, of_one in by_document.items():
            found.setdefault(document, []).append([(row, rows.get(row)) for row in sorted(of_one)])
    return found
