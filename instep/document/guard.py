"""The guard and the reducer: what a run of events does to the documents it names.

The model is one event at a time, in log order, per document:

- an event whose order value is below the stored one is *stale* and changes nothing;
- one whose order value equals the stored one is *repeated* and changes nothing; where the order is a time, two facts may
  share an instant, and the later in the log wins;
- a delete removes the row, or clears the columns that the pipeline keeps, is ignored, or is refused, as the pipeline says;
- a delete has no order value of its own: it stands where it stands in the log, and leaves behind the highest order value
  seen, so that a late event does not bring the document back;
- without an order every event is later than those before it;
- an event for a document that the table lacks inserts it, is *ignored*, or is refused, as the pipeline says;
- an event that must not be applied (a transition that is not declared, a value that its column cannot hold) *parks* its
  document: it and every later event of the document, deletes included, wait until somebody releases or skips them.

`settle` gives the outcome of many events at once: exactly what the model gives one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET

from instep import settings
from instep.document.decoding import Event
from instep.document.identity import Id
from instep.document.reasons import Reason, Refusal
from instep.document.transitions import Transitions

Document = Id
Values = tuple[Any, ...]  # one for each mapped column; UNSET leaves it as it is


class Verdict(StrEnum):
    """What became of an event; kept in the history."""

    APPLIED = "applied"
    STALE = "stale"
    REPEATED = "repeated"
    IGNORED = "ignored"
    PARKED = "parked"


class Rules(msgspec.Struct, frozen=True):
    """How a pipeline treats events: whether they have an order, whether it is a time, what absent documents mean, which
    status may follow which."""

    ordered: bool
    order_is_time: bool = False
    missing: settings.Missing = "insert"
    transitions: Transitions = Transitions()
    deletes: settings.Deletes = "row"
    cleared: Values = ()  # what a delete writes where it clears the columns
    cleared_status: str | None = None


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A document before the batch: in the table or not, and the order value known of it (the row's or the deleted one's).

    The status is the row's, and is looked at only where transitions are declared.
    """

    present: bool
    order: int | None
    status: str | None = None


class Parked(msgspec.Struct, frozen=True, gc=False):
    """An event that has to wait, and why."""

    event: Event
    refusal: Refusal


ABSENT = Stored(present=False, order=None)
BEHIND = Refusal(Reason.WAITS_BEHIND, "an earlier event of the document is parked")
UNDELETABLE = Refusal(Reason.DELETE_NOT_ALLOWED, 'the settings say deletes = "park"')
LACKING = Refusal(Reason.DOCUMENT_MISSING, "the table does not have the document")


class Changes(msgspec.Struct, frozen=True):
    """What to write. Deletes come first: a document deleted and made again is in `deletes` and in `inserts`."""

    deletes: list[Document]
    inserts: dict[Document, Values]
    updates: dict[Document, Values]
    deleted_orders: dict[Document, int]
    verdicts: list[Verdict]
    parked: list[Parked] = []
    states: dict[Document, _State] = {}

    def after(self) -> dict[Document, Stored]:
        """What is stored of the documents once all this is written."""
        return {
            document: Stored(state.present, state.order, state.status)
            for document, state in self.states.items()
        }


class _State:
    """A document in the middle of a batch."""

    __slots__ = ("before", "deleted", "held", "order", "present", "status", "values")

    def __init__(self, before: Stored, held: bool) -> None:
        self.before = before
        self.held = held
        self.present = before.present
        self.order = before.order
        self.status = before.status
        self.deleted = False
        self.values: Values | None = None


