"""Consumer groups whose members join and leave, with assignors of the clients or the brokers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from instep import errors
from instep.kafka.admin import consumer_groups
from instep_lab.clients import admin
from instep_lab.clients.consuming import ConsumerProgress, Consuming
from instep_lab.clients.library import Library
from instep_lab.clients.process import ClientProcess
from instep_lab.trial import Scenario, Trial

STABLE = "Stable"
SESSION_MS, SHORT_SESSION_MS = 45_000, 2_000  # the first is the default
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Assignor:
    """A strategy that assigns partitions to members, run by the clients or by the brokers."""

    name: str
    config: dict[str, Any]
    library: Library = Library.LIBRDKAFKA


RANGE = Assignor("range", {"partition.assignment.strategy": "range"})
ROUNDROBIN = Assignor("roundrobin", {"partition.assignment.strategy": "roundrobin"})
STICKY = Assignor("sticky", {"partition_assignment_strategy": "sticky"}, Library.KAFKA_PYTHON)
COOPERATIVE = Assignor(
    "cooperative-sticky", {"partition.assignment.strategy": "cooperative-sticky"}
)
UNIFORM = Assignor(
    "consumer protocol, uniform", {"group.protocol": "consumer", "group.remote.assignor": "uniform"}
)
BROKERS_RANGE = Assignor(
    "consumer protocol, range", {"group.protocol": "consumer", "group.remote.assignor": "range"}
)
JAVA_ASSIGNORS = "org.apache.kafka.clients.consumer."
JAVA_RANGE = Assignor(
    "Java, range",
    {"partition.assignment.strategy": f"{JAVA_ASSIGNORS}RangeAssignor"},
    Library.JAVA,
)
JAVA_COOPERATIVE = Assignor(
    "Java, cooperative-sticky",
    {"partition.assignment.strategy": f"{JAVA_ASSIGNORS}CooperativeStickyAssignor"},
    Library.JAVA,
)
JAVA_UNIFORM = Assignor("Java, consumer protocol, uniform", UNIFORM.config, Library.JAVA)


def supported(trial: Trial, *assignors: Assignor) -> list[Assignor]:
    """Return the assignors that the cluster supports."""
    return [
        assignor
        for assignor in assignors
        if assignor.config.get("group.protocol", "classic") in trial.cluster.protocols
    ]


class Team:
    """The members of one group, which join and leave.

    Members run in threads; one that is to be killed runs in a process. With `slow_ms` the first
    member in a thread works that long on each batch. With `expires`, dead members expire soon;
    otherwise a busy machine must not end a session.
    """

    def __init__(
        self,
        trial: Trial,
        scenario: Scenario,
        topic: str,
        assignor: Assignor,
        slow_ms: float = 0.0,
        group: str | None = None,
        *,
        expires: bool = False,
        **plan: Any,
    ) -> None:
        self.assignor, self.group, self.slow, self._slow_ms = (
            assignor,
            group or trial.group(),
            "",
            slow_ms,
        )
        self.killable: ClientProcess | None = None
        self._trial, self._scenario, self._topic, self._plan = trial, scenario, topic, plan
        self._present: list[tuple[ConsumerProgress, threading.Event, contextlib.ExitStack]] = []
        self._count = 0
        self._session_ms = SHORT_SESSION_MS if expires else SESSION_MS
        if trial.cluster.own and self._by_brokers and not expires:
            set_session(trial, self.group, SESSION_MS)
        trial.callback(self.close)

    @property
    def _by_brokers(self) -> bool:
        """Whether the brokers define the session timeout of the group, and not its members."""
        return self.assignor.config.get("group.protocol") == "consumer"

    @property
    def size(self) -> int:
        return len(self._present) + (self.killable is not None)

    @property
    def members(self) -> list[ConsumerProgress]:
        return [progress for progress, *_ in self._present]

    def grow(self, size: int) -> None:
        while self.size < size:
            stack = contextlib.ExitStack()
            plan = self._new_plan(0.0 if self._present else self._slow_ms)
            self.slow = self.slow or (plan.member if plan.batch_ms else "")
            progress, stop = stack.enter_context(self._scenario.background(plan))
            self._present.append((progress, stop, stack))

    def leave(self, number: int = -1) -> None:
        """Let a member leave by closing its client: the newest by default."""
        self._present.pop(number)[-1].close()

    def add_killable(self) -> None:
        self.killable = self._scenario.start(self._new_plan())

    def kill(self) -> None:
        if self.killable is not None:
            self.killable.kill()
            self._trial.note(f"{self.assignor.name}: kill -9 of a member (pid {self.killable.pid})")
            self.killable = None

    def refuse_ended(self) -> None:
        """Raise if the member in a process of its own has ended without being killed."""
        if self.killable is not None and (status := self.killable.status) is not None:
            raise errors.InstepError(
                f"a member of {self.assignor.name} ended with {status}:\n{self.killable.output()}"
            )

    def close_first(self) -> None:
        """Close the members before their processes are ended, should the trial fail."""
        self._trial.callback(self.close)

    def close(self) -> None:
        # Stop all of them first, so that nobody works through another rebalance.
        for _, stop, _ in self._present:
            stop.set()
        while self._present:
            self.leave()

    def _new_plan(self, batch_ms: float = 0.0) -> Consuming:
        self._count += 1
        config, options = dict(self.assignor.config), dict(self._plan)
        config |= self._sessions() | options.pop("config", {})
        return Consuming(
            topic=self._topic,
            group=self.group,
            member=f"{self.assignor.name} {self._count}",
            config=config,
            library=self.assignor.library,
            batch_ms=batch_ms,
            **options,
        )

    def _sessions(self) -> dict[str, Any]:
        """Return the timeouts that members set; those of a user's cluster are the defaults."""
        if self._trial.cluster.own is None or self._by_brokers:
            return {}
        timeouts = {"session.timeout.ms": self._session_ms, "heartbeat.interval.ms": 500}
        return {_spell(self.assignor, name): value for name, value in timeouts.items()}


