"""The ledger: for each partition of a pipeline the next offset, and the epoch of its writer.

Kept in `instep_ledger`, in the target database, and advanced in the transaction that writes the
rows. `instep_applied` keeps the ranges of offsets that were applied before the ledger was moved.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from instep import errors
from instep.sinks.connection import Connection
from instep.sinks.stored_values import utc_time
from instep.sinks.target import Position

SELECT_POSITIONS = (
    "SELECT {partition}, next_offset, epoch, cluster_id, topic_id, last_digest, committed_at,"
    " since_offset, totals FROM instep_ledger WHERE pipeline = ? AND topic = ?"
)
INSERT_POSITION = (
    "INSERT INTO instep_ledger (pipeline, topic, {partition}, next_offset, epoch, cluster_id,"
    " topic_id, last_digest, committed_at, since_offset) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Compare-and-set: changes nothing if another writer has moved the row.
ADVANCE_POSITION = (
    "UPDATE instep_ledger"
    " SET next_offset = ?, epoch = ?, last_digest = ?, committed_at = ?, totals = ?"
    " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND next_offset = ? AND epoch = ?"
)
UPDATE_TOTALS = (
    "UPDATE instep_ledger SET totals = ?"
    " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND epoch = ?"
)
SET_EPOCH = "UPDATE instep_ledger SET epoch = ? WHERE pipeline = ? AND topic = ?"
MOVE_POSITION = (
    "UPDATE instep_ledger"
    " SET next_offset = ?, cluster_id = ?, topic_id = ?, last_digest = ?, since_offset = ?"
    " WHERE pipeline = ? AND topic = ? AND {partition} = ?"
)
DELETE_POSITION = "DELETE FROM instep_ledger WHERE pipeline = ? AND topic = ? AND {partition} = ?"
SELECT_APPLIED = (
    "SELECT {partition}, start_offset, end_offset FROM instep_applied"
    " WHERE pipeline = ? AND topic = ?"
)
DELETE_APPLIED = "DELETE FROM instep_applied WHERE pipeline = ? AND topic = ?"
INSERT_APPLIED = (
    "INSERT INTO instep_applied (pipeline, topic, {partition}, start_offset, end_offset)"
    " VALUES (?, ?, ?, ?, ?)"
)

AppliedRanges = dict[int, list[tuple[int, int]]]  # per partition, half-open ranges of offsets


def fenced(pipeline: str, newest: int, mine: int) -> errors.Fenced:
    """Return the error for a writer that a newer run has replaced."""
    return errors.Fenced(
        f"pipeline {pipeline!r} was started elsewhere: epoch {newest} is newer than {mine}",
        "the newer run continues, and nothing is lost;"
        f" to take over from it: instep run {shlex.quote(pipeline)}",
    )


class Ledger:
    """The ledger of one pipeline and topic: the target's, or another one."""

    def __init__(self, connection: Connection, topic: str | None = None) -> None:
        self._connection = connection
        self._topic = (connection.target.pipeline, topic or connection.target.topic)

    def positions(self, lock: bool = False, *, wait: bool = True) -> dict[int, Position]:
        """Return the rows by partition; with `lock` they stay locked until the transaction ends.

        Without `wait` it raises Transient if another transaction has locked one of them.
        """
        self._connection.refresh()
        locking = self._connection.for_update if lock else ""
        if locking and not wait:
            locking += " NOWAIT"
        # In this order, so that two transactions that lock several rows do not deadlock.
        statement = self._connection.sql(SELECT_POSITIONS + " ORDER BY {partition}") + locking
        return self.positions_of(self._connection.select(statement, self._topic))

    def locking_query(self, partitions: Sequence[int]) -> tuple[str, Sequence[Any]]:
        """Return the query for the rows of these partitions; it locks them."""
        marks = ", ".join("?" * len(partitions))
        query = f"{SELECT_POSITIONS} AND {{partition}} IN ({marks}) ORDER BY {{partition}}"
        return (
            self._connection.sql(query) + self._connection.for_update,
            (*self._topic, *partitions),
        )

    def positions_of(self, rows: Iterable[tuple[Any, ...]]) -> dict[int, Position]:
        """Return the rows of a query by partition."""
        return {row[0]: _position(row) for row in rows}

    def create(self, position: Position) -> None:
        """Add the row of a partition that has none."""
        self._execute(
            INSERT_POSITION,
            *self._topic,
            position.partition,
            position.next_offset,
            position.epoch,
            position.cluster_id,
            position.topic_id,
            position.last_digest,
            self._connection.bind_time(position.committed_at),
            position.next_offset,
        )

    def advance(self, moves: Sequence[tuple[Position, Position]]) -> None:
        """Advance partitions by compare-and-set; raise Fenced if another writer has moved one."""
        opened = self._connection
        changed = opened.execute_together(
            [
                (
                    opened.sql(ADVANCE_POSITION),
                    (
                        after.next_offset,
                        after.epoch,
                        after.last_digest,
                        opened.bind_time(after.committed_at),
                        _encode_totals(after.totals),
                        *self._topic,
                        before.partition,
                        before.next_offset,
                        before.epoch,
                    ),
                )
                for before, after in moves
            ]
        )
        for (before, _), rows in zip(moves, changed, strict=True):
            if rows != 1:
                raise errors.Fenced(
                    f"another writer has moved the ledger of pipeline {self._topic[0]!r},"
                    f" partition {before.partition}",
                    "the other run continues, and nothing is lost; to take over from it:"
                    " instep run",
                )

    def update_totals(self, position: Position) -> None:
        """Write the totals of a partition that was advanced before its outcome was known."""
        totals = _encode_totals(position.totals)
        self._execute(UPDATE_TOTALS, totals, *self._topic, position.partition, position.epoch)

    def take_epoch(
        self, partitions: Iterable[Position], mine: int = 0
    ) -> tuple[int, dict[int, Position]]:
        """Fence every older writer of this pipeline, and add rows for new partitions.

        A run that starts its flow again passes the epoch that is `mine`: it must not take the
        pipeline back from a newer run, and raises Fenced.

        Returns the epoch, and the ledger as it is *after* that: an older task may have committed
        until that moment.
        """
        with self._connection.transaction():
            existing = self.positions(lock=True)
            newest = max((position.epoch for position in existing.values()), default=0)
            if mine and newest > mine:
                raise fenced(self._topic[0], newest, mine)
            epoch = max(newest, mine) + 1
            self._execute(SET_EPOCH, epoch, *self._topic)
            for position in partitions:
                if position.partition not in existing:
                    self.create(msgspec.structs.replace(position, epoch=epoch))
        with self._connection.translated():
            return epoch, self.positions()

    def move(self, position: Position, since_offset: int | None = None) -> None:
        """Move a partition to another offset. Its epoch and the time of its last commit stay.

        All records from `since_offset` on were applied, by default from the new offset on.
        """
        self._execute(
            MOVE_POSITION,
            position.next_offset,
            position.cluster_id,
            position.topic_id,
            position.last_digest,
            position.next_offset if since_offset is None else since_offset,
            *self._topic,
            position.partition,
        )

    def remove(self, partition: int) -> None:
        """Remove the row of a partition that the topic does not have."""
        self._execute(DELETE_POSITION, *self._topic, partition)

    def applied_ranges(self) -> AppliedRanges:
        """Return the ranges that were applied before the ledger was moved.

        Their records may be read again.
        """
        rows = self._connection.select(self._connection.sql(SELECT_APPLIED), self._topic)
        ranges: AppliedRanges = {}
        for partition, start, end in sorted(rows):
            ranges.setdefault(partition, []).append((start, end))
        return ranges

    def replace_applied_ranges(self, applied: AppliedRanges) -> None:
        """Keep these ranges, merged, instead of those kept so far."""
        self._execute(DELETE_APPLIED, *self._topic)
        for partition, ranges in applied.items():
            for start, end in merge_ranges(ranges):
                self._execute(INSERT_APPLIED, *self._topic, partition, start, end)

    def _execute(self, statement: str, *parameters: Any) -> int:
        return self._connection.execute(self._connection.sql(statement), parameters)


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges that overlap or touch, and drop empty ones."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _position(row: tuple[Any, ...]) -> Position:
    partition, next_offset, epoch, cluster_id, topic_id, last_digest = row[:6]
    committed_at, since_offset, totals = row[6:]
    return Position(
        partition,
        next_offset,
        epoch,
        cluster_id,
        topic_id,
        last_digest,
        utc_time(committed_at),
        since_offset,
        msgspec.json.decode(totals, type=dict[str, int]) if totals else {},
    )


def _encode_totals(totals: dict[str, int]) -> str:
    return msgspec.json.encode(totals).decode()
