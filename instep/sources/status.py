"""What `instep relay status` shows."""

from __future__ import annotations

import msgspec

from instep import settings
from instep.sinks import target
from instep.sources import tables
from instep.sources.connection import SourceConnection
from instep.sources.lease import Lease


class RelayStatus(msgspec.Struct, frozen=True):
    """A relay as its source database knows it."""

    relay: str
    state: str
    holder: str | None
    silent_s: float
    published_rows: int
    outbox_rows: int  # on PostgreSQL also rows that are published and not removed yet
    dead_rows: int


def read(name: str, relay: settings.Relay) -> RelayStatus:
    """Return the status of a relay."""
    lease = Lease(relay, name)
    try:
        is_held = lease.is_held()
        row = lease.read()
    finally:
        lease.close()
    outbox = target.table_name(relay.outbox)
    with SourceConnection(relay.source) as opened:
        table = tables.quoted(opened.dialect, outbox)
        dead = tables.quoted(opened.dialect, target.TableName(outbox.schema, tables.DEAD_TABLE))
        outbox_rows = int(opened.value(f"SELECT count(*) FROM {table}"))
        dead_rows = int(opened.value(f"SELECT count(*) FROM {dead} WHERE relay = ?", (name,)))
    state = "stopped"
    if row.holder is not None:
        state = "running" if is_held else "silent"
    return RelayStatus(
        name, state, row.holder, max(0.0, row.silent_s), row.published_rows, outbox_rows, dead_rows
    )
