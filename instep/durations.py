"""Durations as people write them: 90s, 90m, 2h, 7d, or ISO 8601 as in Kafka's own tools: PT1H30M.

`parse` reads both forms; `shown` writes the two largest units of the first one: 3d 4h.
"""

from __future__ import annotations

import re
from datetime import timedelta

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
SHOWN_UNITS = 2
_SHORT = re.compile(r"([0-9]{1,12})([smhd])")
_ISO = re.compile(
    r"P(?:([0-9]{1,12})D)?"
    r"(?:T(?:([0-9]{1,12})H)?(?:([0-9]{1,12})M)?(?:([0-9]{1,12}(?:\.[0-9]+)?)S)?)?"
)


def parse(text: str) -> timedelta | None:
    """Return the duration; None if the text is none or too long for a timedelta."""
    try:
        if short := _SHORT.fullmatch(text):
            return timedelta(**{UNITS[short[2]]: int(short[1])})
        long = _ISO.fullmatch(text)
        if long and any(long.groups()):
            days, hours, minutes, seconds = (float(part or 0) for part in long.groups())
            return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        pass
    return None


def shown(duration: timedelta) -> str:
    """Return the two largest units of a duration: 3d 4h, 2h 5m, 45s."""
    rest = max(0, int(duration.total_seconds()))
    parts = []
    for unit, seconds in SECONDS.items():
        count, rest = divmod(rest, seconds)
        parts.append((count, unit))
    first = next((number for number, (count, _) in enumerate(parts) if count), len(parts) - 1)
    largest = parts[first : first + SHOWN_UNITS]
    return " ".join(f"{count}{unit}" for count, unit in largest if count) or "0s"
