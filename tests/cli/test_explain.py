"""Test `instep explain`: every code that instep prints has a page, in checkout and wheel."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from instep import errors
from instep.bridge.failures import FailureCode
from instep.cli import explain
from instep.document.reasons import Reason
from instep.vet import rules
from tests.support.cli import instep

ROOT = Path(__file__).parents[2]
STOPS = {kind.code for kind in errors.NamedStop.__subclasses__()}


def test_every_code_has_a_page() -> None:
    pages = explain.pages()
    codes = [*STOPS, *(reason.value for reason in Reason), *FailureCode, *rules.ALL]
    assert sorted(page.code for page in explain.all_pages()) == sorted(codes)
    assert len(pages) == len(codes), "a code has one meaning"
    for code, page in pages.items():
        assert page.text.startswith(f"# {code}\n")
        assert len(page.summary) > 10


def test_a_page_is_printed_and_a_wrong_code_is_corrected(tmp_path: Path) -> None:
    shown = instep(tmp_path, "explain", "fenced")
    assert (shown.returncode, shown.stdout) == (
        0,
        (ROOT / "docs/stops/FENCED.md").read_text(encoding="utf-8"),
    )
    assert "instep dead list --reason NOT_JSON" in instep(tmp_path, "explain", "NOT_JSON").stdout
    assert "## What the bridge does" in instep(tmp_path, "explain", "BUSY").stdout
    assert "## How to fix it" in instep(tmp_path, "explain", "TOPIC_SINGLE_REPLICA").stdout
    wrong = instep(tmp_path, "explain", "TARGET_CHANGD")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean 'TARGET_CHANGED'?" in wrong.stderr
    listed = instep(tmp_path, "explain").stdout
    assert (
        listed.index("Named stops")
        < listed.index("FENCED")
        < listed.index("NOT_JSON")
        < listed.index("TOPIC_SINGLE_REPLICA")
    )
    assert json.loads(instep(tmp_path, "explain", "FENCED", "--json").stdout)["group"] == "stops"


@pytest.mark.parametrize("kind", errors.NamedStop.__subclasses__())
def test_an_error_that_has_a_page_names_the_command(kind: type[errors.NamedStop]) -> None:
    assert f"instep explain {kind.code}" in str(kind("x"))


def test_a_wheel_contains_the_pages() -> None:
    """Include docs/stops itself, so that there is one text to maintain."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["package-data"]
    taken = {file for pattern in declared["instep"] for file in (ROOT / "instep").glob(pattern)}
    assert {ROOT / "instep" / "stops" / f"{stop}.md" for stop in STOPS} <= taken
    assert (ROOT / "instep" / "stops").resolve() == ROOT / "docs" / "stops"