def settle(
    events: Sequence[Event],
    stored: Mapping[Document, Stored],
    rules: Rules,
    held: Collection[Document] = frozenset(),
) -> Changes:
    """The outcome of `events`, which are in log order, on documents as `stored` says (those not named there are absent).

    `held` are the documents that are parked already.
    """
    states: dict[Document, _State] = {}
    verdicts: list[Verdict] = []
    parked: list[Parked] = []
    for event in events:
        state = states.get(event.document)
        if state is None:
            state = states[event.document] = _State(
                stored.get(event.document, ABSENT), event.document in held
            )
        verdict = _apply(state, event, rules)
        if isinstance(verdict, Refusal):
            state.held = True
            parked.append(Parked(event, verdict))
            verdict = Verdict.PARKED
        verdicts.append(verdict)
    changes = Changes([], {}, {}, {}, verdicts, parked, states)
    for document in sorted(states):
        _collect(changes, document, states[document], rules)
    return changes


class Reduced(msgspec.Struct, frozen=True):
    """What events come to as long as nothing stored stands in their way.

    Per document the order value and values that are written, those of its first event where that is another, and the verdicts.
    """

    latest: dict[Document, tuple[int | None, Values]]
    first: dict[Document, tuple[int | None, Values]]
    verdicts: list[Verdict]


def reduce(events: Sequence[Event], rules: Rules) -> Reduced | None:
    """The outcome on documents of which nothing later is stored: what `settle` gives for them.

    None when not every event brings a value for each column, or when what is stored decides more than that.
    """
    if rules.missing != "insert" or rules.transitions:
        return None
    latest: dict[Document, tuple[int | None, Values]] = {}
    first: dict[Document, tuple[int | None, Values]] = {}
    verdicts = [Verdict.APPLIED] * len(events)
    for number, event in enumerate(events):
        document, values = event.document, event.values
        if values is None or event.refusal is not None or UNSET in values:
            return None
        if document in latest:
            before = latest[document]
            first.setdefault(document, before)
            verdict = (
                judge(event.order, before[0], rules.order_is_time)
                if rules.ordered
                else Verdict.APPLIED
            )
            if verdict is not Verdict.APPLIED:
                verdicts[number] = verdict
                continue
        latest[document] = (event.order, values)
    return Reduced(latest, first, verdicts)


def rejudge(
    reduced: Reduced, events: Sequence[Event], late: Mapping[Document, Stored], rules: Rules
) -> tuple[list[Verdict], int]:
    """The verdicts once it is known of which documents something as late as their first event is stored; how many are written."""
    if not late:
        return reduced.verdicts, len(reduced.latest)
    verdicts = list(reduced.verdicts)
    numbers = [number for number, event in enumerate(events) if event.document in late]
    changes = settle([events[number] for number in numbers], late, rules)
    for number, verdict in zip(numbers, changes.verdicts, strict=True):
        verdicts[number] = verdict
    return verdicts, len(reduced.latest) - len(late) + len(changes.updates)


def waves(events: Sequence[Event], held: Collection[Document] = frozenset()) -> list[list[Event]]:
    """The events in rounds, each in log order, none with two events of one document: so every one of them is written.

    Those of documents that are held only wait, and need no round of their own.
    """
    rounds: list[list[Event]] = []
    seen: dict[Document, int] = {}
    for event in events:
        number = seen.get(event.document, 0) if event.document not in held else 0
        seen[event.document] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(event)
    return rounds


