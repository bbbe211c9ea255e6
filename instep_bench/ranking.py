"""The ranking of `instep bench apply`: figures, a table, plots and notes from the runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from instep import settings
from instep.report.tables import Cell, Plot, ReportTable
from instep_bench import baselines, charts, contest, load
from instep_bench.result import Figure

Start = Literal["cold", "warm"]
NAMES: dict[tuple[settings.EngineName, bool], str] = {
    ("resident", False): "instep",
    ("resident", True): "instep with history",
    ("micro-batch", False): "instep micro-batch",
    ("micro-batch", True): "instep micro-batch with history",
}
WITH_LINES = " and lines"  # behind the name of a pipeline that writes a line for each event too
WITH_SQL = ("instep with SQL", "instep with history and SQL")  # pipelines with a transformation
OURS = "exactly once, in order (version guard); bad events are kept as dead letters"
WARM_UPS = 2  # the JVM still compiles code in its first runs
SERVERS = ("broker", "database")
THROUGHPUT = "throughput"
TOTAL = "all of it"


class RankedRun(msgspec.Struct, frozen=True):
    """A run with its target, contestant and kind of start."""

    target: str
    contestant: str
    start: Start
    run: contest.ContestRun


Key = tuple[str, str, Start]


def with_sql(history: bool) -> str:
    """Return the name of a pipeline with a transformation."""
    return WITH_SQL[history]


def rate_of(run: contest.ContestRun, events: int) -> float:
    """Return events per second up to the last commit.

    A warm run counts from the start signal, a cold run from the start of the process.
    """
    return events / run.last_commit_s


def figures(ranked: Sequence[RankedRun], events: int) -> list[Figure]:
    """Return every figure of every contestant, with one value per round."""
    return [
        figure for key, runs in grouped(ranked).items() for figure in _figures(key, runs, events)
    ]


def _figures(key: Key, runs: Sequence[contest.ContestRun], events: int) -> Iterator[Figure]:
    target, contestant, start = key
    labels = {"target": target, "contestant": contestant, "start": start}

    def figure(name: str, unit: str, values: Sequence[float], **more: str) -> Figure:
        better: Literal["more", "less"] = "more" if name == THROUGHPUT else "less"
        return Figure(
            name=name,
            unit=unit,
            better=better,
            labels={**labels, **more},
            values=[round(one, 3) for one in values],
        )

    yield figure(THROUGHPUT, "events/s", [rate_of(run, events) for run in runs])
    yield figure("time to first row", "s", [run.first_row_s for run in runs])
    yield figure("time to last commit", "s", [run.last_commit_s for run in runs])
    yield figure("differences", "documents", [float(run.differences) for run in runs])
    for role in (TOTAL, *runs[0].usage):
        uses = [_used(run, role) for run in runs]
        if any(use.rss_mb for use in uses):
            yield figure("CPU", "s", [use.cpu_s for use in uses], role=role)
            yield figure("peak memory (RSS)", "MB", [use.rss_mb for use in uses], role=role)
            yield figure("peak memory (PSS)", "MB", [use.pss_mb for use in uses], role=role)


class _Consumption(msgspec.Struct, frozen=True):
    cpu_s: float
    rss_mb: float
    pss_mb: float


def _used(run: contest.ContestRun, role: str) -> _Consumption:
    """Return the usage of one role, or of all of the contestant's own roles together.

    The peak of all roles is the highest sum of samples taken at the same time.
    """
    if role != TOTAL:
        use = run.usage[role]
        return _Consumption(use.cpu_s, use.rss_mb, use.pss_mb)
    own = [use for name, use in run.usage.items() if name not in SERVERS]
    moments = list(zip(*(use.samples for use in own), strict=False))
    return _Consumption(
        sum(use.cpu_s for use in own),
        max((sum(sample.rss_mb for sample in moment) for moment in moments), default=0.0),
        max((sum(sample.pss_mb for sample in moment) for moment in moments), default=0.0),
    )


def grouped(ranked: Sequence[RankedRun]) -> dict[Key, list[contest.ContestRun]]:
    """Group the runs by target, contestant and start."""
    groups: dict[Key, list[contest.ContestRun]] = {}
    for one in ranked:
        groups.setdefault((one.target, one.contestant, one.start), []).append(one.run)
    return groups


def table(ranked: Sequence[RankedRun], events: int) -> ReportTable:
    """Return the ranking: medians, spread and the guarantee of each contestant."""
    rows: list[list[Cell]] = []
    for key, runs in grouped(ranked).items():
        found = {(one.name, one.labels.get("role")): one for one in _figures(key, runs, events)}
        rate, end = found[THROUGHPUT, None], found["time to last commit", None]
        cpu, memory = found.get(("CPU", TOTAL)), found.get(("peak memory (PSS)", TOTAL))
        rows.append(
            [
                *key,
                round(rate.median),
                f"{rate.low:,.0f}–{rate.high:,.0f}",
                round(found["time to first row", None].median, 2),
                round(end.median, 2),
                round(cpu.median, 2) if cpu else None,
                round(memory.median) if memory else None,
                max(run.differences for run in runs),
                baselines.GUARANTEES.get(key[1], OURS),
            ]
        )
    columns = [
        "target",
        "contestant",
        "start",
        "events/s",
        "low–high",
        "first row s",
        "last commit s",
        "CPU s",
        "memory MB",
    ]
    return ReportTable("Ranking", [*columns, "documents that differ", "guarantee"], rows)


def plots(ranked: Sequence[RankedRun], measured: Sequence[Figure]) -> list[Plot]:
    """Plot the throughput with its spread, and the pipeline's memory over time."""
    drawn = []
    for start in ("warm", "cold"):
        rates = [one for one in measured if one.name == THROUGHPUT and one.labels["start"] == start]
        if rates:
            drawn.append(charts.bars(f"Throughput, {start}", rates, x="target", by="contestant"))
    for (target, contestant, start), runs in grouped(ranked).items():
        if start == "cold" and contestant not in baselines.GUARANTEES:
            samples = {
                role: [(one.at_s, one.rss_mb) for one in use.samples]
                for role, use in runs[-1].usage.items()
                if use.rss_mb
            }
            drawn.append(
                charts.over_time(
                    f"Memory of {contestant} into {target}, from its start", samples, unit="MB"
                )
            )
    return drawn


def notes(ranked: Sequence[RankedRun], expected: load.ExpectedState) -> list[str]:
    """Return notes for the reader."""
    notes = [
        f"Of {expected.records:,} records {expected.applied:,} are fresh, {expected.stale:,} stale,"
        f" {expected.repeated:,} repeated and {expected.bad:,} bad.",
        "Cold: a fresh process; throughput counts from the start of the process to the last commit."
        f" Warm: a process that has already done the same work {WARM_UPS} times; throughput counts"
        " from the start signal to the last commit.",
        "A baseline keeps no history of the events. Memory is the peak of all processes of a"
        " contestant together, as proportional size (PSS).",
    ]
    for name in dict.fromkeys(one.contestant for one in ranked):
        worst = max(one.run.differences for one in ranked if one.contestant == name)
        if worst:
            notes.append(f"{name} left up to {worst:,} documents that differ from the expectation.")
    return notes
