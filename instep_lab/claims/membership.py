"""Claims about membership: given keys, brokers that come and go, no group, static members."""

from __future__ import annotations

import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from instep import errors
from instep.document.showing import counted
from instep.kafka import layout
from instep.kafka.admin import consumer_groups
from instep.report.tables import Cell
from instep.waiting import wait_until
from instep_lab import history, members
from instep_lab.claim import experiment
from instep_lab.clients import admin, committed_offsets, defaults, key_hashes, publishing
from instep_lab.clients.consuming import CommitMode, ConsumerProgress, Consuming
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import KeyEncoding, Publishing
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import JOIN_S, PATIENCE_S, Scenario, Trial

KEYS = 30
OFFSETS_TOPIC = "__consumer_offsets"
IDLE_S = 3.0


@dataclass(frozen=True, slots=True)
class KeyCase:
    """A producer by its library, its encoding of keys, and whether it names the partition."""

    library: Library
    encoding: KeyEncoding
    by_number: bool = False

    @property
    def keys(self) -> str:
        return "integer keys" if self.encoding is KeyEncoding.INTEGER else "text keys"

    def partition_of(self, number: int) -> int:
        """Return the partition of 3 in which the default hash of the client puts a key."""
        hash_ = key_hashes.MURMUR2 if self.library is Library.JAVA else key_hashes.CRC32
        return key_hashes.PARTITION_OF[hash_](publishing.encoded(number, self.encoding), 3)


KEY_CASES = (
    KeyCase(Library.JAVA, KeyEncoding.DIGITS),
    KeyCase(Library.LIBRDKAFKA, KeyEncoding.DIGITS),
    KeyCase(Library.JAVA, KeyEncoding.INTEGER),
    KeyCase(Library.LIBRDKAFKA, KeyEncoding.INTEGER),
)
ONE_EACH = KeyCase(Library.LIBRDKAFKA, KeyEncoding.DIGITS, by_number=True)


@experiment(
    "group-5",
    statement="With 3 partitions and the keys 1, 2 and 3, each of three members gets one key",
    method=(
        "Let three members read 3 partitions. Send the keys 1, 2 and 3, as text and as 4-byte "
        "integers, with the default partitioners of the Java client and of librdkafka, and record "
        "which member reads which key. As a control, send each key to a partition of its own."
    ),
    advice=(
        "Do not expect few keys to be spread evenly: a hash may put all of them into one "
        "partition. Use many keys, or name the partition. Producers with different libraries or "
        "serializers put the same key into different partitions, so set the same partitioner."
    ),
    why=(
        "A key goes to the partition given by its hash modulo the number of partitions. The Java "
        "client hashes the bytes of the key with murmur2, librdkafka with CRC32. Three keys rarely "
        "have three different remainders: only 2 of 9 ways to spread them do. The old Scala "
        "producer took Java's hashCode, which gives the texts 1, 2 and 3 different remainders."
    ),
    scope=(
        "Java client since 0.8.2 and librdkafka with its default partitioner consistent_random; "
        "librdkafka with murmur2_random puts keys where the Java client does. The key's bytes "
        "depend on the serializer. The result holds for these three keys and 3 partitions."
    ),
    sources=("documentation: partitioner.class", "librdkafka: configuration"),
    rules=("PUBLISHER_PARTITIONER_NOT_MURMUR2",),
)
def three_keys_over_three_members(trial: Trial) -> None:
    count = trial.scaled(150, 3_000)
    scenario, topic = trial.scenario("keys 1, 2, 3", keys_move=True), trial.topic(3)
    team = members.Team(trial, scenario, topic, members.RANGE)
    team.grow(3)
    members.settle(trial, [team], 3)
    # The lab's producers use murmur2 with librdkafka, so its own default has to be set.
    partitioner = defaults.of_librdkafka(("partitioner",))[1]["partitioner"]
    rows: list[list[Cell]] = []
    astray: list[str] = []
    for number, case in enumerate((*KEY_CASES, ONE_EACH)):
        own = {"partitioner": partitioner} if case.library is Library.LIBRDKAFKA else {}
        scenario.publish(
            Publishing(
                topic=topic,
                count=count,
                keys=3,
                first_key=1,
                first=number * count,
                seed=trial.seed,
                encoding=case.encoding,
                by_number=3 if case.by_number else None,
                library=case.library,
                config=own,
            )
        )
        trial.wait(partial(_team_has_read, team, (number + 1) * count), "the group to read")
        places = _places(scenario, range(number * count, (number + 1) * count))
        owners = {member for _, member in places.values()}
        shown = ", ".join(
            f"{key.removeprefix('k')} in partition {partition}"
            for key, (partition, _) in sorted(places.items())
        )
        evidence = f"{shown}: {len(owners)} of 3 members read"
        if case.by_number:
            trial.control(
                "with one partition for each key, each member gets one key",
                len(owners) == len(places) == 3,
                evidence,
            )
        else:
            trial.statement(
                f"{case.keys}: each of three members gets one key",
                len(owners) == len(places) == 3,
                evidence,
                client=case.library,
            )
            rows.append([case.library, case.keys, shown, len(owners)])
            astray += [
                f"{case.library}, {case.keys}: {key.removeprefix('k')}"
                for key, (partition, _) in places.items()
                if partition != case.partition_of(int(key.removeprefix("k")))
            ]
    team.close()
    trial.control(
        "each key is where the hash of its client puts it, modulo 3",
        not astray,
        ", ".join(astray) or f"{3 * len(rows)} keys, by murmur2 (Java) and CRC32 (librdkafka)",
    )
    trial.table(
        "Where the keys 1, 2 and 3 go", ["client", "keys", "partitions", "members that read"], rows
    )


