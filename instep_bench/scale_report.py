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
        away = "" if self.delay_ms is None else f", {self.delay_ms:g} ms away"
        return (
            f"{self.documents:,} rows, {self.events:,} events,"
            f" {self.partitions} partitions{away}, {self.master}"
        )


class ScaleRound(msgspec.Struct, frozen=True):
    """One round. The seconds are from the first fetch to the last commit; CPU time is by role."""

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
        roles = PIPELINE if role == "pipeline" else (role,)
        return 1e6 * sum(self.cpu_s.get(one, 0.0) for one in roles) / self.events


class ScaleRun(msgspec.Struct, frozen=True):
    """All measurements of a run: the points by varied thing and value, and the rounds per point."""

    asked: dict[str, dict[str, Conditions]]
    measured: dict[Conditions, list[ScaleRound]]
    trips_ms: dict[Conditions, float]
    target: str


def together_mb(samples: Mapping[str, Sequence[MemorySample]]) -> float:
    """Return the peak memory of all processes of the pipeline; roles are sampled together."""
    turns = zip(*(samples[role] for role in PIPELINE if role in samples), strict=False)
    return max((sum(sample.pss_mb for sample in turn) for turn in turns), default=0.0)


def figures(seen: ScaleRun) -> list[Figure]:
    found = []
    for thing, values in seen.asked.items():
        for value, point in values.items():
            rounds, labels = seen.measured[point], {"dimension": thing, "value": value}
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
            if point in seen.trips_ms:
                found.append(_figure("round trip", "ms", labels, [seen.trips_ms[point]]))
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


def tables(seen: ScaleRun) -> list[ReportTable]:
    return [_table(seen, thing) for thing in seen.asked]


def _table(seen: ScaleRun, thing: str) -> ReportTable:
    """Return each value with its cost, also as a multiple of the first value's cost."""
    has_trips = thing == "distance"
    rows: list[list[Cell]] = []
    first = 0.0
    for value, point in seen.asked[thing].items():
        rounds = seen.measured[point]
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
        trip: list[Cell] = [round(seen.trips_ms[point], 2)] if has_trips else []
        rows.append(
            [_shown(thing, value), *trip, *cells, round(max(one.peak_mb for one in rounds))]
        )
    columns = [
        "cost",
        "low",
        "high",
        "times the first",
        "CPU, pipeline",
        "CPU, database",
        "peak memory, MB",
    ]
    trip_column = ["round trip, ms"] if has_trips else []
    return ReportTable(
        f"µs per event by {TITLES[thing]}", [TITLES[thing], *trip_column, *columns], rows
    )


def _shown(thing: str, value: str) -> Cell:
    """Return the label as a number if it is one."""
    if thing == "master":
        return value
    return float(value) if thing == "distance" else int(value)


def plots(seen: ScaleRun) -> list[Plot]:
    """Plot the cost and the pipeline's CPU per event by each varied thing; masters as bars."""
    return [_plot(thing, figures(seen)) for thing in seen.asked]


def _plot(thing: str, found: Sequence[Figure]) -> Plot:
    own = [
        one
        for one in found
        if one.labels["dimension"] == thing and one.labels.get("role", "pipeline") == "pipeline"
    ]
    per_event = [one for one in own if one.unit == "µs"]
    title = f"Cost per event by {TITLES[thing]}"
    if thing == "master":
        return charts.bars(title, per_event, x="value")
    log = thing != "distance"  # a distance may be 0
    return msgspec.structs.replace(
        charts.curves(title, per_event, x="value", log_x=log, log_y=log), x=TITLES[thing]
    )


def notes(seen: ScaleRun) -> list[str]:
    """Return notes that help to read the figures correctly."""
    notes = [
        "Cost is the time from the first fetch to the last commit divided by the number of events,"
        " in a warm Spark session.",
        "CPU of the pipeline is the sum of its driver, JVM and Python workers, on all cores.",
        "A batch writes each document once, even if it holds several of its events: with few"
        " documents an event costs less.",
    ]
    if "distance" in seen.asked:
        notes.append(
            "The distance is the delay of a proxy in each direction. All of these points use the"
            " proxy, including the one with 0 ms."
        )
    else:
        notes.append(
            f"No distance to {seen.target} was measured: the target is a file, or no delay was"
            " requested."
        )
    if "cluster" in seen.asked.get("master", {}):
        notes.append(
            "The cluster's master, workers and executors share this machine with everything else:"
            " this only shows that a cluster works."
        )
    return notes
