"""Compare a document as the log says it should be with the row in the table.

A difference is real unless something explains it: the document is parked, or its later events are
not applied yet. If the log is incomplete (retention, compaction, a later start), what it does not
contain is not judged.

A row of a document that is not in the log is only judged if the pipeline wrote it. Something must
show that: instep's own tables (`recorded`), or a value in one of the columns `Question.signs`. All
other rows belong to the application; they are counted and never compared. A row whose mapped
columns are all null has no values of the pipeline, so it belongs to the application too.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from instep.document import folding, kinds
from instep.document.folding import ABSENT, FoldedState, Values
from instep.document.guard import Rules
from instep.document.reasons import Unfit


class DocumentState(StrEnum):
    """The result for a document. The first three are real differences, the next two explained."""

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
    """What the comparison needs besides the two sides."""

    rules: Rules
    whole: bool  # the log still has every event of the pipeline
    guard: int | None = None  # the column of the order value, by number
    guard_is_time: bool = False
    signs: tuple[int, ...] = ()  # columns in which a value shows that the pipeline wrote the row


class DocumentFinding(msgspec.Struct, frozen=True):
    """The result for one document; `seems` is the difference that something explains."""

    kind: DocumentState
    seems: DocumentState
    columns: tuple[int, ...] = ()


IN_STEP = DocumentFinding(DocumentState.IN_STEP, DocumentState.IN_STEP)
NOT_IN_LOG = DocumentFinding(DocumentState.NOT_IN_LOG, DocumentState.NOT_IN_LOG)
NOT_OURS = DocumentFinding(DocumentState.NOT_OURS, DocumentState.NOT_OURS)


def compare(
    question: Question,
    expected: FoldedState | None,
    found: bytes | None,
    *,
    forgotten: int | None = None,
    parked: bool = False,
    waiting: bool = False,
    recorded: bool = False,
) -> DocumentFinding | None:
    """Return the result for a document; None if neither side has it.

    `forgotten` is the order value that `instep_deleted` has of it. `recorded` means that the
    pipeline has written the document, according to instep's tables.
    """
    finding = _compare(question, expected, found, forgotten, ours=recorded or parked or waiting)
    if finding is None or finding.kind not in REAL:
        return finding
    if parked:
        return msgspec.structs.replace(finding, kind=DocumentState.PARKED)
    if waiting:
        return msgspec.structs.replace(finding, kind=DocumentState.BEHIND)
    return finding


def _compare(
    question: Question,
    expected: FoldedState | None,
    found: bytes | None,
    forgotten: int | None,
    *,
    ours: bool,
) -> DocumentFinding | None:
    if expected is None or not expected.present:
        if found is None:
            return None
        return _unexpected(question, expected, folding.unpack(found), ours=ours)
    if found is None:
        return _absent(question, expected, forgotten)
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
    if _beyond_the_log(question, expected, row):
        return NOT_IN_LOG
    return DocumentFinding(DocumentState.DIFFERENT, DocumentState.DIFFERENT, columns)


def _absent(question: Question, expected: FoldedState, forgotten: int | None) -> DocumentFinding:
    if question.rules.missing != "insert":
        return IN_STEP
    # the log may have lost the delete that removed the row
    was_deleted = forgotten is not None and (expected.order is None or forgotten >= expected.order)
    if was_deleted and not question.whole:
        return NOT_IN_LOG
    return DocumentFinding(DocumentState.MISSING, DocumentState.MISSING)


def _unexpected(
    question: Question, expected: FoldedState | None, row: Values, *, ours: bool
) -> DocumentFinding:
    untouched = all(value is None for value in row)
    if expected is None or not expected.deleted:
        if untouched or not (ours or any(row[number] is not None for number in question.signs)):
            return NOT_OURS
        if not question.whole:
            return NOT_IN_LOG
        return DocumentFinding(DocumentState.EXTRA, DocumentState.EXTRA)
    if untouched and question.rules.missing != "insert":
        return IN_STEP  # the application inserted it again
    if _beyond_the_log(question, expected, row):
        return NOT_IN_LOG
    return DocumentFinding(DocumentState.EXTRA, DocumentState.EXTRA)


def _beyond_the_log(question: Question, expected: FoldedState, row: Values) -> bool:
    """Return whether the row is newer than everything in an incomplete log."""
    stored = order_of(question, row)
    return (
        not question.whole
        and stored is not None
        and expected.order is not None
        and stored > expected.order
    )


def order_of(question: Question, row: Values) -> int | None:
    """Return the order value of a row; None if it has none, or a value that is not one."""
    text = row[question.guard] if question.guard is not None else None
    if not isinstance(text, str):
        return None
    try:
        return kinds.micros(kinds.instant(text)) if question.guard_is_time else int(text)
    except (ValueError, Unfit):
        return None
