"""Claims about exactly-once: rows, offsets and results that are written together or not at all."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from instep.local import processes
from instep.report.tables import Cell
from instep_lab import bounds, checkers
from instep_lab.claim import experiment
from instep_lab.claims import crashes, senders
from instep_lab.claims.crashes import BATCH, FIRST, RECORDS, SECOND
from instep_lab.clients import table
from instep_lab.clients.consuming import CommitMode, Consuming, CrashPoint, Keep
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind, OperationStatus
from instep_lab.trial import Scenario, Trial

AROUND_THE_ROW = (CrashPoint.WORKED, CrashPoint.READ, CrashPoint.WRITING)
SENT_TWICE = 100
COMMITTED, UNCOMMITTED = senders.ISOLATION_LEVELS


@dataclass(frozen=True, slots=True)
class PauseEffect:
    """What a paused member did after another one had finished its work."""

    repeated_before: int
    repeated: int
    lost: int
    tried: int
    rejected: int
    scenario: Scenario
    consuming: Consuming


@experiment(
    "commit-8",
    statement="Storing the offset in the same transaction as the result gives exactly-once",
    method=(
        "Write a row for each record and the next offset in one SQLite transaction. A consumer "
        "dies after the read, within the transaction or after it; a second consumer starts from "
        "the stored offset. Then stop a consumer with SIGSTOP in the middle of a batch, let a "
        "second one take over and finish, and continue the first: once with a transaction that "
        "only stores the offset, once with one that also checks it. As a control, the same rows "
        "with offsets committed to Kafka must show repeats."
    ),
    advice=(
        "Store the offset together with the result, in one transaction, and check in it that the "
        "stored offset is still the expected one, or that no newer consumer has started: "
        "instep's ledger does both, with an epoch."
    ),
    why=(
        "One transaction makes row and offset succeed or fail together, so a crash repeats "
        "nothing. But a member that was paused past its session does not know that another one "
        "has taken over: it continues with the records that it holds in memory, and moves the "
        "stored offset back, so that even more is read again. Only the database can stop it, by "
        "a check within the transaction."
    ),
    scope=(
        "Any client that can seek to an offset of its own (the Java client and librdkafka "
        "since 0.9), and any database with transactions; run with librdkafka, the classic "
        "protocol and SQLite. A pause may be a long garbage collection, a suspended machine or "
        "a slow network. " + crashes.SESSION_NOTE
    ),
    sources=("documentation: storing offsets outside Kafka", "KIP-62", crashes.SESSION_SOURCE),
    rules=("DATABASE_NO_TRANSACTIONS", "DATABASE_COMMITS_ASYNCHRONOUSLY"),
)
def offset_in_result_transaction(trial: Trial) -> None:
    together = crashes.run_crashes(
        trial,
        "offset with the row",
        crashes.draw(trial, AROUND_THE_ROW, 3),
        keep=Keep.WITH_OFFSET,
        commit=CommitMode.NEVER,
    )
    separately = crashes.run_crashes(
        trial,
        "offset in Kafka",
        crashes.draw(trial, AROUND_THE_ROW, 2),
        keep=Keep.TABLE,
        commit=CommitMode.SYNC,
    )
    crashes.tabulate(trial, {"offset with the row": together, "offset in Kafka": separately})
    trial.control(
        "with the offset in Kafka, some rows are repeated",
        separately.repeated > 0,
        separately.describe_repeated(),
    )
    trial.statement(
        "a crash loses and repeats no rows", together.lost == together.repeated == 0, str(together)
    )
    stored, checked = (_pauses(trial, keep) for keep in (Keep.WITH_OFFSET, Keep.CHECKED))
    rows: list[Sequence[Cell]] = [
        [
            name,
            len(found),
            sum(one.tried for one in found),
            sum(one.rejected for one in found),
            sum(one.repeated for one in found),
        ]
        for name, found in (("stored", stored), ("stored and checked", checked))
    ]
    trial.table(
        "A member that was paused, replaced and continued",
        ["offset", "pauses", "rows tried afterwards", "rejected", "repeated rows"],
        rows,
    )
    for one in stored:
        if one.repeated:
            operations = crashes.work_done(one.scenario, one.consuming)
            trial.example(one.scenario, checkers.repeated(operations))
    trial.control(
        "the second member finished before the first continued, without repeats",
        not any(one.repeated_before for one in (*stored, *checked)),
        f"{len(stored) + len(checked)} pauses",
    )
    trial.control(
        "the first member tried to write rows after the pause",
        all(one.tried for one in (*stored, *checked)),
        f"{sum(one.tried for one in (*stored, *checked))} rows",
    )
    trial.limit(
        "without a check of the stored offset, a member that was paused repeats rows",
        any(one.repeated for one in stored) or None,
        _describe_pauses(stored),
    )
    trial.statement(
        "with a check of the stored offset, a member that was paused repeats no rows",
        not any(one.repeated or one.lost for one in checked),
        _describe_pauses(checked),
    )


def _describe_pauses(found: Sequence[PauseEffect]) -> str:
    repeating = bounds.describe(sum(one.repeated > 0 for one in found), len(found), "pause")
    return f"{sum(one.repeated for one in found)} rows repeated, in {repeating}"


def _pauses(trial: Trial, keep: Keep) -> list[PauseEffect]:
    # In the middle of a batch, so that the member holds more records when it continues.
    stops = [
        BATCH * trial.random.randrange(1, RECORDS // BATCH - 1) + trial.random.randrange(2, 15)
        for _ in range(trial.scaled(1, crashes.CRASHES))
    ]
    functions = {
        f"{keep}, {number}": partial(
            crashes.undisturbed,
            trial,
            f"{keep}, paused {number}",
            partial(_pause, trial, keep=keep, stops_on=stops_on),
        )
        for number, stops_on in enumerate(stops, start=1)
    }
    return list(crashes.in_turns(trial, functions).values())


def _pause(trial: Trial, scenario: Scenario, keep: Keep, stops_on: int) -> PauseEffect:
    """Stop a member within a batch, let another one finish, and continue the first."""
    plan = crashes.plan(trial, keep=keep, commit=CommitMode.NEVER, to_end=False)
    crashes.publish(trial, scenario, plan.topic)
    first = scenario.start(crashes.mortal(trial, plan, stops_on=stops_on))
    trial.wait(lambda: processes.paused(first.pid), "the first member to stop")
    crashes.refuse_lost_session(scenario.history())
    trial.note(f"{scenario.name}: SIGSTOP of the first member before record {stops_on}: state T")
    with scenario.background(msgspec.structs.replace(plan, member=SECOND)):
        trial.wait(
            lambda: not checkers.lost(crashes.work_done(scenario, plan)),
            "the second member to finish the work",
        )
        before = crashes.work_done(scenario, plan)
        resumed_ns = max(one.at_ns for one in before)
        processes.send(first.pid, signal.SIGCONT)
        trial.note(f"{scenario.name}: SIGCONT of the first member")
        crashes.wait_until_lost(trial, scenario)
        first.terminate()
        first.wait()
        first.close()
    tried = [
        one
        for one in scenario.history()
        if one.kind is OperationKind.WORK and one.member == FIRST and one.at_ns > resumed_ns
    ]
    operations = crashes.work_done(scenario, plan)
    return PauseEffect(
        repeated_before=checkers.repeated(before).count,
        repeated=checkers.repeated(operations).count,
        lost=checkers.lost(operations).count,
        tried=len(tried),
        rejected=sum(one.outcome is OperationStatus.FAIL for one in tried),
        scenario=scenario,
        consuming=plan,
    )


@experiment(
    "commit-9",
    statement="A unique index on the record's id turns at-least-once delivery into exactly-once",
    method=(
        "Commit offsets to Kafka after each batch, and write to a table with a unique index on "
        "the record's id. The same transaction adds one to a counter. Consumers die at random "
        "points. Count the rows, and compare them with the counter."
    ),
    advice=(
        "A unique index is enough if the row is the only effect. Any other effect of the work is "
        "repeated: skip it if the row was there already."
    ),
    why=(
        "The record is delivered again, and the work on it is done again; the index only makes "
        "the second insert do nothing. Everything else that the work changes is changed twice."
    ),
    scope=(
        "Any client and any release since 0.8, because the database decides, and any database "
        "with unique indexes; run with librdkafka, Kafka 4.3 and SQLite. The id must be in the "
        "record: a producer that sends it twice is covered too. " + crashes.SESSION_NOTE
    ),
    sources=("documentation: semantics", crashes.SESSION_SOURCE),
    rules=("DATABASE_SECOND_UNIQUE_KEY",),
)
def unique_index(trial: Trial) -> None:
    unique = crashes.run_crashes(
        trial,
        "unique index",
        crashes.draw(trial, AROUND_THE_ROW, 3),
        keep=Keep.UNIQUE,
        commit=CommitMode.SYNC,
    )
    crashes.tabulate(trial, {"unique index": unique})
    read_again = sum(one.read_again for one in unique.effects)
    trial.control(
        "records were read again",
        read_again > 0 or None,
        f"{read_again} over {len(unique.effects)} kills",
    )
    trial.statement("each record has one row", unique.lost == unique.repeated == 0, str(unique))
    for one in unique.effects:
        # what the processes have tried to write: the table has the record once
        trial.example(one.scenario, checkers.repeated(one.scenario.history()))
    counted = [table.total(Path(one.table)) for one in unique.effects]
    too_high = sum(count - RECORDS for count in counted)
    trial.limit(
        "a counter beside the row counts repeated records again",
        too_high > 0 or None,
        f"{sum(counted)} counted for {RECORDS * len(counted)} records",
    )


@experiment(
    "commit-11",
    statement="The offset can be the unique id of a record in the target table",
    method=(
        "Write rows to a table with a unique index on the offset, on partition and offset, or on "
        "the record's own id. Use one partition and a consumer that dies, then two partitions, "
        "then a producer that sends some records twice. Count missing and repeated rows."
    ),
    advice=(
        "Put an id into the record and make that unique. If there is none, use topic, partition "
        "and offset together, and know that a producer's repeats then become rows."
    ),
    why=(
        "Each partition counts its offsets from 0, so two partitions share them, and the second "
        "record with an offset is taken for a repeat. An offset names a place in the log, not "
        "what is there: a record that was sent twice has two places."
    ),
    scope=(
        "All clients and all releases since 0.8, whose offsets count the records of a "
        "partition; run with librdkafka, Kafka 4.3 and SQLite. A topic that was deleted and "
        "created again also begins at offset 0."
    ),
    sources=("documentation: semantics", "KIP-98"),
)
def offset_as_unique_id(trial: Trial) -> None:
    one_partition = crashes.run_crashes(
        trial,
        "one partition",
        crashes.draw(trial, AROUND_THE_ROW, 3),
        keep=Keep.BY_OFFSET,
        commit=CommitMode.SYNC,
    )
    again = sum(one.read_again for one in one_partition.effects)
    trial.control("records were read again", again > 0 or None, f"{again} records")
    trial.statement(
        "with one partition, each record has one row",
        one_partition.lost == one_partition.repeated == 0,
        str(one_partition),
    )
    keeps = (Keep.BY_OFFSET, Keep.BY_PLACE, Keep.UNIQUE)
    found = trial.together({str(keep): partial(_rows_by_id, trial, keep) for keep in keeps})
    trial.table(
        f"Rows for {RECORDS} records in two partitions, {SENT_TWICE} of them sent twice",
        ["unique index on", "missing", "repeated"],
        [[name, one.lost, one.repeated] for name, one in found.items()],
    )
    offset, place, own = (found[keep] for keep in keeps)
    for one in (offset, place):
        trial.example(one.scenario, checkers.lost(one.operations))
        trial.example(one.scenario, checkers.repeated(one.operations))
    trial.control(
        "with an index on the record's own id, each record has one row",
        own.lost == own.repeated == 0,
        str(own),
    )
    trial.limit(
        "with two partitions, an index on the offset alone rejects records",
        offset.lost > 0,
        f"{offset.lost} of {RECORDS} records have no row",
    )
    trial.limit(
        "a record that its producer sent twice gets two rows, also by partition and offset",
        place.repeated > 0 and place.lost == 0,
        f"{place.repeated} of {SENT_TWICE} records that were sent twice have two rows",
    )


def _rows_by_id(trial: Trial, keep: Keep) -> crashes.CrashEffect:
    """Read two partitions, with records that their producer sent twice, into a table."""
    scenario = trial.scenario(f"two partitions, {keep}")
    plan = crashes.plan(trial, topic=trial.topic(2), keep=keep, commit=CommitMode.SYNC)
    for count in (RECORDS, SENT_TWICE):
        scenario.publish(Publishing(topic=plan.topic, count=count, keys=10, seed=trial.seed))
    scenario.consume(msgspec.structs.replace(plan, member=FIRST))
    return crashes.effect(scenario, plan)


@dataclass(frozen=True, slots=True)
class TransformEffect:
    """What readers of the output find, by isolation level: lost and repeated results."""

    killed: bool
    lost: dict[str, int]
    repeated: dict[str, int]
    scenario: Scenario


@experiment(
    "commit-15",
    statement=(
        "Reading from Kafka and writing the results to Kafka is exactly-once with transactions"
    ),
    method=(
        "A consumer writes a result for each record to another topic. It commits results and "
        "offsets in one transaction per batch of 20, or commits offsets after the batch without "
        "transactions. It dies at random points: after the read, after a result, before and "
        "after the commit of the transaction. A second one finishes with the same transactional "
        "id. Read the output with read_committed and with read_uncommitted."
    ),
    advice=(
        "Use a transactional producer with sendOffsetsToTransaction, and read_committed in every "
        "reader of the results; the Java client's default is read_uncommitted. Effects outside "
        "Kafka are not part of the transaction."
    ),
    why=(
        "The transaction coordinator commits results and offsets together, by markers in each "
        "partition. The second producer with the same transactional id aborts what the first "
        "left open. Aborted results stay in the log, and only read_committed readers skip them."
    ),
    scope=(
        "Since 0.11 (KIP-98); since 2.5 one producer for all input partitions is enough, because "
        "the group's metadata fences old members (KIP-447). Run with librdkafka, whose readers "
        "default to read_committed since 1.2. " + crashes.SESSION_NOTE
    ),
    sources=("KIP-98", "KIP-447", "documentation: isolation.level", crashes.SESSION_SOURCE),
)
def consume_transform_produce(trial: Trial) -> None:
    points = (CrashPoint.WORKED, CrashPoint.WRITING, CrashPoint.READ, CrashPoint.COMMITTED)
    cases = {
        Keep.TRANSACTION: crashes.draw(trial, points, 4),
        Keep.TOPIC: crashes.draw(trial, [CrashPoint.WORKED], 2),
    }
    functions = {
        f"{keep}, {number}": partial(
            crashes.undisturbed,
            trial,
            f"{keep}, {number}",
            partial(_transform, trial, keep=keep, point=point, dies_on=dies_on),
        )
        for keep, deaths in cases.items()
        for number, (point, dies_on) in enumerate(deaths, start=1)
    }
    found = crashes.in_turns(trial, functions)
    by_keep = {
        keep: [one for name, one in found.items() if name.startswith(f"{keep},")] for keep in cases
    }
    killed = sum(one.killed for one in found.values())
    trial.control(
        "the first consumers were killed", killed == len(found), f"{killed} of {len(found)}"
    )
    senders.control_isolation(trial)
    trial.table(
        "Lost and repeated results, over all kills",
        ["results", "reader", "kills", "lost", "repeated"],
        [
            [
                str(keep),
                level,
                len(each),
                sum(one.lost[level] for one in each),
                sum(one.repeated[level] for one in each),
            ]
            for keep, each in by_keep.items()
            for level in (COMMITTED, UNCOMMITTED)
        ],
    )
    together, separately = by_keep[Keep.TRANSACTION], by_keep[Keep.TOPIC]
    trial.control(
        "without transactions, results are repeated",
        any(one.repeated[COMMITTED] for one in separately),
        _describe_results(separately, COMMITTED),
    )
    trial.statement(
        "readers with read_committed find each result once",
        not any(one.lost[COMMITTED] or one.repeated[COMMITTED] for one in together),
        _describe_results(together, COMMITTED),
    )
    for one in together:
        trial.example(
            one.scenario,
            checkers.repeated(one.scenario.history(), UNCOMMITTED, by=OperationKind.READ),
        )
    trial.limit(
        "readers with read_uncommitted find results of aborted transactions too",
        any(one.repeated[UNCOMMITTED] for one in together) or None,
        _describe_results(together, UNCOMMITTED),
    )


def _describe_results(found: Sequence[TransformEffect], level: str) -> str:
    repeating = sum(one.repeated[level] > 0 for one in found)
    return (
        f"{sum(one.lost[level] for one in found)} results lost,"
        f" {sum(one.repeated[level] for one in found)} repeated,"
        f" in {bounds.describe(repeating, len(found), 'kill')}"
    )


def _transform(
    trial: Trial, scenario: Scenario, keep: Keep, point: CrashPoint, dies_on: int
) -> TransformEffect:
    """Copy a topic with a consumer that dies and one that finishes; then read the copy."""
    # Markers of transactions have offsets too.
    scenario.gaps_allowed = True
    output = trial.topic(1)
    plan = crashes.plan(
        trial,
        keep=keep,
        commit=CommitMode.NEVER if keep is Keep.TRANSACTION else CommitMode.SYNC,
        output=output,
        transactional_id=trial.name("transform") if keep is Keep.TRANSACTION else "",
    )
    crashes.publish(trial, scenario, plan.topic)
    status = scenario.run(crashes.mortal(trial, plan, dies_at=point, dies_on=dies_on))
    crashes.refuse_lost_session(scenario.history())
    scenario.run(msgspec.structs.replace(plan, member=SECOND))
    levels = senders.ISOLATION_LEVELS
    for level in levels:
        scenario.read_topic(output, by=level, config={"isolation.level": level})
    operations = scenario.history()
    return TransformEffect(
        status == -9,
        {level: checkers.lost(operations, level, by=OperationKind.READ).count for level in levels},
        {
            level: checkers.repeated(operations, level, by=OperationKind.READ).count
            for level in levels
        },
        scenario,
    )


@experiment(
    "commit-18",
    statement="Exactly-once in another system needs a two-phase commit with Kafka",
    method=(
        "Write rows to a database while consumers die at random points, without a two-phase "
        "commit: with the offset in the row's transaction, which also checks it, and with a "
        "unique index on the record's id and offsets in Kafka. As a control, plain rows with "
        "offsets in Kafka. Count lost and repeated rows."
    ),
    advice=(
        "Let one of the two systems hold both row and offset, or make the write safe to repeat. "
        "No coordinator is needed."
    ),
    why=(
        "A two-phase commit is one way to make two systems agree. It is not needed if only one "
        "system has to: the database stores the offset with the row, or recognises a repeat. "
        "Between topics of one cluster, Kafka's transactions do the same (see commit-15)."
    ),
    scope=(
        "Any client that can seek to an offset of its own (the Java client and librdkafka "
        "since 0.9); run with librdkafka, the classic protocol and SQLite. How Kafka could "
        "take part in a two-phase commit of another system is the subject of KIP-939. "
        + crashes.SESSION_NOTE
    ),
    sources=("KIP-939", "documentation: storing offsets outside Kafka", crashes.SESSION_SOURCE),
)
def exactly_once_without_two_phases(trial: Trial) -> None:
    ways = {
        "offset in the row's transaction": (Keep.CHECKED, CommitMode.NEVER),
        "unique index on the id": (Keep.UNIQUE, CommitMode.SYNC),
        "plain rows, offset in Kafka": (Keep.TABLE, CommitMode.SYNC),
    }
    series = crashes.run_each(
        trial,
        {
            name: (
                crashes.draw(trial, AROUND_THE_ROW, 2),
                {"keep": keep, "commit": commit},
            )
            for name, (keep, commit) in ways.items()
        },
    )
    crashes.tabulate(trial, series)
    *enough, plain = ways
    trial.control(
        "plain rows with offsets in Kafka are repeated",
        series[plain].repeated > 0,
        series[plain].describe_repeated(),
    )
    for name in enough:
        one = series[name]
        trial.statement(f"{name}: rows are lost or repeated", one.lost + one.repeated > 0, str(one))
    crashes.show_examples(trial, series.values())
