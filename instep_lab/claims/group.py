"""Claims about groups: who reads what, and what happens when members or partitions change."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from instep import errors
from instep.document.showing import counted
from instep.kafka import topics
from instep.report.tables import Cell
from instep_lab import bounds, checkers, history, members
from instep_lab.claim import Tier, experiment
from instep_lab.claims import crashes, membership
from instep_lab.clients.consuming import CommitMode, Consuming, CrashPoint
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Publishing
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import PATIENCE_S, Scenario, Trial, spread

KEYS = 30
QUIET_S = 0.5


@experiment(
    "group-1",
    statement=(
        "Within a group, each record goes to only one member; different groups each get every "
        "record"
    ),
    method=(
        "Read 3 partitions with a group of one member and with a group of three at the same "
        "time. Count what each group misses and what its members read twice. Then kill members "
        "with -9 at random records, let others take over, and count what is read again."
    ),
    advice=(
        "Use one group per application, with as many members as needed. Make the work safe to "
        "repeat: a record comes again if its reader dies before the commit."
    ),
    why=(
        "The coordinator assigns each partition to one member of a group, and each group has "
        "positions of its own. The position is that of the last commit, so the next owner of a "
        "partition begins there and not at the last record that was read."
    ),
    scope=(
        "All releases since 0.9, classic and consumer protocol; measured with librdkafka. The "
        "killed members commit after every batch of 50 records. Share groups (Kafka 4.2) deliver "
        "records again as well if they are not acknowledged."
    ),
    sources=("documentation: KafkaConsumer", "KIP-848"),
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
    _kill_before_commit(trial)


BATCH = 50
TOGETHER = 3  # kills at the same time, each in a group of its own


def _kill_before_commit(trial: Trial) -> None:
    """Kill members between reading and committing, and let others take over."""
    count, kills = 300, trial.scaled(TOGETHER, 30)
    points = [trial.random.randint(1, count) for _ in range(kills)]
    repeated: list[checkers.Anomalies] = []
    missing = killed = 0
    for first in range(0, kills, TOGETHER):
        jobs = {
            str(number): partial(
                crashes.undisturbed,
                trial,
                f"killed at record {points[number]}, {number + 1}",
                partial(
                    _kill_and_take_over, trial, number=number, count=count, point=points[number]
                ),
            )
            for number in range(first, min(first + TOGETHER, kills))
        }
        for died, again, lost in trial.together(jobs).values():
            killed += died
            repeated.append(again)
            missing += lost
    affected = sum(1 for one in repeated if one)
    amounts = [float(one.count) for one in repeated]
    trial.control("the first members were killed", killed == kills, f"{killed} of {kills}")
    trial.control("nothing is missing after a member was killed", not missing, f"{missing} missing")
    trial.limit(
        "after a member was killed, some records go to the next member as well",
        affected > 0 or None,
        f"{bounds.describe(affected, kills, 'kill')}; {spread(amounts, digits=0)} records each",
    )


def _kill_and_take_over(
    trial: Trial, scenario: Scenario, number: int, count: int, point: int
) -> tuple[bool, checkers.Anomalies, int]:
    """Kill a member at the given record, and let another one take over.

    Return whether it was killed, what was read again, and how much is missing.
    """
    topic, group = trial.topic(3), trial.group()
    scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=f"{trial.seed}-{number}"))
    plan = Consuming(
        topic=topic,
        group=group,
        batch=BATCH,
        idle_s=PATIENCE_S,
        config=dict(crashes.LONG_SESSION),
    )
    # with a count, so that one that lives on ends too
    dies = crashes.mortal(trial, plan, dies_at=CrashPoint.WORKED, dies_on=point, count=count)
    status = scenario.run(dies)
    crashes.refuse_lost_session(scenario.history())
    with scenario.background(msgspec.structs.replace(plan, member="next", idle_s=None)):
        trial.wait(
            lambda: not checkers.lost(scenario.history(), group, by=OperationKind.READ),
            "the next member to read the rest",
        )
    operations = scenario.history()
    again = checkers.repeated(operations, group, by=OperationKind.READ)
    trial.example(scenario, again)
    return status == -9, again, checkers.lost(operations, group, by=OperationKind.READ).count


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
    why=(
        "A partition is the unit of assignment: it belongs to one member of a group at a time, so "
        "that the group needs only one position per partition. Members without a partition send "
        "heartbeats and wait. In a share group the broker hands out single records and remembers "
        "the state of each."
    ),
    scope=(
        "All releases since 0.9, classic and consumer protocol; measured with librdkafka. Share "
        "groups are a preview in Kafka 4.1 and ready for production since 4.2."
    ),
    sources=("KIP-848", "KIP-932"),
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
        together_until = time.monotonic_ns()
    read = sorted((one.read for one in consumers), reverse=True)
    # What a member has not acknowledged when it leaves goes to another one.
    together = [one for one in scenario.history() if one.at_ns < together_until]
    twice = checkers.repeated(together, group, by=OperationKind.READ)
    trial.control(
        "in the share group, each record goes to one member",
        not twice,
        f"{twice.count} of {twice.of} read again",
    )
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
        "protocol, and compare the partitions and records of the members. Then send as many keys "
        "as there are members, and many more. Finally read 4 topics with 2 members, with 4 and "
        "with 3 partitions each."
    ),
    advice=(
        "Choose a number of partitions with many divisors, such as 12 or 24, and have many more "
        "keys than partitions. With several topics, use an assignor other than range, or give "
        "each topic a number of partitions that is a multiple of the number of members."
    ),
    why=(
        "Assignors share out partitions, not records. A hash spreads few keys unevenly: some "
        "partitions get several of them, others none. The range assignor treats "
        "each topic on its own and gives the rest of each to the same first members."
    ),
    scope=(
        "All releases since 0.9 for range and roundrobin, 2.4 for cooperative-sticky, 4.0 for the "
        "consumer protocol; measured with librdkafka, and with kafka-python for sticky. The Java "
        "client uses range unless partition.assignment.strategy or group.protocol is set."
    ),
    sources=("documentation: partition.assignment.strategy", "KIP-429", "KIP-848"),
)
def even_shares(trial: Trial) -> None:
    partitions, count = 24, trial.scaled(1_200, 12_000)
    scenario, topic = trial.scenario("24 partitions", keys_move=True), trial.topic(24)
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
    sizes = (2, 4, 5, 8) if trial.tier is Tier.QUICK else (2, 3, 4, 5, 6, 8)
    for size in sizes:
        for team in teams:
            team.grow(size)
        members.settle(trial, teams, partitions)
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
    """Compare the records of the members for as many keys as members and for many more."""
    count, size = trial.scaled(1_200, 12_000), teams[0].size
    busiest: dict[int, list[float]] = {}
    for number, keys in enumerate((size, count)):
        before = [[one.read for one in team.members] for team in teams]
        # The numbers must not repeat those of earlier records with these keys.
        scenario.publish(
            Publishing(
                topic=topic,
                count=count,
                keys=keys,
                seed=trial.seed,
                first=(number + 1) * 1_000_000,
            )
        )
        trial.wait(partial(_all_read, teams, before, count), "the groups to read")
        busiest[keys] = [
            max(one.read - had for one, had in zip(team.members, earlier, strict=True))
            * size
            / count
            for team, earlier in zip(teams, before, strict=True)
        ]
    few, many = busiest.values()
    shown = (
        f"the busiest of {size} members read {spread(few, digits=1)} times the average,"
        f" and {spread(many, digits=1)} times with many keys"
    )
    trial.limit(
        "with as many keys as members, the records are not shared evenly",
        min(few) > UNEVEN or None,
        shown,
    )
    trial.statement("with many keys, the records are shared evenly", max(many) < UNEVEN, shown)


def _several_topics(trial: Trial) -> None:
    """Test several topics, whose numbers of partitions are a multiple of the members or not."""
    counts: dict[int, dict[str, list[int]]] = {}
    for partitions in (4, 3):
        scenario = trial.scenario(f"4 topics of {partitions} partitions")
        names = [trial.topic(partitions) for _ in range(4)]
        teams = [
            members.Team(trial, scenario, names[0], assignor, also=names[1:])
            for assignor in members.supported(
                trial, members.RANGE, members.ROUNDROBIN, members.COOPERATIVE, members.UNIFORM
            )
        ]
        for team in teams:
            team.grow(2)
        members.settle(trial, teams, 4 * partitions)
        counts[partitions] = {
            team.assignor.name: sorted(len(one.held) for one in team.members) for team in teams
        }
        members.at_once(teams, members.Team.close)
    rows: list[list[Cell]] = [
        [partitions, name, *numbers]
        for partitions, found in counts.items()
        for name, numbers in found.items()
    ]
    trial.table(
        "Partitions of 4 topics, by 2 members",
        ["partitions of each topic", "assignor", "one member", "the other"],
        rows,
    )
    uneven = {
        partitions: [name for name, (least, most) in found.items() if least != most]
        for partitions, found in counts.items()
    }
    trial.statement(
        "4 topics of 4 partitions: 2 members hold the same number of partitions",
        not uneven[4],
        ", ".join(uneven[4]) or f"8 each with {', '.join(counts[4])}",
    )
    trial.limit(
        f"4 topics of 3 partitions: {' and '.join(uneven[3]) or 'no assignor'} is uneven, although "
        "12 partitions in all are a multiple of 2",
        bool(uneven[3]) or None,
        "; ".join(f"{name} {most} and {least}" for name, (least, most) in counts[3].items()),
    )


UNEVEN = 1.5  # times the average
# Commit every second and detect new partitions soon; the defaults are 5 seconds and 5 minutes.
WATCHFUL: Mapping[Library, Mapping[str, Any]] = {
    Library.LIBRDKAFKA: {
        "auto.commit.interval.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 300,
    },
    Library.JAVA: {"auto.commit.interval.ms": 1_000, "metadata.max.age.ms": 300},
}
STATIC_SESSION_MS = 45_000  # the default, longer than a restart takes
CHECK_S = 0.5
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
    member, of one that moved to a fast member, and of one that moved to the slow one.
    """

    changed: int
    repeated: int
    stayed_s: float | None
    moved_s: float | None
    to_slow_s: float | None


