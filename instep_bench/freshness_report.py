"""The figures, tables and plots of a freshness benchmark. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from instep.report.tables import Cell, Plot, PlotKind, ReportTable, Series
from instep_bench import charts, latency_join
from instep_bench.latency_join import PARTS, EventTiming
from instep_bench.result import Figure

PIPELINE = ("driver", "jvm", "workers")
BUCKET_S = 0.5
LATE_MS = 5.0
WHOLE = "whole"  # in the labels of stored results: all parts together


class RateResult(msgspec.Struct, frozen=True):
    """One rate: the timings of its events, and how many cores each role used."""

    rate: int
    timings: list[EventTiming]
    cores: dict[str, float]


class Idle(msgspec.Struct, frozen=True):
    """Events after a long pause and after short ones; the cores are those of the long pause."""

    idle_s: float
    first: EventTiming
    pause_s: float
    later: list[EventTiming]
    cores: dict[str, float]


class FaultEffect(msgspec.Struct, frozen=True):
    """A fault under load: all events, the delayed ones, and the seconds until back in step."""

    name: str
    rate: int
    fault_ns: int
    server_back_s: float | None
    timings: list[EventTiming]
    delayed: list[EventTiming]
    back_s: float


class FreshnessRun(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of a run."""

    starts_s: dict[str, float]  # process start to first commit, by kind of start
    loads: list[RateResult]
    idle: Idle | None
    faults: list[FaultEffect]
    memory: dict[str, list[tuple[float, float]]]
    own_broker: bool


# --- figures --------------------------------------------------------------------------------------


def figures(run: FreshnessRun) -> list[Figure]:
    found = [figure for one in run.loads for figure in _load_figures(one)]
    found += [
        less("process start to first commit", "s", {"start": how}, [value])
        for how, value in run.starts_s.items()
    ]
    if run.idle:
        found += _idle_figures(run.idle)
    for fault in run.faults:
        found.append(less("back in step", "s", {"fault": fault.name}, [fault.back_s]))
        if fault.server_back_s is not None:
            found.append(less("server back", "s", {"fault": fault.name}, [fault.server_back_s]))
        for name, value in latency_join.percentiles(
            timing.total for timing in fault.delayed
        ).items():
            found.append(
                less(
                    "freshness through a fault",
                    "ms",
                    {"fault": fault.name, "percentile": name},
                    [value],
                )
            )
    return [*found, *memory_figures(run.memory)]


def _load_figures(one: RateResult) -> list[Figure]:
    rate = str(one.rate)
    found = []
    for part in (WHOLE, *PARTS):
        for name, value in latency_join.percentiles(_part(one.timings, part)).items():
            if part == WHOLE or name in ("p50", "p99"):
                found.append(
                    less(
                        "freshness", "ms", {"rate": rate, "part": part, "percentile": name}, [value]
                    )
                )
    stretches = [
        latency_join.percentiles(timing.total for timing in third)
        for third in latency_join.thirds(one.timings)
    ]
    for name in ("p50", "p99"):
        values = [stretch[name] for stretch in stretches]
        found.append(
            less("freshness in each third", "ms", {"rate": rate, "percentile": name}, values)
        )
    for name, value in latency_join.percentiles(timing.late_ms for timing in one.timings).items():
        found.append(
            less("lateness of the sender", "ms", {"rate": rate, "percentile": name}, [value])
        )
    return [*found, *cpu_figures("CPU under load", one.cores, {"rate": rate})]


def _idle_figures(idle: Idle) -> list[Figure]:
    return [
        less(
            "first event after a pause", "ms", {"pause": f"{idle.idle_s:g} s"}, [idle.first.total]
        ),
        less(
            "first event after a short pause",
            "ms",
            {"pause": f"{idle.pause_s:g} s"},
            [timing.total for timing in idle.later],
        ),
        *cpu_figures("CPU when idle", idle.cores, {}),
    ]


