"""One self-contained HTML page, rendered from Jinja2 templates.

The page loads nothing: no script, no font, no picture from outside, and its content security policy
allows none. Plots are embedded as pictures. Every value is escaped by the templates, and characters
that do not print are shown as escapes: what a run holds came from clients and servers.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from instep import extras
from instep.document.showing import plain
from instep.report import plots
from instep.report.markup import figure, prose_parts, shortened
from instep.report.tables import Plot, ReportTable

MARK_WITHIN = 1000
STYLE_FILE = "style.css"


def render(kind: str, title: str, package: str, template: str, **values: Any) -> str:
    """Render a template of a package, which extends `page.html`.

    Raise MissingPart if Jinja2 is not installed.
    """
    try:
        import jinja2
        import markupsafe
    except ModuleNotFoundError as error:
        raise extras.missing("Jinja2", "report") from error

    def prose(text: str) -> markupsafe.Markup:
        """Return a sentence as HTML, in which `this` is code."""
        code, rest = markupsafe.Markup("<code>{}</code>"), markupsafe.Markup("{}")
        parts = prose_parts(text)
        return markupsafe.Markup().join(
            (code if is_code else rest).format(plain(part)) for part, is_code in parts if part
        )

    def show(value: Any) -> Any:
        """Make text printable, unless it is markup already."""
        if isinstance(value, str) and not isinstance(value, markupsafe.Markup):
            return plain(value)
        return value

    loaders = [jinja2.PackageLoader(package), jinja2.PackageLoader("instep.report")]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=show,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["is_numeric"] = is_numeric
    environment.filters |= {
        "describe": plots.describe,
        "figure": figure,
        "picture": picture,
        "prose": prose,
        "shortened": shortened,
        "tabulated": plots.tabulated,
    }
    style, _, _ = loaders[1].get_source(environment, STYLE_FILE)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(template).render(
        kind=kind,
        title=title,
        policy=policy,
        style=markupsafe.Markup(style),  # noqa: S704 - a file of this package
        **values,
    )


def picture(plot: Plot) -> str:
    """Return a plot as a data URI. A picture runs no script, whatever its text says."""
    return "data:image/svg+xml;base64," + base64.b64encode(plots.svg(plot).encode()).decode()


def write(text: str, file: Path) -> None:
    """Write a page atomically, in place of what was there."""
    written = file.with_name(f".{file.name}.new")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)


def is_one(kind: str, file: Path) -> bool:
    """Return whether the file is a page of this kind."""
    if not file.is_file():
        return False
    mark = f'<meta name="generator" content="instep {kind}">'
    with file.open("rb") as stream:
        return mark.encode() in stream.read(MARK_WITHIN)


def is_numeric(data: ReportTable, column: int) -> bool:
    """Return whether a column of a table has numbers."""
    return any(len(row) > column and isinstance(row[column], int | float) for row in data.rows)
