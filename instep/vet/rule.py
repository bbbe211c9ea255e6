"""A rule: what must hold for a guarantee, with its explanation. Rules are pure; each has a page.

A rule checks one context: a pipeline (`RuleContext`), a relay (`RelayContext`) or a stream
(`StreamContext`) with everything
that it depends on, or what both have in common (`TopicContext`). It yields violations. A fact that
could not be read raises NotKnown, and the rule is reported as not judged.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, get_type_hints

from instep.sinks.facts import Facts
from instep.sources.facts import SourceFacts
from instep.vet import clients
from instep.vet.snapshot import (
    BrokerFacts,
    ClusterFacts,
    EffectiveSetting,
    PartitionProgress,
    PipelineFacts,
    PublishedPosition,
    ReaderFacts,
    RelayFacts,
    Snapshot,
    StreamFacts,
    TopicFacts,
    Values,
)


class Severity(enum.StrEnum):
    """How bad a finding is.

    An error breaks the declared guarantee. A warning needs a second failure, or stops the flow. A
    note is good to know.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


def error_if(condition: object, *, otherwise: Severity = Severity.WARNING) -> Severity:
    """Return ERROR if the condition holds, or else a warning or what `otherwise` says."""
    return Severity.ERROR if condition else otherwise


def warning_if(condition: object) -> Severity:
    """Return WARNING if the condition holds, or else NOTE."""
    return Severity.WARNING if condition else Severity.NOTE


class Risk(enum.StrEnum):
    """What happens to data."""

    LOSS = "loss"
    REPETITION = "repetition"
    DISORDER = "disorder"
    STANDSTILL = "standstill"
    EXPOSURE = "exposure"


class NotKnown(Exception):
    """A fact that the rule needs is not in the snapshot."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a rule. `when` replaces the rule's own condition, if it is set."""

    severity: Severity
    subject: str
    evidence: tuple[str, ...]
    fix: str
    when: str | None = None


@dataclass(frozen=True)
class Rule:
    """`when` completes the sentence "status events can be lost, repeated … when"."""

    id: str
    part: str
    threat: Risk
    when: str
    what: str
    consequence: str
    remedy: str
    acceptable_when: str
    check: Callable[[Any], Iterator[Violation]]

    @cached_property
    def context(self) -> type[TopicContext]:
        """Return what the check takes: its annotation says so."""
        found: type[TopicContext] = get_type_hints(self.check)["case"]
        return found


Fact = TypeVar("Fact")
Context = TypeVar("Context", bound="TopicContext")

RULES: dict[str, Rule] = {}  # filled when the modules of the rules are imported


def rule(
    id_: str,
    threat: Risk,
    *,
    when: str,
    what: str,
    consequence: str,
    remedy: str,
    acceptable_when: str,
) -> Callable[[Callable[[Context], Iterator[Violation]]], Callable[[Context], Iterator[Violation]]]:
    """Declare a rule. The first word of its id is the part that it checks."""

    def declare(
        check: Callable[[Context], Iterator[Violation]],
    ) -> Callable[[Context], Iterator[Violation]]:
        part = id_.partition("_")[0].lower()
        RULES[id_] = Rule(
            id_, part, threat, when, what, consequence, remedy, acceptable_when, check
        )
        return check

    return declare


class TopicContext:
    """What pipelines, relays and streams have in common: a topic, its publishers, the cluster."""

    kind: str  # pipeline, relay or stream
    label: str  # the name as reports show it
    topic_name: str
    guarantee: str

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self.snapshot = snapshot
        self.name = name
        self.cluster: ClusterFacts = snapshot.cluster

    # --- the declared guarantee -------------------------------------------------------------------

    @property
    def must_not_lose(self) -> bool:
        return self.guarantee != "at-most-once"

    @property
    def must_not_repeat(self) -> bool:
        return self.guarantee == "exactly-once"

    # --- the topic --------------------------------------------------------------------------------

    @property
    def topic_exists(self) -> bool:
        return self.snapshot.topics.get(self.topic_name) is not None

    @property
    def topic(self) -> TopicFacts:
        return self.other_topic(self.topic_name)

    def other_topic(self, name: str) -> TopicFacts:
        """Return the facts about a topic by its name."""
        found = self.snapshot.topics.get(name)
        if found is None:
            raise NotKnown(f"topic {name} does not exist")
        return found

    @property
    def topic_settings(self) -> Values:
        return self.known(self.topic.settings, f"settings of topic {self.topic.name}")

    def setting(self, name: str) -> EffectiveSetting:
        """Return a topic's effective setting, wherever it was set."""
        return self.known(self.topic_settings.get(name), f"{name} of topic {self.topic.name}")

    def number(self, name: str) -> int:
        value = self.known(self.setting(name).value, f"{name} of topic {self.topic.name}")
        try:
            return int(value)
        except ValueError:
            raise NotKnown(
                f"{name} of topic {self.topic.name}: {value!r} is not a number"
            ) from None

    def evidence(self, name: str) -> str:
        """Return a topic's setting as evidence."""
        setting = self.setting(name)
        return f"{name}={setting.value} ({setting.source})"

    @property
    def replicas(self) -> int:
        """Return the number of replicas of the partition that has the fewest."""
        if not self.topic.partitions:
            raise NotKnown(f"partitions of topic {self.topic.name}")
        return min(len(part.replicas) for part in self.topic.partitions)

    @property
    def topic_id(self) -> str:
        return self.known(self.topic.id or None, f"id of topic {self.topic.name}")

    @property
    def compacted(self) -> bool:
        return "compact" in (self.setting("cleanup.policy").value or "")

    @property
    def outage_ms(self) -> int:
        return self.snapshot.outage_hours_max * 3_600_000

    # --- the cluster ------------------------------------------------------------------------------

    def broker_value(self, broker: BrokerFacts, name: str) -> EffectiveSetting:
        values = self.known(broker.settings, f"settings of broker {broker.node}")
        return self.known(values.get(name), f"{name} of broker {broker.node}")

    @property
    def transaction_timeout_ms_max(self) -> int:
        """Return the longest transaction timeout that every broker allows."""
        return min(
            int(self.broker_value(broker, "transaction.max.timeout.ms").value or 0)
            for broker in self.cluster.brokers
        )

    # --- who publishes ----------------------------------------------------------------------------

    @cached_property
    def publishers(self) -> Mapping[str, clients.Effective]:
        return {
            name: clients.effective(one.client, one.config)
            for name, one in self.snapshot.publishers.items()
            if one.topic == self.topic_name
        }

    @property
    def relays(self) -> list[str]:
        """Return the names of the declared relays that publish to the topic."""
        return [
            name
            for name, relay in self.snapshot.declared_relays.items()
            if relay.topic == self.topic_name
        ]

    @property
    def streams(self) -> list[str]:
        """Return the names of the declared streams that publish to the topic."""
        return [
            name
            for name, stream in self.snapshot.declared_streams.items()
            if stream.target == self.topic_name
        ]

    @property
    def is_publisher_known(self) -> bool:
        return bool(self.publishers or self.relays or self.streams)

    @property
    def uses_transactions(self) -> bool:
        """Return whether a declared publisher, relay or stream publishes in transactions."""
        found = self.snapshot
        guarantees = [found.declared_relays[name].guarantee for name in self.relays]
        guarantees += [found.declared_streams[name].guarantee for name in self.streams]
        return "exactly-once" in guarantees or any(
            publisher.transactional for publisher in self.publishers.values()
        )

    def known(self, value: Fact | None, what: str) -> Fact:
        if value is None:
            reason = self.snapshot.unknown.get(what)
            raise NotKnown(f"{what}: {reason}" if reason else what)
        return value


