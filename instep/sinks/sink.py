"""The target of one pipeline: connection, ledger, journal and target table.

A sink runs inside the caller's transaction; see `pipeline/apply` for the order of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import sqlalchemy as sa

from instep.document import guard
from instep.document.guard import DocumentId, Stored
from instep.sinks.connection import STAGE, Connection
from instep.sinks.journal import WRITTEN_TABLES, Journal
from instep.sinks.journal_entries import SpecialDocuments
from instep.sinks.ledger import Ledger
from instep.sinks.target import Position, Target
from instep.sinks.target_table import TargetTable

OfConnection = TypeVar("OfConnection", bound=Connection)


class Sink:
    """An open connection to the target of one pipeline. Not for use by several threads."""

    def __init__(self, table: TargetTable, journal: Journal) -> None:
        """Take the parts, which use one open connection."""
        self.connection = table.connection
        self.target = table.target
        self.table = table
        self.journal = journal
        self.ledger = Ledger(self.connection)

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
        """Write a batch's changes to the table, and keep the order values of deletes."""
        self.table.write(changes)
        self.journal.keep_deleted_orders(changes.deleted_orders)

    def try_statements(self) -> None:
        """Run every kind of statement that a batch needs, on no rows.

        Raises what is wrong with the tables themselves.
        """
        appends = [f"INSERT INTO {own} SELECT * FROM {own} WHERE FALSE" for own in WRITTEN_TABLES]
        with self.transaction(keep=False):
            for statement in (*self.table.statement_checks(), *appends):
                self.connection.execute(statement)


def open_together(
    targets: Sequence[Target],
    connect: Callable[[Target, str], OfConnection],
    table: Callable[[OfConnection], TargetTable],
    journal: Callable[[OfConnection], Journal],
) -> list[Sink]:
    """Open one session for several targets in a database, whose tables share its transactions.

    The first sink begins and ends them.
    """
    stages = [STAGE, *(f"{STAGE}_{number}" for number in range(1, len(targets)))]
    closed = [connect(target, stage) for target, stage in zip(targets, stages, strict=True)]
    columns = {one.stage: table(one).stage_columns() for one in closed}
    first = closed[0]
    first.open(columns)
    opened = [first, *(first.beside(one.target, one.stage) for one in closed[1:])]
    return [Sink(table(one), journal(one)) for one in opened]
