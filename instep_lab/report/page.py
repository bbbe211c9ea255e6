"""A run as one HTML page that needs nothing else. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from instep.document.showing import counted
from instep.report import web_page
from instep.report.markup import BECAUSE_MAX, element, escaped, figure, prose, shortened
from instep_lab import store
from instep_lab.report import contents
from instep_lab.report.contents import LabReport, Section
from instep_lab.verdict import VerdictPart

KIND = "lab"
CLASSES = {"right": "right", "wrong": "wrong", "depends": "depends", "was right": "past"}


def render(report: LabReport) -> str:
    """The page."""
    body = _header(report) + _summary(report) + "".join(map(_section, report.sections))
    return web_page.document(KIND, f"Claims about Kafka, tested: lab run {report.run.id}", body)


def _header(report: LabReport) -> str:
    counts = " ".join(_chip(word, f"{count} {word}") for word, count in report.counts.items())
    intro = f"{counted(len(report.sections), 'claim')}, each tested on real servers."
    return element(
        "header",
        element("h1", "Claims about Kafka, tested", id="top")
        + element("p", escaped(intro) + " " + counts)
        + web_page.facts(report.facts),
    )


def _summary(report: LabReport) -> str:
    rows = (
        element("td", element("a", escaped(section.id), href=f"#{_anchor(section)}"), class_="id")
        + element("td", prose(section.statement))
        + element("td", _chip(section.verdict))
        + element("td", prose(shortened(section.because, BECAUSE_MAX)))
        for section in report.sections
    )
    return element(
        "nav",
        element("h2", "Claims") + web_page.grid(("claim", "statement", "verdict", "reason"), rows),
    )


def _section(section: Section) -> str:
    result = section.result
    parts = [
        element("h2", f"{escaped(section.id)} {_chip(section.verdict)}"),
        _line("Statement", section.statement),
        _line("Method", section.claim.method) if section.claim else "",
    ]
    if result is None:
        parts.append(element("p", "Not run yet.", class_="muted"))
    else:
        parts.append(_line("Verdict", f"{section.verdict}: {section.because}"))
        if not result.ended:
            parts.append(
                element(
                    "p", "The experiment did not end: this is not a result.", class_="INCONCLUSIVE"
                )
            )
        parts.append(_parts(result.parts))
        parts += map(web_page.table, result.tables)
        parts += map(web_page.plotted, result.plots)
    if section.claim:
        parts.append(
            element(
                "p",
                element("strong", "Advice") + f" {prose(section.claim.advice)}",
                class_="advice",
            )
        )
        parts.append(_rules(section.claim.rules))
    parts.append(element("h3", "Repeat") + element("pre", escaped(section.command)))
    if result is not None:
        took = f"started {result.begun_at}, {figure(result.seconds)} s, tier {result.tier}, seed {result.seed}"
        parts.append(element("p", escaped(took), class_="muted"))
    parts.append(
        _details(
            "Settings",
            _lines(f"{scenario}: {client}" for scenario, client in contents.settings(section)),
        )
    )
    parts.append(_details("Timeline", _lines(contents.timeline(section))))
    parts.append(element("p", element("a", "all claims", href="#top")))
    return element("section", "".join(parts), id=_anchor(section))


def _parts(parts: Sequence[VerdictPart]) -> str:
    rows = (
        element("td", escaped(part.role))
        + element("td", prose(part.statement))
        + element("td", element("span", escaped(part.outcome), class_=f"outcome {part.outcome}"))
        + element("td", prose(part.evidence))
        for part in parts
    )
    return (
        element("h3", "Results") + web_page.grid(("role", "statement", "outcome", "evidence"), rows)
        if parts
        else ""
    )


def _rules(rules: Sequence[str]) -> str:
    if not rules:
        return ""
    named = ", ".join(element("code", escaped(rule)) for rule in rules)
    example = element("code", escaped(f"instep vet explain {rules[0]}"))
    return element("p", f"{element('strong', 'Checked by')} {named} ({example})")


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(map(escaped, lines))


def _details(name: str, content: str) -> str:
    return element("details", element("summary", name) + element("pre", content)) if content else ""


def _line(name: str, text: str) -> str:
    return element("p", element("strong", name) + f" {prose(text)}")


def _chip(verdict: str, text: str = "") -> str:
    return element(
        "span", escaped(text or verdict), class_=f"verdict {CLASSES.get(verdict, 'open')}"
    )


def _anchor(section: Section) -> str:
    return f"claim-{store.file_name(section.id)}"
