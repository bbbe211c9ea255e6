"""Which records in quarantine a person means: places, a reason, times, a document."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from instep import errors, settings
from instep.document.reasons import Reason
from instep.kafka import places
from instep.sinks.journal_entries import LOAD_PREFIX, RESULT_MARK, RecordPosition, Selection

PARTITION_MAX, OFFSET_MAX = 2**31 - 1, 2**63 - 1  # of a log, and of the columns
DIGITS_MAX = 19


def select(
    topic: str,
    texts: Sequence[str] = (),
    reason: str | None = None,
    since: str | None = None,
    until: str | None = None,
    document: str | None = None,
) -> Selection:
    """Return the selection that these texts describe; raise SettingsError for a wrong one."""
    if reason is not None and reason not in set(Reason):
        near = settings.nearest(reason, [known.value for known in Reason])
        raise errors.SettingsError(f"there is no reason {reason!r}{near}", "run: instep dead list")
    return Selection(
        reason=reason,
        since=parse_time(since),
        until=parse_time(until),
        document=document,
        positions=tuple(parse_position(topic, text) for text in texts),
    )


def parse_position(topic: str, text: str) -> RecordPosition:
    """Parse PARTITION:OFFSET in a topic, with #RESULT for a later result, or load:NUMBER:ROW."""
    if text.startswith(LOAD_PREFIX):
        load, _, row = text.removeprefix(LOAD_PREFIX).partition(":")
        if is_number(load, OFFSET_MAX) and is_number(row, OFFSET_MAX):
            return RecordPosition(f"{LOAD_PREFIX}{load}", 0, int(row))
    partition, _, number = text.partition(":")
    offset, mark, result = number.partition(RESULT_MARK)
    is_position = is_number(partition, PARTITION_MAX) and is_number(offset, OFFSET_MAX)
    if not is_position or (mark and not is_number(result, PARTITION_MAX)):
        raise errors.SettingsError(
            f"{text!r} is not a place", "write PARTITION:OFFSET, such as 2:1745, or load:NUMBER:ROW"
        )
    log = f"{topic}{RESULT_MARK}{int(result)}" if mark and int(result) else topic
    return RecordPosition(log, int(partition), int(offset))


def is_number(text: str, highest: int) -> bool:
    """Return whether a text is a number from 0 to the highest one, in digits."""
    is_short = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    return is_short and int(text) <= highest


def parse_time(text: str | None) -> datetime | None:
    """Parse a time such as 2026-11-01T08:00 or -1h, with or without a leading @."""
    if text is None:
        return None
    try:
        return places.moment(places.parse_place(f"@{text.removeprefix('@')}"))
    except errors.SettingsError:
        raise errors.SettingsError(
            f"{text!r} is not a time",
            "write 2026-11-01T08:00 (UTC), 2026-11-01T08:00+01:00 or -1h",
        ) from None
