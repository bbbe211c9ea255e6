"""Claims about topics: partitions, replicas, retention and lookup."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from instep import errors
from instep.kafka import configs, groups, layout, offsets, topics
from instep.kafka.admin import replication
from instep.report.tables import Cell, PlotKind
from instep.waiting import wait_until
from instep_lab import bounds, checkers, history, log_files, workload
from instep_lab.claim import experiment
from instep_lab.claims import senders
from instep_lab.clients import admin, bulk
from instep_lab.clients.consuming import CommitMode, Consuming
from instep_lab.clients.publishing import Publishing
from instep_lab.history import ClientOperation, OperationKind, OperationStatus
from instep_lab.joining import TwoBrokers
from instep_lab.trial import Scenario, Trial, spread

SEGMENT = 1 << 20  # the minimum of Kafka 4.3
DAY_MS = 24 * 3_600 * 1_000
BEHIND = 100  # records that a frozen follower lacks
WATCHED_S = 1.0
PATIENCE_S = 20.0
FASTER, SLOWER = 2.0, 5.0
FREEZES = 30  # of a follower, in the full tier
ATTEMPTS_MAX = 5
BY_RACK = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _rejection(request: Callable[[], object]) -> tuple[str, str]:
    """Return the code and the text of the error with which the cluster rejects a request.

    Both are empty if it accepts the request.
    """
    try:
        request()
    except errors.InstepError as error:
        code = admin.code(error)
        if code is None:
            raise  # no answer of the cluster
        return code, error.what
    return "", ""


def _partition(trial: Trial, topic: str, node: int = 1) -> Path:
    """Return the folder of partition 0 on a broker of the lab."""
    return trial.cluster.node(node).root / "data" / f"{topic}-0"


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
    why=(
        "Each replica of a partition is on another broker: two on one broker would be lost "
        "together. The controller refuses a topic with more replicas than registered brokers, "
        "with INVALID_REPLICATION_FACTOR."
    ),
    scope=(
        "All releases since 0.8, which brought replication, and all clients. KRaft controllers "
        "also place replicas on brokers that are registered but down at the moment."
    ),
    sources=("documentation: replication",),
    rules=("TOPIC_SINGLE_REPLICA", "CLUSTER_SINGLE_BROKER"),
)
def replicas_beyond_brokers(trial: Trial) -> None:
    brokers = trial.cluster.brokers
    topic = trial.topic(1, replicas=brokers)
    trial.cluster.wait_in_sync(topic)
    replicas = layout.read_topic(trial.cluster.kafka, topic).partitions[0].replicas
    trial.control(
        "as many replicas as brokers are accepted",
        len(set(replicas)) == brokers,
        f"a topic with {len(set(replicas))} replicas on {brokers} brokers",
    )
    code, text = _rejection(lambda: trial.topic(1, replicas=brokers + 1))
    # another error would not be about the number of replicas
    rejected: bool | None = code == "INVALID_REPLICATION_FACTOR"
    if code and not rejected:
        rejected = None
    trial.statement(
        f"{brokers + 1} replicas are rejected",
        rejected,
        f"{code}: {text}" if code else "the topic was created",
    )


@experiment(
    "topic-2",
    statement="Partitions can be added but never removed",
    method="Increase a topic from 2 to 4 partitions, then request 3.",
    advice=(
        "Choose the number of partitions for the future load. Reducing it requires a new topic "
        "and a migration."
    ),
    why=(
        "A new partition begins empty, so it can be added at any time. Removing one would mean to "
        "delete its records or to move them into other logs, which would change their offsets and "
        "the order of the log. The controller refuses it with INVALID_PARTITIONS."
    ),
    scope=(
        "All releases since 0.8 and all clients. Adding partitions moves keys to other "
        "partitions, so order-6 applies."
    ),
    sources=("documentation: modifying topics",),
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def adding_and_removing_partitions(trial: Trial) -> None:
    topic = trial.topic(2)
    topics.grow(trial.cluster.kafka, topic, 4)
    count = len(layout.read_topic(trial.cluster.kafka, topic).partitions)
    trial.statement("partitions are added", count == 4, f"{count} after requesting 4")
    code, text = _rejection(lambda: topics.grow(trial.cluster.kafka, topic, 3))
    count = len(layout.read_topic(trial.cluster.kafka, topic).partitions)
    kept: bool | None = code == "INVALID_PARTITIONS" and count == 4
    if code not in ("", "INVALID_PARTITIONS"):
        kept = None  # the request failed for another reason
    trial.statement("partitions are not removed", kept, f"{count} after requesting 3: {text}")


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
    why=(
        "The replicas of a partition are a list of brokers in the cluster's metadata. A "
        "reassignment may name any list: new replicas copy the log first, then those that are not "
        "in the new list are deleted. Leader, offsets and records stay."
    ),
    scope=(
        "All releases since 0.8.1, by reassignment: the tool kafka-reassign-partitions, and since "
        "2.4 every admin client (KIP-455). kafka-topics --alter cannot change replicas, which is "
        "where the belief comes from."
    ),
    sources=("KIP-455", "documentation: replication factor"),
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
        replica_counts.append(len(layout.read_topic(cluster, topic).partitions[0].replicas))
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
    why=(
        "A log is not a queue: a reader only moves its own position, and the broker deletes by age "
        "or size. A commit is one more number for the group. So any position within the log can "
        "be committed, and the group reads from there."
    ),
    scope=(
        "All releases since 0.8 and all clients (measured with librdkafka), as far back as "
        "retention reaches and, in a compacted topic, only the records that compaction has "
        "left. Share groups (4.2) acknowledge single records, but do not delete them either."
    ),
    sources=("documentation: the consumer",),
)
def reading_again(trial: Trial) -> None:
    cluster, scenario = trial.cluster.kafka, trial.scenario("rewound", commits_move=True)
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
    end = offsets.latest(cluster, topic, [0])[0]
    trial.control("the log has all records", end == count, f"it ends at {end:,} of {count:,}")
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
    why=(
        "A broker deletes files, not records. A segment expires when its newest record is older "
        "than retention.ms, or when the segments after it already have retention.bytes. The "
        "timestamps are those of the records, by default set by the sender."
    ),
    scope=(
        "All releases since 0.10.1, which added time indexes; before, the age of the file "
        "counted. The check runs every 0.5 s here, every 5 minutes by default "
        "(log.retention.check.interval.ms). A segment is closed after segment.bytes (1 MiB here, "
        "1 GiB by default) or segment.ms (7 days)."
    ),
    sources=("documentation: retention", "documentation: segment.bytes"),
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
        topic: {int(file.stem) for file in log_files.segments(_partition(trial, topic))}
        for topic in (by_size, by_age)
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
        "Fill logs of 1, 10 and 100 times the length in one partition, with segments of 1 MiB. "
        "Measure the time from seeking a random offset to receiving its record, for each length "
        "in turn."
    ),
    advice=(
        "Long retention costs disk space, not lookup time: keep as much as replays need. Reading "
        "old records from disk instead of memory costs one disk access more."
    ),
    why=(
        "The broker keeps the first offsets of all segments in memory, sorted, and each segment "
        "has an index with an entry for about every 4 kB. A lookup is two binary searches and a "
        "scan of at most 4 kB, so it grows with the logarithm of the length, which is hard to see."
    ),
    scope=(
        "All releases since 0.8 and all clients; measured with librdkafka. The records were in "
        "the page cache of the operating system, as recent ones usually are; the first access "
        "to records that are only on disk takes as long as the disk, however long the log is. "
        "index.interval.bytes is 4,096 by default."
    ),
    sources=("documentation: log",),
    alone=True,
)
def seek_time_by_log_length(trial: Trial) -> None:
    base = trial.scaled(5_000, 50_000)
    lengths = [base, 10 * base, 100 * base]
    logs = {length: trial.topic(1, segment_bytes=str(SEGMENT)) for length in lengths}
    group = trial.group()
    for length, topic in logs.items():
        # batches that are small against a segment
        trial.fill(topic, length, config={"batch.size": 50_000})
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in trial.rounds(5, 20):
        for length, topic in logs.items():
            random_offsets = [trial.random.randrange(length) for _ in range(20)]
            times[length] += [
                one * 1000
                for one in bulk.seek_times(trial.cluster.connection, topic, random_offsets, group)
            ]
    medians = {length: statistics.median(found) for length, found in times.items()}
    segments: dict[int, int | None] = dict.fromkeys(lengths)
    if trial.cluster.own:
        segments |= {
            length: len(log_files.segments(_partition(trial, topic)))
            for length, topic in logs.items()
        }
        longest = segments[lengths[-1]] or 0
        trial.control(
            "the longest log has many segments", longest >= 40, f"{longest} segments of 1 MiB"
        )
    rows: list[list[Cell]] = [
        [f"{length:,}", segments[length], spread(found, " ms", 2)]
        for length, found in times.items()
    ]
    trial.table(
        "Time from the seek to the record, in the page cache",
        ["records in the log", "segments", "median (lowest to highest)"],
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
    # A lookup that reads the log would take 100 times as long; what lies between may be chance.
    same: bool | None = ratio < FASTER if ratio < FASTER or ratio > SLOWER else None
    trial.statement(
        "a log 100 times as long takes less than twice as long",
        same,
        f"{ratio:.2f} times as long as in {base:,} records, all in the page cache",
    )


@dataclass(frozen=True)
class FrozenFollower:
    """What was seen while a follower with an old end of the log was frozen.

    `ends` are the log end offsets of the replicas, from their files; `last_offset` is that of the
    last record, by its acknowledgement.
    """

    leader: int
    follower: int
    ends: Mapping[int, int]
    in_sync: tuple[int, ...]
    acknowledged: int
    last_offset: int
    seen_frozen: int
    seen_later: int
    usual_s: float
    watched_s: float
    record: str
    operations: Sequence[str]

    @property
    def described_ends(self) -> str:
        return ", ".join(f"{end} on broker {node}" for node, end in sorted(self.ends.items()))


@experiment(
    "topic-7",
    statement="Readers never see records beyond the high watermark",
    method=(
        "Freeze a follower that is in sync and send with acks=1: the leader has stored and "
        "acknowledged the records, the follower does not have them. Read for a second; resume the "
        "follower; read again. Compare with the ends of the replicas' files, and these with the "
        "offset of the last record."
    ),
    advice=(
        "Everything that a reader has seen is on all replicas that are in sync. Use "
        "min.insync.replicas=2, so that there are at least two of them: with 1, a record that was "
        "readable can vanish with the only replica in sync."
    ),
    why=(
        "The leader serves consumers only up to the high watermark, the lowest log end of the "
        "replicas in sync. A follower reports its log end with each fetch. A frozen follower "
        "fetches nothing, so the high watermark stays where the follower was until the leader or "
        "the controller removes it from the in-sync set. A log end offset is that of the next "
        "record: one more than that of the last."
    ),
    scope=(
        "All releases since replication was added in 0.8, all clients; measured with librdkafka. "
        "A follower counts as in sync for up to replica.lag.time.max.ms (30 s by default) without "
        "a fetch, and in KRaft clusters until broker.session.timeout.ms is over: 3 s here, 9 s by "
        "default. Since 3.7 the high watermark also waits for min.insync.replicas."
    ),
    sources=("documentation: replication", "KAFKA-15583"),
    rules=("TOPIC_MIN_INSYNC_REPLICAS_ONE",),
    brokers=3,
    harmless=False,
)
def high_watermark(trial: Trial) -> None:
    found = [
        _read_while_in_sync(trial, f"follower frozen {number + 1}")
        for number in trial.rounds(1, FREEZES)
    ]
    last = found[-1]
    trial.show(f"readable only when the follower is resumed: {last.record}", last.operations)
    held = [one for one in found if one.follower in one.in_sync]
    trial.control(
        "the leader had stored and acknowledged the records",
        all(one.acknowledged == BEHIND and one.ends[one.leader] == 2 * BEHIND for one in found),
        f"{last.acknowledged} of {BEHIND} acknowledgements; log ends: {last.described_ends}",
    )
    trial.control(
        "the frozen follower lacked them and still counted as in sync",
        (len(held) == len(found) and all(one.ends[one.follower] == BEHIND for one in held)) or None,
        f"broker {last.follower} in {list(last.in_sync)}",
    )
    trial.control(
        "readers see records at once if no follower is frozen, and all of them later",
        all(one.usual_s < one.watched_s and one.seen_later == BEHIND for one in found),
        f"{spread([one.usual_s * 1000 for one in found], ' ms')} after the acknowledgement;"
        f" {last.seen_later} of {BEHIND} after the follower was resumed",
    )
    seen = [one.seen_frozen for one in found]
    trial.statement(
        "while an in-sync follower lacks the records, nobody reads them",
        not any(seen),
        f"{sum(seen)} of {BEHIND * len(found)} were read in {last.watched_s:.1f} s"
        f" ({bounds.describe(sum(map(bool, seen)), len(seen), 'freeze')})",
    )
    trial.statement(
        "the log end offset is that of the last record plus one",
        all(one.ends[one.leader] == one.last_offset + 1 for one in found),
        f"the last record has offset {last.last_offset},"
        f" the log of the leader ends at {last.ends[last.leader]}",
    )


def _read_while_in_sync(trial: Trial, name: str) -> FrozenFollower:
    """Read while a frozen follower is in sync; try again if the machine was too busy.

    The controller removes the follower after three seconds, and the reader must be faster than the
    time for which it is watched.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        scenario = trial.scenario(f"{name}, attempt {attempt}")
        found = _behind_frozen_follower(trial, scenario, until_out=False)
        if found.follower in found.in_sync and found.usual_s < found.watched_s:
            break
    return found


