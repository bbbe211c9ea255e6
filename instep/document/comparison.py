"""A document as the log says it should be, against the row that the table holds: in step, or how not.

A difference is real unless something explains it: the document is parked, or events of it still wait in the log. What a log
that was cut (retention, compaction, a later start) cannot say is not judged.

A row that the log does not name is judged only if the pipeline wrote it. Something must show that: a record of instep's own
(`recorded`), or a value in one of the columns in `Question.signs`. All other rows are not ours: they belong to the application,
are counted and never compared. A row whose mapped columns are all null holds nothing of the pipeline, so it is not ours either.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from instep.document import folding, kinds
from instep.document.folding import ABSENT, FoldedState, Values
from instep.document.guard import Rules
from instep.document.reasons import Unfit


class DocumentState(StrEnum):
    """How a document stands. The first three are real differences; the next two are explained ones."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    PARKED = "parked"
    BEHIND = "behind"
    NOT_IN_LOG = "not_in_log"
    NOT_OURS = "not_ours"
    IN_STEP = "in_step"


REAL = (DocumentState.MISSING, DocumentState.EXTRA, DocumentState.DIFFERENT)


class Question(msgspec.Struct, frozen=True):
    """What the judgement needs besides the two sides."""

    rules: Rules
    whole: bool  # the log still holds every event of the pipeline
    guard: int | None = None  # which of the columns keeps the order value
    guard_is_time: bool = False
    signs: tuple[int, ...] = ()  # columns in which a value shows that the pipeline wrote the row


class DocumentFinding(msgspec.Struct, frozen=True):
    """One document: how it stands, and in which way (`seems`) where something explains it."""

    kind: DocumentState
    seems: DocumentState
    columns: tuple[int, ...] = ()


IN_STEP = DocumentFinding(DocumentState.IN_STEP, DocumentState.IN_STEP)
NOT_IN_LOG = DocumentFinding(DocumentState.NOT_IN_LOG, DocumentState.NOT_IN_LOG)
NOT_OURS = DocumentFinding(DocumentState.NOT_OURS, DocumentState.NOT_OURS)


def compare(
    asked: Question,
    expected: FoldedState | None,
    found: bytes | None,
    *,
    forgotten: int | None = None,
    parked: bool = False,
    waiting: bool = False,
    recorded: bool = False,
) -> DocumentFinding | None:
    """How a document stands; None when neither side has it.

    `forgotten` is the order value that instep_deleted keeps of it. `recorded` says that instep's tables know the document as
    one that the pipeline has written.
    """
    finding = _compare(asked, expected, found, forgotten, ours=recorded or parked or waiting)
    if finding is None or finding.kind not in REAL:
        return finding
    if parked:
        return msgspec.structs.replace(finding, kind=DocumentState.PARKED)
    if waiting:
        return msgspec.structs.replace(finding, kind=DocumentState.BEHIND)
    return finding


def _compare(
    asked: Question,
    expected: FoldedState | None,
    found: bytes | None,
    forgotten: int | None,
    *,
    ours: bool,
) -> DocumentFinding | None:
    if expected is None or not expected.present:
        return (
            None
            if found is None
            else _unexpected(asked, expected, folding.unpack(found), ours=ours)
        )
    if found is None:
        return _absent(asked, expected, forgotten)
    if found == expected.line:
        return IN_STEP
    row = folding.unpack(found)
    columns = tuple(
        number
        for number, (old, new) in enumerate(zip(row, expected.values, strict=True))
        if new not in (ABSENT, old)
    )
    if not columns:
        return IN_STEP
    return (
        NOT_IN_LOG
        if _beyond_the_log(asked, expected, row)
        else DocumentFinding(DocumentState.DIFFERENT, DocumentState.DIFFERENT, columns)
    )


def _absent(asked: Question, expected: FoldedState, forgotten: int | None) -> DocumentFinding:
    if asked.rules.missing != "insert":
        return IN_STEP
    cut_away = (
        not asked.whole
        and forgotten is not None
        and (expected.order is None or forgotten >= expected.order)
    )
    return NOT_IN_LOG if cut_away else DocumentFinding(DocumentState.MISSING, DocumentState.MISSING)


def _unexpected(
    asked: Question, expected: FoldedState | None, row: Values, *, ours: bool
) -> DocumentFinding:
    untouched = all(value is None for value in row)
    if expected is None or not expected.deleted:
        if untouched or not (ours or any(row[number] is not None for number in asked.signs)):
            return NOT_OURS
        return (
            DocumentFinding(DocumentState.EXTRA, DocumentState.EXTRA) if asked.whole else NOT_IN_LOG
        )
    if untouched and asked.rules.missing != "insert":
        return IN_STEP  # made again by the target itself
    return (
        NOT_IN_LOG
        if _beyond_the_log(asked, expected, row)
        else DocumentFinding(DocumentState.EXTRA, DocumentState.EXTRA)
    )


def _beyond_the_log(asked: Question, expected: FoldedState, row: Values) -> bool:
    """Whether the row is later than anything a cut log can still say."""
    stored = order_of(asked, row)
    return (
        not asked.whole
        and stored is not None
        and expected.order is not None
        and stored > expected.order
    )


def order_of(asked: Question, row: Values) -> int | None:
    """The order value that a row holds; None for none, or for what is no order value."""
    text = row[asked.guard] if asked.guard is not None else None
    if not isinstance(text, str):
        return None
    try:
        return kinds.micros(kinds.instant(text)) if asked.guard_is_time else int(text)
    except (ValueError, Unfit):
        return None
