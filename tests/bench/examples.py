"""Hand-made results for the tests of code that reads results."""

from __future__ import annotations

from instep.report.tables import ReportTable
from instep_bench import charts
from instep_bench.result import BenchResult, Figure


def speed(values: list[float], **labels: str) -> Figure:
    return Figure(name="throughput", unit="events/s", better="more", labels=labels, values=values)


def memory(values: list[float], **labels: str) -> Figure:
    return Figure(name="peak memory", unit="MB", better="less", labels=labels, values=values)


FIGURES = (
    speed([100.0, 120.0, 110.0], target="postgres", contestant="instep"),
    speed([50.0, 60.0, 55.0], target="postgres", contestant="loop"),
    memory([700.0], role="jvm"),
)


def result(
    *figures: Figure, command: str = "instep bench apply --rounds 3", **options: str | int
) -> BenchResult:
    shown = figures or FIGURES
    return BenchResult(
        bench="apply",
        command=command,
        begun_at="2026-11-01T08:00:00Z",
        seconds=12.5,
        options={"rounds": 3, "bootstrap": None, **options},
        machine={"cpu": "a fast one", "cores": "2"},
        releases={"kafka": "4.3.1"},
        figures=list(shown),
        tables=[
            ReportTable(
                "What each promises",
                ["contestant", "guarantee"],
                [["instep", "exactly-once"], ["loop", None]],
            )
        ],
        plots=[
            charts.bars(
                "Throughput",
                [one for one in shown if one.name == "throughput"],
                x="contestant",
                by="target",
            ),
            charts.percentiles("Freshness", {"1000": [1.0, 2.0, 250.0]}, unit="ms"),
            charts.over_time("Memory", {"jvm": [(0.0, 300.0), (0.5, 700.0)]}, unit="MB"),
        ],
        notes=["`loop` promises less."],
    )
