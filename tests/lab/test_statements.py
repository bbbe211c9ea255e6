"""Test the list of statements that the lab began with: each is tested or answered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from instep_lab import claims, outdated, statements
from instep_lab.claim import ClaimResult
from instep_lab.report import markdown
from instep_lab.report.contents import LabReport
from instep_lab.statements import DecidingParts, NotedStatement
from instep_lab.verdict import (
    ClaimVerdict,
    Dependence,
    Judgement,
    PartOutcome,
    Role,
    VerdictPart,
    judge,
    outcome,
)
from tests.lab import labs
from tests.support import lab_parts

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "statements.md"
OPEN = {"send-10"}  # the texts of its parts are data, which the test does not read


def test_every_statement_of_the_notes_is_there_once() -> None:
    texts = [one.text for one in statements.ALL]
    assert len(set(texts)) == len(texts) == 113


def test_every_statement_is_tested_or_answered_and_every_id_exists() -> None:
    for one in statements.ALL:
        assert one.claims or one.outdated or one.untested, one.text
        assert claims.ALL.keys() >= set(one.claims), one.text
        assert outdated.ALL.keys() >= set(one.outdated), one.text


def test_every_part_that_decides_a_statement_is_one_of_its_claim() -> None:
    known = lab_parts.of_claims(claims.ALL)
    for noted in statements.ALL:
        for one in noted.decided_by:
            patterns = [part for part in known[one.claim] if not part.is_open]
            for text in one.texts:
                found = any(part.is_about_texts_like(text) for part in patterns)
                assert found or one.claim in OPEN, f"{one.claim} has no part {text!r}"


def test_every_part_that_decides_a_statement_is_published(published: LabReport) -> None:
    parts = {one.id: one.result.parts for one in published.sections if one.result}
    missing = [
        (one.claim, text)
        for noted in statements.ALL
        for one in noted.decided_by
        for text in one.texts
        if not statements._matching(parts[one.claim], text)
    ]
    assert missing == []


def test_every_outdated_statement_answers_one_of_the_notes_or_stands_for_itself() -> None:
    answered = {id_ for one in statements.ALL for id_ in one.outdated}
    assert outdated.ALL.keys() - answered == {"commits-one-day"}


def test_the_page_is_written_from_the_code_and_the_published_run(published: LabReport) -> None:
    """Write it again with: python -m instep_lab.report docs/lab/run.tar.xz docs/lab."""
    assert PAGE.read_text(encoding="utf-8") == markdown.pages(published)["statements.md"]
    assert "| right | [order-1](claims.md#claim-order-1) |" in PAGE.read_text(encoding="utf-8")


def words(published: LabReport) -> dict[str, str]:
    results = {one.id: one.result for one in published.sections if one.result}
    return {one.text: one.word(results) for one in statements.ALL}


def test_no_outdated_statement_is_right(published: LabReport) -> None:
    found = words(published)
    for one in statements.ALL:
        if one.outdated or one.before:
            assert re.search("right (with Java )?before Kafka ", found[one.text]), one.text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Offsets are kept in ZooKeeper", "was right before Kafka 0.9"),
        ("Offsets are kept in __consumer_offsets", "right"),
        ("There is no idempotent retry yet", "was right before Kafka 0.11"),
        (
            "A segment is named by its first offset, with the suffix .kafka",
            "was right before Kafka 0.8",
        ),
        ("A new group always starts at the newest record", "wrong"),
        ("Without the setting, a group starts at the newest record", "right"),
        ("commitAsync is faster", "right"),
        ("A commit that is retried may overtake a newer one", "depends on the client"),
        ("Idempotence needs 1 to 5 requests in flight", "right"),
        ("One member can hold several partitions", "right"),
        ("Another group may start at the beginning", "right"),
        ("acks=0 loses records when the leader dies", "right"),
        ("acks=all loses nothing", "depends on the setting"),
        (
            "linger.ms is 0 by default",
            "depends on the client and the release; right with Java before Kafka 4.0",
        ),
        (
            "Readers see records up to the high watermark, the lowest log end of all replicas",
            "wrong",
        ),
        ("Sequential access to a disk is faster than random access to memory", "not tested"),
    ],
)
def test_a_statement_has_its_own_verdict(published: LabReport, text: str, word: str) -> None:
    assert words(published)[text] == word


# --- how a word is derived ------------------------------------------------------------------------


def part(
    text: str, holds: bool | None, role: Role = Role.STATEMENT, client: str = ""
) -> VerdictPart:
    return VerdictPart(role, text, outcome(holds), "seen", client)


def word(parts: Sequence[VerdictPart], *decided_by: DecidingParts, before: str = "") -> str:
    result = msgspec.structs.replace(
        labs.result_of("order-1"), parts=list(parts), judgement=judge(parts)
    )
    return NotedStatement("it is so", decided_by, before=before).word({"order-1": result})


def by(*shows: str, refutes: tuple[str, ...] = (), unless: tuple[str, ...] = ()) -> DecidingParts:
    return DecidingParts("order-1", shows, refutes, unless)


FAST, SAFE = part("fast", True), part("safe", False)


def test_only_the_named_parts_decide() -> None:
    assert judge([FAST, SAFE]).verdict is ClaimVerdict.DEPENDS_ON_SETTING
    assert word([FAST, SAFE], by("fast")) == "right"
    assert word([FAST, SAFE], by("safe")) == "wrong"
    assert word([FAST, SAFE], by()) == "depends on the setting"


def test_a_part_can_refute_a_statement() -> None:
    assert word([FAST, SAFE], by(refutes=("fast",))) == "wrong"
    assert word([FAST, SAFE], by(refutes=("fast",)), before="Kafka 0.9") == (
        "was right before Kafka 0.9"
    )
    assert word([FAST, SAFE], by(refutes=("safe",))) == "right"


def test_each_half_of_a_statement_must_hold() -> None:
    assert word([FAST, SAFE], by("fast"), by("safe")) == "wrong"


def test_a_control_can_show_a_statement_and_a_limit_is_an_exception() -> None:
    known = part("x, not set: known", True, Role.CONTROL)
    limit = VerdictPart(Role.LIMIT, "before 3.7", PartOutcome.PASS, "seen", on=Dependence.RELEASE)
    assert word([FAST, known], by("*, not set: known")) == "right"
    assert word([FAST, limit], by("fast", unless=("before 3.7",))) == "depends on the release"


def test_clients_that_differ_are_what_it_depends_on() -> None:
    parts = [part("fast", True, client="Java"), part("fast", False, client="librdkafka")]
    assert word(parts, by("fast")) == "depends on the client"
    assert word(parts, by("fast"), before="Kafka 4.0") == (
        "depends on the client; right with Java before Kafka 4.0"
    )


def test_what_is_unknown_is_not_right() -> None:
    failed_control = part("quiet", False, Role.CONTROL)
    assert word([FAST, failed_control], by("fast")) == "INCONCLUSIVE"
    assert word([FAST, SAFE], by("slow")) == "INCONCLUSIVE"
    assert NotedStatement("it is so", (by("fast"),)).word({}) == "not run"


def test_a_claim_that_settled_nothing_decides_nothing() -> None:
    result: ClaimResult = msgspec.structs.replace(
        labs.result_of("order-1"),
        parts=[FAST],
        judgement=Judgement(ClaimVerdict.INCONCLUSIVE, "it did not end"),
    )
    assert NotedStatement("it is so", (by("fast"),)).word({"order-1": result}) == "INCONCLUSIVE"
