"""The guard's model: one event at a time, on a plain dictionary."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import UNSET

from instep.document.decoding import Event
from instep.document.guard import DocumentId, Rules, Values, Verdict

Row = dict[str, Any]


COLUMNS = ("x", "y", "z")


def bringing(columns: Collection[str] = COLUMNS, /, **named: Any) -> Values:
    """Return the values of an event that has these fields."""
    return tuple(named.get(column, UNSET) for column in columns)


class Model:
    """A table and what was deleted from it, changed by one event at a time."""

    def __init__(
        self,
        rules: Rules,
        rows: dict[DocumentId, Row],
        deleted: dict[DocumentId, int],
        columns: Collection[str] = COLUMNS,
    ) -> None:
        self.rules, self.rows, self.deleted, self.columns = (
            rules,
            dict(rows),
            dict(deleted),
            columns,
        )
        self.waiting: dict[DocumentId, list[int]] = {}

    def order_of(self, document: DocumentId) -> int | None:
        if document in self.rows:
            return self.rows[document].get("order")
        return self.deleted.get(document)

    def apply(self, event: Event) -> Verdict:
        if event.document in self.waiting:
            return self.park(event)
        known = self.order_of(event.document)
        if self.rules.ordered and event.order is not None and known is not None:
            if event.order < known:
                return Verdict.STALE
            if event.order == known and not self.rules.order_is_time:
                return Verdict.REPEATED
        if event.values is None:
            kept = event.order if event.order is not None else known
            if self.rules.ordered and kept is not None:
                self.deleted[event.document] = kept
            return (
                Verdict.APPLIED
                if self.rows.pop(event.document, None) is not None
                else Verdict.IGNORED
            )
        if event.document not in self.rows:
            if self.rules.missing == "ignore":
                return Verdict.IGNORED
            if self.rules.missing == "park":
                return self.park(event)
        row = self.rows.get(event.document, {})
        if event.refusal or not self.may_follow(row.get("status"), event.status):
            return self.park(event)
        self.rows[event.document] = {
            **row,
            **self.named(event.values),
            "order": event.order,
            "status": event.status,
        }
        return Verdict.APPLIED

    def named(self, values: Values) -> Row:
        return {
            name: value
            for name, value in zip(self.columns, values, strict=True)
            if value is not UNSET
        }

    def may_follow(self, before: str | None, after: str | None) -> bool:
        if not self.rules.transitions:
            return True
        declared = dict(self.rules.transitions.followers)
        known = set(declared) | {name for following in declared.values() for name in following}
        return after in known and (before in (None, after) or after in declared.get(before, ()))

    def park(self, event: Event) -> Verdict:
        self.waiting.setdefault(event.document, []).append(event.offset)
        return Verdict.PARKED


def named(values: Values) -> Row:
    return {name: value for name, value in zip(COLUMNS, values, strict=True) if value is not UNSET}
