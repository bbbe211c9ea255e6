"""Text and numbers on their way into HTML and Markdown, where they must not become markup."""

from __future__ import annotations

import math
import re

from instep.document.showing import plain
from instep.report.tables import Cell

MARKS = r"([\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))"  # not an underscore within a word
UNKNOWN = "unknown"
REASON_MAX = 220  # characters of a reason in a list of verdicts


def markdown(text: str) -> str:
    """Return a sentence as Markdown, also for a table cell; only `this` is markup, as code."""
    return "".join(
        _code(part) if is_code and part else _inert(part) for part, is_code in prose_parts(text)
    )


def figure(value: Cell) -> str:
    """Return a table cell for people, with as many digits as are significant."""
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
    """Return a text of at most this many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def prose_parts(text: str) -> list[tuple[str, bool]]:
    """Split a sentence at its backticks into text and code; an unpaired backtick is text."""
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
