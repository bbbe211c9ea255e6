"""Test that the errors in the documentation are those of the code."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LITERAL_MIN, LITERAL_MAX = 12, 400  # characters of a text in the code: what may be an error
# Pages, and the headings of the tables whose second column has errors of instep.
TABLES = {
    "docs/concepts/limits.md": (
        "What a Spark sink refuses",
        "What a pipeline refuses",
        "What other jobs and commands refuse",
    ),
    "docs/guides/transform-records.md": ("What is refused",),
    "docs/guides/write-a-spark-stream.md": ("What is refused",),
}


def rows(page: str, heading: str) -> list[str]:
    """Return the second cell of each row of the table below a heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    below = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in below.splitlines() if line.startswith("| ")]
    return [re.split(r" \| ", line.strip("| "))[1] for line in lines[1:]]


def errors_in(cell: str) -> list[str]:
    """Return the error texts of a cell. Links, names in backticks and errors of Spark are none."""
    if "(by Spark" in cell:
        return []
    quoted = re.findall(r"``\s*(.+?)\s*``|`([^`]+)`", re.sub(r"\[[^]]*\]\([^)]*\)", "", cell))
    found = [text or other for text, other in quoted]
    return [text for text in found if " " in text]


@functools.cache
def texts_of_the_code() -> list[list[str]]:
    """Return each text in the code, as its literal parts: what is between them are values."""
    found = []
    for file in sorted((ROOT / "instep").rglob("*.py")):
        inside: set[ast.AST] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                inside.update(node.values)
                found.append([part.value for part in node.values if isinstance(part, ast.Constant)])
            elif isinstance(node, ast.Constant) and node not in inside:
                found.append([node.value])
    stripped = [[str(part).strip(": ;") for part in parts] for parts in found]
    return [parts for parts in stripped if LITERAL_MIN <= sum(map(len, parts)) <= LITERAL_MAX]


def is_of_the_code(text: str) -> bool:
    """Return whether the code makes this text. `…` stands for what the page leaves out."""
    pieces = filter(None, (piece.strip(": ;") for piece in text.split("…")))
    return all(any(_makes(parts, piece) for parts in texts_of_the_code()) for piece in pieces)


def _makes(parts: list[str], piece: str) -> bool:
    """Return whether a piece is in what these parts make, or what they make in the piece.

    The piece may begin within the first part, behind a value that the page leaves out.
    """
    if any(piece in part for part in parts):
        return True
    words, behind = parts[0].split(" "), sum(map(len, parts[1:]))
    beginnings = (" ".join(words[number:]) for number in range(len(words)))
    return any(
        _follow(piece, [beginning, *parts[1:]])
        for beginning in beginnings
        if len(beginning) + behind >= LITERAL_MIN
    )


def _follow(piece: str, parts: list[str]) -> bool:
    """Return whether the parts are in the piece, one after the other."""
    at = 0
    for part in parts:
        at = piece.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


@pytest.mark.parametrize(
    ("page", "heading"), [(page, heading) for page in TABLES for heading in TABLES[page]]
)
def test_errors_in_the_documentation_are_those_of_the_code(page: str, heading: str) -> None:
    named = [text for cell in rows(page, heading) for text in errors_in(cell)]

    assert len(named) >= 4
    assert [text for text in named if not is_of_the_code(text)] == []


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("unknown option 'keys'; did you mean 'key'?", True),
        ("an unknown setting 'keys'", False),
        ("… cannot keep each record's place in the log: DISTINCT compares several records", True),
        ("… cannot keep the place of each record in the log", False),
        ("the option 'url' is missing", True),
        ("the options 'url' are missing", False),
    ],
)
def test_a_text_that_the_code_does_not_make_is_noticed(text: str, is_right: bool) -> None:
    assert is_of_the_code(text) is is_right
