"""Read records for `instep peek`: without joining a group or committing offsets.

A place applies to each partition: -10 is the last ten records of each. Records are sorted by
timestamp, with the order of each partition kept, if they fit in memory; a long range is returned
as it is read. A limit takes the first records of that order or, if the place is counted from the
end, the last.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from instep import errors
from instep.document import partition as hashing
from instep.kafka import connection, layout, places, reading, topics

SORTED_RECORDS_MAX = 100_000  # more are returned unsorted, as they are read
SORTED_BYTES_MAX = 256 << 20  # of keys, values and headers
NEWEST = 10
WIDEN_FACTOR = 8  # if a range has too few records, the next one has this many times its offsets
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

    @property
    def size(self) -> int:
        """Return the number of bytes of key, value and headers."""
        named = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + named


Condition = Callable[[TailRecord], bool]


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
    without_leader: tuple[int, ...] = ()
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
    topic_layout = topics.read_layouts(cluster, [topic]).topics[topic]
    selected = _select_partitions(topic_layout, partitions, key)
    without_leader = tuple(number for number in selected if number not in topic_layout.with_leader)
    if without_leader and (partitions or key is not None or len(without_leader) == len(selected)):
        raise errors.BrokerUnreachable(
            f"topic {topic!r} has no leader for partition {', '.join(map(str, without_leader))}",
            "start the broker that has it, or name other partitions with -p",
        )
    selected = [number for number in selected if number in topic_layout.with_leader]
    first = places.resolve(cluster, topic, selected, where.first, committed=committed)
    last = places.resolve(cluster, topic, selected, where.last, committed=committed)
    ranges = {partition: (first[partition], last[partition]) for partition in selected}
    return TailRange(
        topic,
        ranges,
        isinstance(where.first, places.FromEnd),
        committed,
        key,
        without_leader,
        set(first.clamped) == set(selected),
    )


def records(
    cluster: connection.Cluster, tail_range: TailRange, matches: Condition | None, limit: int | None
) -> Iterator[TailRecord]:
    """Return the wanted records of the range, or all; at most `limit`."""
    finished: set[int] = set()
    read = reading.messages(
        cluster,
        tail_range.topic,
        tail_range.ranges,
        committed=tail_range.committed,
        finished=finished,
    )
    found = _matching(tail_range, read, matches)
    # Without a condition, `limit` records of each partition are enough. With one, the matching
    # records may be far from the start, so the whole range is read.
    is_conditional = matches is not None or tail_range.key is not None
    first_few = (
        not is_conditional
        and limit is not None
        and not tail_range.newest_first
        and limit * len(tail_range.ranges) <= SORTED_RECORDS_MAX
    )
    last_few = tail_range.newest_first and limit is not None
    if tail_range.offsets > SORTED_RECORDS_MAX and not first_few and not last_few:
        return _limited(found, limit)
    kept_max = limit if last_few else None
    by_partition: dict[int, deque[TailRecord]] = {}
    size = 0
    for record in found:
        kept = by_partition.setdefault(record.partition, deque(maxlen=kept_max))
        size += record.size - (kept[0].size if len(kept) == kept.maxlen else 0)
        kept.append(record)
        if size > SORTED_BYTES_MAX and limit is None:
            return itertools.chain(*by_partition.values(), found)
        if size > SORTED_BYTES_MAX:
            raise errors.SettingsError(
                f"the records to be sorted by time are larger than {SORTED_BYTES_MAX >> 20} MB",
                "name one partition, or fewer records",
            )
        if first_few and len(kept) == limit:
            finished.add(record.partition)
    # Sorting by timestamp alone could reorder the records of a partition; a merge cannot.
    ordered = list(heapq.merge(*by_partition.values(), key=lambda record: record.timestamp_ms))
    if limit is None:
        return iter(ordered)
    return iter(ordered[-limit:] if tail_range.newest_first else ordered[:limit])


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
        tail_range = resolve_range(
            cluster,
            topic,
            places.PlaceRange(places.FromEnd(back), places.FromEnd()),
            partitions,
            committed=committed,
        )
        found = list(records(cluster, tail_range, None, count))
        if (
            len(found) >= count
            or tail_range.is_whole
            or tail_range.offsets * WIDEN_FACTOR > SORTED_RECORDS_MAX
        ):
            return tail_range, found
        back *= WIDEN_FACTOR


def follow(
    cluster: connection.Cluster, tail_range: TailRange, matches: Condition | None, limit: int | None
) -> Iterator[list[TailRecord]]:
    """Return the wanted records as they arrive, from the start of the range up to the limit."""
    left = limit
    starts = {number: start for number, (start, _) in tail_range.ranges.items()}
    for received in reading.follow(
        cluster, tail_range.topic, starts, committed=tail_range.committed
    ):
        found = list(_matching(tail_range, received, matches))[:left]
        yield found
        if left is not None:
            left -= len(found)
            if not left:
                return


def to_record(topic: str, partition: int, message: Message) -> TailRecord:
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


def _matching(
    tail_range: TailRange, messages: Iterable[tuple[int, Message]], matches: Condition | None
) -> Iterator[TailRecord]:
    for number, message in messages:
        if tail_range.key is None or message.key() == tail_range.key:
            record = to_record(tail_range.topic, number, message)
            if matches is None or matches(record):
                yield record


def _limited(found: Iterator[TailRecord], limit: int | None) -> Iterator[TailRecord]:
    for number, record in enumerate(found, start=1):
        yield record
        if number == limit:
            return


def _select_partitions(
    topic_layout: layout.Layout, partitions: Collection[int], key: bytes | None
) -> list[int]:
    """Return the named partitions, that of the key, or all."""
    count = len(topic_layout.partitions)
    topic_layout.check_partitions(partitions)
    if partitions:
        return sorted(set(partitions))
    if key is not None:
        return [hashing.partition_of(key, count)]
    return list(range(count))
