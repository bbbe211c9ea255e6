"""The grammar of places in a log, for every command that takes one.

    start  end           the first record that the log holds; after the last
    1234                 an offset
    +5  -10              five after the start; ten before the end
    @2026-11-01T08:00    the first record at or after a time; UTC unless a zone is given (Z, +01:00)
    @1790000000000       the same, in milliseconds since 1970
    @-1h                 the same, before now: s, m, h or d
    a:b                  from one place up to another; after a time the second may leave its @ out

A place alone, where a range is asked for, means from there to the end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from instep import errors
from instep.kafka import connection, offsets

GRAMMAR = "write start, end, 1234, +5, -10, @2026-11-01T08:00 (UTC), @2026-11-01T08:00+01:00, @1790000000000 (ms) or @-1h"
RANGES = (
    "; a range is two of them with a colon between: -10:end, @2026-11-01T08:00:2026-11-01T09:00"
)
OFFSET_MAX = 2**63 - 1
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_AGO = re.compile(r"-([0-9]{1,12})([smhd])")
_ISO_DURATION = re.compile(
    r"P(?:([0-9]{1,12})D)?(?:T(?:([0-9]{1,12})H)?(?:([0-9]{1,12})M)?(?:([0-9]{1,12}(?:\.[0-9]+)?)S)?)?"
)


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset by its number."""

    offset: int

    def __str__(self) -> str:
        return str(self.offset)


@dataclass(frozen=True, slots=True)
class FromStart:
    """So many after the first that the log holds."""

    count: int = 0

    def __str__(self) -> str:
        return f"+{self.count}" if self.count else "start"


@dataclass(frozen=True, slots=True)
class FromEnd:
    """So many before the end."""

    count: int = 0

    def __str__(self) -> str:
        return f"-{self.count}" if self.count else "end"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time."""

    at: datetime

    def __str__(self) -> str:
        return f"@{self.at.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record at or after a time that is counted back from now."""

    seconds: int

    def __str__(self) -> str:
        return f"@-{self.seconds}s"


Place = Offset | FromStart | FromEnd | AtTime | Ago


@dataclass(frozen=True, slots=True)
class PlaceRange:
    """From one place up to another, which is no longer part of it."""

    first: Place
    last: Place

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


class Resolved(dict[int, int]):
    """The offset of a place by partition, within what the log holds; `clamped` has the offset asked for where that is outside."""

    def __init__(self, found: dict[int, int], clamped: dict[int, int]) -> None:
        super().__init__(found)
        self.clamped = clamped


def parse_place(text: str) -> Place:
    """The place that a text names."""
    place = _place(text)
    if place is None:
        raise errors.SettingsError(f"{text!r} is no place in a log", GRAMMAR)
    return place


def parse_range(text: str) -> PlaceRange:
    """The range that a text names: two places, or one and the end."""
    alone = _place(text)
    if alone is not None:
        return PlaceRange(alone, FromEnd())
    found = next(_splits(text), None)
    if found is None:
        raise errors.SettingsError(f"{text!r} is no range of places in a log", GRAMMAR + RANGES)
    match found.first, found.last:
        case (Offset(a), Offset(b)) if a > b:
            raise _reversed(text)
        case (AtTime(start), AtTime(end)) if start > end:
            raise _reversed(text)
        case (Ago(longer), Ago(shorter)) if longer < shorter:
            raise _reversed(text)
    return found


def moment(place: Place) -> datetime:
    """The time that a place names."""
    match place:
        case AtTime(at):
            return at
        case Ago(seconds):
            return datetime.now(UTC) - timedelta(seconds=seconds)
    raise errors.SettingsError(f"{str(place)!r} is no time", GRAMMAR)


def resolve(
    cluster: connection.Cluster,
    topic: str,
    partitions: Collection[int],
    place: Place,
    *,
    committed: bool = True,
) -> Resolved:
    """Where the place is in each partition. The end is that of what is committed: an open transaction is not passed over,
    unless `committed` is off."""
    first = offsets.earliest(cluster, topic, partitions)
    end = offsets.latest(cluster, topic, partitions, committed)
    match place:
        case Offset(offset):
            asked = dict.fromkeys(partitions, offset)
        case FromStart(count):
            asked = {partition: first[partition] + count for partition in partitions}
        case FromEnd(count):
            asked = {partition: end[partition] - count for partition in partitions}
        case AtTime() | Ago():
            timed = offsets.at_time(cluster, topic, partitions, moment(place))
            # a time after the last record means the end, wherever that was a moment ago
            asked = {partition: min(timed[partition], end[partition]) for partition in partitions}
    found = {
        partition: min(max(offset, first[partition]), end[partition])
        for partition, offset in asked.items()
    }
    return Resolved(
        found,
        {partition: offset for partition, offset in asked.items() if offset != found[partition]},
    )


def _place(text: str) -> Place | None:
    if text in ("start", "end"):
        return FromStart() if text == "start" else FromEnd()
    if text.startswith("@"):
        return _time(text[1:])
    if not _NUMBER.fullmatch(text) or abs(int(text)) > OFFSET_MAX:
        return None
    number = int(text)
    return (
        FromStart(number)
        if text[0] == "+"
        else FromEnd(-number)
        if text[0] == "-"
        else Offset(number)
    )


def _time(text: str) -> AtTime | Ago | None:
    try:
        if text.isascii() and text.isdigit():
            return AtTime(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(text)))
        if ago := _AGO.fullmatch(text):
            return _ago(int(ago[1]), ago[2])
        if _TIME.fullmatch(text):
            at = datetime.fromisoformat(text)
            return AtTime((at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC))
    except (ValueError, OverflowError):  # the thirteenth month; a year that nobody will see
        return None
    return None


def parse_duration(text: str) -> Ago:
    """How long before now: 90m, 1h, 7d, or ISO 8601 as Kafka's own tools take it: P7D, PT1H30M."""
    short, long = _AGO.fullmatch(f"-{text}"), _ISO_DURATION.fullmatch(text)
    try:
        if short:
            return _ago(int(short[1]), short[2])
        if long and any(long.groups()):
            days, hours, minutes, seconds = (float(part or 0) for part in long.groups())
            return _ago(
                int(
                    timedelta(
                        days=days, hours=hours, minutes=minutes, seconds=seconds
                    ).total_seconds()
                ),
                "s",
            )
    except (ValueError, OverflowError):
        pass
    raise errors.SettingsError(
        f"{text!r} is no duration", "write 90m, 1h, 7d, or ISO 8601: P7D, PT1H30M"
    )


def _ago(count: int, unit: str) -> Ago:
    back = timedelta(**{UNITS[unit]: count})
    datetime.now(UTC) - back  # raises where it leads before the first year
    return Ago(int(back.total_seconds()))


def _splits(text: str) -> Iterator[PlaceRange]:
    """The ways to read a text as two places: times hold colons themselves, and only one way makes sense of all of them."""
    for colon in re.finditer(":", text):
        first, rest = _place(text[: colon.start()]), text[colon.end() :]
        if first is not None:
            last = (_time(rest) if isinstance(first, (AtTime, Ago)) else None) or _place(rest)
            if last is not None:
                yield PlaceRange(first, last)


def _reversed(text: str) -> errors.SettingsError:
    return errors.SettingsError(
        f"the range {text!r} ends before it begins", "write the earlier place first"
    )
