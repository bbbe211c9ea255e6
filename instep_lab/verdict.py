"""From what an experiment saw to what becomes of the claim. Pure.

An experiment puts its claim into parts, and each is PASS, FAIL or INCONCLUSIVE:

    told       what the claim says; several when it says several things
    control    what must happen for the rest to mean anything, such as records lost without the protection
    limit      a condition under which the claim does not hold; it passes when the run showed so

A control that did not pass, or a part that nobody could settle, makes the whole INCONCLUSIVE: unknown is never a pass.
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
    TOLD = "told"
    CONTROL = "control"
    LIMIT = "limit"


class ClaimVerdict(enum.StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    DEPENDS = "depends"
    OUTDATED = "was right"
    INCONCLUSIVE = "INCONCLUSIVE"


class VerdictPart(msgspec.Struct, frozen=True):
    """One statement that the run kept or broke, with what was seen."""

    role: Role
    statement: str
    outcome: PartOutcome
    evidence: str


class Judgement(msgspec.Struct, frozen=True):
    """What becomes of the claim, and why in a sentence or two."""

    verdict: ClaimVerdict
    because: str


def outcome(holds: bool | None) -> PartOutcome:
    """None is what could not be found out."""
    return (
        PartOutcome.INCONCLUSIVE
        if holds is None
        else PartOutcome.PASS
        if holds
        else PartOutcome.FAIL
    )


def judge(parts: Sequence[VerdictPart], until: str | None = None) -> Judgement:
    """`until` names the release up to which a claim that is wrong now was right."""
    told = [part for part in parts if part.role is Role.TOLD]
    unsettled = [part for part in parts if part.outcome is PartOutcome.INCONCLUSIVE] + [
        part for part in parts if part.role is Role.CONTROL and part.outcome is PartOutcome.FAIL
    ]
    if unsettled or not told:
        return Judgement(
            ClaimVerdict.INCONCLUSIVE,
            _listed("", unsettled) or "nothing that the claim says was looked at",
        )
    broken = [part for part in told if part.outcome is PartOutcome.FAIL]
    limits = [
        part for part in parts if part.role is Role.LIMIT and part.outcome is PartOutcome.PASS
    ]
    if len(broken) == len(told):
        if until:
            return Judgement(
                ClaimVerdict.OUTDATED, f"until {until}; {_listed('no longer so: ', broken)}"
            )
        return Judgement(ClaimVerdict.WRONG, _listed("not so: ", broken))
    if broken or limits:
        both = (_listed("not so: ", broken), _listed("but ", limits))
        return Judgement(ClaimVerdict.DEPENDS, "; ".join(text for text in both if text))
    return Judgement(ClaimVerdict.RIGHT, _listed("", told))


def _listed(mark: str, parts: Sequence[VerdictPart]) -> str:
    return "; ".join(f"{mark}{part.statement}: {part.evidence}" for part in parts)
