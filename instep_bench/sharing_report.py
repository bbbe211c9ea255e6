"""The figures, tables and plot of a sharing benchmark. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from instep.report.tables import Cell, Plot, PlotKind, ReportTable, Series
from instep_bench import freshness_report, latency_join
from instep_bench.commit_log import CommitTimes
from instep_bench.latency_join import PERCENTILES, EventTiming
from instep_bench.result import Figure

ALONE = "alone"
SHARED = "while another catches up"
ALL = "all"
CATCH_UP_S_LEAST = 5.0


class CatchUpPeriod(msgspec.Struct, frozen=True):
    """The time from the first to the last commit of a backlog, and the events applied within it."""

    from_ns: int
    to_ns: int
    backlog: int
    events: int

    @property
    def seconds(self) -> float:
        return (self.to_ns - self.from_ns) / 1e9

    @property
    def events_per_s(self) -> float | None:
        """The speed of the catching up; None if it was a single commit."""
        return self.events / self.seconds if self.seconds else None


class SharingRun(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of a run; timings are by steady pipeline."""

    rate: int
    alone: list[list[EventTiming]]
    shared: list[list[EventTiming]]
    catch_up: CatchUpPeriod
    cores: dict[str, float]  # by role, while one pipeline caught up
    memory: dict[str, list[tuple[float, float]]]


def period_of(commits: Sequence[CommitTimes], backlog: int) -> CatchUpPeriod:
    """Return the period of a backlog. Its first commit begins it, so it does not count."""
    first, last = commits[0], commits[-1]
    events = backlog - (first.last - first.first + 1)
    return CatchUpPeriod(first.committed_ns, last.committed_ns, backlog, events)


def during(period: CatchUpPeriod, timings: Iterable[EventTiming]) -> list[EventTiming]:
    """Return the events that were due while the backlog was applied."""
    return [one for one in timings if period.from_ns <= one.due_ns <= period.to_ns]


def _groups(run: SharingRun) -> Iterator[tuple[str, str, list[EventTiming]]]:
    """Yield the events of each pipeline and of all of them, alone and shared."""
    both = zip(run.alone, run.shared, strict=True)
    for number, (alone, shared) in enumerate(both, start=1):
        yield str(number), ALONE, alone
        yield str(number), SHARED, shared
    yield ALL, ALONE, _flat(run.alone)
    yield ALL, SHARED, _flat(run.shared)


def _flat(timings: Iterable[list[EventTiming]]) -> list[EventTiming]:
    return [timing for one in timings for timing in one]


def _freshness(timings: Iterable[EventTiming]) -> dict[str, float]:
    return latency_join.percentiles(timing.total for timing in timings)


def _late_ms(timings: Iterable[EventTiming]) -> float | None:
    return latency_join.percentiles(timing.late_ms for timing in timings).get("p99")


# --- figures --------------------------------------------------------------------------------------


def figures(run: SharingRun) -> list[Figure]:
    found = []
    for pipeline, when, timings in _groups(run):
        for name, value in _freshness(timings).items():
            labels = {"pipeline": pipeline, "when": when, "percentile": name}
            found.append(freshness_report.less("freshness", "ms", labels, [value]))
    if run.catch_up.events_per_s is not None:
        found.append(
            Figure(
                name="catching up",
                unit="events/s",
                better="more",
                values=[round(run.catch_up.events_per_s, 1)],
            )
        )
    return [
        *found,
        *freshness_report.cpu_figures("CPU while catching up", run.cores, {}),
        *freshness_report.memory_figures(run.memory),
    ]


# --- tables ---------------------------------------------------------------------------------------


def tables(run: SharingRun) -> list[ReportTable]:
    return [_freshness_table(run), _catch_up_table(run)]


def _freshness_table(run: SharingRun) -> ReportTable:
    rows: list[list[Cell]] = []
    for pipeline, when, timings in _groups(run):
        values_ms = _freshness(timings)
        cells = [*(values_ms.get(name) for name in PERCENTILES), _late_ms(timings)]
        rows.append(
            [
                pipeline,
                when,
                len(timings),
                *(None if value is None else round(value, 1) for value in cells),
            ]
        )
    return ReportTable(
        f"Freshness in ms of pipelines with {run.rate:,} events/s each",
        ["pipeline", "when", "events", *PERCENTILES, "sender late, p99"],
        rows,
    )


def _catch_up_table(run: SharingRun) -> ReportTable:
    rate = run.catch_up.events_per_s
    rows: list[list[Cell]] = [
        ["events to catch up with", run.catch_up.backlog, "events"],
        ["first to last commit", round(run.catch_up.seconds, 2), "s"],
        ["speed", None if rate is None else round(rate), "events/s"],
    ]
    for figure in (
        *freshness_report.cpu_figures("CPU", run.cores, {}),
        *freshness_report.memory_figures(run.memory),
    ):
        role = figure.labels["role"]
        if role == "pipeline":
            role = "driver, jvm and workers"
        rows.append([f"{figure.name}: {role}", round(figure.median, 1), figure.unit])
    return ReportTable("The pipeline that catches up", ["what", "value", "unit"], rows)


# --- plot -----------------------------------------------------------------------------------------


def plots(run: SharingRun) -> list[Plot]:
    alone = _flat(run.alone)
    since_ns = min((timing.due_ns for timing in alone), default=0)
    series = [Series(f"{ALL}, {ALONE}", list(freshness_report.timeline(alone, since_ns)))]
    for number, timings in enumerate(run.shared, start=1):
        points = freshness_report.timeline(timings, run.catch_up.from_ns)
        series.append(Series(f"{number}, {SHARED}", list(points)))
    return [
        Plot(
            "Freshness over time: the oldest event of each half second",
            "seconds",
            "freshness in ms",
            [one for one in series if one.points],
            PlotKind.LINES,
            log_y=True,
        )
    ]


def notes(run: SharingRun) -> list[str]:
    """Return notes that help to read the figures correctly."""
    notes = [
        "Freshness is the time from the moment an event was due to the return of its commit in the"
        " task. The schedule does not wait for slow events, and the commit of every event was"
        " recorded.",
        f"{ALONE}: a run of the steady pipelines only. {SHARED}: a new run of all pipelines in one"
        " process; the events count that were due between the first and the last commit of the"
        " backlog. The speed counts the events after the first commit.",
        "CPU and memory are those of the whole run while one pipeline catches up: driver, JVM and"
        " workers serve all pipelines.",
    ]
    if run.catch_up.seconds < CATCH_UP_S_LEAST:
        notes.append(
            f"The pipeline caught up within {run.catch_up.seconds:.1f} s: the backlog of"
            f" {run.catch_up.backlog:,} events is too small for the percentiles to mean much."
            " Give a larger --backlog."
        )
    for when, timings in ((ALONE, _flat(run.alone)), (SHARED, _flat(run.shared))):
        late_ms = _late_ms(timings)
        if late_ms is not None and late_ms > freshness_report.LATE_MS:
            notes.append(
                f"{when}: the senders themselves were late: p99 {late_ms:.1f} ms."
                " The figures include this."
            )
    return notes
