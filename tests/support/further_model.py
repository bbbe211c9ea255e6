"""A pipeline with three tables as a plain model: one event at a time, on dictionaries."""

from __future__ import annotations

from typing import Any

import msgspec

LIMIT = 100  # of the column `amount`, in each table that has the constraint


class Change(msgspec.Struct, frozen=True):
    """One event; a delete has no status."""

    document: str
    version: int = 0
    amount: int = 0
    status: str | None = None

    @property
    def is_delete(self) -> bool:
        return self.status is None


class FurtherModel:
    """The document's row, a line for each change, and the row with the highest amount.

    `every` lets the lines have their own order, `deleting` lets a delete remove them.
    `limited` are the tables with a constraint.
    """

    def __init__(self, *, every: bool, deleting: bool, limited: frozenset[str]) -> None:
        self.every, self.deleting, self.limited = every, deleting, limited
        self.rows: dict[str, tuple[Any, ...]] = {}
        self.lines: dict[tuple[str, int], tuple[Any, ...]] = {}
        self.highest: dict[str, tuple[Any, ...]] = {}
        self.kept_versions: dict[str, int] = {}  # of deleted documents
        self.parked: set[str] = set()

    def apply(self, change: Change) -> str:
        """Apply one event; return its verdict."""
        document = change.document
        if document in self.parked:
            return "parked"
        known = self.kept_versions.get(document)
        if document in self.rows:
            known = self.rows[document][0]
        if change.is_delete:
            return self._delete(document, known)
        verdict = "applied"
        if known is not None and change.version <= known:
            verdict = "repeated" if change.version == known else "stale"
        if self._is_refused(change, verdict):
            self.parked.add(document)
            return "parked"
        if verdict == "applied":
            self.rows[document] = (change.version, change.status, change.amount)
        if self._adds_line(change, verdict):
            self.lines[document, change.version] = (change.status, change.amount)
        if self._is_highest(change, verdict):
            self.highest[document] = (change.amount, change.status)
        return verdict

    def _adds_line(self, change: Change, verdict: str) -> bool:
        if not self.every:
            return verdict == "applied"
        stored = (change.document, change.version) in self.lines
        return not stored and (verdict == "applied" or change.document in self.rows)

    def _is_highest(self, change: Change, verdict: str) -> bool:
        stored = self.highest.get(change.document)
        taken = verdict == "applied" or change.document in self.rows
        return taken and (stored is None or change.amount > stored[0])

    def _is_refused(self, change: Change, verdict: str) -> bool:
        if change.amount < LIMIT:
            return False
        return (
            ("rows" in self.limited and verdict == "applied")
            or ("lines" in self.limited and self._adds_line(change, verdict))
            or ("highest" in self.limited and self._is_highest(change, verdict))
        )

    def _delete(self, document: str, known: int | None) -> str:
        if known is not None:
            self.kept_versions[document] = known
        if document not in self.rows:
            return "ignored"
        del self.rows[document]
        self.highest.pop(document, None)
        if self.deleting:
            self.lines = {key: line for key, line in self.lines.items() if key[0] != document}
        return "applied"
