"""What has the records of a topic: the topic itself, or something that kept them longer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Protocol

from instep.kafka import offsets, reading
from instep.kafka.connection import Cluster
from instep.kafka.offsets import LogRecord


class Log(Protocol):
    """The committed records of a topic, by partition and offset."""

    def starts(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset that each partition has."""

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the end of each partition."""

    def at_time(self, partitions: Collection[int], when: datetime) -> dict[int, int]:
        """Return the first offset with a timestamp at or after a time; the end if none has."""

    def records(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[LogRecord]:
        """Return the records of half-open ranges, in order within each partition."""


class TopicLog:
    """A topic in Kafka."""

    def __init__(self, cluster: Cluster, topic: str, *, committed: bool = True) -> None:
        """With `committed`, the ends are before the first record of an open transaction."""
        self._cluster, self._topic, self._committed = cluster, topic, committed

    def starts(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset that each partition still has."""
        return offsets.earliest(self._cluster, self._topic, partitions)

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the end of each partition."""
        return offsets.latest(self._cluster, self._topic, partitions, self._committed)

    def at_time(self, partitions: Collection[int], when: datetime) -> dict[int, int]:
        """Return the first offset with a timestamp at or after a time; the end if none has."""
        return offsets.at_time(self._cluster, self._topic, partitions, when)

    def records(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[LogRecord]:
        """Return the records of ranges; partitions are mixed."""
        return reading.read(self._cluster, self._topic, ranges)
