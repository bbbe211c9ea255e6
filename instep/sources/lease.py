"""The lease of a relay: which process should work.

It only says which process is active; the transactional id in Kafka fences a process that ignores
it. The lease is a row in the source database, renewed every second. All times are the database's.
Its clock may be set back, so a row that does not change while a process watches it is silent, too.

The row also counts renewals (`beat`). Each published position has the count of its time, so a
source with a lower one was restored. Only a process that has compared the two counts: starting a
relay again and again must not let the count of a restored source catch up.
"""

from __future__ import annotations

import math
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from instep import errors, settings
from instep.sinks import target
from instep.sinks.target import TableName
from instep.sources import tables
from instep.sources.connection import OpenConnections, SourceConnection

INTERVAL_S = 1.0


class LeaseRow(msgspec.Struct, frozen=True):
    """A relay's row in the source database."""

    source_id: str
    holder: str | None
    beat: int
    started: bool
    sequence: int
    published_rows: int
    heartbeat_s: float
    silent_s: float


class Lease:
    """The row of one relay. For use by one thread at a time."""

    def __init__(
        self, relay: settings.Relay, name: str, connections: OpenConnections | None = None
    ) -> None:
        self._connections = connections
        self.holder = f"{socket.gethostname()[:200]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._relay, self._name = relay, name
        self._opened: SourceConnection | None = None
        self._table = ""
        self._seen: tuple[str | None, float] | None = None  # holder and heartbeat
        self._seen_since = self._blocked_at = -math.inf

    def read(self) -> LeaseRow:
        """Return the row; raise SettingsError if `instep relay init` was not run."""
        with self._connection() as opened:
            rows = opened.select(
                "SELECT source_id, holder, beat, started, sequence, published_rows,"
                f" heartbeat_s, {opened.clock} - heartbeat_s FROM {self._table} WHERE relay = ?",
                (self._name,),
            )
        if not rows:
            raise errors.SettingsError(
                f"the source database does not know relay {self._name!r}",
                "create its tables and its row: instep relay init",
            )
        source_id, holder, beat, started, sequence, published_rows, heartbeat_s, silent_s = rows[0]
        if (holder, heartbeat_s) != self._seen:
            self._seen, self._seen_since = (holder, heartbeat_s), time.monotonic()
        return LeaseRow(
            source_id,
            holder,
            beat,
            bool(started),
            sequence,
            published_rows,
            float(heartbeat_s),
            float(silent_s),
        )

    def claim(self) -> bool:
        """Take the lease if nobody has it, or if its holder is silent."""
        row = self.read()
        is_others = row.holder not in (None, self.holder)
        if is_others and (not self._is_silent(row) or self._is_writing_blocked()):
            return False
        is_same = "holder IS NULL" if row.holder is None else "holder = ?"
        holder = () if row.holder is None else (row.holder,)
        return self._update(
            "holder = ?", (self.holder,), f"beat = ? AND {is_same}", (row.beat, *holder)
        )

    def is_held(self) -> bool:
        """Return whether a process works. If the clock was set back, watch it for a while."""
        row = self.read()
        if row.holder is None or self._is_silent(row):
            return False
        if row.silent_s < 0:
            time.sleep(self._relay.take_over_s)
            return not self._is_silent(self.read())
        return True

    def _is_silent(self, row: LeaseRow) -> bool:
        watched_s = time.monotonic() - self._seen_since
        return max(row.silent_s, watched_s) >= self._relay.take_over_s

    def _is_writing_blocked(self) -> bool:
        """Return whether the holder could not renew: SQLite lets one connection write at a time.

        After a long transaction of the application, the holder needs a moment for it.
        """
        with self._connection() as opened:
            if opened.dialect.name == "sqlite" and not opened.may_write():
                self._blocked_at = time.monotonic()
        return time.monotonic() - self._blocked_at < self._relay.take_over_s

    def renew(self, published_rows: int | None, *, is_counted: bool) -> LeaseRow:
        """Renew the lease and return its row; raise LeaseLost if another process has it.

        The number of published rows is kept for `instep relay status`, as soon as it is known.
        """
        if not self._update(
            "beat = beat + ?, published_rows = COALESCE(?, published_rows)",
            (int(is_counted), published_rows),
            "holder = ?",
            (self.holder,),
        ):
            raise errors.LeaseLost(f"another process of relay {self._name!r} has taken over")
        return self.read()

    def mark_started(self) -> None:
        """Record that the relay may have published something."""
        if not self._update("started = 1", (), "holder = ?", (self.holder,)):
            raise errors.LeaseLost(f"another process of relay {self._name!r} has taken over")

    def mark_restored(self) -> None:
        """Give the source a new id: it is not the one from which the relay has published.

        A counter that shows this will have caught up one day; the id stays.
        """
        self._update("source_id = ?", (str(uuid.uuid4()),), "holder = ?", (self.holder,))

    def release(self, published_rows: int | None = None) -> None:
        """Give the lease back, so that a standby takes over at once."""
        with suppress(Exception):  # it expires by itself
            self._update(
                "holder = NULL, published_rows = COALESCE(?, published_rows)",
                (published_rows,),
                "holder = ?",
                (self.holder,),
            )

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _update(
        self, change: str, values: tuple[Any, ...], condition: str, of: tuple[Any, ...]
    ) -> bool:
        with self._connection() as opened:
            changed = opened.execute(
                f"UPDATE {self._table} SET {change}, heartbeat_s = {opened.clock}"
                f" WHERE relay = ? AND {condition}",
                (*values, self._name, *of),
            )
        return changed == 1

    @contextmanager
    def _connection(self) -> Iterator[SourceConnection]:
        """Yield the connection, and close it after an error."""
        if self._opened is None:
            self._opened = SourceConnection(self._relay.source, self._connections)
            name = TableName(target.table_name(self._relay.outbox).schema, tables.LEASE_TABLE)
            self._table = tables.quoted(self._opened.dialect, name)
        try:
            self._opened.refuse_replaced()
            yield self._opened
        except BaseException:
            self.close()
            raise
