"""A rule: what must hold for a guarantee, with its explanation. Rules are pure; each has a page.

A rule checks one `RuleContext`, a pipeline with everything that it depends on, and yields
violations. A fact that could not be read raises NotKnown, and the rule is reported as not judged.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from instep.sinks.facts import Facts
from instep.vet import clients
from instep.vet.snapshot import (
    BrokerFacts,
    ClusterFacts,
    EffectiveSetting,
    PartitionProgress,
    PipelineFacts,
    Snapshot,
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


@dataclass(frozen=True, slots=True)
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
    check: Callable[[RuleContext], Iterator[Violation]]


Fact = TypeVar("Fact")

RULES: dict[str, Rule] = {}  # filled when the modules of the rules are imported
Check = Callable[["RuleContext"], Iterator[Violation]]


def rule(
    id_: str,
    threat: Risk,
    *,
    when: str,
    what: str,
    consequence: str,
    remedy: str,
    acceptable_when: str,
) -> Callable[[Check], Check]:
    """Declare a rule. The first word of its id is the part that it checks."""

    def declare(check: Check) -> Check:
        part = id_.partition("_")[0].lower()
        RULES[id_] = Rule(
            id_, part, threat, when, what, consequence, remedy, acceptable_when, check
        )
        return check

    return declare


class RuleContext:
    """One pipeline with its topic, publishers and database, as the rules see it."""

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self.snapshot = snapshot
        self.name = name
        self.pipeline: PipelineFacts = snapshot.pipelines[name]
        self.cluster: ClusterFacts = snapshot.cluster

    # --- the declared guarantee -------------------------------------------------------------------

    @property
    def must_not_lose(self) -> bool:
        return self.pipeline.guarantee != "at-most-once"

    @property
    def must_not_repeat(self) -> bool:
        return self.pipeline.guarantee == "exactly-once"

    @property
    def guarded(self) -> bool:
        """Return whether an order value, not the log position, decides which event is newer."""
        return self.pipeline.order is not None

    @property
    def deletes_rows(self) -> bool:
        """Return whether a record without a value deletes the document's row."""
        return self.pipeline.deletes == "row"

    # --- the topic --------------------------------------------------------------------------------

    @property
    def topic_exists(self) -> bool:
        return self.snapshot.topics.get(self.pipeline.topic) is not None

    @property
    def topic(self) -> TopicFacts:
        found = self.snapshot.topics.get(self.pipeline.topic)
        if found is None:
            raise NotKnown(f"topic {self.pipeline.topic} does not exist")
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

    # --- who publishes ----------------------------------------------------------------------------

    @cached_property
    def publishers(self) -> Mapping[str, clients.Effective]:
        return {
            name: clients.effective(one.client, one.config)
            for name, one in self.snapshot.publishers.items()
            if one.topic == self.pipeline.topic
        }

    # --- the pipeline and its database ------------------------------------------------------------

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

    def known(self, value: Fact | None, what: str) -> Fact:
        if value is None:
            reason = self.snapshot.unknown.get(what)
            raise NotKnown(f"{what}: {reason}" if reason else what)
        return value
