"""Read an outbox in commit order per document: what every way of reading has in common.

A reader is ahead of what is published: it remembers which rows it has returned, and `recover` sets
it back to a published position. The position is plain data that the relay stores in Kafka together
with the rows.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from instep import errors, settings
from instep.sinks import target
from instep.sources import outbox_shape, tables
from instep.sources.connection import OpenConnections, SourceConnection

# A batch is in memory several times: as rows, as the client's records, and the next one beside it.
BATCH_BYTES_MAX = 32 * 1024 * 1024
PORTION_ROWS_MAX = 500  # read at once: rows may suddenly be much larger than those before
FIRST_ROW_BYTES = 1024 * 1024  # assumed before a row is read
ROW_BYTES = 100  # of a row without its value


class OutboxRow(msgspec.Struct, frozen=True):
    """A row of the outbox. Without a value it deletes its document."""

    id: int
    document: str
    value: bytes | None
    headers: str | None


class Batch(msgspec.Struct, frozen=True):
    """Rows, and the position of the reader behind them."""

    rows: list[OutboxRow]
    position: dict[str, Any]
    is_full: bool  # more rows may follow: it was ended by its limit, or by its bytes


class LastTransaction(msgspec.Struct, frozen=True):
    """What Kafka knows of a relay's last transaction: its number, and the reader's position."""

    sequence: int
    position: dict[str, Any]


class OutboxReader(abc.ABC):
    """Reads an outbox. For use by one thread at a time."""

    def __init__(
        self, relay: settings.Relay, name: str, connections: OpenConnections | None = None
    ) -> None:
        self._relay, self._name = relay, name
        self._opened = self._writing = SourceConnection(relay.source, connections)
        dialect = self._opened.dialect
        self._schema = target.table_name(relay.outbox).schema
        self._table = tables.quoted(dialect, target.table_name(relay.outbox))
        self._dead_table = tables.quoted(dialect, target.TableName(self._schema, tables.DEAD_TABLE))
        self._lease_table = tables.quoted(
            dialect, target.TableName(self._schema, tables.LEASE_TABLE)
        )
        quote = dialect.identifier_preparer.quote_identifier
        columns = relay.columns
        self._id = quote(columns.id)
        try:
            found = outbox_shape.read(self._opened, target.table_name(relay.outbox))
            outbox_shape.check(self._opened, relay, found)
            self._refuse_shared()
        except BaseException:
            self._opened.close()
            raise
        names = (columns.id, columns.document, columns.value, columns.headers)
        self._columns = ", ".join(self._expression(found, name) for name in names)
        self._row_bytes = FIRST_ROW_BYTES  # mean of the rows that were read last

    @abc.abstractmethod
    def first_position(self) -> dict[str, Any]:
        """Return the position before all rows that the outbox has now."""

    @abc.abstractmethod
    def skip(self) -> Iterator[dict[str, Any]]:
        """Yield positions, the last of which is behind all rows that the outbox has now.

        Whoever publishes one calls `done` before taking the next.
        """

    @abc.abstractmethod
    def recover(self, found: LastTransaction) -> None:
        """Continue behind a published position; raise a named stop if that is not safe."""

    @abc.abstractmethod
    def next(self, limit: int) -> Batch | None:
        """Return the next rows, at most `limit`; None if there are none.

        A batch ends earlier if its rows have BATCH_BYTES_MAX bytes.
        """

    def wait_durable(self, batch: Batch) -> None:  # noqa: B027 - most databases need nothing
        """Wait until the rows of a batch are on disk. They must not be published before that."""

    @abc.abstractmethod
    def done(self, sequence: int) -> None:
        """Clean up after the oldest batch that was returned and is published now."""

    def has_news(self) -> bool:
        """Return whether there may be new rows; a cheap question where the database has one."""
        return True

    def adopt(self) -> None:  # noqa: B027 - most databases need nothing
        """Make rows that come from another database readable here. Only a person decides this."""

    def accept(self, position: dict[str, Any]) -> dict[str, Any]:
        """Return a position as one of this server. A person says that it has lost nothing."""
        return position

    @abc.abstractmethod
    def count_waiting(self, position: dict[str, Any] | None) -> int:
        """Return how many rows are not published, by the last published position."""

    @abc.abstractmethod
    def last_id(self) -> int | None:
        """Return the last id that the database gave out; None if others give them out."""

    @abc.abstractmethod
    def raise_ids(self, published: int) -> None:
        """Give rows ids above one: in their order those of now, and all later ones.

        A restored source continues with ids that were published before, also as versions.
        """

    def _renumber(self, first: int, last: int, above: int) -> int:
        """Give rows from `first` to `last` new ids above another one; return the last new id."""
        if not last:
            return above
        added = max(above, last) - first + 1
        self._writing.execute(
            f"UPDATE {self._table} SET {self._id} = {self._id} + ?"
            f" WHERE {self._id} BETWEEN ? AND ?",
            (added, first, last),
        )
        return last + added

    def keep_dead(self, row: OutboxRow, reason: str) -> None:
        """Keep a row that is not published. Keeping it twice changes nothing.

        Its id may have been used before: then another row is kept already, and stays.
        """
        kept = (
            row.document.encode(errors="backslashreplace").decode(),
            row.value,
            None if row.headers is None else row.headers.encode(errors="backslashreplace").decode(),
        )
        known = self._writing.select(
            f"SELECT document, value, headers, occurrence FROM {self._dead_table}"
            " WHERE relay = ? AND id = ? ORDER BY occurrence",
            (self._name, row.id),
        )
        if any(
            (text, value and bytes(value), headers) == kept for text, value, headers, _ in known
        ):
            return
        occurrence = known[-1][3] + 1 if known else 0
        self._writing.execute(
            f"INSERT INTO {self._dead_table}"
            " (relay, id, occurrence, document, value, headers, reason, at_s)"
            f" VALUES (?, ?, ?, ?, ?, ?, ?, {self._writing.clock})",
            (self._name, row.id, occurrence, *kept, reason),
        )

    def close(self) -> None:
        """Close the connection."""
        self._opened.close()

    def _refuse_shared(self) -> None:
        outbox = target.table_name(self._relay.outbox)
        others = self._opened.select(
            f"SELECT relay FROM {self._lease_table} WHERE outbox = ? AND relay <> ?",
            (outbox.name, self._name),
        )
        if others:
            raise tables.outbox_taken(self._relay, self._name, others[0][0])

    def _expression(self, found: outbox_shape.Columns, name: str | None) -> str:
        """Return what is read of a column. The one for headers may be missing."""
        known = None if name is None else outbox_shape.column(self._opened, found, name)
        if name is None or (found and known is None):
            return "NULL"
        return self._opened.dialect.identifier_preparer.quote_identifier(name)

    def _collect(
        self, limit: int, read: Callable[[list[OutboxRow], int], list[OutboxRow]]
    ) -> tuple[list[OutboxRow], bool]:
        """Return the next rows of a batch, and whether more may follow.

        They are read in portions: `read` takes the rows so far and how many to add at most.
        """
        rows: list[OutboxRow] = []
        size = 0
        while True:
            count = self._portion(limit - len(rows), BATCH_BYTES_MAX - size)
            found = read(rows, count)
            added = sum([len(row.value or b"") + len(row.headers or "") for row in found])
            added += len(found) * ROW_BYTES
            if found:
                self._row_bytes = added // len(found)
            rows += found
            size += added
            if len(found) < count:
                return rows, False
            if len(rows) >= limit or size >= BATCH_BYTES_MAX:
                return rows, True

    def _portion(self, rows_max: int, bytes_max: int) -> int:
        """Return how many rows to read at once."""
        return min(rows_max, PORTION_ROWS_MAX, max(1, bytes_max // self._row_bytes))

    def _rows(self, found: Sequence[Sequence[Any]]) -> list[OutboxRow]:
        return [
            OutboxRow(
                id_,
                document if type(document) is str else _text(document),
                value if value is None or type(value) is bytes else _bytes(value),
                headers if headers is None or type(headers) is str else _text(headers),
            )
            for id_, document, value, headers in found
        ]


def _text(value: Any) -> str:
    """Return the text of a column that the driver does not return as text; NULL is empty.

    Bytes that are no text become code points that no text contains: no record is made of them.
    """
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray | memoryview):
        return decoded(bytes(value))
    return str(value)


def decoded(text: bytes) -> str:
    """Return text as the database has it, even if it is no UTF-8."""
    return text.decode(errors="surrogateescape")


def _bytes(value: Any) -> bytes:
    """Return the bytes of a column that the driver does not return as bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return encoded(_text(value))


def encoded(text: str) -> bytes:
    """Return the bytes of text that `decoded` returned."""
    return text.encode(errors="surrogateescape")


def restored(name: str, why: str, *, fades: bool = False) -> errors.SourceRestored:
    """Return the stop for a source that is older than what was published from it.

    `fades` says that the reason is a counter that goes on counting.
    """
    stop = errors.SourceRestored(
        f"the source of relay {name!r} is not what it was when the relay last published: {why}"
    )
    stop.fades = fades
    return stop
