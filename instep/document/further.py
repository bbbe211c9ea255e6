"""Further tables: the rows that an event makes in them.

A pipeline may write several tables in one transaction. The key of a further table begins with the
document's id. With further key columns (`line_key`), each event with other values there makes a
row of its own, a line; without, a document has one row. Which events make rows is up to the guard
(`due_rows.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from instep.document import kinds
from instep.document.identity import Identity
from instep.document.mapping import Mapping
from instep.document.reasons import Reason, Refusal, Unfit
from instep.document.records import Event


class FurtherRows:
    """Splits the values of events among the tables of a pipeline."""

    def __init__(self, mapping: Mapping) -> None:
        self._count = start = len(mapping.fields)
        self._identity = Identity(mapping)
        self._tables: list[_Rows] = []
        for further in mapping.further:
            self._tables.append(_Rows(further, start))
            start += len(further.lines) + len(further.fields)

    def split(self, event: Event) -> Event:
        """Return the event with the values of the main table, and with its further rows.

        If it makes no row, because a key would be incomplete, it is refused.
        """
        if event.values is None:
            return event
        refusal, rows = event.refusal, []
        if refusal is None:
            id_parts = self._identity.columns(event.document)
            try:
                rows = [(table.row(event, id_parts),) for table in self._tables]
            except Unfit as unfit:
                refusal = Refusal(Reason.LINE_KEY_UNFIT, unfit.detail)
        return Event(
            event.offset,
            event.document,
            event.order,
            event.at_us,
            event.status,
            event.values[: self._count],
            refusal,
            tuple(rows) if refusal is None else (),
        )


class _Rows:
    """The rows of one further table."""

    def __init__(self, mapping: Mapping, start: int) -> None:
        self._identity = Identity(mapping)
        self._lines = mapping.lines
        self._start, self._middle = start, start + len(mapping.lines)
        self._end = self._middle + len(mapping.fields)
        guard = mapping.guard_field
        self._guard: int | None = None
        self._guard_name = mapping.guard
        if guard is not None:
            self._guard = start + (*mapping.lines, *mapping.fields).index(guard)

    def row(self, event: Event, id_parts: Sequence[Any]) -> Event:
        """Return the row of an event, whose key begins with the parts of the document's id."""
        assert event.values is not None
        document = event.document
        key = [*id_parts, *event.values[self._start : self._middle]]
        for field, value in zip(self._lines, key[len(id_parts) :], strict=True):
            _check_part(field.column.name, field.column.kind, value)
        if len(key) > 1:
            document = self._identity.joined(key)
        values = event.values[self._middle : self._end]
        order = None if self._guard is None else self._order(event.values[self._guard])
        return Event(event.offset, document, order, event.at_us, event.status, values)

    def _order(self, value: Any) -> int:
        """Return the value that the table's own guard compares, as an integer."""
        if value is None or value is UNSET:
            raise Unfit(
                Reason.LINE_KEY_UNFIT,
                f"column {self._guard_name} has the order of its table, and the event has no value"
                " for it",
            )
        return value if type(value) is int else kinds.micros(value)


def _check_part(name: str, kind: kinds.AnyKind, value: Any) -> None:
    """Raise Unfit if a value cannot be a part of a key."""
    if value is None or value is UNSET:
        raise Unfit(
            Reason.LINE_KEY_UNFIT,
            f"column {name} belongs to the key of its table, and the event has no value for it",
        )
    if isinstance(kind, kinds.Text) and kind.padded and value.endswith(" "):
        raise Unfit(
            Reason.LINE_KEY_UNFIT,
            f"column {name} belongs to the key of its table, and a CHAR column does not store the"
            " space at the end",
        )
