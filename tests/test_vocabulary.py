"""Test the vocabulary and layout: unique class names, plain words, helpers in tests/support."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("instep", "instep_lab", "instep_bench")
# Names that two packages may share, since each is the plain word for its own thing.
SHARED_NAMES: frozenset[str] = frozenset()
# The glossary or plain English has a word for each of these.
BANNED = (
    "told",
    "untold",
    "deed",
    "deeds",
    "mend",
    "mends",
    "mended",
    "mending",
    "lent",
    "anew",
    "so many",
    "set aside",
    "sets aside",
    "setting aside",
    "desk",
    "road",
    "roads",
    "insist",
    "insists",
    "tally",
    "tallies",
)
# Where a banned word is data: columns of an earlier version that are renamed.
EARLIER_COLUMNS = ("instep/sinks/tables.py", "tests/sinks/test_inspection.py")
EARLIER_NAMES = {"CHANGELOG.md": "`deed`"}
WORDS = re.compile(rf"(?<![a-z])({'|'.join(BANNED)})(?![a-z])", re.IGNORECASE)
CODE = [
    file
    for folder in (*PACKAGES, "tests", "examples", "scripts")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if file != Path(__file__)
] + [ROOT / "pyspark_instep.py"]
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(
        file
        for folder in (*PACKAGES, "examples")
        for kind in ("*.html", "*.css", "*.js", "*.java")
        for file in sorted((ROOT / folder).rglob(kind))
    ),
]


def classes() -> dict[str, list[str]]:
    """Return where each class is defined, also nested ones. `_Name` counts as `Name`."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found[node.name.removeprefix("_")].append(str(file.relative_to(ROOT)))
    return found


def test_no_class_name_is_defined_twice() -> None:
    twice = {name: files for name, files in classes().items() if len(files) > 1}
    assert len(SHARED_NAMES) <= 8
    assert set(twice) == SHARED_NAMES, twice


def words_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of names, strings and comments, with names split at underscores."""
    text = file.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string.replace("_", " ")
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, line.replace("_", " ")


@pytest.mark.parametrize("file", CODE, ids=lambda file: str(file.relative_to(ROOT)))
def test_code_uses_plain_words(file: Path) -> None:
    words = words_of(file)
    if str(file.relative_to(ROOT)) in EARLIER_COLUMNS:
        words = ((number, line.replace('"deed"', "")) for number, line in words)
    found = [f"{number}: {line.strip()}" for number, line in words if WORDS.search(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_plain_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if earlier := EARLIER_NAMES.get(str(page.relative_to(ROOT))):
        text = text.replace(earlier, "", 1)
    lines = enumerate(text.splitlines(), 1)
    found = [f"{number}: {line}" for number, line in lines if WORDS.search(line)]
    assert not found, "\n".join(found)


def imported_modules(file: Path) -> Iterator[str]:
    """Yield the dotted names of the modules, or of the names in them, that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_test_module_is_imported() -> None:
    imports = {
        (str(file.relative_to(ROOT)), name)
        for file in (ROOT / "tests").rglob("*.py")
        for name in imported_modules(file)
        if re.search(r"^tests\..*\btest_", name)
    }
    assert not imports, "move what they share to tests/support"
