"""The batches of Spark sinks: what each has applied, which run writes, and rows that are staged.

Kept in `instep_sinks`, `instep_sink_tables`, `instep_sink_runs`, `instep_batches` and
`instep_staged_rows`, and changed in the transaction that writes the rows. The caller holds the
transaction.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from instep import errors
from instep.sinks import connecting, target
from instep.sinks.connection import Connection
from instep.sinks.stored_values import utc_time
from instep.sinks.tables import create, metadata, sink_metadata

BATCHES_KEPT = 100  # as many as Spark keeps in a checkpoint
RUNS_KEPT = 1_000
STAGED_COLUMNS = ("token", "number", "sink", "run_id", "batch_id", "data")
PIECES_AT_ONCE = 32
PIECE_BYTES = 384 * 1024  # below half of the smallest max_allowed_packet that MySQL had by default
LAST, NOT_LAST = b"\0", b"\1"  # before each piece of a chunk

SELECT_SINK = (
    "SELECT query_id, batch_id, epoch, next_row, committed_at FROM instep_sinks WHERE sink = ?"
)
INSERT_SINK = "INSERT INTO instep_sinks (sink, epoch, next_row) VALUES (?, 0, 0)"
# Compare-and-set: changes nothing if another writer has moved the row.
ADVANCE_SINK = (
    "UPDATE instep_sinks SET query_id = ?, batch_id = ?, epoch = ?, next_row = ?, committed_at = ?"
    " WHERE sink = ? AND epoch = ? AND next_row = ?"
)
ANY_QUERY = "*"  # in place of a query: the next batch of any query is applied
ADOPT = "UPDATE instep_sinks SET query_id = :query, batch_id = NULL WHERE sink = :sink"
ADOPT_NEW = (
    "INSERT INTO instep_sinks (sink, query_id, epoch, next_row) VALUES (:sink, :query, 0, 0)"
)
FORGET_BATCHES = "DELETE FROM instep_batches WHERE sink = :sink"
FORGET_TABLES = "DELETE FROM instep_sink_tables WHERE sink = :sink"
# The tables that have rows of a sink, and those that have rows of its tables.
OF_SINK = ("instep_sinks", "instep_sink_runs", "instep_batches", "instep_staged_rows")
OF_JOURNAL = ("instep_parked", "instep_dead_letters", "instep_deleted")
DELETE_TABLES = "DELETE FROM instep_sink_tables WHERE sink = ?"
INSERT_TABLE = "INSERT INTO instep_sink_tables (pipeline, sink, definition) VALUES (?, ?, ?)"
SELECT_TABLES = "SELECT pipeline, sink, definition FROM instep_sink_tables ORDER BY pipeline"
SELECT_RUN = "SELECT epoch FROM instep_sink_runs WHERE sink = ? AND run_id = ?"
INSERT_RUN = "INSERT INTO instep_sink_runs (sink, run_id, epoch) VALUES (?, ?, ?)"
DELETE_RUNS = "DELETE FROM instep_sink_runs WHERE sink = ? AND epoch < ?"
SELECT_BATCHES = (
    "SELECT batch_id, offsets, digest FROM instep_batches"
    " WHERE sink = ? AND (batch_id = ? OR batch_id = ?)"
)
INSERT_BATCH = "INSERT INTO instep_batches (sink, batch_id, offsets, digest) VALUES (?, ?, ?, ?)"
DELETE_BATCHES = "DELETE FROM instep_batches WHERE sink = ? AND batch_id < ?"
SELECT_STAGED = (
    "SELECT data FROM instep_staged_rows WHERE token = ? AND number >= ? AND number < ?"
    " ORDER BY number"
)
DELETE_STAGED_OF_OTHER_RUNS = (
    "DELETE FROM instep_staged_rows WHERE sink = ? AND run_id <> ? AND run_id NOT LIKE ?"
)
DELETE_STAGED_OF_WRITE = "DELETE FROM instep_staged_rows WHERE sink = ? AND run_id = ?"
DELETE_STAGED_OF_OLD_WRITES = (
    "DELETE FROM instep_staged_rows WHERE sink = ? AND run_id LIKE ? AND run_id < ?"
)
DELETE_STAGED_UP_TO = (
    "DELETE FROM instep_staged_rows WHERE sink = ? AND run_id = ? AND batch_id <= ?"
)
SELECT_ALL = (
    "SELECT sink, query_id, batch_id, epoch, next_row, committed_at FROM instep_sinks ORDER BY sink"
)


# The run id of a single write, which says when it began. No run of a stream has such an id.
WRITE_PREFIX = "write-"
WRITES = f"{WRITE_PREFIX}%"
WRITE_KEPT_S = 7 * 86_400  # a write that is older has ended, even if nobody has said so


def new_write(age_s: int = 0) -> str:
    """Return the run id of a single write that began so long ago. Ids sort by time."""
    return f"{_began(age_s)}-{secrets.token_hex(16)}"


def _began(age_s: int) -> str:
    return f"{WRITE_PREFIX}{int(time.time()) - age_s:010}"


class StoredSink(msgspec.Struct, frozen=True):
    """A row of `instep_sinks`: the last batch that was applied, and the epoch of its writer.

    Without a query, no batch of a stream was applied, and only the first one of a query may be.
    """

    query_id: str | None = None
    batch_id: int | None = None
    epoch: int = 0
    next_row: int = 0
    committed_at: datetime | None = None

    @property
    def is_adopted(self) -> bool:
        """Return whether the next batch of any query is applied, because somebody said so."""
        return self.query_id == ANY_QUERY


class StoredBatch(msgspec.Struct, frozen=True):
    """What is known of a batch that was applied: its planned offsets and the digest of its rows."""

    offsets: str | None
    digest: str


class LockedSink(msgspec.Struct, frozen=True):
    """What a batch begins with: the sink's row, and what is known of its run and its id."""

    stored: StoredSink
    run_epoch: int | None  # of a run that has written before
    batches: dict[int, StoredBatch]  # this batch and the one before it, if they were applied
    answers: list[list[tuple[Any, ...]]]  # to the queries that were given


