"""From the observations of an experiment to the verdict about its claim. Pure.

An experiment divides its claim into parts, each of which is PASS, FAIL or INCONCLUSIVE:

    statement  what the claim says; several parts if it says several things
    control    what must hold for the rest to mean anything, such as loss without the protection
    limit      a condition under which the claim does not hold; PASS if the run showed that

The verdict is INCONCLUSIVE if a control did not pass or any part is INCONCLUSIVE: unknown never
counts as a pass.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class PartOutcome(enum.StrEnum):
    PASS = "PASS"  # noqa: S105 - no password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class Role(enum.StrEnum):
    STATEMENT = "statement"
    CONTROL = "control"
    LIMIT = "limit"


class ClaimVerdict(enum.StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    DEPENDS = "depends"
    OUTDATED = "was right"
    INCONCLUSIVE = "INCONCLUSIVE"


class VerdictPart(msgspec.Struct, frozen=True):
    """One statement that the run confirmed or refuted, with the evidence."""

    role: Role
    statement: str
    outcome: PartOutcome
    evidence: str


class Judgement(msgspec.Struct, frozen=True):
    """The verdict about a claim, with the reason in a sentence or two."""

    verdict: ClaimVerdict
    because: str


def outcome(holds: bool | None) -> PartOutcome:
    """Return the outcome of a part; None means that the run could not determine it."""
    if holds is None:
        return PartOutcome.INCONCLUSIVE
    return PartOutcome.PASS if holds else PartOutcome.FAIL


def judge(parts: Sequence[VerdictPart], until: str | None = None) -> Judgement:
    """Judge a claim by its parts.

    `until` names the release up to which a claim that is wrong today was right.
    """
    statements = [part for part in parts if part.role is Role.STATEMENT]
    undecided = [part for part in parts if part.outcome is PartOutcome.INCONCLUSIVE] + [
        part for part in parts if part.role is Role.CONTROL and part.outcome is PartOutcome.FAIL
    ]
    if undecided or not statements:
        reason = _list_parts("", undecided) or "no statement of the claim was tested"
        return Judgement(ClaimVerdict.INCONCLUSIVE, reason)
    refuted = [part for part in statements if part.outcome is PartOutcome.FAIL]
    limits = [
        part for part in parts if part.role is Role.LIMIT and part.outcome is PartOutcome.PASS
    ]
    if len(refuted) == len(statements):
        if until:
            reason = f"until {until}; {_list_parts('no longer true: ', refuted)}"
            return Judgement(ClaimVerdict.OUTDATED, reason)
        return Judgement(ClaimVerdict.WRONG, _list_parts("not true: ", refuted))
    if refuted or limits:
        both = (_list_parts("not true: ", refuted), _list_parts("but ", limits))
        return Judgement(ClaimVerdict.DEPENDS, "; ".join(text for text in both if text))
    return Judgement(ClaimVerdict.RIGHT, _list_parts("", statements))


def _list_parts(prefix: str, parts: Sequence[VerdictPart]) -> str:
    return "; ".join(f"{prefix}{part.statement}: {part.evidence}" for part in parts)
