"""Create, configure and grow topics for commands, with a plan first and helpful errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

from instep import errors, settings
from instep.document import partition
from instep.document.showing import counted
from instep.kafka import configs, connection, faults, layout, offsets, reading, topics
from instep.kafka.admin import outcomes
from instep.kafka.configs import ConfigValue
from instep.waiting import wait_until

SAMPLED_PER_PARTITION = 100


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One setting of a topic, before and after."""

    before: ConfigValue
    after: ConfigValue


@dataclass(frozen=True, slots=True)
class Growth:
    """More partitions for a topic, and the share of keys that move: calculated and sampled."""

    topic: str
    now: int
    new: int
    moved_share: float
    sampled_keys: int
    sampled_moved: int
    sampled_elsewhere: int


def create(
    cluster: connection.Cluster,
    names: Iterable[str],
    partitions: int,
    replicas: int | None,
    config: Mapping[str, str],
    *,
    if_not_exists: bool = False,
    validate_only: bool = False,
) -> list[outcomes.AdminResult]:
    """Create each topic, or check whether that is possible."""

    def make(name: str) -> str:
        try:
            topics.create(cluster, name, partitions, replicas, config, validate_only=validate_only)
        except errors.SettingsError as failure:
            return _explain(cluster, name, partitions, replicas, config, failure, if_not_exists)
        return f"{'would have' if validate_only else 'has'} {counted(partitions, 'partition')}"

    return outcomes.of_each(names, make)


def alter(
    cluster: connection.Cluster,
    topic: str,
    new_values: Mapping[str, str],
    unset: Collection[str],
    *,
    validate_only: bool = False,
) -> list[ConfigChange]:
    """Change some settings of a topic and wait until the cluster shows the change."""
    if not new_values and not unset:
        raise errors.SettingsError("no change is given", "give -c NAME=VALUE or --unset NAME")
    if both := sorted(set(new_values) & set(unset)):
        raise errors.SettingsError(
            f"{', '.join(both)} cannot be both set and unset", "give one of the two only"
        )
    before = _settings(cluster, topic)
    for name in (*new_values, *unset):
        if name not in before:
            raise _unknown(name, before)
    configs.alter_topic(cluster, topic, new_values, unset, validate_only=validate_only)
    after: dict[str, ConfigValue] = {}
    if validate_only:
        for name, value in new_values.items():
            after[name] = ConfigValue(name, value, configs.OF_TOPIC)
        for name in unset:
            after[name] = ConfigValue(name, "the cluster's default", "")
    else:
        after |= _await_settings(cluster, topic, new_values, unset)
    return [ConfigChange(before[name], after[name]) for name in (*new_values, *unset)]


def plan_growth(cluster: connection.Cluster, topic: str, new: int) -> Growth:
    """Return what more partitions would mean for the topic's keys."""
    topic_layout = topics.read_layouts(cluster, [topic]).topics[topic]
    now = len(topic_layout.partitions)
    if new <= now:
        problem = f"topic {topic!r} already has {counted(now, 'partition')}"
        if new < now:
            problem += ", and their number cannot be reduced"
        raise errors.SettingsError(
            problem, f"choose more than {now}; for fewer, create another topic and publish there"
        )
    keys = _sampled_keys(cluster, topic, topic_layout.with_leader)
    moved = sum(
        partition.partition_of(key, now) != partition.partition_of(key, new) for key in keys
    )
    elsewhere = sum(
        partitions != {partition.partition_of(key, now)} for key, partitions in keys.items()
    )
    return Growth(topic, now, new, partition.moved_share(now, new), len(keys), moved, elsewhere)


def followers(declared: settings.Settings, topic: str) -> list[str]:
    """Return the pipelines that read the topic."""
    return [name for name, pipeline in declared.pipelines.items() if pipeline.topic == topic]


def unguarded(declared: settings.Settings, topic: str) -> list[str]:
    """Return those of them without an order value, which rely on the order of the log."""
    return [
        name for name in followers(declared, topic) if declared.pipelines[name].event.order is None
    ]


def parse_config(texts: Iterable[str]) -> dict[str, str]:
    """Parse settings from NAME=VALUE texts."""
    config: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise errors.SettingsError(
                f"{text!r} is not NAME=VALUE", "write e.g. -c retention.ms=604800000"
            )
        config[name.strip()] = value
    return config


def _explain(
    cluster: connection.Cluster,
    name: str,
    partitions: int,
    replicas: int | None,
    config: Mapping[str, str],
    failure: errors.SettingsError,
    if_not_exists: bool,
) -> str:
    """Raise a helpful error; return the outcome if the topic exists and that is allowed."""
    layouts = layout.read(cluster)
    code = faults.code(failure)
    if code == KafkaError.TOPIC_ALREADY_EXISTS and if_not_exists and name in layouts.topics:
        existing = len(layouts.topics[name].partitions)
        requested = ""
        if existing != partitions:
            requested = f" (requested: {partitions})"
        return f"already exists, with {counted(existing, 'partition')}{requested}"
    if (
        code == KafkaError.INVALID_REPLICATION_FACTOR
        and replicas
        and replicas > len(layouts.brokers)
    ):
        raise layout.too_few_brokers(name, replicas, len(layouts.brokers)) from failure.__cause__
    if code == KafkaError.INVALID_CONFIG and layouts.topics:
        any_topic = next(iter(layouts.topics))
        known_settings = configs.of_topics(cluster, [any_topic])[any_topic]
        for setting in config:
            if setting not in known_settings:
                raise _unknown(setting, known_settings) from failure.__cause__
    raise failure


def _unknown(name: str, known: Iterable[str]) -> errors.SettingsError:
    return errors.SettingsError(
        f"topics have no setting {name!r}{settings.nearest(name, sorted(known))}",
        "list the settings of a topic: instep topics describe TOPIC",
    )


def _settings(cluster: connection.Cluster, topic: str) -> configs.Settings:
    try:
        return configs.of_topics(cluster, [topic])[topic]
    except errors.TopicMissing as failure:
        raise topics.missing(cluster, topic) from failure.__cause__


def _await_settings(
    cluster: connection.Cluster, topic: str, new_values: Mapping[str, str], unset: Collection[str]
) -> configs.Settings:
    """Wait until the brokers show a change: the controller answers before they know."""
    current: configs.Settings = {}

    def is_shown() -> bool:
        nonlocal current
        current = _settings(cluster, topic)
        # A secret has no value to compare.
        are_set = all(
            current[name].source == configs.OF_TOPIC and current[name].value in (value, None)
            for name, value in new_values.items()
        )
        return are_set and not any(current[name].source == configs.OF_TOPIC for name in unset)

    wait_until(is_shown, cluster.timeout_s, interval_s=connection.POLL_S)
    return current


def _sampled_keys(
    cluster: connection.Cluster, topic: str, partitions: Collection[int]
) -> dict[bytes, set[int]]:
    """Return keys of the newest records, and their partitions."""
    ends = offsets.latest(cluster, topic, partitions)
    ranges = {number: (max(0, end - SAMPLED_PER_PARTITION), end) for number, end in ends.items()}
    partitions_of: dict[bytes, set[int]] = {}
    for record in reading.read(cluster, topic, ranges):
        if record.key is not None:
            partitions_of.setdefault(record.key, set()).add(record.partition)
    return partitions_of
