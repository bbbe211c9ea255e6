"""Write events again that were applied before, where that changes a row: for `instep replay`.

The caller holds the transaction and the ledger's lock, and gives what is stored of the documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from instep.document import guard
from instep.document.decoding import Event
from instep.document.guard import DocumentId, Stored, Verdict
from instep.pipeline.apply import slow
from instep.sinks.sink import Sink


class RewrittenRow(msgspec.Struct, frozen=True):
    """A row that changed, or would: its document's last event, and the row before and after."""

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
    with sink.table.unguarded():
        with sink.savepoint(keep=False):
            sink.write(guard.settle(applied, stored, rules))
            after = sink.table.look_up(event.document for event in applied)
        changed = [
            event for event in applied if before.get(event.document) != after.get(event.document)
        ]
        if execute and changed:
            with sink.savepoint():
                sink.write(guard.settle(changed, stored, rules))
    last = {event.document: event for event in changed}
    return [
        RewrittenRow(event, before.get(document), after.get(document))
        for document, event in last.items()
    ]
