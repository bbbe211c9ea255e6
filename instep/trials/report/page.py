"""A run as one HTML page that needs nothing else: no script, no font, no picture from outside, and a policy that allows none."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from instep.document.showing import counted
from instep.trials import store
from instep.trials.claim import Cell, Plot, Table
from instep.trials.report import contents, plots
from instep.trials.report.contents import Report, Section
from instep.trials.report.markup import BECAUSE_MAX, element, escaped, figure, prose, shortened
from instep.trials.verdict import Part

MARK = '<meta name="generator" content="instep lab">'
MARK_WITHIN = 1000

STYLE = (
    """
:root{color-scheme:light dark;--ink:#1b2330;--muted:#5a6472;--rule:#dde2e8;--paper:#fff;--back:#f4f6f8;--link:#0b5cad;
--right:#0a7a4c;--wrong:#b3261e;--depends:#8a5a00;--past:#6b4fa0;--open:#56606d}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaf0;--muted:#9aa5b3;--rule:#333c49;--paper:#151a22;--back:#0d1117;
--link:#7cb8ff;--right:#4fd09a;--wrong:#ff8a80;--depends:#f0c060;--past:#c3a8ff;--open:#aab4be}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1000px;margin:0 auto;padding:28px 20px 80px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:0 0 10px}h3{font-size:15px;margin:20px 0 6px}
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
p{margin:6px 0}.muted{color:var(--muted)}
section,nav,header{background:var(--paper);border:1px solid var(--rule);border-radius:10px;padding:20px 22px;margin:0 0 18px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;margin:14px 0 0}
dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}caption{text-align:left;font-weight:600;padding:14px 0 4px}
th,td{text-align:left;vertical-align:top;padding:6px 14px 6px 0;border-bottom:1px solid var(--rule);overflow-wrap:break-word}
th{font-weight:600;color:var(--muted)}td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
table.data{width:auto;min-width:45%}
td.id{white-space:nowrap}
.verdict{display:inline-block;border:1.5px solid currentColor;border-radius:99px;padding:0 9px;font-size:12.5px;font-weight:600;
white-space:nowrap}
.right,.PASS{color:var(--right)}.wrong,.FAIL{color:var(--wrong)}.depends{color:var(--depends)}.past{color:var(--past)}
.open,.INCONCLUSIVE{color:var(--open)}
.outcome{font-weight:600;font-size:12.5px}
.advice{border-left:4px solid var(--right);padding:4px 0 4px 14px;margin:14px 0}
code,pre{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--back);border:1px solid var(--rule);border-radius:6px;padding:10px 12px;margin:6px 0;overflow-x:auto;
white-space:pre-wrap;overflow-wrap:anywhere}
details{margin:10px 0}summary{cursor:pointer;color:var(--link)}
figure{margin:14px 0}
@media print{body{background:#fff}section{break-inside:avoid}}
"""
    + plots.STYLE
)

CLASSES = {"right": "right", "wrong": "wrong", "depends": "depends", "was right": "past"}


def render(report: Report) -> str:
    """The page."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{MARK}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(_title(report))}</title>\n<style>{STYLE}</style>"
    )
    body = _header(report) + _summary(report) + "".join(map(_section, report.sections))
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body><main>{body}</main></body>\n</html>\n'


def write(report: Report, file: Path) -> None:
    """Put the page in the place of what was there, whole or not at all."""
    written = file.with_name(f".{file.name}.new")
    try:
        written.write_text(render(report), encoding="utf-8")
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)


