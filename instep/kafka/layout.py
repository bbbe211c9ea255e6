"""The layout of topics: leaders, replicas and in-sync replicas, of all topics in one request."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from instep import errors
from instep.document.showing import counted
from instep.kafka import admin_extras, configs, connection
from instep.waiting import wait_until

INTERNAL = "__"
MIN_IN_SYNC = "min.insync.replicas"
CHEAP_TOPICS_MAX = 200  # for more topics, reading only one setting of each pays


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: its leader, if it has one, its replicas, and those in sync."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        """Return whether a replica is not in sync."""
        return len(self.in_sync) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class Layout:
    """One topic's partitions, by number."""

    topic: str
    partitions: tuple[Partition, ...]

    @property
    def replicas(self) -> int:
        """Return the largest number of replicas of a partition."""
        return max((len(part.replicas) for part in self.partitions), default=0)

    @property
    def is_internal(self) -> bool:
        """Return whether it is one of Kafka's own topics, by its name."""
        return self.topic.startswith(INTERNAL)

    def check_partitions(self, partitions: Iterable[int]) -> None:
        """Raise SettingsError for partitions that the topic does not have."""
        if unknown := sorted(
            number for number in set(partitions) if number >= len(self.partitions)
        ):
            raise errors.SettingsError(
                f"topic {self.topic!r} has no partition {', '.join(map(str, unknown))}",
                f"it has 0 to {len(self.partitions) - 1}",
            )

    @property
    def with_leader(self) -> tuple[int, ...]:
        """Return the partitions that have a leader."""
        return tuple(part.partition for part in self.partitions if part.leader is not None)


@dataclass(frozen=True, slots=True)
class Layouts:
    """The brokers that are up, with their addresses, and every topic that we may see."""

    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, Layout]
    cluster_id: str


def read(cluster: connection.Cluster) -> Layouts:
    """Read the layout of all topics in one request."""
    metadata = cluster.metadata(cluster.operation("list the topics"))
    topics = {
        name: Layout(
            name,
            tuple(
                Partition(
                    number,
                    # Metadata may still name a leader that has just died.
                    part.leader if part.leader in metadata.brokers else None,
                    tuple(part.replicas),
                    tuple(part.isrs),
                )
                for number, part in sorted(topic.partitions.items())
            ),
        )
        for name, topic in sorted(metadata.topics.items())
    }
    brokers = {
        node: (broker.host or "", broker.port) for node, broker in sorted(metadata.brokers.items())
    }
    return Layouts(brokers, topics, metadata.cluster_id or "")


def read_topic(cluster: connection.Cluster, topic: str) -> Layout:
    """Read the layout of one topic, and wait for it: a broker may not know a new topic yet."""
    found: dict[str, Layout] = {}

    def is_known() -> bool:
        found.update(read(cluster).topics)
        return topic in found

    if not wait_until(is_known, cluster.timeout_s):
        raise errors.TopicMissing(
            f"topic {topic!r} is not in the cluster's metadata",
            "list the topics: instep topics list",
        )
    return found[topic]


def too_few_brokers(topic: str, replicas: int, brokers: int) -> errors.SettingsError:
    """Return the error for more replicas than brokers."""
    return errors.SettingsError(
        f"topic {topic!r} cannot have {replicas} replicas:"
        f" the cluster has {counted(brokers, 'broker')}",
        f"use -r {brokers} or less, or start more brokers",
    )


def matching(names: Iterable[str], pattern: str | None, *, is_regex: bool = False) -> list[str]:
    """Return the names that match a glob, or in which a regular expression is found."""
    if pattern is None:
        return list(names)
    try:
        compiled = re.compile(pattern if is_regex else fnmatch.translate(pattern))
    except re.error as failure:
        raise errors.SettingsError(
            f"{pattern!r} is not a regular expression: {failure}", "write e.g. '^orders-[0-9]+$'"
        ) from None
    return [name for name in names if compiled.search(name)]


def min_in_sync(cluster: connection.Cluster, topics: Collection[str]) -> dict[str, int]:
    """Return min.insync.replicas of each topic, without topics that do not report it."""
    values: Mapping[str, str | None] | None = None
    if len(topics) > CHEAP_TOPICS_MAX:
        with admin_extras.connect(cluster) as extras:
            values = extras.setting(topics, MIN_IN_SYNC) if extras else None
    if values is None:
        values = {
            name: settings[MIN_IN_SYNC].value
            for name, settings in configs.of_topics(cluster, topics).items()
            if MIN_IN_SYNC in settings
        }
    return {name: int(value) for name, value in values.items() if value is not None}
