"""The figures, tables and plots of a scale benchmark. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from instep.report.tables import Cell, Plot, ReportTable
from instep_bench import charts
from instep_bench.meters import MemorySample
from instep_bench.result import Figure

PIPELINE = ("driver", "jvm", "workers", "executors")
SERVERS = ("broker", "database")
TITLES = {
    "documents": "rows in the target",
    "events": "events",
    "partitions": "partitions",
    "distance": "ms to the target, one way",
    "master": "Spark master",
}


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """One set of conditions; a delay of None means a direct connection to the target."""

    documents: int
    events: int
    partitions: int
    delay_ms: float | None
    master: str

    def __str__(self) -> str:
        away = ""
        if self.delay_ms is not None:
            away = f", {self.delay_ms:g} ms away"
        return (
            f"{self.documents:,} rows, {self.events:,} events,"
            f" {self.partitions} partitions{away}, {self.master}"
        )


class ScaleRound(msgspec.Struct, frozen=True):
    """One round. The seconds are from the order to the last commit; CPU time is by role."""

    events: int
    seconds: float
    cpu_s: dict[str, float]
    peak_mb: float

    @property
    def cost_us(self) -> float:
        """Microseconds per event."""
        return 1e6 * self.seconds / self.events

    def cpu_us(self, role: str) -> float:
        """Return the CPU microseconds per event, of a role or of the whole pipeline."""
        roles: Sequence[str] = (role,)
        if role == "pipeline":
            roles = PIPELINE
        return 1e6 * sum(self.cpu_s.get(one, 0.0) for one in roles) / self.events


class ScaleRun(msgspec.Struct, frozen=True):
    """The measurements of a run: points by dimension and value, and the rounds of each point."""

    points: dict[str, dict[str, Conditions]]
    measured: dict[Conditions, list[ScaleRound]]
    trips_ms: dict[Conditions, float]
    target: str


def together_mb(samples: Mapping[str, Sequence[MemorySample]]) -> float:
    """Return the peak memory of all processes of the pipeline; roles are sampled together."""
    moments = zip(*(samples[role] for role in PIPELINE if role in samples), strict=False)
    return max((sum(sample.pss_mb for sample in moment) for moment in moments), default=0.0)


def figures(run: ScaleRun) -> list[Figure]:
    found = []
    for dimension, values in run.points.items():
        for value, point in values.items():
            rounds, labels = run.measured[point], {"dimension": dimension, "value": value}
            found += [
                _figure("cost per event", "µs", labels, [one.cost_us for one in rounds]),
                _figure("throughput", "events/s", labels, [1e6 / one.cost_us for one in rounds]),
                _figure(
                    "peak memory",
                    "MB",
                    {**labels, "role": "pipeline"},
                    [one.peak_mb for one in rounds],
                ),
            ]
            for role in (
                "pipeline",
                *(role for role in SERVERS if any(role in one.cpu_s for one in rounds)),
            ):
                found.append(
                    _figure(
                        "CPU per event",
                        "µs",
                        {**labels, "role": role},
                        [one.cpu_us(role) for one in rounds],
                    )
                )
            if point in run.trips_ms:
                found.append(_figure("round trip", "ms", labels, [run.trips_ms[point]]))
    return found


def _figure(name: str, unit: str, labels: dict[str, str], values: list[float]) -> Figure:
    rounded = [round(value, 3) for value in values]
    return Figure(
        name=name,
        unit=unit,
        better="more" if unit == "events/s" else "less",
        labels=labels,
        values=rounded,
    )


def tables(run: ScaleRun) -> list[ReportTable]:
    return [_table(run, dimension) for dimension in run.points]


def _table(run: ScaleRun, dimension: str) -> ReportTable:
    """Return each value with its cost, also as a multiple of the first value's cost."""
    has_trips = dimension == "distance"
    rows: list[list[Cell]] = []
    first = 0.0
    for value, point in run.points[dimension].items():
        rounds = run.measured[point]
        costs = [one.cost_us for one in rounds]
        median = statistics.median(costs)
        first = first or median
        cpu: list[Cell] = [
            round(statistics.median(one.cpu_us(role) for one in rounds), 2)
            for role in ("pipeline", "database")
        ]
        if not any("database" in one.cpu_s for one in rounds):
            cpu[1] = None
        cells: list[Cell] = [
            *(round(number, 2) for number in (median, min(costs), max(costs), median / first)),
            *cpu,
        ]
        row: list[Cell] = [
            _shown(dimension, value),
            *cells,
            round(max(one.peak_mb for one in rounds)),
        ]
        if has_trips:
            row.insert(1, round(run.trips_ms[point], 2))
        rows.append(row)
    columns = [
        "cost",
        "low",
        "high",
        "times the first",
        "CPU, pipeline",
        "CPU, database",
        "peak memory, MB",
    ]
    if has_trips:
        columns.insert(0, "round trip, ms")
    return ReportTable(f"µs per event by {TITLES[dimension]}", [TITLES[dimension], *columns], rows)


def _shown(dimension: str, value: str) -> Cell:
    """Return the label as a number if it is one."""
    if dimension == "master":
        return value
    if dimension == "distance":
        return float(value)
    return int(value)


def plots(run: ScaleRun) -> list[Plot]:
    """Plot the cost and the pipeline's CPU per event by each dimension; masters as bars."""
    return [_plot(dimension, figures(run)) for dimension in run.points]


def _plot(dimension: str, found: Sequence[Figure]) -> Plot:
    own = [
        one
        for one in found
        if one.labels["dimension"] == dimension and one.labels.get("role", "pipeline") == "pipeline"
    ]
    per_event = [one for one in own if one.unit == "µs"]
    title = f"Cost per event by {TITLES[dimension]}"
    if dimension == "master":
        return charts.bars(title, per_event, x="value")
    log = dimension != "distance"  # a distance may be 0
    return msgspec.structs.replace(
        charts.curves(title, per_event, x="value", log_x=log, log_y=log), x=TITLES[dimension]
    )


def notes(run: ScaleRun) -> list[str]:
    """Return notes that help to read the figures correctly."""
    notes = [
        "Cost is the time from the order to the last commit divided by the number of events,"
        " in a warm Spark session.",
        "CPU of the pipeline is the sum of its driver, JVM and Python workers, on all cores.",
        "A batch writes each document once, even if it holds several of its events: with few"
        " documents an event costs less.",
    ]
    if "distance" in run.points:
        notes.append(
            "The distance is the delay of a proxy in each direction. All of these points use the"
            " proxy, including the one with 0 ms."
        )
    else:
        notes.append(
            f"No distance to {run.target} was measured: the target is a file, or no delay was"
            " requested."
        )
    if "cluster" in run.points.get("master", {}):
        notes.append(
            "The cluster's master, workers and executors share this machine with everything else:"
            " this only shows that a cluster works."
        )
    return notes
