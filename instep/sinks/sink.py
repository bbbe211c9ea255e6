"""One connection to a target database: the ledger, and writing what a batch changes.

The narrow interface every database implements. A sink does what it is told inside the caller's transaction; when a
transaction begins and ends, and in which order its parts come, is the pipeline's business (`pipeline/transaction.py`).

Concurrency: two tasks may meet on a document after a topic was given more partitions. Inserts and updates therefore
repeat the guard in SQL and count what they changed; a count that differs from what was asked raises `Transient`, and the
transaction is done again on what is stored now.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from instep import errors, extras
from instep.document import guard, kinds
from instep.document.decoding import DeadLetter, Event, Record
from instep.document.guard import Document, Parked, Stored, Verdict
from instep.document.identity import Identity
from instep.document.mapping import TargetColumn
from instep.document.plain import Headers
from instep.document.reasons import Reason
from instep.sinks import target
from instep.sinks.target import Decision, Position, Target

HISTORY_COLUMNS = (
    "pipeline",
    "topic",
    "partition",
    "offset",
    "document",
    "status",
    "order_value",
    "event_time",
    "verdict",
    "committed_at",
    "ledger_offset",
)
SELECT_LEDGER = (
    "SELECT {partition}, next_offset, epoch, cluster_id, topic_id, last_digest, committed_at, since_offset, totals"
    " FROM instep_ledger WHERE pipeline = ? AND topic = ?"
)
INSERT_LEDGER = (
    "INSERT INTO instep_ledger (pipeline, topic, {partition}, next_offset, epoch, cluster_id, topic_id,"
    " last_digest, committed_at, since_offset) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
ADVANCE_LEDGER = (
    "UPDATE instep_ledger SET next_offset = ?, epoch = ?, last_digest = ?, committed_at = ?, totals = ?"
    " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND next_offset = ? AND epoch = ?"
)
COUNT_LEDGER = "UPDATE instep_ledger SET totals = ? WHERE pipeline = ? AND topic = ? AND {partition} = ? AND epoch = ?"
FENCE_LEDGER = "UPDATE instep_ledger SET epoch = ? WHERE pipeline = ? AND topic = ?"
MOVE_LEDGER = (
    "UPDATE instep_ledger SET next_offset = ?, cluster_id = ?, topic_id = ?, last_digest = ?, since_offset = ?"
    " WHERE pipeline = ? AND topic = ? AND {partition} = ?"
)
REMOVE_LEDGER = "DELETE FROM instep_ledger WHERE pipeline = ? AND topic = ? AND {partition} = ?"
RENAME_TOPIC = "UPDATE {{table}} SET topic = ? WHERE pipeline = ? AND topic = ? AND {partition} = ? AND {offset} >= ?"
PLACED = (
    "instep_history",
    "instep_dead_letters",
    "instep_parked",
    "instep_decisions",
)  # which name places in the log
SELECT_DELETED = "SELECT document, order_value FROM instep_deleted WHERE pipeline = ? AND document IN {{documents}}"
ANY_DELETED = "SELECT 1 FROM instep_deleted WHERE pipeline = ? LIMIT 1"
SELECT_HELD = (
    "SELECT DISTINCT document FROM instep_parked WHERE pipeline = ? AND document IN {{documents}}"
)
ALL_HELD = "SELECT DISTINCT document FROM instep_parked WHERE pipeline = ?"
ANY_PARKED = "SELECT 1 FROM instep_parked WHERE pipeline = ? LIMIT 1"
COUNT_DEAD = "SELECT count(*) FROM instep_dead_letters WHERE pipeline = ? AND topic = ?"
COUNT_PARKED = "SELECT count(DISTINCT document) FROM instep_parked WHERE pipeline = ?"
DECISION_COLUMNS = (
    "pipeline",
    "topic",
    "partition",
    "offset",
    "at",
    "document",
    "action",
    "outcome",
    "reason",
    "actor",
)
DEAD_COLUMNS = (
    "pipeline",
    "topic",
    "partition",
    "offset",
    "timestamp_ms",
    "key",
    "value",
    "headers",
    "reason",
    "detail",
    "at",
)
PARKED_COLUMNS = ("document", *DEAD_COLUMNS)

DETAIL_CHARACTERS_MAX = 1_000
STAGE_FIRST = "instep_first"
HELD_ASKED_MAX = 1_000
BEGINNING_BYTES = 64 * 1024  # what is kept of a record that is too large to be kept whole

Rows = Sequence[tuple[Any, ...]]
Row = tuple[
    Document, guard.Values, Any
]  # a document to write: its values, and the guard's value of its first event


class ColumnGroup:
    """Documents that bring values for the same columns, so that one statement writes them all."""

    def __init__(self, number: int, columns: tuple[str, ...], fresh: bool) -> None:
        self.number = number
        self.columns = columns
        self.fresh = fresh  # to insert, not to update
        self.rows: list[
            tuple[Document, guard.Values]
        ] = []  # a value for each of the table's mapped columns


class _Names(dict[str, str]):
    """Every name, quoted as the database quotes it."""

    def __init__(self, quote: Callable[[str], str]) -> None:
        super().__init__()
        self._quote = quote

    def __missing__(self, name: str) -> str:
        return self._quote(name)


class Sink(abc.ABC):
    """An open connection to the target of one pipeline. Not for use by several threads."""

    placeholder: ClassVar[str] = "%s"
    text_type: ClassVar[str] = "TEXT"
    rows_begin: ClassVar[str] = ""  # before rows that stand behind IN

    def __init__(self, to: Target) -> None:
        self.target = to
        self.url = target.database_url(to.url)
        self.dialect = self.url.get_dialect()()
        self._names = _Names(self.quoted)
        self.table = ".".join(
            self.quoted(part) for part in (to.table.schema, to.table.name) if part
        )
        self.identity = Identity(to.mapping)
        self.key_names = tuple(column.name for column in to.mapping.keys)
        self.keys = tuple(map(self.quoted, self.key_names))
        self.key = ", ".join(self.keys)
        self._text_keys = [key for key in to.mapping.keys if isinstance(key.kind, kinds.Text)]
        self.guard = self.quoted(to.mapping.guard) if to.mapping.guard else None
        status = to.mapping.status_column if to.rules.transitions else None
        self._status = self.scanned(status) if status else None
        self.columns = tuple(column.name for column in to.mapping.columns)
        self.guard_place = self.columns.index(to.mapping.guard) if to.mapping.guard else None
        self.guard_kind = next(
            (column.kind for column in to.mapping.columns if column.name == to.mapping.guard), None
        )
        self.is_guarding = True
        self.stage_is_used = False  # in this transaction
        self.doubts = 0  # for so many batches to come, what is late is asked for first
        self.record_bytes_max: int | None = (
            None  # the largest record that can be set aside, where the database has a limit
        )
        self.passes_over_is_refusal = (
            False  # set when the same documents are outrun again and again
        )
        with self.translated():
            try:
                self.connect()
            except BaseException:
                if hasattr(self, "_connection"):  # it was opened, and could not be set up
                    self.close()
                raise

    # --- what each database does its own way ---------------------------------------------------------

    @abc.abstractmethod
    def connect(self) -> None:
        """Open the connection and prepare the session: its settings, and temporary tables that outlive transactions."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give the connection back; never raises."""

    @abc.abstractmethod
    def translate(self, error: Exception) -> errors.InstepError | None:
        """A driver's error as one of ours, by its code; None when it is not the driver's."""

    @abc.abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; the number of rows it changed."""

    @abc.abstractmethod
    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query; its rows."""

    @abc.abstractmethod
    def append(self, table: str, columns: tuple[str, ...], rows: Rows, *, skip_known: bool) -> None:
        """Add rows to one of instep's tables; those whose key is there already are an error, or skipped."""

    @abc.abstractmethod
    def select_many(
        self, statement: str, parameters: Sequence[Any], documents: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        """Run a query whose `{documents}` stands for many values, or for many tuples of the values of a composite key."""

    @abc.abstractmethod
    def write_groups(self, groups: list[ColumnGroup]) -> None:
        """Insert and update the documents of each group; raises Transient when another writer came between."""

    @abc.abstractmethod
    def fill_stage(self, rows: Sequence[Row]) -> None:
        """Put documents, in order, into the empty stage: id, values, and the guard's value of its first event."""

    @abc.abstractmethod
    def clear_stage(self) -> None:
        """Empty the stage in the middle of a transaction."""

    @abc.abstractmethod
    def upsert_stage(self) -> int | None:
        """Write what the guard lets through of the stage; how many documents that were, None where nobody can come between."""

    def upsert(self, rows: Sequence[Row]) -> int | None:
        """Write what the guard lets through of these documents; how many that were, None when that cannot be told."""
        self.fill_stage(rows)
        return self.upsert_stage()

    def late(self) -> Rows:
        """Key columns and order value of the rows that are as late as the first event that was staged for them."""
        if not self.guard:
            return []
        later = ">" if self.target.rules.order_is_time else ">="
        return self.select(
            f"SELECT {self.key_read('t.')}, {self.guard_read('t.')} FROM instep_stage AS s JOIN {self.table} AS t"
            f" ON {self.same_document()} WHERE t.{self.guard} {later} s.{STAGE_FIRST}"
        )

    def trusts(self, _reduced: guard.Reduced) -> bool:
        """Whether these are taken for later than what is stored, as the count of rows will tell otherwise."""
        self.doubts -= self.doubts > 0
        return not self.doubts

    def begin(self) -> None:
        self.stage_is_used = False
        self.execute("BEGIN")

    @abc.abstractmethod
    def begin_snapshot(self) -> None:
        """Begin a transaction that reads one state of the whole database."""

    def key_read(self, table: str = "") -> str:
        """The key's columns in a SELECT, as the document's id has them."""
        return ", ".join(f"{table}{key}" for key in self.keys)

    @property
    def key_asked(self) -> str:
        """The key before `IN {documents}`."""
        return f"({self.key})" if self.identity.is_composite else self.key

    def in_list(self, values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        """What stands behind IN for these values, or for these tuples of the values of a composite key; and the parameters."""
        if not values or not isinstance(values[0], tuple):
            return f"({self._marks(len(values))})", values
        one = f"({self._marks(len(values[0]))})"
        return f"({self.rows_begin}{', '.join([one] * len(values))})", [
            part for value in values for part in value
        ]

    def beyond(self, last: tuple[Any, ...]) -> tuple[str, Sequence[Any]]:
        """The condition for the rows behind this key, in the key's order; and its parameters."""
        return (
            f"{self.key} > {self.placeholder}"
            if len(last) == 1
            else f"({self.key}) > ({self._marks(len(last))})"
        ), last

    def guard_read(self, table: str = "") -> str:
        """The guard's column in a SELECT, as `order_of` takes it."""
        return f"{table}{self.guard}" if self.guard else "NULL"

    def key_equals(self, key: TargetColumn, left: str, right: str) -> str:  # noqa: ARG002 - databases with collations need the column
        """A key column's own comparison, which an index answers, between two expressions. Its collation may be loose."""
        return f"{left} = {right}"

    @abc.abstractmethod
    def exactly(self, key: TargetColumn, left: str, right: str) -> str:
        """Whether two texts are the same, character by character, whatever the collation of the key column says."""

    def matches_key(self) -> str:
        """Joins a staged row `s` with the row `t` that the table's key takes for the same."""
        pairs = zip(self.target.mapping.keys, self.keys, strict=True)
        return " AND ".join(
            self.key_equals(column, f"t.{name}", f"s.{name}") for column, name in pairs
        )

    def same_document(self) -> str:
        """Joins a staged row `s` with the row `t` of its document, and of no document with a similar id."""
        return self.matches_key() + self._is_exact("t", "s.{}")

    def _is_exact(self, table: str, written: str) -> str:
        """A further condition: the key's texts are the same to the character. `written` names the other side's columns."""
        names = [(column, self.quoted(column.name)) for column in self._text_keys]
        return "".join(
            f" AND {self.exactly(column, f'{table}.{name}', written.format(name))}"
            for column, name in names
        )

    def scanned(self, column: TargetColumn) -> str:
        """A column in a SELECT, so that no value is lost or refused on its way through the driver."""
        return self.quoted(column.name)

    def bind(self, value: Any) -> Any:
        """A column value as the driver wants it."""
        return value

    def asked(self, documents: Iterable[Document]) -> list[Any]:
        """Ids, each once and in order, as `select_many` takes them."""
        if self.identity.is_composite:
            return [
                tuple(map(self.bind, self.identity.columns(document)))
                for document in sorted(set(documents))
            ]
        return [self.bind(document) for document in sorted(set(documents))]

    def key_of(self, row: Sequence[Any]) -> tuple[Document, Sequence[Any]]:
        """The document of a row that begins with the key's columns, and the rest of the row."""
        count = len(self.keys)
        return self.identity.of_columns(row[:count]), row[count:]

    def flat(self, rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
        """Rows as the stage has them: the key's columns, the values, and the guard's value of the first event."""
        if self.identity.is_composite:
            columns = self.identity.columns
            return ((*columns(document), *values, first) for document, values, first in rows)
        return ((document, *values, first) for document, values, first in rows)

    # --- transactions --------------------------------------------------------------------------------

    def commit(self) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    @contextmanager
    def transaction(self, *, keep: bool = True) -> Iterator[None]:
        """All or nothing; what goes wrong is raised as one of our errors, after the whole was rolled back.

        Without `keep` it is rolled back in any case: a look at what would be.
        """
        with self.translated():
            try:
                self.begin()
                yield
                self.commit() if keep else self.rollback()
            except BaseException:
                # no database rolls back reliably by itself: MariaDB undoes one statement, SQLite all on a full disk
                self._give_up()
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads that all see the database as it is at one moment, whatever others commit meanwhile. Changes nothing."""
        with self.translated():
            try:
                self.begin_snapshot()
                yield
            finally:
                self._give_up()

    @contextmanager
    def savepoint(self, *, keep: bool = True) -> Iterator[None]:
        """All or nothing within the transaction; without `keep` nothing in any case."""
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

    def back_to_savepoint(self) -> None:
        self.execute("ROLLBACK TO SAVEPOINT instep")
        self.execute("RELEASE SAVEPOINT instep")

    def try_statements(self) -> None:
        """Run every kind of statement that a batch needs, on no rows: raises what is wrong with the tables themselves."""
        table, column = self.table, self.quoted(self.columns[0])
        statements = [
            f"UPDATE {table} SET {column} = {column} WHERE FALSE",
            "SELECT 1 FROM instep_stage WHERE FALSE",
        ]
        if self.target.rules.missing == "insert":
            statements.append(
                f"INSERT INTO {table} ({self.key}) SELECT {self.key} FROM {table} WHERE FALSE"
            )
        statements += [f"INSERT INTO {own} SELECT * FROM {own} WHERE FALSE" for own in PLACED[:-1]]
        with self.transaction(keep=False):
            for statement in statements:
                self.execute(statement)

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """For whoever holds the ledger and has judged the rows that are there: a row may be written under its own order value."""
        self.is_guarding, self.passes_over_is_refusal = False, True
        try:
            yield
        finally:
            self.is_guarding, self.passes_over_is_refusal = True, False

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

    def _give_up(self) -> None:
        try:
            self.rollback()
        except Exception:  # noqa: BLE001 - the first error is the one that counts
            self.close()

    # --- the ledger ----------------------------------------------------------------------------------

    def positions(self, lock: bool = False, *, wait: bool = True) -> dict[int, Position]:
        """The pipeline's ledger rows by partition; locked until the transaction ends when asked for.

        Without `wait` it raises Transient when another transaction has locked one of them.
        """
        locking = self.for_update if lock else ""
        if locking and not wait:
            locking += " NOWAIT"
        rows = self.select(
            self.sql(SELECT_LEDGER) + locking, (self.target.pipeline, self.target.topic)
        )
        return {row[0]: _position(row) for row in rows}

    def lock(self, partition: int) -> Position | None:
        """This partition's ledger row, locked until the transaction ends."""
        statement = self.sql(SELECT_LEDGER + " AND {partition} = ?") + self.for_update
        rows = self.select(statement, (self.target.pipeline, self.target.topic, partition))
        return _position(rows[0]) if rows else None

    def create(self, position: Position) -> None:
        """Add the ledger row of a partition that has none."""
        self.execute(
            self.sql(INSERT_LEDGER),
            (
                self.target.pipeline,
                self.target.topic,
                position.partition,
                position.next_offset,
                position.epoch,
                position.cluster_id,
                position.topic_id,
                position.last_digest,
                self._bound_time(position.committed_at),
                position.next_offset,
            ),
        )

    def advance(self, before: Position, after: Position) -> None:
        """Move one partition on by compare-and-set; somebody else having moved it means this writer is fenced."""
        changed = self.execute(
            self.sql(ADVANCE_LEDGER),
            (
                after.next_offset,
                after.epoch,
                after.last_digest,
                self._bound_time(after.committed_at),
                _text(after.totals),
                self.target.pipeline,
                self.target.topic,
                before.partition,
                before.next_offset,
                before.epoch,
            ),
        )
        if changed != 1:
            raise errors.Fenced(
                f"the ledger of pipeline {self.target.pipeline!r}, partition {before.partition}, was moved by another writer",
                "the other goes on, and nothing is lost; to take over from it: instep run",
            )

    def keep_totals(self, position: Position) -> None:
        """Write the totals of a partition whose ledger row was advanced before its outcome was known."""
        place = (self.target.pipeline, self.target.topic, position.partition, position.epoch)
        self.execute(self.sql(COUNT_LEDGER), (_text(position.totals), *place))

    def take_epoch(self, partitions: Iterable[Position]) -> tuple[int, dict[int, Position]]:
        """Fence every older writer of this pipeline, and add the rows of partitions that the ledger lacks.

        Returns the epoch, and the ledger as it stands *after* that: an older task may have committed until the very moment.
        """
        with self.transaction():
            known = self.positions(lock=True)
            epoch = max((position.epoch for position in known.values()), default=0) + 1
            self.execute(self.sql(FENCE_LEDGER), (epoch, self.target.pipeline, self.target.topic))
            for position in partitions:
                if position.partition not in known:
                    self.create(msgspec.structs.replace(position, epoch=epoch))
        with self.translated():
            return epoch, self.positions()

    def move(self, position: Position) -> None:
        """Put one partition's row where a person wants it; its epoch stays, and so does the time of the last commit."""
        self.execute(
            self.sql(MOVE_LEDGER),
            (
                position.next_offset,
                position.cluster_id,
                position.topic_id,
                position.last_digest,
                position.next_offset,
                self.target.pipeline,
                self.target.topic,
                position.partition,
            ),
        )

    def remove(self, partition: int) -> None:
        """Take the ledger row of a partition away that the topic does not have."""
        self.execute(self.sql(REMOVE_LEDGER), (self.target.pipeline, self.target.topic, partition))

    def set_aside(self, kept_as: str, partition: int, start: int) -> None:
        """Keep under another topic's name what is known of a partition's records from an offset on: others stand there now."""
        for table in PLACED:
            statement = self.sql(RENAME_TOPIC).format(table=table)
            self.execute(
                statement, (kept_as, self.target.pipeline, self.target.topic, partition, start)
            )

    def decide(self, decisions: Iterable[Decision], at: datetime) -> None:
        """A row for everything that a person decided."""
        rows = [
            (
                self.target.pipeline,
                decision.topic or self.target.topic,
                decision.partition,
                decision.offset,
                self._bound_time(at),
                decision.document,
                decision.action,
                decision.outcome,
                None if decision.reason is None else kept_text(decision.reason),
                decision.actor,
            )
            for decision in decisions
        ]
        self.append("instep_decisions", DECISION_COLUMNS, rows, skip_known=False)

    # --- documents -----------------------------------------------------------------------------------

    def stored(self, documents: Iterable[Document]) -> dict[Document, Stored]:
        """What is known of these documents before the batch: rows of the table, and those deleted earlier."""
        asked = sorted(set(documents))
        query = f"SELECT {self.key_read()}, {self.guard_read()}, {self._status or 'NULL'} FROM {self.table}"
        found: dict[Document, Stored] = {}
        for row in self.select_many(
            f"{query} WHERE {self.key_asked} IN {{documents}}", (), self.asked(asked)
        ):
            document, (order, status) = self.key_of(row)
            found[document] = Stored(
                True, self.order_of(order), None if status is None else str(status)
            )
        absent = (
            [document for document in asked if document not in found]
            if self.target.rules.ordered
            else []
        )
        if absent and self.any_deleted():
            by_name = {str(document): document for document in absent}
            for name, order in self.select_many(
                self.sql(SELECT_DELETED), (self.target.pipeline,), list(by_name)
            ):
                found[by_name[name]] = Stored(False, order)
        return found

    def not_before(
        self, value: Any, documents: Iterable[Document]
    ) -> Iterator[tuple[Document, int | None]]:
        """Those of these documents whose row has this value of the guard's column or a later one, and the row's order value."""
        query = f"SELECT {self.key_read()}, {self.guard_read()} FROM {self.table} WHERE {self.guard} >= {self.placeholder}"
        rows = self.select_many(
            f"{query} AND {self.key_asked} IN {{documents}}",
            (self.bind(value),),
            self.asked(documents),
        )
        return ((document, self.order_of(rest[0])) for document, rest in map(self.key_of, rows))

    def look_up(self, documents: Iterable[Document]) -> dict[Document, dict[str, Any]]:
        """The columns that the pipeline keeps, of those of these documents that the table has."""
        names = ", ".join([self.key_read(), *map(self.scanned, self.target.mapping.columns)])
        query = f"SELECT {names} FROM {self.table} WHERE {self.key_asked} IN {{documents}}"
        found = map(self.key_of, self.select_many(query, (), self.asked(documents)))
        return {
            document: dict(zip(self.columns, values, strict=True)) for document, values in found
        }

    def unique_places(self) -> list[tuple[int, ...]]:
        """The places among the mapped columns of the columns of each unique key that the pipeline writes, beside the key."""
        places = {name: place for place, name in enumerate(self.columns)}
        found = [
            tuple(places[name] for name in names if name in places) for names in self.target.unique
        ]
        return [key for key in found if key]

    def unique_values(self, documents: Iterable[Document]) -> dict[Document, guard.Values]:
        """The values of the mapped columns that belong to unique keys, of those documents that the table has; UNSET elsewhere."""
        wanted = sorted({place for key in self.unique_places() for place in key})
        names = ", ".join(
            [self.key_read(), *(self.quoted(self.columns[place]) for place in wanted)]
        )
        query = f"SELECT {names} FROM {self.table} WHERE {self.key_asked} IN {{documents}}"
        found: dict[Document, guard.Values] = {}
        for document, read in map(self.key_of, self.select_many(query, (), self.asked(documents))):
            values: list[Any] = [UNSET] * len(self.columns)
            for place, value in zip(wanted, read, strict=True):
                values[place] = (
                    value.replace(tzinfo=UTC)
                    if isinstance(value, datetime) and not value.tzinfo
                    else value
                )
            found[document] = tuple(values)
        return found

    def occupants(self, document: Document) -> set[Document]:
        """The ids of the rows that the key's collation takes for this document's: its own, or one that is written differently."""
        query = (
            f"SELECT {self.key_read()} FROM {self.table} WHERE {self.key_asked} IN {{documents}}"
        )
        return {self.key_of(row)[0] for row in self.select_many(query, (), self.asked([document]))}

    def statuses(self, limit: int) -> set[str]:
        """The statuses that the table holds, as far as transitions are declared for them; not more than so many."""
        if self._status is None:
            return set()
        query = f"SELECT DISTINCT {self._status} FROM {self.table} WHERE {self._status} IS NOT NULL LIMIT {int(limit)}"
        return {str(row[0]) for row in self.select(query)}

    def held(self, documents: Iterable[Document]) -> set[Document]:
        """Those of these documents that are parked: their later events wait behind."""
        if not self.select(self.sql(ANY_PARKED), (self.target.pipeline,)):
            return set()
        by_name = {str(document): document for document in documents}
        if (
            len(by_name) > HELD_ASKED_MAX
        ):  # a walk through the few that are parked beats a question for each of the many
            rows = self.select(
                self.sql(ALL_HELD) + f" LIMIT {len(by_name)}", (self.target.pipeline,)
            )
            if len(rows) < len(by_name):
                return {by_name[row[0]] for row in rows if row[0] in by_name}
        return {
            by_name[row[0]]
            for row in self.select_many(
                self.sql(SELECT_HELD), (self.target.pipeline,), sorted(by_name)
            )
        }

    def write(self, changes: guard.Changes) -> None:
        """Write a batch's changes: deletes, then inserts and updates, then what is remembered of the deleted."""
        if changes.deletes:
            self.delete_documents(self.table, self.key_asked, (), self.asked(changes.deletes))
        self.write_groups(self._grouped(changes))
        if changes.deleted_orders:
            names = [str(document) for document in changes.deleted_orders]
            self.delete_documents("instep_deleted", "document", (self.target.pipeline,), names)
            rows = [
                (self.target.pipeline, str(document), order)
                for document, order in changes.deleted_orders.items()
            ]
            self.append(
                "instep_deleted", ("pipeline", "document", "order_value"), rows, skip_known=False
            )

    def delete_documents(
        self, table: str, column: str, pipeline: tuple[str, ...], documents: Sequence[Any]
    ) -> None:
        """Delete the rows of these documents; of one pipeline's where the table is shared."""
        mine = f"pipeline = {self.placeholder} AND " if pipeline else ""
        for chunk in chunks(documents, 500):
            listed, values = self.in_list(chunk)
            self.execute(
                f"DELETE FROM {table} WHERE {mine}{column} IN {listed}", (*pipeline, *values)
            )

    def keep_history(
        self,
        partition: int,
        events: Sequence[Event],
        verdicts: Sequence[Verdict],
        at: datetime,
        *,
        skip_known: bool = False,
        ledger_offset: int | None = None,
    ) -> None:
        """A row for every event, with what became of it. A place in the log that is known already keeps its first row.

        `ledger_offset` is where the partition's ledger stands when events are applied later than the flow came to them.
        """
        if skip_known or self._may_repeat:
            rows = self._history(partition, events, verdicts, at, ledger_offset)
            self.append("instep_history", HISTORY_COLUMNS, rows, skip_known=True)
        else:
            self.append_history(partition, events, verdicts, at)

    def append_history(
        self, partition: int, events: Sequence[Event], verdicts: Sequence[Verdict], at: datetime
    ) -> None:
        """The same for places that are not known yet; a database may have a quicker way for so many rows."""
        self.append(
            "instep_history",
            HISTORY_COLUMNS,
            self._history(partition, events, verdicts, at),
            skip_known=False,
        )

    def keep_dead(
        self, partition: int, dead: Sequence[DeadLetter], at: datetime, *, skip_known: bool = False
    ) -> None:
        """A row for every dead letter: the record whole, and the reason."""
        rows = [
            self._set_aside(partition, letter.record, letter.reason, letter.detail, at)
            for letter in dead
        ]
        self.append(
            "instep_dead_letters", DEAD_COLUMNS, rows, skip_known=skip_known or self._may_repeat
        )

    def keep_parked(
        self,
        partition: int,
        parked: Sequence[tuple[Parked, Record]],
        at: datetime,
        *,
        skip_known: bool = False,
    ) -> None:
        """A row for every event that has to wait: the record whole, its document, and the reason."""
        rows = [
            (
                str(one.event.document),
                *self._set_aside(partition, record, one.refusal.reason, one.refusal.detail, at),
            )
            for one, record in parked
        ]
        self.append(
            "instep_parked", PARKED_COLUMNS, rows, skip_known=skip_known or self._may_repeat
        )

    def dead_count(self) -> int:
        """How many dead letters the pipeline has."""
        return int(
            self.select(self.sql(COUNT_DEAD), (self.target.pipeline, self.target.topic))[0][0]
        )

    def parked_count(self) -> int:
        """How many documents of the pipeline are parked."""
        return int(self.select(self.sql(COUNT_PARKED), (self.target.pipeline,))[0][0])

    # --- parts ---------------------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        """A name as the database quotes it; SQLAlchemy doubles a percent sign where the driver would read it."""
        quoted: str = self.dialect.identifier_preparer.quote_identifier(name)
        return quoted

    def _history(
        self,
        partition: int,
        events: Sequence[Event],
        verdicts: Sequence[Verdict],
        at: datetime,
        ledger_offset: int | None = None,
    ) -> Rows:
        pipeline, topic, committed = self.target.pipeline, self.target.topic, self._bound_time(at)
        return [
            (
                pipeline,
                topic,
                partition,
                event.offset,
                str(event.document),
                event.status,
                event.order,
                None if event.at_us is None else self._bound_time(kinds.from_micros(event.at_us)),
                verdict.value,
                committed,
                ledger_offset,
            )
            for event, verdict in zip(events, verdicts, strict=True)
        ]

    def _set_aside(
        self, partition: int, record: Record, reason: Reason, detail: str, at: datetime
    ) -> tuple[Any, ...]:
        key, value, headers = record.key, record.value, kept_headers(record.headers)
        if reason is Reason.RECORD_TOO_LARGE:
            key, value = (part if part is None else part[:BEGINNING_BYTES] for part in (key, value))
            headers = None
        return (
            self.target.pipeline,
            self.target.topic,
            partition,
            record.offset,
            record.timestamp_ms,
            key,
            value,
            headers,
            reason.value,
            kept_text(detail),
            self._bound_time(at),
        )

    def _guarded(
        self, written: str = "s.{}", table: str = "t", columns: Sequence[str] | None = None
    ) -> str:
        """What a row that is there must be to be written over: the same document, and not as late.

        `columns` are those that are written, if not all: without the guard's there is no order to compare, as a delete has none.
        `written` is how the statement names a column of the rows to write. The key is compared exactly, as an upsert may meet
        another document's row: through a second unique key, or through a collation that takes two ids for one.
        """
        same = self._is_exact(table, written)
        if (
            not self.guard
            or not self.is_guarding
            or (columns is not None and self.target.mapping.guard not in columns)
        ):
            return same
        later = "<=" if self.target.rules.order_is_time else "<"
        return f"{same} AND ({table}.{self.guard} IS NULL OR {table}.{self.guard} {later} {written.format(self.guard)})"

    @property
    def _may_repeat(self) -> bool:
        return self.target.guarantee == "at-least-once"

    @property
    def for_update(self) -> str:
        return " FOR UPDATE"

    def sql(self, statement: str) -> str:
        """A statement in the driver's own marks and the database's own quotes: `?` is a value, `{name}` a name."""
        return statement.replace("?", self.placeholder).format_map(self._names)

    def _marks(self, count: int) -> str:
        return ", ".join([self.placeholder] * count)

    def _bound_time(self, at: datetime | None) -> Any:
        return at

    def order_of(self, value: Any) -> int | None:
        """A stored guard value as the integer that events are compared by."""
        if value is None:
            return None
        if isinstance(self.guard_kind, kinds.Integer):
            return int(value)
        if not isinstance(value, datetime):
            return None  # MySQL's zero date: no time at all
        return kinds.micros(value if value.tzinfo else value.replace(tzinfo=UTC))

    def any_deleted(self) -> bool:
        return bool(self.select(self.sql(ANY_DELETED), (self.target.pipeline,)))

    def _grouped(self, changes: guard.Changes) -> list[ColumnGroup]:
        groups: dict[tuple[bool, tuple[str, ...]], ColumnGroup] = {}
        for fresh, documents in ((True, changes.inserts), (False, changes.updates)):
            for document, values in documents.items():
                columns = self.columns
                if UNSET in values:
                    columns = tuple(
                        name
                        for name, value in zip(columns, values, strict=True)
                        if value is not UNSET
                    )
                group = groups.get((fresh, columns))
                if group is None:
                    group = groups[fresh, columns] = ColumnGroup(len(groups), columns, fresh)
                group.rows.append((document, values))
        return [group for group in groups.values() if group.fresh or group.columns]

    def use_stage(self) -> None:
        """The stage is empty now, and will not be so until the transaction ends."""
        if self.stage_is_used:
            self.clear_stage()
        self.stage_is_used = True

    def expect(self, changed: int, expected: int) -> None:
        """Raise when not every document that was to be written was."""
        if changed == expected:
            return
        if self.passes_over_is_refusal:
            raise errors.RowRefused(
                f"table {self.target.table} passes the row over: a trigger or a policy drops it"
            )
        if self.target.loose_key:
            raise errors.RowRefused(
                f"table {self.target.table} has a row under another id that its key takes for the same"
            )
        raise errors.Outrun(
            f"{expected - changed} documents of {self.target.table} were changed by another writer just now"
        )


def chunks(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Slices of at most `size` values."""
    return (values[start : start + size] for start in range(0, len(values), size))


def kept_text(text: str) -> str:
    """Words about a record, of a length and in characters that every database keeps."""
    return text.replace("\0", "␀")[:DETAIL_CHARACTERS_MAX]


def kept_headers(headers: Headers) -> bytes | None:
    """Headers as they are kept beside a record that was set aside; None for none."""
    return msgspec.json.encode(headers) if headers else None


_decode_headers = msgspec.json.Decoder(Headers).decode


def read_headers(kept: bytes | None) -> Headers:
    """The headers that `kept_headers` made."""
    return _decode_headers(kept) if kept else ()


def moment(value: Any) -> datetime | None:
    """A time as one of instep's own tables gives it back: aware, in UTC."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at if at is None else at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


_encode = msgspec.json.Encoder().encode


def clock_text(at: datetime) -> str:
    """An instant in UTC to the microsecond, as databases write it. Python's own ways are several times slower."""
    text = _encode(at if at.tzinfo is UTC else at.astimezone(UTC)).decode()
    return f"{text[1:11]} {text[12:27]}" if at.microsecond else f"{text[1:11]} {text[12:20]}.000000"


def _position(row: tuple[Any, ...]) -> Position:
    partition, next_offset, epoch, cluster_id, topic_id, last_digest = row[:6]
    totals = msgspec.json.decode(row[8], type=dict[str, int]) if row[8] else {}
    return Position(
        partition,
        next_offset,
        epoch,
        cluster_id,
        topic_id,
        last_digest,
        moment(row[6]),
        row[7],
        totals,
    )


def _text(totals: dict[str, int]) -> str:
    return _encode(totals).decode()


def no_driver(name: str, extra: str) -> errors.MissingPart:
    """The error for a database whose driver is not installed."""
    return extras.missing(f"the driver for {name}", extra)