class Batches:
    """The state of one sink."""

    def __init__(self, connection: Connection, sink: str) -> None:
        self._connection, self._sink = connection, sink

    def lock(self) -> StoredSink:
        """Return the sink's row, locked until the transaction ends. A new sink gets one."""
        return self._locked(self._connection.select(*self._lock_query()))

    def lock_for(
        self, run_id: str, batch_id: int, queries: Sequence[tuple[str, Sequence[Any]]] = ()
    ) -> LockedSink:
        """Lock the sink's row and return what a batch begins with, in one round trip.

        `queries` are asked behind the lock too.
        """
        opened = self._connection
        rows, runs, batches, *answers = opened.select_together(
            [
                self._lock_query(),
                (opened.sql(SELECT_RUN), (self._sink, run_id)),
                (opened.sql(SELECT_BATCHES), (self._sink, batch_id - 1, batch_id)),
                *queries,
            ]
        )
        return LockedSink(
            self._locked(rows),
            int(runs[0][0]) if runs else None,
            {int(number): StoredBatch(*rest) for number, *rest in batches},
            answers,
        )

    def _lock_query(self) -> tuple[str, Sequence[Any]]:
        opened = self._connection
        return opened.sql(SELECT_SINK) + opened.for_update, (self._sink,)

    def _locked(self, rows: Sequence[tuple[Any, ...]]) -> StoredSink:
        """Return the sink's row, or insert it."""
        if rows:
            return _stored(rows[0])
        opened = self._connection
        try:
            with opened.translated():
                opened.execute(opened.sql(INSERT_SINK), (self._sink,))
        except errors.RowRefused as error:
            raise errors.Transient(
                f"another query has just started the sink: {error.what}"
            ) from error
        return StoredSink()

    def keep_tables(self, definitions: Mapping[str, str]) -> None:
        """Replace what is known of the sink's tables: a definition for each name in the journal."""
        self._execute(DELETE_TABLES, self._sink)
        for pipeline, text in definitions.items():
            self._execute(INSERT_TABLE, pipeline, self._sink, text)

    def add_run(self, run_id: str, epoch: int) -> None:
        """Keep the epoch of a run."""
        self._execute(INSERT_RUN, self._sink, run_id, epoch)
        self._execute(DELETE_RUNS, self._sink, epoch - RUNS_KEPT)

    def remove_staged_by_others(self, run_id: str) -> None:
        """Remove what the predecessors of a run staged; single writes may still be running."""
        self._execute(DELETE_STAGED_OF_OTHER_RUNS, self._sink, run_id, WRITES)

    def remove_write(self, write: str) -> None:
        """Remove what the tasks of a single write staged, repeated and failed tasks included."""
        self._execute(DELETE_STAGED_OF_WRITE, self._sink, write)

    def remove_old_writes(self) -> None:
        """Remove what single writes staged whose driver was killed before it could do that."""
        self._execute(DELETE_STAGED_OF_OLD_WRITES, self._sink, WRITES, _began(WRITE_KEPT_S))

    def advance(
        self, before: StoredSink, after: StoredSink, applied: StoredBatch | None = None
    ) -> None:
        """Replace the sink's row by compare-and-set, and keep the batch that is applied now.

        After `adopt`, its id may have been used before.
        """
        opened = self._connection
        set_row = (
            after.query_id,
            after.batch_id,
            after.epoch,
            after.next_row,
            opened.bind_time(datetime.now(UTC)),
            self._sink,
            before.epoch,
            before.next_row,
        )
        statements: list[tuple[str, Sequence[Any]]] = [(opened.sql(ADVANCE_SINK), set_row)]
        if applied is not None:
            assert after.batch_id is not None
            kept = (self._sink, after.batch_id, applied.offsets, applied.digest)
            forgotten = (self._sink, after.batch_id - BATCHES_KEPT)
            statements += [
                (opened.sql(INSERT_BATCH), kept),
                (opened.sql(DELETE_BATCHES), forgotten),
            ]
        changed, *_ = opened.execute_together(statements)
        if changed != 1:
            raise errors.Fenced(
                f"another writer has moved the state of sink {self._sink!r}",
                "the other query continues, and nothing is lost; end it, then start this one again",
            )

    # --- staged rows ---------------------------------------------------------------------------

    def stage(
        self, token: str, run_id: str, batch_id: int, first: int, data: Sequence[bytes]
    ) -> int:
        """Add chunks of rows under a token, in pieces numbered from `first`; return their number.

        A chunk with one large row may be larger than what the database takes at once.
        """
        pieces = [piece for chunk in data for piece in _pieces(chunk)]
        rows = [
            (token, number, self._sink, run_id, batch_id, piece)
            for number, piece in enumerate(pieces, start=first)
        ]
        self._connection.append("instep_staged_rows", STAGED_COLUMNS, rows, skip_existing=False)
        return len(pieces)

    def staged(self, token: str, count: int) -> Iterator[bytes]:
        """Return the chunks of a token. Raise StagingLost if pieces are missing."""
        found, begun = 0, b""
        for first in range(0, count, PIECES_AT_ONCE):
            last = min(first + PIECES_AT_ONCE, count)
            for (data,) in self._select(SELECT_STAGED, token, first, last):
                found += 1
                mark, piece = bytes(data[:1]), bytes(data[1:])
                begun += piece
                if mark == LAST:
                    yield begun
                    begun = b""
        if found != count:
            raise errors.StagingLost(
                f"sink {self._sink!r}: a task staged {count} pieces of rows,"
                f" but instep_staged_rows has {found} of them"
            )

    def remove_staged(self, run_id: str, batch_id: int) -> None:
        """Remove what tasks of this run staged for this batch and those before it.

        Also what repeated and speculative tasks staged, which never reached the driver.
        """
        self._execute(DELETE_STAGED_UP_TO, self._sink, run_id, batch_id)

    def _execute(self, statement: str, *parameters: Any) -> int:
        return self._connection.execute(self._connection.sql(statement), parameters)

    def _select(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._connection.select(self._connection.sql(statement), parameters)


def _pieces(chunk: bytes) -> Iterator[bytes]:
    last = max(0, len(chunk) - 1) // PIECE_BYTES
    for number in range(last + 1):
        piece = chunk[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
        yield (LAST if number == last else NOT_LAST) + piece


def create_missing(url: str) -> None:
    """Create instep's own tables, also those of sinks, where the database lacks them.

    Another query may be creating the same tables: a table that exists by then is no error.
    """
    where = target.database_url(url)
    with connecting.connection(where) as opened:
        for table in _missing(opened):
            for statement in create(table, opened.dialect):
                try:
                    opened.exec_driver_sql(statement)
                    opened.commit()
                except sa.exc.DBAPIError as error:
                    opened.rollback()
                    if table not in _missing(opened):
                        break
                    ours = connecting.translate(where, error.orig) if error.orig else None
                    if isinstance(ours, errors.PermissionLost):
                        raise _not_allowed(opened, ours) from error
                    raise


def _missing(opened: sa.Connection) -> list[sa.Table]:
    existing = set(sa.inspect(opened).get_table_names())
    own = (*metadata.sorted_tables, *sink_metadata.sorted_tables)
    return [table for table in own if table.name not in existing]


def _not_allowed(opened: sa.Connection, refused: errors.InstepError) -> errors.NotAuthorised:
    """Return the error with the statements that somebody else has to run."""
    statements = [text for table in _missing(opened) for text in create(table, opened.dialect)]
    listed = ";\n".join(statements)
    return errors.NotAuthorised(
        f"instep's own tables cannot be created: {refused.what}",
        f"have an administrator run these statements:\n{listed};",
    )


def adopt(url: str, sink: str) -> None:
    """Let the next batch of any query be applied to a sink, also to one never seen here."""
    create_missing(url)
    named = {"sink": sink, "query": ANY_QUERY}
    with connecting.connection(target.database_url(url)) as opened:
        # the sink's row first, as a batch does, so that neither can overtake the other
        if opened.execute(sa.text(ADOPT), named).rowcount == 0:
            opened.execute(sa.text(ADOPT_NEW), named)
        opened.execute(sa.text(FORGET_BATCHES), {"sink": sink})
        opened.commit()


def forget(url: str, sink: str, *, execute: bool) -> dict[str, int]:
    """Remove all that instep keeps about a sink; return the number of rows of each table.

    Decisions of people stay, and so do the rows that the sink has written. Without `execute`,
    everything is rolled back: the numbers are the plan.
    """
    create_missing(url)
    with connecting.connection(target.database_url(url)) as opened:
        # the sink's row first, as a batch does
        removed = {
            table: opened.execute(
                sa.text(f"DELETE FROM {table} WHERE sink = :sink"), {"sink": sink}
            ).rowcount
            for table in OF_SINK
        }
        names = [name for name, owner, _ in opened.execute(sa.text(SELECT_TABLES)) if owner == sink]
        for table in OF_JOURNAL:
            statement = sa.text(f"DELETE FROM {table} WHERE pipeline = :name")
            removed[table] = sum(
                opened.execute(statement, {"name": name}).rowcount for name in names
            )
        opened.execute(sa.text(FORGET_TABLES), {"sink": sink})
        if execute:
            opened.commit()
    return {table: count for table, count in removed.items() if count}


def stored_sinks(url: str) -> dict[str, StoredSink]:
    """Return all sinks of a database by name."""
    with connecting.connection(target.database_url(url)) as opened:
        if not sa.inspect(opened).has_table("instep_sinks"):
            return {}
        return {str(row[0]): _stored(tuple(row[1:])) for row in opened.execute(sa.text(SELECT_ALL))}


def stored_tables(url: str) -> list[tuple[str, str, str]]:
    """Return the name in the journal, the sink and the definition of each table of a sink."""
    with connecting.connection(target.database_url(url)) as opened:
        if not sa.inspect(opened).has_table("instep_sink_tables"):
            return []
        rows = opened.execute(sa.text(SELECT_TABLES))
        return [(str(pipeline), str(sink), str(text)) for pipeline, sink, text in rows]


def _stored(row: Sequence[Any]) -> StoredSink:
    query_id, batch_id, epoch, next_row, committed_at = row
    return StoredSink(query_id, batch_id, int(epoch), int(next_row), utc_time(committed_at))
