"""Test the comparison on every pair of sides."""

from __future__ import annotations

from typing import Any

import pytest

from instep.document import comparison, folding
from instep.document.comparison import DocumentFinding, DocumentState, Question
from instep.document.folding import ABSENT, FoldedState, FoldStep, Shape
from instep.document.guard import Rules

RULES = Rules(ordered=True)
WHOLE = Question(rules=RULES, whole=True, guard=1)
CUT = Question(rules=RULES, whole=False, guard=1)
STRICT = Question(rules=RULES, whole=True, guard=1, signs=(0, 1))
BY_GUARD = Question(rules=RULES, whole=True, guard=1, signs=(1,))
CUT_BY_GUARD = Question(rules=RULES, whole=False, guard=1, signs=(1,))
KEEPING = Question(rules=Rules(ordered=True, missing="ignore"), whole=True, guard=1)


def state(*values: Any, order: int = 2) -> FoldedState:
    shape = Shape.PARTIAL if ABSENT in values else Shape.FULL
    return folding.fold([FoldStep(0, 0, 0, order, shape, folding.pack(values))], RULES)


def deleted(order: int | None = None) -> FoldedState:
    created = FoldStep(0, 0, 0, order, Shape.FULL, folding.pack(["A", str(order)]))
    deleted = FoldStep(0, 1, 0, None, Shape.DELETE, None)
    return folding.fold([*([created] if order is not None else []), deleted], RULES)


def judged(
    asked: Question, expected: FoldedState | None, row: list[Any] | None, **further: Any
) -> DocumentFinding | None:
    return comparison.compare(
        asked, expected, None if row is None else folding.pack(row), **further
    )


@pytest.mark.parametrize(
    ("asked", "expected", "row", "kind", "columns"),
    [
        (WHOLE, state("A", "2"), ["A", "2"], DocumentState.IN_STEP, ()),
        (WHOLE, state("A", "2"), ["B", "2"], DocumentState.DIFFERENT, (0,)),
        (WHOLE, state("A", "2"), ["A", "3"], DocumentState.DIFFERENT, (1,)),
        (WHOLE, state("A", "2"), [None, None], DocumentState.DIFFERENT, (0, 1)),
        (WHOLE, state(None, "2"), ["A", "2"], DocumentState.DIFFERENT, (0,)),
        (WHOLE, state(None, "2"), [None, "2"], DocumentState.IN_STEP, ()),
        (WHOLE, state(ABSENT, "2"), ["anything", "2"], DocumentState.IN_STEP, ()),
        (WHOLE, state("A", "2"), None, DocumentState.MISSING, ()),
        (WHOLE, None, ["A", "2"], DocumentState.NOT_OURS, ()),
        (WHOLE, None, [None, None], DocumentState.NOT_OURS, ()),
        (STRICT, None, ["A", None], DocumentState.EXTRA, ()),
        (STRICT, None, [None, None], DocumentState.NOT_OURS, ()),
        (BY_GUARD, None, ["A", "2"], DocumentState.EXTRA, ()),
        (BY_GUARD, None, ["A", None], DocumentState.NOT_OURS, ()),
        (WHOLE, deleted(), ["A", "2"], DocumentState.EXTRA, ()),
        (WHOLE, deleted(2), ["A", "2"], DocumentState.EXTRA, ()),
        (WHOLE, deleted(2), [None, None], DocumentState.EXTRA, ()),
        (KEEPING, deleted(2), [None, None], DocumentState.IN_STEP, ()),
        (KEEPING, deleted(2), ["A", "2"], DocumentState.EXTRA, ()),
        (KEEPING, state("A", "2"), None, DocumentState.IN_STEP, ()),
        (KEEPING, state("A", "2"), ["B", "2"], DocumentState.DIFFERENT, (0,)),
        (CUT_BY_GUARD, None, ["A", "2"], DocumentState.NOT_IN_LOG, ()),
        (CUT_BY_GUARD, None, ["A", None], DocumentState.NOT_OURS, ()),
        (CUT, state("A", "2"), ["B", "9"], DocumentState.NOT_IN_LOG, ()),
        (CUT, state("A", "2"), ["B", "2"], DocumentState.DIFFERENT, (0,)),
        (CUT, deleted(2), ["B", "9"], DocumentState.NOT_IN_LOG, ()),
        (CUT, deleted(2), ["B", "2"], DocumentState.EXTRA, ()),
        (CUT, state("A", "2"), None, DocumentState.MISSING, ()),
    ],
)
def test_documents_are_classified(
    asked: Question,
    expected: FoldedState | None,
    row: Any,
    kind: DocumentState,
    columns: tuple[int, ...],
) -> None:
    finding = judged(asked, expected, row)
    assert finding is not None
    assert (finding.kind, finding.columns) == (kind, columns)


@pytest.mark.parametrize(
    ("asked", "row", "kind"),
    [
        (WHOLE, ["A", "2"], DocumentState.EXTRA),
        (WHOLE, ["A", None], DocumentState.EXTRA),
        (WHOLE, [None, None], DocumentState.NOT_OURS),
        (CUT_BY_GUARD, ["A", None], DocumentState.NOT_IN_LOG),
    ],
)
def test_a_row_that_the_pipeline_wrote_is_classified(
    asked: Question, row: list[Any], kind: DocumentState
) -> None:
    finding = judged(asked, None, row, recorded=True)
    assert finding is not None
    assert finding.kind is kind


@pytest.mark.parametrize("expected", [None, deleted(), deleted(3)])
def test_a_document_on_neither_side_is_no_finding(expected: FoldedState | None) -> None:
    assert judged(WHOLE, expected, None) is None


@pytest.mark.parametrize(
    ("further", "kind"),
    [({"parked": True}, DocumentState.PARKED), ({"waiting": True}, DocumentState.BEHIND)],
)
def test_a_difference_is_explained(further: dict[str, bool], kind: DocumentState) -> None:
    for expected, row, seems in (
        (state("A", "2"), None, DocumentState.MISSING),
        (state("A", "2"), ["B", "2"], DocumentState.DIFFERENT),
        (None, ["B", "2"], DocumentState.EXTRA),
    ):
        finding = judged(WHOLE, expected, row, **further)
        assert finding is not None
        assert (finding.kind, finding.seems) == (kind, seems)
    assert judged(WHOLE, state("A", "2"), ["A", "2"], **further) == comparison.IN_STEP


def test_a_document_deleted_before_the_log_begins_is_recognised() -> None:
    for forgotten, kind in (
        (5, DocumentState.NOT_IN_LOG),
        (1, DocumentState.MISSING),
        (None, DocumentState.MISSING),
    ):
        finding = judged(CUT, state("A", "2"), None, forgotten=forgotten)
        assert finding is not None
        assert finding.kind is kind
    finding = judged(WHOLE, state("A", "2"), None, forgotten=5)
    assert finding is not None
    assert finding.kind is DocumentState.MISSING


def test_the_order_value_of_a_row_is_read() -> None:
    timed = Question(rules=RULES, whole=True, guard=0, guard_is_time=True)
    assert comparison.order_of(WHOLE, ["A", "7"]) == 7
    assert comparison.order_of(WHOLE, ["A", None]) is None
    assert comparison.order_of(WHOLE, ["A", "what"]) is None
    assert comparison.order_of(timed, ["1970-01-01T00:00:01+00:00"]) == 1_000_000
    assert comparison.order_of(timed, ["0000-00-00"]) is None
    assert comparison.order_of(Question(rules=Rules(ordered=False), whole=True), ["A"]) is None
