"""From the observations of an experiment to the verdict about its claim. Pure.

An experiment divides its claim into parts, each of which is PASS, FAIL or INCONCLUSIVE:

    statement  what the claim says; several parts if it says several things, or for several clients
    control    what must hold for the rest to mean anything, such as loss without the protection
    limit      a condition under which the claim does not hold; PASS if the run showed that

The verdict is INCONCLUSIVE if a control or a limit did not pass or any part is INCONCLUSIVE:
unknown never counts as a pass, and a limit that did not show is not silently dropped.
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


class Dependence(enum.StrEnum):
    """What decides whether a claim holds, the most surprising first.

    A setting may also be the situation: the workload, the number of replicas, a fault.
    """

    CLIENT = "client"
    RELEASE = "release"
    SETTING = "setting"


class ClaimVerdict(enum.StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    DEPENDS_ON_CLIENT = "depends on the client"
    DEPENDS_ON_CLIENT_AND_RELEASE = "depends on the client and the release"
    DEPENDS_ON_RELEASE = "depends on the release"
    DEPENDS_ON_SETTING = "depends on the setting"
    OUTDATED = "was right"
    INCONCLUSIVE = "INCONCLUSIVE"


DEPENDS = {
    Dependence.CLIENT: ClaimVerdict.DEPENDS_ON_CLIENT,
    Dependence.RELEASE: ClaimVerdict.DEPENDS_ON_RELEASE,
    Dependence.SETTING: ClaimVerdict.DEPENDS_ON_SETTING,
}


class VerdictPart(msgspec.Struct, frozen=True):
    """One statement that the run confirmed or refuted, with the evidence.

    `client` names the client library that it was observed with, if the claim is tested with
    several. `on` says what decides, for a limit or for a statement that is only sometimes true.
    """

    role: Role
    statement: str
    outcome: PartOutcome
    evidence: str
    client: str = ""
    on: Dependence | None = None

    @property
    def title(self) -> str:
        """The statement, with the client if there is one."""
        return f"{self.client}: {self.statement}" if self.client else self.statement


class Judgement(msgspec.Struct, frozen=True):
    """The verdict about a claim, with the reason in a sentence or two."""

    verdict: ClaimVerdict
    because: str


def outcome(holds: bool | None) -> PartOutcome:
    """Return the outcome of a part; None means that the run could not determine it."""
    if holds is None:
        return PartOutcome.INCONCLUSIVE
    return PartOutcome.PASS if holds else PartOutcome.FAIL


def judge(parts: Sequence[VerdictPart], before: str | None = None) -> Judgement:
    """Judge a claim by its parts.

    `before` names the release before which a claim that is wrong today was right.
    """
    statements = [part for part in parts if part.role is Role.STATEMENT]
    undecided = [
        part
        for part in parts
        if part.outcome is PartOutcome.INCONCLUSIVE
        or (part.role is not Role.STATEMENT and part.outcome is PartOutcome.FAIL)
    ]
    if undecided or not statements:
        reason = _list_parts("", undecided) or "no statement of the claim was tested"
        return Judgement(ClaimVerdict.INCONCLUSIVE, reason)
    refuted = [part for part in statements if part.outcome is PartOutcome.FAIL]
    limits = [part for part in parts if part.role is Role.LIMIT]
    if len(refuted) == len(statements):
        if before:
            reason = f"before {before}; {_list_refuted('no longer true', refuted)}"
            return Judgement(ClaimVerdict.OUTDATED, reason)
        return Judgement(ClaimVerdict.WRONG, _list_refuted("not true", refuted))
    if refuted or limits:
        decisive = {_dependence(part, statements) for part in (*refuted, *limits)}
        reason = _list_exceptions(refuted, limits, len(statements) - len(refuted))
        if decisive >= {Dependence.CLIENT, Dependence.RELEASE}:
            return Judgement(ClaimVerdict.DEPENDS_ON_CLIENT_AND_RELEASE, reason)
        most_surprising = next(one for one in Dependence if one in decisive)
        return Judgement(DEPENDS[most_surprising], reason)
    return Judgement(ClaimVerdict.RIGHT, _list_parts("", statements))


def _dependence(part: VerdictPart, statements: Sequence[VerdictPart]) -> Dependence:
    """Return what a refuted statement or a limit depends on.

    It is the client if the same statement is true for another one.
    """
    if part.on is not None:
        return part.on
    if part.client and any(
        one.statement == part.statement and one.outcome is PartOutcome.PASS for one in statements
    ):
        return Dependence.CLIENT
    return Dependence.SETTING


def _list_exceptions(
    refuted: Sequence[VerdictPart], limits: Sequence[VerdictPart], true: int
) -> str:
    """Say what does not hold, and that the other statements do."""
    exceptions = _list_parts("but ", limits)
    if not refuted:
        return f"true, {exceptions}"
    others = "the other statement is true" if true == 1 else f"the other {true} statements are true"
    return "; ".join(
        text for text in (_list_refuted("not true", refuted), others, exceptions) if text
    )


def _list_refuted(prefix: str, parts: Sequence[VerdictPart]) -> str:
    """Quote the statements: a refuted one often has a negation of its own."""
    return "; ".join(f"{prefix}: “{part.title}” ({part.evidence})" for part in parts)


def _list_parts(prefix: str, parts: Sequence[VerdictPart]) -> str:
    return "; ".join(f"{prefix}{part.title}: {part.evidence}" for part in parts)