@experiment(
    "group-4",
    statement="Adding or removing members or partitions triggers a rebalance",
    method=(
        "Under a steady load, a member joins, one leaves, one is killed with -9, and partitions "
        "are added, in one group for each client and rebalance protocol, with one member that "
        "works 0.8 s on each batch. Record which partitions change owner, what is read again, and "
        "how long partitions are paused. Then restart a member with a group.instance.id."
    ),
    advice=(
        "Use cooperative-sticky or the consumer protocol, so that only the partitions that move "
        "are paused. Give members a group.instance.id if restarts are short. Commit often: what a "
        "killed member had not committed is read again. Expect pauses several times longer than "
        "these with the default heartbeats and sessions. A killed member's partitions wait for its "
        "session: 45 s. Keep batches short: a partition that moves to a busy member waits for its "
        "polls."
    ),
    why=(
        "The coordinator learns of a member by its request to join or leave, or by a missing "
        "heartbeat; the others learn of it in the response to their next heartbeat. With an eager "
        "assignor all members then give up all partitions and wait for the slowest member. With "
        "cooperative-sticky and the consumer protocol they give up only those that move. New "
        "partitions are noticed when the metadata is refreshed. A partition that moves to the "
        "slow member waits for it: with the Java client and the consumer protocol, it took five "
        "more polls of 0.8 s each from the new assignment until its first records came, after the "
        "session of the killed member and the polls until that assignment."
    ),
    scope=(
        "Java client and librdkafka; cooperative-sticky since Kafka 2.4 and librdkafka 1.6, the "
        "consumer protocol since 4.0 and librdkafka 2.12. Shortened: heartbeats 0.5 s (default 3 "
        "s, consumer protocol 5 s), sessions 2 s and 3 s (default 45 s since 3.0 and librdkafka "
        "1.7, 10 s before), metadata 0.3 s (default 5 minutes), and no initial delay of a new "
        "group (default 3 s). Pauses and delays are several times longer with the defaults. A "
        "static member that restarts is group-9, a broker that joins or leaves is group-6."
    ),
    sources=("KIP-429", "KIP-848", "KIP-345", "KIP-735"),
    rules=("PIPELINE_GROUP_IN_USE",),
    alone=True,
)
def rebalance_triggers(trial: Trial) -> None:
    assignors = members.supported(
        trial,
        members.RANGE,
        members.COOPERATIVE,
        members.UNIFORM,
        members.JAVA_RANGE,
        members.JAVA_UNIFORM,
    )
    effects: dict[tuple[str, str], list[EventEffect]] = defaultdict(list)
    # Each round kills a member of every assignor's group: of the Java client's, two.
    for number in trial.rounds(1, 15):
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
        to_slow = _seconds(found, "to_slow_s")
        rows.append(
            [
                event,
                assignor,
                spread(changed, digits=0),
                spread(repeated, digits=0),
                spread(stayed, " s"),
                spread(moved, " s"),
                spread(to_slow, " s"),
            ]
        )
    sessions = ""
    if trial.cluster.own:
        sessions = (
            "; sessions of 2 s (3 s with the consumer protocol; default 45 s), heartbeats every"
            " 0.5 s (default 3 s, consumer protocol 5 s), metadata every 0.3 s (default 5 min)"
        )
    trial.table(
        f"Effect of an event on a group{sessions}",
        [
            "event",
            "assignor",
            "members changed",
            "records read again",
            "pause if the partition stays",
            "pause if the partition moves to a fast member",
            "to the slow member",
        ],
        rows,
    )
    for name, title in (
        ("stayed_s", "that stays with its member"),
        ("moved_s", "that moves to a fast member"),
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
    for event, library in itertools.product(events, (Library.JAVA, Library.LIBRDKAFKA)):
        found_by = {
            assignor.name: effects[event, assignor.name]
            for assignor in assignors
            if assignor.library is library
        }
        changed_by = [bool(effect.changed) for found in found_by.values() for effect in found]
        each = [f"{name}: {_describe(found)}" for name, found in found_by.items()]
        if event == DIES:
            each.insert(0, bounds.describe(sum(changed_by), len(changed_by), "kill"))
        trial.statement(
            f"{event}: the group rebalances", all(changed_by), "; ".join(each), client=library
        )
    restarted = membership.restart(trial, members.RANGE, session_ms=STATIC_SESSION_MS)
    trial.limit(
        "a member with a group.instance.id restarts without a rebalance",
        (restarted.changes == 0 and restarted.same) or None,
        str(restarted),
    )


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
            expires=True,
            config=dict(WATCHFUL[assignor.library]),
        )
        for assignor in assignors
    ]
    steady = Publishing(
        topic=topic,
        count=1_000_000,
        keys=KEYS,
        keyed=False,
        seed=f"{trial.seed}-{number}",
        per_s=200,
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
    _show_read_again(trial, operations, teams)
    unchanged = [found.pop((NOTHING, team.assignor.name)) for team in teams]
    trial.control(
        "without an event, nothing changes",
        not any(effect.changed for effect in unchanged),
        f"the longest pause is {max(_seconds(unchanged, 'stayed_s'), default=0):.1f} s",
    )
    return found


def _show_read_again(
    trial: Trial, operations: Sequence[ClientOperation], teams: Sequence[members.Team]
) -> None:
    """Show a record that a group has read again, with the others of its partition."""
    for team in teams:
        of_group = [one for one in operations if one.group in ("", team.group)]
        found = checkers.repeated(of_group, team.group, by=OperationKind.READ)
        if found:
            record = found.examples[0]
            lines = history.around(of_group, record)
            trial.show(f"repeated: {record} ({team.assignor.name})", lines)
            return


def _catch_up(trial: Trial, scenario: Scenario, teams: Sequence[members.Team]) -> None:
    """Wait until every group has read all records that were sent so far."""
    sent = {one.record for one in history.of(scenario.history(), OperationKind.SEND)}
    next_check = 0.0

    def caught_up() -> bool:
        # To read the history takes time, which the groups would lack.
        nonlocal next_check
        if time.monotonic() < next_check:
            return False
        next_check = time.monotonic() + CHECK_S
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
    stayed, moved, to_slow = list[float](), list[float](), list[float]()
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
        elif of_it[-1].member == slow:
            to_slow.append(pause_s)
        else:
            moved.append(pause_s)
    return EventEffect(
        changed=len(changed),
        repeated=_repeats(reads) - _repeats([one for one in reads if one.at_ns < began]),
        stayed_s=max(stayed, default=None),
        moved_s=max(moved, default=None),
        to_slow_s=max(to_slow, default=None),
    )


def _repeats(reads: Sequence[ClientOperation]) -> int:
    return len(reads) - len({one.record for one in reads})
