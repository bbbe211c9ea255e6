"""Claims about committing: when a position is committed, and what a crash then loses or repeats.

A consumer in its own process kills itself with -9 at a given point; a second consumer of the same
group finishes the work. What the rows of a database or the records of another topic add to it is
in `effects.py`; what a rebalance adds is in `rebalance.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from instep.local.proxy import NetworkFault
from instep.report.tables import Cell
from instep_lab import checkers, history, integrity
from instep_lab.claim import experiment
from instep_lab.claims import crashes, senders
from instep_lab.claims.crashes import (
    BATCH,
    FIRST,
    NEVER_MS,
    RECORDS,
    SECOND,
    CrashEffect,
    CrashSeries,
)
from instep_lab.clients import committed_offsets
from instep_lab.clients.consuming import CommitMode, Consuming, CrashPoint, Pool
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind, OperationStatus
from instep_lab.trial import Scenario, Trial, spread

CLIENTS = (Library.JAVA, Library.LIBRDKAFKA)
CLOSES_AFTER = 130  # in the middle of a batch
UNEVEN = 37  # records between commits: never a multiple of a batch
UNANSWERED_MIN = 5  # commits whose responses are dropped
DROPS_MAX = 8  # whether a commit that is sent again overtakes another is a matter of timing
WORK_MS = 25  # on average: the default interval of 5 s ends before the work on all records
ATTEMPTS_MAX = 4  # whether an asynchronous commit arrives before a crash is a matter of timing
SESSION = crashes.SESSION_NOTE


def _kill_when_ahead(trial: Trial, scenario: Scenario, more: int, **options: Any) -> CrashEffect:
    """Kill a consumer once the broker has an automatic commit and it has worked on some more."""
    plan = crashes.plan(trial, commit=CommitMode.AUTO, **options)
    crashes.publish(trial, scenario, plan.topic)
    first = scenario.start(crashes.mortal(trial, plan, to_end=False))
    # Wait for the stored commit, not for a time: on a slow machine a fixed time could end before
    # the first commit, and nothing would be lost.
    trial.wait(
        lambda: (
            committed_offsets.position(trial.cluster.connection, plan.group, plan.topic, 0)
            is not None
        ),
        "an automatic commit",
    )
    enough = _worked(scenario) + more
    trial.wait(lambda: _worked(scenario) >= enough, f"{more} more records")
    first.kill()
    status = first.wait()
    first.close()
    trial.note(f"{scenario.name}: killed the first consumer ({status})")
    return crashes.finish(trial, scenario, plan, killed=status == -9)


def _worked(scenario: Scenario) -> int:
    return sum(one.kind is OperationKind.WORK for one in scenario.history())


def _close_within_batch(
    trial: Trial, scenario: Scenario, fails_on: int, **options: Any
) -> CrashEffect:
    """Close a consumer whose work failed within a batch, and let another one finish."""
    plan = crashes.plan(trial, **options)
    crashes.publish(trial, scenario, plan.topic)
    scenario.consume(msgspec.structs.replace(plan, member=FIRST, fails_on=fails_on))
    return crashes.finish(trial, scenario, plan, killed=False)


@experiment(
    "commit-1",
    statement=(
        "Automatic commit loses records if the process dies after the commit but before the work "
        "is done"
    ),
    method=(
        "Automatic commit every 200 ms, with the Java client and with librdkafka. A consumer "
        "hands its records to slow threads, or processes them itself, and is killed at a random "
        "point after the first commit; a second consumer finishes. With librdkafka, repeat with "
        "the offset stored only after the work. Then the work fails within a batch and the "
        "consumer closes, as in a program that closes it in a finally block; the interval is so "
        "long that only closing commits."
    ),
    advice=(
        "Never hand work to threads that the commit does not wait for. The Java client commits "
        "in the next poll what the last one returned: work in the reading thread is safe, unless "
        "the program closes the consumer with part of a batch undone, for example after an "
        "exception: close() commits the whole batch. librdkafka commits what was handed out, in "
        "the background and when it closes: store the offset after the work "
        "(enable.auto.offset.store=false), or commit manually."
    ),
    why=(
        "The Java client commits inside poll, and what it commits was returned by an earlier "
        "poll: a thread that works before it polls again has finished by then. librdkafka marks "
        "an offset as soon as it hands the record out, and commits marked offsets from a "
        "background thread, whether the work is done or not. Neither client knows of work in "
        "other threads. When it closes, the Java client commits its position, and librdkafka what "
        "is marked: both are the end of the batch."
    ),
    scope=(
        "Java client since 0.9, and librdkafka since 0.9 with enable.auto.offset.store=true, "
        "its default; measured with 4.3 and the classic protocol. With the consumer protocol "
        "(since 4.0, a preview before) the Java client's commit waits for the next poll too "
        "(commit-14). Until KAFKA-18641 was fixed (apache/kafka#18737, 2025), that protocol's "
        "consumer could also commit records that poll had not yet returned, and lose them. The "
        "interval is 200 ms here, 5 s by default: a longer one makes the loss rarer, not smaller. "
        + SESSION
    ),
    sources=(
        "documentation: enable.auto.commit",
        "librdkafka: configuration",
        "KAFKA-18641",
        crashes.SESSION_SOURCE,
    ),
)
def loss_with_automatic_commit(trial: Trial) -> None:
    _lose_by_kills(trial)
    _lose_by_closing(trial)


STORED_LATER: Mapping[str, Any] = {"enable.auto.offset.store": False}


def _lose_by_kills(trial: Trial) -> None:
    """Kill consumers between the commit and the work."""
    often = {"auto.commit.interval.ms": 200}
    later = {**often, **STORED_LATER}
    threads = {"pool": Pool.BY_RECORD, "work_ms": 200, "config": often}
    same_thread = {"work_ms": 20, "batch": 100, "config": often}
    cases: dict[str, dict[str, Any]] = {
        "librdkafka, stored after the work": {**same_thread, "config": later}
    }
    for library in CLIENTS:
        cases[f"{library}, handed to threads"] = {**threads, "library": library}
        cases[f"{library}, in the reading thread"] = {**same_thread, "library": library}
    results: dict[str, list[CrashEffect]] = {name: [] for name in cases}
    for number in trial.rounds(1, crashes.CRASHES):
        # The cases of a round at the same time: each mostly waits.
        found = trial.together(
            {
                name: partial(
                    crashes.undisturbed,
                    trial,
                    f"{name}, {number + 1}",
                    partial(_kill_when_ahead, trial, more=trial.random.randrange(BATCH), **options),
                )
                for name, options in cases.items()
            }
        )
        for name, effect in found.items():
            results[name].append(effect)
    series = {name: CrashSeries(effects) for name, effects in results.items()}
    crashes.control_kills(trial, series)
    crashes.tabulate(trial, series)
    crashes.show_examples(trial, series.values())
    for library in CLIENTS:
        handed, processed = (
            series[f"{library}, {how}"] for how in ("handed to threads", "in the reading thread")
        )
        trial.statement(
            "records handed to threads are lost",
            handed.lost > 0,
            handed.describe_lost(),
            client=library,
        )
        trial.statement(
            "records processed in the reading thread are lost",
            processed.lost > 0,
            processed.describe_lost(),
            client=library,
        )
    safe = series["librdkafka, stored after the work"]
    trial.control(
        "librdkafka: storing the offset after the work loses no records",
        safe.lost == 0,
        safe.describe_lost(),
    )


def _lose_by_closing(trial: Trial) -> None:
    """Close consumers within a batch, with and without automatic commit."""
    only_closing = {"auto.commit.interval.ms": NEVER_MS}
    later = {**only_closing, **STORED_LATER}
    cases: dict[str, dict[str, Any]] = {
        "librdkafka, stored after the work": {"commit": CommitMode.AUTO, "config": later}
    }
    for library in CLIENTS:
        cases[f"{library}, automatic commit"] = {
            "commit": CommitMode.AUTO,
            "library": library,
            "config": only_closing,
        }
        cases[f"{library}, no commit"] = {"commit": CommitMode.NEVER, "library": library}
    results: dict[str, list[CrashEffect]] = {name: [] for name in cases}
    for number in range(trial.scaled(1, crashes.CRASHES)):
        within = BATCH * trial.random.randrange(1, 10) + trial.random.randrange(2, 15)
        found = trial.together(
            {
                name: partial(
                    _close_within_batch,
                    trial,
                    trial.scenario(f"{name}, closed {number + 1}"),
                    within,
                    **options,
                )
                for name, options in cases.items()
            }
        )
        for name, effect in found.items():
            results[name].append(effect)
    series = {name: CrashSeries(effects, "closing") for name, effects in results.items()}
    crashes.tabulate(trial, series)
    for library in CLIENTS:
        closed, uncommitted = (
            series[f"{library}, {how}"] for how in ("automatic commit", "no commit")
        )
        trial.control(
            f"{library}: without automatic commit, closing within a batch loses no records",
            uncommitted.lost == 0,
            uncommitted.describe_lost(),
        )
        trial.statement(
            "a consumer that closes within a batch loses the rest of it",
            all(one.lost > 0 for one in closed.effects),
            closed.describe_lost(),
            client=library,
        )
        _show_closing(trial, library, closed.effects[0])
    safe = series["librdkafka, stored after the work"]
    trial.control(
        "librdkafka: with the offset stored after the work, closing within a batch loses no"
        " records",
        safe.lost == 0,
        safe.describe_lost(),
    )


def _show_closing(trial: Trial, library: Library, closed: CrashEffect) -> None:
    """Show the end of a consumer whose work failed, and where the next one began."""
    operations = closed.scenario.history()
    of_first = [one for one in operations if one.member == FIRST]
    failed = next(at for at, one in enumerate(of_first) if one.kind is OperationKind.FAULT)
    of_second = [one for one in operations if one.member == SECOND]
    trial.show(
        f"the rest of a batch is lost, with {library}",
        history.excerpt(operations, [*of_first[failed - 4 :], *of_second[:4]]),
    )


@experiment(
    "commit-2",
    statement="Automatic commit repeats records if the process dies before the next commit",
    method=(
        "Automatic commit every 60 s, or every 100 ms, with the Java client and with librdkafka "
        "(enable.auto.offset.store at its default, true). A consumer dies after the work on a "
        "random record; another consumer finishes."
    ),
    advice=(
        "Make the work safe to repeat (a guard, a unique key): automatic commit repeats up to "
        "one interval of records."
    ),
    why=(
        "The group continues from the last commit. Whatever was processed after it is not known "
        "to the broker, and is read again."
    ),
    scope=(
        "Java client since 0.9 and librdkafka since 0.9, with the classic protocol. The "
        "interval is 5 s by default. With a short interval librdkafka repeats little because "
        "it commits what it hands out, which loses records instead (see commit-1). " + SESSION
    ),
    sources=(
        "documentation: enable.auto.commit",
        "librdkafka: configuration",
        crashes.SESSION_SOURCE,
    ),
)
def repeats_with_automatic_commit(trial: Trial) -> None:
    intervals = (60_000, 100)
    # Late enough for the short interval to have passed.
    deaths = [
        (CrashPoint.WORKED, trial.random.randrange(150, RECORDS - BATCH))
        for _ in range(trial.scaled(1, crashes.CRASHES))
    ]
    series = crashes.run_each(
        trial,
        {
            f"{library}, every {ms / 1000:g} s": (
                deaths,
                {
                    "commit": CommitMode.AUTO,
                    "work_ms": 5,
                    "library": library,
                    "config": {"auto.commit.interval.ms": ms},
                },
            )
            for library in CLIENTS
            for ms in intervals
        },
    )
    crashes.tabulate(trial, series)
    crashes.show_examples(trial, series.values())
    for library in CLIENTS:
        rare, often = (series[f"{library}, every {ms / 1000:g} s"] for ms in intervals)
        _control_automatic_commit(trial, f"{library}, every {intervals[-1] / 1000:g} s", often)
        trial.statement(
            "every record since the last commit is repeated",
            all(one.repeated == one.worked > 0 for one in rare.effects),
            f"{rare.describe_repeated()}; none was committed",
            client=library,
        )
        trial.statement(
            "a shorter interval repeats less",
            often.repeated < rare.repeated,
            f"{often.repeated} instead of {rare.repeated} records",
            client=library,
        )


def _control_automatic_commit(trial: Trial, name: str, series: CrashSeries) -> None:
    """Record that automatic commit was on: without it, the same records would be repeated."""
    stored = sum(one.stored > 0 for one in series.effects)
    trial.control(
        f"{name}: an automatic commit was stored before the kill",
        stored == len(series.effects),
        f"{stored} of {len(series.effects)}",
    )


@experiment(
    "commit-3",
    statement=(
        "Committing manually after the work never loses records, and repeats those after the "
        "last commit"
    ),
    method=(
        "Synchronous commit after each batch of 20. A consumer dies after the read, after the "
        "work or after the commit of a random record; a second consumer finishes."
    ),
    advice="For at-least-once, commit after the work, and make the work safe to repeat.",
    why=(
        "A crash can only fall before the commit, and then the records of the batch are read "
        "again, or after it, and then their work is done. No order of work and commit avoids "
        "both, as long as they are two steps."
    ),
    scope=(
        "All clients with manual commits, which the Java client and librdkafka have since 0.9; "
        "run with librdkafka, the classic protocol and commits of the records that were "
        "processed. " + SESSION
    ),
    sources=("documentation: semantics", crashes.SESSION_SOURCE),
)
def commit_after_work(trial: Trial) -> None:
    points = (CrashPoint.WORKED, CrashPoint.READ, CrashPoint.COMMITTED)
    series = crashes.run_crashes(
        trial, "after the work", crashes.draw(trial, points, 3), commit=CommitMode.SYNC
    )
    crashes.tabulate(trial, {"commit after the work": series})
    crashes.show_examples(trial, [series])
    _control_commits(trial, series)
    trial.statement("no record is lost", series.lost == 0, series.describe_lost())
    trial.statement(
        "exactly the records after the last commit are repeated",
        _as_predicted(series.repeated, [(one.repeated, one.uncommitted) for one in series.effects]),
        f"{series.describe_repeated()}, batches of {BATCH}",
    )


def _control_commits(trial: Trial, series: CrashSeries) -> None:
    """Record that the broker has stored what the consumers committed, no more and no less."""
    same = sum(one.stored == one.recorded for one in series.effects)
    trial.control(
        "the broker has the commits that the consumers recorded",
        same == len(series.effects),
        f"{same} of {len(series.effects)}",
    )


def _as_predicted(total: int, pairs: Sequence[tuple[int, int]]) -> bool | None:
    """Return whether every measured number is the predicted one; None if nothing was to be seen."""
    if any(measured != predicted for measured, predicted in pairs):
        return False
    return total > 0 or None


@experiment(
    "commit-4",
    statement=(
        "Committing before the work never repeats records, and loses those that were not processed"
    ),
    method=(
        "Synchronous commit of each batch of 20 before its work. A consumer dies after the "
        "commit of a batch, or after the work on a random record; a second consumer finishes."
    ),
    advice=(
        "Commit first only if losing a record is better than repeating it, and document it: this "
        "is at-most-once."
    ),
    why=(
        "The group continues behind the commit. What was committed and not yet processed when "
        "the process died is never read again."
    ),
    scope=(
        "All clients with manual commits, which the Java client and librdkafka have since 0.9; "
        "run with librdkafka and the classic protocol. " + SESSION
    ),
    sources=("documentation: semantics", crashes.SESSION_SOURCE),
)
def commit_before_work(trial: Trial) -> None:
    points = (CrashPoint.COMMITTED, CrashPoint.WORKED)
    series = crashes.run_crashes(
        trial, "before the work", crashes.draw(trial, points, 2), commit=CommitMode.BEFORE
    )
    crashes.tabulate(trial, {"commit before the work": series})
    crashes.show_examples(trial, [series])
    trial.statement("no record is repeated", series.repeated == 0, series.describe_repeated())
    trial.statement(
        "exactly the records that were committed but not processed are lost",
        _as_predicted(series.lost, [(one.lost, one.unworked) for one in series.effects]),
        f"{series.describe_lost()}, batches of {BATCH}",
    )


@experiment(
    "commit-5",
    statement=(
        "Asynchronous commit is faster, is not retried as a synchronous one is, and can be "
        "overtaken by an older one"
    ),
    method=(
        "With the Java client and with librdkafka: commit after every record, synchronously and "
        "asynchronously, and compare the best rounds, without recording single records. Then drop "
        "the broker's responses for a while, cut the connection, and compare the requested commits "
        "with those that the broker stored, until a commit that was sent again has overtaken "
        "another. Do the same with synchronous commits."
    ),
    advice=(
        "Commit asynchronously in the loop and synchronously at the end. The Java client reports "
        "a lost commit to the callback and does not send it again. librdkafka sends it again, "
        "and may thereby store an older offset after a newer one."
    ),
    why=(
        "A synchronous commit waits for the broker's response before the next record is read. "
        "The Java client gives an asynchronous commit up when its response does not come, "
        "because a newer commit may be under way; commitSync, which waits, tries again until it "
        "succeeds or its time-out ends it. librdkafka treats both as any other request that "
        "failed, and sends them again on the new connection, asynchronous ones after newer ones."
    ),
    scope=(
        "commitSync and commitAsync exist since 0.9 in the Java client; librdkafka has one "
        "commit with a flag. Measured with Java 4.3, librdkafka 2 and the classic protocol. "
        "Missing responses are noticed after 1 s (librdkafka's socket.timeout.ms, 60 s by "
        "default) and 2 s (Java's request.timeout.ms, 30 s by default). Rates are for one "
        "commit per record on one broker without network delay: a real network makes the "
        "difference larger."
    ),
    sources=("documentation: commitAsync", "librdkafka: configuration"),
    harmless=False,
    alone=True,
)
def asynchronous_commit(trial: Trial) -> None:
    for library in CLIENTS:
        _compare_speed(trial, library)
    dropped = {library: _drop_until_decided(trial, library) for library in CLIENTS}
    trial.table(
        "Asynchronous commits while responses were dropped",
        [
            "client",
            "rounds",
            "requested",
            "stored",
            "stored twice",
            "went back",
            "reported as failed",
        ],
        [
            [
                library,
                len(rounds),
                sum(one.sent for one in rounds),
                sum(len(one.stored) for one in rounds),
                _stored_twice(rounds),
                _went_back(rounds),
                sum(one.failed for one in rounds),
            ]
            for library, rounds in dropped.items()
        ],
    )
    for library, rounds in dropped.items():
        sent, twice = sum(one.sent for one in rounds), _stored_twice(rounds)
        trial.control(
            f"{library}: the broker stored commits whose response was dropped",
            # A cut alone drops the response of the last one at most.
            all(one.unanswered + one.stored_twice >= UNANSWERED_MIN for one in rounds),
            f"{sum(one.unanswered for one in rounds)} of {sent} commits were stored without a"
            f" response, {twice} were sent again",
        )
        trial.statement(
            "a commit without a response is not retried",
            twice == 0,
            f"{sent} commits requested, {twice} stored a second time,"
            f" {sum(one.failed for one in rounds)} reported as failed",
            client=library,
        )
        trial.statement(
            "an older commit overtakes a newer one",
            overtakes(rounds),
            f"the stored position went back {_went_back(rounds)} times",
            client=library,
        )
        for one in rounds:
            if one.went_back:
                trial.show(f"went back: {library}, the offsets that the broker stored", one.steps)
    for library in CLIENTS:
        one = _drop_responses(trial, library, CommitMode.SYNC)
        trial.statement(
            "a synchronous commit without a response is retried until it succeeds",
            one.was_retried,
            f"{one.sent} commits, {one.stored_twice} stored a second time,"
            f" {one.failed} reported as failed",
            client=library,
        )


Speeds = dict[CommitMode, list[float]]


def _compare_speed(trial: Trial, library: Library) -> None:
    """Compare synchronous and asynchronous commits with one commit per record."""
    speeds: Speeds = {CommitMode.SYNC: [], CommitMode.ASYNC: []}
    # Asynchronous commits are many times faster: with as many records, their round would be over
    # in milliseconds.
    counts = {
        CommitMode.SYNC: trial.scaled(1_000, 4_000),
        CommitMode.ASYNC: trial.scaled(10_000, 40_000),
    }
    topic = trial.topic(1)
    trial.fill(topic, max(counts.values()))
    unread = 0
    for number in range(senders.ATTEMPTS_MAX):
        for turn in trial.rounds(3, 7):
            for commit, found in speeds.items():
                scenario = trial.scenario(f"{library}, {commit}, {number + 1}, {turn + 1}")
                plan = Consuming(
                    topic=topic,
                    group=trial.group(),
                    library=library,
                    count=counts[commit],
                    commit=commit,
                    commit_every=1,
                    batch=20,
                    sampled=True,
                )
                scenario.consume(plan)
                reads = list(history.of(scenario.history(), OperationKind.READ))
                found.append((plan.count or 0) / ((reads[-1].at_ns - reads[0].at_ns) / 1e9))
                # the last record that was worked on, by its place: nothing was passed over
                unread += (reads[0].offset, reads[-1].offset) != (0, counts[commit] - 1)
        if _is_faster(speeds) is not None:
            break
    trial.table(
        f"{library}: records per second, with one commit per record",
        ["commit", "records", "median (lowest to highest)"],
        [[str(one), counts[one], spread(found, digits=0)] for one, found in speeds.items()],
    )
    trial.control(
        f"{library}: every measured consumer began at the first record and ended at the last",
        unread == 0,
        f"{unread} of {sum(map(len, speeds.values()))} did not",
    )
    trial.statement(
        "asynchronous commit is faster",
        _is_faster(speeds),
        f"{spread(speeds[CommitMode.ASYNC], digits=0)} against"
        f" {spread(speeds[CommitMode.SYNC], digits=0)} records/s",
        client=library,
    )


def _is_faster(speeds: Speeds) -> bool | None:
    """Return whether asynchronous commits are clearly faster; None if a busy machine may decide."""
    return senders.clearly_more(
        max(speeds[CommitMode.ASYNC]), max(speeds[CommitMode.SYNC]), 1.0, senders.HARDLY
    )


@dataclass(frozen=True, slots=True)
class DroppedCommits:
    """Asynchronous commits while responses were dropped.

    `stored` has the offsets in the order in which the broker stored them.
    """

    sent: int
    stored: list[int]
    failed: int
    unanswered: int

    @property
    def stored_twice(self) -> int:
        return len(self.stored) - len(set(self.stored))

    @property
    def was_retried(self) -> bool | None:
        """Whether a commit without a response was sent again until it succeeded.

        None if one has failed: on a busy machine its time-out may end before the answer comes.
        """
        return None if self.failed else self.stored_twice > 0

    @property
    def went_back(self) -> int:
        return sum(after < before for before, after in itertools.pairwise(self.stored))

    @property
    def steps(self) -> list[str]:
        """The offsets around the first step back, one per line, in the order of the broker."""
        for at, (before, after) in enumerate(itertools.pairwise(self.stored), start=1):
            if after < before:
                first = max(0, at - STEPS_SHOWN)
                return [
                    f"stored as number {number + 1}: offset {self.stored[number]}"
                    + " (older than the one before)" * (number == at)
                    for number in range(first, min(at + STEPS_SHOWN, len(self.stored)))
                ]
        return []


STEPS_SHOWN = 5  # before and after a step back


def _stored_twice(rounds: Sequence[DroppedCommits]) -> int:
    return sum(one.stored_twice for one in rounds)


def _went_back(rounds: Sequence[DroppedCommits]) -> int:
    return sum(one.went_back for one in rounds)


def overtakes(rounds: Sequence[DroppedCommits]) -> bool | None:
    """Return whether an older commit overtook a newer one; None if that may be chance.

    A commit that is sent again may come before or after a newer one. Without a commit that was sent
    again, none can overtake.
    """
    if _went_back(rounds):
        return True
    return None if _stored_twice(rounds) else False


def _drop_until_decided(trial: Trial, library: Library) -> list[DroppedCommits]:
    """Drop responses in several rounds, until it shows whether commits overtake each other."""
    rounds: list[DroppedCommits] = []
    while not rounds or (overtakes(rounds) is None and len(rounds) < DROPS_MAX):
        rounds.append(_drop_responses(trial, library, CommitMode.ASYNC, len(rounds) + 1))
    return rounds


def _drop_responses(
    trial: Trial, library: Library, commit: CommitMode, number: int = 1
) -> DroppedCommits:
    """Commit while responses are dropped, then continue."""
    scenario = trial.scenario(f"{library}, {commit}, responses dropped, round {number}")
    topic, group = trial.topic(1), trial.group()
    scenario.publish(Publishing(topic=topic, count=3_000, seed=trial.seed))
    proxy = next(iter(trial.cluster.proxies.values()))
    # Notice missing responses soon.
    noticed = {"request.timeout.ms": 2_000, "default.api.timeout.ms": 5_000}
    if library is Library.LIBRDKAFKA:
        noticed = {"socket.timeout.ms": 1_000, "session.timeout.ms": 6_000}
    plan = Consuming(
        topic=topic,
        group=group,
        library=library,
        commit=commit,
        commit_every=5,
        batch=5,
        work_ms=2,
        assigned=[0],
        config=noticed,
    )
    with scenario.background(plan, trial.cluster.proxied) as (counted, _):
        trial.wait(lambda: counted.read > 100, "100 records")
        # The broker stores these commits, but the client never learns of it.
        proxy.inject(NetworkFault(swallows_answers=True))
        read, known = counted.read, _committed(scenario)
        if commit is CommitMode.SYNC:
            # The client waits for the answer to the first one.
            trial.wait(
                lambda: (
                    (committed_offsets.position(trial.cluster.connection, group, topic, 0) or 0)
                    > known
                ),
                "a commit without a response",
            )
        else:
            trial.wait(lambda: counted.read > read + 50, "commits without a response")
        trial.cut(proxy)
        proxy.clear_fault()
        read = counted.read
        trial.wait(lambda: counted.read >= min(read + 500, 3_000), "reading to continue")
    operations = [one for one in scenario.history() if one.kind is OperationKind.COMMIT]
    sent = {one.offset for one in operations if one.note in ("sent", integrity.SYNCHRONOUS)}
    answered = {one.offset for one in operations if one.outcome is OperationStatus.OK}
    stored = committed_offsets.commits(trial.cluster.connection, group, topic, 0)
    return DroppedCommits(
        len(sent),
        stored,
        sum(one.outcome is OperationStatus.FAIL for one in operations),
        len((sent & set(stored)) - answered),
    )


def _committed(scenario: Scenario) -> int:
    """Return the highest offset that a consumer knows to be committed."""
    return max(
        (one.offset or 0 for one in history.of(scenario.history(), OperationKind.COMMIT)), default=0
    )


@experiment(
    "commit-6",
    statement=(
        "Asynchronous commits in the loop plus one synchronous commit on close or rebalance are "
        "as safe as synchronous commits"
    ),
    method=(
        "Compare asynchronous commits every 37 records, with and without a synchronous commit at "
        "the end and when partitions are revoked, with a synchronous commit after each batch: a "
        "consumer closes, loses a partition to a second member, or is killed right after a "
        "commit of a random record. Count what is lost and repeated. In the kills, each record is "
        "committed."
    ),
    advice=(
        "Use the combination: it loses nothing, and repeats only what a crash leaves uncommitted. "
        "The commit at the end and in the rebalance listener is the part that people forget."
    ),
    why=(
        "A member that closes or gives up partitions still has the right to commit them, and the "
        "synchronous commit covers everything that asynchronous ones have not. A crash leaves no "
        "time for it: what was committed asynchronously in the last moments may not have been "
        "sent, which can be many commits if there is one for each record."
    ),
    scope=(
        "Clients since 0.9 with manual commits; run with librdkafka and the classic protocol. "
        "The Java client's commitAsync behaves differently when a response is missing "
        "(commit-5). " + SESSION
    ),
    sources=(
        "documentation: ConsumerRebalanceListener",
        "documentation: commitAsync",
        crashes.SESSION_SOURCE,
    ),
)
def combined_commit(trial: Trial) -> None:
    modes: dict[CommitMode, int | None] = {
        CommitMode.SYNC: None,
        CommitMode.COMBINED: UNEVEN,
        CommitMode.ASYNC: UNEVEN,
    }
    closes = trial.together(
        {str(mode): partial(_close, trial, mode, every) for mode, every in modes.items()}
    )
    handed_over = trial.together(
        {str(mode): partial(_hand_over, trial, mode, every) for mode, every in modes.items()}
    )
    rows: list[Sequence[Cell]] = []
    for event, results in (("closing", closes), ("a rebalance", handed_over)):
        rows += [[event, mode, one.lost, one.repeated] for mode, one in results.items()]
        sync, combined, unfinished = (results[mode] for mode in modes)
        trial.control(
            f"{event}: synchronous commit loses and repeats no records",
            sync.lost == sync.repeated == 0,
            str(sync),
        )
        trial.control(
            f"{event}: without the synchronous commit at the end, records are repeated",
            unfinished.repeated > 0 or None,
            str(unfinished),
        )
        trial.statement(
            f"{event} loses and repeats no records",
            combined.lost == combined.repeated == 0,
            str(CrashSeries([combined], event.removeprefix("a "))),
        )
    killed = _kill_after_commit(trial)
    rows += [
        [f"{len(one.effects)} kills", mode, one.lost, one.repeated] for mode, one in killed.items()
    ]
    trial.table(f"Of {RECORDS} records", ["event", "commit", "lost", "repeated"], rows)
    sync_kills, kills = killed[CommitMode.SYNC], killed[CommitMode.COMBINED]
    crashes.show_examples(trial, [kills])
    trial.statement("a crash loses no records", kills.lost == 0, kills.describe_lost())
    trial.limit(
        "a crash right after an asynchronous commit repeats the records of all commits that had not"
        " arrived",
        # None: all commits may have arrived before the crashes.
        kills.repeated > sync_kills.repeated or None,
        f"{kills.describe_repeated()}; with synchronous commits {sync_kills.repeated} records",
    )


def _kill_after_commit(trial: Trial) -> dict[CommitMode, CrashSeries]:
    """Kill consumers right after a commit, until one repeats records."""
    modes = (CommitMode.SYNC, CommitMode.COMBINED)
    found: dict[CommitMode, list[CrashEffect]] = {mode: [] for mode in modes}
    for _ in range(ATTEMPTS_MAX):
        deaths = crashes.draw(trial, [CrashPoint.COMMITTED], 4)
        functions = {
            (mode, number): partial(
                crashes.undisturbed,
                trial,
                f"{mode}, killed {len(found[mode]) + number}",
                partial(
                    crashes.crash,
                    trial,
                    point=point,
                    dies_on=dies_on,
                    commit=mode,
                    commit_every=1,
                ),
            )
            for mode in modes
            for number, (point, dies_on) in enumerate(deaths, start=1)
        }
        named = {f"{mode}, {number}": each for (mode, number), each in functions.items()}
        results = crashes.in_turns(trial, named)
        for mode in modes:
            found[mode] += [one for name, one in results.items() if name.startswith(mode)]
        if any(one.repeated for one in found[CommitMode.COMBINED]):
            break
    series = {mode: CrashSeries(effects) for mode, effects in found.items()}
    crashes.control_kills(trial, {str(mode): one for mode, one in series.items()})
    return series


def _close(trial: Trial, commit: CommitMode, every: int | None) -> CrashEffect:
    scenario = trial.scenario(f"{commit}, closed")
    plan = crashes.plan(trial, commit=commit, commit_every=every)
    crashes.publish(trial, scenario, plan.topic)
    scenario.consume(msgspec.structs.replace(plan, member=FIRST, count=CLOSES_AFTER))
    return crashes.finish(trial, scenario, plan)


def _hand_over(trial: Trial, commit: CommitMode, every: int | None) -> CrashEffect:
    """Let a second member join and take over one of two partitions."""
    scenario = trial.scenario(f"{commit}, partition taken")
    plan = crashes.plan(
        trial,
        topic=trial.topic(2),
        commit=commit,
        commit_every=every,
        work_ms=2,
        to_end=False,
    )
    crashes.publish(trial, scenario, plan.topic)
    with scenario.background(msgspec.structs.replace(plan, member=FIRST)) as (first, _):
        trial.wait(lambda: first.read > 40, "some records")
        with scenario.background(msgspec.structs.replace(plan, member=SECOND)) as (second, _):
            trial.wait(
                lambda: len(first.assigned) == len(second.assigned) == 1, "both to have a partition"
            )
            trial.wait(
                lambda: checkers.lost(scenario.history()).count == 0,
                "every record to be processed",
                30,
            )
    return crashes.effect(scenario, plan)


@experiment(
    "commit-7",
    statement="Committing explicit offsets in the middle of a batch reduces what is repeated",
    method=(
        "Batches of 100, committed after every 1, 10, 50 or 100 records. A consumer dies after "
        "the work on a record just before a commit, or on a random one. Count what is repeated, "
        "and compare it with the position that the broker has."
    ),
    advice="Commit within large batches. The cost is one request per commit.",
    why=(
        "A commit names an offset, which may be any: the batch that poll returned means nothing "
        "to the broker. What a crash repeats is what was processed since the last commit."
    ),
    scope=(
        "All clients that commit given offsets: the Java client and librdkafka since 0.9; run "
        "with librdkafka and the classic protocol. " + SESSION
    ),
    sources=("documentation: commitSync", crashes.SESSION_SOURCE),
)
def commit_within_batch(trial: Trial) -> None:
    steps = (1, 10, 50, 100)
    before = 100 * trial.random.randrange(1, 3) - 1  # just before a commit, whatever the interval
    also = crashes.draw(trial, [CrashPoint.WORKED], 0, 7)
    series = crashes.run_each(
        trial,
        {
            f"every {every}": (
                [(CrashPoint.WORKED, before), *also],
                {"commit": CommitMode.SYNC, "commit_every": every, "batch": 100},
            )
            for every in steps
        },
    )
    effects = [one for each in series.values() for one in each.effects]
    everything = CrashSeries(effects)
    # The first crash of each case is just before a commit.
    worst = {
        every: one.effects[0].repeated for every, one in zip(steps, series.values(), strict=True)
    }
    trial.plot(
        "Repeated records by the number of records between commits",
        "records between commits",
        "repeated",
        {"repeated": [(str(every), float(count)) for every, count in worst.items()]},
    )
    crashes.show_examples(trial, series.values())
    trial.control("no record is lost", everything.lost == 0, everything.describe_lost())
    _control_commits(trial, everything)
    trial.control(
        "the broker has the last multiple of the interval, and nothing beyond the work",
        all(
            one.stored == (one.worked - 1) // every * every
            for every, each in zip(steps, series.values(), strict=True)
            for one in each.effects
        ),
        f"{len(effects)} positions",
    )
    trial.statement(
        "each crash repeats exactly the records since the last commit",
        _as_predicted(everything.repeated, [(one.repeated, one.uncommitted) for one in effects]),
        everything.describe_repeated(),
    )
    counts = list(worst.values())
    trial.statement(
        "the shorter the interval, the fewer records are repeated",
        counts == sorted(counts) and counts[0] < counts[-1],
        ", ".join(f"{count} at {every}" for every, count in worst.items()),
    )


@experiment(
    "commit-10",
    statement="Automatic commit means at-most-once: no record is processed twice",
    method=(
        "The Java client and librdkafka with automatic commit and its default interval. A "
        "consumer is killed when it has worked on one batch or more after its first commit; "
        "another consumer finishes."
    ),
    advice=(
        "Do not count on either: automatic commit repeats records after most crashes, and loses "
        "records if another thread does the work, or with librdkafka (commit-1). For "
        "at-most-once, commit before the work."
    ),
    why=(
        "Automatic commit commits by the clock. A crash within the interval falls after the work "
        "and before the commit, and repeats; with librdkafka or with threads it may also fall "
        "after the commit and before the work, and lose. So it is neither at-most-once nor "
        "at-least-once, except for the Java client with work in the reading thread, which is "
        "at-least-once as long as it does not close the consumer within a batch (commit-1)."
    ),
    scope=(
        "Java client and librdkafka since 0.9, with the classic protocol and "
        "auto.commit.interval.ms at its default of 5 s. " + SESSION
    ),
    sources=(
        "documentation: enable.auto.commit",
        "documentation: semantics",
        crashes.SESSION_SOURCE,
    ),
)
def automatic_commit_at_most_once(trial: Trial) -> None:
    # More than what was handed out when the commit was made, which librdkafka commits too.
    ahead = [BATCH + trial.random.randrange(BATCH) for _ in range(trial.scaled(1, crashes.CRASHES))]
    found = crashes.in_turns(
        trial,
        {
            f"{library}, {number}": partial(
                crashes.undisturbed,
                trial,
                f"{library}, {number}",
                partial(_kill_when_ahead, trial, more=more, work_ms=WORK_MS, library=library),
            )
            for number, more in enumerate(ahead, start=1)
            for library in CLIENTS
        },
    )
    series = {
        str(library): CrashSeries(
            [one for name, one in found.items() if name.startswith(f"{library}, ")]
        )
        for library in CLIENTS
    }
    crashes.control_kills(trial, series)
    crashes.tabulate(trial, series)
    crashes.show_examples(trial, series.values())
    for library in CLIENTS:
        one = series[library]
        _control_automatic_commit(trial, str(library), one)
        trial.statement(
            "no record is processed twice",
            one.repeated == 0,
            one.describe_repeated(),
            client=library,
        )
