"""Claims about topics: partitions, replicas, retention and lookup."""

from __future__ import annotations

import itertools
import statistics
import struct
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from instep import errors
from instep.kafka import configs, groups, layout, offsets, topics
from instep.kafka.admin import replication
from instep.report.tables import Cell, PlotKind
from instep_lab import checkers
from instep_lab.claim import experiment
from instep_lab.clients import bulk
from instep_lab.clients.consuming import CommitMode, Consuming
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind, OperationStatus
from instep_lab.trial import Scenario, Trial, spread

SEGMENT = 1 << 20  # the minimum of Kafka 4.3
DAY_MS = 24 * 3_600 * 1_000


def _rejection(request: Callable[[], object]) -> str | None:
    """Return the error with which the cluster rejects a request; None if it accepts it."""
    try:
        request()
    except errors.InstepError as error:
        return error.what
    return None


@experiment(
    "topic-1",
    statement="A topic cannot have more replicas than there are brokers",
    method=(
        "Create a topic with as many replicas as there are brokers, and try to create one with "
        "one more."
    ),
    advice=(
        "Run at least three brokers, and keep three replicas of everything that must not be lost."
    ),
    rules=("TOPIC_SINGLE_REPLICA", "CLUSTER_SINGLE_BROKER"),
)
def replicas_beyond_brokers(trial: Trial) -> None:
    brokers = trial.cluster.brokers
    trial.topic(1, replicas=brokers)
    trial.control(
        f"{brokers} replicas on {brokers} brokers are accepted", True, "the topic was created"
    )
    error = _rejection(lambda: trial.topic(1, replicas=brokers + 1))
    trial.statement(
        f"{brokers + 1} replicas are rejected", error is not None, error or "the topic was created"
    )


