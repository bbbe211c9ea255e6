"""Read the outbox of PostgreSQL by snapshots: nothing is marked, updated or deleted.

Each row carries the id of its transaction. A tick reads the rows that are visible in the current
snapshot and were not visible in the published one, in the order of their ids. A transaction that
commits late is in no published snapshot, so it is read then, however low its ids are.

Order by transaction id would be wrong: a document's second change may come from a transaction that
began before the first one's.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from instep import errors, settings
from instep.sinks import target
from instep.sources import outbox_shape, tables
from instep.sources.connection import OpenConnections, SourceConnection
from instep.sources.outbox_reader import Batch, LastTransaction, OutboxReader, OutboxRow, restored

NOTHING = "1:1:"  # the snapshot in which no transaction is visible
FLUSH_WAIT_S = 0.002
CLEAN_UP_INTERVAL_S = 1.0
# types whose binary format the driver surely knows
PLAIN_TYPES = {"bigint", "integer", "smallint", "text", "character varying", "bytea"}
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class SnapshotReader(OutboxReader):
    """Reads by snapshots, with a cursor in a read-only transaction."""

    def __init__(
        self, relay: settings.Relay, name: str, connections: OpenConnections | None = None
    ) -> None:
        super().__init__(relay, name, connections)
        self._xid = self._opened.dialect.identifier_preparer.quote_identifier(
            relay.columns.transaction
        )
        # for what cannot run inside a tick, which is a read-only transaction
        self._side = self._writing = SourceConnection(relay.source, connections)
        self._identity = self._server()
        self._has_ring = self._is_ring()
        self._seen = NOTHING  # everything visible in it was returned
        self._tick: str | None = None  # the snapshot that is being read
        self._is_open = False
        self._is_spent = False  # the tick is returned, and its transaction still open
        self._last_id = 0
        self._lsn = "0/0"
        # Of each batch that is returned and not published: the snapshot of which everything is
        # published with it, and its highest id.
        self._returned: deque[tuple[str, int]] = deque()
        self._cleanable: tuple[str, int] | None = None
        self._cleaned_at = time.monotonic()

    def first_position(self) -> dict[str, Any]:
        return {**self._facts(), "seen": NOTHING}

    def skip(self) -> Iterator[dict[str, Any]]:
        snapshot = str(self._side.value("SELECT pg_current_snapshot()::text"))
        last_id = int(self._side.value(f"SELECT COALESCE(max({self._id}), 0) FROM {self._table}"))
        self._returned.append((snapshot, last_id))
        yield {**self._facts(), "seen": snapshot}

    def recover(self, found: LastTransaction) -> None:
        """Check that the server is the one that the position knows, and has lost nothing."""
        self._end_tick()
        self._returned.clear()
        position = found.position
        self._refuse_other_server(position)
        self._seen, self._lsn = position["seen"], position["lsn"]
        if "tick" in position:
            self._tick, self._last_id = position["tick"], position["last_id"]
            self._open_cursor(
                f"pg_visible_in_snapshot({self._xid}, ?::pg_snapshot) AND {self._id} > ?",
                (self._tick, self._last_id),
            )

    def next(self, limit: int) -> Batch | None:
        if self._is_spent:
            self._end_tick()
        is_rest = self._is_open
        batch = self._next_of_tick(limit)
        if batch is None and is_rest:  # rows may have been committed since that tick began
            batch = self._next_of_tick(limit)
        return batch

    def _next_of_tick(self, limit: int) -> Batch | None:
        """Return the next rows of the open tick, or of a new one; None if it has none."""
        if not self._is_open and not self._begin_tick():
            return None
        rows, is_full = self._collect(limit, self._fetch)
        if not is_full:
            self._count_as_returned()
            position: dict[str, Any] = {"seen": self._seen}
        else:
            self._last_id = rows[-1].id
            position = {"seen": self._seen, "tick": self._tick, "last_id": self._last_id}
        if not rows:
            self._end_tick()
            return None
        self._returned.append((self._seen, rows[-1].id))
        return Batch(rows, {**self._facts(), **position}, is_full)

    def wait_durable(self, batch: Batch) -> None:
        """Wait until what the batch's tick shows is on disk.

        With synchronous_commit = off a transaction is visible before that, and a crash of the
        server would undo what was published.
        """
        behind = "SELECT pg_current_wal_flush_lsn() < ?::pg_lsn"
        lsn = batch.position["lsn"]
        if self._side.value(behind, (lsn,)):
            time.sleep(FLUSH_WAIT_S)
            if self._side.value(behind, (lsn,)):
                # A commit of our own makes the server write its log up to here.
                self._side.select("SELECT pg_logical_emit_message(true, 'instep', '')")
        if self._is_spent:  # here, while the records are on their way, it delays nobody
            self._end_tick()

    def done(self, sequence: int) -> None:
        """Remove published rows from time to time."""
        del sequence
        if self._is_spent:  # its locks would keep the partitions from being emptied
            self._end_tick()
        self._cleanable = self._returned.popleft()
        self.clean_up()

    def has_news(self) -> bool:
        self.clean_up()
        return True

    def adopt(self) -> None:
        """Give rows with transaction ids of another cluster the id of a transaction of this one."""
        self._side.execute(
            f"UPDATE {self._table} SET {self._xid} = pg_current_xact_id()"
            f" WHERE {self._xid} >= pg_snapshot_xmax(pg_current_snapshot())"
        )

    def accept(self, position: dict[str, Any]) -> dict[str, Any]:
        """Take this server's identity, timeline and log. Its transaction ids must go on."""
        snapshot = position.get("tick", position["seen"])
        [(is_behind, lsn)] = self._side.select(
            "SELECT pg_snapshot_xmax(?::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot()),"
            " pg_current_wal_insert_lsn()::text",
            (snapshot,),
        )
        if is_behind:
            raise errors.SettingsError(
                f"the source of relay {self._name!r} has not given out the transaction ids that the"
                " relay has read: it has lost something, or was loaded from a dump",
                "decide which rows to publish: --to start or --to end",
            )
        self._lsn = lsn
        return {**position, **self._facts()}

    def count_waiting(self, position: dict[str, Any] | None) -> int:
        seen = position["seen"] if position else NOTHING
        query = (
            f"SELECT count(*) FROM {self._table}"
            f" WHERE NOT pg_visible_in_snapshot({self._xid}, ?::pg_snapshot)"
            f" AND ({self._xid} >= pg_snapshot_xmax(?::pg_snapshot)"
            f" OR {self._xid} = ANY (ARRAY(SELECT pg_snapshot_xip(?::pg_snapshot))))"
        )
        values: list[Any] = [seen] * 3
        if position and "tick" in position:
            query += (
                f" AND NOT (pg_visible_in_snapshot({self._xid}, ?::pg_snapshot)"
                f" AND {self._id} <= ?)"
            )
            values += [position["tick"], position["last_id"]]
        return int(self._side.value(query, values))

    def last_id(self) -> int | None:
        sequence = self._sequence()
        if sequence is None:
            return None
        last = "CASE WHEN is_called THEN last_value ELSE last_value - 1 END"
        return int(self._side.value(f"SELECT {last} FROM {sequence}"))

    def raise_ids(self, published: int) -> None:
        sequence = self._sequence()
        with self._side.transaction():
            # waits for transactions that are adding rows, and lets no other add one
            self._side.execute(f"LOCK TABLE {self._table} IN SHARE ROW EXCLUSIVE MODE")
            end = self._renumber(*self._latest_rows(), published)
            if sequence is not None:
                self._side.select("SELECT setval(?::regclass, ?)", (sequence, end))

    def _sequence(self) -> str | None:
        """Return the sequence that gives out the ids, as SQL writes its name."""
        found = self._side.value(
            "SELECT pg_get_serial_sequence(?, ?)", (self._table, self._relay.columns.id)
        )
        return None if found is None else str(found)

    def _latest_rows(self) -> tuple[int, int]:
        """Return the first and last id of the rows behind which no row was removed; 0 if none.

        Partitions are emptied in any order. A row before an empty one may be older than what was
        published of its document, so it keeps its id.
        """
        last = self._side.value(f"SELECT max({self._id}) FROM {self._table}")
        if last is None:
            return 0, 0
        lowest = f"SELECT min({self._id}) FROM {self._table} WHERE {self._id} BETWEEN ? AND ?"
        if not self._has_ring:
            return int(self._side.value(lowest, (-(2**63), last))), int(last)
        size = 1 << tables.PARTITION_BITS
        first, begin, end = int(last), int(last) // size * size, int(last)
        while end > 0 and (found := self._side.value(lowest, (begin, end))) is not None:
            first, begin, end = int(found), begin - size, begin - 1
        return first, int(last)

    def close(self) -> None:
        self._side.close()
        super().close()

    # --- ticks ---------------------------------------------------------------------------------

    def _begin_tick(self) -> bool:
        """Take a snapshot; return whether it may show rows that were not returned yet."""
        self._is_open = True  # also if the second statement fails
        snapshot, lsn, is_foreign = self._opened.select_after(
            BEGIN,
            "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text,"
            f" EXISTS (SELECT 1 FROM {self._table}"
            f" WHERE {self._xid} >= pg_snapshot_xmax(pg_current_snapshot()))",
        )[0]
        if is_foreign:
            self._end_tick()
            raise errors.ForeignTransactions(
                f"the outbox of relay {self._name!r} has rows with transaction ids that this"
                " server has not given out yet"
            )
        self._tick, self._last_id = snapshot, 0
        if snapshot == self._seen:
            self._end_tick()
            return False
        self._open_cursor("TRUE", ())
        self._lsn = lsn
        return True

    def _open_cursor(self, condition: str, parameters: tuple[Any, ...]) -> None:
        if not self._is_open:
            self._opened.execute(BEGIN)
            self._is_open = True
        self._opened.execute(
            f"DECLARE instep_tick NO SCROLL CURSOR FOR SELECT {self._columns} FROM {self._table}"
            f" WHERE ({self._xid} >= pg_snapshot_xmax(?::pg_snapshot)"
            f" OR {self._xid} = ANY (ARRAY(SELECT pg_snapshot_xip(?::pg_snapshot))))"
            f" AND {condition} ORDER BY {self._id}",
            (self._seen, self._seen, *parameters),
        )

    def _fetch(self, _rows: list[OutboxRow], count: int) -> list[OutboxRow]:
        fetch = f"FETCH FORWARD {count:d} FROM instep_tick"
        return self._rows(self._opened.select_binary(fetch))

    def _expression(self, found: outbox_shape.Columns, name: str | None) -> str:
        """Return what is read of a column: of json and others, the text."""
        expression = super()._expression(found, name)
        if name in found and found[name].type not in PLAIN_TYPES:
            return f"{expression}::text"
        return expression

    def _count_as_returned(self) -> None:
        """Count everything that the tick showed as returned."""
        assert self._tick is not None
        self._seen, self._is_spent = self._tick, True

    def _end_tick(self) -> None:
        self._tick, self._last_id, self._is_spent = None, 0, False
        if self._is_open:
            self._is_open = False
            self._opened.execute("ROLLBACK")

    # --- the server ----------------------------------------------------------------------------

    def _server(self) -> tuple[str, int]:
        """Return the server's identity and its timeline."""
        system, timeline = self._side.select(
            "SELECT (SELECT system_identifier::text FROM pg_control_system()),"
            " ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int"
        )[0]
        return system, timeline

    def _is_ring(self) -> bool:
        """Return whether the table has the partitions that `instep relay init` creates."""
        key, id_ = self._side.select(
            "SELECT pg_get_partkeydef(?::regclass), quote_ident(?)",
            (self._table, self._relay.columns.id),
        )[0]
        if key is None:
            return False
        ring = f"LIST{id_}>>{tables.PARTITION_BITS}&{tables.PARTITIONS - 1}"
        names = self._side.select(
            "SELECT relname::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
            " WHERE inhparent = ?::regclass",
            (self._table,),
        )
        wanted = tables.partition_names(target.table_name(self._relay.outbox))
        is_named = {name for (name,) in names} == {part.name for part in wanted}
        return is_named and re.sub(r"[\s()]|::bigint", "", key) == ring

    def _facts(self) -> dict[str, Any]:
        system, timeline = self._identity
        return {"system": system, "timeline": timeline, "lsn": self._lsn}

    def _refuse_other_server(self, position: dict[str, Any]) -> None:
        system, timeline = self._identity
        if position["system"] != system:
            raise errors.ForeignTransactions(
                f"the source of relay {self._name!r} is another PostgreSQL cluster: the"
                " transaction ids in the outbox mean nothing there"
            )
        if timeline != position["timeline"]:
            self._refuse_lost_end(position, timeline)
        if self._side.value("SELECT pg_current_wal_insert_lsn() < ?::pg_lsn", (position["lsn"],)):
            why = f"its log ends before {position['lsn']}, which was read"
            raise restored(self._name, why, fades=True)

    def _refuse_lost_end(self, position: dict[str, Any], timeline: int) -> None:
        """After a failover, check that the new server has everything that was read."""
        switched = None
        with suppress(errors.InstepError):
            text = self._side.value("SELECT pg_read_file(?)", (f"pg_wal/{timeline:08X}.history",))
            switched = _switch_point(text, position["timeline"])
        if switched is None:
            raise restored(
                self._name,
                f"it is on timeline {timeline} and was on {position['timeline']}, and the user of"
                " the relay cannot read where the timelines parted (right: EXECUTE on function"
                " pg_read_file(text))",
            )
        if self._side.value("SELECT ?::pg_lsn < ?::pg_lsn", (switched, position["lsn"])):
            raise restored(
                self._name,
                f"timeline {timeline} begins at {switched}, before {position['lsn']}, which was"
                " read",
            )

    # --- removing published rows ---------------------------------------------------------------

    def clean_up(self) -> None:
        """Empty the partitions of which every row is published, at most once a second."""
        now = time.monotonic()
        if self._cleanable is None or now < self._cleaned_at + CLEAN_UP_INTERVAL_S:
            return
        self._cleaned_at = now
        if self.clean_up_now(*self._cleanable):
            self._cleanable = None

    def clean_up_now(self, snapshot: str, last_id: int) -> bool:
        """Empty partitions; return False if somebody used one, so that it has to be tried again.

        The partition of the highest id stays: applications are adding rows to it. From a table
        that is not partitioned, published rows are deleted.
        """
        if not self._has_ring:
            self._side.execute(
                f"DELETE FROM {self._table} WHERE {self._id} <= ?"
                f" AND pg_visible_in_snapshot({self._xid}, ?::pg_snapshot)",
                (last_id, snapshot),
            )
            return True
        current = (last_id >> tables.PARTITION_BITS) % tables.PARTITIONS
        parts = tables.partition_names(target.table_name(self._relay.outbox))
        emptied = [
            self._empty(tables.quoted(self._opened.dialect, part), snapshot)
            for number, part in enumerate(parts)
            if number != current
        ]
        return all(emptied)

    def _empty(self, partition: str, snapshot: str) -> bool:
        """Empty a partition, unless it has rows that are not published.

        Return False if somebody else uses it: the next attempt may succeed.
        """
        unpublished = (
            f"SELECT EXISTS (SELECT 1 FROM {partition}"
            f" WHERE NOT pg_visible_in_snapshot({self._xid}, ?::pg_snapshot))"
        )
        has_rows = f"SELECT EXISTS (SELECT 1 FROM {partition})"
        if not self._side.value(has_rows) or self._side.value(unpublished, (snapshot,)):
            return True
        try:
            with self._side.transaction():
                self._side.execute(f"LOCK TABLE {partition} IN ACCESS EXCLUSIVE MODE NOWAIT")
                # Only under the lock is it certain that no transaction is adding rows.
                if not self._side.value(unpublished, (snapshot,)):
                    self._side.execute(f"TRUNCATE {partition}")
        except errors.Transient:
            return False
        return True


def _switch_point(history: str, timeline: int) -> str | None:
    """Return where a timeline ended, from the history file of a later one."""
    for line in history.splitlines():
        parts = line.split()
        if len(parts) >= 2 and parts[0] == str(timeline):
            return parts[1]
    return None
