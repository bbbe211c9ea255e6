"""Compute which rows of a further table the log says a document should have.

Like `folding.py`, but for rows that single events make: the steps of a document are judged as the
main table's guard judged them, and each row is folded from the steps that wrote it. Nothing can be
dropped before the sort, because each event may have its own row.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from instep.document import due_rows, guard
from instep.document.folding import FoldedState, FoldStep, Shape
from instep.document.guard import Rules, Verdict


class RowStep(msgspec.Struct, frozen=True, array_like=True):
    """A row that one event writes: its key as text, its order value and its packed values."""

    row: str
    order: int | None
    is_partial: bool
    values: str


def pack_rows(rows: Sequence[RowStep]) -> bytes:
    """Return the rows of one event as one line."""
    return msgspec.json.encode(rows)


class FoldedRows:
    """The rows of one document after the steps so far, in one partition."""

    def __init__(self, main: Rules, further: Rules) -> None:
        self._main, self._further = main, further
        self.order: int | None = None
        self.present = False  # in the main table
        self.rows: dict[str, FoldedState] = {}

    def apply(self, step: FoldStep) -> None:
        """Apply one event, with its rows packed in `values`, as the transaction does."""
        verdict = Verdict.APPLIED
        if self._main.ordered:
            verdict = guard.judge(step.order, self.order, self._main.order_is_time)
        if step.shape in (Shape.DELETE, Shape.CLEAR):
            if verdict is Verdict.APPLIED:
                self._delete(step)
            return
        if verdict is Verdict.APPLIED:
            self.present = True
            if self._main.ordered:
                self.order = step.order
        elif not due_rows.takes(verdict, self._further, is_gone=not self.present):
            return
        for one in msgspec.json.decode(step.values or b"[]", type=list[RowStep]):
            state = self.rows.setdefault(one.row, FoldedState())
            shape = Shape.PARTIAL if one.is_partial else Shape.FULL
            state.apply(
                FoldStep(
                    step.partition,
                    step.offset,
                    step.timestamp_ms,
                    one.order,
                    shape,
                    one.values.encode(),
                ),
                self._further,
            )

    def _delete(self, step: FoldStep) -> None:
        """Apply a delete. Of a document without a row it is ignored, but its order counts."""
        is_row = step.shape is Shape.DELETE
        if is_row and step.order is not None:
            self.order = step.order
        if not self.present:
            return
        if is_row:
            self.present = False
        if self._further.deletes == "row":
            for row in self.rows:
                gone = FoldedState()
                gone.apply(msgspec.structs.replace(step, order=None, shape=Shape.DELETE), DELETING)
                self.rows[row] = gone


DELETING = Rules(ordered=False)
