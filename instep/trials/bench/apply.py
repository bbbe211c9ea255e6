"""`instep bench apply`: catch-up throughput, Kafka to database, of the pipeline and of what one would write instead.

All contestants apply the same topic to the same database. Rounds are interleaved: first every contestant once in a fresh process
(cold), and again; then all are started and warmed up, and go once each (warm), and again. After every run the table is checked
against what a plain model says of the load.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from instep import errors, settings
from instep.local import artifacts
from instep.trials.bench import contest, grounds, load, machine, meters
from instep.trials.bench.result import Figure, Result
from instep.trials.bench.rivals import connect
from instep.trials.claim import Cell, Kind, Plot, Series, Table

WARM_UPS = 2
OURS = "exactly once, in order (version guard); bad events are kept as dead letters"
PROGRAMS: Mapping[str, tuple[str, str]] = {
    "loop": ("instep.trials.bench.rivals.loop", "exactly once, in order (version guard); bad events are dropped"),
    "spark-jdbc": ("instep.trials.bench.rivals.spark_jdbc", "at least once, in order (version guard); bad events are dropped"),
}
RIVALS = (*PROGRAMS, connect.NAME)
Start = Literal["cold", "warm"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    targets: tuple[str, ...] = ("postgres", "mariadb", "sqlite")
    events: int = 300_000
    documents: int = 100_000
    partitions: int = 4
    size: int = 150
    history: tuple[bool, ...] = (False, True)
    stale: float = 0.0
    repeated: float = 0.0
    bad: float = 0.0
    rounds: int = 3
    against: tuple[str, ...] = RIVALS
    bootstrap: str | None = None
    seed: int = 1


class Held(msgspec.Struct, frozen=True):
    """A run, and what it was of."""

    target: str
    contestant: str
    start: Start
    run: contest.Run


def run(options: Options, say: Callable[[str], None], command: str) -> Result:
    """Hold every round; everything that it starts is gone when it ends."""
    wanted = _checked(options)
    begun_at, began = datetime.now(UTC), time.monotonic()
    _fetch(options)
    held: list[Held] = []
    notes: list[str] = []
    with grounds.Grounds(options.bootstrap, say) as ground:
        topic = ground.new_topic(options.partitions)
        say(f"publishing {options.events:,} events of {options.documents:,} documents to {options.partitions} partitions")
        load.publish(wanted, ground.bootstrap, topic)
        truth = load.truth(wanted, options.partitions)
        for target in options.targets:
            place = ground.place(target)
            match = _Match(options, ground, place, topic, truth, say)
            notes += match.notes
            held += match.play()
            ground.drop(target)
    return Result(
        bench="apply",
        command=command,
        begun_at=begun_at.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        options=_shown(options),
        machine=machine.facts(),
        releases=machine.releases(options.targets),
        figures=figures(held, options.events),
        tables=[*_tables(held, options.events)],
        plots=[*_plots(held, options.events)],
        notes=[*notes, *_remarks(options, held, truth)],
    )


def _checked(options: Options) -> load.Load:
    for target in options.targets:
        grounds.check_target(target)
    for name in options.against:
        if name not in RIVALS:
            raise errors.SettingsError(f"there is no rival {name!r}{settings.nearest(name, RIVALS)}", f"known: {', '.join(RIVALS)}")
    for name, number in (("rounds", options.rounds), ("partitions", options.partitions)):
        if number < 1:
            raise errors.SettingsError(f"{number} {name} cannot be", "give at least 1")
    if not options.targets or not options.history:
        raise errors.SettingsError("there is nothing to apply", "name a target, and history on, off or both")
    return load.Load(
        events=options.events,
        documents=options.documents,
        size=options.size,
        stale=options.stale,
        repeated=options.repeated,
        bad=options.bad,
        seed=options.seed,
    )


def _fetch(options: Options) -> None:
    """What is not in the cache is fetched now, not while something is measured."""
    for bundle in ("spark-kafka", *(("jdbc",) if "spark-jdbc" in options.against else ())):
        artifacts.jars(bundle)
    if connect.NAME in options.against:
        artifacts.jars("connect")
        artifacts.jars("debezium-jdbc")


class _Match:
    """All rounds of all contestants on one target."""

    def __init__(
        self,
        options: Options,
        ground: grounds.Grounds,
        place: grounds.Place,
        topic: str,
        truth: load.Truth,
        say: Callable[[str], None],
    ) -> None:
        self._options, self._ground, self._place, self._truth, self._say = options, ground, place, truth, say
        self._servers: dict[str, meters.Pids] = {"broker": ground.broker_pids, "database": place.pids}
        self._ours = {
            _named(history): place.declare(ground.bootstrap, topic, history=history) for history in dict.fromkeys(options.history)
        }
        refused = {connect.NAME: connect.refusal(place)}
        self._rivals = [name for name in dict.fromkeys(options.against) if not refused.get(name)]
        self._theirs = place.declare(ground.bootstrap, topic) if self._rivals else None
        self.notes = [f"{name} does not take part on {place.label}: {why}" for name, why in refused.items() if why]
        self._started = 0

    def play(self) -> Iterator[Held]:
        for number in range(1, self._options.rounds + 1):
            for name in (*self._ours, *self._rivals):
                with contextlib.closing(self._made(name, "cold")) as contestant:
                    yield self._hold(contestant, name, "cold", f"round {number} of {self._options.rounds}")
        with contextlib.ExitStack() as stack:
            contestants = {name: stack.enter_context(contextlib.closing(self._made(name, "warm"))) for name in self._names}
            for _ in range(WARM_UPS):
                for name, contestant in contestants.items():
                    self._hold(contestant, name, "warm", "warming up")
            for number in range(1, self._options.rounds + 1):
                for name, contestant in contestants.items():
                    yield self._hold(contestant, name, "warm", f"round {number} of {self._options.rounds}")

    @property
    def _names(self) -> Sequence[str]:
        return (*self._ours, *self._rivals)

    def _hold(self, contestant: contest.Contestant, name: str, start: Start, which: str) -> Held:
        declared = self._ours.get(name) or self._theirs
        assert declared is not None
        run = contest.hold(contestant, declared, self._truth, self._servers)
        rate = rate_of(run, start, self._options.events)
        wrong = f", {run.differences:,} documents differ" if run.differences else ""
        self._say(f"{self._place.label}, {start}, {which}: {name}: {rate:,.0f} events/s, all after {run.last_commit_s:.1f} s{wrong}")
        return Held(self._place.label, name, start, run)

    def _made(self, name: str, start: Start) -> contest.Contestant:
        self._started += 1
        folder = self._ground.folder / f"{self._place.kind}-{self._started}-{name.replace(' ', '-')}"
        if name in PROGRAMS:
            module, guarantee = PROGRAMS[name]
            return contest.Programmed(name, guarantee, module, folder, is_spark=name == "spark-jdbc")
        if name == connect.NAME:
            return connect.Connect(folder, self._ground.bootstrap, self._options.partitions, self._ground.groups)
        if start == "cold":
            return contest.Command(name, OURS, folder.with_suffix(".log"))
        return contest.Programmed(name, OURS, "instep.trials.bench.host", folder, is_spark=True)


def _named(history: bool) -> str:
    return "instep with history" if history else "instep"


def rate_of(run: contest.Run, start: Start, events: int) -> float:
    """Events a second: warm from the first fetch to the last commit, cold from the start of the process."""
    return events / (run.last_commit_s if start == "cold" else run.apply_s)


# --- what is told of it ---------------------------------------------------------------------------------


def figures(held: Sequence[Held], events: int) -> list[Figure]:
    """Every measure of every contestant, with a value for each round."""
    found: list[Figure] = []
    for (target, contestant, start), runs in _grouped(held).items():
        labels = {"target": target, "contestant": contestant, "start": start}

        def figure(name: str, unit: str, values: list[float], labels: dict[str, str] = labels, **more: str) -> Figure:
            better: Literal["more", "less"] = "more" if name == "throughput" else "less"
            return Figure(name=name, unit=unit, better=better, labels={**labels, **more}, values=[round(v, 3) for v in values])

        found.append(figure("throughput", "events/s", [rate_of(run, start, events) for run in runs]))
        found.append(figure("time to first row", "s", [run.first_row_s for run in runs]))
        found.append(figure("time to last commit", "s", [run.last_commit_s for run in runs]))
        found.append(figure("differences", "documents", [float(run.differences) for run in runs]))
        for role in runs[0].usage:
            usages = [run.usage[role] for run in runs]
            if any(usage.rss_mb for usage in usages):
                found.append(figure("CPU", "s", [usage.cpu_s for usage in usages], role=role))
                found.append(figure("memory (RSS)", "MB", [usage.rss_mb for usage in usages], role=role))
                found.append(figure("memory (PSS)", "MB", [usage.pss_mb for usage in usages], role=role))
    return found


def _grouped(held: Sequence[Held]) -> dict[tuple[str, str, Start], list[contest.Run]]:
    groups: dict[tuple[str, str, Start], list[contest.Run]] = {}
    for one in held:
        groups.setdefault((one.target, one.contestant, one.start), []).append(one.run)
    return groups


def _tables(held: Sequence[Held], events: int) -> Iterator[Table]:
    rows: list[list[Cell]] = []
    for (target, contestant, start), runs in _grouped(held).items():
        rates = Figure(name="", unit="", better="more", values=[rate_of(run, start, events) for run in runs])
        ends = Figure(name="", unit="", better="less", values=[run.last_commit_s for run in runs])
        own = [[usage for role, usage in run.usage.items() if role not in ("broker", "database")] for run in runs]
        cpu = Figure(name="", unit="", better="less", values=[sum(usage.cpu_s for usage in usages) for usages in own])
        memory = max(sum(usage.pss_mb for usage in usages) for usages in own)
        rows.append(
            [
                target,
                contestant,
                start,
                round(rates.median),
                f"{rates.low:,.0f}–{rates.high:,.0f}",
                round(ends.median, 1),
                round(cpu.median, 1),
                round(memory),
                max(run.differences for run in runs),
                guarantee_of(contestant),
            ]
        )
    columns = ["target", "contestant", "start", "events/s", "low–high", "all after, s", "CPU s", "memory MB", "differences"]
    yield Table("Catch-up: cold from the start of the process, warm from the first fetch", [*columns, "guarantee"], rows)


def guarantee_of(contestant: str) -> str:
    if contestant == connect.NAME:
        return connect.GUARANTEE
    return PROGRAMS[contestant][1] if contestant in PROGRAMS else OURS


def _plots(held: Sequence[Held], events: int) -> Iterator[Plot]:
    groups = _grouped(held)
    for start in ("warm", "cold"):
        names = dict.fromkeys(contestant for _, contestant, kind in groups if kind == start)
        series = [
            Series(
                name,
                [
                    (target, _median([rate_of(run, kind, events) for run in runs]))
                    for (target, contestant, kind), runs in groups.items()
                    if contestant == name and kind == start
                ],
            )
            for name in names
        ]
        yield Plot(f"Events a second, {start}", "target", "events/s", series)
    for (target, contestant, kind), runs in groups.items():
        if kind == "warm" and contestant in ("instep", "instep with history"):
            lines = [
                Series(role, [(sample.at_s, sample.rss_mb) for sample in usage.samples]) for role, usage in runs[-1].usage.items()
            ]
            title = f"Memory of {contestant} into {target}, the last warm round"
            yield Plot(title, "seconds", "MB resident", [one for one in lines if one.points], Kind.LINES)


def _median(values: list[float]) -> float:
    return Figure(name="", unit="", better="more", values=values).median


def _remarks(options: Options, held: Sequence[Held], truth: load.Truth) -> list[str]:
    told = [
        f"Of {truth.records:,} records {truth.applied:,} are fresh, {truth.stale:,} stale, {truth.repeated:,} repeated, {truth.bad:,} bad.",
        f"Warm: after {WARM_UPS} runs in the same process. The first fetch is told by the contestant; of Kafka Connect it is not known,"
        " so it is counted from its first row, which is later.",
        "Rivals keep no history of events.",
    ]
    wrong = {one.contestant: max(run.differences for run in runs) for one in held for runs in [_of(held, one.contestant)]}
    told += [f"{name} left up to {count:,} documents that differ from the truth." for name, count in wrong.items() if count]
    return told


def _of(held: Sequence[Held], contestant: str) -> list[contest.Run]:
    return [one.run for one in held if one.contestant == contestant]


def _shown(options: Options) -> dict[str, Cell]:
    """The options as a result keeps them; a database's URL without its password."""
    shown: dict[str, Cell] = {}
    for name, value in msgspec.structs.asdict(options).items():
        parts = value if isinstance(value, tuple) else (value,)
        texts = [settings.masked_url(part) if isinstance(part, str) and "://" in part else part for part in parts]
        shown[name] = ", ".join(map(str, texts)) if isinstance(value, tuple) else texts[0]
    return shown
