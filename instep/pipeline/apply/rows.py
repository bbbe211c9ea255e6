"""Events to rows: write what the guard lets through, and park the documents that are refused.

Steps 4 to 6 of the transaction, without history and quarantine. The flow, a release and a replay
of dead letters all come here. The caller holds the transaction and the ledger's lock; the events
are of one partition, in log order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from instep.document.decoding import Event
from instep.document.guard import DocumentId, Parked, Verdict
from instep.pipeline.apply import fast, further, slow
from instep.pipeline.apply.fast import AtStep
from instep.sinks.journal_entries import SpecialDocuments
from instep.sinks.sink import FurtherSink, Sink


def write(
    sink: Sink,
    events: Sequence[Event],
    *,
    isolate_failures: bool,
    parked: Collection[DocumentId] | None = None,
    already_applied: Collection[int] = (),
    at_step: AtStep = lambda _: None,
    stage_first: bool = False,
    special: SpecialDocuments | None = None,
) -> tuple[list[Verdict], list[Parked]]:
    """Write the events and return the verdict on each, and the events that have to wait.

    With `isolate_failures`, rows that the table refuses are found and their documents parked;
    without, the first refused row raises. `parked` are the documents that are parked already;
    by default the sink is asked. `already_applied` are the offsets of events that were let through
    before the ledger was moved back: no transition is checked again, and only the table can park
    them. `stage_first` is for a transaction that is repeated after `fast.LateRows`. `special` is
    given if the transaction has read already whether there are special documents.
    """
    if not events:
        return [], []
    any_deleted = True
    if parked is None:
        special = special or sink.journal.special_documents()
        any_deleted = special.any_deleted
        parked = set()
        if special.any_parked:
            parked = sink.journal.parked_among(event.document for event in events)
    if not (isolate_failures or parked or already_applied):
        verdicts = write_fast(
            sink, events, any_deleted=any_deleted, at_step=at_step, stage_first=stage_first
        )
        if verdicts is not None:
            return verdicts, []
    return slow.write(
        sink,
        events,
        isolate_failures=isolate_failures,
        parked=parked,
        already_applied=already_applied,
        at_step=at_step,
    )


def write_fast(
    sink: Sink,
    events: Sequence[Event],
    *,
    any_deleted: bool,
    at_step: AtStep,
    stage_first: bool = False,
) -> list[Verdict] | None:
    """Write events of documents that are not parked, and return the verdict on each.

    Return None, with nothing written, if they need the slow path.
    """
    if not events:
        return []
    if not sink.table.may_upsert:
        return None
    verdicts = fast.write(sink, events, at_step, any_deleted=any_deleted, stage_first=stage_first)
    if verdicts is not None:
        for number, table in enumerate(sink.further):
            due = further.due(sink, number, events, verdicts)
            _write_further(table, [row for _, row in due.rows], at_step, stage_first=stage_first)
    return verdicts


def _write_further(
    table: FurtherSink, rows: Sequence[Event], at_step: AtStep, *, stage_first: bool
) -> None:
    """Write rows of a further table by the path that it allows. No row of it is ever parked."""
    if write_fast(table, rows, any_deleted=False, at_step=at_step, stage_first=stage_first) is None:
        slow.write(
            table,
            rows,
            isolate_failures=False,
            parked=(),
            already_applied=(),
            at_step=at_step,
        )
