"""Crashes of consumers: one dies at a given point, another one of its group finishes the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from instep import errors
from instep.report.tables import Cell
from instep_lab import bounds, checkers
from instep_lab.clients import committed_offsets, table
from instep_lab.clients.consuming import UNIQUE_COLUMNS, Consuming, CrashPoint
from instep_lab.clients.publishing import Publishing
from instep_lab.history import ClientOperation, OperationKind, OperationStatus
from instep_lab.trial import Scenario, Trial

RECORDS = 300
BATCH = 20
CRASHES = 30  # in the full tier: with none of them a hit, at most 10 % are
MOST_AT_ONCE = 8
FIRST, SECOND = "first", "second"
NEVER_MS = 600_000  # an interval of automatic commits that no experiment reaches
SESSION_NOTE = (
    "A consumer that is to die has a session.timeout.ms of 1.5 s; the default is 45 s since 3.0 and"
    " librdkafka 1.7, and 10 s before. It decides when the second consumer takes over, not what is"
    " lost or repeated."
)
SESSION_SOURCE = "KIP-735"  # of the default in this note
# Where nobody has to die, a busy machine must not end a session: its records would be read again.
LONG_SESSION: Mapping[str, Any] = {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 500}
ATTEMPTS_MAX = 3

Result = TypeVar("Result")


class SessionLost(errors.InstepError):
    """A consumer lost its session although nobody had ended it."""


@dataclass(frozen=True, slots=True)
class CrashEffect:
    """The effect of a crash, after another process has finished the work.

    `stored` is the position that the broker had after the crash, `recorded` the last one that the
    dead consumer knew to be committed, and `worked` the number of records on which it had worked.
    """

    killed: bool
    lost: int
    repeated: int
    read_again: int
    worked_again: int
    stored: int
    recorded: int
    worked: int
    table: str
    scenario: Scenario
    operations: list[ClientOperation]

    def __str__(self) -> str:
        return f"{self.lost} lost, {self.repeated} repeated of {RECORDS}"

    @property
    def uncommitted(self) -> int:
        """The number of records on which the dead consumer worked, but which are not committed."""
        return max(self.worked - self.stored, 0)

    @property
    def unworked(self) -> int:
        """The number of committed records on which the dead consumer did not work."""
        return max(self.stored - self.worked, 0)


@dataclass(frozen=True, slots=True)
class CrashSeries:
    """The effects of several crashes, or of another event that ends a consumer."""

    effects: Sequence[CrashEffect]
    event: str = "kill"

    @property
    def lost(self) -> int:
        return sum(one.lost for one in self.effects)

    @property
    def repeated(self) -> int:
        return sum(one.repeated for one in self.effects)

    @property
    def losing(self) -> int:
        return sum(one.lost > 0 for one in self.effects)

    @property
    def repeating(self) -> int:
        return sum(one.repeated > 0 for one in self.effects)

    def describe_lost(self) -> str:
        return f"{self.lost} records lost, in {self._share(self.losing)}"

    def describe_repeated(self) -> str:
        return f"{self.repeated} records repeated, in {self._share(self.repeating)}"

    def __str__(self) -> str:
        return f"{self.describe_lost()}; {self.describe_repeated()}"

    def _share(self, hits: int) -> str:
        return bounds.describe(hits, len(self.effects), self.event)


def mortal(trial: Trial, plan: Consuming, **options: Any) -> Consuming:
    """Return the plan of the first consumer, whose session is short: it is replaced soon."""
    timeout_ms = 6_000  # the broker's default minimum
    if trial.cluster.own:
        timeout_ms = 1_500
    short = {"session.timeout.ms": timeout_ms, "heartbeat.interval.ms": timeout_ms // 3}
    return msgspec.structs.replace(plan, member=FIRST, config={**plan.config, **short}, **options)


def refuse_lost_session(operations: Iterable[ClientOperation], member: str = FIRST) -> None:
    """Raise if a consumer got a partition twice: it was away, and has read records again."""
    got = Counter(
        one.partition
        for one in operations
        if one.kind is OperationKind.ASSIGN and one.member == member
    )
    if max(got.values(), default=0) > 1:
        raise SessionLost(
            f"the {member} consumer lost its session before its time",
            "the machine is too busy: run the claim again",
        )


def undisturbed(trial: Trial, name: str, attempt: Callable[[Scenario], Result]) -> Result:
    """Run a scenario; run it again if a consumer lost its session before its time."""
    names = [name, *(f"{name}, attempt {number}" for number in range(2, ATTEMPTS_MAX + 1))]
    for one in names[:-1]:
        try:
            return attempt(trial.scenario(one))
        except SessionLost as lost:
            trial.note(f"{one}: {lost.what}")
    return attempt(trial.scenario(names[-1]))


def plan(trial: Trial, **options: Any) -> Consuming:
    """Return the plan of a consumer that reads a topic to its end, by default a new one."""
    topic = options.pop("topic", "") or trial.topic(1)
    made = Consuming(
        topic=topic,
        group=trial.group(),
        **{
            "batch": BATCH,
            "seed": trial.seed,
            "to_end": True,
            **options,
            "config": {**LONG_SESSION, **options.get("config", {})},
        },
    )
    if made.keep.is_table:
        made = msgspec.structs.replace(made, table=str(trial.folder / f"{topic}.db"))
    return made


def publish(trial: Trial, scenario: Scenario, topic: str, count: int = RECORDS) -> None:
    scenario.publish(Publishing(topic=topic, count=count, keys=10, seed=trial.seed))


def wait_until_lost(trial: Trial, scenario: Scenario) -> None:
    """Wait until the first member has learned that it has lost its partition."""
    trial.wait(
        lambda: any(
            one.kind is OperationKind.REVOKE and one.member == FIRST for one in scenario.history()
        ),
        "the first member to learn that it has lost its partition",
    )


def finish(
    trial: Trial, scenario: Scenario, consuming: Consuming, *, killed: bool = True
) -> CrashEffect:
    """Let another process of the group finish, and check what both have done.

    Raise SessionLost if the first one has read records again because it had lost its session.
    """
    stored = committed_offsets.position(
        trial.cluster.connection, consuming.group, consuming.topic, 0
    )
    before = scenario.history()
    refuse_lost_session(before)
    continues_at = table.stored(Path(consuming.table)) if consuming.keep.stores_offset else {}
    scenario.run(
        msgspec.structs.replace(consuming, member=SECOND),
        may_share=True,
    )
    made = effect(scenario, consuming, killed=killed, stored=stored or 0, before=before)
    faults = _table_faults(scenario, consuming, continues_at)
    if faults:
        raise errors.InstepError("; ".join(faults), "the lab's own table is at fault, not Kafka")
    trial.note(f"{scenario.name}: {made}, {made.read_again} read again")
    return made


def _table_faults(
    scenario: Scenario, consuming: Consuming, continues_at: Mapping[int, int]
) -> list[str]:
    """Return what is wrong with the table, or with the offsets that the second consumer used."""
    if not consuming.keep.is_table:
        return []
    faults = table.faults(Path(consuming.table), UNIQUE_COLUMNS.get(consuming.keep, ""))
    first_reads: dict[int, int] = {}
    for one in scenario.history():
        if one.kind is OperationKind.READ and one.member == SECOND:
            first_reads.setdefault(one.partition or 0, one.offset or 0)
    for part, offset in first_reads.items():
        if consuming.keep.stores_offset and offset != continues_at.get(part, 0):
            faults.append(
                f"the second consumer began at {offset}, the table had {continues_at.get(part, 0)}"
            )
    return faults


def effect(
    scenario: Scenario,
    consuming: Consuming,
    *,
    killed: bool = True,
    stored: int = 0,
    before: Iterable[ClientOperation] = (),
) -> CrashEffect:
    """Return what the clients of a scenario have done; `before` is its history at the crash."""
    operations = work_done(scenario, consuming)
    done = [one for one in before if one.member == FIRST]
    commits = [
        one.offset or 0
        for one in done
        if one.kind is OperationKind.COMMIT and one.outcome is OperationStatus.OK
    ]
    return CrashEffect(
        killed=killed,
        lost=checkers.lost(operations).count,
        repeated=checkers.repeated(operations).count,
        read_again=checkers.repeated(operations, by=OperationKind.READ).count,
        worked_again=checkers.repeated(scenario.history()).count,
        stored=stored,
        recorded=max(commits, default=0),
        worked=len({one.record for one in done if one.kind is OperationKind.WORK}),
        table=consuming.table,
        scenario=scenario,
        operations=operations,
    )


def work_done(scenario: Scenario, consuming: Consuming) -> list[ClientOperation]:
    """Return the history, with the rows as the work if there is a table.

    The work is then what the table holds, not what a process has tried to write.
    """
    operations = scenario.history()
    if not consuming.keep.is_table:
        return operations
    rows = table.work(Path(consuming.table), consuming.group)
    return [one for one in operations if one.kind is not OperationKind.WORK] + rows


def crash(
    trial: Trial,
    scenario: Scenario,
    point: CrashPoint,
    dies_on: int,
    prepare: Callable[[Scenario, str], None] | None = None,
    **options: Any,
) -> CrashEffect:
    """Run a consumer that dies at this point of this record, and one that finishes."""
    consuming = plan(trial, **options)
    if prepare:
        prepare(scenario, consuming.topic)
    else:
        publish(trial, scenario, consuming.topic)
    status = scenario.run(mortal(trial, consuming, dies_at=point, dies_on=dies_on))
    return finish(trial, scenario, consuming, killed=status == -9)


def draw(
    trial: Trial, points: Sequence[CrashPoint], quick: int, full: int = CRASHES
) -> list[tuple[CrashPoint, int]]:
    """Draw points and records at which consumers die; each point is used in turn."""
    return [
        (points[number % len(points)], draw_record(trial))
        for number in range(trial.scaled(quick, full))
    ]


def draw_record(trial: Trial) -> int:
    """Draw the number of a record that is neither in the first nor in the last batch."""
    return trial.random.randrange(BATCH + 1, RECORDS - BATCH)


def run_crashes(
    trial: Trial, name: str, deaths: Sequence[tuple[CrashPoint, int]], **options: Any
) -> CrashSeries:
    """Run these crashes, some at the same time: each mostly waits for its session timeout."""
    found = in_turns(trial, _named(trial, name, deaths, options))
    series = CrashSeries(list(found.values()))
    control_kills(trial, {name: series})
    return series


def run_each(
    trial: Trial,
    cases: Mapping[str, tuple[Sequence[tuple[CrashPoint, int]], Mapping[str, Any]]],
) -> dict[str, CrashSeries]:
    """Run crashes of several cases, which are named, at the same time."""
    functions: dict[str, Callable[[], CrashEffect]] = {}
    names: dict[str, list[str]] = {}
    for name, (deaths, options) in cases.items():
        named = _named(trial, name, deaths, options)
        names[name] = list(named)
        functions |= named
    found = in_turns(trial, functions)
    series = {name: CrashSeries([found[one] for one in ours]) for name, ours in names.items()}
    control_kills(trial, series)
    return series


def _named(
    trial: Trial,
    name: str,
    deaths: Sequence[tuple[CrashPoint, int]],
    options: Mapping[str, Any],
) -> dict[str, Callable[[], CrashEffect]]:
    return {
        f"{name}, {number}: {point} of record {dies_on}": partial(
            undisturbed,
            trial,
            f"{name}, {number}",
            partial(crash, trial, point=point, dies_on=dies_on, **options),
        )
        for number, (point, dies_on) in enumerate(deaths, start=1)
    }


def control_kills(trial: Trial, series: Mapping[str, CrashSeries]) -> None:
    """Record that the consumers really died."""
    effects = [one for each in series.values() for one in each.effects]
    killed = sum(one.killed for one in effects)
    trial.control(
        "the first consumers were killed", killed == len(effects), f"{killed} of {len(effects)}"
    )


def in_turns(
    trial: Trial, functions: Mapping[str, Callable[[], Result]], at_once: int = MOST_AT_ONCE
) -> dict[str, Result]:
    """Run functions that mostly wait, a few of them at the same time."""
    names, found = list(functions), dict[str, Result]()
    for start in range(0, len(names), at_once):
        found |= trial.together({name: functions[name] for name in names[start : start + at_once]})
    return found


def tabulate(trial: Trial, series: Mapping[str, CrashSeries]) -> None:
    """Show lost and repeated records of each case, with the number of kills or other events."""
    event = next(iter(series.values())).event
    rows: list[Sequence[Cell]] = [
        [name, len(one.effects), one.lost, one.repeated] for name, one in series.items()
    ]
    trial.table(
        f"Records lost and repeated, of {RECORDS} for each {event}",
        ["scenario", f"{event}s", "lost", "repeated"],
        rows,
    )
    trial.plot(
        f"Records lost and repeated for each {event}",
        "scenario",
        "records",
        {
            "lost": [(name, one.lost / len(one.effects)) for name, one in series.items()],
            "repeated": [(name, one.repeated / len(one.effects)) for name, one in series.items()],
        },
    )


def show_examples(trial: Trial, series: Iterable[CrashSeries]) -> None:
    """Show the first lost and the first repeated record."""
    for one in (effect for each in series for effect in each.effects):
        if one.lost:
            trial.example(one.scenario, checkers.lost(one.operations))
        if one.repeated:
            trial.example(one.scenario, checkers.repeated(one.operations))
