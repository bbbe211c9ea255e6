"""The loads of a pipeline: which source, how far it was read, and whether it is complete.

Kept in `instep_loads`, one row per load. To the rest of the database a load looks like a topic with
one partition: its rows have numbers like offsets, the ledger holds the next of them, and the
history and the quarantine name the row. So a row is applied once, however often a load is killed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from instep import errors
from instep.sinks.connection import Connection
from instep.sinks.journal_entries import LOAD_PREFIX
from instep.sinks.source_query import RowMark
from instep.sinks.stored_values import kept_text, utc_time

PARTITION = 0  # the only one of a load
PROBLEMS_MAX = 20

SELECT = (
    "SELECT number, name, source, digest, state, mark, started_at, ended_at, actor"
    " FROM instep_loads WHERE pipeline = ?"
)
INSERT = (
    "INSERT INTO instep_loads"
    " (pipeline, number, name, source, digest, state, started_at, actor)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
LAST_NUMBER = "SELECT max(number) FROM instep_loads WHERE pipeline = ?"
SET_MARK = "UPDATE instep_loads SET mark = ? WHERE pipeline = ? AND number = ?"
SET_STATE = (
    "UPDATE instep_loads SET state = ?, ended_at = ?"
    " WHERE pipeline = ? AND number = ? AND state = 'loading'"
)
# Doubled braces are for `Connection.sql`, which quotes the names in the others.
PROBLEMS = (
    "SELECT {{offset}}, {document}, reason, detail FROM {table}"
    " WHERE pipeline = ? AND topic = ? ORDER BY {{offset}} LIMIT {limit}"
)
PROBLEM_TABLES = (("instep_dead_letters", "NULL"), ("instep_parked", "document"))


class LoadState(StrEnum):
    """Whether a load is complete."""

    LOADING = "loading"
    COMPLETE = "complete"
    REPLACED = "replaced"  # it was restarted at its first row


class StoredLoad(msgspec.Struct, frozen=True):
    """A row of `instep_loads`."""

    number: int
    name: str
    source: str
    digest: str
    state: str
    mark: RowMark | None
    started_at: datetime | None
    ended_at: datetime | None
    actor: str

    @property
    def topic(self) -> str:
        """Return the name under which ledger, history and quarantine know the load."""
        return topic_of(self.number)


def topic_of(number: int) -> str:
    """Return the name of a load in place of a topic."""
    return f"{LOAD_PREFIX}{number}"


class LoadProblem(msgspec.Struct, frozen=True):
    """A row that is in quarantine, and why. Of a dead letter no document is known."""

    row: int
    document: str | None
    reason: str
    detail: str | None


class Loads:
    """The loads of one pipeline. The caller holds the transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pipeline = connection.target.pipeline

    def last(self, name: str) -> StoredLoad | None:
        """Return the latest load with this name."""
        rows = self._connection.select(
            self._connection.sql(f"{SELECT} AND name = ? ORDER BY number DESC LIMIT 1"),
            (self._pipeline, name),
        )
        return _stored(rows[0]) if rows else None

    def add(self, name: str, source: str, digest: str, actor: str) -> int:
        """Add a load and return its number. Raise Transient if another one took the number."""
        opened = self._connection
        [(last,)] = opened.select(opened.sql(LAST_NUMBER), (self._pipeline,))
        number = int(last or 0) + 1
        try:
            with opened.translated():
                opened.execute(
                    opened.sql(INSERT),
                    (
                        self._pipeline,
                        number,
                        name,
                        kept_text(source),
                        digest,
                        LoadState.LOADING.value,
                        opened.bind_time(datetime.now(UTC)),
                        actor,
                    ),
                )
        except errors.RowRefused as error:
            raise errors.Transient(f"another load has just been started: {error.what}") from error
        return number

    def save_mark(self, number: int, mark: RowMark) -> None:
        """Keep where to continue among sorted rows."""
        encoded = msgspec.json.encode(mark).decode()
        self._connection.execute(self._connection.sql(SET_MARK), (encoded, self._pipeline, number))

    def end(self, number: int, state: LoadState) -> None:
        """Set the state of a load that is not complete yet."""
        self._connection.execute(
            self._connection.sql(SET_STATE),
            (state.value, self._connection.bind_time(datetime.now(UTC)), self._pipeline, number),
        )

    def problems(self, number: int) -> list[LoadProblem]:
        """Return the first rows of a load that are in quarantine, in the order of the rows."""
        found: list[LoadProblem] = []
        for table, document in PROBLEM_TABLES:
            statement = PROBLEMS.format(table=table, document=document, limit=PROBLEMS_MAX)
            rows = self._connection.select(
                self._connection.sql(statement), (self._pipeline, topic_of(number))
            )
            found += [LoadProblem(*row) for row in rows]
        return sorted(found, key=lambda problem: problem.row)[:PROBLEMS_MAX]


def _stored(row: tuple[object, ...]) -> StoredLoad:
    number, name, source, digest, state, mark, started_at, ended_at, actor = row
    return StoredLoad(
        int(str(number)),
        str(name),
        str(source),
        str(digest),
        str(state),
        msgspec.json.decode(str(mark), type=RowMark) if mark else None,
        utc_time(started_at),
        utc_time(ended_at),
        str(actor),
    )
