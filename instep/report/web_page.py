"""One HTML page that needs nothing else: no script, no font, no picture from outside, and a policy that allows none.

Tables, plots with the numbers behind them, and facts; what they are of is the caller's. Every text is escaped here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from instep.report import plots
from instep.report.markup import element, escaped, figure
from instep.report.tables import Cell, Plot, ReportTable

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


def document(kind: str, title: str, body: str) -> str:
    """The page around a body that is markup already."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{_mark(kind)}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body><main>{body}</main></body>\n</html>\n'


def write(text: str, file: Path) -> None:
    """Put the page in the place of what was there, whole or not at all."""
    written = file.with_name(f".{file.name}.new")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)


def is_one(kind: str, file: Path) -> bool:
    """Whether the file is a page of this kind."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return _mark(kind).encode() in stream.read(MARK_WITHIN)


def facts(named: Mapping[str, str]) -> str:
    return element(
        "dl",
        "".join(
            element("dt", escaped(name)) + element("dd", escaped(value))
            for name, value in named.items()
        ),
    )


def table(data: ReportTable) -> str:
    right = [
        _is_number(data, column) for column in range(max([len(data.columns), *map(len, data.rows)]))
    ]
    rows = (
        "".join(_cell(value, right[column]) for column, value in enumerate(row))
        for row in data.rows
    )
    return grid(data.columns, rows, data.title, right, "data")


def plotted(plot: Plot) -> str:
    """A plot, and the numbers behind it."""
    numbers = element("details", element("summary", "The numbers") + table(plots.tabulated(plot)))
    return element("figure", plots.draw(plot) + numbers)


def grid(
    head: Sequence[str],
    rows: Iterable[str],
    title: str = "",
    right: Sequence[bool] = (),
    class_: str = "",
) -> str:
    """A table of rows that are markup already."""
    heads = "".join(
        element(
            "th",
            escaped(name),
            scope="col",
            class_="number" if any(right[number : number + 1]) else "",
        )
        for number, name in enumerate(head)
    )
    caption = element("caption", escaped(title)) if title else ""
    body = "".join(element("tr", row) for row in rows)
    content = f"{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return element("div", element("table", content, class_=class_), class_="wide")


def _mark(kind: str) -> str:
    return f'<meta name="generator" content="instep {kind}">'


def _cell(value: Cell, right: bool) -> str:
    return element("td", escaped(figure(value)), class_="number" if right else "")


def _is_number(data: ReportTable, column: int) -> bool:
    return any(len(row) > column and isinstance(row[column], int | float) for row in data.rows)
