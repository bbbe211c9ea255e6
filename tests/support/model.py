"""A model of all of instep: one event at a time, in log order, with dictionaries for tables.

It shares no code with instep. Tests run the same log through both and compare all results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Place = tuple[int, int]

COLUMNS = {
    "print_status": "status",
    "print_version": "version",
    "pages": "pages",
    "place": "place",
    "note": "note",
    "slot": "slot",
}
PLACE_CHARACTERS = 20
UNLUCKY_PAGES = 13
QUEUED_PAGES_MAX = 50
TRANSITIONS = {
    "CREATED": ["QUEUED", "FAILED"],
    "QUEUED": ["PRINTING", "FAILED"],
    "PRINTING": ["PRINTED", "FAILED"],
    "FAILED": ["QUEUED"],
}
STATUSES = {*TRANSITIONS, "PRINTED"}


@dataclass(frozen=True)
class Fact:
    """A record, as the model sees it.

    Without a body, it is a delete. `unreadable` is the reason if it cannot be decoded.
    """

    place: Place
    document: str
    body: dict[str, Any] | None = None
    unreadable: str | None = None


@dataclass
class Model:
    """The tables, and how events and decisions change them."""

    ordered: bool
    missing: str
    constrained: bool
    rows: dict[str, dict[str, Any]]
    columns: dict[str, str] = field(default_factory=lambda: dict(COLUMNS))
    history: dict[Place, str] = field(default_factory=dict)
    dead: dict[Place, str] = field(default_factory=dict)
    parked: dict[str, list[tuple[Place, str]]] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    decisions: list[tuple[Place, str, str]] = field(default_factory=list)
    facts: dict[Place, Fact] = field(default_factory=dict)

    # --- the flow ---------------------------------------------------------------------------------

    def apply(self, fact: Fact) -> None:
        self.facts[fact.place] = fact
        reason = self._unreadable(fact)
        if reason:
            self.dead[fact.place] = reason
        else:
            self.history[fact.place] = self._take(fact)

    def _unreadable(self, fact: Fact) -> str | None:
        if (
            fact.unreadable is None
            and isinstance((fact.body or {}).get("note"), list)
            and "note" in self.columns
        ):
            return "WRONG_TYPE"
        return fact.unreadable

    def _take(self, fact: Fact) -> str:
        """Return the verdict on an event.

        An event that is refused, or whose document is parked already, waits.
        """
        refusal = "WAITS_BEHIND" if fact.document in self.parked else None
        verdict = "" if refusal else self._settle(fact)
        refusal = refusal or (verdict if verdict.isupper() else None)
        if refusal is None:
            return verdict
        # in log order
        self.parked[fact.document] = sorted(
            [*self.parked.get(fact.document, []), (fact.place, refusal)]
        )
        return "parked"

    def _settle(self, fact: Fact) -> str:
        """Return a verdict in lower case, or a reason in capitals."""
        row = self.rows.get(fact.document)
        known = row["print_version"] if row else self.deleted.get(fact.document)
        if fact.body is None:
            if row is None:
                return "ignored"
            del self.rows[fact.document]
            if self.ordered and known is not None:
                self.deleted[fact.document] = known
            return "applied"
        if self.ordered and known is not None and fact.body["version"] <= known:
            return "repeated" if fact.body["version"] == known else "stale"
        if row is None and self.missing != "insert":
            return "ignored" if self.missing == "ignore" else "DOCUMENT_MISSING"
        return self._refusal(fact.body, row) or self._write(fact, row)

    def _refusal(self, body: dict[str, Any], row: dict[str, Any] | None) -> str | None:
        if len(body.get("place") or "") > PLACE_CHARACTERS:
            return "TEXT_TOO_LONG"
        if body["status"] not in STATUSES:
            return "STATUS_UNKNOWN"
        before = row["print_status"] if row else None
        if before not in (None, body["status"]) and body["status"] not in TRANSITIONS.get(
            before, []
        ):
            return "TRANSITION_NOT_ALLOWED"
        return None

    def _write(self, fact: Fact, row: dict[str, Any] | None) -> str:
        body = fact.body or {}
        after = dict(row or dict.fromkeys(COLUMNS))
        after.update({column: body[name] for column, name in self.columns.items() if name in body})
        if self.constrained and (
            _breaks_constraints(after) or self._takes_a_slot(fact.document, after["slot"])
        ):
            return "REFUSED_BY_TARGET"
        self.rows[fact.document] = after
        return "applied"

    def _takes_a_slot(self, document: str, slot: int | None) -> bool:
        """Return whether another document has the slot: only one may have it at a time."""
        return slot is not None and any(
            row["slot"] == slot for other, row in self.rows.items() if other != document
        )

    def gone(self) -> dict[str, int]:
        """Return the deleted documents that a late event must not restore."""
        return {
            document: order for document, order in self.deleted.items() if document not in self.rows
        }

    # --- what people decide -----------------------------------------------------------------------

    def skip(self, document: str) -> None:
        place, reason = self.parked[document].pop(0)
        if not self.parked[document]:
            del self.parked[document]
        self.history[place] = "skipped"
        self.decisions.append((place, "skipped", reason))

    def release(self, document: str) -> None:
        waiting = self.parked.pop(document)
        while waiting:
            place, _ = waiting[0]
            verdict = self._settle(self.facts[place])
            if verdict.isupper():
                self.parked[document] = [(place, verdict), *waiting[1:]]
                return
            self.history[place] = "released" if verdict == "applied" else verdict
            self.decisions.append((place, "released", verdict))
            waiting.pop(0)

    def replay(self) -> None:
        """Replay every dead letter, in log order. Those that were overtaken meanwhile are stale."""
        letters = [self.facts[place] for place in sorted(self.dead)]
        overtaken = {fact.place for fact in letters if not self.ordered and any(self._later(fact))}
        for fact in letters:
            reason = self._unreadable(fact)
            if reason:
                self.decisions.append((fact.place, "replayed", reason))
                continue
            del self.dead[fact.place]
            verdict = "stale" if fact.place in overtaken else self._take(fact)
            self.history[fact.place] = verdict
            waits = dict(self.parked.get(fact.document, []))
            self.decisions.append(
                (fact.place, "replayed", waits[fact.place] if verdict == "parked" else verdict)
            )

    def _later(self, fact: Fact) -> Iterator[bool]:
        """Yield, for each record, whether it is a processed later event of the same document."""
        aside = {*self.dead, *(place for waiting in self.parked.values() for place, _ in waiting)}
        aside |= {place for place, action, _ in self.decisions if action == "skipped"}
        for place, other in self.facts.items():
            yield (
                place[0] == fact.place[0]
                and place > fact.place
                and other.document == fact.document
                and place not in aside
            )


def _breaks_constraints(row: dict[str, Any]) -> bool:
    pages = row["pages"] or 0
    return pages == UNLUCKY_PAGES or (row["print_status"] == "QUEUED" and pages > QUEUED_PAGES_MAX)
