"""How many rows of an outbox are not published yet."""

from __future__ import annotations

from typing import Any

from instep import errors, settings, sources
from instep.kafka import connection, position_topic
from instep.relay import position as positions


def published(name: str, cluster: connection.Cluster) -> dict[str, Any] | None:
    """Return the reader's position that was published last; None if nothing was."""
    try:
        found = position_topic.read(cluster, position_topic.of_relay(name))
    except errors.TopicMissing:
        return None
    return None if found is None else positions.decode(found, name).reader


def waiting(name: str, relay: settings.Relay, position: dict[str, Any] | None) -> int:
    """Return how many rows wait behind a position."""
    reader = sources.open_reader(relay, name)
    try:
        return reader.count_waiting(position)
    finally:
        reader.close()
