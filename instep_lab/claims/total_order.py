"""Claims about the order of a whole topic: sorting after reading, consumers, given partitions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from instep.report.tables import Cell
from instep_lab import checkers, history, members
from instep_lab.claim import experiment
from instep_lab.claims import ordering
from instep_lab.claims.ordering import KEYS
from instep_lab.clients.consuming import CommitMode, Consuming, Pool
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Publishing
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import Scenario, Trial

SLOW_MS = 1_000  # how long the slower of two senders collects records
WINDOWS_S = (0.0, 0.01, 0.1, 0.5, 2.0)
SHORT_S = 0.1


@experiment(
    "order-7",
    statement="Sorting records by time after reading restores the order of a whole topic",
    method=(
        "Send records to 3 partitions, read them all, sort them by their timestamps, and compare "
        "with the order of sending. Then read live, while one of two senders collects records for "
        "1 s: a reader that holds each record for a while hands them out by timestamp. Count the "
        "records that come after a newer one was handed out, for several times to wait."
    ),
    advice=(
        "Sort a finished backlog by a sequence number or a version, with the timestamp only as a "
        "hint. Do not sort a live stream: the reader has to wait as long as the slowest sender or "
        "partition may take, and whatever comes later is still out of order. Use one key per "
        "document, or compare versions in a guard."
    ),
    why=(
        "A finished backlog is complete, so sorting sees every record. A live reader cannot know "
        "whether an older record is still on its way: a sender may collect or retry, and a "
        "partition may wait for a new leader. Timestamps have milliseconds, and by default the "
        "sender's clock sets them, so they do not order records of the same millisecond."
    ),
    scope=(
        "All releases since 0.10, which introduced timestamps, and all clients; measured with "
        "librdkafka and CreateTime, the default of message.timestamp.type. All clients had the "
        "same clock: with several machines, their clocks differ as well. linger.ms=1000 stands "
        "for any delay of one sender."
    ),
    sources=("KIP-32", "documentation: message.timestamp.type"),
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def time_order_by_sorting(trial: Trial) -> None:
    count = trial.scaled(3_000, 30_000)
    scenario, topic = trial.scenario("finished backlog"), trial.topic(3)
    scenario.publish(
        Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed, config={"linger.ms": 1})
    )
    scenario.read_topic(topic, 3)
    reads = list(history.of(scenario.history(), OperationKind.READ))
    mixed, _ = late_records(reads)
    older, ties = late_records(sorted(reads, key=_timestamp))
    trial.control(
        "as read, some records are out of order", mixed > 0, f"{mixed:,} of {len(reads):,} late"
    )
    trial.statement(
        "a finished backlog, sorted by timestamp, is in the order of sending, to the millisecond",
        older == 0 and len(reads) == count,
        f"{older} of {len(reads):,} late",
    )
    trial.limit(
        "records of the same millisecond stay mixed",
        ties > 0 or None,
        f"{ties:,} of {len(reads):,} late",
    )
    _sort_live(trial)


def _sort_live(trial: Trial) -> None:
    """Count late records of a reader that holds each record for a while before it sorts."""
    scenario, topic, group = trial.scenario("live reader"), trial.topic(3), trial.group()
    count = trial.scaled(400, 3_000)
    reading = Consuming(topic=topic, group=group, commit=CommitMode.NEVER)
    with scenario.background(reading) as (progress, _):
        trial.wait(lambda: len(progress.assigned) == 3, "the reader to join its group")
        ordering.send_with_two(trial, scenario, topic, count, SLOW_MS)
        trial.wait(lambda: progress.read >= 2 * count, "the reader to catch up")
    reads = list(history.of(scenario.history(), OperationKind.READ))
    late = {window_s: late_with_window(reads, int(window_s * 1e9)) for window_s in WINDOWS_S}
    needed_s = needed_window(reads) / 1e9
    rows: list[list[Cell]] = [[f"{window_s:g} s", amount] for window_s, amount in late.items()]
    trial.table(
        f"A live reader, while one sender collects for {SLOW_MS / 1000:.0f} s",
        ["it holds each record for", f"late of {len(reads):,}"],
        [*rows, [f"{needed_s:.1f} s", late_with_window(reads, needed_window(reads))]],
    )
    trial.plot(
        "Records that come too late to be sorted",
        "the reader holds each record for (s)",
        "records",
        {"late": [(f"{window_s:g}", float(amount)) for window_s, amount in late.items()]},
    )
    trial.example(scenario, checkers.unsorted(scenario.history(), group))
    trial.control(
        "a live reader that does not wait gets some records late",
        late[0.0] > 0,
        f"{late[0.0]:,} of {len(reads):,} late",
    )
    trial.limit(
        f"a live reader that waits {SHORT_S:g} s still gets some records late",
        late[SHORT_S] > 0 or None,
        f"{late[SHORT_S]:,} of {len(reads):,} late; it would have to wait {needed_s:.1f} s",
    )


def _timestamp(read: ClientOperation) -> int:
    return read.timestamp_ms or 0


def late_records(reads: Sequence[ClientOperation]) -> tuple[int, int]:
    """Return how many records of one sender come after one that it sent later.

    First those that follow a record with a lower timestamp, then those whose only such
    predecessors have the same timestamp.
    """
    older = ties = 0
    highest = before = -1  # of all so far, and of those with a lower timestamp
    previous: int | None = None
    for one in reads:
        sequence = one.sequence or 0
        if one.timestamp_ms != previous:
            before, previous = highest, one.timestamp_ms
        if sequence < before:
            older += 1
        elif sequence < highest:
            ties += 1
        highest = max(highest, sequence)
    return older, ties


def late_with_window(reads: Sequence[ClientOperation], window_ns: int) -> int:
    """Count records that arrive after a newer record was handed out.

    The reader hands out a record once it has held it for the window.
    """
    late, next_out, newest = 0, 0, -1
    for one in reads:
        while reads[next_out].at_ns + window_ns < one.at_ns:
            newest = max(newest, _timestamp(reads[next_out]))
            next_out += 1
        late += _timestamp(one) < newest
    return late


def needed_window(reads: Sequence[ClientOperation]) -> int:
    """Return the shortest window, in ns, with which no record is late."""
    needed = 0
    newest: list[ClientOperation] = []  # the records that were newer than all before them
    for one in reads:
        overtaken_by = next((two for two in newest if _timestamp(two) > _timestamp(one)), None)
        if overtaken_by is not None:
            needed = max(needed, one.at_ns - overtaken_by.at_ns)
        elif not newest or _timestamp(one) > _timestamp(newest[-1]):
            newest.append(one)
    return needed


@experiment(
    "order-8",
    statement="Keeping the order of a whole topic requires one partition and a single consumer",
    method=(
        "Read one partition with one consumer, with a consumer that hands its records to 8 threads "
        "by record and by key, and with two members of a group. Read two partitions with two "
        "members. Count the records that were processed after a record that was sent later."
    ),
    advice=(
        "If the order of a whole topic matters, use one partition and process its records in one "
        "thread. A second member is only a spare: it takes over, but it does not share the work."
    ),
    why=(
        "Kafka orders records only within a partition, and hands a partition to one member of a "
        "group. What several threads or several members do at the same time has no order. A "
        "pool that is routed by key keeps the order of each key, but not that of the topic."
    ),
    scope=(
        "All releases since 0.9 and all clients, for consumer groups; measured with librdkafka "
        "and the range assignor. In a share group (Kafka 4.2) several members read one "
        "partition, without order."
    ),
    sources=("documentation: topics and partitions", "KIP-932"),
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def topic_order_with_several_consumers(trial: Trial) -> None:
    count = trial.scaled(600, 3_000)
    late: dict[str, checkers.Anomalies] = {}
    for name, pool in (
        ("one consumer", Pool.NONE),
        ("pool of 8 threads", Pool.BY_RECORD),
        ("pool of 8 threads, by key", Pool.BY_KEY),
    ):
        scenario = trial.scenario(name)
        ordering.work_in_pool(trial, scenario, pool, count)
        late[name] = _work_order(trial, scenario, count)
    busy = {}
    for partitions in (1, 2):
        name = f"two members, {partitions} partition{'s' * (partitions > 1)}"
        scenario, topic = trial.scenario(name), trial.topic(partitions)
        team = members.Team(trial, scenario, topic, members.RANGE, work_ms=1, seed=trial.seed)
        team.grow(2)
        members.settle(trial, [team], partitions)
        scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
        trial.wait(partial(_has_read, team, count), "the group to read")
        team.close()
        late[name] = _work_order(trial, scenario, count)
        busy[partitions] = len(checkers.shares(scenario.history(), team.group))
    evidence = {name: f"{one.count:,} of {one.of:,} late" for name, one in late.items()}
    trial.plot(
        "Records processed after a record that was sent later",
        "consumers",
        "records",
        {"late": [(name, float(one.count)) for name, one in late.items()]},
    )
    first = "one consumer"
    trial.control(
        "one partition, one consumer: no record is late", not late[first], evidence[first]
    )
    for name in ("pool of 8 threads", "pool of 8 threads, by key", "two members, 2 partitions"):
        trial.statement(f"{name}: some records are late", bool(late[name]) or None, evidence[name])
    idle = "two members, 1 partition"
    trial.statement(
        f"{idle}: one of them stays idle, and no record is late",
        not late[idle] and busy[1] == 1,
        f"{evidence[idle]}; {busy[1]} of 2 members read",
    )


def _has_read(team: members.Team, count: int) -> bool:
    return sum(one.read for one in team.members) >= count


def _work_order(trial: Trial, scenario: Scenario, count: int) -> checkers.Anomalies:
    """Return the records that were processed late; control that all were processed."""
    operations = scenario.history()
    lost = checkers.lost(operations)
    trial.control(
        f"{scenario.name}: every record was processed",
        not lost and lost.of == count,
        f"{lost.of - lost.count:,} of {count:,}",
    )
    late = checkers.unsorted(operations, by=OperationKind.WORK)
    trial.example(scenario, late)
    return late


@experiment(
    "order-9",
    statement="Everything that a producer sends to one given partition stays in order",
    method=(
        "With both clients, send records with 20 keys to partition 0 of a topic with 3 "
        "partitions, and read the topic. Count the records elsewhere and the late ones. As a "
        "control, send the same records without naming a partition."
    ),
    advice=(
        "Name the partition only if you need the order of records with different keys. All "
        "producers and readers then have to know the rule, and the load is yours to balance. "
        "Otherwise use keys."
    ),
    why=(
        "A record with a partition bypasses the partitioner. The partition is a log in the order "
        "of arrival, and one producer sends the batches of a partition in the order in which it "
        "got the records."
    ),
    scope=(
        "All releases since 0.8.2 of the Java client, and librdkafka, for one producer that "
        "does not reorder when it retries (order-5). With several producers, the order is that "
        "of arrival (order-2)."
    ),
    sources=("documentation: topics and partitions", "documentation: KafkaProducer"),
    rules=("RECORDS_WITHOUT_KEY",),
)
def order_in_a_given_partition(trial: Trial) -> None:
    count = trial.scaled(1_000, 10_000)
    for library in (Library.JAVA, Library.LIBRDKAFKA):
        late, read, places = {}, {}, {}
        for given in (True, False):
            name = "partition 0" if given else "no partition given"
            scenario, topic = trial.scenario(f"{library}, {name}"), trial.topic(3)
            scenario.publish(
                Publishing(
                    topic=topic,
                    count=count,
                    keys=KEYS,
                    seed=trial.seed,
                    by_number=1 if given else None,
                    library=library,
                )
            )
            scenario.read_topic(topic, 3)
            operations = scenario.history()
            reads = list(history.of(operations, OperationKind.READ))
            read[given] = len(reads)
            # By the numbers that the producer gave the records when it got them.
            late[given] = sum(late_records(reads))
            places[given] = {one.partition for one in reads}
        trial.statement(
            "everything sent to one partition is there, in the order of sending",
            places[True] == {0} and not late[True] and read[True] == count,
            f"{late[True]} of {read[True]:,} late, in partition {_listed(places[True])}",
            client=library,
        )
        trial.control(
            f"{library}: without a given partition, records are spread and come late",
            len(places[False]) > 1 and late[False] > 0 and read[False] == count,
            f"{late[False]:,} of {read[False]:,} late, in partitions {_listed(places[False])}",
        )


def _listed(partitions: set[int | None]) -> str:
    return ", ".join(str(number) for number in sorted(one or 0 for one in partitions))
