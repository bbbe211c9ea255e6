"""Read records for `instep peek`: without joining a group or committing offsets.

A place applies to each partition: -10 is the last ten records of each. Records are sorted by
timestamp, with the order of each partition kept, if they fit in memory; a long range is returned
as it is read. A limit takes the first records of that order or, if the place is counted from the
end, the last.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from instep import errors
from instep.document import partition as hashing
from instep.kafka import connection, layout, places, reading, topics

HELD_MAX = 100_000
NEWEST = 10
FURTHER = 8
KINDS = {TIMESTAMP_CREATE_TIME: "create", TIMESTAMP_LOG_APPEND_TIME: "logappend"}

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class TailRecord:
    """One whole record. Without a timestamp it has -1."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_kind: str
    key: bytes | None
    value: bytes | None
    headers: Headers


Wanted = Callable[[TailRecord], bool]


@dataclass(frozen=True, slots=True)
class TailRange:
    """What to read of a topic: the range of each partition, and whether a limit takes the last.

    Partitions without a leader are omitted, unless one was requested.
    """

    topic: str
    ranges: Mapping[int, tuple[int, int]]
    newest_first: bool
    committed: bool
    key: bytes | None = None
    unled: tuple[int, ...] = ()
    is_whole: bool = False

    @property
    def offsets(self) -> int:
        """Return the number of offsets in all partitions."""
        return sum(max(0, end - start) for start, end in self.ranges.values())


def resolve_range(
    cluster: connection.Cluster,
    topic: str,
    where: places.PlaceRange,
    partitions: Collection[int] = (),
    key: bytes | None = None,
    *,
    committed: bool = True,
) -> TailRange:
    """Resolve a range of places, in these partitions, in that of the key, or in all."""
    known = topics.placed(cluster, [topic]).topics[topic]
    asked = _asked(known, partitions, key)
    unled = tuple(number for number in asked if number not in known.led)
    if unled and (partitions or key is not None or len(unled) == len(asked)):
        raise errors.BrokerUnreachable(
            f"topic {topic!r} has no leader for partition {', '.join(map(str, unled))}",
            "start the broker that has it, or name other partitions with -p",
        )
    asked = [number for number in asked if number in known.led]
    first = places.resolve(cluster, topic, asked, where.first, committed=committed)
    last = places.resolve(cluster, topic, asked, where.last, committed=committed)
    ranges = {part: (first[part], last[part]) for part in asked}
    return TailRange(
        topic,
        ranges,
        isinstance(where.first, places.FromEnd),
        committed,
        key,
        unled,
        set(first.clamped) == set(asked),
    )


def records(
    cluster: connection.Cluster, part: TailRange, wanted: Wanted | None, limit: int | None
) -> Iterator[TailRecord]:
    """Return the wanted records of the range, or all; at most `limit`."""
    enough: set[int] = set()
    read = reading.messages(
        cluster, part.topic, part.ranges, committed=part.committed, enough=enough
    )
    found = _wanted(part, read, wanted)
    # with a condition, the first records of a partition may be far from its start
    narrowed = wanted is not None or part.key is not None
    first_few = (
        not narrowed
        and limit is not None
        and not part.newest_first
        and limit * len(part.ranges) <= HELD_MAX
    )
    last_few = part.newest_first and limit is not None
    if part.offsets > HELD_MAX and not first_few and not last_few:
        return _limited(found, limit)
    held: dict[int, deque[TailRecord]] = {}
    for one in found:
        held.setdefault(one.partition, deque(maxlen=limit if last_few else None)).append(one)
        if first_few and len(held[one.partition]) == limit:
            enough.add(one.partition)
    ordered = list(heapq.merge(*held.values(), key=lambda one: one.timestamp_ms))
    if limit is None:
        return iter(ordered)
    return iter(ordered[-limit:] if part.newest_first else ordered[:limit])


def newest(
    cluster: connection.Cluster,
    topic: str,
    count: int,
    partitions: Collection[int] = (),
    *,
    committed: bool = True,
) -> tuple[TailRange, list[TailRecord]]:
    """Return the newest records.

    Markers and compacted records take offsets, so more offsets than records are read.
    """
    back = count
    while True:
        part = resolve_range(
            cluster,
            topic,
            places.PlaceRange(places.FromEnd(back), places.FromEnd()),
            partitions,
            committed=committed,
        )
        found = list(records(cluster, part, None, count))
        if len(found) >= count or part.is_whole or part.offsets * FURTHER > HELD_MAX:
            return part, found
        back *= FURTHER


def follow(
    cluster: connection.Cluster, part: TailRange, wanted: Wanted | None, limit: int | None
) -> Iterator[list[TailRecord]]:
    """Return the wanted records as they arrive, from the start of the range up to the limit."""
    left = limit
    starts = {number: start for number, (start, _) in part.ranges.items()}
    for received in reading.follow(cluster, part.topic, starts, committed=part.committed):
        found = list(_wanted(part, received, wanted))[:left]
        yield found
        if left is not None:
            left -= len(found)
            if not left:
                return


def seen(topic: str, partition: int, message: Message) -> TailRecord:
    """Return a message of the client as a record."""
    kind, at_ms = message.timestamp()
    offset = message.offset()
    assert offset is not None
    headers: Any = message.headers() or ()
    return TailRecord(
        topic,
        partition,
        offset,
        at_ms,
        KINDS.get(kind, "unknown"),
        message.key(),
        message.value(),
        headers,
    )


def _wanted(
    part: TailRange, messages: Iterable[tuple[int, Message]], wanted: Wanted | None
) -> Iterator[TailRecord]:
    for number, message in messages:
        if part.key is None or message.key() == part.key:
            one = seen(part.topic, number, message)
            if wanted is None or wanted(one):
                yield one


def _limited(found: Iterator[TailRecord], limit: int | None) -> Iterator[TailRecord]:
    for number, one in enumerate(found, start=1):
        yield one
        if number == limit:
            return


def _asked(known: layout.Layout, partitions: Collection[int], key: bytes | None) -> list[int]:
    """Return the named partitions, that of the key, or all."""
    count = len(known.partitions)
    known.refuse_strange(partitions)
    return sorted(set(partitions)) or (
        [hashing.partition_of(key, count)] if key is not None else list(range(count))
    )