class Claims:
    """Unique values that documents hold or take: two documents may meet on one, so their events must keep the log's order.

    `keys` are the places, among the mapped columns, of each unique key's columns. Columns of a key that are not mapped are not
    known here: documents that share the rest are kept apart, though they may not meet at all. Nor is it known yet which events
    will be applied, so a document may hold any of the values that it had or was given.
    """

    POSSIBLE_MAX = 8  # of one document; one with more is written alone

    def __init__(self, keys: Sequence[tuple[int, ...]], held: Mapping[Document, Values]) -> None:
        """`held` are the values of the mapped columns that the table has of each document."""
        self._keys = keys
        self._possible: dict[Document, set[Values | None]] = {
            document: {values} for document, values in held.items()
        }

    def rounds(self, events: Sequence[Event]) -> list[list[Event]]:
        """The events in stretches of the log, none of which has two that could meet: written together, they do as one by one."""
        rounds: list[list[Event]] = []
        seen: set[Document] = set()
        touched: set[tuple[int, Values]] = set()
        alone = False
        for event in events:
            possible = self._after(event)
            claims = {
                claim for values in possible if values is not None for claim in self._of(values)
            }
            if (
                not rounds
                or alone
                or event.document in seen
                or claims & touched
                or len(possible) > self.POSSIBLE_MAX
            ):
                rounds.append([])
                seen, touched = set(), set()
            rounds[-1].append(event)
            seen.add(event.document)
            touched |= claims
            alone = len(possible) > self.POSSIBLE_MAX
        return rounds

    def _after(self, event: Event) -> set[Values | None]:
        """What the event's document may hold before and after it."""
        possible = self._possible.setdefault(event.document, {None})
        if len(possible) <= self.POSSIBLE_MAX:
            values = event.values
            possible |= (
                {None} if values is None else {merged(before, values) for before in possible}
            )
        return possible

    def _of(self, values: Values) -> list[tuple[int, Values]]:
        found = [
            (number, tuple(values[place] for place in places))
            for number, places in enumerate(self._keys)
        ]
        return [
            (number, parts)
            for number, parts in found
            if not any(part is None or part is UNSET for part in parts)
        ]


def merged(before: Values | None, after: Values) -> Values:
    """Values with later ones over them."""
    if before is None or UNSET not in after:
        return after
    return tuple(old if new is UNSET else new for old, new in zip(before, after, strict=True))


def judge(order: int | None, stored: int | None, order_is_time: bool) -> Verdict:
    """The guard itself: may an event of this order value follow the stored one?"""
    if order is None or stored is None or order > stored or (order == stored and order_is_time):
        return Verdict.APPLIED
    return Verdict.REPEATED if order == stored else Verdict.STALE


def _apply(state: _State, event: Event, rules: Rules) -> Verdict | Refusal:
    if state.held:
        return BEHIND
    if rules.ordered:
        verdict = judge(event.order, state.order, rules.order_is_time)
        if verdict is not Verdict.APPLIED:
            return verdict
    if event.values is None:
        return _delete(state, event, rules)
    if not state.present and rules.missing != "insert":
        return Verdict.IGNORED if rules.missing == "ignore" else LACKING
    refusal = event.refusal
    if refusal is None and rules.transitions and event.status is not None:
        refusal = rules.transitions.refusal(state.status, event.status)
    if refusal is not None:
        return refusal
    state.values = merged(state.values, event.values)
    state.present = True
    state.order = event.order
    state.status = event.status
    return Verdict.APPLIED


def _delete(state: _State, event: Event, rules: Rules) -> Verdict | Refusal:
    if rules.deletes == "ignore" or (rules.deletes != "row" and not state.present):
        return Verdict.IGNORED
    if state.present and (event.refusal is not None or rules.deletes == "park"):
        return event.refusal or UNDELETABLE
    if rules.deletes == "clear":
        state.values = merged(state.values, rules.cleared)
        state.status = rules.cleared_status
        return Verdict.APPLIED
    if event.order is not None:
        state.order = event.order
    state.values = state.status = None
    if not state.present:
        return Verdict.IGNORED
    state.present = False
    state.deleted = True
    return Verdict.APPLIED


def _collect(changes: Changes, document: Document, state: _State, rules: Rules) -> None:
    if state.before.present and state.deleted:
        changes.deletes.append(document)
    if state.values is not None:
        fresh = state.deleted or not state.before.present
        (changes.inserts if fresh else changes.updates)[document] = state.values
    elif (
        rules.ordered
        and not state.present
        and state.order is not None
        and (state.deleted or state.order != state.before.order)
    ):
        changes.deleted_orders[document] = state.order
