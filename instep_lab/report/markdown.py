"""A run as the Markdown page of docs/lab, with its plots as files. Pure and deterministic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from instep.document.showing import counted, plain
from instep.report import plots
from instep.report.markup import figure, markdown
from instep.report.tables import Cell, ReportTable
from instep_lab import statements, store
from instep_lab.claim import AnomalyExample, ClaimResult, Tier
from instep_lab.report import archive, contents
from instep_lab.report.contents import LabReport, Section

PAGE, STATEMENTS = "claims.md", "statements.md"


def pages(report: LabReport) -> dict[str, str]:
    """Return the text of each file, by its path below docs/lab."""
    drawn = {
        _plot_file(section, number): plots.svg(plot)
        for section in report.sections
        if section.result
        for number, plot in enumerate(section.result.plots, start=1)
    }
    results = {section.id: section.result for section in report.sections if section.result}
    return {PAGE: page(report), STATEMENTS: statements.page(results), **drawn}


def page(report: LabReport) -> str:
    """Return the page without its plots."""
    parts = [
        *_introduction(report),
        *_summary(report),
        *_circumstances(report),
        *(part for title, sections in report.families for part in _family(title, sections)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(report: LabReport) -> Iterator[str]:
    counts = ", ".join(f"{count} **{word}**" for word, count in report.counts.items())
    yield "# Claims about Kafka, tested"
    yield f"{counted(len(report.sections), 'claim')}, each tested on real servers: {counts}."
    yield (
        "This page was generated from one run of `instep lab` at one commit. `instep lab run`"
        " repeats the experiments on your machine, and [Kafka lab](index.md) explains how a verdict"
        " is reached."
    )
    if report.run.tier is Tier.QUICK:
        yield (
            "This was a run of the *quick* tier: no statement rests on more than a few kills, and"
            " many rest on one. “0 of 1 kill: at most 95 %” means that one kill lost nothing, which"
            " excludes almost nothing; “1 of 1 kill: at least 5 %” only shows that it can happen."
            " `instep lab run --tier full` kills at least 30 times."
        )
    if report.operations_kept is not None:
        yield (
            f"[Download the run]({archive.NAME}): the verdicts with their parts, the settings of"
            " every client, the timelines with all faults, and of every history at most the first"
            f" {report.operations_kept:,} operations."
        )


def _summary(report: LabReport) -> Iterator[str]:
    yield "## Summary"
    for title, sections in report.families:
        yield f"**{markdown(title)}**"
        rows = [
            [
                f"[{markdown(one.id)}](#{_anchor(one)})",
                markdown(one.statement),
                f"**{one.verdict}**",
                markdown(one.reason_line),
            ]
            for one in sections
        ]
        yield grid(("claim", "statement", "verdict", "reason"), rows)


def _circumstances(report: LabReport) -> Iterator[str]:
    """Yield the run, the machine, the releases and the changed settings."""
    yield "## How it was run"
    yield _facts("run", report.request)
    if report.run.files:
        yield (
            "The commit may have another id in the history that you see, because commits are"
            " rebased before they land. The tree is the same there: `git rev-parse"
            " COMMIT:instep_lab` prints it."
        )
    yield _listed("Machine", report.run.machine)
    yield _listed("Releases", report.run.releases)
    if report.broker_settings:
        yield (
            "**Settings of the brokers** that are not Kafka's defaults. Most are shortened"
            " time-outs: the lab would otherwise wait for minutes. A figure that depends on one"
            " says so."
        )
        rows = [
            [*map(_code_cell, (one.name, one.value, one.default)), markdown(one.where)]
            for one in report.broker_settings
        ]
        yield grid(("setting", "value", "default", "in the cluster of"), rows)
    yield (
        "**Settings of the clients**, unless a scenario says otherwise. What each scenario changes"
        " is listed with its claim."
    )
    yield _facts("client", contents.lab_defaults(), "settings")


def _listed(name: str, facts: Mapping[str, str]) -> str:
    return f"**{name}.** " + ", ".join(
        f"{markdown(key)} {_code(text)}" for key, text in facts.items()
    )


def _facts(name: str, facts: Mapping[str, str], value: str = "") -> str:
    return grid((name, value), [[markdown(key), _code_cell(text)] for key, text in facts.items()])


def _family(title: str, sections: Sequence[Section]) -> Iterator[str]:
    yield f"## {markdown(title)}"
    for section in sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    result = section.result
    yield f'<a id="{_anchor(section)}"></a>\n\n### {markdown(section.id)}: {section.verdict}'
    yield f"> {markdown(section.statement)}"
    if result:
        yield f"**Verdict: {section.verdict}.** {markdown(section.because)}"
    yield from _texts(section)
    if result:
        yield from _observations(section, result)
    yield from _settings(section)
    took = f" It took {result.seconds:.1f} s, from {markdown(result.begun_at)}." if result else ""
    yield f"**Repeat.** {_code(section.command)}{took}"


def _texts(section: Section) -> Iterator[str]:
    texts = section.texts
    if texts.scope:
        yield f"**Scope.** {markdown(texts.scope)}"
    if texts.why or texts.sources:
        links = ", ".join(_source(one.id, one.title, one.url) for one in section.sources)
        yield " ".join(
            text
            for text in ("**Why.**", markdown(texts.why), links and f"Sources: {links}.")
            if text
        )
    if texts.advice:
        yield f"**Advice.** {markdown(texts.advice)}"
    if texts.rules:
        yield "**Checked by** " + ", ".join(
            f"[{markdown(rule)}](../rules/{store.file_name(rule)}.md)" for rule in texts.rules
        )
    if texts.method:
        yield f"**Method.** {markdown(texts.method)}"


def _source(id_: str, title: str, url: str) -> str:
    if not url:
        return markdown(id_)
    address = url.replace("(", "%28").replace(")", "%29")  # as in the address of a method
    return f"[{markdown(id_)}]({address}) ({markdown(title)})"


def _observations(section: Section, result: ClaimResult) -> Iterator[str]:
    """Yield what the run showed: parts, tables, plots and anomalies."""
    with_client = any(part.client for part in result.parts)
    head = ["part", *(["client"] if with_client else []), "statement", "outcome", "evidence"]
    yield grid(
        head,
        [
            [
                part.role,
                *([markdown(part.client) or "all"] if with_client else []),
                markdown(part.statement),
                contents.outcome_word(part),
                markdown(part.evidence),
            ]
            for part in contents.parts(result)
        ],
    )
    yield from map(_table, result.tables)
    for number, plot in enumerate(result.plots, start=1):
        yield f"![{markdown(plots.describe(plot))}]({_plot_file(section, number)})"
    yield from map(_example, result.examples)


def _example(example: AnomalyExample) -> str:
    """Return an anomaly with the operations around it, as a block of code."""
    lines = "\n".join(f"    {plain(line)}" for line in contents.example_lines(example))
    return f"**Example, {markdown(example.title)}**, with the operations around it:\n\n{lines}"


def _settings(section: Section) -> Iterator[str]:
    rows = [
        [markdown(one.scenarios), markdown(one.client), _code_cell(one.settings)]
        for one in contents.client_settings(section)
    ]
    if rows:
        yield "<details><summary>Settings of the clients</summary>"
        yield grid(("scenarios", "client", "settings"), rows)
        yield "</details>"


def _table(table: ReportTable) -> str:
    cells = grid(
        [markdown(name) for name in table.columns],
        [[_cell(value) for value in row] for row in table.rows],
    )
    if not table.title:
        return cells
    return f"*{markdown(table.title)}*\n\n{cells}"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its texts are Markdown. Nothing without rows."""
    lines = [*rows]
    if not lines:
        return ""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *lines))


def _cell(value: Cell) -> str:
    return markdown(figure(value))


def _code_cell(text: str) -> str:
    return _code(text).replace("|", "\\|")


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
