"""Read a whole target for `instep reconcile`: the table, and parked, deleted and written documents.

Most of it runs inside one snapshot (`Sink.snapshot`). Everything is read in pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from instep.sinks.journal_entries import LOAD_PREFIX, RESULT_MARK
from instep.sinks.sink import Sink

PAGE_ROWS = 50_000

PARKED_PAGE = "SELECT DISTINCT document FROM instep_parked WHERE pipeline = ?"
DELETED_PAGE = "SELECT document, order_value FROM instep_deleted WHERE pipeline = ?"
# documents that the pipeline has written, according to the history and to decisions
WRITTEN_PAGES = (
    "SELECT DISTINCT document FROM instep_history"
    " WHERE pipeline = ? AND verdict IN ('applied', 'released')",
    "SELECT DISTINCT document FROM instep_decisions WHERE pipeline = ? AND document IS NOT NULL"
    " AND outcome IN ('applied', 'released', 'inserted', 'written', 'deleted')",
)
REPLAYED_PAGE = (
    "SELECT document, max({offset}) FROM instep_decisions"
    " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND {offset} >= ? AND {offset} < ?"
    " AND action = 'replayed' AND outcome = 'applied' AND document IS NOT NULL"
)
IS_LOAD = f"substr(topic, 1, {len(LOAD_PREFIX)}) = '{LOAD_PREFIX}'"
OTHER_TOPIC = (
    f"SELECT 1 FROM {{{{table}}}} WHERE pipeline = ? AND topic <> ? AND topic NOT LIKE ?"
    f" AND NOT ({IS_LOAD}) LIMIT 1"
)
ANY_LOAD = "SELECT 1 FROM instep_loads WHERE pipeline = ? LIMIT 1"
LOADED_PAGE = (
    "SELECT document, max(order_value) FROM instep_history"
    f" WHERE pipeline = ? AND {IS_LOAD} AND verdict IN ('applied', 'released')"
)
# 1 if one of the document's events has no order value: with an order, it is a delete
READ_PAGE = (
    "SELECT document, max(CASE WHEN order_value IS NULL THEN 1 ELSE 0 END) FROM instep_history"
    f" WHERE pipeline = ? AND NOT ({IS_LOAD})"
)


def rows(sink: Sink) -> Iterator[list[tuple[Any, ...]]]:
    """Read the whole table: the document, then the mapped columns as the table holds them."""
    table = sink.table
    last: tuple[Any, ...] = ()
    while True:
        condition, values = table.after_key(last) if last else (f"{table.keys[0]} IS NOT NULL", ())
        page = sink.connection.select(
            f"{table.select_columns()} WHERE {condition} ORDER BY {table.key} LIMIT {PAGE_ROWS}",
            values,
        )
        if page:
            last = page[-1][: len(table.keys)]
            yield [(document, *columns) for document, columns in map(table.split_key, page)]
        if len(page) < PAGE_ROWS:
            return


def parked_documents(sink: Sink) -> Iterator[list[tuple[str]]]:
    """Read every parked document."""
    return _pages(sink, PARKED_PAGE)


def deleted_documents(sink: Sink) -> Iterator[list[tuple[str, int]]]:
    """Read every deleted document and the order value that is kept of it."""
    return _pages(sink, DELETED_PAGE)


def written_documents(sink: Sink) -> Iterator[list[tuple[str]]]:
    """Read every document that the pipeline is recorded to have written. May contain duplicates.

    Documents that it has deleted are in `deleted_documents` too.
    """
    for statement in WRITTEN_PAGES:
        yield from _pages(sink, statement)


def replayed_documents(
    sink: Sink, partition: int, start: int, end: int
) -> Iterator[list[tuple[str, int]]]:
    """Read every document with replayed events between two offsets, and its last such offset."""
    return _pages(
        sink, REPLAYED_PAGE, (sink.target.topic, partition, start, end), " GROUP BY document"
    )


def any_load(sink: Sink) -> bool:
    """Return whether `instep load` has ever written for this pipeline."""
    return bool(sink.connection.select(sink.connection.sql(ANY_LOAD), (sink.target.pipeline,)))


def loaded_documents(sink: Sink) -> Iterator[list[tuple[str, int | None]]]:
    """Read every document to which a row of a load was applied, and the order value of the row."""
    return _pages(sink, LOADED_PAGE, grouped=" GROUP BY document")


def read_documents(sink: Sink) -> Iterator[list[tuple[str, int]]]:
    """Read every document of which the pipeline has read an event from a topic.

    The number is 1 if one of its events has no order value.
    """
    return _pages(sink, READ_PAGE, grouped=" GROUP BY document")


def followed_another_topic(sink: Sink) -> bool:
    """Return whether the table may hold events of another topic.

    The ledger, a decision or the history names one. Loads do not count.
    """
    # the last one needs a scan of the whole history
    tables = ("instep_ledger", "instep_decisions", "instep_history")
    topic = sink.target.topic
    parameters = (sink.target.pipeline, topic, f"{topic}{RESULT_MARK}%")
    for table in tables:
        statement = sink.connection.sql(OTHER_TOPIC).replace("{table}", table)
        if sink.connection.select(statement, parameters):
            return True
    return False


def _pages(
    sink: Sink, statement: str, values: tuple[Any, ...] = (), grouped: str = ""
) -> Iterator[list[Any]]:
    last: tuple[Any, ...] = ()
    while True:
        after = " AND document > ?" if last else ""
        query = f"{statement}{after}{grouped} ORDER BY document LIMIT {PAGE_ROWS}"
        parameters = (sink.target.pipeline, *values, *last)
        page = sink.connection.select(sink.connection.sql(query), parameters)
        if page:
            last = (page[-1][0],)
            yield page
        if len(page) < PAGE_ROWS:
            return
