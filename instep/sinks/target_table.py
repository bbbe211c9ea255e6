"""The target table: read what is stored, and write what a batch changes.

Concurrency: after a topic was given more partitions, two tasks may write the same document.
Inserts and updates therefore repeat the guard in SQL, and the number of changed rows is compared
with the number of documents. A difference raises `Outrun`, and the caller repeats the transaction
with what is stored by then.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from msgspec import UNSET

from instep import errors
from instep.document import guard, kinds
from instep.document.guard import DocumentId, Stored
from instep.document.identity import Identity
from instep.document.mapping import TargetColumn
from instep.sinks.connection import Connection, Rows
from instep.sinks.stored_values import chunks

STAGE_FIRST = "instep_first"  # the stage's column for the guard's value of the first event
DELETE_CHUNK = 500

# A document to write: its id, its values, and the guard's value of its first event.
StagedRow = tuple[DocumentId, guard.Values, Any]


class StagedColumns(Protocol):
    """Documents to write as columns, each document once and in order of their ids."""

    def __len__(self) -> int: ...

    @property
    def is_csv(self) -> bool:
        """Return whether `csv` can have all of them."""

    def rows(self) -> list[StagedRow]:
        """Return the documents as rows."""

    def csv(self, *, with_order: bool) -> Iterator[bytes]:
        """Yield key columns and values as CSV; with order, the guard's value once more."""


class ColumnGroup:
    """Documents with values for the same columns, so that one statement writes them all."""

    def __init__(self, number: int, columns: tuple[str, ...], is_insert: bool) -> None:
        self.number = number
        self.columns = columns
        self.is_insert = is_insert
        # each document with a value, or UNSET, for every mapped column of the table
        self.rows: list[tuple[DocumentId, guard.Values]] = []