def _team_has_read(team: members.Team, count: int) -> bool:
    return sum(one.read for one in team.members) >= count


def _places(scenario: Scenario, numbers: range) -> dict[str, tuple[int | None, str]]:
    """Return the partition and the reader of each key, for records with these numbers."""
    return {
        one.key or "": (one.partition, one.member)
        for one in history.of(scenario.history(), OperationKind.READ)
        if one.number in numbers
    }


ATTEMPTS = 3
SHARED_S = 30.0  # far more than it takes to join
LEAVES, JOINS = "a broker leaves", "a broker joins"


@experiment(
    "group-6",
    statement="A broker that joins or leaves triggers a rebalance of the consumer groups",
    method=(
        "Let groups of both clients and both protocols read from three brokers under a steady "
        "load. Stop a broker that coordinates none of them, and start it again. Count the members "
        "whose partitions change. As a control, let a member join each group."
    ),
    advice=(
        "Restart brokers one after another without stopping the consumers: they follow the new "
        "leaders, and their assignments stay. Only members, subscriptions and numbers of "
        "partitions change an assignment."
    ),
    why=(
        "An assignment depends on the members and on the partitions of their topics, not on the "
        "brokers. If a broker stops, its partitions get other leaders, and the clients fetch from "
        "these. The consumers of Kafka 0.8 watched the list of brokers in ZooKeeper and did "
        "rebalance."
    ),
    scope=(
        "Kafka 0.9 and newer, which have a group coordinator; Java client and librdkafka, classic "
        "and consumer protocol, 3 replicas, without racks, sessions of 45 s: the default since 3.0 "
        "and librdkafka 1.7, 10 s before. If the coordinator itself stops, the members look for "
        "the new one; this was not measured."
    ),
    sources=(
        "KIP-848",
        "KIP-735",
        "documentation: group coordinator",
        "documentation: Kafka 0.8",
    ),
    brokers=3,
    harmless=False,
    before="Kafka 0.9: older consumers watched ZooKeeper",
)
def rebalance_by_brokers(trial: Trial) -> None:
    scenario, topic, spare = trial.scenario("brokers"), trial.topic(6), trial.random.randint(1, 3)
    assignors = members.supported(
        trial, members.RANGE, members.UNIFORM, members.JAVA_RANGE, members.JAVA_UNIFORM
    )
    # To ask for a commit creates the topic of offsets.
    committed_offsets.position(trial.cluster.connection, trial.name("group"), topic, 0)
    trial.cluster.wait_in_sync(OFFSETS_TOPIC)
    teams = [
        members.Team(
            trial,
            scenario,
            topic,
            assignor,
            group=_group_elsewhere(trial, spare),
            commit=CommitMode.AUTO,
        )
        for assignor in assignors
    ]
    changed: dict[tuple[str, Library], list[int]] = defaultdict(list)
    steady = Publishing(topic=topic, count=1_000_000, keys=KEYS, seed=trial.seed, per_s=60)
    with scenario.background(steady):
        _share(trial, teams, partitions=6, size=2)
        # One event without a rebalance refutes the claim. An event with one is repeated: on a busy
        # machine a member may also lose its session.
        for _ in range(ATTEMPTS):
            for event in (LEAVES, JOINS):
                began = time.monotonic_ns()
                if event == LEAVES:
                    trial.stop(spare)
                    trial.wait(partial(_is_led, trial, topic, 2), "the other brokers to lead")
                else:
                    trial.restart(spare)
                    trial.cluster.wait_in_sync(topic)
                _read_more(trial, teams, 80)
                operations = scenario.history()
                for library in (Library.LIBRDKAFKA, Library.JAVA):
                    of_library = [one for one in teams if one.assignor.library is library]
                    changed[event, library].append(
                        sum(_changed(operations, team, began) for team in of_library)
                    )
            if not any(found[-1] for found in changed.values()):
                break
        coordinators = {_coordinator(trial, team.group) for team in teams}
        began = time.monotonic_ns()
        members.at_once(teams, lambda team: team.grow(3))
        trial.wait(
            lambda: all(team.members[-1].held for team in teams),
            "the new members to get partitions",
            JOIN_S,
        )
        operations = scenario.history()
        joined = {team.assignor.name: _changed(operations, team, began) for team in teams}
        members.at_once(teams, members.Team.close)
    for (event, library), found in changed.items():
        trial.statement(
            f"{event}: the groups rebalance",
            all(found),
            f"{counted(found[-1], 'member')} changed"
            + (f", in {len(found)} attempts {found}" if len(found) > 1 else ""),
            client=library,
        )
    at = ", ".join(str(one) for one in sorted(one or 0 for one in coordinators))
    trial.control(
        "another broker coordinates the groups",
        spare not in coordinators,
        f"broker {spare} stopped; the groups are at {at}",
    )
    trial.control(
        "a member that joins does change the assignment",
        all(joined.values()),
        "; ".join(f"{name}: {amount} changed" for name, amount in joined.items()),
    )


