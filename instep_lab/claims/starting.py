"""Groups that start to read: with which client, from where, and what they read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from instep.kafka import groups, offsets
from instep_lab import history
from instep_lab.clients.consuming import Consuming
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind
from instep_lab.trial import Scenario, Trial

PARTITIONS = 3
KEYS = 30
HOURS_AGO = (48, 36, 24, 12, 1)
HOUR_MS = 3_600_000
FOREVER = "-1"
AFTER_ERROR_S = 2.0
NO_OFFSET = "_AUTO_OFFSET_RESET"
ABOUT_OFFSETS = {
    NO_OFFSET,
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
    "NoOffsetForPartitionException",
    "OffsetOutOfRangeException",
}
BOTH = (Library.JAVA, Library.LIBRDKAFKA)
# an idempotent publisher requests its id first: half a second for each of the many small sends
AT_ONCE = {"enable.idempotence": False}

Places = dict[int, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one consumer did: its first offset and record count in each partition, and errors."""

    began: Places
    read: Places
    errors: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.read.values())


def send_backlog(trial: Trial, scenario: Scenario, topic: str, count: int) -> None:
    """Publish records of the last two days, numbered from 0 within each key."""
    now_ms, each = int(time.time() * 1000), count // len(HOURS_AGO)
    for slice_, hours in enumerate(HOURS_AGO):
        old = now_ms - hours * HOUR_MS
        plan = Publishing(
            topic=topic,
            count=each,
            keys=KEYS,
            seed=f"{trial.seed}-{slice_}",
            first=slice_ * each,
            timestamp_ms=old,
            config=AT_ONCE,
        )
        scenario.publish(plan)


def send_more(trial: Trial, scenario: Scenario, topic: str, count: int, first: int) -> None:
    plan = Publishing(
        topic=topic,
        count=count,
        keys=KEYS,
        seed=f"{trial.seed}-{first}",
        first=first,
        config=AT_ONCE,
    )
    scenario.publish(plan)


def log_ends(trial: Trial, topic: str) -> Places:
    return offsets.latest(trial.cluster.kafka, topic, range(PARTITIONS))


def log_starts(trial: Trial, topic: str) -> Places:
    return offsets.earliest(trial.cluster.kafka, topic, range(PARTITIONS))


def log_middle(trial: Trial, topic: str) -> Places:
    return {partition: end // 2 for partition, end in log_ends(trial, topic).items()}


def commit_at(trial: Trial, topic: str, group: str, places: Mapping[int, int]) -> None:
    groups.mirror(trial.cluster.kafka, group, topic, places)


def resetting(reset: str | None, protocol: str = "classic") -> dict[str, Any]:
    return {"auto.offset.reset": reset, "group.protocol": protocol}


@dataclass(frozen=True, slots=True)
class StartClient:
    """A client library with a rebalance protocol."""

    library: Library
    protocol: str = "classic"

    def __str__(self) -> str:
        return f"{self.library}, {self.protocol} protocol"

    @property
    def no_reset(self) -> str:
        """The value of auto.offset.reset that asks for an error, as this client spells it."""
        return "error" if self.library is Library.LIBRDKAFKA else "none"

    def plan(self, trial: Trial, topic: str, reset: str | None, name: str) -> Consuming:
        """Return a plan for a new group."""
        config = resetting(reset, self.protocol)
        if self.library is Library.KAFKA_PYTHON:
            config = {"auto_offset_reset": reset}
        return new_group(trial, topic, config, name, library=self.library)


def all_clients(trial: Trial) -> list[StartClient]:
    return [
        *(StartClient(Library.LIBRDKAFKA, protocol) for protocol in trial.cluster.protocols),
        StartClient(Library.JAVA),
        StartClient(Library.KAFKA_PYTHON),
    ]


def read_all(
    trial: Trial, scenario: Scenario, plan: Consuming, new: int = 0, first: int = 0
) -> Reading:
    """Read to the end or to an error; then send more, numbered from `first`, and read that too."""
    parts: Sequence[int] = range(PARTITIONS)
    if plan.assigned is not None:
        parts = plan.assigned
    with scenario.background(plan) as (counted, _):
        for sends in dict.fromkeys((0, new)):
            if sends:
                send_more(trial, scenario, plan.topic, sends, first)
            ends = log_ends(trial, plan.topic)

            first_error: list[float] = []

            def reached(ends: Places = ends, first_error: list[float] = first_error) -> bool:
                at_end = sum(counted.ends.get(part) == ends[part] for part in parts)
                missing = len(counted.errors)
                if plan.library is Library.LIBRDKAFKA:
                    missing = counted.errors.count(NO_OFFSET)
                elif counted.errors:
                    # One that raises may name some partitions only, and not raise again.
                    first_error.append(time.monotonic())
                    if time.monotonic() - first_error[0] > AFTER_ERROR_S:
                        return True
                return at_end + missing >= len(parts) or bool(
                    counted.errors and not plan.continue_after_error
                )

            trial.wait(reached, f"{plan.member} to read to the end")
        began, read = dict(counted.ends), dict.fromkeys(parts, 0)
    found = [
        one
        for one in history.of(scenario.history(), OperationKind.READ, group=plan.group)
        if one.member == plan.member
    ]
    # Backwards, so that the first record of each partition is assigned last.
    for one in reversed(found):
        began[one.partition or 0] = one.offset or 0
        read[one.partition or 0] += 1
    return Reading(began, read, tuple(counted.errors))


def is_about_offsets(found: Reading) -> bool:
    """Return whether there were errors, all of them about a missing start offset."""
    return bool(found.errors) and ABOUT_OFFSETS.issuperset(found.errors)


def numbers_read(scenario: Scenario, group: str) -> list[int]:
    return [
        one.number or 0 for one in history.of(scenario.history(), OperationKind.READ, group=group)
    ]


def new_group(
    trial: Trial, topic: str, config: dict[str, Any], name: str, **rest: Any
) -> Consuming:
    return Consuming(topic=topic, group=trial.group(), member=name, config=config, **rest)


def changed(plan: Consuming, **options: Any) -> Consuming:
    """Return the plan with other options."""
    return msgspec.structs.replace(plan, **options)


def shown(places: Mapping[int, int]) -> str:
    return ", ".join(str(offset) for _, offset in sorted(places.items())) or "nowhere"


def read_each(
    trial: Trial, scenario: Scenario, plans: Mapping[StartClient, Sequence[Consuming]]
) -> dict[StartClient, list[Reading]]:
    """Read with all clients at the same time, the plans of each client one after another."""

    def read_one_by_one(each: Sequence[Consuming]) -> list[Reading]:
        return [read_all(trial, scenario, plan) for plan in each]

    found = trial.together(
        {str(one): partial(read_one_by_one, each) for one, each in plans.items()}
    )
    return {client: found[str(client)] for client in plans}
