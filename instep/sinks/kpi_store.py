"""What a KPI keeps beside its rows, in `instep_kpis`, `instep_kpi_documents`, `instep_kpi_buckets`.

Changed in the transaction that writes the rows and advances the ledger. The caller holds the
transaction and the ledger's lock. What the JSON means is up to the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from instep import errors
from instep.sinks import connecting, target
from instep.sinks.connection import Connection
from instep.sinks.sink import Sink
from instep.sinks.stored_values import chunks
from instep.sinks.tables import create, kpi_metadata

SELECT_KPI = "SELECT definition, clocks, known_from_ms FROM instep_kpis WHERE kpi = ?"
DELETE_KPI = "DELETE FROM instep_kpis WHERE kpi = ?"
INSERT_KPI = "INSERT INTO instep_kpis (kpi, definition, clocks, known_from_ms) VALUES (?, ?, ?, ?)"
UPDATE_CLOCKS = "UPDATE instep_kpis SET clocks = ? WHERE kpi = ?"
SELECT_DOCUMENTS = (
    "SELECT document, events FROM instep_kpi_documents WHERE kpi = ? AND document IN {{documents}}"
)
DOCUMENTS_PAGE = (
    "SELECT document, {partition}, events FROM instep_kpi_documents"
    " WHERE kpi = ? AND document > ? ORDER BY document"
)
DELETE_DOCUMENTS = "DELETE FROM instep_kpi_documents WHERE kpi = ?"
FORGET_DOCUMENTS = (
    "DELETE FROM instep_kpi_documents WHERE kpi = ? AND {partition} = ? AND latest_ms < ?"
)
SELECT_BUCKETS = (
    "SELECT minute_ms, {kind}, {name}, buckets FROM instep_kpi_buckets"
    " WHERE kpi = ? AND minute_ms IN {{documents}}"
)
SELECT_BUCKETS_FROM = (
    "SELECT minute_ms, {kind}, {name}, buckets FROM instep_kpi_buckets"
    " WHERE kpi = ? AND minute_ms >= ?"
)
DELETE_BUCKETS_FROM = "DELETE FROM instep_kpi_buckets WHERE kpi = ? AND minute_ms >= ?"
DELETE_BUCKETS = "DELETE FROM instep_kpi_buckets WHERE kpi = ?"
DELETE_BUCKET_ROW = " AND minute_ms = ? AND {kind} = ? AND {name} = ?"
DOCUMENT_COLUMNS = ("kpi", "document", "partition", "latest_ms", "events")
BUCKET_COLUMNS = ("kpi", "minute_ms", "kind", "name", "buckets")
TABLE_COLUMNS = ("minute_ms", "kind", "name", "count", "p50_ms", "p95_ms")
ROWS_AT_ONCE = 1_000
PAGE_ROWS = 50_000

RowKey = tuple[int, str, str]  # minute in milliseconds, kind and name
ClockTimes = tuple[int | None, int | None]  # a partition's time, and a later one that may be it


class StoredKpi(msgspec.Struct, frozen=True):
    """A row of `instep_kpis`."""

    definition: str
    clocks: dict[int, ClockTimes]
    known_from_ms: int | None = None


class RememberedDocument(msgspec.Struct, frozen=True):
    """A row of `instep_kpi_documents`."""

    document: str
    partition: int
    latest_ms: int
    events: str


class KpiStore:
    """The tables of one KPI."""

    def __init__(self, connection: Connection, kpi: str) -> None:
        self._connection, self._kpi = connection, kpi

    def stored(self) -> StoredKpi | None:
        """Return the KPI's row; None if it has never counted anything."""
        return next((_stored(row) for row in self._select(SELECT_KPI)), None)

    def replace(self, kpi: StoredKpi) -> None:
        """Write the KPI's row."""
        self._execute(DELETE_KPI)
        self._execute(INSERT_KPI, kpi.definition, _encoded(kpi.clocks), kpi.known_from_ms)

    def set_clocks(self, clocks: dict[int, ClockTimes]) -> None:
        """Write the times of the partitions."""
        self._connection.execute(self._connection.sql(UPDATE_CLOCKS), (_encoded(clocks), self._kpi))

    def events(self, documents: Collection[str]) -> dict[str, str]:
        """Return the remembered events of these documents."""
        found = self._connection.select_many(
            self._connection.sql(SELECT_DOCUMENTS), (self._kpi,), sorted(documents)
        )
        return {str(document): str(events) for document, events in found}

    def pages(self) -> Iterator[list[tuple[str, int, str]]]:
        """Read all remembered documents in pages: document, partition and events."""
        last = ""
        while page := self._select(f"{DOCUMENTS_PAGE} LIMIT {PAGE_ROWS}", last):
            yield [(document, partition, events) for document, partition, events in page]
            last = page[-1][0]

    def replace_documents(self, documents: Sequence[RememberedDocument]) -> None:
        """Write documents, in place of those with the same ids."""
        for some in chunks(documents, ROWS_AT_ONCE):
            listed, values = self._connection.in_list([one.document for one in some])
            self._connection.execute(
                f"{self._connection.sql(DELETE_DOCUMENTS)} AND document IN {listed}",
                (self._kpi, *values),
            )
        self.add_documents(documents)

    def add_documents(self, documents: Iterable[RememberedDocument]) -> None:
        """Write documents that the table does not have."""
        self._connection.append(
            "instep_kpi_documents",
            DOCUMENT_COLUMNS,
            [
                (self._kpi, one.document, one.partition, one.latest_ms, one.events)
                for one in documents
            ],
            skip_existing=False,
        )

    def forget_documents(self, partition: int, before_ms: int) -> None:
        """Remove the documents of a partition whose latest event is before a time."""
        self._execute(FORGET_DOCUMENTS, partition, before_ms)

    def forget_all_documents(self) -> None:
        """Remove all documents."""
        self._execute(DELETE_DOCUMENTS)

    def buckets(self, minutes_ms: Collection[int]) -> dict[RowKey, dict[int, int]]:
        """Return what the rows of these minutes are computed from."""
        found = self._connection.select_many(
            self._connection.sql(SELECT_BUCKETS), (self._kpi,), sorted(minutes_ms)
        )
        return {
            (minute_ms, kind, name): msgspec.json.decode(buckets, type=dict[int, int])
            for minute_ms, kind, name, buckets in found
        }

    def buckets_from(self, minute_ms: int) -> dict[RowKey, dict[int, int]]:
        """Return what the rows from this minute on are computed from."""
        return {
            (minute_ms, kind, name): msgspec.json.decode(buckets, type=dict[int, int])
            for minute_ms, kind, name, buckets in self._select(SELECT_BUCKETS_FROM, minute_ms)
        }

    def forget_buckets_from(self, minute_ms: int) -> None:
        """Remove what the rows from this minute on are computed from."""
        self._execute(DELETE_BUCKETS_FROM, minute_ms)

    def replace_buckets(self, rows: dict[RowKey, dict[int, int]]) -> None:
        """Write what rows are computed from."""
        delete = self._connection.sql(DELETE_BUCKETS + DELETE_BUCKET_ROW)
        self._connection.execute_together([(delete, (self._kpi, *key)) for key in sorted(rows)])
        self.add_buckets(rows)

    def add_buckets(self, rows: dict[RowKey, dict[int, int]]) -> None:
        """Write what rows are computed from that the table does not have."""
        self._connection.append(
            "instep_kpi_buckets",
            BUCKET_COLUMNS,
            [(self._kpi, *key, _encoded(buckets)) for key, buckets in sorted(rows.items())],
            skip_existing=False,
        )

    def _execute(self, statement: str, *parameters: Any) -> int:
        return self._connection.execute(self._connection.sql(statement), (self._kpi, *parameters))

    def _select(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._connection.select(self._connection.sql(statement), (self._kpi, *parameters))


def table_rows(sink: Sink) -> list[tuple[Any, ...]]:
    """Return the rows of the KPI table: the key, the count and the quantiles."""
    listed = ", ".join(map(sink.connection.quoted, TABLE_COLUMNS))
    return sink.connection.select(f"SELECT {listed} FROM {sink.table.name}")


def check(url: str, kpi: str) -> StoredKpi | None:
    """Return the KPI's row; raise TargetUnfit if one of the tables is missing."""
    where = target.database_url(url)
    with connecting.connection(where) as opened:
        for table in missing(opened):
            raise errors.TargetUnfit(
                f"{target.shown(where)} has no table {table.name}", "run: instep init"
            )
        found = opened.execute(sa.text(SELECT_KPI.replace("?", ":kpi")), {"kpi": kpi})
        return next((_stored(tuple(row)) for row in found), None)


def missing(opened: sa.Connection) -> list[sa.Table]:
    """Return the tables that the database lacks."""
    existing = set(sa.inspect(opened).get_table_names())
    return [table for table in kpi_metadata.sorted_tables if table.name not in existing]


def create_statements(opened: sa.Connection) -> list[str]:
    """Return the statements that create the missing tables."""
    return [text for table in missing(opened) for text in create(table, opened.dialect)]


def _stored(row: Sequence[Any]) -> StoredKpi:
    definition, clocks, known_from_ms = row
    return StoredKpi(
        definition, msgspec.json.decode(clocks, type=dict[int, ClockTimes]), known_from_ms
    )


def _encoded(values: Mapping[int, int | ClockTimes]) -> str:
    return msgspec.json.encode({str(key): values[key] for key in sorted(values)}).decode()
