"""The target of one pipeline: connection, ledger, journal and target table.

A sink runs inside the caller's transaction; see `pipeline/apply` for the order of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa

from instep.document import guard
from instep.document.guard import DocumentId, Stored
from instep.document.identity import Identity
from instep.document.mapping import Mapping
from instep.sinks.connection import STAGE, Access, Connection
from instep.sinks.journal import WRITTEN_TABLES, Journal
from instep.sinks.journal_entries import SpecialDocuments
from instep.sinks.ledger import Ledger
from instep.sinks.target import Position, Target
from instep.sinks.target_table import TargetTable

OfConnection = TypeVar("OfConnection", bound=Connection)


class Sink:
    """An open connection to the target of one pipeline. Not for use by several threads."""

    def __init__(
        self, table: TargetTable, journal: Journal, further: Sequence[FurtherSink] = ()
    ) -> None:
        """Take the parts, which use one open connection."""
        self.connection = table.connection
        self.target = table.target
        self.table = table
        self.journal = journal
        self.ledger = Ledger(self.connection)
        self.further = tuple(further)

    def with_further(self, sinks: Sequence[Sink]) -> Sink:
        """Return this sink with the further tables of its pipeline, in the same session."""
        mapping = self.target.mapping
        further = [FurtherSink(one.table, one.journal, mapping) for one in sinks]
        return Sink(self.table, self.journal, further)

    @property
    def all_tables(self) -> tuple[TargetTable, ...]:
        """Return the main table and the further ones, parents first."""
        return (self.table, *(one.table for one in self.further))

    @property
    def url(self) -> sa.URL:
        """Return the database's URL."""
        return self.connection.url

    @property
    def record_bytes_max(self) -> int | None:
        """Return the size of the largest record that the quarantine can keep; None: no limit."""
        return self.connection.record_bytes_max

    def close(self) -> None:
        """Close the connection. Never raises."""
        self.connection.close()

    def transaction(self, *, keep: bool = True) -> AbstractContextManager[None]:
        """Commit everything or nothing; without `keep`, nothing."""
        return self.connection.transaction(keep=keep)

    def snapshot(self) -> AbstractContextManager[None]:
        """Read one state of the database, whatever others commit meanwhile."""
        return self.connection.snapshot()

    def savepoint(self, *, keep: bool = True) -> AbstractContextManager[None]:
        """Apply everything or nothing within the transaction; without `keep`, nothing."""
        return self.connection.savepoint(keep=keep)

    def translated(self) -> AbstractContextManager[None]:
        """Raise the driver's errors as ours."""
        return self.connection.translated()

    def lock(self, partitions: Sequence[int]) -> tuple[dict[int, Position], SpecialDocuments]:
        """Lock the ledger's rows of these partitions until the transaction ends.

        Return the rows, and which special documents there are now.
        """
        positions, special = self.connection.select_together(
            [self.ledger.locking_query(partitions), self.journal.special_documents_query()]
        )
        return self.ledger.positions_of(positions), SpecialDocuments.of_rows(special)

    def stored(self, documents: Iterable[DocumentId]) -> dict[DocumentId, Stored]:
        """Return what is known of these documents: rows of the table, and earlier deletes."""
        wanted = set(documents)
        stored = self.table.stored(wanted)
        if not self.target.rules.ordered:
            return stored
        absent = [document for document in wanted if document not in stored]
        if absent and self.journal.any_deleted():
            for document, order in self.journal.deleted_orders(absent).items():
                stored[document] = Stored(False, order)
        return stored

    def write(self, changes: guard.Changes) -> None:
        """Write a batch's changes to all tables, and keep the order values of deletes.

        Deletes come first, lines before their parents; then inserts and updates, parents first.
        """
        pairs = list(zip(self.further, changes.further, strict=bool(changes.further)))
        for sink, of_table in reversed(pairs):
            sink.table.delete(of_table.deletes)
        self.table.delete(changes.deletes)
        self.table.write_rows(changes)
        self.journal.keep_deleted_orders(changes.deleted_orders)
        for sink, of_table in pairs:
            sink.table.write_rows(of_table)

    @contextmanager
    def shortfall_is_refusal(self, when: bool = True) -> Iterator[None]:
        """Raise RowRefused instead of Outrun if a table stores fewer rows than expected."""
        with ExitStack() as stack:
            for table in self.all_tables:
                stack.enter_context(table.shortfall_is_refusal(when))
            yield

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Write rows whatever their order value. The caller has locked the ledger and checked."""
        with ExitStack() as stack:
            for table in self.all_tables:
                stack.enter_context(table.unguarded())
            yield

    def try_statements(self) -> None:
        """Run every kind of statement that a batch needs, on no rows.

        Raises what is wrong with the tables themselves.
        """
        appends = [f"INSERT INTO {own} SELECT * FROM {own} WHERE FALSE" for own in WRITTEN_TABLES]
        with self.transaction(keep=False):
            for table in self.all_tables:
                for statement in table.statement_checks():
                    self.connection.execute(statement)
            for statement in appends:
                self.connection.execute(statement)


class FurtherSink(Sink):
    """A further table of a pipeline. What was deleted is kept once, by the pipeline's own sink."""

    def __init__(self, table: TargetTable, journal: Journal, mapping: Mapping) -> None:
        """Take the parts, and the mapping of the main table."""
        super().__init__(table, journal)
        self._main = Identity(mapping)
        self._id_columns, self._separator = len(mapping.keys), mapping.separator

    def stored(self, documents: Iterable[DocumentId]) -> dict[DocumentId, Stored]:
        """Return what the table has of these rows."""
        return self.table.stored(set(documents))

    def rows_of(self, documents: Iterable[DocumentId]) -> dict[DocumentId, list[DocumentId]]:
        """Return the rows that these documents have. Ids are compared exactly, in any collation."""
        by_parts = {self._main.columns(document): document for document in documents}
        found: dict[DocumentId, list[DocumentId]] = {}
        for key in self.table.rows_of(list(by_parts)):
            row, _ = self.table.split_key(key)
            parts = self.table.identity.columns(row)[: self._id_columns]
            if parts in by_parts:
                found.setdefault(by_parts[parts], []).append(row)
        return found

    def document_of(self, row: str) -> str:
        """Return the document of a row, both as instep's own tables keep them."""
        parts = row.split(self.target.mapping.separator)[: self._id_columns]
        return self._separator.join(parts)

    def look_up(self, document: DocumentId) -> list[dict[str, Any]]:
        """Return the rows of a document in the order of their keys, with all columns."""
        rows = self.table.look_up(self.rows_of([document]).get(document, ()))
        named = [(self.table.identity.columns(row), values) for row, values in rows.items()]
        return [
            {**dict(zip(self.table.key_names, key, strict=True)), **values}
            for key, values in sorted(named, key=lambda one: one[0])
        ]


def open_together(
    targets: Sequence[Target],
    access: Access,
    connect: Callable[[Target, str, Access], OfConnection],
    table: Callable[[OfConnection], TargetTable],
    journal: Callable[[OfConnection], Journal],
) -> list[Sink]:
    """Open one session for several targets in a database, whose tables share its transactions.

    The first sink begins and ends them.
    """
    stages = [STAGE, *(f"{STAGE}_{number}" for number in range(1, len(targets)))]
    closed = [connect(target, stage, access) for target, stage in zip(targets, stages, strict=True)]
    columns = {one.stage: table(one).stage_columns() for one in closed}
    first = closed[0]
    first.open({} if access.read_only else columns)
    opened = [first, *(first.beside(one.target, one.stage) for one in closed[1:])]
    return [Sink(table(one), journal(one)) for one in opened]