def cpu_figures(name: str, cores: dict[str, float], labels: dict[str, str]) -> list[Figure]:
    """Return the CPU by role, and that of the pipeline's roles together."""
    by_role = {**cores, "pipeline": sum(cores.get(role, 0.0) for role in PIPELINE)}
    return [
        less(name, "% of a core", {**labels, "role": role}, [100 * value])
        for role, value in by_role.items()
    ]


def memory_figures(memory: dict[str, list[tuple[float, float]]]) -> list[Figure]:
    """Return the peak memory by role, and that of the pipeline's roles together."""
    peaks = {role: max((mb for _, mb in samples), default=0.0) for role, samples in memory.items()}
    together_mb = max((mb for _, mb in _together(memory)), default=0.0)
    return [
        less("peak memory", "MB", {"role": role}, [mb])
        for role, mb in {**peaks, "pipeline": together_mb}.items()
    ]


def _together(memory: dict[str, list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return the memory of the whole pipeline; its roles are sampled at the same times."""
    moments = zip(*(memory.get(role, []) for role in PIPELINE), strict=False)
    return [(moment[0][0], sum(mb for _, mb in moment)) for moment in moments]


def less(name: str, unit: str, labels: dict[str, str], values: list[float]) -> Figure:
    """Return a figure of which less is better."""
    return Figure(
        name=name,
        unit=unit,
        better="less",
        labels=labels,
        values=[round(value, 3) for value in values],
    )


def _part(timings: Iterable[EventTiming], part: str) -> list[float]:
    name = "total" if part == WHOLE else part
    return [getattr(timing, name) for timing in timings]


# --- tables ---------------------------------------------------------------------------------------


def tables(run: FreshnessRun) -> list[ReportTable]:
    tables = [_freshness_table(run.loads), _parts_table(run.loads)]
    rows: list[list[Cell]] = [
        [f"process start to first commit, {how}", round(value, 2), "s"]
        for how, value in run.starts_s.items()
    ]
    if run.idle:
        idle_cpu = 100 * sum(run.idle.cores.get(role, 0.0) for role in PIPELINE)
        rows += [
            [f"first event after {run.idle.idle_s:g} s", round(run.idle.first.total, 1), "ms"],
            [
                f"an event after {run.idle.pause_s:g} s, median",
                round(statistics.median(_part(run.idle.later, WHOLE)), 1),
                "ms",
            ],
            ["CPU of the pipeline when idle", round(idle_cpu, 1), "% of a core"],
        ]
    tables.append(ReportTable("Start and pause", ["what", "value", "unit"], rows))
    if run.faults:
        tables.append(_faults_table(run.faults))
    return tables


def _freshness_table(loads: Sequence[RateResult]) -> ReportTable:
    columns = [
        "events/s",
        "events",
        "p50",
        "p90",
        "p99",
        "max",
        "sender late, p99",
        "sender late, max",
    ]
    rows: list[list[Cell]] = []
    for one in loads:
        total, late = (
            latency_join.percentiles(_part(one.timings, part)) for part in (WHOLE, "late_ms")
        )
        values_ms = [*total.values(), late["p99"], late["max"]]
        rows.append([one.rate, len(one.timings), *(round(value, 1) for value in values_ms)])
    return ReportTable("Freshness in ms, from the event being due to its commit", columns, rows)


def _parts_table(loads: Sequence[RateResult]) -> ReportTable:
    rows: list[list[Cell]] = []
    for one in loads:
        for part in (*PARTS, WHOLE):
            values = _part(one.timings, part)
            values_ms = latency_join.percentiles(values)
            rows.append(
                [
                    one.rate,
                    part,
                    *(
                        round(value, 1)
                        for value in (statistics.fmean(values), values_ms["p50"], values_ms["p99"])
                    ),
                ]
            )
    return ReportTable(
        "Where the time goes, in ms", ["events/s", "part", "mean", "p50", "p99"], rows
    )


def _faults_table(faults: Sequence[FaultEffect]) -> ReportTable:
    rows: list[list[Cell]] = []
    for fault in faults:
        delays_s = latency_join.percentiles(timing.total / 1000 for timing in fault.delayed)
        values_ms = [
            round(delays_s[name], 2) if delays_s else None for name in ("p50", "p99", "max")
        ]
        rows.append(
            [
                fault.name,
                fault.rate,
                len(fault.timings),
                len(fault.delayed),
                round(fault.back_s, 2),
                *values_ms,
            ]
        )
    columns = ["fault", "events/s", "events", "held up", "back in step", "p50", "p99", "max"]
    return ReportTable(
        "Through faults, in seconds, for the events that were held up", columns, rows
    )


# --- plots ----------------------------------------------------------------------------------------


def plots(run: FreshnessRun) -> list[Plot]:
    drawn = [_curves(run.loads)]
    drawn += [_parts_plot(run.loads, name) for name in ("p50", "p99")]
    if run.faults:
        drawn.append(_timelines(run.faults))
    if any(run.memory.values()):
        drawn.append(_memory_plot(run.memory))
    return drawn


def _curves(loads: Sequence[RateResult]) -> Plot:
    series = [
        Series(f"{one.rate:,} events/s", list(latency_join.curve(_part(one.timings, WHOLE))))
        for one in loads
    ]
    return Plot(
        "How late the latest are",
        "one event in",
        "freshness in ms",
        series,
        PlotKind.LINES,
        log_x=True,
        log_y=True,
    )


def _parts_plot(loads: Sequence[RateResult], name: str) -> Plot:
    series = [
        Series(
            part,
            [
                (
                    f"{one.rate:,}/s",
                    round(latency_join.percentiles(_part(one.timings, part))[name], 2),
                )
                for one in loads
            ],
        )
        for part in PARTS
    ]
    return Plot(
        f"Where the time goes: {name} of each part", "events/s", "ms", series, PlotKind.BARS
    )


def _timelines(faults: Sequence[FaultEffect]) -> Plot:
    series = [Series(fault.name, list(timeline(fault.timings, fault.fault_ns))) for fault in faults]
    return Plot(
        "Through faults: the oldest event of each half second",
        "seconds since the fault",
        "freshness in ms",
        series,
        PlotKind.LINES,
        log_y=True,
    )


def timeline(timings: Iterable[EventTiming], since_ns: int) -> list[tuple[float, float]]:
    """Return the oldest age of the events due in each half second, by seconds since then."""
    oldest: dict[int, float] = {}
    for timing in timings:
        bucket = int((timing.due_ns - since_ns) / 1e9 // BUCKET_S)
        oldest[bucket] = max(oldest.get(bucket, 0.0), timing.total)
    return [(bucket * BUCKET_S, round(age, 1)) for bucket, age in sorted(oldest.items())]


def _memory_plot(memory: dict[str, list[tuple[float, float]]]) -> Plot:
    roles = {**memory, "pipeline": _together(memory)}
    samples = {role: found for role, found in roles.items() if found}
    return charts.over_time("Memory over time", samples, unit="MB, shared memory shared out")


def notes(run: FreshnessRun) -> list[str]:
    """Return notes that help to read the figures correctly."""
    notes = [
        "Freshness is the time from the moment an event was due to the return of its commit in the"
        " task. The schedule does not wait for slow events, and the commit of every event was"
        " recorded.",
        "publish: from the due time to the broker's answer. wait: until the task that read the"
        " event began. batch: until its transaction opened. write: until the commit returned.",
    ]
    for one in run.loads:
        late = latency_join.percentiles(_part(one.timings, "late_ms"))["p99"]
        if late > LATE_MS:
            notes.append(
                f"At {one.rate:,} events/s the sender itself was late: p99 {late:.1f} ms."
                " The figures include this."
            )
    if run.faults:
        notes.append(
            "Back in step: when the last event was committed that was older than a second, or than"
            " twice the oldest before the fault if that is more."
        )
        if not run.own_broker:
            notes.append("The broker was not killed, because the benchmark did not start it.")
    return notes