def _group_elsewhere(trial: Trial, node: int) -> str:
    """Return a new group whose coordinator is not this broker."""
    while _coordinator(trial, group := trial.group()) == node:
        pass
    return group


def _coordinator(trial: Trial, group: str) -> int | None:
    """Return the coordinator of a group: the leader of its partition of the topic of offsets.

    librdkafka's admin client would crash if a coordinator moved while it asks.
    """
    partitions = layout.read(trial.cluster.kafka).topics[OFFSETS_TOPIC].partitions
    return partitions[offsets_partition(group, len(partitions))].leader


def offsets_partition(group: str, partitions: int) -> int:
    """Return the partition of the topic of offsets that a group's commits are in."""
    code = 0
    for letter in group:  # Java's String.hashCode
        code = (31 * code + ord(letter)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


def _share(trial: Trial, teams: Sequence[members.Team], *, partitions: int, size: int) -> None:
    """Let members join, and wait until those of each group share the partitions.

    A member of librdkafka sometimes never gets into a group with the consumer protocol. The claim
    is not about that: start the members of such a group again.
    """
    for _ in range(ATTEMPTS):
        for team in teams:
            team.grow(size)
        shared = wait_until(partial(_are_shared, teams, partitions), SHARED_S)
        for team in teams:
            if shared:
                team.close_first()
            elif not _are_shared([team], partitions):
                held = [len(one.held) for one in team.members]
                trial.note(f"{team.assignor.name}: members hold {held} partitions: start again")
                team.close()
        if shared:
            return
    raise errors.InstepError(f"the members did not share the partitions in {ATTEMPTS} attempts")


def _are_shared(teams: Sequence[members.Team], partitions: int) -> bool:
    """Return whether all members of each group have the same number of partitions."""
    return all(len(one.held) == partitions // team.size for team in teams for one in team.members)


def _is_led(trial: Trial, topic: str, brokers: int) -> bool:
    found = layout.read(trial.cluster.kafka)
    return len(found.brokers) == brokers and all(
        part.leader is not None for part in found.topics[topic].partitions
    )


def _read_more(trial: Trial, teams: Sequence[members.Team], more: int) -> None:
    """Wait until every member of every group has read some more records."""
    before = [[one.read for one in team.members] for team in teams]
    trial.wait(
        lambda: all(
            one.read >= had + more // team.size
            for team, earlier in zip(teams, before, strict=True)
            for one, had in zip(team.members, earlier, strict=True)
        ),
        "every member to read more records",
    )


def _changed(operations: Sequence[ClientOperation], team: members.Team, since_ns: int) -> int:
    """Return how many members of a group got or lost partitions."""
    return len(
        {
            one.member
            for one in operations
            if one.group == team.group
            and one.kind in (OperationKind.ASSIGN, OperationKind.REVOKE)
            and one.at_ns >= since_ns
        }
    )


@experiment(
    "group-7",
    statement="A consumer without a group id is a member of a default group",
    method=(
        "Subscribe without group.id with the Java client, librdkafka and kafka-python. If it is "
        "accepted, let two such consumers read: members of one group would share the records. As "
        "a control, two consumers with the same group.id share them."
    ),
    advice=(
        "Set group.id for every consumer that subscribes. Without a group, assign partitions "
        "yourself and keep the offsets elsewhere."
    ),
    why=(
        "Subscribing means joining a group, which needs a name. The Java client and librdkafka "
        "refuse to subscribe without one. kafka-python then assigns all partitions to each "
        "consumer itself, without a group and without commits."
    ),
    scope=(
        "Java client since 2.2 (KIP-289), where the default of group.id became null; before, it "
        "was the empty text, which brokers refuse as well. confluent-kafka for librdkafka; "
        "kafka-python 3. The console consumer makes up a new group for every start."
    ),
    sources=("KIP-289", "documentation: group.id"),
)
def consumers_without_a_group_id(trial: Trial) -> None:
    count = trial.scaled(300, 3_000)
    statement = "two consumers without group.id share the records, as members of one group"
    for library in (Library.JAVA, Library.LIBRDKAFKA):
        refused = _refusal(trial, library, count)
        trial.statement(
            statement, None if refused is None else False, refused or "accepted", client=library
        )
    shares = _two_without_group(trial, count)
    shared, each_all = sum(shares) == count and all(shares), shares == [count, count]
    trial.statement(
        statement,
        shared if shared or each_all else None,
        f"{' and '.join(f'{one:,}' for one in shares)} of {count:,} records",
        client=Library.KAFKA_PYTHON,
    )
    in_group = trial.together(
        {
            str(library): partial(_two_consumers, trial, library, trial.group(), count)
            for library in (Library.JAVA, Library.LIBRDKAFKA, Library.KAFKA_PYTHON)
        }
    )
    for name, shares in in_group.items():
        trial.control(
            f"{name}: two consumers with the same group.id share the records",
            sum(shares) == count and all(shares),
            f"{' and '.join(f'{one:,}' for one in shares)} of {count:,} records",
        )


def _refusal(trial: Trial, library: Library, count: int) -> str | None:
    """Return the error with which a client refuses to subscribe without group.id."""
    scenario, topic = trial.scenario(f"{library}, no group.id"), trial.topic(2)
    scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
    plan = Consuming(
        topic=topic,
        group="",
        library=library,
        config={"group.id": None},
        commit=CommitMode.NEVER,
        to_end=True,
        idle_s=10,
    )
    if library is Library.JAVA:
        started = scenario.start(plan)
        started.wait()
        found = re.search(r"(InvalidGroupIdException: .*)", started.output())
        return found[1] if found else None
    try:
        scenario.consume(plan)
    except admin.REFUSALS as error:
        return f"{type(error).__name__}: {error}"
    return None


def _two_without_group(trial: Trial, count: int) -> list[int]:
    """Let two consumers of kafka-python subscribe without a group; return what each read."""
    scenario, topic = trial.scenario("kafka-python, no group.id"), trial.topic(2)
    scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed, by_number=2))
    plans = {
        member: Consuming(
            topic=topic,
            group="",
            member=member,
            library=Library.KAFKA_PYTHON,
            commit=CommitMode.NEVER,
            idle_s=IDLE_S,
        )
        for member in ("consumer 1", "consumer 2")
    }
    read = trial.together(
        {member: partial(scenario.consume, plan) for member, plan in plans.items()}
    )
    return [one.read for one in read.values()]


