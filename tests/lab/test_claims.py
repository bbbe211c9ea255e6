"""Test the claims as a whole: each has all its texts and refers to existing rules."""

from __future__ import annotations

import re
from pathlib import Path

from instep.report.markup import markdown
from instep.vet import rules
from instep_lab import claims
from scripts import docs_site

DOCS = Path(__file__).parents[2] / "docs"


def test_every_rule_that_a_claim_names_exists() -> None:
    unknown = {
        claim.id: missing
        for claim in claims.ALL.values()
        if (missing := set(claim.rules) - rules.ALL.keys())
    }
    assert unknown == {}


def test_every_claim_has_all_its_texts() -> None:
    for id_, claim in claims.ALL.items():
        assert claim.id == id_
        assert claim.family
        for text in (claim.statement, claim.method, claim.advice):
            assert text.strip() == text != "", id_
            assert text.isprintable(), id_
            assert text.count("`") % 2 == 0, f"{id_}: a backtick without its partner"
        assert claim.brokers in (0, 1, 3), id_
        assert len(set(claim.rules)) == len(claim.rules), id_


COUNTS = {
    "order": 6,
    "group": 4,
    "start": 7,
    "commit": 9,
    "send": 11,
    "topic": 9,
    "speed": 2,
    "queue": 3,
}


def test_every_claim_exists_once_and_in_order() -> None:
    assert list(claims.ALL) == [
        f"{family}-{number}" for family, count in COUNTS.items() for number in range(1, count + 1)
    ]


def test_the_published_page_quotes_every_claim() -> None:
    page = DOCS.joinpath("lab", "claims.md").read_text(encoding="utf-8")
    for id_, claim in claims.ALL.items():
        # the method is that of the published run, which may be older
        for text in (claim.statement, claim.advice):
            assert markdown(text) in page, id_


def test_every_command_in_the_advice_exists() -> None:
    reference = docs_site.generated_pages()["reference/commands.md"]
    for id_, claim in claims.ALL.items():
        for command in re.findall(r"instep(?: [a-z]+)+|--[a-z-]+", claim.advice):
            words = command.split(" for ")[0]
            assert words in reference, f"{id_}: {words}"
