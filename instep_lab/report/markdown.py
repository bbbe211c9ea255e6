"""A run as the Markdown page of docs/lab, with its plots as files. Pure and deterministic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from instep.document.showing import counted, plain
from instep.report import plots
from instep.report.markup import REASON_MAX, figure, markdown, shortened
from instep.report.tables import Cell, ReportTable
from instep_lab import store
from instep_lab.report.contents import LabReport, Section

PAGE = "claims.md"


def pages(report: LabReport) -> dict[str, str]:
    """Return the text of each file, by its path below docs/lab."""
    drawn = {
        _plot_file(section, number): plots.svg(plot)
        for section in report.sections
        if section.result
        for number, plot in enumerate(section.result.plots, start=1)
    }
    return {PAGE: _page(report), **drawn}


def _page(report: LabReport) -> str:
    facts = [f"- {markdown(name)}: {_code(value)}" for name, value in report.facts.items()]
    counts = ", ".join(f"{count} {word}" for word, count in report.counts.items())
    rows = [
        [
            f"[{markdown(one.id)}](#{_anchor(one)})",
            markdown(one.statement),
            f"**{one.verdict}**",
            markdown(shortened(one.because, REASON_MAX)),
        ]
        for one in report.sections
    ]
    parts = [
        "# Claims about Kafka, tested",
        f"{counted(len(report.sections), 'claim')}, each tested on real servers: {counts}."
        " This page was generated from one run of `instep lab`. `instep lab run` repeats the"
        " experiments on your machine and stores the settings and history of every client.",
        "\n".join(facts),
        _grid(("claim", "statement", "verdict", "reason"), rows),
        *(part for section in report.sections for part in _section(section)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(section: Section) -> Iterable[str]:
    claim, result = section.claim, section.result
    yield f'<a id="{_anchor(section)}"></a>\n\n## {markdown(section.id)}: {section.verdict}'
    yield f"**Statement.** {markdown(section.statement)}"
    if claim:
        yield f"**Method.** {markdown(claim.method)}"
    if result:
        yield f"**Verdict.** {section.verdict}: {markdown(section.because)}"
        rows = [
            [part.role, markdown(part.statement), part.outcome, markdown(part.evidence)]
            for part in result.parts
        ]
        yield _grid(("role", "statement", "outcome", "evidence"), rows)
        yield from map(_table, result.tables)
        for number, plot in enumerate(result.plots, start=1):
            yield f"![{markdown(plot.title)}]({_plot_file(section, number)})"
    if claim:
        yield f"**Advice.** {markdown(claim.advice)}"
        if claim.rules:
            yield "**Checked by** " + ", ".join(
                f"[{markdown(rule)}](../rules/{store.file_name(rule)}.md)" for rule in claim.rules
            )
    yield f"**Repeat.** {_code(section.command)}"


def _table(table: ReportTable) -> str:
    grid = _grid(
        [markdown(name) for name in table.columns],
        [[_cell(value) for value in row] for row in table.rows],
    )
    if not table.title:
        return grid
    return f"*{markdown(table.title)}*\n\n{grid}"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _cell(value: Cell) -> str:
    return markdown(figure(value))


def _code(text: str) -> str:
    """Return a text as code, between more backticks than it contains."""
    shown = plain(text)
    if not shown.strip():
        return ""
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    space = " " if len(fence) > 1 else ""
    return f"{fence}{space}{shown}{space}{fence}"


def _anchor(section: Section) -> str:
    return f"claim-{store.file_name(section.id)}"


def _plot_file(section: Section, number: int) -> str:
    return f"plots/{store.file_name(section.id)}-{number}.svg"