def _two_consumers(trial: Trial, library: Library, group: str, count: int) -> list[int]:
    """Let two members of a group read what is sent; return how many records each read."""
    scenario, topic = trial.scenario(f"{library}, with group.id"), trial.topic(2)
    plans = [
        Consuming(topic=topic, group=group, member=f"consumer {number}", library=library, batch=50)
        for number in (1, 2)
    ]
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(scenario.background(plan))[0] for plan in plans]
        trial.wait(
            lambda: all(len(one.held) == 1 for one in found), "two members to hold a partition each"
        )
        scenario.publish(
            Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed, by_number=2)
        )
        trial.wait(lambda: sum(one.read for one in found) >= count, "the members to read")
    return [one.read for one in found]


@experiment(
    "group-8",
    statement="Without a group, ten consumers each get every record",
    method=(
        "Let ten consumers of each client assign themselves all 3 partitions and read them to "
        "the end, with the same group.id (2 of the Java client in the quick tier). Count what each "
        "of them misses, and look for the group. As a control, ten members that subscribe share "
        "the records."
    ),
    advice=(
        "Assign partitions without a group if every process needs all records, as for a cache. "
        "Nobody then watches the members, and the program decides where to start. Do not use "
        "the group.id of a real group for it: both would overwrite each other's commits."
    ),
    why=(
        "A consumer that assigns partitions itself only fetches. It joins no group, so the "
        "coordinator does not know it and takes no partition away from it. group.id then only "
        "names the place of its commits."
    ),
    scope=(
        "All releases since 0.9; librdkafka, which needs a group.id even for assigned partitions, "
        "and the Java client, which does not. Measured without commits."
    ),
    sources=("documentation: KafkaConsumer",),
)
def consumers_without_a_group(trial: Trial) -> None:
    count, size = trial.scaled(300, 3_000), 10
    for library in (Library.LIBRDKAFKA, Library.JAVA):
        # Each Java consumer is a process of its own.
        amount = size if library is Library.LIBRDKAFKA else trial.scaled(2, size)
        scenario, topic, group = (
            trial.scenario(f"{library}, assigned"),
            trial.topic(3),
            trial.group(),
        )
        scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
        plans = [
            Consuming(
                topic=topic,
                group=group,
                member=f"consumer {number}",
                library=library,
                assigned=[0, 1, 2],
                from_start=True,
                commit=CommitMode.NEVER,
                to_end=True,
                idle_s=PATIENCE_S,
            )
            for number in range(1, amount + 1)
        ]
        trial.together({plan.member: partial(scenario.consume, plan) for plan in plans})
        operations = scenario.history()
        read = [_read_by(operations, plan.member) for plan in plans]
        trial.statement(
            "each consumer that assigns its partitions gets every record once",
            all(distinct == total == count for distinct, total in read),
            f"{amount} consumers read {min(total for _, total in read):,} to"
            f" {max(total for _, total in read):,} of {count:,}",
            client=library,
        )
        exists = consumer_groups.exists(trial.cluster.kafka, group)
        trial.statement(
            "they are in no group",
            not exists,
            "the brokers know the group" if exists else "the brokers know no such group",
            client=library,
        )
    scenario, topic = trial.scenario("one group"), trial.topic(3)
    team = members.Team(trial, scenario, topic, members.RANGE)
    team.grow(size)
    members.settle(trial, [team], 3)
    scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
    trial.wait(partial(_team_has_read, team, count), "the group to read")
    shares = sorted((one.read for one in team.members), reverse=True)
    team.close()
    trial.control(
        "ten members of a group share the records", sum(shares) == count, f"{shares} records each"
    )


