"""Compare a database with a model that is folded from the log. Pure: no servers, no clock."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.campaign.scenario import COLUMNS, FinalState
from tests.support.model import PLACE_CHARACTERS, Fact, Model, Place

SHOWN_MAX = 10


class FreeModel(Model):
    """The model without declared transitions: any status may follow any other."""

    def _refusal(self, body: dict[str, Any], row: dict[str, Any] | None) -> str | None:
        return "TEXT_TOO_LONG" if len(body.get("place") or "") > PLACE_CHARACTERS else None


@dataclass
class Judgement:
    """The number of lost, repeated and reordered events, and other differences from the model."""

    records: int = 0
    lost: int = 0
    repeated: int = 0
    reordered: int = 0
    different: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.records > 0 and not (
            self.lost or self.repeated or self.reordered or self.different
        )

    def add(self, kind: str, what: str, cases: Iterable[Any]) -> None:
        """Count these cases, and keep the first ones for the report."""
        found = list(cases)
        if found:
            setattr(self, kind, getattr(self, kind) + len(found))
            self.notes.append(
                f"{kind}: {what}: {len(found)}: {', '.join(map(str, found[:SHOWN_MAX]))}"
            )


def fact(place: Place, key: str, value: bytes | None) -> Fact:
    """Convert a record to the model's input."""
    if value is None:
        return Fact(place, key)
    try:
        return Fact(place, key, json.loads(value))
    except ValueError:
        return Fact(place, key, unreadable="NOT_JSON")


def judge(facts: list[Fact], found: FinalState, *, ordered: bool, constrained: bool) -> Judgement:
    """Judge one scenario by all committed records of its topic."""
    expected = FreeModel(ordered, "insert", constrained, {}, dict(COLUMNS))
    for one in sorted(facts, key=lambda one: one.place):
        expected.apply(one)
    judged = Judgement(len(facts))
    _judge_places(judged, expected, found)
    _judge_outcome(judged, expected, found)
    if constrained:
        _judge_writes(judged, expected, found, ordered)
    return judged


def _judge_places(judged: Judgement, expected: Model, found: FinalState) -> None:
    """Check that every record of the log has exactly one outcome, and that there are no others."""
    outcomes = Counter(
        [*((row[0], row[1]) for row in found.history), *((row[0], row[1]) for row in found.dead)]
    )
    judged.add(
        "lost", "records without an outcome", sorted(expected.facts.keys() - outcomes.keys())
    )
    judged.add(
        "repeated",
        "records with several outcomes",
        [place for place, count in outcomes.items() if count > 1],
    )
    judged.add(
        "different",
        "outcomes of records that are not in the log",
        sorted(outcomes.keys() - expected.facts.keys()),
    )


def _judge_outcome(judged: Judgement, expected: Model, found: FinalState) -> None:
    """Check that rows, verdicts, dead letters and parked events equal those of the model."""
    judged.add("lost", "rows that are missing", sorted(expected.rows.keys() - found.rows.keys()))
    judged.add(
        "different",
        "rows that should not be there",
        sorted(found.rows.keys() - expected.rows.keys()),
    )
    both = expected.rows.keys() & found.rows.keys()
    rows = [
        (name, expected.rows[name], found.rows[name])
        for name in sorted(both)
        if expected.rows[name] != found.rows[name]
    ]
    judged.add("different", "rows (document, expected, found)", rows)
    moved = _moved(expected.facts.values())
    verdicts = {(row[0], row[1]): row[3] for row in found.history if row[2] not in moved}
    wanted = {
        place: verdict
        for place, verdict in expected.history.items()
        if expected.facts[place].document not in moved
    }
    judged.add(
        "different", "verdicts (place, verdict, model or database)", _differing(wanted, verdicts)
    )
    strange = {row[3] for row in found.history if row[2] in moved} - {
        "applied",
        "stale",
        "repeated",
    }
    judged.add("different", "verdicts on documents that moved", sorted(strange))
    judged.add(
        "different",
        "dead letters",
        _differing(expected.dead, {(row[0], row[1]): row[2] for row in found.dead}),
    )
    parked = {
        place: (document, reason)
        for document, some in expected.parked.items()
        for place, reason in some
    }
    judged.add(
        "different",
        "parked events",
        _differing(parked, {(row[0], row[1]): (row[2], row[3]) for row in found.parked}),
    )


def _judge_writes(judged: Judgement, expected: Model, found: FinalState, ordered: bool) -> None:
    """Check that the audit has one write per applied event, in log order for each document.

    Without an order, a rewind writes the last event of a document again, once for each rewind; with
    an order, never.
    """
    applied = {(row[0], row[1]) for row in found.history if row[3] == "applied"}
    due: Counter[tuple[str, str | None]] = Counter()
    uids: dict[str, list[Place]] = defaultdict(list)
    for place, one in expected.facts.items():
        uid = one.body["uid"] if one.body else None
        if uid is not None:
            uids[uid].append(place)
        if place in applied:
            due[one.document, uid] += 1
    written = Counter(found.audit)
    again = 0 if ordered else found.rewinds
    judged.add(
        "lost", "applied events that no write shows", sorted((due - written).elements(), key=str)
    )
    surplus = {one: count - due[one] for one, count in written.items()}
    allowed = {one: 0 if one[1] is None or not due[one] else again for one in surplus}
    judged.add(
        "repeated",
        "writes (document, uid)",
        [one for one, count in surplus.items() if count > allowed[one]],
    )
    judged.add(
        "reordered", "writes (document, uid)", _reordered(expected, found.audit, uids, ordered)
    )


def _reordered(
    expected: Model,
    audit: list[tuple[str, str | None]],
    uids: dict[str, list[Place]],
    ordered: bool,
) -> list[tuple[str, str]]:
    """Return writes that follow a later write of the same document.

    Later by version, or by offset where there is no order.
    """
    latest: dict[str, int] = {}
    found = []
    for document, uid in audit:
        places = uids.get(uid or "", [])
        body = expected.facts[places[0]].body if places else None
        # skip deletes, and events that were sent twice: which of the two is unknown
        if uid is None or body is None or (len(places) > 1 and not ordered):
            continue
        rank = body["version"] if ordered else places[0][1]
        if rank < latest.get(document, rank):
            found.append((document, uid))
        latest[document] = max(rank, latest.get(document, rank))
    return found


def _moved(facts: Iterable[Fact]) -> set[str]:
    """Return the documents that have records in more than one partition."""
    partitions: dict[str, set[int]] = defaultdict(set)
    for one in facts:
        partitions[one.document].add(one.place[0])
    return {document for document, some in partitions.items() if len(some) > 1}


def _differing(expected: dict[Place, Any], found: dict[Place, Any]) -> list[tuple[Place, Any, str]]:
    missing = [
        (place, expected[place], "model")
        for place in expected
        if found.get(place) != expected[place]
    ]
    return sorted(
        [
            *missing,
            *(
                (place, found[place], "database")
                for place in found
                if expected.get(place) != found[place]
            ),
        ],
        key=str,
    )
