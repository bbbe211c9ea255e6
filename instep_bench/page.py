"""Results as one HTML page that needs nothing else: figures with their spread, tables, plots, and on what was measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from instep.report import web_page
from instep.report.markup import element, escaped, figure, prose
from instep.report.tables import Cell, ReportTable
from instep_bench.result import BenchResult, Figure

KIND = "bench"
TITLES = {
    "polling": "Polling, and events instead",
    "apply": "Catching up: from Kafka to the database",
    "freshness": "Freshness: from an event happening to its commit",
    "scale": "Cost per event as things grow",
}


def render(results: Mapping[str, BenchResult]) -> str:
    """The page of these results, by their id."""
    body = _contents(results) if len(results) > 1 else ""
    body += "".join(
        _section(number, id_, result) for number, (id_, result) in enumerate(results.items())
    )
    return web_page.document(KIND, f"instep bench: {', '.join(results)}", body)


def figures(found: Sequence[Figure]) -> list[ReportTable]:
    """The figures as tables: those with the same labels together, since these are the columns."""
    groups: dict[tuple[str, ...], list[Figure]] = {}
    for one in found:
        groups.setdefault(tuple(one.labels), []).append(one)
    return [
        ReportTable(
            f"Figures by {' and '.join(labels)}" if labels else "Figures",
            ["figure", *labels, "median", "lowest", "highest", "unit", "rounds"],
            [_row(one, labels) for one in group],
        )
        for labels, group in groups.items()
    ]


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


def _contents(results: Mapping[str, BenchResult]) -> str:
    rows = (
        element("td", element("a", escaped(id_), href=f"#result-{number}"), class_="id")
        + element("td", escaped(result.bench))
        + element("td", escaped(result.begun_at))
        + element("td", element("code", escaped(result.command)))
        for number, (id_, result) in enumerate(results.items())
    )
    return element(
        "nav",
        element("h1", "Benchmarks", id="top")
        + web_page.grid(("result", "benchmark", "begun", "command"), rows),
    )


def _section(number: int, id_: str, result: BenchResult) -> str:
    asked = {"result": id_, "begun": result.begun_at, "took": f"{figure(result.seconds)} s"}
    parts = [
        element("h2", escaped(TITLES[result.bench])),
        element("pre", escaped(result.command)),
        web_page.facts({**asked, **result.machine, **result.releases}),
        _notes(result.notes),
        *map(web_page.plotted, result.plots),
        *map(web_page.table, result.tables),
        *map(web_page.table, figures(result.figures)),
        _options(result.options),
    ]
    return element("section", "".join(parts), id=f"result-{number}")


def _notes(notes: Sequence[str]) -> str:
    return (
        element("h3", "How to read it") + "".join(element("p", prose(note)) for note in notes)
        if notes
        else ""
    )


def _options(options: Mapping[str, Cell]) -> str:
    rows: list[list[Cell]] = [
        [name, figure(value) if value is not None else "none"] for name, value in options.items()
    ]
    shown = web_page.table(ReportTable("", ["option", "value"], rows))
    return element("details", element("summary", "What was asked for") + shown) if rows else ""