def _read_by(operations: Sequence[ClientOperation], member: str) -> tuple[int, int]:
    """Return how many different records a member read, and how many in all."""
    read = [
        one.record for one in history.of(operations, OperationKind.READ) if one.member == member
    ]
    return len(set(read)), len(read)


IN_TIME_MS = 45_000  # the default session timeout: longer than a restart takes
TOO_LATE_MS = 3_000
AWAY_S = 2.5
TAKE_OVER_S = 30.0
STATIC_ASSIGNORS = (members.RANGE, members.UNIFORM, members.JAVA_RANGE, members.JAVA_UNIFORM)


@dataclass(frozen=True, slots=True)
class RestartEffect:
    """What the restart of one of two members did.

    `changes` counts the partitions that the other member got or lost meanwhile; `same` says
    whether the restarted one has the partitions that it had before.
    """

    changes: int
    same: bool
    took_s: float

    @property
    def kept(self) -> str:
        return "yes" if self.same else "no"

    def __str__(self) -> str:
        same = "the same" if self.same else "other"
        return (
            f"the other member got or lost a partition {counted(self.changes, 'time')};"
            f" {same} partitions after {self.took_s:.1f} s"
        )


@experiment(
    "group-9",
    statement=(
        "A member that comes back with the same group.instance.id gets its partitions back "
        "without a rebalance"
    ),
    method=(
        "Close one of two members and start it again, with both clients and both protocols, "
        "with a group.instance.id and without one. Count the partitions that the other member "
        "gets or loses meanwhile. Then stay away longer than the session timeout."
    ),
    advice=(
        "Give members a group.instance.id that survives a restart, such as the name of a pod, "
        "and a session timeout longer than a restart. Nobody reads the partitions of a "
        "static member while it is away."
    ),
    why=(
        "A static member does not leave the group when it closes, and the coordinator keeps its "
        "partitions until the session expires. A new client with the same id takes the place of "
        "the old one. Without an id, closing is leaving, and coming back is joining: two "
        "rebalances."
    ),
    scope=(
        "Kafka 2.3 and newer (KIP-345) and librdkafka since 1.4, also with the consumer protocol "
        "of 4.0 (librdkafka 2.12); Java client and librdkafka. Session timeouts: 45 s for the "
        "restart in time, the default since 3.0 and librdkafka 1.7, 10 s before; 3 s for the late "
        "one."
    ),
    sources=("KIP-345", "KIP-735", "KIP-848"),
)
def static_members(trial: Trial) -> None:
    rows: list[list[Cell]] = []
    assignors = members.supported(trial, *STATIC_ASSIGNORS)
    found = trial.together({one.name: partial(_restarts, trial, one) for one in assignors})
    for assignor in assignors:
        effects, client = found[assignor.name], assignor.library
        for name, effect in effects.items():
            rows.append([assignor.name, name, effect.changes, effect.kept])
        protocol = assignor.config.get("group.protocol", "classic")
        effect = effects[IN_TIME]
        trial.statement(
            f"{protocol} protocol: a restart in time causes no rebalance",
            effect.changes == 0 and effect.same,
            str(effect),
            client=client,
        )
        trial.control(
            f"{assignor.name}: a restart without an id causes a rebalance",
            effects[DYNAMIC].changes > 0,
            str(effects[DYNAMIC]),
        )
        late = effects[TOO_LATE]
        trial.limit(
            f"{protocol} protocol: after the session timeout, the group rebalances",
            late.changes > 0 or None,
            str(late),
            client=client,
        )
    trial.table(
        "A member of two restarts",
        ["assignor", "restart", "changes for the other member", "the same partitions"],
        rows,
    )


