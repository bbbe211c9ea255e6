"""Claims about commits beside the work: at rebalances, by members that hang, and where they go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from instep.document.showing import counted
from instep.kafka import groups
from instep.kafka.admin import consumer_groups
from instep.report.tables import Cell
from instep.waiting import wait_until
from instep_lab import bounds, checkers, history
from instep_lab.claim import experiment
from instep_lab.claims import crashes, senders
from instep_lab.claims.crashes import BATCH, FIRST, RECORDS, SECOND
from instep_lab.clients import committed_offsets, defaults
from instep_lab.clients.consuming import CommitMode, Consuming, Pool
from instep_lab.clients.library import Library
from instep_lab.history import ClientOperation, OperationKind, OperationStatus
from instep_lab.trial import Scenario, Trial

CLIENTS = (Library.JAVA, Library.LIBRDKAFKA)
MAX_POLL_MS = 2_000
MAX_POLL_NOTE = "max.poll.interval.ms is 2 s here, 5 minutes by default."
INTERVAL_MS = 200  # between automatic commits
ABSENT_S = 12.0
COMMITTED_WITHIN = 5  # records, a part of a batch
JOINING = "PreparingRebalance"
KNOWN_COMMITS = 50
OLD = "kafka-2"  # the bundle with the Java client of an older release


@dataclass(frozen=True, slots=True)
class HangEffect:
    """What happened around a member that hung: before it returned, and in all."""

    lost_partition: bool
    worked_by_other: int
    repeated_before: int
    repeated: int
    lost: int
    committed_before: int
    commit_after: ClientOperation | None
    stored: int | None
    scenario: Scenario


def _hang(trial: Trial, scenario: Scenario, library: Library, *, too_long: bool) -> HangEffect:
    """Let a member hang within a batch while another one joins; then let it continue.

    With `too_long`, it returns when the other one has done all the work; otherwise while the other
    one waits for it.
    """
    plan = crashes.plan(trial, library=library, to_end=False)
    crashes.publish(trial, scenario, plan.topic)
    release = trial.folder / f"{plan.topic}.release"
    hangs_on = BATCH * trial.random.randrange(1, 8) + trial.random.randrange(3, 15)
    hanging = msgspec.structs.replace(
        plan, member=FIRST, hangs_on=hangs_on, hangs_until=str(release)
    )
    if too_long:
        # Only the first member: on a slow machine the second one could exceed it too. The session
        # must not be longer.
        limit = {**plan.config, "max.poll.interval.ms": MAX_POLL_MS}
        hanging = crashes.mortal(trial, msgspec.structs.replace(hanging, config=limit))
    first = scenario.start(hanging)
    trial.wait(lambda: bool(_faults(scenario, "hangs")), "the first member to hang")
    crashes.refuse_lost_session(scenario.history())
    with scenario.background(msgspec.structs.replace(plan, member=SECOND)):
        if too_long:
            trial.wait(
                lambda: not checkers.lost(scenario.history()), "the second member to do the work"
            )
        else:
            trial.wait(
                lambda: (
                    consumer_groups.described(trial.cluster.kafka, [plan.group])[plan.group].state
                    == JOINING
                ),
                "the second member to join",
            )
        before = scenario.history()
        release.touch()
        trial.wait(lambda: _commit_after(scenario) is not None, "the first member to commit")
        if too_long:
            crashes.wait_until_lost(trial, scenario)
        else:
            trial.wait(lambda: not checkers.lost(scenario.history()), "the rest of the work")
        first.terminate()
        first.wait()
        first.close()
    operations = scenario.history()
    known = {one.record for one in before if one.member == FIRST and one.kind is OperationKind.WORK}
    others = [one for one in before if one.member == SECOND and one.kind is OperationKind.WORK]
    return HangEffect(
        lost_partition=any(
            one.kind is OperationKind.ASSIGN and one.member == SECOND for one in before
        ),
        worked_by_other=sum(one.record in known for one in others),
        repeated_before=checkers.repeated(before).count,
        repeated=checkers.repeated(operations).count,
        lost=checkers.lost(operations).count,
        committed_before=sum(
            one.kind is OperationKind.COMMIT
            and one.member == FIRST
            and one.outcome is OperationStatus.OK
            for one in before
        ),
        commit_after=_commit_after(scenario),
        stored=committed_offsets.position(trial.cluster.connection, plan.group, plan.topic, 0),
        scenario=scenario,
    )


def _faults(scenario: Scenario, note: str) -> list[ClientOperation]:
    return [
        one for one in scenario.history() if one.kind is OperationKind.FAULT and one.note == note
    ]


def _commit_after(scenario: Scenario) -> ClientOperation | None:
    """Return the first commit of the first member after it returned."""
    returned = _faults(scenario, "returns")
    if not returned:
        return None
    for one in scenario.history():
        if (
            one.kind is OperationKind.COMMIT
            and one.member == FIRST
            and one.at_ns > returned[0].at_ns
        ):
            return one
    return None


@experiment(
    "commit-12",
    statement=(
        "A synchronous commit commits the offsets of the last poll, and raises an error when it "
        "fails"
    ),
    method=(
        "With the Java client and with librdkafka: a member hangs within a batch for longer than "
        "max.poll.interval.ms. Another member takes its partition, does all the work and commits. "
        "The first member then finishes its batch and commits synchronously. In another group, a "
        "consumer commits synchronously and without naming offsets after 5 records of a batch."
    ),
    advice=(
        "Catch the error, and do not retry: the partition belongs to another member, which has "
        "reprocessed the records or will do so. Within a batch, name the offsets that you commit "
        "(commit-7): without them, records are committed that were not processed yet."
    ),
    why=(
        "A commit carries the member's id and the group's generation. The coordinator rejects a "
        "commit of a member that is no longer in the group, and the client raises what it got. "
        "Without offsets, a client commits its own position: the next record that poll would "
        "return, whatever the program has done with those that it has."
    ),
    scope=(
        "Java client since 0.10.1 (KIP-62) and librdkafka since 1.0, with the classic "
        "protocol; with the consumer protocol (since 4.0, librdkafka 2.12) the error has another "
        "name. "
        "max.poll.interval.ms is 2 s here, 5 minutes by default."
    ),
    sources=("documentation: commitSync", "KIP-62"),
)
def failing_synchronous_commit(trial: Trial) -> None:
    found: dict[Library, list[HangEffect]] = {library: [] for library in CLIENTS}
    for number in trial.rounds(1, crashes.CRASHES):
        results = trial.together(
            {
                str(library): partial(
                    crashes.undisturbed,
                    trial,
                    f"{library}, {number + 1}",
                    partial(_hang, trial, library=library, too_long=True),
                )
                for library in CLIENTS
            }
        )
        for library in CLIENTS:
            found[library].append(results[library])
    positions = trial.together(
        {str(library): partial(_commit_position, trial, library) for library in CLIENTS}
    )
    for library, each in found.items():
        errors_ = sorted({one.commit_after.note for one in each if one.commit_after})
        trial.control(
            f"{library}: commits of the same member succeeded before",
            all(one.committed_before for one in each),
            f"{sum(one.committed_before for one in each)} commits",
        )
        trial.control(
            f"{library}: the failed commit changed nothing",
            all(one.stored == RECORDS for one in each),
            f"the broker has {', '.join(str(one.stored) for one in each)} of {RECORDS}",
        )
        failed = [
            one.commit_after is not None and one.commit_after.outcome is OperationStatus.FAIL
            for one in each
        ]
        _show_failed_commit(trial, library, each[0])
        first = positions[str(library)]
        trial.statement(
            "a synchronous commit without offsets covers everything that poll returned",
            first.stored == first.read > first.worked,
            f"position {first.stored} after {first.read} records were read and {first.worked}"
            " processed",
            client=library,
        )
        trial.statement(
            "a synchronous commit after the partition was taken away raises an error",
            all(failed),
            f"{', '.join(errors_)}, after {bounds.describe(sum(failed), len(failed), 'hang')}",
            client=library,
        )


def _show_failed_commit(trial: Trial, library: Library, hang: HangEffect) -> None:
    """Show the failed commit of a member that hung, with what both members did before."""
    operations = hang.scenario.history()
    commits = list(history.of(operations, OperationKind.COMMIT, None))
    of_first = [one for one in commits if one.member == FIRST]
    until = next((at for at, one in enumerate(of_first) if one == hang.commit_after), 0)
    of_second = [one for one in commits if one.member == SECOND]
    moved = (OperationKind.FAULT, OperationKind.ASSIGN, OperationKind.REVOKE)
    trial.show(
        f"a commit fails after the partition was taken away, with {library}",
        history.excerpt(
            operations,
            [
                *(one for one in operations if one.kind in moved),
                *of_first[max(0, until - 2) : until + 1],
                *of_second[:2],
                *of_second[-1:],
            ],
        ),
    )


@dataclass(frozen=True, slots=True)
class FirstCommit:
    """What a consumer had read and processed at its first commit, and what the broker stored."""

    read: int
    worked: int
    stored: int


def _commit_position(trial: Trial, library: Library) -> FirstCommit:
    """Commit within a batch, without naming offsets."""
    scenario = trial.scenario(f"{library}, commit without offsets")
    plan: Consuming = crashes.plan(
        trial, library=library, commit_every=COMMITTED_WITHIN, commits_position=True
    )
    crashes.publish(trial, scenario, plan.topic)
    scenario.consume(msgspec.structs.replace(plan, member=FIRST))
    operations = scenario.history()
    at = next(index for index, one in enumerate(operations) if one.kind is OperationKind.COMMIT)
    read, worked = (
        sum(1 for _ in history.of(operations[:at], kind))
        for kind in (OperationKind.READ, OperationKind.WORK)
    )
    stored = committed_offsets.commits(trial.cluster.connection, plan.group, plan.topic, 0)
    return FirstCommit(read, worked, stored[0] if stored else 0)


@experiment(
    "commit-13",
    statement=(
        "At a rebalance, automatic commit repeats records that were processed in the reading "
        "thread, and loses those that were handed to threads"
    ),
    method=(
        "Automatic commit with an interval that never ends, so that only the rebalance commits, "
        "with the Java client and with librdkafka. A second member joins. The first processes "
        "its records in the reading thread, or has handed all of them to slow threads and is "
        "killed once the second has its partition. As a control, a member that never commits."
    ),
    advice=(
        "Process records in the thread that polls. If you need threads, wait for them in the "
        "rebalance listener before it returns."
    ),
    why=(
        "Before a member gives partitions up, both clients commit what was returned to the "
        "program. In the reading thread that work is done, since a rebalance happens inside "
        "poll: nothing is repeated. Records that wait in other threads are committed as well, "
        "and are lost if the process then dies; if it lives, its threads finish them."
    ),
    scope=(
        "Java client and librdkafka since 0.9 with the classic protocol, in a rebalance that "
        "the member takes part in. A member that is killed, hangs or loses its session commits "
        "nothing: then records of the reading thread are repeated (commit-2, commit-17). "
        + crashes.SESSION_NOTE
    ),
    sources=(
        "documentation: enable.auto.commit",
        "documentation: ConsumerRebalanceListener",
        crashes.SESSION_SOURCE,
    ),
)
def automatic_commit_at_rebalance(trial: Trial) -> None:
    ways: dict[str, dict[str, Any]] = {
        "reading thread": {"commit": CommitMode.AUTO, "work_ms": 4},
        "no commit": {"commit": CommitMode.NEVER, "work_ms": 4},
        # It is killed long before the threads have finished, however slow the machine is.
        "threads": {"commit": CommitMode.AUTO, "pool": Pool.BY_RECORD, "work_ms": 5_000},
    }
    found: dict[str, list[JoinEffect]] = {}
    for number in trial.rounds(1, crashes.CRASHES):
        functions = {
            f"{library}, {way}": partial(
                _join,
                trial,
                trial.scenario(f"{library}, {way}, {number + 1}"),
                library,
                kills=way == "threads",
                **options,
            )
            for library in CLIENTS
            for way, options in ways.items()
        }
        for name, effect in crashes.in_turns(trial, functions, 3).items():
            found.setdefault(name, []).append(effect)
    rows: list[Sequence[Cell]] = [
        [name, len(each), sum(one.lost for one in each), sum(one.repeated for one in each)]
        for name, each in found.items()
    ]
    trial.table(
        f"Of {RECORDS} records in each rebalance",
        ["scenario", "rebalances", "lost", "repeated"],
        rows,
    )
    for library in CLIENTS:
        same, never, threads = (found[f"{library}, {way}"] for way in ways)
        repeated, control = ([one.repeated for one in each] for each in (same, never))
        lost = [one.lost for one in threads]
        killed = sum(one.status == -9 for one in threads)
        trial.control(
            f"{library}: without a commit, a rebalance repeats records",
            sum(control) > 0 or None,
            f"{sum(control)} repeated, in {_share(control, 'rebalance')}",
        )
        committed = [one.committed for one in (*same, *threads)]
        trial.control(
            f"{library}: the group has a position after the rebalance",
            all(committed),
            f"{sum(committed)} of {len(committed)}, without a commit"
            f" {sum(one.committed for one in never)} of {len(never)}",
        )
        trial.control(
            f"{library}: the members with threads were killed",
            killed == len(threads),
            f"{killed} of {len(threads)}",
        )
        trial.statement(
            "records processed in the reading thread are repeated",
            sum(repeated) > 0,
            f"{sum(repeated)} repeated, in {_share(repeated, 'rebalance')}",
            client=library,
        )
        trial.statement(
            "records handed to threads are lost if the member then dies",
            sum(lost) > 0,
            f"{sum(lost)} lost, in {_share(lost, 'kill')}",
            client=library,
        )


def _share(counts: Sequence[int], what: str) -> str:
    """Return how many trials showed something, with the bounds of their share."""
    return bounds.describe(sum(map(bool, counts)), len(counts), what)


@dataclass(frozen=True, slots=True)
class JoinEffect:
    """What was lost and repeated when a member joined, and how the first member ended.

    `committed` says whether the group had a position when the second member got a partition.
    """

    lost: int
    repeated: int
    status: int
    committed: bool


def _join(
    trial: Trial, scenario: Scenario, library: Library, *, kills: bool, **options: Any
) -> JoinEffect:
    """Let a second member join, and end the first one."""
    plan = crashes.plan(
        trial,
        topic=trial.topic(2),
        library=library,
        to_end=False,
        config={"auto.commit.interval.ms": crashes.NEVER_MS},
        **options,
    )
    crashes.publish(trial, scenario, plan.topic)
    first = scenario.start(
        crashes.mortal(trial, plan) if kills else msgspec.structs.replace(plan, member=FIRST)
    )
    enough = RECORDS if kills else 3 * BATCH
    trial.wait(lambda: _count(scenario, OperationKind.READ) >= enough, f"{enough} records read")
    joining = msgspec.structs.replace(plan, member=SECOND, pool=Pool.NONE, work_ms=0)
    with scenario.background(joining) as (second, _):
        trial.wait(lambda: len(second.assigned) == 1, "the second member to get a partition")
        positions = [
            committed_offsets.position(trial.cluster.connection, plan.group, plan.topic, part)
            for part in range(2)
        ]
        if kills:
            first.kill()
            status = first.wait()
            trial.wait(lambda: len(second.assigned) == 2, "the second member to get both")
            trial.wait(lambda: len(second.ends) == 2, "the second member to read to the end")
        else:
            trial.wait(lambda: not checkers.lost(scenario.history()), "the rest of the work")
            first.terminate()
            status = first.wait()
        first.close()
    operations = scenario.history()
    lost = checkers.lost(operations)
    trial.example(scenario, lost)
    return JoinEffect(
        lost.count,
        checkers.repeated(operations).count,
        status,
        committed=any(position is not None for position in positions),
    )


def _count(scenario: Scenario, kind: OperationKind) -> int:
    return sum(1 for _ in history.of(scenario.history(), kind))


DEFAULTS = {
    "enable.auto.commit": ("true",),
    "auto.commit.interval.ms": ("5000",),
    # largest is librdkafka's older name for it
    "auto.offset.reset": ("latest", "largest"),
}
# Values that are no defaults, to see whether each setting is read back.
PROBES = {
    "enable.auto.commit": "false",
    "auto.commit.interval.ms": "4321",
    "auto.offset.reset": "error",
}


@experiment(
    "commit-14",
    statement=(
        "By default a consumer commits automatically every 5,000 ms, in poll, and starts at the "
        "newest record"
    ),
    method=(
        "Ask the libraries for their defaults. Then let a consumer with automatic commit every "
        "200 ms hang within its first batch, without polling, and look at the broker for its "
        f"commit, until it appears or for {ABSENT_S:.0f} s; let it poll again, and look again."
    ),
    advice=(
        "Set enable.auto.commit and auto.offset.reset explicitly. Do not rely on poll to hold "
        "commits back: librdkafka commits from a background thread."
    ),
    why=(
        "The Java client looks at the clock when the program polls, and only then; with the "
        "consumer protocol a thread in the background sends that commit. librdkafka has a timer "
        "of its own, and commits what it has handed out."
    ),
    scope=(
        "Java client since 0.9, librdkafka since 0.9 and kafka-python; the Java consumer of "
        "0.8 had auto.commit.enable, and 60 s. The commits are measured with the Java client and "
        "librdkafka, with the classic protocol and the consumer protocol (since 4.0, librdkafka "
        "2.12). The "
        "interval is 200 ms in the experiment."
    ),
    sources=("documentation: enable.auto.commit", "librdkafka: configuration"),
)
def consumer_defaults(trial: Trial) -> None:
    old_release, old = defaults.of_java(OLD, defaults.JAVA_CONSUMER)
    trial.control(
        f"Java {old_release} had the defaults that its documentation lists",
        all(old.get(name, "").lower() in values for name, values in DEFAULTS.items()),
        ", ".join(f"{name}={old.get(name)}" for name in DEFAULTS),
    )
    senders.control_read_back(
        trial,
        PROBES,
        {
            Library.LIBRDKAFKA: defaults.of_librdkafka(list(PROBES), PROBES)[1],
            Library.KAFKA_PYTHON: defaults.of_kafka_python_consumer(PROBES)[1],
        },
    )
    clients = {
        Library.JAVA: defaults.of_java("kafka", defaults.JAVA_CONSUMER),
        Library.LIBRDKAFKA: defaults.of_librdkafka(list(DEFAULTS)),
        Library.KAFKA_PYTHON: defaults.of_kafka_python_consumer(),
    }
    trial.table(
        "Defaults of consumers",
        ["client", "release", *DEFAULTS],
        [
            [str(library), release, *(found.get(name, "none") for name in DEFAULTS)]
            for library, (release, found) in clients.items()
        ],
    )
    for library, (release, found) in clients.items():
        trial.statement(
            "automatic commit every 5,000 ms, and latest, are the defaults",
            all(found.get(name, "").lower() in values for name, values in DEFAULTS.items()),
            f"{release}: {', '.join(f'{name}={found.get(name)}' for name in DEFAULTS)}",
            client=library,
        )
    clients_and_protocols = [
        (library, protocol) for library in CLIENTS for protocol in trial.cluster.protocols
    ]
    positions = trial.together(
        {
            f"{library}, {protocol}": partial(_positions_of_hanging, trial, library, protocol)
            for library, protocol in clients_and_protocols
        }
    )
    for library, protocol in clients_and_protocols:
        seen = positions[f"{library}, {protocol}"]
        trial.control(
            f"{library}, {protocol} protocol: a consumer that polls commits",
            seen.polling >= BATCH,
            f"position {seen.polling}, {seen.commit_s:.1f} s after it polled again",
        )
        trial.statement(
            f"{protocol} protocol: the commit waits for the next poll",
            seen.waits,
            f"position {seen.hanging} after {seen.hung_s:.1f} s without poll,"
            f" {seen.polling} after polling again; the interval is {INTERVAL_MS} ms",
            client=library,
        )


@dataclass(frozen=True, slots=True)
class HangingCommits:
    """The committed positions of a consumer that did not poll for a while, and polled again.

    `commit_s` is the time from the next poll to its commit.
    """

    hanging: int
    hung_s: float
    polling: int
    commit_s: float

    @property
    def waits(self) -> bool | None:
        """Whether commits wait for poll; None if the broker was too slow to tell."""
        if self.hanging:
            return False
        return True if self.commit_s < self.hung_s / 2 else None


def _positions_of_hanging(trial: Trial, library: Library, protocol: str) -> HangingCommits:
    """Look for commits while a consumer does not poll, until one appears, and after it polled."""
    scenario = trial.scenario(f"{library}, {protocol}, hanging")
    config: dict[str, Any] = {
        "auto.commit.interval.ms": INTERVAL_MS,
        "group.protocol": protocol,
        # the brokers decide them with the consumer protocol
        "session.timeout.ms": None,
        "heartbeat.interval.ms": None,
    }
    plan = crashes.plan(
        trial,
        library=library,
        commit=CommitMode.AUTO,
        to_end=False,
        config=config,
    )
    crashes.publish(trial, scenario, plan.topic)
    release = trial.folder / f"{plan.topic}.release"
    plan = msgspec.structs.replace(plan, member=FIRST, hangs_on=5, hangs_until=str(release))
    stored = partial(
        committed_offsets.position, trial.cluster.connection, plan.group, plan.topic, 0
    )
    with scenario.background(plan):
        trial.wait(lambda: bool(_faults(scenario, "hangs")), f"{library} to hang")
        since = time.monotonic()
        # A commit may be late on a busy machine: only a long absence means something.
        wait_until(lambda: bool(stored()), ABSENT_S)
        hanging, hung_s = stored() or 0, time.monotonic() - since
        release.touch()
        since = time.monotonic()
        trial.wait(lambda: (stored() or 0) >= BATCH, "an automatic commit")
        commit_s = time.monotonic() - since
        polling = stored() or 0
    return HangingCommits(hanging, hung_s, polling, commit_s)


@experiment(
    "commit-16",
    statement="Committed offsets are stored in the topic __consumer_offsets",
    method=(
        "A consumer commits after each batch, with the Java client and with librdkafka; another "
        "one reads and never commits. Read the topic __consumer_offsets, decode it, and compare "
        "it with the commits that the consumers recorded, and with the positions that the "
        f"coordinator tells. As a control of the reading, make {KNOWN_COMMITS} commits by hand."
    ),
    advice=(
        "Never delete or truncate this topic, and give it three replicas "
        "(offsets.topic.replication.factor): it holds the positions of all groups. Inspect it with "
        "instep groups, not with a consumer."
    ),
    why=(
        "The coordinator of a group is the leader of the partition of this topic that the group's "
        "name selects. It writes each commit there as a record with group, topic and partition "
        "as its key, and reads them back when it starts. The topic is compacted, so that the "
        "last commit of each key remains until it expires."
    ),
    scope=(
        "Brokers since 0.8.2, and clients since 0.9 always; before, offsets were kept in "
        "ZooKeeper. Share groups keep their state in __share_group_state. Measured with the Java "
        "client and librdkafka. The lab's topic has 4 partitions, 50 by default."
    ),
    sources=("KAFKA-1012", "documentation: offsets.topic.replication.factor"),
)
def where_offsets_are_stored(trial: Trial) -> None:
    found = trial.together(
        {
            str(library): partial(_commit_each_batch, trial, library, CommitMode.SYNC)
            for library in CLIENTS
        }
        | {"none": partial(_commit_each_batch, trial, Library.LIBRDKAFKA, CommitMode.NEVER)}
    )
    by_hand, known = list(range(1, KNOWN_COMMITS + 1)), _commit_by_hand(trial)
    trial.control(
        f"{KNOWN_COMMITS} commits made by hand are found, in order",
        known == by_hand,
        f"{len(known)} entries",
    )
    recorded, stored, _ = found["none"]
    trial.control(
        "a consumer that never commits has nothing there",
        recorded == stored == [],
        f"{len(stored)} entries",
    )
    for library in CLIENTS:
        recorded, stored, at = found[library]
        trial.control(
            f"{library}: the coordinator has the last commit that the consumer recorded",
            at is not None and at == recorded[-1],
            f"position {at}",
        )
        trial.statement(
            "the topic has every commit, in order",
            stored == recorded != [],
            f"{len(stored)} entries for {len(recorded)} commits,"
            f" the last with offset {stored[-1] if stored else 'none'}",
            client=library,
        )


def _commit_each_batch(
    trial: Trial, library: Library, commit: CommitMode
) -> tuple[list[int], list[int], int | None]:
    """Return the commits that a consumer recorded, those in the offsets topic, and its position."""
    scenario = trial.scenario(f"{library}, {commit}")
    plan: Consuming = crashes.plan(trial, library=library, commit=commit)
    crashes.publish(trial, scenario, plan.topic)
    scenario.consume(msgspec.structs.replace(plan, member=FIRST))
    recorded = [one.offset or 0 for one in history.of(scenario.history(), OperationKind.COMMIT)]
    place = plan.group, plan.topic, 0
    stored = committed_offsets.commits(trial.cluster.connection, *place)
    return recorded, stored, committed_offsets.position(trial.cluster.connection, *place)


def _commit_by_hand(trial: Trial) -> list[int]:
    """Commit known offsets one after the other; return those that are found in the topic."""
    topic, group = trial.topic(1), trial.group()
    for offset in range(1, KNOWN_COMMITS + 1):
        groups.mirror(trial.cluster.kafka, group, topic, {0: offset})
    return committed_offsets.commits(trial.cluster.connection, group, topic, 0)


@experiment(
    "commit-17",
    statement="A consumer that hangs and comes back makes records repeat",
    method=(
        "A member hangs within a batch, without polling, with the Java client and with "
        "librdkafka. Another member joins. The first returns after max.poll.interval.ms, when "
        "the other one has done all the work, or before it, while the other one waits."
    ),
    advice=(
        "Set max.poll.interval.ms above the longest time that a batch may take, or read smaller "
        "batches (Java: max.poll.records; librdkafka: ask for fewer at once), and make the work "
        "safe to repeat."
    ),
    why=(
        "A member that does not poll in time leaves the group, although its heartbeats go on. "
        "The partition goes to another member, which starts at the last commit: what the first "
        "had processed since then is processed again. The first does not know it, and finishes "
        "its batch when it returns, which repeats the rest."
    ),
    scope=(
        "Java client since 0.10.1 (KIP-62), librdkafka since 1.0, with the classic protocol. "
        "Before, a Java member that did not poll sent no heartbeats; librdkafka noticed no hang. "
        + MAX_POLL_NOTE
    ),
    sources=("KIP-62", "documentation: max.poll.interval.ms"),
    rules=(),
)
def member_that_hangs(trial: Trial) -> None:
    found: dict[str, list[HangEffect]] = {}
    for number in trial.rounds(1, crashes.CRASHES):
        functions = {
            f"{library}, {length}": partial(
                crashes.undisturbed,
                trial,
                f"{library}, {length}, {number + 1}",
                partial(_hang, trial, library=library, too_long=length == "too long"),
            )
            for library in CLIENTS
            for length in ("too long", "not too long")
        }
        for name, effect in trial.together(functions).items():
            found.setdefault(name, []).append(effect)
    trial.table(
        f"Of {RECORDS} records in each round",
        ["scenario", "rounds", "repeated by the other", "repeated in all", "lost"],
        [
            [
                name,
                len(each),
                sum(one.worked_by_other for one in each),
                sum(one.repeated for one in each),
                sum(one.lost for one in each),
            ]
            for name, each in found.items()
        ],
    )
    for library in CLIENTS:
        long, short = (found[f"{library}, {length}"] for length in ("too long", "not too long"))
        for one in long:
            trial.example(one.scenario, checkers.repeated(one.scenario.history()))
        trial.control(
            f"{library}: a member that returns in time repeats nothing",
            not any(one.repeated for one in short),
            f"{sum(one.repeated for one in short)} repeated in {counted(len(short), 'round')}",
        )
        trial.statement(
            "another member works on the uncommitted records again",
            all(one.worked_by_other > 0 for one in long),
            f"{sum(one.worked_by_other for one in long)} records,"
            f" after {_share([one.worked_by_other for one in long], 'hang')}",
            client=library,
        )
        trial.statement(
            "the member that returns finishes its batch and repeats the rest",
            all(one.repeated > one.repeated_before for one in long),
            f"{sum(one.repeated - one.repeated_before for one in long)} records,"
            f" after {_share([one.repeated - one.repeated_before for one in long], 'hang')}",
            client=library,
        )