def _behind_frozen_follower(trial: Trial, scenario: Scenario, *, until_out: bool) -> FrozenFollower:
    """Send and read while a follower is frozen: while it is in sync, or until it is not."""
    first = trial.random.randrange(3)
    topic = trial.topic(1, brokers=senders.nodes_from(first), min_insync_replicas="1")
    trial.cluster.wait_in_sync(topic)
    # Asked before the freeze: a client may be connected to the frozen broker.
    part = layout.read_topic(trial.cluster.kafka, topic).partitions[0]
    leader = part.leader or part.replicas[0]
    follower = next(node for node in part.replicas if node != leader)
    connection = {
        **trial.cluster.connection,
        "bootstrap.servers": trial.cluster.node(leader).address,
    }

    def ends() -> dict[int, int]:
        return {node: log_files.end(_partition(trial, topic, node)) for node in part.replicas}

    sending = Publishing(topic=topic, count=BEHIND, seed=trial.seed, config=senders.plain("1"))
    reading = Consuming(
        topic=topic,
        group=trial.group(),
        assigned=[0],
        from_start=True,
        commit=CommitMode.NEVER,
    )
    with scenario.background(reading, connection) as (reader, _):
        half = msgspec.structs.replace(sending, count=BEHIND // 2, first=1_000, member="before")
        scenario.publish(half, connection)
        trial.wait(lambda: reader.read == half.count, "the reader to have the first records")
        # only now, without the time to connect
        scenario.publish(msgspec.structs.replace(half, first=2_000), connection)
        began = time.monotonic()
        trial.wait(lambda: reader.read == BEHIND, "the reader to have further records")
        usual_s = time.monotonic() - began
        trial.wait(lambda: set(ends().values()) == {BEHIND}, "all replicas to have the records")
        trial.freeze(follower)
        scenario.note_fault("the follower is frozen")
        try:
            scenario.publish(sending, connection)
            began = time.monotonic()
            if until_out:
                trial.wait(
                    lambda: follower not in admin.in_sync_by(connection, topic),
                    "the follower to be out of sync",
                )
                wait_until(lambda: reader.read == 2 * BEHIND, PATIENCE_S)
            else:
                trial.wait(lambda: time.monotonic() - began > WATCHED_S, "a second to pass")
            seen, watched_s = reader.read - BEHIND, time.monotonic() - began
            ended, members = ends(), admin.in_sync_by(connection, topic)
        finally:
            scenario.note_fault("the follower is resumed")
            trial.thaw(follower)
        trial.wait(lambda: reader.read == 2 * BEHIND, "the reader to have everything")
        later = reader.read - BEHIND
    operations = scenario.history()
    answered = [
        one for one in history.of(operations, OperationKind.SEND) if one.member == sending.member
    ]
    record, around = _around_first(operations, answered)
    trial.cluster.wait_in_sync(topic)
    return FrozenFollower(
        leader,
        follower,
        ended,
        members,
        len(answered),
        max((one.offset or 0 for one in answered), default=-1),
        seen,
        later,
        usual_s,
        watched_s,
        record,
        around,
    )


def _around_first(
    operations: Sequence[ClientOperation], answered: Sequence[ClientOperation]
) -> tuple[str, list[str]]:
    """Return the first record that was sent during a freeze, with what happened around it."""
    if not answered:
        return "", []
    first = answered[0]
    reads = list(history.of(operations, OperationKind.READ))
    places = [index for index, one in enumerate(reads) if one.record == first.record]
    near = reads[max(0, places[0] - 3) : places[0] + 4] if places else reads[-3:]
    faults = history.of(operations, OperationKind.FAULT)
    return f"{first.key}#{first.number}", history.excerpt(
        operations, [*answered[:3], *faults, *near]
    )


@experiment(
    "topic-8",
    statement="A segment file is named after its first offset",
    method=(
        "Fill a topic with 1 MiB segments and compare each file name with the offset of the "
        "first batch in the file. List the suffixes."
    ),
    advice=(
        "The name of the oldest .log file shows where a log begins, unless the topic is "
        "compacted. Never modify the files."
    ),
    why=(
        "The name is the base offset of the segment, with 20 digits, so that the broker finds the "
        "segment of an offset by the names alone. Each segment has an index by offset and one by "
        "time with the same name. Compaction removes records and merges segments, but keeps the "
        "name of the first one."
    ),
    scope=(
        "All releases since 0.8; the suffix is .log (.kafka was that of 0.7 and earlier). In a "
        "compacted topic, the first record of a file may have a higher offset than its name."
    ),
    sources=("documentation: log",),
    harmless=False,
)
def segment_file_names(trial: Trial) -> None:
    topic = trial.topic(1, segment_bytes=str(SEGMENT))
    trial.fill(topic, trial.scaled(5_000, 20_000), 1_000, {"batch.size": 50_000})
    folder = _partition(trial, topic)
    offsets_by_file = {
        file.name: log_files.first_offset(file) for file in log_files.segments(folder)
    }
    found = {name: first for name, first in offsets_by_file.items() if first is not None}
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
    value = workload.WorkloadRecord("k7", 7, 1_000).value
    with_record = sorted(file.name for file in folder.iterdir() if value in file.read_bytes())
    suffixes = sorted({file.suffix for file in folder.iterdir()})
    trial.statement(
        "the suffix of the files with records is .log",
        {Path(name).suffix for name in with_record} == {log_files.SUFFIX},
        f"a record was found in {', '.join(with_record[:2]) or 'no file'};"
        f" suffixes in the folder: {', '.join(suffixes)}",
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
        "Use three replicas, min.insync.replicas=2 and acks=all. Expect a pause of about "
        "broker.session.timeout.ms, 9 s by default, and let clients wait longer than that."
    ),
    why=(
        "With acks=all the leader responds when every replica in sync has the record, so each of "
        "them can take over without a loss. The controller notices a killed broker when its "
        "session expires and then elects a new leader from the in-sync set. Clients learn of it "
        "from the metadata and send again what was not acknowledged."
    ),
    scope=(
        "All releases since 0.8; measured with librdkafka, Kafka 4.3, acks=all, three "
        "replicas, min.insync.replicas=2, unclean elections off (the default since 0.11). The "
        "pauses are those with broker.session.timeout.ms=3000; the default of 9000 makes them "
        "up to 6 s longer. A clean shutdown hands leadership over within milliseconds. kill -9 "
        "is not a power failure: see storage-1."
    ),
    sources=("documentation: replication", "documentation: broker.session.timeout.ms"),
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
    kills = [
        _kill_leader(trial, trial.scenario(f"kill {number + 1}")) for number in trial.rounds(1, 30)
    ]
    early = sum(one.lost_before.count for one in kills)
    trial.control(
        "before a kill, every acknowledged record is in the log",
        early == 0,
        f"{early} of {sum(one.lost_before.of for one in kills):,} missing",
    )
    pauses = [one.pause_s for one in kills]
    trial.control(
        "the kills interrupted the sending",
        all(pause > 0.5 for pause in pauses),
        f"{spread(pauses, ' s')} without a response, with broker.session.timeout.ms=3000"
        " (default 9000)",
    )
    trial.statement(
        "a follower that was in sync becomes the leader",
        all(one.moved for one in kills),
        bounds.describe(sum(one.moved for one in kills), len(kills), "kill"),
    )
    losses = [one.lost.count for one in kills]
    with_loss = bounds.describe(sum(map(bool, losses)), len(kills), "kill")
    trial.statement(
        "no acknowledged record is lost",
        sum(losses) == 0,
        f"{with_loss}; {sum(losses)} of {sum(one.lost.of for one in kills):,} records",
    )


@dataclass(frozen=True)
class LeaderKill:
    """What one kill of a leader did.

    `lost_before` are the records that were missing before the kill, `pause_s` is the longest time
    without an acknowledgement, and `moved` says whether an in-sync follower took over.
    """

    lost_before: checkers.Anomalies
    lost: checkers.Anomalies
    pause_s: float
    moved: bool


def _kill_leader(trial: Trial, scenario: Scenario) -> LeaderKill:
    """Kill the leader of a topic under load."""
    topic = trial.topic(1, replicas=3, min_insync_replicas="2")
    trial.cluster.wait_in_sync(topic)
    before = layout.read_topic(trial.cluster.kafka, topic).partitions[0]
    # Find the new leader soon: the defaults are five minutes and one minute.
    config = {"topic.metadata.refresh.interval.ms": 500, "socket.timeout.ms": 3_000}
    sending = Publishing(
        topic=topic, count=senders.FOREVER, seed=trial.seed, per_s=1_000, config=config
    )
    with scenario.background(sending) as (_, stop):
        soon = trial.random.randrange(300, 1_000)
        trial.wait(lambda: scenario.acknowledged > soon, f"{soon} records")
        sent = scenario.history()
        _read_to_end(scenario, topic, "before")
        reads = [one for one in scenario.history() if one.kind is OperationKind.READ]
        lost_before = checkers.lost([*sent, *reads], by=OperationKind.READ)
        trial.kill(before.leader or 0)
        done = scenario.acknowledged
        trial.wait(lambda: scenario.acknowledged > done + 1_000, "records to be accepted again")
        stop.set()
    after = layout.read_topic(trial.cluster.kafka, topic).partitions[0]
    trial.restart(before.leader or 0)
    trial.wait_for_stable_end(topic, 1)
    _read_to_end(scenario, topic, "after")
    lost = checkers.lost(scenario.history(), "after", by=OperationKind.READ)
    trial.example(scenario, lost)
    times = sorted(
        one.at_ns
        for one in scenario.history()
        if one.kind is OperationKind.SEND and one.outcome is OperationStatus.OK
    )
    pause = max((later - earlier for earlier, later in itertools.pairwise(times)), default=0) / 1e9
    moved = after.leader != before.leader and after.leader in before.in_sync
    trial.note(f"broker {before.leader} led, now {after.leader} of {before.in_sync}")
    return LeaderKill(lost_before, lost, pause, moved)


def _read_to_end(scenario: Scenario, topic: str, group: str) -> None:
    scenario.consume(
        Consuming(
            topic=topic,
            group=group,
            assigned=[0],
            from_start=True,
            to_end=True,
            batch=1_000,
            commit=CommitMode.NEVER,
        )
    )


@experiment(
    "topic-10",
    statement="The high watermark is the lowest log end of all replicas",
    method=(
        "Freeze one of three replicas and send. Wait until the frozen follower is not in the "
        "in-sync set any more, and read. The end of its log is read from its files."
    ),
    advice=(
        "Count in-sync replicas, not all replicas: alert on under-replicated partitions, and "
        "set min.insync.replicas=2."
    ),
    why=(
        "The high watermark is the lowest log end of the in-sync set, not of all assigned "
        "replicas. A follower that has not caught up for replica.lag.time.max.ms, or whose broker "
        "is not alive, is removed from that set, and readers do not wait for it any more. "
        "Otherwise one dead broker would stop all reading."
    ),
    scope=(
        "All releases since 0.8, all clients; measured with librdkafka. The wait is up to "
        "replica.lag.time.max.ms (30 s by default), and in KRaft clusters at most "
        "broker.session.timeout.ms after a broker has stopped responding: 3 s here, 9 s by "
        "default. With fewer than min.insync.replicas in sync, the high watermark stops since "
        "3.7."
    ),
    sources=("documentation: replication", "KAFKA-15583"),
    rules=("TOPIC_MIN_INSYNC_REPLICAS_ONE",),
    brokers=3,
    harmless=False,
)
def high_watermark_of_all_replicas(trial: Trial) -> None:
    found = [
        _behind_frozen_follower(
            trial, trial.scenario(f"follower out of sync {number + 1}"), until_out=True
        )
        for number in trial.rounds(1, FREEZES)
    ]
    last = found[-1]
    trial.control(
        "the leader had stored and acknowledged the records",
        all(one.acknowledged == BEHIND and one.ends[one.leader] == 2 * BEHIND for one in found),
        f"{sum(one.acknowledged for one in found)} of {BEHIND * len(found)} acknowledgements",
    )
    lacking = [
        one.ends[one.follower] == BEHIND and one.follower not in one.in_sync for one in found
    ]
    trial.control(
        "a replica lacked the records",
        all(lacking) or None,
        f"in {sum(lacking)} of {len(found)} freezes;"
        f" log ends: {last.described_ends}; in sync: {list(last.in_sync)}",
    )
    trial.show(f"read before a replica has it: {last.record}", last.operations)
    seen = [one.seen_frozen for one in found]
    # That nothing was read may have another reason, such as a busy machine.
    trial.statement(
        "readers see only what all replicas have",
        False if all(seen) else None,
        f"{bounds.describe(sum(map(bool, seen)), len(seen), 'freeze')} let readers see records"
        f" that the follower did not have: {sum(seen)} of {BEHIND * len(seen)},"
        f" {spread([one.watched_s for one in found], ' s')} after they were acknowledged",
    )


@experiment(
    "topic-11",
    statement=(
        "The in-sync replicas are the live brokers, and the assigned replicas are all brokers"
    ),
    method=(
        "Place a topic on two of three live brokers. Freeze its follower until it is out of sync, "
        "send 5 MB, limit the rate of its replication to almost nothing, and resume it: it is "
        "alive and slow. Remove the limit at the end."
    ),
    advice=(
        "Watch under-replicated partitions, not only brokers: a broker that is up may be days "
        "behind."
    ),
    why=(
        "Each partition has its own list of assigned replicas, chosen when the topic was created. "
        "The in-sync set is the part of that list that has caught up with the leader within "
        "replica.lag.time.max.ms. A slow disk or network, or a replication quota, keeps a live "
        "broker out of it."
    ),
    scope=(
        "All releases since 0.8. replica.lag.time.max.ms is 30 s by default, and was 10 s before "
        "2.5. Before 0.9 the number of missing records (replica.lag.max.messages) counted too."
    ),
    sources=("documentation: replication",),
    rules=("TOPIC_MIN_INSYNC_REPLICAS_ONE",),
    brokers=3,
    harmless=False,
)
def in_sync_and_alive(trial: Trial) -> None:
    leader, follower, _ = senders.nodes_from(trial.random.randrange(3))
    topic = trial.topic(
        1,
        brokers=(leader, follower),
        min_insync_replicas="1",
        leader_replication_throttled_replicas="*",
    )
    trial.cluster.wait_in_sync(topic)
    replicas = layout.read_topic(trial.cluster.kafka, topic).partitions[0].replicas
    alive = sorted(layout.read(trial.cluster.kafka).brokers)
    trial.statement(
        "the assigned replicas are all brokers",
        set(replicas) == set(alive),
        f"replicas {list(replicas)}, live brokers {alive}",
    )
    connection = {
        **trial.cluster.connection,
        "bootstrap.servers": trial.cluster.node(leader).address,
    }
    own = trial.topic(1, brokers=(follower,), min_insync_replicas="1")
    trial.callback(lambda: _limit_replication(trial, leader, None))
    _limit_replication(trial, leader, 1)
    trial.freeze(follower)
    try:
        trial.wait(
            lambda: follower not in admin.in_sync_by(connection, topic),
            "the follower to be out of sync",
        )
        # more than a follower fetches at once, which the limit does not hold back
        bulk.fill(connection, topic, 5_000, 1_000)
    finally:
        trial.thaw(follower)
    trial.wait(
        lambda: follower in layout.read(trial.cluster.kafka).brokers, "the follower to be back"
    )
    # It is alive when it leads a partition and acknowledges records for it.
    scenario = trial.scenario("the follower leads another topic")
    scenario.publish(Publishing(topic=own, count=100, seed=trial.seed, keys=1))
    answered = scenario.acknowledged
    part = layout.read_topic(trial.cluster.kafka, topic).partitions[0]
    alive = sorted(layout.read(trial.cluster.kafka).brokers)
    behind = log_files.end(_partition(trial, topic, leader)) - log_files.end(
        _partition(trial, topic, follower)
    )
    trial.control(
        "the follower is alive, and behind the leader",
        (answered == 100 and follower in alive and behind > 0) or None,
        f"it acknowledged {answered} of 100 records for another topic; {behind:,} behind",
    )
    trial.statement(
        "the live replicas are in sync",
        follower in part.in_sync,
        f"in sync {list(part.in_sync)}, live brokers {alive}",
    )
    _limit_replication(trial, leader, None)
    trial.cluster.wait_in_sync(topic)
    after = layout.read_topic(trial.cluster.kafka, topic).partitions[0].in_sync
    trial.control(
        "without the limit, the follower catches up and is in sync",
        set(after) == {leader, follower},
        f"in sync {list(after)}",
    )


def _limit_replication(trial: Trial, leader: int, bytes_per_s: int | None) -> None:
    """Limit the replication from a broker to followers that are not in sync, or end the limit."""
    admin.limit_replication(trial.cluster.kafka, leader, bytes_per_s)
    limit = "nothing" if bytes_per_s is None else bytes_per_s
    trial.note(f"replication from broker {leader} limited to {limit} bytes/s")


@experiment(
    "topic-12",
    statement="A broker that joins a running cluster takes over its share of the partitions",
    method=(
        "Start one broker, create a topic and send to it. Start a second broker that joins, "
        "create another topic, and look where the partitions are. Then reassign the first topic."
    ),
    advice=(
        "After adding a broker, reassign partitions to it (instep topics replicate, "
        "kafka-reassign-partitions, or Cruise Control): until then it serves only new topics."
    ),
    why=(
        "The controller assigns replicas when a topic is created and keeps the assignment. Moving "
        "partitions copies all their data, so Kafka leaves the decision and its rate to the "
        "operator. New partitions are spread over all brokers that are registered."
    ),
    scope=(
        "All releases of Apache Kafka since 0.8, with ZooKeeper and with KRaft. Some "
        "distributions and services have a balancer that moves partitions by themselves."
    ),
    sources=("documentation: expanding a cluster",),
    brokers=0,
    harmless=False,
)
def joining_broker(trial: Trial) -> None:
    scenario = trial.scenario("joined")
    with TwoBrokers() as two:
        cluster, connection = two.cluster, two.cluster.connection
        old, new = trial.name("old"), trial.name("new")
        topics.create(cluster.kafka, old, 6, 1)
        pid = two.first.pid
        sending = Publishing(topic=old, count=senders.FOREVER, per_s=500, seed=trial.seed)
        with scenario.background(sending, connection) as (_, stop):
            trial.wait(lambda: scenario.acknowledged > 100, "records before the broker joins")
            two.second.start()
            trial.wait(lambda: cluster.brokers == 2, "the second broker to be registered")
            joined = scenario.acknowledged
            topics.create(cluster.kafka, new, 6, 1)
            trial.wait(lambda: scenario.acknowledged > joined + 100, "records afterwards")
            stop.set()
        used = {
            name: {
                node
                for part in layout.read_topic(cluster.kafka, name).partitions
                for node in part.replicas
            }
            for name in (old, new)
        }
        replication.execute(cluster.kafka, old, replication.plan(cluster.kafka, old, 2), trial.note)
        cluster.wait_in_sync(old)
        moved = {
            node
            for part in layout.read_topic(cluster.kafka, old).partitions
            for node in part.replicas
        }
        survived = two.first.alive and two.first.pid == pid
    trial.statement(
        "a broker can join while the first one goes on working",
        survived,
        f"{joined:,} records acknowledged by then, 100 more afterwards",
    )
    trial.statement(
        "partitions of new topics are placed on it", 2 in used[new], f"brokers {sorted(used[new])}"
    )
    trial.statement(
        "existing partitions move to it", 2 in used[old], f"brokers {sorted(used[old])}"
    )
    trial.control(
        "a reassignment copies existing partitions to it", 2 in moved, f"brokers {sorted(moved)}"
    )


@experiment(
    "topic-13",
    statement="Records are written to the leader and read from the leader",
    method=(
        "Two brokers in two racks, with replica.selector.class set. Send to a topic that the "
        "first one leads, and read it with and without client.rack. Compare how many bytes the "
        "client exchanged with each broker."
    ),
    advice=(
        "Let consumers in another data centre or zone read from the follower near them: "
        "client.rack on the consumer, broker.rack and replica.selector.class on the brokers."
    ),
    why=(
        "Only the leader assigns offsets, so all writes go to it. A follower has the same records "
        "up to the high watermark, so it can serve reads. The leader decides: it answers a fetch "
        "that names a rack with the replica to read from, if the brokers have a replica selector."
    ),
    scope=(
        "Without exception before Kafka 2.4 (KIP-392), which allows reading from followers, in the "
        "Java client and in librdkafka; it is off by default."
    ),
    sources=("KIP-392",),
    brokers=0,
    harmless=False,
)
def reads_and_writes_by_replica(trial: Trial) -> None:
    racks = {
        node: {"broker.rack": rack, "replica.selector.class": BY_RACK}
        for node, rack in ((1, "east"), (2, "west"))
    }
    count, size = 2_000, 1_000
    with TwoBrokers(properties=racks) as two:
        two.second.start()
        cluster, connection = two.cluster, two.cluster.connection
        topic = trial.name("topic")
        topics.create(cluster.kafka, topic, 1, brokers=(1, 2))
        cluster.wait_in_sync(topic)
        with trial.expect_records(topic, 1, count, cluster):
            sent = bulk.sent_by_broker(connection, topic, count, size)
        read = {
            rack: bulk.received_by_broker(
                connection, topic, count, size, {"client.rack": rack} if rack else {}
            )
            for rack in ("", "east", "west")
        }
    rows: list[list[Cell]] = [["sent", sent.get(1, 0), sent.get(2, 0)]]
    rows += [
        [f"read, client.rack={rack or 'unset'}", found.get(1, 0), found.get(2, 0)]
        for rack, found in read.items()
    ]
    trial.table(
        "Bytes exchanged with each broker",
        ["client", "leader (rack east)", "follower (rack west)"],
        rows,
    )
    trial.statement("records are written to the leader", _mostly(sent, 1), _shares(sent))
    trial.statement(
        "without client.rack they are read from the leader", _mostly(read[""], 1), _shares(read[""])
    )
    trial.control(
        "with the leader's rack they are read from the leader",
        _mostly(read["east"], 1),
        _shares(read["east"]),
    )
    trial.limit(
        "with client.rack and a replica selector they are read from the follower",
        _mostly(read["west"], 2),
        _shares(read["west"]),
    )


def _mostly(found: Mapping[int, int], node: int) -> bool:
    """Return whether nearly all bytes are of one broker; the others also answer questions."""
    return found.get(node, 0) > 0.8 * sum(found.values())


def _shares(found: Mapping[int, int]) -> str:
    return f"{found.get(1, 0):,} bytes with the leader, {found.get(2, 0):,} with the follower"
