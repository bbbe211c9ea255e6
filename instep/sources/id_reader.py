"""Read the outbox of MariaDB, MySQL or SQLite by ids; published rows are deleted.

A row may be committed after one with a higher id. So a read begins at the first row that exists,
never behind the highest id seen. The rows that were returned and are not deleted yet are skipped.
On SQLite there is one writer, so ids are in commit order.

The deletion of a batch also writes the batch's number to the relay's row. This shows at a new
session whether the last batch was deleted, and reveals a source that was restored from a backup.

InnoDB keeps deleted rows for as long as any session has a snapshot that shows them, and a read from
the first row passes all of them. So when a read takes long on MariaDB, the relay looks for a moment
at which no transaction has changed the outbox: it locks the table against writers, but only if that
needs no waiting, and only for an instant. Ids that were given out before that moment belong to rows
that were committed, or to none. So later reads begin behind them. The whole table is read too, as
often as that is cheap: this finds a row that somebody has given such an id.

InnoDB shows a commit to others before the commit is on disk, unless a binary log orders the two. So
the end of InnoDB's log is read behind each batch, and the batch is published only once the log is
on disk up to there. SQLite shows a commit only when it is complete.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from instep import errors, settings
from instep.sinks import target
from instep.sinks.stored_values import chunks
from instep.sources.connection import OpenConnections
from instep.sources.outbox_reader import (
    BATCH_BYTES_MAX,
    Batch,
    LastTransaction,
    OutboxReader,
    OutboxRow,
    decoded,
    encoded,
    restored,
)

DELETED_AT_ONCE = 5_000  # ids of one statement
SKIPPED_AT_ONCE = 20_000  # rows, by a reset
ROOM = 100_000  # ids for rows that are added while a reset gives others new ids
SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
# Status variables with the end of InnoDB's log, and how far it is on disk. MySQL has them since
# 8.0.30.
LOG_VARIABLES = {
    "mariadb": ("Innodb_lsn_current", "Innodb_lsn_flushed"),
    "mysql": ("Innodb_redo_log_current_lsn", "Innodb_redo_log_flushed_to_disk_lsn"),
}
FLUSH_WAIT_S = 0.002
FLUSH_POLL_S = 0.05
FLUSH_WAIT_MAX_S = 10.0
SLOW_READ_S, SLOW_ROW_S = 0.003, 0.00002
SETTLE_INTERVAL_S = 0.25
LOCKED_MAX_S = 1
WHOLE_READS = 0.005  # share of the time


class IdReader(OutboxReader):
    """Reads by ids, in transactions that see one state of the table."""

    def __init__(
        self, relay: settings.Relay, name: str, connections: OpenConnections | None = None
    ) -> None:
        super().__init__(relay, name, connections)
        self._is_sqlite = self._opened.dialect.name == "sqlite"
        if self._is_sqlite:  # which stores text without looking at it
            self._opened.driver.text_factory = decoded
        self._taken: deque[list[int]] = deque()  # batches that are not deleted yet
        self._delete_from = self._deletion()
        self._data_version: int | None = None
        self._highest = 0  # id that was returned
        self._begin = 0  # ids up to this one need not be read, and
        self._settled = 0  # those up to this one need not once everything is read that is there
        # the time of the next look for a moment without open transactions
        self._settle_at = 0.0 if self._numbers_alone() else math.inf
        self._is_slow = False  # whether the last read was
        self._whole_read_at = 0.0  # the time of the next one
        self._log_end: int | None = None  # of InnoDB, behind the rows that were read last

    def first_position(self) -> dict[str, Any]:
        return _position([])

    def skip(self) -> Iterator[dict[str, Any]]:
        last = self._opened.value(f"SELECT max({self._id}) FROM {self._table}")
        while last is not None:
            rows, _ = self._collect(SKIPPED_AT_ONCE, functools.partial(self._following, [], 0))
            rows = [row for row in rows if row.id <= last]
            if not rows:
                break
            self._taken.append([row.id for row in rows])
            yield _position(rows)
        self._taken.append([])
        yield _position([])

    def recover(self, found: LastTransaction) -> None:
        """Delete the last published batch, if its rows are still there and are the same."""
        self._taken.clear()
        self._highest = self._begin = self._settled = 0
        self._data_version = None
        # In one state: a process that was fenced may still be deleting the batch.
        with self._opened.transaction("BEGIN" if self._is_sqlite else SNAPSHOT):
            [(sequence,)] = self._opened.select(
                f"SELECT sequence FROM {self._lease_table} WHERE relay = ?", (self._name,)
            )
            rows = self._within(found.position["ranges"])
        if sequence == found.sequence:
            if rows:
                raise restored(
                    self._name, f"row {rows[0].id} has an id that was published and deleted"
                )
            return
        if sequence != found.sequence - 1:
            raise restored(
                self._name,
                f"it knows transaction {sequence}, and Kafka has transaction {found.sequence}",
            )
        if _digest(rows) != found.position["digest"]:
            raise restored(
                self._name, "the rows that were published last are missing or have changed"
            )
        self._delete([row.id for row in rows], found.sequence)

    def next(self, limit: int) -> Batch | None:
        rows, is_full = self._read(limit)
        if not rows:
            return None
        self._taken.append([row.id for row in rows])
        self._highest = max(self._highest, rows[-1].id)
        if not self._is_sqlite:
            self._log_end = self._log()[0]
        return Batch(rows, _position(rows), is_full)

    def wait_durable(self, batch: Batch) -> None:
        """Wait until InnoDB's log is on disk up to where it ended when the batch was read."""
        del batch  # the next one is read later
        if self._is_sqlite:
            return
        if self._log_end is not None:
            if self._is_log_on_disk():
                return
            time.sleep(FLUSH_WAIT_S)
            if self._is_log_on_disk():
                return
        # A commit of our own makes the server write its log up to here. It must change something:
        # a microsecond of a heartbeat means nothing.
        self._opened.execute(
            f"UPDATE {self._lease_table} SET heartbeat_s = heartbeat_s + 1e-6 WHERE relay = ?",
            (self._name,),
        )
        until = time.monotonic() + FLUSH_WAIT_MAX_S
        while self._log_end is not None and not self._is_log_on_disk():
            if time.monotonic() > until:
                raise errors.Transient(
                    f"the source of relay {self._name!r} has not written its log to disk for"
                    f" {FLUSH_WAIT_MAX_S:.0f} seconds, so its last rows must not be published",
                    "SET GLOBAL innodb_flush_log_at_trx_commit = 1; also in the server's my.cnf",
                )
            time.sleep(FLUSH_POLL_S)

    def done(self, sequence: int) -> None:
        self._delete(self._taken[0], sequence)
        self._taken.popleft()

    def has_news(self) -> bool:
        if not self._is_sqlite:
            return True
        self._opened.refuse_replaced()
        version = int(self._opened.value("PRAGMA data_version"))
        changed, self._data_version = version != self._data_version, version
        return changed

    def count_waiting(self, position: dict[str, Any] | None) -> int:
        with self._opened.transaction("BEGIN" if self._is_sqlite else SNAPSHOT):
            published = self._within(position["ranges"]) if position else []
            return int(self._opened.value(f"SELECT count(*) FROM {self._table}")) - len(published)

    def last_id(self) -> int | None:
        name = target.table_name(self._relay.outbox)
        if self._is_sqlite:
            return self._last_of_sqlite(name.name)
        if self._opened.dialect.name == "mysql":  # which else may answer with yesterday's value
            self._opened.execute("SET SESSION information_schema_stats_expiry = 0")
        found = self._opened.value(
            "SELECT max(auto_increment) FROM information_schema.tables"
            " WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?",
            (name.schema, name.name),
        )
        return None if found is None else int(found) - 1

    def _last_of_sqlite(self, table: str) -> int | None:
        if not self._opened.select("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'"):
            return None
        query = "SELECT COALESCE(max(seq), 0) FROM sqlite_sequence WHERE name = ?"
        return int(self._opened.value(query, (table,)))

    def raise_ids(self, published: int) -> None:
        if self._is_sqlite:
            name = target.table_name(self._relay.outbox).name
            with self._opened.transaction("BEGIN IMMEDIATE"):
                end = max(self._last_of_sqlite(name) or 0, self._renumber(*self._ends(), published))
                self._opened.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
                self._opened.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (name, end))
            return
        # The change of the counter waits for open transactions, and later ones get ids above it.
        # The rows of now move into the room that it leaves.
        first, last = self._ends()
        end = max(self.last_id() or 0, 2 * max(published, last) - first + ROOM)
        self._opened.execute("SET SESSION lock_wait_timeout = 10")
        self._opened.run(f"ALTER TABLE {self._table} AUTO_INCREMENT = {end + 1:d}")
        with self._opened.transaction():
            if self._renumber(*self._ends(end), published) > end:
                raise errors.Transient(
                    f"the outbox of relay {self._name!r} has got many rows meanwhile"
                )

    def _ends(self, up_to: int = 2**63 - 1) -> tuple[int, int]:
        """Return the first and the last id; 0 and 0 if there is no row."""
        [(first, last)] = self._opened.select(
            f"SELECT min({self._id}), max({self._id}) FROM {self._table} WHERE {self._id} <= ?",
            (up_to,),
        )
        return first or 0, last or 0

    def _is_log_on_disk(self) -> bool:
        on_disk = self._log()[1]
        return self._log_end is None or on_disk is None or on_disk >= self._log_end

    def _log(self) -> tuple[int | None, int | None]:
        """Return the end of InnoDB's log, and how far it is on disk; None if it is not known."""
        names = LOG_VARIABLES[self._opened.dialect.name]
        found = dict(self._opened.select("SHOW GLOBAL STATUS WHERE Variable_name IN (?, ?)", names))
        end, on_disk = (int(found[name]) if name in found else None for name in names)
        return end, on_disk

    def _read(self, limit: int) -> tuple[list[OutboxRow], bool]:
        began = time.monotonic()
        if self._is_slow and began >= self._settle_at:
            self._settle()
            began = time.monotonic()
        is_whole = began >= self._whole_read_at
        rows, is_full = self._read_rows(limit, 0 if is_whole else self._begin)
        ended = time.monotonic()
        if is_whole:
            self._whole_read_at = ended + (ended - began) / WHOLE_READS
        # Rows are returned in the order of their ids: up to the last one there is no other.
        self._begin = min(self._settled, rows[-1].id) if is_full else self._settled
        self._is_slow = ended - began > SLOW_READ_S + len(rows) * SLOW_ROW_S
        return rows, is_full

    def _read_rows(self, limit: int, begin: int) -> tuple[list[OutboxRow], bool]:
        """Return the next rows of a batch whose ids are above one."""
        last = max((ids[-1] for ids in self._taken), default=begin)
        is_one_statement = not self._taken and self._portion(limit, BATCH_BYTES_MAX) == limit
        if self._is_sqlite or is_one_statement:
            return self._collect(limit, functools.partial(self._following, [], last))
        # Rows with lower ids that were committed meanwhile belong before the others: the same
        # document may be in both. One snapshot shows both.
        with self._opened.transaction(SNAPSHOT):
            late = self._late(begin, last)[:limit] if self._taken else []
            return self._collect(limit, functools.partial(self._following, late, last))

    def _late(self, begin: int, last: int) -> list[int]:
        """Return the ids between two of rows that were not returned."""
        taken = {id_ for ids in self._taken for id_ in ids}
        seen = self._opened.select(
            f"SELECT {self._id} FROM {self._table} WHERE {self._id} > ? AND {self._id} <= ?",
            (begin, last),
        )
        return sorted(id_ for (id_,) in seen if id_ not in taken)

    def _following(
        self, late: list[int], last: int, rows: list[OutboxRow], count: int
    ) -> list[OutboxRow]:
        """Return the next rows of a batch: first those with late ids, then those behind `last`."""
        ids = late[len(rows) : len(rows) + count]
        found = self._by_id(ids) if ids else []
        if len(found) == count:
            return found
        after = rows[-1].id if len(rows) > len(late) else last
        return found + self._page(after, count - len(found))

    def _deletion(self) -> str:
        """Return the beginning of the statement that deletes rows.

        MariaDB does not count rows that are deleted and kept. So it would rather read the whole
        table than use the index.
        """
        if self._opened.dialect.name == "mariadb":
            name = target.table_name(self._relay.outbox)
            indexes = self._opened.select(
                "SELECT index_name FROM information_schema.statistics WHERE table_name = ?"
                " AND table_schema = COALESCE(?, DATABASE()) AND column_name = ?"
                " AND seq_in_index = 1 ORDER BY non_unique LIMIT 1",
                (name.name, name.schema, self._relay.columns.id),
            )
            for (index,) in indexes:
                quoted = self._opened.dialect.identifier_preparer.quote_identifier(index)
                return f"DELETE {self._table} FROM {self._table} FORCE INDEX ({quoted})"
        return f"DELETE FROM {self._table}"

    def _numbers_alone(self) -> bool:
        """Return whether ids are given out only by this server, and in their order."""
        if self._opened.dialect.name != "mariadb":
            return False  # MySQL has no lock for tables without waiting
        name = target.table_name(self._relay.outbox)
        extra = self._opened.select(
            "SELECT extra FROM information_schema.columns WHERE table_name = ?"
            " AND table_schema = COALESCE(?, DATABASE()) AND column_name = ?",
            (name.name, name.schema, self._relay.columns.id),
        )
        if ("auto_increment",) not in [(str(value).lower(),) for (value,) in extra]:
            return False
        # In a cluster each server has its own numbers. Another one may commit a lower one later.
        shared = self._opened.select(
            "SHOW VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'"
            " OR Variable_name = 'auto_increment_increment' AND Value <> '1'"
        )
        return not shared

    def _settle(self) -> None:
        """Look whether no transaction has changed the outbox and is still open."""
        self._settle_at = time.monotonic() + SETTLE_INTERVAL_S
        # Without autocommit, InnoDB locks the table, too: against prepared transactions that a
        # restart of the server has left. If this process is stopped while it holds the lock, the
        # server closes the connection, and applications wait no longer.
        self._opened.run(f"SET SESSION autocommit = 0, wait_timeout = {LOCKED_MAX_S}")
        try:
            self._opened.run(f"LOCK TABLE {self._table} READ NOWAIT")
            self._settled = self._highest
        except errors.Transient:
            pass
        except (errors.NotAuthorised, errors.PermissionLost):
            self._settle_at = math.inf
        finally:
            self._opened.run("UNLOCK TABLES")
            self._opened.run("SET SESSION autocommit = 1, wait_timeout = DEFAULT")

    def _page(self, after: int, limit: int) -> list[OutboxRow]:
        return self._rows(
            self._opened.select(
                f"SELECT {self._columns} FROM {self._table}"
                f" WHERE {self._id} > ? ORDER BY {self._id} LIMIT ?",
                (after, limit),
            )
        )

    def _by_id(self, ids: Sequence[int]) -> list[OutboxRow]:
        marks = ", ".join("?" * len(ids))
        return self._rows(
            self._opened.select(
                f"SELECT {self._columns} FROM {self._table} WHERE {self._id} IN ({marks})"
                f" ORDER BY {self._id}",
                ids,
            )
        )

    def _within(self, ranges: list[list[int]]) -> list[OutboxRow]:
        """Return the rows whose ids are in one of the ranges."""
        if not ranges:
            return []
        found = self._rows(
            self._opened.select(
                f"SELECT {self._columns} FROM {self._table} WHERE {self._id} BETWEEN ? AND ?"
                f" ORDER BY {self._id}",
                (ranges[0][0], ranges[-1][1]),
            )
        )
        published = {id_ for first, last in ranges for id_ in range(first, last + 1)}
        return [row for row in found if row.id in published]

    def _delete(self, ids: list[int], sequence: int) -> None:
        """Delete rows by their keys, and record the number of their transaction."""
        ranges = _ranges(ids)
        with self._opened.transaction("BEGIN IMMEDIATE" if self._is_sqlite else "BEGIN"):
            if len(ranges) * 8 <= len(ids) or len(ranges) == 1:
                for first, last in ranges:
                    self._opened.execute(
                        f"{self._delete_from} WHERE {self._id} BETWEEN ? AND ?", (first, last)
                    )
            else:
                for chunk in chunks(ids, DELETED_AT_ONCE):
                    marks = ", ".join("?" * len(chunk))
                    self._opened.execute(
                        f"{self._delete_from} WHERE {self._id} IN ({marks})", chunk
                    )
            changed = self._opened.execute(
                f"UPDATE {self._lease_table} SET sequence = ? WHERE relay = ? AND sequence = ?",
                (sequence, self._name, sequence - 1),
            )
            if changed != 1:
                raise errors.SessionEnded(
                    f"another process has changed the row of relay {self._name!r} meanwhile"
                )


def _position(rows: list[OutboxRow]) -> dict[str, Any]:
    return {"ranges": _ranges([row.id for row in rows]), "digest": _digest(rows)}


def _ranges(ids: Sequence[int]) -> list[list[int]]:
    """Return ids as ranges of consecutive numbers."""
    ranges: list[list[int]] = []
    for id_ in sorted(ids):
        if ranges and id_ == ranges[-1][1] + 1:
            ranges[-1][1] = id_
        else:
            ranges.append([id_, id_])
    return ranges


def _digest(rows: Sequence[OutboxRow]) -> str:
    """Return a digest of rows in the order of their ids."""
    digest = hashlib.blake2b(digest_size=16)
    for row in sorted(rows, key=lambda row: row.id):
        digest.update(encoded(f"{row.id} {row.document}\0"))
        digest.update(b"-" if row.value is None else row.value)
        digest.update(b"\0")
    return digest.hexdigest()
