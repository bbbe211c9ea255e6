"""Groups whose members come and go, by each way to share partitions: assignors of the clients', and those of the brokers'."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from instep import errors
from instep.kafka.admin import consumer_groups
from instep_lab.clients.consuming import Consuming, Counted, Library
from instep_lab.clients.process import ClientProcess
from instep_lab.trial import Scenario, Trial

STABLE = "Stable"
PATIENCE_S = 120.0
SHORT_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Sort:
    """A way to share partitions among members: an assignor of the clients', or one of the brokers'."""

    name: str
    config: dict[str, Any]
    library: Library = Library.LIBRDKAFKA


RANGE = Sort("range", {"partition.assignment.strategy": "range"})
ROUNDROBIN = Sort("roundrobin", {"partition.assignment.strategy": "roundrobin"})
STICKY = Sort("sticky", {"partition_assignment_strategy": "sticky"}, Library.KAFKA_PYTHON)
COOPERATIVE = Sort("cooperative-sticky", {"partition.assignment.strategy": "cooperative-sticky"})
UNIFORM = Sort(
    "consumer protocol, uniform", {"group.protocol": "consumer", "group.remote.assignor": "uniform"}
)
BROKERS_RANGE = Sort(
    "consumer protocol, range", {"group.protocol": "consumer", "group.remote.assignor": "range"}
)


def known(trial: Trial, *sorts: Sort) -> list[Sort]:
    """Those that the cluster knows."""
    return [
        sort
        for sort in sorts
        if sort.config.get("group.protocol", "classic") in trial.ground.protocols
    ]


class Team:
    """The members of one group, each in a thread, who can come and go; or in a process, to be killed. With `slow_ms` the first
    in a thread works so long on each batch."""

    def __init__(
        self,
        trial: Trial,
        case: Scenario,
        topic: str,
        sort: Sort,
        slow_ms: float = 0.0,
        **plan: Any,
    ) -> None:
        self.sort, self.group, self.slow, self._slow_ms = sort, trial.group(), "", slow_ms
        self.killable: ClientProcess | None = None
        self._trial, self._case, self._topic, self._plan = trial, case, topic, plan
        self._there: list[tuple[Counted, threading.Event, contextlib.ExitStack]] = []
        self._named = 0
        trial.callback(self.close)

    @property
    def size(self) -> int:
        return len(self._there) + (self.killable is not None)

    @property
    def members(self) -> list[Counted]:
        return [counted for counted, *_ in self._there]

    def grow(self, size: int) -> None:
        while self.size < size:
            stack = contextlib.ExitStack()
            plan = self._planned(0.0 if self._there else self._slow_ms)
            self.slow = self.slow or (plan.member if plan.batch_ms else "")
            counted, stop = stack.enter_context(self._case.beside(plan))
            self._there.append((counted, stop, stack))

    def leave(self, number: int = -1) -> None:
        """One leaves, by closing its client: the one that came last, if nobody else is meant."""
        self._there.pop(number)[-1].close()

    def add_killable(self) -> None:
        self.killable = self._case.start(self._planned())

    def kill(self) -> None:
        if self.killable is not None:
            self.killable.kill()
            self._trial.note(f"{self.sort.name}: kill -9 of a member (pid {self.killable.pid})")
            self.killable = None

    def close(self) -> None:
        for _, stop, _ in self._there:
            stop.set()
        while self._there:
            self.leave()

    def _planned(self, batch_ms: float = 0.0) -> Consuming:
        self._named += 1
        config, kept = dict(self.sort.config), dict(self._plan)
        config |= _sessions(self._trial, self.sort) | kept.pop("config", {})
        return Consuming(
            topic=self._topic,
            group=self.group,
            member=f"{self.sort.name} {self._named}",
            config=config,
            library=self.sort.library,
            batch_ms=batch_ms,
            **kept,
        )


def _sessions(trial: Trial, sort: Sort) -> dict[str, Any]:
    """Short ones on brokers of our own, where a member that died is to be missed soon. The new protocol's are the brokers'."""
    if trial.ground.own is None or sort.config.get("group.protocol") == "consumer":
        return {}
    given = {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 500}
    return {_spelt(sort, name): value for name, value in given.items()}


def _spelt(sort: Sort, name: str) -> str:
    return name.replace(".", "_") if sort.library is Library.KAFKA_PYTHON else name


def at_once(teams: Sequence[Team], do: Callable[[Team], object]) -> None:
    with concurrent.futures.ThreadPoolExecutor(len(teams)) as pool:
        list(pool.map(do, teams))


def settle(
    trial: Trial, teams: Sequence[Team], partitions: int, patience_s: float = PATIENCE_S
) -> None:
    """Until every group has all of its members, and they hold everything, as the brokers see it."""

    def reached() -> bool:
        if any(
            sum(len(one.held) for one in team.members) != partitions
            for team in teams
            if team.killable is None
        ):
            return False
        found = consumer_groups.described(trial.ground.cluster, [team.group for team in teams])
        return all(_whole(found[team.group], team.size, partitions) for team in teams)

    trial.wait(
        reached,
        f"{', '.join(team.sort.name for team in teams)} to settle on {partitions} partitions",
        patience_s,
    )


def settled(trial: Trial, teams: Sequence[Team], partitions: int) -> list[Team]:
    """Those that settle. kafka-python's members at times never come back to their group: it is left out then."""
    settle(trial, [team for team in teams if team.sort.library is Library.LIBRDKAFKA], partitions)
    left = []
    for team in teams:
        try:
            settle(trial, [team], partitions, SHORT_PATIENCE_S)
            left.append(team)
        except errors.InstepError as failure:
            trial.note(f"left out: {failure}")
            team.close()
    return left


def _whole(found: consumer_groups.Group, size: int, partitions: int) -> bool:
    held = [len(member.assigned) for member in found.members]
    idle_allowed = max(size - partitions, 0)
    return (
        found.state == STABLE
        and len(held) == size
        and sum(held) == partitions
        and held.count(0) == idle_allowed
    )
