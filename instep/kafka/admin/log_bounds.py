"""The first and last offset of each partition, and the offset of a place in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from instep.kafka import connection, offsets, places, topics

NO_LEADER = "no leader"
HELD_BACK = "an open transaction: readers of committed records stop at {end}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one partition. What is unknown is None."""

    topic: str
    partition: int
    first: int | None
    end: int | None
    committed_end: int | None
    records_estimated: int | None
    at: int | None
    after: int | None
    note: str


def read(
    cluster: connection.Cluster,
    names: Collection[str],
    partitions: Collection[int],
    place: places.Place | None,
) -> list[Bounds]:
    """Return the bounds of these partitions, or of all, of each topic."""
    layouts = topics.read_layouts(cluster, names).topics
    numbers_of: dict[str, list[int]] = {}
    for name in names:
        layouts[name].check_partitions(partitions)
        numbers_of[name] = sorted(set(partitions)) or list(range(len(layouts[name].partitions)))
    with_leader = {
        name: [number for number in numbers if number in layouts[name].with_leader]
        for name, numbers in numbers_of.items()
    }
    spans = offsets.spans(
        cluster, [(name, number) for name, numbers in with_leader.items() for number in numbers]
    )
    offset_of: dict[offsets.TopicPartitionPair, int] = {}
    for name, numbers in with_leader.items():
        if place is not None and numbers:
            resolved = places.resolve(cluster, name, numbers, place, committed=False)
            offset_of |= {(name, number): offset for number, offset in resolved.items()}
    return [
        _bounds(name, number, spans.get((name, number)), offset_of.get((name, number)))
        for name, numbers in numbers_of.items()
        for number in numbers
    ]


def _bounds(topic: str, partition: int, span: offsets.Span | None, at: int | None) -> Bounds:
    if span is None:
        return Bounds(topic, partition, None, None, None, None, None, None, NO_LEADER)
    note = HELD_BACK.format(end=span.committed_end) if span.committed_end < span.end else ""
    after = None if at is None else span.end - at
    return Bounds(
        topic, partition, span.first, span.end, span.committed_end, span.offsets, at, after, note
    )
