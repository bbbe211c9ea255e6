"""Benchmark results as one self-contained HTML page: figures, tables, plots and conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from instep.report import web_page
from instep.report.markup import figure
from instep.report.tables import Cell, ReportTable
from instep_bench.result import BenchResult, Figure

KIND = "bench"
TITLES = {
    "polling": "Polling, and events instead",
    "publish": "Publishing: from the source to Kafka",
    "apply": "Catching up: from Kafka to the database",
    "freshness": "Freshness: from an event happening to its commit",
    "relay": "Outbox to topic",
    "sharing": "Freshness while another pipeline catches up",
    "load": "Loading rows beside live events",
    "outbox": "From the commit in the source to the commit in the target",
    "sink": "Writing a Spark stream of your own",
    "stream": "From topic to topic, and through both stages",
    "archive": "Topics archived as Parquet files",
    "kpi": "KPI rows behind the end of their minute",
    "console": "Pages of the console",
    "scale": "Cost per event as things grow",
}


def render(results: Mapping[str, BenchResult]) -> str:
    """Render the page of these results, which are given by id."""
    return web_page.render(
        KIND,
        f"instep bench: {', '.join(results)}",
        "instep_bench",
        "bench.html",
        results=results,
        titles=TITLES,
        about=_about,
        figures=figures,
        options=_options,
    )


def figures(figures_: Sequence[Figure]) -> list[ReportTable]:
    """Return the figures as tables, one for each set of labels, which are columns."""
    groups: dict[tuple[str, ...], list[Figure]] = {}
    for one in figures_:
        groups.setdefault(tuple(one.labels), []).append(one)
    return [
        ReportTable(
            _title(labels),
            ["figure", *labels, "median", "lowest", "highest", "unit", "rounds"],
            [_row(one, labels) for one in group],
        )
        for labels, group in groups.items()
    ]


def _title(labels: Sequence[str]) -> str:
    if not labels:
        return "Figures"
    return f"Figures by {' and '.join(labels)}"


def _row(one: Figure, labels: Sequence[str]) -> list[Cell]:
    return [
        one.name,
        *(one.labels[label] for label in labels),
        one.median,
        one.low,
        one.high,
        one.unit,
        len(one.values),
    ]


def _about(id_: str, result: BenchResult) -> dict[str, str]:
    request = {
        "result": id_,
        "started": result.begun_at,
        "took": f"{figure(result.seconds)} s",
    }
    return {**request, **result.machine, **result.releases}


def _options(options: Mapping[str, Cell]) -> ReportTable:
    rows: list[list[Cell]] = [
        [name, "none" if value is None else figure(value)] for name, value in options.items()
    ]
    return ReportTable("", ["option", "value"], rows)
