"""Test a pipeline's state machine: what it allows, how it is drawn, and what is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.document import transitions
from instep.document.reasons import Reason
from instep.document.transitions import Transitions

PRINTING = transitions.declare(
    {
        "CREATED": ["QUEUED", "FAILED"],
        "QUEUED": ["PRINTING", "FAILED"],
        "PRINTING": ["PRINTED", "FAILED"],
    }
)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (None, "CREATED", None),
        (None, "PRINTED", None),
        ("CREATED", "QUEUED", None),
        ("CREATED", "CREATED", None),
        ("CREATED", "PRINTED", Reason.TRANSITION_NOT_ALLOWED),
        ("PRINTED", "FAILED", Reason.TRANSITION_NOT_ALLOWED),
        ("LOST", "FAILED", Reason.TRANSITION_NOT_ALLOWED),
        ("CREATED", "LOST", Reason.STATUS_UNKNOWN),
        (None, "LOST", Reason.STATUS_UNKNOWN),
        (None, "created", Reason.STATUS_UNKNOWN),
    ],
)
def test_only_declared_transitions_are_allowed(
    before: str | None, after: str, reason: Reason | None
) -> None:
    refusal = PRINTING.refusal(before, after)
    assert (refusal.reason if refusal else None) is reason


def test_a_refusal_names_the_allowed_statuses() -> None:
    refused = PRINTING.refusal("CREATED", "PRINTED")
    assert refused is not None
    assert (
        refused.detail
        == "from 'CREATED' to 'PRINTED': 'CREATED' may be followed by 'QUEUED', 'FAILED'"
    )
    ended = PRINTING.refusal("PRINTED", "QUEUED")
    assert ended is not None
    assert "'PRINTED' is a final status" in ended.detail


def test_transitions_are_drawn() -> None:
    assert transitions.picture(PRINTING).splitlines() == [
        "● CREATED  ┬─▶ QUEUED",
        "           └─▶ FAILED",
        "  QUEUED   ┬─▶ PRINTING",
        "           └─▶ FAILED",
        "  FAILED   ■",
        "  PRINTING ┬─▶ PRINTED",
        "           └─▶ FAILED",
        "  PRINTED  ■",
        "● begins   ■ ends",
    ]
    assert transitions.findings(PRINTING) == []


def test_suspicious_declarations_are_reported() -> None:
    odd = transitions.declare(
        {
            "CREATED": ["QUEUED"],
            "QUEUED": ["PRINTIGN"],
            "PRINTING": ["PRINTED"],
            "A": ["B"],
            "B": ["A"],
        }
    )
    assert transitions.starts(odd) == ["CREATED", "PRINTING"]
    assert transitions.unreachable(odd) == ["A", "B"]
    assert transitions.doubtful(odd) == [("PRINTIGN", "PRINTING")]
    findings = transitions.findings(odd, found=["CREATED", "OLD"])
    assert len(findings) == 4
    assert "'OLD' is in the table" in findings[-1]
    assert "? cannot be reached" in transitions.picture(odd)


def test_a_cycle_starts_with_its_first_status() -> None:
    ring = transitions.declare({"A": ["B"], "B": ["C"], "C": ["A"]})
    assert transitions.starts(ring) == ["A"]
    assert transitions.unreachable(ring) == []


@given(st.dictionaries(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=4), max_size=6))
def test_any_declaration_can_be_drawn(declared: dict[str, list[str]]) -> None:
    machine = transitions.declare(declared)
    assert bool(machine) is bool(declared)
    drawn = transitions.picture(machine)
    assert all(name in drawn for name in transitions.statuses(machine))
    for before in (None, *transitions.statuses(machine)):
        for after in transitions.statuses(machine):
            allowed = before in (None, after) or after in declared.get(before or "", [])
            assert (machine.refusal(before, after) is None) is allowed


def test_every_transition_is_allowed_if_none_is_declared() -> None:
    assert not Transitions()
