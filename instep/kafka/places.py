"""The grammar of places in a log, for every command that takes one.

    start  end           the first record of the log; after the last one
    1234                 an offset
    +5  -10              five after the start; ten before the end
    @2026-11-01T08:00    the first record at or after a time; UTC unless it has a zone (Z, +01:00)
    @1790000000000       the same, in milliseconds since 1970
    @-1h                 the same, before now: s, m, h or d
    a:b                  from one place up to another; after a time the second may omit its @

A single place, where a range is expected, means from there to the end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from instep import durations, errors
from instep.kafka import connection
from instep.kafka.logs import Log, TopicLog

GRAMMAR = (
    "write start, end, 1234, +5, -10, @2026-11-01T08:00 (UTC), @2026-11-01T08:00+01:00,"
    " @1790000000000 (ms) or @-1h"
)
RANGES = "; a range is two of them with a colon: -10:end, @2026-11-01T08:00:2026-11-01T09:00"
OFFSET_MAX = 2**63 - 1
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_AGO = re.compile(r"-([0-9]+[smhd])")


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset by its number."""

    offset: int

    def __str__(self) -> str:
        return str(self.offset)


@dataclass(frozen=True, slots=True)
class FromStart:
    """A number of offsets after the first one of the log."""

    count: int = 0

    def __str__(self) -> str:
        return f"+{self.count}" if self.count else "start"


@dataclass(frozen=True, slots=True)
class FromEnd:
    """A number of offsets before the end."""

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
    """The first record at or after a time before now."""

    seconds: int

    def __str__(self) -> str:
        return f"@-{self.seconds}s"


@dataclass(frozen=True, slots=True)
class EachOffset:
    """The offsets of a plan that somebody has seen. No text names them.

    Partitions that it does not have begin at their first record.
    """

    offsets: Mapping[int, int]

    def __str__(self) -> str:
        return ", ".join(f"{part}:{offset}" for part, offset in sorted(self.offsets.items()))


Place = Offset | FromStart | FromEnd | AtTime | Ago | EachOffset


@dataclass(frozen=True, slots=True)
class PlaceRange:
    """From one place up to, but without, another."""

    first: Place
    last: Place

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


class Resolved(dict[int, int]):
    """The offset of a place per partition; `clamped` has requested offsets outside of the log."""

    def __init__(self, found: dict[int, int], clamped: dict[int, int]) -> None:
        super().__init__(found)
        self.clamped = clamped


def parse_place(text: str) -> Place:
    """Parse a place."""
    place = _place(text)
    if place is None:
        raise errors.SettingsError(f"{text!r} is not a place in a log", GRAMMAR)
    return place


def parse_range(text: str) -> PlaceRange:
    """Parse a range: two places, or one place up to the end."""
    single = _place(text)
    if single is not None:
        return PlaceRange(single, FromEnd())
    place_range = next(_splits(text), None)
    if place_range is None:
        raise errors.SettingsError(f"{text!r} is not a range of places in a log", GRAMMAR + RANGES)
    match place_range.first, place_range.last:
        case (Offset(a), Offset(b)) if a > b:
            raise _reversed(text)
        case (AtTime(start), AtTime(end)) if start > end:
            raise _reversed(text)
        case (Ago(longer), Ago(shorter)) if longer < shorter:
            raise _reversed(text)
    return place_range


def moment(place: Place) -> datetime:
    """Return the time of a place."""
    match place:
        case AtTime(at):
            return at
        case Ago(seconds):
            return datetime.now(UTC) - timedelta(seconds=seconds)
    raise errors.SettingsError(f"{str(place)!r} is not a time", GRAMMAR)


def resolve(
    cluster: connection.Cluster,
    topic: str,
    partitions: Collection[int],
    place: Place,
    *,
    committed: bool = True,
) -> Resolved:
    """Return the offset of a place in each partition of a topic.

    With `committed`, the end is before the first record of an open transaction.
    """
    return resolve_in(TopicLog(cluster, topic, committed=committed), partitions, place)


def resolve_in(log: Log, partitions: Collection[int], place: Place) -> Resolved:
    """Return the offset of a place in each partition of a log."""
    first, end = log.starts(partitions), log.ends(partitions)
    match place:
        case Offset(offset):
            requested = dict.fromkeys(partitions, offset)
        case EachOffset(of_partition):
            requested = {p: of_partition.get(p, first[p]) for p in partitions}
        case FromStart(count):
            requested = {partition: first[partition] + count for partition in partitions}
        case FromEnd(count):
            requested = {partition: end[partition] - count for partition in partitions}
        case AtTime() | Ago():
            timed = log.at_time(partitions, moment(place))
            # A time after the last record means the end. The last record may be behind an open
            # transaction, so with `committed` the offset of a time is limited to that end too.
            requested = {
                partition: min(timed[partition], end[partition]) for partition in partitions
            }
    found = {
        partition: min(max(offset, first[partition]), end[partition])
        for partition, offset in requested.items()
    }
    clamped = {
        partition: offset for partition, offset in requested.items() if offset != found[partition]
    }
    return Resolved(found, clamped)


def _place(text: str) -> Place | None:
    if text in ("start", "end"):
        return FromStart() if text == "start" else FromEnd()
    if text.startswith("@"):
        return _time(text[1:])
    if not _NUMBER.fullmatch(text) or abs(int(text)) > OFFSET_MAX:
        return None
    number = int(text)
    if text[0] == "+":
        return FromStart(number)
    if text[0] == "-":
        return FromEnd(-number)
    return Offset(number)


def _time(text: str) -> AtTime | Ago | None:
    try:
        if text.isascii() and text.isdigit():
            return AtTime(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(text)))
        if ago := _AGO.fullmatch(text):
            return _ago(ago[1])
        if _TIME.fullmatch(text):
            at = datetime.fromisoformat(text)
            if at.tzinfo is None:
                at = at.replace(tzinfo=UTC)
            return AtTime(at.astimezone(UTC))
    except (ValueError, OverflowError):  # the thirteenth month, or a year after 9999
        return None
    return None


def parse_duration(text: str) -> Ago:
    """Parse a duration: 90m, 1h, 7d, or ISO 8601 as in Kafka's own tools: P7D, PT1H30M."""
    ago = _ago(text)
    if ago is None:
        raise errors.SettingsError(
            f"{text!r} is not a duration", "write 90m, 1h, 7d, or ISO 8601: P7D, PT1H30M"
        )
    return ago


def _ago(text: str) -> Ago | None:
    """Return the time that is this duration before now; None if there is no such time."""
    back = durations.parse(text)
    if back is None:
        return None
    try:
        datetime.now(UTC) - back
    except OverflowError:  # before the year 1
        return None
    return Ago(int(back.total_seconds()))


def _splits(text: str) -> Iterator[PlaceRange]:
    """Return the ways to read a text as two places; times contain colons themselves."""
    # Any colon may be the one between the places: @08:00:09:00 has three of them.
    for colon in re.finditer(":", text):
        first, rest = _place(text[: colon.start()]), text[colon.end() :]
        if first is None:
            continue
        last = _place(rest)
        if isinstance(first, (AtTime, Ago)):
            last = _time(rest) or last
        if last is not None:
            yield PlaceRange(first, last)


def _reversed(text: str) -> errors.SettingsError:
    return errors.SettingsError(
        f"the range {text!r} ends before it begins", "write the earlier place first"
    )