class TargetTable(abc.ABC):
    """The table of one pipeline, on one connection."""

    def __init__(self, connection: Connection) -> None:
        target = connection.target
        mapping = target.mapping
        self.connection = connection
        self.target = target
        self.mapping = mapping
        self.quoted = connection.quoted
        self.name = ".".join(
            self.quoted(part) for part in (target.table.schema, target.table.name) if part
        )
        self.identity = Identity(mapping)
        self.key_names = tuple(column.name for column in mapping.keys)
        self.keys = tuple(map(self.quoted, self.key_names))
        self.key = ", ".join(self.keys)
        self.text_keys = [key for key in mapping.keys if isinstance(key.kind, kinds.Text)]
        self.columns = tuple(column.name for column in mapping.columns)
        self.guard = self.quoted(mapping.guard) if mapping.guard else None
        self.guard_index = None  # also if the guard's column belongs to the key
        if mapping.guard in self.columns:
            self.guard_index = self.columns.index(mapping.guard)
        self.guard_kind = next(
            (
                column.kind
                for column in (*mapping.keys, *mapping.columns)
                if column.name == mapping.guard
            ),
            None,
        )
        status = mapping.status_column if target.rules.transitions else None
        self._status = self.column_expression(status) if status else None
        self._is_guarding = True
        self._shortfall_is_refusal = False
        self._pessimistic_batches = 0

    # --- what each database implements ---------------------------------------------------------

    @abc.abstractmethod
    def stage_columns(self) -> str:
        """Return the columns of the stage, as in CREATE TABLE."""

    @abc.abstractmethod
    def write_groups(self, groups: list[ColumnGroup]) -> None:
        """Insert and update the documents of each group; raise Outrun if another writer did."""

    @abc.abstractmethod
    def fill_stage(self, rows: Sequence[StagedRow]) -> None:
        """Load documents, in order of their ids, into the empty stage."""

    @abc.abstractmethod
    def upsert_stage(self) -> int | None:
        """Upsert the staged rows under the guard, and return the number of written documents."""

    @abc.abstractmethod
    def exact_match(self, key: TargetColumn, left: str, right: str) -> str:
        """Compare two texts character by character, whatever the key column's collation says."""

    def upsert(self, rows: Sequence[StagedRow]) -> int | None:
        """Upsert documents under the guard, and return the number of written documents.

        None if the database does not tell.
        """
        self.fill_stage(rows)
        return self.upsert_stage()

    def upsert_columns(self, staged: StagedColumns) -> int | None:
        """Upsert documents as `upsert` does; a database may have a faster way for columns."""
        return self.upsert(staged.rows())

    def fill_stage_columns(self, staged: StagedColumns) -> None:
        """Load documents into the empty stage as `fill_stage` does."""
        self.fill_stage(staged.rows())

    def prepared_upsert(self, rows: Sequence[StagedRow]) -> Callable[[], int | None]:
        """Return the upsert of documents, with everything done that does not touch the table."""
        return lambda: self.upsert(rows)

    def staged_key_as_text(self) -> str | None:
        """Return the expression of the staged key as text; None if the id has a form of its own."""
        if self.identity.is_text_form:
            return None
        key = f"s.{self.key}"
        if isinstance(self.target.mapping.keys[0].kind, kinds.Text):
            return key
        return f"CAST({key} AS {self.connection.text_type})"

    def late_rows(self) -> Rows:
        """Return key and guard of the rows that are not older than the first staged event."""
        if not self.guard:
            return []
        later = ">" if self.target.rules.order_is_time else ">="
        return self.connection.select(
            f"SELECT {self.key_expressions('t.')}, {self.guard_expression('t.')}"
            f" FROM {self.connection.stage} AS s JOIN {self.name} AS t ON {self.same_document()}"
            f" WHERE t.{self.guard} {later} s.{STAGE_FIRST}"
        )

    def is_optimistic(self, _documents: int) -> bool:
        """Return whether to upsert this many documents before asking the database for late rows.

        The number of written rows shows afterwards whether there were any.
        """
        if self._pessimistic_batches:
            self._pessimistic_batches -= 1
        return not self._pessimistic_batches

    def key_expressions(self, table: str = "") -> str:
        """Return the key's columns in a SELECT, so that they make the document's id."""
        return ", ".join(f"{table}{key}" for key in self.keys)

    def guard_expression(self, table: str = "") -> str:
        """Return the guard's column in a SELECT, as `order_value` takes it."""
        return f"{table}{self.guard}" if self.guard else "NULL"

    def column_expression(self, column: TargetColumn) -> str:
        """Return a column in a SELECT, so that the driver neither loses nor refuses a value."""
        return self.quoted(column.name)

    def key_equals(self, key: TargetColumn, left: str, right: str) -> str:  # noqa: ARG002 - MySQL
        """Compare as the key column's index does. Its collation may take two ids for equal."""
        return f"{left} = {right}"

    def order_value(self, value: Any) -> int | None:
        """Return a stored guard value as the integer that events are compared by."""
        if value is None:
            return None
        if isinstance(self.guard_kind, kinds.Integer):
            return int(value)
        if not isinstance(value, datetime):
            return None  # MySQL's zero date is not a time
        return kinds.micros(value if value.tzinfo else value.replace(tzinfo=UTC))

    def after_key(self, last: tuple[Any, ...]) -> tuple[str, Sequence[Any]]:
        """Return the condition for the rows behind this key, and its parameters."""
        if len(last) == 1:
            return f"{self.key} > {self.connection.placeholder}", last
        return f"({self.key}) > ({self.connection.placeholders(len(last))})", last

    def select_documents(
        self, query: str, parameters: Sequence[Any], documents: Iterable[DocumentId]
    ) -> Iterator[tuple[Any, ...]]:
        """Run a query with `{key_list}`, the condition that a row belongs to these documents."""
        values = self.key_parameters(documents)
        return self.select_keys(query, parameters, values, self.mapping.keys)

    def select_keys(
        self,
        query: str,
        parameters: Sequence[Any],
        values: Sequence[Any],
        keys: Sequence[TargetColumn],
    ) -> Iterator[tuple[Any, ...]]:
        """Run a query with `{key_list}`, the condition that these columns have one of the values.

        Of several columns, the values are tuples.
        """
        names = ", ".join(self.quoted(key.name) for key in keys)
        before = f"({names})" if len(keys) > 1 else names
        statement = query.replace("{key_list}", f"{before} IN {{documents}}")
        return self.connection.select_many(statement, parameters, values)

    # --- how writes are checked ----------------------------------------------------------------

    @property
    def may_upsert(self) -> bool:
        """Return whether an upsert does what the guard says: nothing else decides at the moment."""
        return self.target.upserts and self._is_guarding and not self._shortfall_is_refusal

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Write rows whatever their order value. The caller has locked the ledger and checked."""
        self._is_guarding = False
        try:
            with self.shortfall_is_refusal():
                yield
        finally:
            self._is_guarding = True

    @contextmanager
    def shortfall_is_refusal(self, when: bool = True) -> Iterator[None]:
        """Raise RowRefused instead of Outrun if fewer rows are written than expected.

        For documents that were outrun several times: no other writer is that fast, so the table
        itself drops the rows, by a trigger or a policy.
        """
        before, self._shortfall_is_refusal = self._shortfall_is_refusal, when
        try:
            yield
        finally:
            self._shortfall_is_refusal = before

    def expect_late_rows(self, batches: int) -> None:
        """Ask the database for late rows first, for this number of batches."""
        self._pessimistic_batches = batches

    def check_written(self, written: int, expected: int) -> None:
        """Raise unless every document was written."""
        if written == expected:
            return
        if self._shortfall_is_refusal:
            raise errors.RowRefused(
                f"table {self.target.table} does not store the row: a trigger or a policy drops it"
            )
        if self.target.loose_key:
            raise errors.RowRefused(
                f"table {self.target.table} has a row with another id that its key treats as equal"
            )
        raise errors.Outrun(
            f"another writer has just changed {expected - written} documents of {self.target.table}"
        )

    # --- reading -------------------------------------------------------------------------------

    def stored(self, documents: Iterable[DocumentId]) -> dict[DocumentId, Stored]:
        """Return order value and status of those of these documents that the table has."""
        query = (
            f"SELECT {self.key_expressions()}, {self.guard_expression()}, {self._status or 'NULL'}"
            f" FROM {self.name} WHERE {{key_list}}"
        )
        found: dict[DocumentId, Stored] = {}
        for row in self.select_documents(query, (), documents):
            document, (order, status) = self.split_key(row)
            status = None if status is None else str(status)
            found[document] = Stored(True, self.order_value(order), status)
        return found

    def rows_not_before(
        self, value: Any, documents: Iterable[DocumentId]
    ) -> Iterator[tuple[DocumentId, int | None]]:
        """Return document and order value of the rows with this guard value or a later one."""
        query = (
            f"SELECT {self.key_expressions()}, {self.guard_expression()} FROM {self.name}"
            f" WHERE {self.guard} >= {self.connection.placeholder} AND {{key_list}}"
        )
        rows = self.select_documents(query, (self.connection.bind(value),), documents)
        return (
            (document, self.order_value(rest[0])) for document, rest in map(self.split_key, rows)
        )

    def look_up(self, documents: Iterable[DocumentId]) -> dict[DocumentId, dict[str, Any]]:
        """Return the mapped columns of those of these documents that the table has."""
        query = f"{self.select_columns()} WHERE {{key_list}}"
        rows = map(self.split_key, self.select_documents(query, (), documents))
        return {document: dict(zip(self.columns, values, strict=True)) for document, values in rows}

    def locked_rows(self, documents: Sequence[DocumentId]) -> dict[DocumentId, tuple[Any, ...]]:
        """Return the mapped columns of these documents, locked until the transaction ends."""
        query = f"{self.select_columns()} WHERE {{key_list}}{self.connection.for_update}"
        rows = map(self.split_key, self.select_documents(query, (), documents))
        return {document: tuple(values) for document, values in rows}

    def select_columns(self) -> str:
        """Return the SELECT of the key and all mapped columns."""
        columns = [self.key_expressions(), *map(self.column_expression, self.mapping.columns)]
        return f"SELECT {', '.join(columns)} FROM {self.name}"

    def unique_column_numbers(self) -> list[tuple[int, ...]]:
        """Return, per further unique key, the numbers of its columns among the mapped columns."""
        numbers = {name: number for number, name in enumerate(self.columns)}
        keys = [
            tuple(numbers[name] for name in names if name in numbers)
            for names in self.target.unique
        ]
        return [key for key in keys if key]

    def unique_values(self, documents: Iterable[DocumentId]) -> dict[DocumentId, guard.Values]:
        """Return the stored values of unique columns, and UNSET for the other mapped columns."""
        numbers = sorted({number for key in self.unique_column_numbers() for number in key})
        names = [self.key_expressions(), *(self.quoted(self.columns[number]) for number in numbers)]
        query = f"SELECT {', '.join(names)} FROM {self.name} WHERE {{key_list}}"
        found: dict[DocumentId, guard.Values] = {}
        for row in self.select_documents(query, (), documents):
            document, stored = self.split_key(row)
            values: list[Any] = [UNSET] * len(self.columns)
            for number, value in zip(numbers, stored, strict=True):
                if isinstance(value, datetime) and not value.tzinfo:
                    value = value.replace(tzinfo=UTC)
                values[number] = value
            found[document] = tuple(values)
        return found

    def occupants(self, document: DocumentId) -> set[DocumentId]:
        """Return the ids of the rows that the key's collation treats as this document's."""
        query = f"SELECT {self.key_expressions()} FROM {self.name} WHERE {{key_list}}"
        return {self.split_key(row)[0] for row in self.select_documents(query, (), [document])}

    def rows_of(self, id_parts: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the keys of the rows whose key begins with one of these parts of ids."""
        if not id_parts:
            return []
        keys = self.mapping.keys[: len(id_parts[0])]
        values = [tuple(map(self.connection.bind, parts)) for parts in id_parts]
        rows = self.select_keys(
            f"SELECT {self.key_expressions()} FROM {self.name} WHERE {{key_list}}",
            (),
            values if len(keys) > 1 else [value for (value,) in values],
            keys,
        )
        return list(rows)

    def statuses(self, limit: int) -> set[str]:
        """Return at most `limit` statuses of the table, if a column stores them."""
        column = self.mapping.status_column
        if column is None:
            return set()
        status = self.column_expression(column)
        query = (
            f"SELECT DISTINCT {status} FROM {self.name}"
            f" WHERE {status} IS NOT NULL LIMIT {int(limit)}"
        )
        return {str(row[0]) for row in self.connection.select(query)}

    # --- writing -------------------------------------------------------------------------------

    def delete(self, documents: Iterable[DocumentId]) -> None:
        """Delete the rows of these documents."""
        for chunk in chunks(self.key_parameters(documents), DELETE_CHUNK):
            listed, values = self.connection.in_list(chunk)
            self.connection.execute(
                f"DELETE FROM {self.name} WHERE {self.key_tuple} IN {listed}", values
            )

    def write_rows(self, changes: guard.Changes) -> None:
        """Insert and update what a batch changes."""
        self.write_groups(self._grouped(changes))

    def statement_checks(self) -> list[str]:
        """Return every kind of statement that a batch needs, on no rows."""
        column = self.quoted((*self.columns, *self.key_names)[0])
        statements = [
            f"UPDATE {self.name} SET {column} = {column} WHERE FALSE",
            f"SELECT 1 FROM {self.connection.stage} WHERE FALSE",
        ]
        if self.target.rules.missing == "insert":
            statements.append(
                f"INSERT INTO {self.name} ({self.key})"
                f" SELECT {self.key} FROM {self.name} WHERE FALSE"
            )
        return statements

    def _grouped(self, changes: guard.Changes) -> list[ColumnGroup]:
        groups: dict[tuple[bool, tuple[str, ...]], ColumnGroup] = {}
        for is_insert, documents in ((True, changes.inserts), (False, changes.updates)):
            for document, values in documents.items():
                columns = self.columns
                if UNSET in values:
                    columns = tuple(
                        name
                        for name, value in zip(columns, values, strict=True)
                        if value is not UNSET
                    )
                group = groups.get((is_insert, columns))
                if group is None:
                    group = ColumnGroup(len(groups), columns, is_insert)
                    groups[is_insert, columns] = group
                group.rows.append((document, values))
        return [group for group in groups.values() if group.is_insert or group.columns]

    # --- documents and keys --------------------------------------------------------------------

    @property
    def key_tuple(self) -> str:
        """Return the key before IN."""
        return f"({self.key})" if len(self.keys) > 1 else self.key

    def key_parameters(self, documents: Iterable[DocumentId]) -> list[Any]:
        """Return ids, each once and in order, as parameters; of a composite key as tuples."""
        bind, ids = self.connection.bind, sorted(set(documents))
        if not self.identity.is_text_form:
            return [bind(document) for document in ids]
        values = [tuple(map(bind, self.identity.columns(document))) for document in ids]
        return values if len(self.keys) > 1 else [value for (value,) in values]

    def split_key(self, row: Sequence[Any]) -> tuple[DocumentId, Sequence[Any]]:
        """Split a row that begins with the key's columns: the document, and the other values."""
        count = len(self.keys)
        return self.identity.of_columns(row[:count]), row[count:]

    def flat(self, rows: Iterable[StagedRow]) -> Iterator[tuple[Any, ...]]:
        """Return rows as the stage has them: key columns, values, the first event's guard."""
        if self.identity.is_text_form:
            columns = self.identity.columns
            return ((*columns(document), *values, first) for document, values, first in rows)
        return ((document, *values, first) for document, values, first in rows)

    def matches_key(self) -> str:
        """Return the join of a staged row `s` with the row `t` that the table's key finds."""
        pairs = zip(self.mapping.keys, self.keys, strict=True)
        return " AND ".join(
            self.key_equals(column, f"t.{name}", f"s.{name}") for column, name in pairs
        )

    def same_document(self) -> str:
        """Return the join of a staged row `s` with the row `t` of exactly its document."""
        return self.matches_key() + self._exact_key("t", "s.{}")

    def guard_condition(
        self, written: str = "s.{}", table: str = "t", columns: Sequence[str] | None = None
    ) -> str:
        """Return the condition under which an existing row is overwritten, beginning with AND.

        The row must belong to the same document and must be older. `written` is how the statement
        names a column of the new rows. `columns` are the columns to write, if not all: without
        the guard's column there is no order to compare. The key is compared exactly, because an
        upsert may meet the row of another document: through a second unique key, or through a
        collation that treats two ids as equal.
        """
        same = self._exact_key(table, written)
        has_order = columns is None or self.mapping.guard in columns
        if not self.guard or not self._is_guarding or not has_order:
            return same
        older = "<=" if self.target.rules.order_is_time else "<"
        stored = f"{table}.{self.guard}"
        return f"{same} AND ({stored} IS NULL OR {stored} {older} {written.format(self.guard)})"

    def _exact_key(self, table: str, written: str) -> str:
        """Return the condition that the key's texts are equal character by character."""
        condition = ""
        for column in self.text_keys:
            name = self.quoted(column.name)
            exact = self.exact_match(column, f"{table}.{name}", written.format(name))
            condition += f" AND {exact}"
        return condition
