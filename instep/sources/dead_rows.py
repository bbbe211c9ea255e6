"""The rows of a relay that were not published, as `instep relay dead` lists them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from instep import settings
from instep.sinks import target
from instep.sources import tables
from instep.sources.connection import SourceConnection

LENGTHS = {"sqlite": "length(value)", "postgresql": "octet_length(value)"}  # in bytes


class DeadRow(msgspec.Struct, frozen=True):
    """A row of the outbox that was not published, and why."""

    id: int
    occurrence: int  # above 0 if the database gave out the id again
    document: str
    value_bytes: int | None  # None: the row deletes its document
    at: datetime
    reason: str


def read(name: str, relay: settings.Relay, limit: int) -> list[DeadRow]:
    """Return the oldest dead rows of a relay."""
    schema = target.table_name(relay.outbox).schema
    with SourceConnection(relay.source) as opened:
        table = tables.quoted(opened.dialect, target.TableName(schema, tables.DEAD_TABLE))
        length = LENGTHS.get(opened.dialect.name, "length(value)")
        rows = opened.select(
            f"SELECT id, occurrence, document, {length}, at_s, reason FROM {table}"
            " WHERE relay = ? ORDER BY at_s, id, occurrence LIMIT ?",
            (name, limit),
        )
    return [
        DeadRow(id_, occurrence, document, size, datetime.fromtimestamp(at_s, UTC), reason)
        for id_, occurrence, document, size, at_s, reason in rows
    ]
