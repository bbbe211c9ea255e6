"""Compute what each document should be according to the log: the guard's model as a fold.

`reconcile` recomputes a whole topic with this, from a stream that is sorted by document. Each
event is a `FoldStep`, with its values as canonical texts (`canonical.py`) in one packed line. A
`FoldedState` is folded from the steps of one document in one partition, in log order, and holds
one line of values however many steps there were. Before the sort, a `FoldedRun` drops those steps
of a part of a partition that cannot matter, whatever came before that part:

- a step that is stale or repeated compared with an earlier one stays so: the order value of a
  document never decreases;
- an event that sets every column, and a delete, make the steps before them irrelevant. But a
  delete without an order value takes effect whatever is stored, so the last one is kept, and a
  delete keeps the highest order value before it.

If the events of a document are in several partitions (the topic was given more), the states are
joined by their order values where possible, else by the time of their last records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from instep.document import guard
from instep.document.guard import Rules, Verdict

ABSENT: Any = 0  # in a packed line: a column that no event has set

Values = list[Any]  # per column: its canonical text, None for null, ABSENT


class Shape(IntEnum):
    """What a step does to its document."""

    DELETE = 0
    PARTIAL = 1
    FULL = 2
    CLEAR = 4  # a delete that clears the columns of an existing row and keeps its order value


class FoldStep(msgspec.Struct, frozen=True, gc=False):
    """One event to fold. `floor` is the highest order value of the steps that a delete replaces."""

    partition: int
    offset: int
    timestamp_ms: int
    order: int | None
    shape: Shape
    values: bytes | None
    floor: int | None = None


def pack(values: Sequence[Any]) -> bytes:
    """Return values as one line; equal values make equal lines."""
    return msgspec.json.encode(values)


def unpack(line: bytes) -> Values:
    """Return the values of a line."""
    values: Values = msgspec.json.decode(line)
    return values


class FoldedRun:
    """The steps of one document in a part of a partition, without those that cannot matter."""

    __slots__ = ("_high", "steps")

    def __init__(self) -> None:
        self._high: int | None = None
        self.steps: list[FoldStep] = []

    def add(self, step: FoldStep, rules: Rules) -> None:
        """Add the next step, and drop those that it makes irrelevant."""
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
            # without an order value it takes effect whatever is stored, and replaces earlier ones
            kept = self.steps
            if step.order is None:
                kept = [earlier for earlier in kept if earlier.shape is not Shape.CLEAR]
            self.steps = [*kept, step]
        elif step.shape is Shape.PARTIAL:
            self.steps.append(step)
        else:
            deletes = [
                earlier
                for earlier in self.steps
                if earlier.shape is Shape.DELETE and earlier.order is None
            ]
            clears = [earlier for earlier in self.steps if earlier.shape is Shape.CLEAR]
            self.steps = [*deletes[-1:], *clears, step]
        if step.shape is not Shape.CLEAR:
            self._high = _higher(self._high, step.order)


class FoldedState:
    """One document after the steps so far. Absent if the log has no event of it, or a delete."""

    __slots__ = ("_line", "_values", "deleted", "last", "order")

    def __init__(self) -> None:
        self.order: int | None = None
        self.deleted = False  # one of the steps was a delete
        self.last: FoldStep | None = None  # the last step that took effect
        self._line: bytes | None = None
        self._values: Values | None = None

    @property
    def present(self) -> bool:
        """Return whether the document should have a row."""
        return self._line is not None or self._values is not None

    @property
    def line(self) -> bytes | None:
        """Return the values as one line; None if the document is absent."""
        if self._line is None and self._values is not None:
            self._line = pack(self._values)
        return self._line

    @property
    def values(self) -> Values:
        """Return the values of a document that is present."""
        if self._values is None:
            assert self._line is not None
            self._values = unpack(self._line)
        return self._values

    def apply(self, step: FoldStep, rules: Rules) -> None:
        """Apply one event as the guard does."""
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
        """Lay the state of the document in another partition over this one."""
        if (
            rules.ordered
            and later.order is not None
            and self.order is not None
            and later.order < self.order
        ):
            # older: of that partition, only a delete without an order value takes effect
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
    """Join the states of a document in several partitions."""
    if len(states) == 1:
        return states[0]
    by_order = rules.ordered and all(
        state.order is not None and not state.deleted for state in states
    )
    result = FoldedState()
    for state in sorted(states, key=lambda state: _rank(state, by_order)):
        result.follow(state, rules)
    return result


def fold(steps: Iterable[FoldStep], rules: Rules) -> FoldedState:
    """Fold all steps of one document, sorted by partition and offset."""
    states: list[FoldedState] = []
    partition = None
    for step in steps:
        if step.partition != partition:
            partition = step.partition
            states.append(FoldedState())
        states[-1].apply(step, rules)
    if not states:
        return FoldedState()
    return joined(states, rules)


def _rank(state: FoldedState, by_order: bool) -> tuple[int, int]:
    at = (-1, -1)
    if state.last:
        at = (state.last.timestamp_ms, state.last.partition)
    if by_order:
        return state.order or 0, at[1]
    return at


def _merged(values: Values, later: Values) -> Values:
    return [old if new == ABSENT else new for old, new in zip(values, later, strict=True)]


def _higher(one: int | None, other: int | None) -> int | None:
    if one is None:
        return other
    if other is None:
        return one
    return max(one, other)
