"""Test the list of statements that the lab began with: each is tested or answered."""

from __future__ import annotations

from pathlib import Path

from instep_lab import claims, outdated, statements
from instep_lab.report import markdown
from instep_lab.report.contents import LabReport

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "statements.md"


def test_every_statement_of_the_notes_is_there_once() -> None:
    texts = [one.text for one in statements.ALL]
    assert len(set(texts)) == len(texts) == 113


def test_every_statement_is_tested_or_answered_and_every_id_exists() -> None:
    for one in statements.ALL:
        assert one.claims or one.outdated or one.untested, one.text
        assert claims.ALL.keys() >= set(one.claims), one.text
        assert outdated.ALL.keys() >= set(one.outdated), one.text


def test_every_outdated_statement_answers_one_of_the_notes_or_stands_for_itself() -> None:
    answered = {id_ for one in statements.ALL for id_ in one.outdated}
    assert outdated.ALL.keys() - answered == {"commits-one-day"}


def test_the_page_is_written_from_the_code_and_the_published_run(published: LabReport) -> None:
    """Write it again with: python -m instep_lab.report docs/lab/run.tar.xz docs/lab."""
    assert PAGE.read_text(encoding="utf-8") == markdown.pages(published)["statements.md"]
    assert "[order-1](claims.md#claim-order-1) right |" in PAGE.read_text(encoding="utf-8")
