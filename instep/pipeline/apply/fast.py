"""The fast path: upsert the latest values of each document, with the guard in the statement.

Nothing that is stored has to be read. Two ways, in this order:

1. **Upsert and count.** The number of written rows must be the number of documents. Then nothing
   stored was as new, and the verdicts follow from the batch alone. Only documents with several
   events need a look at their rows, since the count says nothing about their earlier events.
2. **Stage.** Otherwise the transaction is rolled back and done again. The values go to a temporary
   table, the database says for which documents something as new is stored, and the rest is upserted
   from there. The next hundred batches begin here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from instep.document import guard
from instep.document.decoding import Event
from instep.document.guard import DocumentId, Reduced, Stored, Verdict
from instep.sinks.journal_entries import SpecialDocuments
from instep.sinks.sink import Sink
from instep.sinks.target_table import StagedColumns, StagedRow

PESSIMISTIC_BATCHES = 100  # after a batch with late rows

AtStep = Callable[[int], None]


class LateRows(Exception):
    """An upsert wrote another number of rows than expected: roll back, and use the stage."""


def write(
    sink: Sink,
    events: Sequence[Event],
    at_step: AtStep,
    *,
    any_deleted: bool = True,
    stage_first: bool = False,
) -> list[Verdict] | None:
    """Write the events and return the verdict on each.

    Return None, with nothing written, if these events need the slow path. Raise LateRows if the
    transaction must be rolled back and begun again with `stage_first`. `any_deleted` is whether
    the journal knows any deleted document.
    """
    at_step(5)
    rules = sink.target.rules
    reduced = guard.reduce(events, rules)
    if reduced is None:
        return None
    any_deleted = any_deleted and rules.ordered
    if not stage_first and sink.table.is_optimistic(len(reduced.latest)):
        late = _late_of_several(sink, reduced, any_deleted)
        if late is None:
            return None
        verdicts, expected_rows = _verdicts(reduced, events, late, rules)
        at_step(6)
        _upsert_and_count(sink, reduced, expected_rows)
        return verdicts
    late = _stage(sink, reduced, any_deleted)
    if late is None:
        return None
    verdicts, expected_rows = _verdicts(reduced, events, late, rules)
    at_step(6)
    written = sink.table.upsert_stage()
    if written is not None:
        sink.table.check_written(written, expected_rows)
    return verdicts


def write_columns(
    sink: Sink,
    staged: StagedColumns,
    *,
    stage_first: bool = False,
    special: SpecialDocuments | None = None,
) -> bool:
    """Write documents of which only the newest row matters, because nobody asks for verdicts.

    Return False, with nothing written, if they need another path. Raise LateRows as `write` does.
    """
    table, rules = sink.table, sink.target.rules
    if not table.may_upsert or rules.missing != "insert" or rules.transitions:
        return False
    special = special or sink.journal.special_documents()
    if special.any_parked or (special.any_deleted and rules.ordered):
        return False
    if not stage_first and table.is_optimistic(len(staged)):
        written = table.upsert_columns(staged)
        if written != len(staged):
            table.expect_late_rows(0 if written is None else PESSIMISTIC_BATCHES)
            raise LateRows
        return True
    table.fill_stage_columns(staged)
    late = 0
    for row in table.late_rows():
        _, (value,) = table.split_key(row)
        if table.order_value(value) is None:
            return False
        late += 1
    written = table.upsert_stage()
    if written is not None:
        table.check_written(written, len(staged) - late)
    return True


def _verdicts(
    reduced: Reduced,
    events: Sequence[Event],
    late: Mapping[DocumentId, Stored],
    rules: guard.Rules,
) -> tuple[list[Verdict], int]:
    """Return the verdict on each event, and the number of documents to write."""
    if late:
        return guard.rejudge(reduced, events, late, rules)
    return reduced.verdicts, len(reduced.latest)


def _late_of_several(
    sink: Sink, reduced: Reduced, any_deleted: bool
) -> dict[DocumentId, Stored] | None:
    """Return what is stored of documents with several events, if it is as new as their first.

    Return None if one of the documents was deleted before.
    """
    rules = sink.target.rules
    if not rules.ordered:
        return {}
    if any_deleted and sink.journal.deleted_orders(reduced.latest):
        return None
    index = sink.table.guard_index
    if index is None:
        return {}
    firsts = [values[index] for order, values in reduced.first.values() if order is not None]
    if not firsts:
        return {}
    orders = {document: order for document, (order, _) in reduced.first.items()}
    late = {}
    for document, stored_order in sink.table.rows_not_before(min(firsts), orders):
        verdict = guard.judge(orders[document], stored_order, rules.order_is_time)
        if verdict is not Verdict.APPLIED:
            late[document] = Stored(True, stored_order)
    return late


def _upsert_and_count(sink: Sink, reduced: Reduced, expected_rows: int) -> None:
    """Upsert the batch. Raise LateRows unless the expected rows were written."""
    # No savepoint: it would cost every batch two statements, and few have late rows.
    written = sink.table.upsert(staged_rows(sink, reduced))
    if written != expected_rows:
        sink.table.expect_late_rows(0 if written is None else PESSIMISTIC_BATCHES)
        raise LateRows


def _stage(sink: Sink, reduced: Reduced, any_deleted: bool) -> dict[DocumentId, Stored] | None:
    """Load the batch into the stage, and return what is stored of documents if it is as new.

    Return None if the stage is of no use: a document was deleted before, or a stored row has no
    order value.
    """
    sink.table.fill_stage(staged_rows(sink, reduced))
    if any_deleted:
        staged_key = sink.table.staged_key_as_text()
        if sink.journal.any_deleted_in_stage(staged_key, reduced.latest):
            return None
    late: dict[DocumentId, Stored] = {}
    for row in sink.table.late_rows():
        document, (value,) = sink.table.split_key(row)
        order = sink.table.order_value(value)
        if order is None:
            return None
        late[document] = Stored(True, order)
    return late


def staged_rows(sink: Sink, reduced: Reduced) -> list[StagedRow]:
    """Return the latest values of each document, and the guard's value of its first event."""
    index = sink.table.guard_index
    rows: list[StagedRow] = []
    for document, latest in sorted(reduced.latest.items()):
        first = None if index is None else reduced.first.get(document, latest)[1][index]
        rows.append((document, latest[1], first))
    return rows