@experiment(
    "topic-2",
    statement="Partitions can be added but never removed",
    method="Increase a topic from 2 to 4 partitions, then request 3.",
    advice=(
        "Choose the number of partitions for the future load. Reducing it requires a new topic "
        "and a migration."
    ),
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def adding_and_removing_partitions(trial: Trial) -> None:
    topic = trial.topic(2)
    topics.grow(trial.cluster.kafka, topic, 4)
    count = len(layout.read(trial.cluster.kafka).topics[topic].partitions)
    trial.statement("partitions are added", count == 4, f"{count} after requesting 4")
    error = _rejection(lambda: topics.grow(trial.cluster.kafka, topic, 3))
    count = len(layout.read(trial.cluster.kafka).topics[topic].partitions)
    trial.statement(
        "partitions are not removed",
        error is not None and count == 4,
        f"{count} after requesting 3: {error}",
    )


@experiment(
    "topic-3",
    statement="Replicas can be added but never removed",
    method=(
        "Reassign a topic with records from 1 replica to 3, and back to 1. Read it after each step."
    ),
    advice=(
        "Change the number of replicas whenever the requirements change: instep topics replicate "
        "TOPIC --replicas N."
    ),
    rules=("TOPIC_SINGLE_REPLICA", "TOPIC_TWO_REPLICAS"),
    brokers=3,
)
def adding_and_removing_replicas(trial: Trial) -> None:
    cluster, scenario = trial.cluster.kafka, trial.scenario("reassigned")
    topic = trial.topic(1, replicas=1)
    scenario.publish(Publishing(topic=topic, count=1_000, seed=trial.seed))
    replica_counts: list[int] = []
    for replicas in (3, 1):
        replication.execute(cluster, topic, replication.plan(cluster, topic, replicas), trial.note)
        trial.cluster.wait_in_sync(topic)
        replica_counts.append(len(layout.read(cluster).topics[topic].partitions[0].replicas))
        group = trial.group()
        scenario.consume(
            Consuming(topic=topic, group=group, count=1_000, idle_s=20, commit=CommitMode.NEVER)
        )
        missing = checkers.lost(scenario.history(), group, by=OperationKind.READ).count
        trial.control(
            f"all records are there with {replicas} replicas",
            missing == 0,
            f"{missing} of 1,000 missing",
        )
    trial.control(
        "replicas are added", replica_counts[0] == 3, f"{replica_counts[0]} after requesting 3"
    )
    trial.statement(
        "replicas are never removed",
        replica_counts[1] == 3,
        f"{replica_counts[1]} after requesting 1",
    )


@experiment(
    "topic-4",
    statement="Reading does not delete records: a group can go back and read again",
    method=(
        "A group reads everything and commits. Its position is set to the start, to an offset "
        "and to a time, and it reads again each time."
    ),
    advice=(
        "Go back whenever a consumer's work has to be repeated: instep groups reset, or instep "
        "rewind for a pipeline."
    ),
)
def reading_again(trial: Trial) -> None:
    cluster, scenario = trial.cluster.kafka, trial.scenario("rewound")
    topic, group, count = trial.topic(1), trial.group(), 1_000
    now_ms = int(time.time() * 1000)
    for half in (0, 1):
        plan = Publishing(
            topic=topic,
            count=count // 2,
            seed=trial.seed,
            first=half * count,
            timestamp_ms=now_ms - (1 - half) * DAY_MS,
        )
        scenario.publish(plan)
    places = {
        "first read": (0, count),
        "to the start": (0, count),
        "to offset 700": (700, 300),
        "to a time": (
            offsets.at_time(cluster, topic, [0], datetime.fromtimestamp(now_ms / 1000, UTC))[0],
            count // 2,
        ),
    }
    for name, (place, expected) in places.items():
        if name != "first read":
            refused = groups.commit(cluster, group, {(topic, 0): place})
            trial.control(f"{name}: the position of the group was set", not refused, f"to {place}")
        member = f"reader {name}"
        scenario.consume(
            Consuming(topic=topic, group=group, member=member, to_end=True, commit=CommitMode.SYNC)
        )
        read = [
            one.offset
            for one in scenario.history()
            if one.kind is OperationKind.READ and one.member == member
        ]
        trial.statement(
            f"{name}: everything from there is read",
            read == list(range(count - expected, count)),
            f"{len(read)} of {expected}",
        )


def _segments(trial: Trial, topic: str) -> list[Path]:
    """Return the segment files of partition 0 on the lab's single broker, oldest first."""
    return sorted((trial.cluster.node(1).root / "data" / f"{topic}-0").glob("*.log"))


@experiment(
    "topic-5",
    statement="Old data is deleted by age or by size, one whole segment at a time",
    method=(
        "Create two topics with segments of 1 MiB: one keeps 2 MiB, one keeps records of the "
        "last hour. Send 5 MB, half of it with old timestamps in the second topic. Compare the "
        "start of the log with the segment files."
    ),
    advice=(
        "Retention is a lower bound: records live until their whole segment is old. Plan for the "
        "longest outage."
    ),
    rules=("TOPIC_RETENTION_SHORT", "TOPIC_RETENTION_BY_SIZE", "RECORDS_TIMESTAMPS_TOO_OLD"),
    harmless=False,
)
def retention_by_segment(trial: Trial) -> None:
    by_size, by_age = (
        trial.topic(1, retention_ms="-1", segment_bytes=str(SEGMENT)) for _ in range(2)
    )
    scenario = trial.scenario("filled")
    old = int(time.time() * 1000) - 2 * DAY_MS
    each = 2_500
    plan = Publishing(
        topic=by_size, seed=trial.seed, size=1_000, count=each, config={"batch.size": 50_000}
    )
    for half, timestamp_ms in ((0, old), (1, None)):
        sent = msgspec.structs.replace(plan, first=half * each)
        scenario.publish(sent)
        scenario.publish(msgspec.structs.replace(sent, topic=by_age, timestamp_ms=timestamp_ms))
    # only now, so that all segments exist before the first one is deleted
    bases = {
        topic: {int(file.stem) for file in _segments(trial, topic)} for topic in (by_size, by_age)
    }
    configs.alter_topic(trial.cluster.kafka, by_size, {"retention.bytes": str(2 * SEGMENT)})
    configs.alter_topic(trial.cluster.kafka, by_age, {"retention.ms": "3600000"})
    for name, topic in (("by size", by_size), ("by age", by_age)):
        trial.wait(partial(_is_trimmed, trial, topic), f"old data to be deleted {name}")
        first = _first(trial, topic)
        starts = ", ".join(f"{one:,}" for one in sorted(bases[topic]))
        trial.statement(
            f"{name}: the log begins at the start of a segment",
            first in bases[topic],
            f"offset {first:,} of {2 * each:,}; segments began at {starts}",
        )
    kept_old = each - _first(trial, by_age)
    trial.statement(
        "expired records stay until their segment is deleted",
        0 < kept_old < each,
        f"{max(kept_old, 0):,} of {each:,} records that are two days old are still there"
        " with a retention of one hour",
    )


def _first(trial: Trial, topic: str) -> int:
    return offsets.earliest(trial.cluster.kafka, topic, [0])[0]


def _is_trimmed(trial: Trial, topic: str) -> bool:
    """Return whether retention has deleted something and is done: two checks found no more."""
    before = _first(trial, topic)
    if before:
        time.sleep(1.2)  # longer than two intervals of the retention check
    return before > 0 and _first(trial, topic) == before


@experiment(
    "topic-6",
    statement="Finding a record by its offset takes the same time, however long the log is",
    method=(
        "Fill logs of 1, 10 and 100 times the length in one partition. Measure the time from "
        "seeking a random offset to receiving its record, for each length in turn."
    ),
    advice="Long retention costs disk space, not lookup time: keep as much as replays need.",
)
def seek_time_by_log_length(trial: Trial) -> None:
    base = trial.scaled(5_000, 50_000)
    lengths = [base, 10 * base, 100 * base]
    logs, group = {length: trial.topic(1) for length in lengths}, trial.group()
    for length, topic in logs.items():
        bulk.fill(trial.cluster.connection, topic, length)
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in trial.rounds(5, 20):
        for length, topic in logs.items():
            random_offsets = [trial.random.randrange(length) for _ in range(20)]
            times[length] += [
                one * 1000
                for one in bulk.seek_times(trial.cluster.connection, topic, random_offsets, group)
            ]
    medians = {length: statistics.median(found) for length, found in times.items()}
    rows: list[list[Cell]] = [
        [f"{length:,}", spread(found, " ms", 2)] for length, found in times.items()
    ]
    trial.table(
        "Time from the seek to the record",
        ["records in the log", "median (lowest to highest)"],
        rows,
    )
    trial.plot(
        "Time to find a record by its offset",
        "records in the log",
        "ms (median)",
        {"seek": [(length, medians[length]) for length in lengths]},
        PlotKind.LINES,
        log_x=True,
    )
    ratio = medians[lengths[-1]] / medians[base]
    trial.statement(
        "a log 100 times as long takes less than twice as long",
        ratio < 2,
        f"{ratio:.2f} times as long as in {base:,} records",
    )


@experiment(
    "topic-7",
    statement="Readers never see records beyond the high watermark",
    method=(
        "Freeze a follower that is in sync and send with acks=1: the leader has stored and "
        "acknowledged the records, the follower does not have them. Read; resume the follower; "
        "read again."
    ),
    advice=(
        "Everything that a reader has seen is on all in-sync replicas: it does not disappear "
        "when the leader dies."
    ),
    rules=("TOPIC_MIN_INSYNC_REPLICAS_ONE",),
    brokers=3,
    harmless=False,
)
def high_watermark(trial: Trial) -> None:
    scenario = trial.scenario("follower frozen")
    topic = trial.topic(1, replicas=3, min_insync_replicas="1")
    trial.cluster.wait_in_sync(topic)
    leader = layout.read(trial.cluster.kafka).topics[topic].partitions[0].leader
    assert trial.cluster.own is not None
    follower = next(node.node for node in trial.cluster.own.nodes if node.node != leader)
    sending = Publishing(
        topic=topic, count=100, seed=trial.seed, config={"acks": 1, "enable.idempotence": False}
    )
    scenario.publish(msgspec.structs.replace(sending, first=1_000, member="before"))
    with scenario.background(
        Consuming(topic=topic, group=trial.group(), commit=CommitMode.NEVER)
    ) as (
        reader,
        _,
    ):
        trial.wait(lambda: reader.read == 100, "the reader to have the first records")
        # The leader counts a frozen follower as in sync until replica.lag.time.max.ms has passed.
        # Meanwhile the high watermark cannot move past what the follower has.
        trial.freeze(follower)
        began = time.monotonic()
        scenario.publish(sending)
        answered = [
            one
            for one in scenario.history()
            if one.kind is OperationKind.SEND
            and one.outcome is OperationStatus.OK
            and one.member == "publisher"
        ]
        trial.wait(lambda: time.monotonic() - began > 1.0, "a second to pass")
        seen_frozen, frozen_s = reader.read - 100, time.monotonic() - began
        in_sync = layout.read(trial.cluster.kafka).topics[topic].partitions[0].in_sync
        trial.thaw(follower)
        trial.wait(lambda: reader.read == 200, "the reader to have everything")
    ends = max(((one.offset or 0) + 1 for one in answered), default=0)
    trial.control(
        "the leader had acknowledged the records",
        len(answered) == 100,
        f"{len(answered)} of 100 acknowledgements, up to offset {ends}",
    )
    trial.control(
        "the frozen follower still counted as in sync",
        follower in in_sync,
        f"broker {follower} of {in_sync}",
    )
    trial.statement(
        "while an in-sync follower lacks the records, nobody reads them",
        seen_frozen == 0,
        f"the leader's log ended at {ends}; readers had {100 + seen_frozen} records"
        f" after {frozen_s:.1f} s, all 200 later",
    )


@experiment(
    "topic-8",
    statement="A segment file is named after its first offset",
    method=(
        "Fill a topic with 1 MiB segments and compare each file name with the offset of the "
        "first batch in the file."
    ),
    advice="The name of the oldest file shows where a log begins. Never modify the files.",
    harmless=False,
)
def segment_file_names(trial: Trial) -> None:
    topic = trial.topic(1, segment_bytes=str(SEGMENT))
    bulk.fill(
        trial.cluster.connection, topic, trial.scaled(5_000, 20_000), 1_000, {"batch.size": 50_000}
    )
    found = {
        # A segment begins with the base offset of its first batch.
        file.name: struct.unpack(">q", file.read_bytes()[:8])[0]
        for file in _segments(trial, topic)
        if file.stat().st_size >= 8
    }
    trial.table(
        "Segment files",
        ["file", "first offset in it"],
        [[name, first] for name, first in found.items()],
    )
    trial.control("there are several segments", len(found) > 1, f"{len(found)} files")
    wrong = [name for name, first in found.items() if int(Path(name).stem) != first]
    trial.statement(
        "each file is named after its first offset",
        not wrong,
        f"{len(found) - len(wrong)} of {len(found)} files",
    )


@experiment(
    "topic-9",
    statement=(
        "When the leader dies, an in-sync follower takes over and no acknowledged record is lost"
    ),
    method=(
        "Three replicas, two of them required, acks=all. Kill the leader with -9 under a steady "
        "load. Measure the longest time without an acknowledged record, and compare the "
        "acknowledged records with the log."
    ),
    advice=(
        "Use three replicas, min.insync.replicas=2 and acks=all. Expect a pause as long as the "
        "session timeout of the brokers."
    ),
    rules=(
        "TOPIC_MIN_INSYNC_REPLICAS_ONE",
        "TOPIC_SINGLE_REPLICA",
        "TOPIC_UNCLEAN_ELECTION_ALLOWED",
        "PUBLISHER_ACKS_NOT_ALL",
    ),
    brokers=3,
    harmless=False,
)
def leader_failure(trial: Trial) -> None:
    pauses: list[float] = []
    leads: list[bool] = []
    lost = acknowledged = 0
    for number in trial.rounds(1, 5):
        pause, missing, of, moved = _leader_killed(trial, trial.scenario(f"round {number + 1}"))
        pauses.append(pause)
        leads.append(moved)
        lost, acknowledged = lost + missing, acknowledged + of
    trial.statement(
        "a follower that was in sync becomes the leader",
        all(leads),
        f"after {sum(leads)} of {len(leads)} kills",
    )
    trial.statement(
        "no acknowledged record is lost",
        lost == 0,
        f"{lost} of {acknowledged:,}; {spread(pauses, ' s')} without a response",
    )


def _leader_killed(trial: Trial, scenario: Scenario) -> tuple[float, int, int, bool]:
    """Kill the leader under load.

    Return the longest time without an acknowledgement, the number of lost and of acknowledged
    records, and whether an in-sync follower took over.
    """
    topic = trial.topic(1, replicas=3, min_insync_replicas="2")
    trial.cluster.wait_in_sync(topic)
    before = layout.read(trial.cluster.kafka).topics[topic].partitions[0]
    # Find the new leader soon: the defaults are five minutes and one minute.
    config = {"topic.metadata.refresh.interval.ms": 500, "socket.timeout.ms": 3_000}
    count = 1_000_000
    with scenario.background(
        Publishing(topic=topic, count=count, keys=10, seed=trial.seed, per_s=1_000, config=config)
    ) as (_, stop):
        trial.wait(lambda: scenario.acknowledged > 500, "half a second's records")
        trial.kill(before.leader or 0)
        done = scenario.acknowledged
        trial.wait(lambda: scenario.acknowledged > done + 1_000, "records to be accepted again")
        stop.set()
    after = layout.read(trial.cluster.kafka).topics[topic].partitions[0]
    trial.restart(before.leader or 0)
    sent = checkers.lost(scenario.history(), by=OperationKind.READ).of
    scenario.consume(
        Consuming(
            topic=topic, group=trial.group(), to_end=True, batch=1_000, commit=CommitMode.NEVER
        )
    )
    missing = checkers.lost(scenario.history(), by=OperationKind.READ).count
    times = sorted(
        one.at_ns
        for one in scenario.history()
        if one.kind is OperationKind.SEND and one.outcome is OperationStatus.OK
    )
    pause = max((later - earlier for earlier, later in itertools.pairwise(times)), default=0) / 1e9
    moved = after.leader != before.leader and after.leader in before.in_sync
    trial.note(f"broker {before.leader} led, now {after.leader} of {before.in_sync}")
    return pause, missing, sent, moved
