"""The fast path: write a batch by upserts, without reading what is stored.

There are two ways. Either the latest values of each document are upserted under the guard, and
the number of written rows shows that none was late. Or the batch is loaded into the stage, the
database returns the rows that are not older, and the rest is upserted from the stage. What differs
between databases is in their `TargetTable`.
"""

from __future__ import annotations

from instep.document import guard, kinds
from instep.document.guard import Document, Stored, Verdict
from instep.sinks.sink import Sink
from instep.sinks.target_table import StagedRow

PESSIMISTIC_BATCHES = 100  # after a batch with late rows
STAGED_DELETED = (
    "SELECT 1 FROM instep_stage AS s JOIN instep_deleted AS d ON d.document = {{key}}"
    " WHERE d.pipeline = ? LIMIT 1"
)


def is_open(sink: Sink) -> bool:
    """Return whether an upsert does what the guard says: nothing else decides at the moment."""
    return sink.table.may_upsert


def late_of_several(sink: Sink, reduced: guard.Reduced) -> dict[Document, Stored] | None:
    """Return what is stored of documents with several events, if it is not older than the first.

    The number of written rows only covers the last event of each document. None if one of the
    documents was deleted before.
    """
    rules = sink.target.rules
    if not rules.ordered:
        return {}
    if sink.journal.any_deleted() and sink.journal.deleted_orders(reduced.latest):
        return None
    place = sink.table.guard_place
    if place is None:
        return {}
    firsts = [values[place] for order, values in reduced.first.values() if order is not None]
    if not firsts:
        return {}
    orders = {document: order for document, (order, _) in reduced.first.items()}
    late = {}
    for document, stored_order in sink.table.rows_not_before(min(firsts), orders):
        verdict = guard.judge(orders[document], stored_order, rules.order_is_time)
        if verdict is not Verdict.APPLIED:
            late[document] = Stored(True, stored_order)
    return late


def attempt(sink: Sink, reduced: guard.Reduced, expected: int) -> bool:
    """Upsert the batch. Roll back and return False unless exactly `expected` rows were written."""
    sink.connection.execute("SAVEPOINT instep")
    written = sink.table.upsert(_rows(sink, reduced))
    if written != expected:
        sink.connection.back_to_savepoint()
        sink.table.expect_late_rows(0 if written is None else PESSIMISTIC_BATCHES)
        return False
    sink.connection.execute("RELEASE SAVEPOINT instep")
    return True


def stage(sink: Sink, reduced: guard.Reduced) -> dict[Document, Stored] | None:
    """Load the batch into the stage, and return what is stored of documents that is not older.

    None if a document was deleted before, or a row has no order value: the stage is of no use.
    """
    sink.table.fill_stage(_rows(sink, reduced))
    if sink.target.rules.ordered and sink.journal.any_deleted() and _staged_deleted(sink, reduced):
        return None
    late: dict[Document, Stored] = {}
    for row in sink.table.late_rows():
        document, (value,) = sink.table.split_key(row)
        order = sink.table.order_value(value)
        if order is None:
            return None
        late[document] = Stored(True, order)
    return late


def write_staged(sink: Sink, expected: int) -> None:
    """Upsert the stage; raise Outrun unless exactly `expected` rows were written."""
    written = sink.table.upsert_stage()
    if written is not None:
        sink.table.check_written(written, expected)


def _rows(sink: Sink, reduced: guard.Reduced) -> list[StagedRow]:
    """Return the latest values of each document, and the guard's value of its first event."""
    place = sink.table.guard_place
    return [
        (
            document,
            latest[1],
            None if place is None else reduced.first.get(document, latest)[1][place],
        )
        for document, latest in sorted(reduced.latest.items())
    ]


def _staged_deleted(sink: Sink, reduced: guard.Reduced) -> bool:
    """Return whether a staged document was deleted before. Deleted ids are kept as text."""
    if sink.table.identity.is_composite:
        return bool(sink.journal.deleted_orders(reduced.latest))
    key = f"s.{sink.table.key}"
    if not isinstance(sink.target.mapping.keys[0].kind, kinds.Text):
        key = f"CAST({key} AS {sink.connection.text_type})"
    statement = sink.connection.sql(STAGED_DELETED).replace("{key}", key)
    return bool(sink.connection.select(statement, (sink.target.pipeline,)))