def _spell(assignor: Assignor, name: str) -> str:
    return name.replace(".", "_") if assignor.library is Library.KAFKA_PYTHON else name


def set_session(trial: Trial, group: str, session_ms: int) -> None:
    """Set the session timeout of a group with the consumer protocol, for later members."""
    admin.set_session(trial.cluster.kafka, trial.cluster.bootstrap, group, session_ms)


def remove_static(trial: Trial, group: str, instances: Sequence[str]) -> None:
    """Remove members with a group.instance.id, which stay in the group after their clients closed.

    The brokers do not remove members of the consumer protocol by request: wait for their sessions.
    """
    admin.remove_static(trial.cluster.kafka, trial.cluster.bootstrap, group, instances)
    trial.wait(
        lambda: not consumer_groups.members(trial.cluster.kafka, group),
        f"the static members of group {group!r} to be gone",
    )


def at_once(teams: Sequence[Team], do: Callable[[Team], object]) -> None:
    with concurrent.futures.ThreadPoolExecutor(len(teams)) as pool:
        # list() raises the first error of a thread.
        list(pool.map(do, teams))


def settle(trial: Trial, teams: Sequence[Team], partitions: int) -> None:
    """Wait until every group has all its members and these hold all partitions.

    Both the members and the brokers must say so.
    """

    def reached() -> bool:
        for team in teams:
            team.refuse_ended()
        # The brokers are asked only when the members have found their coordinator: librdkafka's
        # admin client may crash if it has to look for one that is not ready.
        if not all(_seems_complete(team, partitions) for team in teams):
            return False
        try:
            groups = consumer_groups.described(trial.cluster.kafka, [team.group for team in teams])
        except errors.InstepError as failure:
            # A broker that has just started may refuse once.
            trial.note(f"cannot describe the groups: {failure.what}")
            return False
        return all(
            _is_complete(groups[team.group], team.size, partitions)
            and _agree(team, groups[team.group])
            for team in teams
        )

    trial.wait(
        reached,
        f"{', '.join(team.assignor.name for team in teams)} to settle on {partitions} partitions",
        PATIENCE_S,
    )
    for team in teams:
        team.close_first()


def _seems_complete(team: Team, partitions: int) -> bool:
    held = [len(one.held) for one in team.members]
    if team.killable is None:
        return sum(held) == partitions
    # The progress of a member in another process is not visible here.
    return 0 < sum(held) <= partitions


def _agree(team: Team, group: consumer_groups.Group) -> bool:
    """Return whether the members hold what the brokers have assigned to them.

    The brokers may have shared out the partitions again when the members do not know it yet.
    """
    if team.killable is not None:
        return True
    held = sorted(len(one.held) for one in team.members)
    return held == sorted(len(member.assigned) for member in group.members)


def _is_complete(group: consumer_groups.Group, size: int, partitions: int) -> bool:
    counts = [len(member.assigned) for member in group.members]
    idle_allowed = max(size - partitions, 0)
    return (
        group.state == STABLE
        and len(counts) == size
        and sum(counts) == partitions
        and counts.count(0) == idle_allowed
    )
