"""One topic in detail: its partitions with their offsets and sizes, and its own settings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from instep import errors
from instep.kafka import admin_extras, configs, connection, layout, offsets, topics

CLEANUP = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class PartitionDetail:
    """A partition with its offsets and size. What is unknown is None."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]
    eligible: tuple[int, ...] | None
    first: int | None
    end: int | None
    records_estimated: int | None
    size_bytes: int | None
    last_record_ms: int | None


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """A topic. The number of records is an estimate.

    It is exact only without compaction and transactions. The settings are those that are not
    Kafka's defaults; None if the cluster does not return them.
    """

    topic: str
    id: str
    is_compacted: bool | None
    settings: tuple[configs.ConfigValue, ...] | None
    partitions: tuple[PartitionDetail, ...]


def describe(cluster: connection.Cluster, names: Collection[str]) -> list[TopicDetail]:
    """Return each topic in detail; raise TopicMissing, with similar names."""
    layouts = topics.read_layouts(cluster, names)
    ids = topics.ids(cluster, names)
    settings = {name: _settings(cluster, name) for name in names}
    pairs = [(name, partition) for name in names for partition in layouts.topics[name].with_leader]
    spans = offsets.spans(cluster, pairs, newest=True)
    # Read the layout again: a dead leader may have been replaced meanwhile.
    layouts = topics.read_layouts(cluster, names)
    with admin_extras.connect(cluster) as extras:
        log_dirs = extras.log_dirs(names) if extras else None
        eligible = extras.eligible(names) if extras else None
    sizes: dict[tuple[int | None, str, int], int] = {}
    for log_dir in log_dirs or ():
        for pair, size in log_dir.replicas.items():
            sizes[log_dir.broker, *pair] = size
    return [
        TopicDetail(
            name,
            ids[name],
            _is_compacted(settings[name]),
            _changed(settings[name]),
            tuple(
                _detail(
                    part,
                    layouts.brokers,
                    spans.get((name, part.partition)),
                    sizes.get((part.leader, name, part.partition)),
                    None if eligible is None else eligible.get((name, part.partition), ()),
                )
                for part in layouts.topics[name].partitions
            ),
        )
        for name in names
    ]


def _settings(cluster: connection.Cluster, topic: str) -> configs.Settings | None:
    try:
        return configs.of_topics(cluster, [topic])[topic]
    except (errors.NotAuthorised, errors.BrokerUnreachable):
        return None


def _is_compacted(settings: configs.Settings | None) -> bool | None:
    if settings is None:
        return None
    return "compact" in (settings[CLEANUP].value or "")


def _changed(settings: configs.Settings | None) -> tuple[configs.ConfigValue, ...] | None:
    if settings is None:
        return None
    return tuple(
        setting for _, setting in sorted(settings.items()) if setting.source != configs.DEFAULT
    )


def _detail(
    part: layout.Partition,
    brokers: Collection[int],
    span: offsets.Span | None,
    size: int | None,
    eligible: tuple[int, ...] | None,
) -> PartitionDetail:
    return PartitionDetail(
        part.partition,
        part.leader,
        part.replicas,
        part.in_sync,
        tuple(node for node in part.replicas if node not in brokers),
        eligible,
        span.first if span else None,
        span.end if span else None,
        span.offsets if span else None,
        size,
        span.newest_ms if span else None,
    )
