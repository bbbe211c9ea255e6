"""Test the verdict from parts: every combination, and unknown is never a pass."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from instep_lab.verdict import (
    DEPENDS,
    ClaimVerdict,
    Dependence,
    PartOutcome,
    Role,
    VerdictPart,
    judge,
    outcome,
)

PASS, FAIL, INCONCLUSIVE = PartOutcome.PASS, PartOutcome.FAIL, PartOutcome.INCONCLUSIVE

roles = st.sampled_from(Role)
outcomes = st.sampled_from(PartOutcome)
parts_of_any_kind = st.lists(
    st.builds(VerdictPart, roles, st.text(max_size=5), outcomes, st.text(max_size=5)), max_size=6
)
releases = st.sampled_from([None, "2.8"])


def part(
    role: Role, result: PartOutcome, statement: str = "it holds", evidence: str = "seen"
) -> VerdictPart:
    return VerdictPart(role, statement, result, evidence)


def expected(
    statements: tuple[PartOutcome, ...],
    control: PartOutcome | None,
    limit: PartOutcome | None,
    before: str | None,
) -> ClaimVerdict:
    """Return the verdict by the table at the top of the module."""
    if not statements or INCONCLUSIVE in (*statements, control, limit) or FAIL in (control, limit):
        return ClaimVerdict.INCONCLUSIVE
    if PASS not in statements:
        return ClaimVerdict.OUTDATED if before else ClaimVerdict.WRONG
    if FAIL in statements or limit is PASS:
        return ClaimVerdict.DEPENDS_ON_SETTING
    return ClaimVerdict.RIGHT


STATEMENTS = [
    (),
    *itertools.product(PartOutcome, repeat=1),
    *itertools.product(PartOutcome, repeat=2),
]
OTHER: list[PartOutcome | None] = [None, *PartOutcome]


def test_every_combination_of_outcomes_has_its_verdict() -> None:
    for statements, control, limit, before in itertools.product(
        STATEMENTS, OTHER, OTHER, (None, "2.8")
    ):
        parts = [part(Role.STATEMENT, one) for one in statements]
        parts += [part(Role.CONTROL, control)] if control else []
        parts += [part(Role.LIMIT, limit)] if limit else []
        for order in (parts, parts[::-1]):
            assert judge(order, before).verdict is expected(statements, control, limit, before), (
                statements,
                control,
                limit,
                before,
            )


@given(parts_of_any_kind, st.data(), releases)
def test_unknown_is_never_a_pass(
    parts: list[VerdictPart], data: st.DataObject, before: str | None
) -> None:
    spoilt = data.draw(
        st.sampled_from(
            [
                *(part(role, INCONCLUSIVE) for role in Role),
                part(Role.CONTROL, FAIL),
                part(Role.LIMIT, FAIL),
            ]
        )
    )
    at = data.draw(st.integers(0, len(parts)))
    assert judge([*parts[:at], spoilt, *parts[at:]], before).verdict is ClaimVerdict.INCONCLUSIVE


@given(parts_of_any_kind, releases)
def test_without_a_statement_the_verdict_is_inconclusive(
    parts: list[VerdictPart], before: str | None
) -> None:
    assert (
        judge([one for one in parts if one.role is not Role.STATEMENT], before).verdict
        is ClaimVerdict.INCONCLUSIVE
    )


@given(parts_of_any_kind, releases)
def test_a_verdict_gives_its_reason(parts: list[VerdictPart], before: str | None) -> None:
    assert judge(parts, before).because


def test_the_reason_names_the_deciding_part() -> None:
    kept, broken = (
        part(Role.STATEMENT, PASS, "kept", "0 lost"),
        part(Role.STATEMENT, FAIL, "broken", "7 lost"),
    )
    limit = part(Role.LIMIT, PASS, "not with one replica", "9 lost")
    assert judge([kept]).because == "kept: 0 lost"
    assert judge([broken]).because == "not true: “broken” (7 lost)"
    assert judge([broken], "2.8").because == "before 2.8; no longer true: “broken” (7 lost)"
    assert (
        judge([kept, broken, limit]).because
        == "not true: “broken” (7 lost); the other statement is true;"
        " but not with one replica: 9 lost"
    )
    assert judge([kept, limit]).because == "true, but not with one replica: 9 lost"
    assert judge([kept, kept, broken]).because.endswith("; the other 2 statements are true")
    assert (
        judge([kept, part(Role.CONTROL, FAIL, "the leader died", "it lived")]).because
        == "the leader died: it lived"
    )
    assert judge([]).because == "no statement of the claim was tested"


def about(client: str, result: PartOutcome, statement: str = "it holds") -> VerdictPart:
    return VerdictPart(Role.STATEMENT, statement, result, "seen", client)


def test_a_statement_that_is_true_for_one_client_only_depends_on_the_client() -> None:
    judged = judge([about("Java", PASS), about("librdkafka", FAIL)])
    assert judged.verdict is ClaimVerdict.DEPENDS_ON_CLIENT
    assert judged.because == "not true: “librdkafka: it holds” (seen); the other statement is true"
    both = [about("Java", FAIL), about("librdkafka", FAIL)]
    assert judge(both).verdict is ClaimVerdict.WRONG
    # another statement passes for the other client, but this one is refuted for both
    assert judge([*both, about("Java", PASS, "another")]).verdict is (
        ClaimVerdict.DEPENDS_ON_SETTING
    )


def test_a_limit_says_what_the_claim_depends_on() -> None:
    holds = part(Role.STATEMENT, PASS)
    for on, expected_verdict in DEPENDS.items():
        limit = VerdictPart(Role.LIMIT, "not always", PASS, "seen", on=on)
        assert judge([holds, limit]).verdict is expected_verdict
    # the most surprising dependence is the verdict
    limits = [VerdictPart(Role.LIMIT, "not always", PASS, "seen", on=on) for on in Dependence]
    assert judge([holds, *reversed(limits[1:])]).verdict is ClaimVerdict.DEPENDS_ON_RELEASE
    # but a claim that depends on the client often depends on its release too
    assert judge([holds, *reversed(limits)]).verdict is ClaimVerdict.DEPENDS_ON_CLIENT_AND_RELEASE


def test_an_unknown_outcome_is_inconclusive() -> None:
    assert [outcome(holds) for holds in (True, False, None)] == [PASS, FAIL, INCONCLUSIVE]