class RuleContext(TopicContext):
    """One pipeline with its topic, publishers and database, as the rules see it."""

    kind = "pipeline"

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        super().__init__(snapshot, name)
        self.pipeline: PipelineFacts = snapshot.pipelines[name]
        self.label = name
        self.topic_name = self.pipeline.topic
        self.guarantee = self.pipeline.guarantee

    @property
    def guarded(self) -> bool:
        """Return whether an order value, not the log position, decides which event is newer."""
        return self.pipeline.order is not None

    @property
    def deletes_rows(self) -> bool:
        """Return whether a record without a value deletes the document's row."""
        return self.pipeline.deletes == "row"

    @property
    def written(self) -> list[str]:
        """Return the columns that the pipeline writes."""
        found = self.snapshot.writers.get(self.name)
        return found.columns if found else []

    @property
    def has_target(self) -> bool:
        """Return whether the table fits its mapping, so that records could be decoded with it."""
        return self.pipeline.order_is_time is not None

    @property
    def ledger(self) -> list[PartitionProgress]:
        return self.known(self.pipeline.ledger, f"ledger of {self.name}")

    @property
    def database(self) -> Facts:
        found = self.known(self.snapshot.databases.get(self.name), f"database of {self.name}")
        return self.known(found if found.unreachable is None else None, f"database of {self.name}")

    def database_setting(self, name: str) -> str:
        values = self.known(self.database.settings, f"settings of the database of {self.name}")
        return self.known(values.get(name), f"{name} of the database of {self.name}")


class OutputContext(TopicContext):
    """What a relay and a stream have in common: they publish to a topic, and keep a position."""

    topic_setting: str  # the setting that names the topic
    position_topic: str
    transaction_timeout_ms: int
    position: PublishedPosition | None  # None: it has not published yet
    groups: list[str] | None  # that have committed offsets for the topic

    @property
    def readers(self) -> dict[str, ReaderFacts]:
        """Return the declared readers of the topic."""
        return {
            name: reader
            for name, reader in self.snapshot.readers.items()
            if reader.topic == self.topic_name
        }


class RelayContext(OutputContext):
    """One relay with its source, its topics and its readers, as the rules see it."""

    kind = "relay"
    topic_setting = "topic"

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        super().__init__(snapshot, name)
        self.relay: RelayFacts = snapshot.relays[name]
        self.label = f"relay {name}"
        self.topic_name = self.relay.topic
        self.guarantee = self.relay.guarantee
        self.position_topic = self.relay.position_topic
        self.transaction_timeout_ms = self.relay.transaction_timeout_ms
        self.position = self.relay.position
        self.groups = self.relay.groups

    @property
    def source(self) -> SourceFacts:
        """Return the facts about the source database, if it answered."""
        found = self.relay.source_facts
        return self.known(
            found if found.database.unreachable is None else None, f"source of {self.label}"
        )

    def source_setting(self, name: str) -> str:
        values = self.known(self.source.database.settings, f"settings of the source of {self.name}")
        return self.known(values.get(name), f"{name} of the source of {self.name}")


class StreamContext(OutputContext):
    """One stream with its topics and the readers of its output, as the rules see it."""

    kind = "stream"
    topic_setting = "to"

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        super().__init__(snapshot, name)
        self.stream: StreamFacts = snapshot.streams[name]
        self.label = f"stream {name}"
        self.topic_name = self.stream.target
        self.guarantee = self.stream.guarantee
        self.position_topic = self.stream.position_topic
        self.transaction_timeout_ms = self.stream.transaction_timeout_ms
        self.position = self.stream.position
        self.groups = self.stream.groups

    @property
    def source(self) -> TopicFacts:
        """Return the facts about the topic that it reads."""
        return self.other_topic(self.stream.source)
