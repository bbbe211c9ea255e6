"""Claims about groups: who reads what, and what happens when members or partitions change."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from instep import errors
from instep.document.showing import counted
from instep.kafka import topics
from instep.report.tables import Cell
from instep_lab import checkers, history, members
from instep_lab.claim import experiment
from instep_lab.clients.consuming import CommitMode, Consuming, Library
from instep_lab.clients.publishing import Publishing
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import Scenario, Trial, spread

KEYS = 30
QUIET_S = 0.5
STATIC_SESSION_MS = 10_000  # longer than a restart takes


@experiment(
    "group-1",
    statement=(
        "Within a group, each record goes to only one member; different groups each get every "
        "record"
    ),
    method=(
        "Read 3 partitions with a group of one member and with a group of three at the same "
        "time. Count what each group misses and what its members read twice. Then let one member "
        "take over from another that committed nothing."
    ),
    advice=(
        "Use one group per application, with as many members as needed. Make the work safe to "
        "repeat: a record comes again if its reader dies before the commit."
    ),
    rules=("PIPELINE_GROUP_IN_USE",),
)
def delivery_within_and_across_groups(trial: Trial) -> None:
    count = trial.scaled(900, 30_000)
    for assignor in members.supported(trial, members.RANGE, members.UNIFORM):
        scenario = trial.scenario(assignor.name)
        topic = trial.topic(3)
        sizes = (1, 3)
        teams = [members.Team(trial, scenario, topic, assignor) for _ in sizes]
        for team, size in zip(teams, sizes, strict=True):
            team.grow(size)
        members.settle(trial, teams, 3)
        scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
        trial.wait(partial(_all_read, teams, [[0]] * len(teams), count), "the groups to read")
        members.at_once(teams, members.Team.close)
        operations = scenario.history()
        for team, size in zip(teams, sizes, strict=True):
            named = f"{assignor.name}, {counted(size, 'member')}"
            missing = checkers.lost(operations, team.group, by=OperationKind.READ)
            twice = checkers.repeated(operations, team.group, by=OperationKind.READ)
            shares = sorted(checkers.shares(operations, team.group).values(), reverse=True)
            trial.statement(
                f"{named}: the group gets every record",
                not missing,
                f"{missing.count} of {missing.of:,} missing",
            )
            trial.statement(
                f"{named}: each record goes to one member",
                not twice,
                f"{twice.count} read twice; {shares} records each",
            )
            trial.control(
                f"{named}: every member read", len(shares) == size, f"{len(shares)} of {size}"
            )
    scenario = trial.scenario("taken over before a commit")
    topic, group = trial.topic(3), trial.group()
    scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
    for member in ("first", "second"):
        scenario.consume(
            Consuming(
                topic=topic,
                group=group,
                member=member,
                count=count,
                idle_s=20,
                commit=CommitMode.NEVER,
            )
        )
    repeated = checkers.repeated(scenario.history(), group, by=OperationKind.READ)
    trial.limit(
        "records that were read but not committed also go to the next member",
        bool(repeated),
        f"{repeated.count:,} of {repeated.of:,}",
    )


def _read(team: members.Team) -> int:
    return sum(one.read for one in team.members)


@experiment(
    "group-2",
    statement="Members beyond the number of partitions stay idle",
    method=(
        "Let 5 members read 3 partitions with each protocol and count which of them read. Let an "
        "active member leave. Then let 5 members of a share group read the same partitions."
    ),
    advice=(
        "Create at least as many partitions as members you will ever want, and keep a spare "
        "member if fast failover matters. In a share group (Kafka 4.2) members may outnumber "
        "partitions, at the price of order."
    ),
)
def idle_members(trial: Trial) -> None:
    size, partitions, count = 5, 3, trial.scaled(600, 6_000)
    for assignor in members.supported(trial, members.RANGE, members.COOPERATIVE, members.UNIFORM):
        scenario = trial.scenario(assignor.name)
        topic = trial.topic(partitions)
        team = members.Team(trial, scenario, topic, assignor)
        team.grow(size)
        members.settle(trial, [team], partitions)
        scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
        trial.wait(partial(_all_read, [team], [[0]], count), "the group to read")
        read = sorted((one.read for one in team.members), reverse=True)
        trial.statement(
            f"{assignor.name}: two of five read nothing",
            read.count(0) == size - partitions,
            f"{read} records each",
        )
        busy = next(number for number, one in enumerate(team.members) if one.read)
        began = time.monotonic()
        team.leave(busy)
        members.settle(trial, [team], partitions)
        took = time.monotonic() - began
        woken = sum(1 for one in team.members if one.held and not one.read)
        trial.control(
            f"{assignor.name}: an idle member takes over when an active one leaves",
            woken == 1,
            f"{woken}, after {took:.1f} s",
        )
        team.close()
    if trial.cluster.features.get("share.version", 0) >= 1:
        _share(trial, size, partitions)


def _share(trial: Trial, size: int, partitions: int) -> None:
    """Test a share group, whose members need no partitions of their own."""
    scenario, topic, group = trial.scenario("share group"), trial.topic(partitions), trial.group()
    steady = Publishing(topic=topic, count=100_000, keys=KEYS, seed=trial.seed, per_s=500)
    with contextlib.ExitStack() as stack:
        consumers = [
            stack.enter_context(
                scenario.background(
                    Consuming(
                        topic=topic, group=group, member=f"share {number}", library=Library.SHARE
                    )
                )
            )[0]
            for number in range(size)
        ]
        stack.enter_context(scenario.background(steady))
        # If a member reads nothing, that is a result, not a failure of the trial.
        with contextlib.suppress(errors.InstepError):
            trial.wait(
                lambda: all(one.read >= 20 for one in consumers),
                "every member of a share group to read",
                20,
            )
    read = sorted((one.read for one in consumers), reverse=True)
    trial.limit(
        "in a share group, all five members read from three partitions",
        all(read) or None,
        f"{read} records each",
    )


@experiment(
    "group-3",
    statement=(
        "If the number of partitions is a multiple of the number of members, the work is shared "
        "evenly"
    ),
    method=(
        "Let groups on 24 partitions grow from 2 to 8 members, one group for each assignor and "
        "protocol, and compare the partitions and records of the members. Then test several "
        "topics at once, and few keys."
    ),
    advice=(
        "Choose a number of partitions with many divisors, such as 12 or 24, and many keys. Do "
        "not use the range assignor with several topics."
    ),
)
def even_shares(trial: Trial) -> None:
    partitions, count = 24, trial.scaled(1_200, 12_000)
    scenario, topic = trial.scenario("24 partitions"), trial.topic(24)
    assignors = members.supported(
        trial,
        members.RANGE,
        members.ROUNDROBIN,
        members.STICKY,
        members.COOPERATIVE,
        members.UNIFORM,
        members.BROKERS_RANGE,
    )
    teams = [members.Team(trial, scenario, topic, assignor) for assignor in assignors]
    rows: list[list[Cell]] = []
    gaps: dict[str, list[tuple[Cell, float | None]]] = {assignor.name: [] for assignor in assignors}
    for size in (2, 3, 4, 5, 6, 8):
        for team in teams:
            team.grow(size)
        teams = members.settled_teams(trial, teams, partitions)
        before = [[one.read for one in team.members] for team in teams]
        _send(trial, scenario, topic, count, size)
        trial.wait(partial(_all_read, teams, before, count), "the groups to read")
        uneven = []
        for team, earlier in zip(teams, before, strict=True):
            counts = sorted(len(one.held) for one in team.members)
            read = sorted(one.read - had for one, had in zip(team.members, earlier, strict=True))
            rows.append(
                [
                    team.assignor.name,
                    size,
                    f"{counts[0]} to {counts[-1]}",
                    f"{read[0]} to {read[-1]}",
                ]
            )
            gaps[team.assignor.name].append((str(size), counts[-1] / counts[0]))
            if counts[0] != counts[-1]:
                uneven.append(f"{team.assignor.name} {counts[0]} to {counts[-1]}")
        if partitions % size:
            trial.control(
                f"{size} members cannot share the partitions evenly",
                len(uneven) == len(teams),
                "; ".join(uneven),
            )
        else:
            names = [team.assignor.name for team in teams]
            trial.statement(
                f"{size} members hold the same number of partitions",
                not uneven,
                "; ".join(uneven) or f"{partitions // size} each with {', '.join(names)}",
            )
    trial.table(
        "Partitions and records of each member",
        ["assignor", "members", "partitions", f"records of {count:,}"],
        rows,
    )
    trial.plot(
        "Ratio of the most to the fewest partitions of a member",
        "members of 24 partitions",
        "ratio",
        gaps,
    )
    _few_keys(trial, scenario, topic, teams)
    members.at_once(teams, members.Team.close)
    _several_topics(trial)


def _send(trial: Trial, scenario: Scenario, topic: str, count: int, part: int) -> None:
    """Send the same number of records to all partitions."""
    scenario.publish(
        Publishing(
            topic=topic, count=count, keys=24, by_number=24, seed=trial.seed, first=part * count
        )
    )


def _all_read(teams: Sequence[members.Team], before: Sequence[Sequence[int]], count: int) -> bool:
    return all(
        _read(team) - sum(earlier) >= count for team, earlier in zip(teams, before, strict=True)
    )


def _few_keys(trial: Trial, scenario: Scenario, topic: str, teams: Sequence[members.Team]) -> None:
    """Show that equal partitions are not equal work if few keys have most of the records."""
    count = trial.scaled(600, 6_000)
    before = [[one.read for one in team.members] for team in teams]
    # The numbers must not repeat those of earlier records with these keys.
    scenario.publish(Publishing(topic=topic, count=count, keys=3, seed=trial.seed, first=1_000_000))
    trial.wait(lambda: _all_read(teams, before, count), "the groups to read")
    size = teams[0].size
    shares, idle = [], []
    for team, earlier in zip(teams, before, strict=True):
        read = [one.read - had for one, had in zip(team.members, earlier, strict=True)]
        shares.append(100 * max(read) / count)
        idle.append(float(read.count(0)))
    trial.limit(
        "with three keys, the records are not shared evenly",
        min(shares) > 200 / size,
        f"the busiest of {size} members read {spread(shares, ' %', 0)},"
        f" and {spread(idle, digits=0)} read nothing",
    )


def _several_topics(trial: Trial) -> None:
    """Test several topics: range assigns each topic separately, to the first members first."""
    scenario = trial.scenario("4 topics of 3 partitions")
    names = [trial.topic(3) for _ in range(4)]
    teams = [
        members.Team(trial, scenario, names[0], assignor, also=names[1:])
        for assignor in members.supported(
            trial, members.RANGE, members.ROUNDROBIN, members.COOPERATIVE, members.UNIFORM
        )
    ]
    for team in teams:
        team.grow(2)
    members.settle(trial, teams, 12)
    counts = {team.assignor.name: sorted(len(one.held) for one in team.members) for team in teams}
    members.at_once(teams, members.Team.close)
    rows: list[list[Cell]] = [[name, *numbers] for name, numbers in counts.items()]
    trial.table(
        "Partitions of 4 topics with 3 each, by 2 members",
        ["assignor", "one member", "the other"],
        rows,
    )
    uneven = [name for name, (least, most) in counts.items() if least != most]
    trial.limit(
        f"{' and '.join(uneven) or 'no assignor'} is uneven over several topics",
        bool(uneven),
        "; ".join(f"{name} {most} and {least}" for name, (least, most) in counts.items()),
    )


# Commit every second and detect new partitions soon; the defaults are 5 seconds and 5 minutes.
WATCHFUL = {"auto.commit.interval.ms": 1_000, "topic.metadata.refresh.interval.ms": 300}
SLOW_MS = 800.0
NOTHING = "nothing happens"
JOINS, LEAVES, DIES, GROWS = (
    "a member joins",
    "a member leaves",
    "a member is killed",
    "partitions are added",
)


@dataclass(frozen=True, slots=True)
class EventEffect:
    """The effect of one event on one group.

    `changed` counts the members whose partitions changed, `repeated` the records that were read
    again. The times are the longest pauses, in seconds, of a partition that stayed with a fast
    member and of one that moved.
    """

    changed: int
    repeated: int
    stayed_s: float | None
    moved_s: float | None


@experiment(
    "group-4",
    statement="Adding or removing members or partitions triggers a rebalance",
    method=(
        "Under a steady load, a member joins, one leaves, one is killed with -9, and partitions "
        "are added, in one group for each rebalance protocol, with one member that works 0.8 s "
        "on each batch. Record which partitions change owner, what is read again, and how long "
        "partitions are paused. Then restart a member with a group.instance.id."
    ),
    advice=(
        "Use cooperative-sticky or the consumer protocol, so that only the partitions that move "
        "are paused. Give members a group.instance.id if restarts are short. Commit often: what "
        "a killed member had not committed is read again."
    ),
    rules=("PIPELINE_GROUP_IN_USE",),
)
def rebalance_triggers(trial: Trial) -> None:
    assignors = members.supported(trial, members.RANGE, members.COOPERATIVE, members.UNIFORM)
    effects: dict[tuple[str, str], list[EventEffect]] = defaultdict(list)
    for number in trial.rounds(2, 6):
        for (event, assignor), effect in _round(trial, assignors, number).items():
            effects[event, assignor].append(effect)
    events = list(dict.fromkeys(event for event, _ in effects))
    rows: list[list[Cell]] = []
    for event, assignor in effects:
        found = effects[event, assignor]
        changed, repeated = (
            [float(getattr(effect, name)) for effect in found] for name in ("changed", "repeated")
        )
        stayed, moved = _seconds(found, "stayed_s"), _seconds(found, "moved_s")
        rows.append(
            [
                event,
                assignor,
                spread(changed, digits=0),
                spread(repeated, digits=0),
                spread(stayed, " s"),
                spread(moved, " s"),
            ]
        )
    sessions = ""
    if trial.cluster.own:
        sessions = (
            "; session timeouts of 2 s (3 s with the consumer protocol)"
            " instead of the default of 45 s"
        )
    trial.table(
        f"Effect of an event on a group{sessions}",
        [
            "event",
            "assignor",
            "members changed",
            "records read again",
            "pause if the partition stays",
            "pause if the partition moves",
        ],
        rows,
    )
    for name, title in (
        ("stayed_s", "that stays with its member"),
        ("moved_s", "that moves to another member"),
    ):
        trial.plot(
            f"Pause of a partition {title}",
            "event",
            "seconds",
            {
                assignor.name: [
                    (event, _median(_seconds(effects[event, assignor.name], name)))
                    for event in events
                ]
                for assignor in assignors
            },
        )
    for event in events:
        quiet = [
            assignor.name
            for assignor in assignors
            if not all(effect.changed for effect in effects[event, assignor.name])
        ]
        each = [
            f"{assignor.name}: {_describe(effects[event, assignor.name])}" for assignor in assignors
        ]
        trial.statement(f"{event}: the group rebalances", not quiet, "; ".join(each))
    _restart_static(trial)


def _describe(effects: Sequence[EventEffect]) -> str:
    changed, stayed = [float(effect.changed) for effect in effects], _seconds(effects, "stayed_s")
    return (
        f"{spread(changed, digits=0)} members changed,"
        f" partitions that stayed paused for {spread(stayed, ' s')}"
    )


def _median(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return statistics.median(values)


def _seconds(effects: Sequence[EventEffect], name: str) -> list[float]:
    return [value for effect in effects if (value := getattr(effect, name)) is not None]


def _round(
    trial: Trial, assignors: Sequence[members.Assignor], number: int
) -> dict[tuple[str, str], EventEffect]:
    """Run all events one after another, for all groups at the same time."""
    before, after = 6, 8
    scenario, topic = trial.scenario(f"round {number + 1}"), trial.topic(before)
    teams = [
        members.Team(
            trial,
            scenario,
            topic,
            assignor,
            SLOW_MS,
            commit=CommitMode.AUTO,
            batch=1_000,
            config=WATCHFUL,
        )
        for assignor in assignors
    ]
    steady = Publishing(
        topic=topic,
        count=1_000_000,
        keys=KEYS,
        keyed=False,
        seed=f"{trial.seed}-{number}",
        per_s=400,
        # Without keys and without stickiness every partition gets records all the time, so that a
        # pause shows.
        config={"sticky.partitioning.linger.ms": 0, "topic.metadata.refresh.interval.ms": 300},
    )
    # On a user's cluster, a dead member keeps its partitions for 45 s by default.
    killing = trial.cluster.own is not None
    windows: dict[str, tuple[int, int]] = {}

    def watch(event: str, do: Callable[[], object], partitions: int = before) -> None:
        # The window ends when everything sent before is read, so that a pause cannot spill over
        # into the next event's window.
        began = time.monotonic_ns()
        do()
        members.settle(trial, teams, partitions)
        _catch_up(trial, scenario, teams)
        windows[event] = began, time.monotonic_ns()
        trial.note(f"{event}: settled after {(windows[event][1] - began) / 1e9:.1f} s")

    with scenario.background(steady):
        for team in teams:
            if killing:
                team.add_killable()
            team.grow(3)
        members.settle(trial, teams, before)
        _catch_up(trial, scenario, teams)
        # First a window without an event: it shows which pauses the load itself causes.
        watch(NOTHING, lambda: time.sleep(QUIET_S))
        watch(JOINS, lambda: members.at_once(teams, lambda team: team.grow(4)))
        watch(LEAVES, lambda: members.at_once(teams, members.Team.leave))
        if killing:
            watch(DIES, lambda: members.at_once(teams, members.Team.kill))
        watch(GROWS, lambda: topics.grow(trial.cluster.kafka, topic, after), after)
        members.at_once(teams, members.Team.close)
    operations = scenario.history()
    found = {
        (event, team.assignor.name): effect_of(operations, team.group, team.slow, *span)
        for event, span in windows.items()
        for team in teams
    }
    unchanged = [found.pop((NOTHING, team.assignor.name)) for team in teams]
    trial.control(
        "without an event, nothing changes",
        not any(effect.changed for effect in unchanged),
        f"the longest pause is {max(_seconds(unchanged, 'stayed_s'), default=0):.1f} s",
    )
    return found


def _catch_up(trial: Trial, scenario: Scenario, teams: Sequence[members.Team]) -> None:
    """Wait until every group has read all records that were sent so far."""
    sent = {one.record for one in history.of(scenario.history(), OperationKind.SEND)}

    def caught_up() -> bool:
        read = defaultdict(set)
        for one in history.of(scenario.history(), OperationKind.READ):
            read[one.group].add(one.record)
        return all(sent <= read[team.group] for team in teams)

    trial.wait(caught_up, "the groups to catch up")


def effect_of(
    operations: Sequence[ClientOperation], group: str, slow: str, began: int, ended: int
) -> EventEffect:
    """Return the effect of what happened to the group in this time."""
    of_group = [one for one in operations if one.group == group and one.at_ns <= ended]
    changed = {
        one.member
        for one in of_group
        if one.kind in (OperationKind.ASSIGN, OperationKind.REVOKE) and one.at_ns >= began
    }
    reads = list(history.of(of_group, OperationKind.READ))
    stayed, moved = list[float](), list[float]()
    for partition in {one.partition for one in reads}:
        of_it = [one for one in reads if one.partition == partition]
        old = [one for one in of_it if one.at_ns < began]
        if not old:
            continue
        owners = {old[-1].member, of_it[-1].member}
        if owners == {slow}:
            continue  # its pauses are its work, not the rebalance
        gaps = [
            after.at_ns - one.at_ns
            for one, after in itertools.pairwise(of_it)
            if after.at_ns >= began
        ]
        pause_s = max(gaps, default=0) / 1e9
        if len(owners) == 1:
            stayed.append(pause_s)
        else:
            moved.append(pause_s)
    return EventEffect(
        changed=len(changed),
        repeated=_repeats(reads) - _repeats([one for one in reads if one.at_ns < began]),
        stayed_s=max(stayed, default=None),
        moved_s=max(moved, default=None),
    )


def _repeats(reads: Sequence[ClientOperation]) -> int:
    return len(reads) - len({one.record for one in reads})


def _restart_static(trial: Trial) -> None:
    """Restart a static member within its session timeout.

    It gets its partitions back, and no other member is affected.
    """
    scenario, topic, group = trial.scenario("group.instance.id"), trial.topic(6), trial.group()
    marks = []

    def plan(name: str) -> Consuming:
        config = {
            **members.RANGE.config,
            "group.instance.id": name,
            "session.timeout.ms": STATIC_SESSION_MS,
        }
        return Consuming(topic=topic, group=group, member=name, config=config)

    with scenario.background(plan("stays")) as (stays, _):
        for _ in ("first", "again"):
            with scenario.background(plan("restarts")) as (restarts, _):
                trial.wait(
                    lambda: len(stays.held) == len(restarts.held) == 3,
                    "both members to have three partitions each",
                )
                marks.append(time.monotonic_ns())
    changes = [
        one
        for one in scenario.history()
        if one.member == "stays"
        and one.kind in (OperationKind.ASSIGN, OperationKind.REVOKE)
        and marks[0] < one.at_ns <= marks[1]
    ]
    took = (marks[1] - marks[0]) / 1e9
    trial.limit(
        "a member with a group.instance.id restarts without a rebalance",
        not changes,
        f"{len(changes)} changes for the other member in {took:.1f} s",
    )
