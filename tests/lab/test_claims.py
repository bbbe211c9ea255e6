"""Test the claims as a whole: each has all its texts and refers to existing rules."""

from __future__ import annotations

import re
from pathlib import Path

from instep.vet import rules
from instep_lab import claims, integrity, sources
from instep_lab.report import __main__ as maintaining
from instep_lab.report import archive
from instep_lab.report import markdown as page_markdown
from instep_lab.report.contents import LabReport
from instep_lab.verdict import Role
from scripts import docs_site

DOCS = Path(__file__).parents[2] / "docs"


def test_every_rule_that_a_claim_names_exists() -> None:
    unknown = {
        claim.id: missing
        for claim in claims.ALL.values()
        if (missing := set(claim.texts.rules) - rules.ALL.keys())
    }
    assert unknown == {}


def test_every_claim_has_all_its_texts() -> None:
    for id_, claim in claims.ALL.items():
        assert claim.id == id_
        assert claim.family
        texts = claim.texts
        for text in (texts.statement, texts.method, texts.advice):
            assert text.strip() == text != "", id_
        for text in (texts.statement, texts.method, texts.advice, texts.why, texts.scope):
            assert text.isprintable(), id_
            assert text.count("`") % 2 == 0, f"{id_}: a backtick without its partner"
        assert claim.brokers in (0, 1, 3), id_
        assert len(set(claim.texts.rules)) == len(claim.texts.rules), id_


# Only brokers decide these.
WITHOUT_CLIENT = {
    *("storage-2", "storage-3", "storage-4"),
    *("topic-1", "topic-2", "topic-3", "topic-5", "topic-8", "topic-11", "topic-12"),
}


def test_every_scope_names_the_clients_that_were_measured() -> None:
    named = re.compile("Java|librdkafka|kafka-python|Python")
    unnamed = {id_ for id_, one in claims.ALL.items() if not named.search(one.texts.scope)}
    assert unnamed == WITHOUT_CLIENT


def test_every_scope_names_releases() -> None:
    """A number such as 0.9 or 4.3.1 that is not a time, a size or the value of a setting."""
    release = re.compile(r"(?<![\d.,=])\d+\.\d+(\.\d+)?(?![\d.]*\d)(?! (s|ms|kB)\b)")
    unnamed = {id_ for id_, one in claims.ALL.items() if not release.search(one.texts.scope)}
    assert unnamed == set()
    assert not release.search("It waits 0.5 s, with linger.ms=0.5 and 1,000.5 ms.")
    assert release.search("All releases since 0.9.")


COUNTS = {
    "order": 9,
    "group": 9,
    "start": 9,
    "commit": 18,
    "send": 19,
    "topic": 13,
    "storage": 5,
    "speed": 2,
    "queue": 4,
}


def test_every_claim_exists_once_and_in_order() -> None:
    assert list(claims.ALL) == [
        f"{family}-{number}" for family, count in COUNTS.items() for number in range(1, count + 1)
    ]


def test_the_published_page_shows_the_run_in_the_archive(published: LabReport) -> None:
    """Compare the whole page: every part, table, example and setting is that of the run.

    After a change of the page's form: python -m instep_lab.report docs/lab/run.tar.xz docs/lab
    """
    text = DOCS.joinpath("lab", "claims.md").read_text(encoding="utf-8")
    assert text == page_markdown.page(published)
    assert maintaining.unpublishable(published, list(claims.ALL)) == ""
    assert (DOCS / "lab" / archive.NAME).stat().st_size <= archive.BYTES_MAX


def test_the_published_run_has_the_texts_of_the_code(published: LabReport) -> None:
    for id_, claim in claims.ALL.items():
        [section] = [one for one in published.sections if one.id == id_]
        for name in ("statement", "method", "advice", "why", "scope"):
            text = getattr(claim.texts, name)
            assert text, f"{id_} has no {name}"
            assert getattr(section.texts, name) == text, f"{id_}: {name} differs from the page"


def test_every_published_verdict_rests_on_records_that_were_checked(published: LabReport) -> None:
    unchecked = [
        section.id
        for section in published.sections
        if section.result
        and not integrity.is_checked(
            section.id, [one.statement for one in section.result.parts if one.role is Role.CONTROL]
        )
    ]
    assert unchecked == []


def test_the_claims_that_check_no_records_exist_and_their_reasons_are_documented() -> None:
    assert integrity.UNCHECKED.keys() <= claims.ALL.keys()
    text = DOCS.joinpath("lab", "index.md").read_text(encoding="utf-8")
    for id_ in integrity.UNCHECKED:
        assert id_ in text, id_


def test_sources_have_unique_addresses_and_every_claim_names_known_ones() -> None:
    addresses = [source.url for source in sources.ALL.values()]
    assert len(set(addresses)) == len(addresses)
    assert len(sources.ALL) == len(sources._KNOWN), "an id is used twice"
    for source in sources.ALL.values():
        assert re.fullmatch(r"https://[^\s<>]+", source.url), source.id
        assert source.title.strip() == source.title != "", source.id
    unknown = {
        claim.id: missing
        for claim in claims.ALL.values()
        if (missing := set(claim.texts.sources) - sources.ALL.keys())
    }
    assert unknown == {}


def test_proposals_have_the_address_of_their_page() -> None:
    older, newer = sources.ALL["KIP-98"].url, sources.ALL["KIP-848"].url
    assert older.endswith("/KIP-98+-+Exactly+Once+Delivery+and+Transactional+Messaging")
    assert "/KIP-848%3A+The+Next+Generation+of" in newer


def test_every_command_in_the_advice_exists() -> None:
    reference = docs_site.generated_pages()["reference/commands.md"]
    for id_, claim in claims.ALL.items():
        for command in re.findall(r"instep(?: [a-z]+)+|--[a-z-]+", claim.texts.advice):
            words = command.split(" for ")[0]
            assert words in reference, f"{id_}: {words}"
