"""The source databases of relays: outbox table, lease and two readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from instep import settings
    from instep.sources.connection import OpenConnections
    from instep.sources.outbox_reader import OutboxReader


def open_reader(
    relay: settings.Relay, name: str, connections: OpenConnections | None = None
) -> OutboxReader:
    """Open the outbox of a relay. The source's URL decides how it is read."""
    if relay.source.startswith("postgres"):
        from instep.sources.snapshot_reader import SnapshotReader

        return SnapshotReader(relay, name, connections)
    from instep.sources.id_reader import IdReader

    return IdReader(relay, name, connections)
