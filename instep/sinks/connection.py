"""One connection to a target database: what each database must implement, and transactions.

The ledger, the journal and the target table all run their statements on it. When a transaction
begins and ends, and in which order its statements come, is up to the caller (`pipeline/apply`).
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, Self

import msgspec

from instep import errors, extras
from instep.sinks.target import Target, database_url

Rows = Iterable[tuple[Any, ...]]

STAGE = "instep_stage"


class Access(msgspec.Struct, frozen=True):
    """What a session may do, and for how long.

    A session that is read-only has no stage, so the right to read is enough for it, as is a server
    or a folder that nobody can write to. A statement that takes longer than `statement_s` is ended.
    """

    read_only: bool = False
    statement_s: float | None = None
    lock_s: float = 30.0  # how long a statement waits for a lock


WRITING = Access()
READING = Access(read_only=True)


class _QuotedNames(dict[str, str]):
    """Return every name as the database quotes it."""

    def __init__(self, quote: Callable[[str], str]) -> None:
        super().__init__()
        self._quote = quote

    def __missing__(self, name: str) -> str:
        return self._quote(name)


class Connection(abc.ABC):
    """A connection to the target of one pipeline. Not for use by several threads.

    A database implements the abstract methods. The session has a temporary table, the stage, into
    which the target table loads rows before it writes them. Several tables that are written in one
    transaction share the session, each with its own stage.
    """

    placeholder: ClassVar[str] = "%s"
    text_type: ClassVar[str] = "TEXT"  # in a CAST
    rows_begin: ClassVar[str] = ""  # before a list of rows behind IN
    for_update: ClassVar[str] = " FOR UPDATE"

    def __init__(self, target: Target, stage: str = STAGE, access: Access = WRITING) -> None:
        self.target = target
        self.stage = stage
        self.access = access
        self.url = database_url(target.url)
        self.dialect = self.url.get_dialect()()
        # the largest record that the quarantine can keep, if the database has a limit
        self.record_bytes_max: int | None = None
        self._names = _QuotedNames(self.quoted)
        self._statements: dict[str, str] = {}
        self._stages: dict[str, str] = {}  # the columns of each stage of the session
        # stages that may hold rows; shared by all connections of the session, as is the next one
        self._used_stages: set[str] = set()
        self._others: list[Self] = []  # the other connections of the session

    def open(self, stages: Mapping[str, str]) -> None:
        """Connect, and create these stages: for each name its columns, as in CREATE TABLE."""
        self._stages = dict(stages)
        with self.translated():
            try:
                self.connect()
            except BaseException:
                if hasattr(self, "driver"):  # connected, but the session could not be prepared
                    self.close()
                raise

    def beside(self, target: Target, stage: str) -> Self:
        """Return this session for another table, which has its own stage.

        Only this connection, not the returned one, begins and ends transactions.
        """
        other = copy.copy(self)
        other.target, other.stage = target, stage
        self._others.append(other)
        return other

    # --- what each database implements ---------------------------------------------------------

    @abc.abstractmethod
    def connect(self) -> None:
        """Set `driver` to an open connection and prepare the session, including its stages."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection. Never raises."""

    @abc.abstractmethod
    def translate(self, error: Exception) -> errors.InstepError | None:
        """Return a driver's error as one of ours, by its code; None if it is not the driver's."""

    @abc.abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return the number of rows it changed."""

    @abc.abstractmethod
    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""

    def execute_often(self, statement: str, parameters: Sequence[Any]) -> int:
        """Run a statement that every transaction runs; a database may have a faster way."""
        return self.execute(statement, parameters)

    def execute_together(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[int]:
        """Run several of them; return the number of rows that each changed."""
        return [self.execute_often(*statement) for statement in statements]

    def select_often(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a query that every transaction runs; a database may have a faster way."""
        return self.select(statement, parameters)

    def select_together(
        self, queries: Sequence[tuple[str, Sequence[Any]]]
    ) -> list[list[tuple[Any, ...]]]:
        """Run queries that every transaction begins with; return the rows of each.

        Each sees what was committed before it began, even if one before it waited for a lock.
        """
        return [self.select_often(*query) for query in queries]

    @abc.abstractmethod
    def select_many(
        self, statement: str, parameters: Sequence[Any], values: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        """Run a query with `IN {documents}` for many values, in as many statements as needed.

        The values of a composite key are tuples.
        """

    @abc.abstractmethod
    def append(
        self, table: str, columns: tuple[str, ...], rows: Rows, *, skip_existing: bool
    ) -> None:
        """Add rows to one of instep's tables; an existing key is an error, or is skipped."""

    @abc.abstractmethod
    def begin_snapshot(self) -> None:
        """Begin a transaction that reads one state of the whole database."""

    def begin(self) -> None:
        """Begin a transaction with empty stages."""
        self._used_stages.clear()
        self.execute("BEGIN")

    def commit(self) -> None:
        """Commit the transaction."""
        self.execute("COMMIT")

    def rollback(self) -> None:
        """Roll the transaction back."""
        self.execute("ROLLBACK")

    def back_to_savepoint(self) -> None:
        """Undo everything since the savepoint, and remove it."""
        self.execute("ROLLBACK TO SAVEPOINT instep")
        self.execute("RELEASE SAVEPOINT instep")

    def refresh(self) -> None:  # noqa: B027 - most databases need nothing
        """Make sure that a read outside a transaction reaches the database that others use."""

    def bind(self, value: Any) -> Any:
        """Return the value of a column as the driver takes it."""
        return value

    def bind_time(self, at: datetime | None) -> Any:
        """Return a time for one of instep's own tables as the driver takes it."""
        return at

    # --- transactions --------------------------------------------------------------------------

    @contextmanager
    def transaction(self, *, keep: bool = True) -> Iterator[None]:
        """Commit everything or nothing. Errors are raised as ours, after the rollback.

        Without `keep` it is always rolled back: a plan of what would change.
        """
        with self.translated():
            try:
                self.begin()
                yield
                if keep:
                    self.commit()
                else:
                    self.rollback()
            except BaseException:
                # No database always rolls back by itself: MariaDB undoes one statement only,
                # SQLite rolls back everything when the disk is full.
                self._abandon()
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one state of the database, whatever others commit meanwhile. Changes nothing."""
        with self.translated():
            try:
                self.begin_snapshot()
                yield
            finally:
                self._abandon()

    @contextmanager
    def savepoint(self, *, keep: bool = True) -> Iterator[None]:
        """Apply everything or nothing within the transaction; without `keep`, nothing."""
        self.execute("SAVEPOINT instep")
        try:
            with self.translated():
                yield
        except errors.MAY_BE_A_ROW:
            self.back_to_savepoint()
            raise
        if keep:
            self.execute("RELEASE SAVEPOINT instep")
        else:
            self.back_to_savepoint()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the driver's errors as ours, always chained."""
        try:
            yield
        except errors.InstepError:
            raise
        except Exception as error:
            ours = self.translate(error)
            if ours is None:
                raise
            raise ours from error

    def _abandon(self) -> None:
        try:
            self.rollback()
        except Exception:  # noqa: BLE001 - the first error is the one that counts
            self.close()

    # --- the stage -----------------------------------------------------------------------------

    def claim_stage(self) -> None:
        """Make the stage empty for rows that are about to be loaded into it."""
        if self.stage in self._used_stages:
            self.clear_stage()
        self._used_stages.add(self.stage)

    def clear_stage(self) -> None:
        """Remove all rows from the stage."""
        self.execute(f"DELETE FROM {self.stage}")

    # --- statements ----------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        """Return a name as the database quotes it.

        SQLAlchemy doubles a percent sign if the driver would take it for a placeholder.
        """
        quoted: str = self.dialect.identifier_preparer.quote_identifier(name)
        return quoted

    def sql(self, statement: str) -> str:
        """Return a statement as the driver takes it: `?` is a value, `{name}` a quoted name."""
        ready = self._statements.get(statement)
        if ready is None:
            ready = statement.replace("?", self.placeholder).format_map(self._names)
            self._statements[statement] = ready
        return ready

    def placeholders(self, count: int) -> str:
        """Return a list of placeholders."""
        return ", ".join([self.placeholder] * count)

    def in_list(self, values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        """Return the list behind IN for values, or for tuples of values, and its parameters."""
        if not values or not isinstance(values[0], tuple):
            return f"({self.placeholders(len(values))})", values
        row = f"({self.placeholders(len(values[0]))})"
        parameters = [part for value in values for part in value]
        return f"({self.rows_begin}{', '.join([row] * len(values))})", parameters


def no_driver(name: str, extra: str) -> errors.MissingPart:
    """Return the error for a database whose driver is not installed."""
    return extras.missing(f"the driver for {name}", extra)