def is_one(file: Path) -> bool:
    """Whether the file is a page of this kind."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return MARK.encode() in stream.read(MARK_WITHIN)


def _title(report: Report) -> str:
    return f"What is told about Kafka, settled: lab run {report.run.id}"


def _header(report: Report) -> str:
    facts = "".join(element("dt", escaped(name)) + element("dd", escaped(value)) for name, value in report.facts.items())
    counts = " ".join(_chip(word, f"{count} {word}") for word, count in report.counts.items())
    intro = f"{counted(len(report.sections), 'claim')}, each run on real servers."
    return element(
        "header",
        element("h1", "What is told about Kafka, settled", id="top")
        + element("p", escaped(intro) + " " + counts)
        + element("dl", facts),
    )


def _summary(report: Report) -> str:
    rows = (
        element("td", element("a", escaped(section.id), href=f"#{_anchor(section)}"), class_="id")
        + element("td", prose(section.told))
        + element("td", _chip(section.verdict))
        + element("td", prose(shortened(section.because, BECAUSE_MAX)))
        for section in report.sections
    )
    return element("nav", element("h2", "Claims") + _grid(("claim", "told", "verdict", "because"), rows))


def _section(section: Section) -> str:
    result = section.result
    parts = [
        element("h2", f"{escaped(section.id)} {_chip(section.verdict)}"),
        _line("Told", section.told),
        _line("Run", section.claim.ran) if section.claim else "",
    ]
    if result is None:
        parts.append(element("p", "It was asked for, and not run yet.", class_="muted"))
    else:
        parts.append(_line("Verdict", f"{section.verdict}: {section.because}"))
        if not result.ended:
            parts.append(element("p", "The experiment did not end: this is not a result.", class_="INCONCLUSIVE"))
        parts.append(_parts(result.parts))
        parts += map(_table, result.tables)
        parts += map(_figure, result.plots)
    if section.claim:
        parts.append(element("p", element("strong", "Advice") + f" {prose(section.claim.advice)}", class_="advice"))
        parts.append(_rules(section.claim.rules))
    parts.append(element("h3", "Repeat it") + element("pre", escaped(section.command)))
    if result is not None:
        took = f"begun {result.begun_at}, {figure(result.seconds)} s, tier {result.tier}, seed {result.seed}"
        parts.append(element("p", escaped(took), class_="muted"))
    parts.append(_details("Settings", _lines(f"{case}: {client}" for case, client in contents.settings(section))))
    parts.append(_details("Timeline", _lines(contents.moments(section))))
    parts.append(element("p", element("a", "all claims", href="#top")))
    return element("section", "".join(parts), id=_anchor(section))


def _parts(parts: Sequence[Part]) -> str:
    rows = (
        element("td", escaped(part.role))
        + element("td", prose(part.statement))
        + element("td", element("span", escaped(part.outcome), class_=f"outcome {part.outcome}"))
        + element("td", prose(part.evidence))
        for part in parts
    )
    return element("h3", "What came out") + _grid(("role", "statement", "outcome", "evidence"), rows) if parts else ""


def _table(table: Table) -> str:
    right = [_is_number(table, column) for column in range(max([len(table.columns), *map(len, table.rows)]))]
    rows = ("".join(_cell(value, right[column]) for column, value in enumerate(row)) for row in table.rows)
    return _grid(table.columns, rows, table.title, right, "data")


def _figure(plot: Plot) -> str:
    numbers = element("details", element("summary", "The numbers") + _table(plots.tabulated(plot)))
    return element("figure", plots.draw(plot) + numbers)


def _cell(value: Cell, right: bool) -> str:
    return element("td", escaped(figure(value)), class_="number" if right else "")


def _is_number(table: Table, column: int) -> bool:
    return any(len(row) > column and isinstance(row[column], int | float) for row in table.rows)


def _grid(head: Sequence[str], rows: Iterable[str], title: str = "", right: Sequence[bool] = (), class_: str = "") -> str:
    heads = "".join(
        element("th", escaped(name), scope="col", class_="number" if any(right[number : number + 1]) else "")
        for number, name in enumerate(head)
    )
    caption = element("caption", escaped(title)) if title else ""
    body = "".join(element("tr", row) for row in rows)
    table = f"{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return element("div", element("table", table, class_=class_), class_="wide")


def _rules(rules: Sequence[str]) -> str:
    if not rules:
        return ""
    named = ", ".join(element("code", escaped(rule)) for rule in rules)
    example = element("code", escaped(f"instep vet explain {rules[0]}"))
    return element("p", f"{element('strong', 'Looked after by')} {named} ({example})")


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(map(escaped, lines))


def _details(name: str, content: str) -> str:
    return element("details", element("summary", name) + element("pre", content)) if content else ""


def _line(name: str, text: str) -> str:
    return element("p", element("strong", name) + f" {prose(text)}")


def _chip(verdict: str, text: str = "") -> str:
    return element("span", escaped(text or verdict), class_=f"verdict {CLASSES.get(verdict, 'open')}")


def _anchor(section: Section) -> str:
    return f"claim-{store.file_name(section.id)}"
