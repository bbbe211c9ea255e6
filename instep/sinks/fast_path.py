"""The short way to write a batch: upserts that do not read what is stored.

Either what is newer is upserted right away, and the count of written rows proves that all of it was; or the batch is staged in
the database, which tells what is late, and is upserted from there. What each database does its own way is in its sink.
"""

from __future__ import annotations

from collections.abc import Iterable

from instep.document import guard, kinds
from instep.document.guard import Document, Stored, Verdict
from instep.sinks.sink import SELECT_DELETED, Row, Sink

DOUBTED_BATCHES = 100
STAGED_DELETED = "SELECT 1 FROM instep_stage AS s JOIN instep_deleted AS d ON d.document = {{key}} WHERE d.pipeline = ? LIMIT 1"


def is_open(sink: Sink) -> bool:
    """Whether an upsert does what the guard says: not while something else than the guard decides."""
    return sink.target.upserts and sink.is_guarding and not sink.passes_over_is_refusal


def late_of_several(sink: Sink, reduced: guard.Reduced) -> dict[Document, Stored] | None:
    """Of the documents with several events those of which something as late as the first one is stored.

    The count of rows tells of the last event only. None when a document was deleted before.
    """
    if not sink.target.rules.ordered:
        return {}
    if sink.any_deleted() and _are_deleted(sink, reduced.latest):
        return None
    place, later = sink.guard_place, sink.target.rules.order_is_time
    firsts = (
        [values[place] for order, values in reduced.first.values() if order is not None]
        if place is not None
        else []
    )
    if not firsts:
        return {}
    orders = {document: order for document, (order, _) in reduced.first.items()}
    as_late = (
        (document, Stored(True, known)) for document, known in sink.not_before(min(firsts), orders)
    )
    return {
        d: one
        for d, one in as_late
        if guard.judge(orders[d], one.order, later) is not Verdict.APPLIED
    }


def attempt(sink: Sink, reduced: guard.Reduced, expected: int) -> bool:
    """Write what the guard lets through; nothing, and False, when that are not as many documents as expected."""
    sink.execute("SAVEPOINT instep")
    written = sink.upsert(_rows(sink, reduced))
    if written != expected:
        sink.back_to_savepoint()
        sink.doubts = DOUBTED_BATCHES if written is not None else 0
        return False
    sink.execute("RELEASE SAVEPOINT instep")
    return True


def stage(sink: Sink, reduced: guard.Reduced) -> dict[Document, Stored] | None:
    """Bring what may be written to the database; those of the documents of which something as late is stored.

    None when a document was deleted before, or a row's order value is none: then the stage is of no use.
    """
    sink.fill_stage(_rows(sink, reduced))
    if sink.target.rules.ordered and sink.any_deleted() and _staged_deleted(sink, reduced):
        return None
    found: dict[Document, Stored] = {}
    for document, (order,) in map(sink.key_of, sink.late()):
        known = sink.order_of(order)
        if known is None:
            return None
        found[document] = Stored(True, known)
    return found


def write_staged(sink: Sink, expected: int) -> None:
    """Write what the guard lets through of the stage; raises Outrun when that are not as many documents as expected."""
    written = sink.upsert_stage()
    if written is not None:
        sink.expect(written, expected)


def _rows(sink: Sink, reduced: guard.Reduced) -> list[Row]:
    place = sink.guard_place
    return [
        (
            document,
            latest[1],
            None if place is None else reduced.first.get(document, latest)[1][place],
        )
        for document, latest in sorted(reduced.latest.items())
    ]


def _are_deleted(sink: Sink, documents: Iterable[Document]) -> bool:
    """Whether one of these is remembered as deleted; it may have been made again since."""
    names = sorted(map(str, documents))
    return bool(list(sink.select_many(sink.sql(SELECT_DELETED), (sink.target.pipeline,), names)))


def _staged_deleted(sink: Sink, reduced: guard.Reduced) -> bool:
    """Whether a staged document was deleted before. What is remembered of deleted documents has their ids as text."""
    if sink.identity.is_composite:
        return _are_deleted(sink, reduced.latest)
    is_text = isinstance(sink.target.mapping.keys[0].kind, kinds.Text)
    key = f"s.{sink.key}" if is_text else f"CAST(s.{sink.key} AS {sink.text_type})"
    return bool(sink.select(sink.sql(STAGED_DELETED).format(key=key), (sink.target.pipeline,)))
