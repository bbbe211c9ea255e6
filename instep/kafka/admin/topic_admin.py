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
            return _explained(cluster, name, partitions, replicas, config, failure, if_not_exists)
        return f"{'would have' if validate_only else 'has'} {counted(partitions, 'partition')}"

    return outcomes.of_each(names, make)


def alter(
    cluster: connection.Cluster,
    topic: str,
    given: Mapping[str, str],
    unset: Collection[str],
    *,
    validate_only: bool = False,
) -> list[ConfigChange]:
    """Change some settings of a topic and wait until the cluster shows the change."""
    if not given and not unset:
        raise errors.SettingsError("nothing is to be changed", "say -c NAME=VALUE or --unset NAME")
    if both := sorted(set(given) & set(unset)):
        raise errors.SettingsError(
            f"{', '.join(both)} cannot be both set and unset", "leave one of the two out"
        )
    before = _settings(cluster, topic)
    for name in (*given, *unset):
        if name not in before:
            raise _unknown(name, before)
    configs.alter_topic(cluster, topic, given, unset, validate_only=validate_only)
    if validate_only:
        shown = {
            **before,
            **{name: ConfigValue(name, value, configs.OF_TOPIC) for name, value in given.items()},
        }
        shown |= {name: ConfigValue(name, "the cluster's default", "") for name in unset}
    else:
        shown = dict(_await_settings(cluster, topic, given, unset))
    return [ConfigChange(before[name], shown[name]) for name in (*given, *unset)]


def plan_growth(cluster: connection.Cluster, topic: str, new: int) -> Growth:
    """Return what more partitions would mean for the topic's keys."""
    known = topics.placed(cluster, [topic]).topics[topic]
    now = len(known.partitions)
    if new <= now:
        raise errors.SettingsError(
            f"topic {topic!r} has {counted(now, 'partition')}"
            + (", and a topic cannot shrink" if new < now else " already"),
            f"choose more than {now}; for fewer, create another topic and publish there",
        )
    keys = _sampled_keys(cluster, topic, known.led)
    moved = sum(
        partition.partition_of(key, now) != partition.partition_of(key, new) for key in keys
    )
    elsewhere = sum(found != {partition.partition_of(key, now)} for key, found in keys.items())
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
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise errors.SettingsError(
                f"{text!r} is not NAME=VALUE", "write e.g. -c retention.ms=604800000"
            )
        found[name.strip()] = value
    return found


def _explained(
    cluster: connection.Cluster,
    name: str,
    partitions: int,
    replicas: int | None,
    config: Mapping[str, str],
    failure: errors.SettingsError,
    if_not_exists: bool,
) -> str:
    """Raise a helpful error; return the outcome if the topic exists and that is allowed."""
    known = layout.read(cluster)
    code = faults.code(failure)
    if code == KafkaError.TOPIC_ALREADY_EXISTS and if_not_exists and name in known.topics:
        there = len(known.topics[name].partitions)
        return f"is there already, with {counted(there, 'partition')}" + (
            f" (asked: {partitions})" if there != partitions else ""
        )
    if code == KafkaError.INVALID_REPLICATION_FACTOR and replicas and replicas > len(known.brokers):
        raise layout.too_few_brokers(name, replicas, len(known.brokers)) from failure.__cause__
    if code == KafkaError.INVALID_CONFIG and known.topics:
        some = next(iter(known.topics))
        understood = configs.of_topics(cluster, [some])[some]
        for setting in config:
            if setting not in understood:
                raise _unknown(setting, understood) from failure.__cause__
    raise failure


def _unknown(name: str, known: Iterable[str]) -> errors.SettingsError:
    return errors.SettingsError(
        f"topics have no setting {name!r}{settings.nearest(name, sorted(known))}",
        "see what there is: instep topics describe TOPIC",
    )


def _settings(cluster: connection.Cluster, topic: str) -> configs.Settings:
    try:
        return configs.of_topics(cluster, [topic])[topic]
    except errors.TopicMissing as failure:
        raise topics.missing(cluster, topic) from failure.__cause__


def _await_settings(
    cluster: connection.Cluster, topic: str, given: Mapping[str, str], unset: Collection[str]
) -> configs.Settings:
    """Wait until the brokers show a change: the controller answers before they know."""
    found: configs.Settings = {}

    def is_shown() -> bool:
        nonlocal found
        found = _settings(cluster, topic)
        are_set = all(
            found[name].source == configs.OF_TOPIC and found[name].value in (value, None)
            for name, value in given.items()
        )
        return are_set and not any(found[name].source == configs.OF_TOPIC for name in unset)

    wait_until(is_shown, cluster.timeout_s, interval_s=connection.SLICE_S)
    return found


def _sampled_keys(
    cluster: connection.Cluster, topic: str, partitions: Collection[int]
) -> dict[bytes, set[int]]:
    """Return keys of the newest records, and their partitions."""
    ends = offsets.latest(cluster, topic, partitions)
    ranges = {number: (max(0, end - SAMPLED_PER_PARTITION), end) for number, end in ends.items()}
    found: dict[bytes, set[int]] = {}
    for record in reading.read(cluster, topic, ranges):
        if record.key is not None:
            found.setdefault(record.key, set()).add(record.partition)
    return found
