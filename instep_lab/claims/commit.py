"""Claims about committing: when a position is committed, and what a crash then loses or repeats.

A consumer in its own process kills itself with -9 at a given point; a second consumer of the same
group finishes the work.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from instep.local.proxy import NetworkFault
from instep.report.tables import Cell
from instep_lab import checkers
from instep_lab.claim import experiment
from instep_lab.clients import committed_offsets, table
from instep_lab.clients.consuming import CommitMode, Consuming, CrashPoint, Keep, Pool
from instep_lab.clients.publishing import Publishing
from instep_lab.history import ClientOperation, OperationKind, OperationStatus
from instep_lab.trial import Scenario, Trial, spread

RECORDS = 300
BATCH = 20
DIES_ON = 130  # in the middle of a batch
CRASHES = 5  # whether an asynchronous commit arrives before a crash is a matter of timing


@dataclass(frozen=True, slots=True)
class CrashEffect:
    """The effect of a crash, after another process has finished the work."""

    lost: int
    repeated: int
    read_again: int
    worked_again: int
    operations: list[ClientOperation]

    def __str__(self) -> str:
        return f"{self.lost} lost, {self.repeated} repeated of {RECORDS}"


def _session(trial: Trial) -> dict[str, Any]:
    """Return the shortest allowed session timeout, so that a dead member is replaced soon."""
    timeout_ms = 6_000  # the broker's default minimum
    if trial.cluster.own:
        timeout_ms = 1_500
    return {"session.timeout.ms": timeout_ms, "heartbeat.interval.ms": timeout_ms // 3}


def _plan(trial: Trial, **options: Any) -> Consuming:
    topic = trial.topic(1)
    plan = Consuming(
        topic=topic,
        group=trial.group(),
        **{
            "batch": BATCH,
            "seed": trial.seed,
            "to_end": True,
            **options,
            "config": {**_session(trial), **options.get("config", {})},
        },
    )
    if plan.keep is not Keep.HISTORY:
        plan = msgspec.structs.replace(plan, table=str(trial.folder / f"{topic}.db"))
    return plan


def _publish(trial: Trial, scenario: Scenario, plan: Consuming) -> None:
    scenario.publish(Publishing(topic=plan.topic, count=RECORDS, keys=10, seed=trial.seed))


def _finish(trial: Trial, scenario: Scenario, plan: Consuming) -> CrashEffect:
    """Let another process of the group finish, and check what both have done."""
    scenario.run(msgspec.structs.replace(plan, member="second", dies_at=None))
    operations = scenario.history()
    worked_again = checkers.repeated(operations).count
    if plan.keep is not Keep.HISTORY:
        # The work is what the table holds, not what a process has tried to write.
        operations = [one for one in operations if one.kind is not OperationKind.WORK] + table.work(
            Path(plan.table), plan.group
        )
    effect = _effect(operations, worked_again)
    trial.note(f"{scenario.name}: {effect}, {effect.read_again} read again")
    return effect


def _effect(operations: list[ClientOperation], worked_again: int) -> CrashEffect:
    read_again = checkers.repeated(operations, by=OperationKind.READ).count
    return CrashEffect(
        checkers.lost(operations).count,
        checkers.repeated(operations).count,
        read_again,
        worked_again,
        operations,
    )


def _crash(
    trial: Trial, name: str, point: CrashPoint, dies_on: int = DIES_ON, **options: Any
) -> CrashEffect:
    """Run a consumer that dies at this point of this record, and one that finishes."""
    scenario = trial.scenario(name)
    plan = _plan(trial, dies_at=point, dies_on=dies_on, **options)
    _publish(trial, scenario, plan)
    status = scenario.run(msgspec.structs.replace(plan, member="first"))
    trial.control(f"{name}: the first consumer was killed", status == -9, f"it ended with {status}")
    return _finish(trial, scenario, plan)


def _crashes(trial: Trial, scenarios: dict[str, dict[str, Any]]) -> dict[str, CrashEffect]:
    """Run several crashes at the same time: each mostly waits for its session timeout."""
    return trial.together(
        {name: partial(_crash, trial, name, **options) for name, options in scenarios.items()}
    )


def _tabulate(trial: Trial, results: dict[str, CrashEffect]) -> None:
    rows: list[Sequence[Cell]] = [[name, one.lost, one.repeated] for name, one in results.items()]
    trial.table(f"Of {RECORDS} records", ["scenario", "lost", "repeated"], rows)
    trial.plot(
        "Records lost and repeated",
        "scenario",
        "records",
        {
            "lost": [(name, float(one.lost)) for name, one in results.items()],
            "repeated": [(name, float(one.repeated)) for name, one in results.items()],
        },
    )


def _kill_when_ahead(trial: Trial, name: str, **options: Any) -> CrashEffect:
    """Kill a consumer as soon as the broker has stored an automatic commit from it."""
    scenario = trial.scenario(name)
    plan = _plan(trial, commit=CommitMode.AUTO, **options)
    _publish(trial, scenario, plan)
    first = scenario.start(msgspec.structs.replace(plan, member="first", to_end=False))
    # Wait for the stored commit, not for a time: on a slow machine a fixed time could end before
    # the first commit, and nothing would be lost.
    trial.wait(
        lambda: (
            committed_offsets.position(trial.cluster.connection, plan.group, plan.topic, 0)
            is not None
        ),
        "an automatic commit",
    )
    first.kill()
    first.close()
    trial.note(f"{name}: killed the first consumer")
    return _finish(trial, scenario, plan)


@experiment(
    "commit-1",
    statement=(
        "Automatic commit loses records if the process dies after the commit but before the work "
        "is done"
    ),
    method=(
        "Automatic commit every 200 ms. A consumer hands its records to slow threads, or "
        "processes them itself, and is killed after the first commit; a second consumer "
        "finishes. Repeat with the offset stored only after the work."
    ),
    advice=(
        "Store the offset after the work (enable.auto.offset.store=false) or commit manually. "
        "Never hand work to threads that the commit does not wait for."
    ),
)
def loss_with_automatic_commit(trial: Trial) -> None:
    often = {"auto.commit.interval.ms": 200}
    later = {**often, "enable.auto.offset.store": False}
    results = trial.together(
        {
            "handed to threads": lambda: _kill_when_ahead(
                trial, "threads", pool=Pool.BY_RECORD, work_ms=200, config=often
            ),
            "in the same thread": lambda: _kill_when_ahead(
                trial, "same thread", work_ms=20, batch=100, config=often
            ),
            "stored after the work": lambda: _kill_when_ahead(
                trial, "stored", work_ms=20, batch=100, config=later
            ),
        }
    )
    _tabulate(trial, results)
    trial.statement(
        "records handed to threads are lost",
        results["handed to threads"].lost > 0,
        str(results["handed to threads"]),
    )
    trial.statement(
        "with this client, records processed in the reading thread are lost too",
        results["in the same thread"].lost > 0,
        str(results["in the same thread"]),
    )
    trial.control(
        "storing the offset after the work loses no records",
        results["stored after the work"].lost == 0,
        str(results["stored after the work"]),
    )


@experiment(
    "commit-2",
    statement="Automatic commit repeats records if the process dies before the next commit",
    method=(
        "Automatic commit every 60 s, or every 100 ms. A consumer dies after processing its "
        "130th record; another consumer finishes."
    ),
    advice=(
        "Make the work safe to repeat (a guard, a unique key): automatic commit repeats up to "
        "one interval of records."
    ),
)
def repeats_with_automatic_commit(trial: Trial) -> None:
    results = _crashes(
        trial,
        {
            f"every {ms / 1000:g} s": {
                "point": CrashPoint.WORKED,
                "commit": CommitMode.AUTO,
                "work_ms": 5,
                "config": {"auto.commit.interval.ms": ms, "enable.auto.offset.store": False},
            }
            for ms in (60_000, 100)
        },
    )
    _tabulate(trial, results)
    rare, often = results.values()
    trial.statement("uncommitted records are repeated", rare.repeated == DIES_ON, str(rare))
    trial.statement("a shorter interval repeats less", often.repeated < rare.repeated, str(often))


@experiment(
    "commit-3",
    statement=(
        "Committing manually after the work never loses records, and repeats those after the "
        "last commit"
    ),
    method=(
        "Synchronous commit after each batch of 20. A consumer dies after the read, after the "
        "work and after the commit of a record; a second consumer finishes."
    ),
    advice="For at-least-once, commit after the work, and make the work safe to repeat.",
)
def commit_after_work(trial: Trial) -> None:
    points = (CrashPoint.READ, CrashPoint.WORKED, CrashPoint.COMMITTED)
    results = _crashes(
        trial, {str(point): {"point": point, "commit": CommitMode.SYNC} for point in points}
    )
    _tabulate(trial, results)
    trial.statement(
        "no record is lost",
        not any(one.lost for one in results.values()),
        f"{sum(one.lost for one in results.values())} lost",
    )
    worked = results[CrashPoint.WORKED]
    trial.statement(
        "records after the last commit are repeated",
        0 < worked.repeated <= BATCH,
        f"{worked}, batches of {BATCH}",
    )


@experiment(
    "commit-4",
    statement=(
        "Committing before the work never repeats records, and loses those that were not processed"
    ),
    method=(
        "Synchronous commit of each batch of 20 before its work. A consumer dies after the "
        "commit, and after the work of a record in the middle of a batch; a second consumer "
        "finishes."
    ),
    advice=(
        "Commit first only if losing a record is better than repeating it, and document it: this "
        "is at-most-once."
    ),
)
def commit_before_work(trial: Trial) -> None:
    points = (CrashPoint.COMMITTED, CrashPoint.WORKED)
    results = _crashes(
        trial, {str(point): {"point": point, "commit": CommitMode.BEFORE} for point in points}
    )
    _tabulate(trial, results)
    lost, repeated = (
        [getattr(one, name) for one in results.values()] for name in ("lost", "repeated")
    )
    trial.statement("no record is repeated", not any(repeated), f"{sum(repeated)} repeated")
    trial.statement(
        "records that were committed but not processed are lost",
        all(lost),
        f"{min(lost)} to {max(lost)} lost, batches of {BATCH}",
    )


@experiment(
    "commit-5",
    statement="Asynchronous commit is faster, is not retried, and can be overtaken by an older one",
    method=(
        "Commit after every record, synchronously and asynchronously, and compare the time. Then "
        "drop the broker's responses for a while, cut the connection, and compare the requested "
        "commits with those that the broker stored."
    ),
    advice=(
        "Commit asynchronously in the loop and synchronously at the end. After a fault, the "
        "committed offset may be slightly behind."
    ),
    harmless=False,
)
def asynchronous_commit(trial: Trial) -> None:
    speeds: dict[CommitMode, list[float]] = {CommitMode.SYNC: [], CommitMode.ASYNC: []}
    count = trial.scaled(300, 2_000)
    for number in trial.rounds(3, 7):
        for commit, found in speeds.items():
            scenario = trial.scenario(f"{commit} {number}")
            topic = trial.topic(1)
            scenario.publish(Publishing(topic=topic, count=count, seed=trial.seed))
            scenario.consume(
                Consuming(
                    topic=topic,
                    group=trial.group(),
                    count=count,
                    commit=commit,
                    commit_every=1,
                    batch=20,
                )
            )
            times = [one.at_ns for one in scenario.history() if one.kind is OperationKind.READ]
            found.append(count / ((max(times) - min(times)) / 1e9))
    trial.table(
        "Records per second, with one commit per record",
        ["commit", "median (lowest to highest)"],
        [[str(one), spread(found, digits=0)] for one, found in speeds.items()],
    )
    # The worst round against the best: a difference of medians could be chance.
    slowest, fastest = min(speeds[CommitMode.ASYNC]), max(speeds[CommitMode.SYNC])
    trial.statement(
        "asynchronous commit is faster",
        slowest > fastest,
        f"{spread(speeds[CommitMode.ASYNC], digits=0)} against"
        f" {spread(speeds[CommitMode.SYNC], digits=0)} records/s",
    )
    sent, stored, failed, swallowed = _drop_responses(trial)
    stored_twice = len(stored) - len(set(stored))
    back = sum(after < before for before, after in itertools.pairwise(stored))
    trial.control("the proxy dropped responses", swallowed > 0, f"{swallowed:,} bytes")
    trial.statement(
        "a commit without a response is not retried",
        stored_twice == 0,
        f"{sent} commits requested, {stored_twice} stored a second time,"
        f" {failed} reported as failed",
    )
    trial.statement(
        "an older commit overtakes a newer one",
        back > 0,
        f"the stored position went back {back} times",
    )


def _drop_responses(trial: Trial) -> tuple[int, list[int], int, int]:
    """Commit while responses are dropped, then continue.

    Return the number of requested commits, the stored offsets, the number of commits reported as
    failed, and the number of dropped bytes.
    """
    scenario = trial.scenario("responses dropped")
    topic, group = trial.topic(1), trial.group()
    scenario.publish(Publishing(topic=topic, count=3_000, seed=trial.seed))
    proxy = next(iter(trial.cluster.proxies.values()))
    swallowed = proxy.counts.swallowed_bytes
    plan = Consuming(
        topic=topic,
        group=group,
        commit=CommitMode.ASYNC,
        commit_every=5,
        batch=5,
        work_ms=2,
        assigned=[0],
        # Notice missing responses soon.
        config={"socket.timeout.ms": 1_000, "session.timeout.ms": 6_000},
    )
    with scenario.background(plan, trial.cluster.proxied) as (counted, _):
        trial.wait(lambda: counted.read > 100, "100 records")
        # The broker stores these commits, but the client never learns of it.
        proxy.inject(NetworkFault(swallows_answers=True))
        read = counted.read
        trial.wait(lambda: counted.read > read + 50, "commits without a response")
        proxy.cut()
        proxy.clear_fault()
        read = counted.read
        trial.wait(lambda: counted.read >= min(read + 500, 3_000), "reading to continue")
    operations = [one for one in scenario.history() if one.kind is OperationKind.COMMIT]
    stored = committed_offsets.commits(trial.cluster.connection, group, topic, 0)
    failed = sum(one.outcome is OperationStatus.FAIL for one in operations)
    return (
        sum(one.note == "sent" for one in operations),
        stored,
        failed,
        proxy.counts.swallowed_bytes - swallowed,
    )


@experiment(
    "commit-6",
    statement=(
        "Asynchronous commits in the loop plus one synchronous commit on close or rebalance are "
        "as safe as synchronous commits"
    ),
    method=(
        "Compare the combination with synchronous commits only: a consumer is killed, closes, or "
        "loses a partition to a second member. Count what is lost and repeated."
    ),
    advice=(
        "Use the combination: it loses nothing, and repeats only what a crash leaves uncommitted."
    ),
)
def combined_commit(trial: Trial) -> None:
    modes = (CommitMode.SYNC, CommitMode.COMBINED)
    crashes = _crashes(
        trial,
        {
            f"{mode}, killed {number}": {
                "point": CrashPoint.COMMITTED,
                "commit": mode,
                "commit_every": 1,
                "dies_on": DIES_ON + number,
            }
            for mode in modes
            for number in range(1, CRASHES + 1)
        },
    )
    closes = trial.together({str(mode): partial(_close, trial, mode) for mode in modes})
    handed_over = trial.together({str(mode): partial(_hand_over, trial, mode) for mode in modes})
    rows: list[Sequence[Cell]] = []
    rows += [["killed", name, one.lost, one.repeated] for name, one in crashes.items()]
    for event, results in (("closed", closes), ("partition taken", handed_over)):
        rows += [[event, mode, one.lost, one.repeated] for mode, one in results.items()]
    trial.table(f"Of {RECORDS} records", ["event", "commit", "lost", "repeated"], rows)
    for event, results in (("closing", closes), ("a rebalance", handed_over)):
        sync, combined = results[CommitMode.SYNC], results[CommitMode.COMBINED]
        trial.control(
            f"{event}: synchronous commit loses and repeats no records",
            sync.lost == sync.repeated == 0,
            str(sync),
        )
        trial.statement(
            f"{event} loses and repeats no records",
            combined.lost == combined.repeated == 0,
            str(combined),
        )
    sync_crashes, crashed = (
        [one for name, one in crashes.items() if name.startswith(mode)] for mode in modes
    )
    lost, repeated = (sum(getattr(one, name) for one in crashed) for name in ("lost", "repeated"))
    repeated_sync = sum(one.repeated for one in sync_crashes)
    trial.statement("a crash loses no records", lost == 0, f"{lost} lost in {CRASHES} crashes")
    trial.limit(
        "a crash right after a commit repeats the records of that commit",
        # None: all commits may have arrived before the crashes.
        repeated > repeated_sync or None,
        f"{repeated} records in {CRASHES} crashes; with synchronous commits {repeated_sync}",
    )


def _close(trial: Trial, commit: CommitMode) -> CrashEffect:
    scenario = trial.scenario(f"{commit}, closed")
    plan = _plan(trial, commit=commit)
    _publish(trial, scenario, plan)
    scenario.consume(msgspec.structs.replace(plan, member="first", count=DIES_ON))
    return _finish(trial, scenario, plan)


def _hand_over(trial: Trial, commit: CommitMode) -> CrashEffect:
    """Let a second member join and take over one of two partitions."""
    scenario = trial.scenario(f"{commit}, partition taken")
    topic = trial.topic(2)
    plan = Consuming(
        topic=topic,
        group=trial.group(),
        batch=BATCH,
        commit=commit,
        work_ms=2,
        config=_session(trial),
    )
    _publish(trial, scenario, plan)
    with scenario.background(msgspec.structs.replace(plan, member="first")) as (first, _):
        trial.wait(lambda: first.read > 40, "some records")
        with scenario.background(msgspec.structs.replace(plan, member="second")) as (second, _):
            trial.wait(
                lambda: len(first.assigned) == len(second.assigned) == 1, "both to have a partition"
            )
            trial.wait(
                lambda: checkers.lost(scenario.history()).count == 0,
                "every record to be processed",
                30,
            )
    operations = scenario.history()
    return _effect(operations, checkers.repeated(operations).count)


@experiment(
    "commit-7",
    statement="Committing explicit offsets in the middle of a batch reduces what is repeated",
    method=(
        "Batches of 100, committed after every 1, 10, 50 or 100 records. A consumer dies after "
        "the work of its 199th record. Count what is repeated."
    ),
    advice="Commit within large batches. The cost is one request per commit.",
)
def commit_within_batch(trial: Trial) -> None:
    steps = (1, 10, 50, 100)
    found = _crashes(
        trial,
        {
            f"every {every}": {
                "point": CrashPoint.WORKED,
                "dies_on": 199,  # just before a commit, whatever the interval
                "commit": CommitMode.SYNC,
                "commit_every": every,
                "batch": 100,
            }
            for every in steps
        },
    )
    repeated = dict(zip(steps, found.values(), strict=True))
    trial.plot(
        "Repeated records by the number of records between commits",
        "records between commits",
        "repeated",
        {"repeated": [(str(every), float(one.repeated)) for every, one in repeated.items()]},
    )
    counts = [one.repeated for one in repeated.values()]
    listed = ", ".join(f"{one.repeated} at {every}" for every, one in repeated.items())
    trial.control(
        "no record is lost",
        not any(one.lost for one in repeated.values()),
        f"{sum(one.lost for one in repeated.values())} lost",
    )
    trial.statement(
        "the shorter the interval, the fewer records are repeated",
        counts == sorted(counts) and counts[0] < counts[-1],
        listed,
    )


def _at_every_point(trial: Trial, keep: Keep, commit: CommitMode) -> dict[str, CrashEffect]:
    points = (CrashPoint.READ, CrashPoint.WRITING, CrashPoint.WORKED)
    return _crashes(
        trial,
        {
            f"{keep}, dies {point}": {"point": point, "keep": keep, "commit": commit}
            for point in points
        },
    )


@experiment(
    "commit-8",
    statement="Storing the offset in the same transaction as the result gives exactly-once",
    method=(
        "Write a row for each record and the next offset in one SQLite transaction. A consumer "
        "dies after the read, within the transaction and after it; a second consumer starts from "
        "the stored offset. As a control, the same rows with offsets committed to Kafka must "
        "show repeats."
    ),
    advice=(
        "Store the offset together with the result, in one transaction: this is what instep's "
        "ledger does."
    ),
    rules=("DATABASE_NO_TRANSACTIONS", "DATABASE_COMMITS_ASYNCHRONOUSLY"),
)
def offset_in_result_transaction(trial: Trial) -> None:
    together = _at_every_point(trial, Keep.WITH_OFFSET, CommitMode.NEVER)
    separately = _at_every_point(trial, Keep.TABLE, CommitMode.SYNC)
    _tabulate(trial, {**together, **separately})
    repeated = sum(one.repeated for one in separately.values())
    trial.control(
        "with the offset in Kafka, some rows are repeated",
        repeated > 0,
        f"{repeated} repeated over {len(separately)} crashes",
    )
    for name, one in together.items():
        trial.statement(name, one.lost == one.repeated == 0, str(one))


@experiment(
    "commit-9",
    statement="A unique index on the record's id turns at-least-once delivery into exactly-once",
    method=(
        "Commit offsets to Kafka after each batch, and write to a table with a unique index on "
        "the record's id, with the same crashes. Count the rows, and how often records were read "
        "again."
    ),
    advice=(
        "A unique index is enough if the row is the only effect. Any other effect of the work is "
        "repeated."
    ),
    rules=("DATABASE_SECOND_UNIQUE_KEY",),
)
def unique_index(trial: Trial) -> None:
    unique = _at_every_point(trial, Keep.UNIQUE, CommitMode.SYNC)
    _tabulate(trial, unique)
    read_again = sum(one.read_again for one in unique.values())
    trial.control(
        "records were read again", read_again > 0, f"{read_again} over {len(unique)} crashes"
    )
    for name, one in unique.items():
        trial.statement(
            name, one.lost == one.repeated == 0, f"{one!s}, {one.read_again} read again"
        )
    worked_again = sum(one.worked_again for one in unique.values())
    trial.limit(
        "effects other than the row are repeated",
        worked_again > 0,
        f"{worked_again} records were processed twice",
    )
