"""What a log says that each document should be: the guard's model, folded over a stream that is sorted by document.

`pipeline/reconcile.py` recomputes a whole topic with this. Each event is a `Step`, with its values as canonical texts
(`canonical.py`) in one packed line; a `State` is folded from the steps of one document in one partition, in log order, and
holds one line of values however many steps there were. `Run` thins the steps of one stretch of a partition before they
are sorted, and drops only what cannot matter whatever came before the stretch:

- a step that is stale or repeated against an earlier one stays so: a document's order value never falls;
- what came before an event that brings every column, or before a delete, is gone; but a delete without an order value
  takes effect whatever is stored, so the last one stays, and a delete remembers the highest order value before it.

Where a document's events lie in several partitions (the topic was given more), the states are joined by their order
values where these can tell, else by the time of their last records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from instep.document import guard
from instep.document.guard import Rules, Verdict

ABSENT: Any = 0  # stands in a packed line for a column that no event has brought

Values = list[Any]  # per column: its canonical text, None for null, ABSENT


class Shape(IntEnum):
    """What a step does to its document."""

    DELETE = 0
    PARTIAL = 1
    FULL = 2
    CLEAR = 4  # a delete that empties the columns of a document that is there, and leaves its order value


class FoldStep(msgspec.Struct, frozen=True, gc=False):
    """One event on its way to be folded. `floor` is the highest order value among steps that a delete stands for."""

    partition: int
    offset: int
    timestamp_ms: int
    order: int | None
    shape: Shape
    values: bytes | None
    floor: int | None = None


def pack(values: Sequence[Any]) -> bytes:
    """Values as one line; equal values make equal lines."""
    return msgspec.json.encode(values)


def unpack(line: bytes) -> Values:
    values: Values = msgspec.json.decode(line)
    return values


class FoldedRun:
    """The steps of one document in one stretch of a partition, thinned as they come."""

    __slots__ = ("_high", "steps")

    def __init__(self) -> None:
        self._high: int | None = None
        self.steps: list[FoldStep] = []

    def add(self, step: FoldStep, rules: Rules) -> None:
        if not rules.ordered:
            if step.shape not in (Shape.PARTIAL, Shape.CLEAR):
                self.steps.clear()
            self.steps.append(step)
            return
        if guard.judge(step.order, self._high, rules.order_is_time) is not Verdict.APPLIED:
            return
        if step.shape is Shape.DELETE and step.order is None:
            self.steps = [msgspec.structs.replace(step, floor=self._high)]
        elif step.shape is Shape.CLEAR:
            # one without an order value takes effect whatever is stored, and makes those before it needless
            kept = (
                self.steps
                if step.order is not None
                else [known for known in self.steps if known.shape is not Shape.CLEAR]
            )
            self.steps = [*kept, step]
        elif step.shape is Shape.PARTIAL:
            self.steps.append(step)
        else:
            deletes = [
                known for known in self.steps if known.shape is Shape.DELETE and known.order is None
            ]
            clears = [known for known in self.steps if known.shape is Shape.CLEAR]
            self.steps = [*deletes[-1:], *clears, step]
        if step.shape is not Shape.CLEAR:
            self._high = _higher(self._high, step.order)


class FoldedState:
    """One document as the steps so far leave it. Not there when the log does not say, or says that it was deleted."""

    __slots__ = ("_line", "_values", "deleted", "last", "order")

    def __init__(self) -> None:
        self.order: int | None = None
        self.deleted = False  # a delete was among the steps: nothing from before it is left
        self.last: FoldStep | None = None  # the last step that took effect
        self._line: bytes | None = None
        self._values: Values | None = None

    @property
    def present(self) -> bool:
        return self._line is not None or self._values is not None

    @property
    def line(self) -> bytes | None:
        """The values as one line, None when the document is not there."""
        if self._line is None and self._values is not None:
            self._line = pack(self._values)
        return self._line

    @property
    def values(self) -> Values:
        """The values; only of a document that is there."""
        if self._values is None:
            assert self._line is not None
            self._values = unpack(self._line)
        return self._values

    def apply(self, step: FoldStep, rules: Rules) -> None:
        """One event, as the guard treats it."""
        if (
            rules.ordered
            and guard.judge(step.order, self.order, rules.order_is_time) is not Verdict.APPLIED
        ):
            return
        if step.shape is Shape.CLEAR:
            if self.present:
                self.last = step
                self._values, self._line = _merged(self.values, unpack(step.values or b"[]")), None
            return
        self.last = step
        if step.shape is Shape.DELETE:
            self.order = _higher(self.order, step.floor) if step.order is None else step.order
            self.deleted = True
            self._line = self._values = None
            return
        assert step.values is not None
        if step.shape is Shape.FULL or not self.present:
            self._line, self._values = step.values, None
        else:
            self._values, self._line = _merged(self.values, unpack(step.values)), None
        if rules.ordered:
            self.order = step.order

    def follow(self, later: FoldedState, rules: Rules) -> None:
        """What became of the document in another partition comes on top of this."""
        if (
            rules.ordered
            and later.order is not None
            and self.order is not None
            and later.order < self.order
        ):
            # behind in order: of it, only a delete without an order value would have taken effect
            if later.deleted and not later.present:
                self._line = self._values = None
                self.deleted, self.last = True, later.last
            return
        if later.deleted or not self.present:
            self._line, self._values = later.line, None
        elif later.present:
            self._values, self._line = _merged(self.values, later.values), None
        self.deleted = self.deleted or later.deleted
        self.order = _higher(self.order, later.order)
        self.last = later.last


def joined(states: Sequence[FoldedState], rules: Rules) -> FoldedState:
    """One state from those of a document's partitions."""
    if len(states) == 1:
        return states[0]
    told = rules.ordered and all(state.order is not None and not state.deleted for state in states)
    ranked = sorted(states, key=lambda state: _rank(state, told))
    first = FoldedState()
    for state in ranked:
        first.follow(state, rules)
    return first


def fold(steps: Iterable[FoldStep], rules: Rules) -> FoldedState:
    """All steps of one document, sorted by partition and offset."""
    states: list[FoldedState] = []
    partition = None
    for step in steps:
        if step.partition != partition:
            partition = step.partition
            states.append(FoldedState())
        states[-1].apply(step, rules)
    return joined(states, rules) if states else FoldedState()


def _rank(state: FoldedState, told: bool) -> tuple[int, int]:
    last = state.last
    at = (last.timestamp_ms, last.partition) if last else (-1, -1)
    return (state.order or 0, at[1]) if told else at


def _merged(values: Values, later: Values) -> Values:
    return [old if new == ABSENT else new for old, new in zip(values, later, strict=True)]


def _higher(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
