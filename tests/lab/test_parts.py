"""Test that the published page has the parts that the code records, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from instep_lab import claims, integrity
from instep_lab.report.contents import LabReport
from instep_lab.verdict import PartOutcome, Role, VerdictPart
from tests.lab.conftest import Settle
from tests.support import lab_parts
from tests.support.lab_parts import PartPattern

# Claims with parts whose texts are data, which the test does not read.
OPEN = {"send-7", "send-10"}
# An experiment records them only where there is something to check: see integrity.py.
ANYWHERE = {integrity.CLIENTS_CHECKED, integrity.LOG_CHECKED}


@pytest.fixture(scope="module")
def patterns() -> dict[str, list[PartPattern]]:
    return lab_parts.of_claims(claims.ALL)


def unknown(found: Sequence[VerdictPart], known: Sequence[PartPattern]) -> list[str]:
    """Return the parts that the code does not record."""
    return [
        f"{one.role}: {one.title}" for one in found if not any(each.matches(one) for each in known)
    ]


def missing(found: Sequence[VerdictPart], known: Sequence[PartPattern]) -> list[str]:
    """Return the parts of the code that were not recorded."""
    return [
        f"{each.role}: {each.statement}"
        for each in known
        if not each.is_open
        and not any(each.matches(one) for one in found)
        and not any(each.is_about(text) for text in ANYWHERE)
    ]


def test_every_published_part_is_one_of_the_code(
    published: LabReport, patterns: dict[str, list[PartPattern]]
) -> None:
    found = {
        section.id: unknown(section.result.parts, patterns.get(section.id, []))
        for section in published.sections
        if section.result
    }
    assert {id_: parts for id_, parts in found.items() if parts} == {}


def test_every_part_of_the_code_is_published(
    published: LabReport, patterns: dict[str, list[PartPattern]]
) -> None:
    results = {section.id: section.result for section in published.sections if section.result}
    found = {
        id_: missing(results[id_].parts if id_ in results else [], known)
        for id_, known in patterns.items()
    }
    assert {id_: parts for id_, parts in found.items() if parts} == {}


def test_the_texts_of_nearly_all_parts_are_in_the_code(
    patterns: dict[str, list[PartPattern]],
) -> None:
    assert {id_ for id_, known in patterns.items() if any(one.is_open for one in known)} == OPEN
    assert all(len(known) > len(ANYWHERE) for known in patterns.values())


def test_a_claim_records_exactly_the_parts_of_its_code(
    settle: Settle, patterns: dict[str, list[PartPattern]]
) -> None:
    parts = settle("commit-16").parts
    assert unknown(parts, patterns["commit-16"]) == []
    assert missing(parts, patterns["commit-16"]) == []


def test_a_part_with_another_role_text_or_client_is_noticed(
    patterns: dict[str, list[PartPattern]],
) -> None:
    text = "acks=0 loses records"
    part = VerdictPart(Role.STATEMENT, text, PartOutcome.PASS, "seen")
    known = patterns["send-1"]
    assert unknown([part], known) == []
    assert unknown([VerdictPart(Role.LIMIT, text, PartOutcome.PASS, "seen")], known)
    assert unknown([VerdictPart(Role.STATEMENT, f"{text}!", PartOutcome.PASS, "seen")], known)
    of_java = VerdictPart(Role.STATEMENT, text, PartOutcome.PASS, "seen", client="Java")
    assert unknown([of_java], known)
    assert any("acks=.*" in one for one in missing([], known))
