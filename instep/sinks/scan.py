"""Reading a target whole, for `instep reconcile`: pages of the table, what is parked, deleted and recorded as written.

Everything here runs on a pipeline's sink, most of it inside one snapshot (`Sink.snapshot`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from instep.document.guard import Document
from instep.sinks.sink import Sink

PAGE_ROWS = 50_000

PARKED_PAGE = "SELECT DISTINCT document FROM instep_parked WHERE pipeline = ?"
DELETED_PAGE = "SELECT document, order_value FROM instep_deleted WHERE pipeline = ?"
# documents that the pipeline has written, as the history and people's decisions say
WRITTEN_PAGES = (
    "SELECT DISTINCT document FROM instep_history WHERE pipeline = ? AND verdict IN ('applied', 'released')",
    "SELECT DISTINCT document FROM instep_decisions WHERE pipeline = ? AND document IS NOT NULL"
    " AND outcome IN ('applied', 'released', 'inserted', 'written', 'deleted')",
)
REPLAYED_PAGE = (
    "SELECT document, max({offset}) FROM instep_decisions WHERE pipeline = ? AND topic = ? AND {partition} = ?"
    " AND {offset} >= ? AND {offset} < ? AND action = 'replayed' AND outcome = 'applied' AND document IS NOT NULL"
)
OTHER_TOPIC = "SELECT 1 FROM {{table}} WHERE pipeline = ? AND topic <> ? LIMIT 1"


def rows(sink: Sink) -> Iterator[list[tuple[Any, ...]]]:
    """The whole table, a page at a time: the document, then the mapped columns as the table holds them."""
    last: tuple[Any, ...] = ()
    while True:
        condition, values = sink.beyond(last) if last else (f"{sink.keys[0]} IS NOT NULL", ())
        found = sink.select(
            f"{_select(sink)} WHERE {condition} ORDER BY {sink.key} LIMIT {PAGE_ROWS}", values
        )
        if found:
            last = found[-1][: len(sink.keys)]
            yield [(document, *values) for document, values in map(sink.key_of, found)]
        if len(found) < PAGE_ROWS:
            return


def held_rows(sink: Sink, documents: Sequence[Document]) -> dict[Document, tuple[Any, ...]]:
    """The mapped columns of these documents as the table holds them now, held until the transaction ends."""
    query = f"{_select(sink)} WHERE {sink.key_asked} IN {{documents}}{sink.for_update}"
    found = map(sink.key_of, sink.select_many(query, (), sink.asked(documents)))
    return {document: tuple(values) for document, values in found}


def parked_documents(sink: Sink) -> Iterator[list[tuple[str]]]:
    """Every parked document, a page at a time."""
    return _pages(sink, PARKED_PAGE)


def deleted_documents(sink: Sink) -> Iterator[list[tuple[str, int]]]:
    """Every deleted document and the order value known of it, a page at a time."""
    return _pages(sink, DELETED_PAGE)


def written_documents(sink: Sink) -> Iterator[list[tuple[str]]]:
    """Every document that the pipeline is recorded to have written, a page at a time. One may come more than once.

    Those that it has deleted are in `deleted_documents` too.
    """
    for statement in WRITTEN_PAGES:
        yield from _pages(sink, statement)


def replayed_documents(
    sink: Sink, partition: int, start: int, end: int
) -> Iterator[list[tuple[str, int]]]:
    """Every document with a replayed event between two offsets, and the last one's offset, a page at a time."""
    return _pages(
        sink, REPLAYED_PAGE, (sink.target.topic, partition, start, end), " GROUP BY document"
    )


def followed_another(sink: Sink) -> bool:
    """Whether the table may hold what another topic brought: the ledger, the history or a decision knows one."""
    tables = (
        "instep_ledger",
        "instep_decisions",
        "instep_history",
    )  # the last one takes a walk through it
    return any(
        sink.select(
            sink.sql(OTHER_TOPIC).format(table=one), (sink.target.pipeline, sink.target.topic)
        )
        for one in tables
    )


def _select(sink: Sink) -> str:
    columns = ", ".join(
        [sink.key_read(), *(sink.scanned(column) for column in sink.target.mapping.columns)]
    )
    return f"SELECT {columns} FROM {sink.table}"


def _pages(
    sink: Sink, statement: str, values: tuple[Any, ...] = (), grouped: str = ""
) -> Iterator[list[Any]]:
    last: tuple[Any, ...] = ()
    while True:
        beyond = " AND document > ?" if last else ""
        page = sink.sql(f"{statement}{beyond}{grouped} ORDER BY document LIMIT {PAGE_ROWS}")
        found = sink.select(page, (sink.target.pipeline, *values, *last))
        if found:
            last = (found[-1][0],)
            yield found
        if len(found) < PAGE_ROWS:
            return
