"""Positions of records in URLs and forms."""

from __future__ import annotations

from instep import errors
from instep.operate import selection
from instep.sinks.journal_entries import RecordPosition

TOPIC_CHARACTERS_MAX = 300


def place_of(position: RecordPosition) -> str:
    return f"{position.topic} {position.partition} {position.offset}"


def position_at(text: str) -> RecordPosition:
    """Parse the place behind which a list continues."""
    topic, _, numbers = text.partition(" ")
    return position(topic, *numbers.partition(" ")[::2])


def position(topic: str, partition: str, offset: str) -> RecordPosition:
    """Return the position that a URL names; raise SettingsError if no record can have it."""
    is_place = selection.is_number(partition, selection.PARTITION_MAX) and selection.is_number(
        offset, selection.OFFSET_MAX
    )
    if not is_place or "\0" in topic or len(topic) > TOPIC_CHARACTERS_MAX:
        raise errors.SettingsError(
            f"{partition[:20]}:{offset[:20]} is not a place: PARTITION and OFFSET are numbers",
            "start from the first page, and follow its links",
        )
    return RecordPosition(topic, int(partition), int(offset))
