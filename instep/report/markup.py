"""Text and numbers on their way into HTML, SVG and Markdown. What a run holds came from clients and servers, and is no markup."""

from __future__ import annotations

import html
import math
import re

from instep.document.showing import plain
from instep.report.tables import Cell

MARKS = r"([\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))"  # an underscore within a word is one
UNKNOWN = "unknown"
BECAUSE_MAX = 220  # characters of a reason in a list of verdicts


def escaped(text: str) -> str:
    """As text in HTML and SVG, also within quotes; what does not print is shown as its escape."""
    return html.escape(plain(text), quote=True)


def element(name: str, content: str = "", /, **attributes: str | float) -> str:
    """An element around what is markup already. `class_` is class, and stroke_width is stroke-width."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_rounded(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    return f"<{name}{given}>{content}</{name}>"


def prose(text: str) -> str:
    """A sentence in HTML, in which `this` is code."""
    return "".join(
        element("code", escaped(part)) if is_code and part else escaped(part)
        for part, is_code in _parts(text)
    )


def markdown(text: str) -> str:
    """A sentence in Markdown, also in a table's cell, in which `this` is code and nothing else is markup."""
    return "".join(
        _code(part) if is_code and part else _inert(part) for part, is_code in _parts(text)
    )


def figure(value: Cell) -> str:
    """A table's cell for people: numbers with as many digits as tell something."""
    match value:
        case None:
            return UNKNOWN
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case _ if not math.isfinite(value):
            return UNKNOWN
        case _ if value == 0 or 1e-4 <= abs(value) < 1e15:
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        case _:
            return f"{value:.2e}"


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _rounded(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def _parts(text: str) -> list[tuple[str, bool]]:
    """The text, cut at its backticks; one that has no partner is a character like others."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return [(text, False)]
    return [(part, number % 2 == 1) for number, part in enumerate(parts)]


def _inert(text: str) -> str:
    kept = re.sub(MARKS, r"\\\1", plain(text))
    return (
        kept.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace("](", "&#93;(")
        .replace("\\&#93;", "&#93;")
    )


def _code(text: str) -> str:
    return "`" + plain(text).replace("|", "\\|") + "`"
