"""Positions of records in URLs and forms."""

from __future__ import annotations

from instep import errors
from instep.sinks.journal_entries import RecordPosition


def place_of(position: RecordPosition) -> str:
    return f"{position.topic} {position.partition} {position.offset}"


def position_at(text: str) -> RecordPosition:
    """Parse the place behind which a list continues."""
    topic, _, numbers = text.partition(" ")
    partition, _, offset = numbers.partition(" ")
    if not all(part.isascii() and part.isdigit() for part in (partition, offset)):
        raise errors.SettingsError("the URL has a wrong place", "start from the first page")
    return RecordPosition(topic, int(partition), int(offset))