IN_TIME, DYNAMIC, TOO_LATE = "in time", "without an id", "too late"


def _restarts(trial: Trial, assignor: members.Assignor) -> dict[str, RestartEffect]:
    begin = partial(restart, trial, assignor)
    return trial.together(
        {
            IN_TIME: partial(begin, session_ms=IN_TIME_MS),
            DYNAMIC: partial(begin, static=False, session_ms=IN_TIME_MS),
            TOO_LATE: partial(begin, session_ms=TOO_LATE_MS, in_time=False),
        }
    )


def restart(
    trial: Trial,
    assignor: members.Assignor,
    *,
    session_ms: int,
    static: bool = True,
    in_time: bool = True,
) -> RestartEffect:
    """Restart one of two members, before or after its session expires."""
    kind = "static" if static else "dynamic"
    name = f"{assignor.name}, {kind}, {'in time' if in_time else 'too late'}"
    scenario, topic, group = trial.scenario(name), trial.topic(6), trial.group()
    config = dict(assignor.config)
    if config.get("group.protocol") == "consumer":
        members.set_session(trial, group, session_ms)
    else:
        config |= {"session.timeout.ms": session_ms, "heartbeat.interval.ms": 500}
    if static:
        trial.callback(lambda: members.remove_static(trial, group, ["stays", "restarts"]))
    plans = {
        member: Consuming(
            topic=topic,
            group=group,
            member=member,
            library=assignor.library,
            config=config | ({"group.instance.id": member} if static else {}),
        )
        for member in ("stays", "restarts")
    }
    marks, held = list[int](), list[tuple[tuple[str, int], ...]]()
    with scenario.background(plans["stays"]) as (stays, _):
        for number in range(2):
            with scenario.background(plans["restarts"]) as (restarts, _):
                trial.wait(
                    partial(_hold_three, stays, restarts),
                    "both members to have three partitions each",
                )
                marks.append(time.monotonic_ns())
                held.append(restarts.held)
            if number == 0:
                _stay_away(trial, stays, static=static, in_time=in_time)
    changes = [
        one
        for one in scenario.history()
        if one.member == "stays"
        and one.kind in (OperationKind.ASSIGN, OperationKind.REVOKE)
        and marks[0] < one.at_ns <= marks[1]
    ]
    return RestartEffect(len(changes), held[0] == held[1], (marks[1] - marks[0]) / 1e9)


def _stay_away(trial: Trial, stays: ConsumerProgress, *, static: bool, in_time: bool) -> None:
    """Wait until the group has noticed that a member is gone, or would have noticed."""
    if static and in_time:
        # Longer than a member needs to take over: a shorter absence would prove nothing.
        back = time.monotonic() + AWAY_S
        trial.wait(lambda: time.monotonic() > back, "the time of the absence to pass")
        return
    # A member without an id leaves at once; its session would expire much later.
    what = "the session to expire" if static else "the other member to take over"
    trial.wait(lambda: len(stays.held) == 6, what, TAKE_OVER_S)


def _hold_three(*consumers: ConsumerProgress) -> bool:
    return all(len(one.held) == 3 for one in consumers)
