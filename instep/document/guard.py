"""The guard: what a sequence of events does to its documents.

The model takes one event at a time, per document, in log order:

- an event with a lower order value than the stored one is *stale* and changes nothing;
- an event with the stored order value is *repeated* and changes nothing. If the order value is a
  time, two events may have the same time, and the later one in the log wins;
- a delete removes the row, clears the mapped columns, is *ignored*, or is refused, as `deletes`
  says;
- a delete has no order value of its own: its position in the log counts. The highest order value
  so far is kept, so that a late event does not insert the document again;
- without an order value, every event is newer than those before it;
- an event for a document that the table does not have inserts it, is *ignored*, or is refused, as
  `missing` says;
- an event that must not be applied (an undeclared transition, or a value that does not fit its
  column) *parks* its document: it and all later events of the document, including deletes, wait
  until somebody releases or skips them.

`settle` computes the outcome of many events at once: exactly what the model gives one by one.
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

DocumentId = Id
Values = tuple[Any, ...]  # one for each mapped column; UNSET leaves it unchanged


class Verdict(StrEnum):
    """What became of an event; kept in the history."""

    APPLIED = "applied"
    STALE = "stale"
    REPEATED = "repeated"
    IGNORED = "ignored"
    PARKED = "parked"


class Rules(msgspec.Struct, frozen=True):
    """How a pipeline treats events: order, missing documents, transitions and deletes."""

    ordered: bool
    order_is_time: bool = False
    missing: settings.Missing = "insert"
    transitions: Transitions = Transitions()
    deletes: settings.Deletes = "row"
    cleared: Values = ()  # what a delete writes if it clears the columns
    cleared_status: str | None = None


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A document before the batch: whether it has a row, and its order value.

    A deleted document has the order value that was kept. The status is read from the row if
    transitions are declared.
    """

    present: bool
    order: int | None
    status: str | None = None


class Parked(msgspec.Struct, frozen=True, gc=False):
    """An event that has to wait, and why."""

    event: Event
    refusal: Refusal


ABSENT = Stored(present=False, order=None)
WAITS_BEHIND = Refusal(Reason.WAITS_BEHIND, "an earlier event of the document is parked")
DELETE_NOT_ALLOWED = Refusal(Reason.DELETE_NOT_ALLOWED, 'the settings say deletes = "park"')
DOCUMENT_MISSING = Refusal(Reason.DOCUMENT_MISSING, "the table does not have the document")


class Changes(msgspec.Struct, frozen=True):
    """What to write, deletes first: a deleted and newly inserted document is in both."""

    deletes: list[DocumentId]
    inserts: dict[DocumentId, Values]
    updates: dict[DocumentId, Values]
    deleted_orders: dict[DocumentId, int]
    verdicts: list[Verdict]
    parked: list[Parked] = []
    states: dict[DocumentId, _State] = {}
    further: tuple[Changes, ...] = ()  # of the further tables, in their order

    def after(self) -> dict[DocumentId, Stored]:
        """Return what is stored of the documents after these changes."""
        return {
            document: Stored(state.present, state.order, state.status)
            for document, state in self.states.items()
        }


class _State:
    """A document while a batch is applied to it."""

    __slots__ = ("before", "deleted", "is_parked", "order", "present", "status", "values")

    def __init__(self, before: Stored, is_parked: bool) -> None:
        self.before = before
        self.is_parked = is_parked
        self.present = before.present
        self.order = before.order
        self.status = before.status
        self.deleted = False
        self.values: Values | None = None


def settle(
    events: Sequence[Event],
    stored: Mapping[DocumentId, Stored],
    rules: Rules,
    already_parked: Collection[DocumentId] = frozenset(),
) -> Changes:
    """Return what `events`, in log order, do to the documents.

    A document that is not in `stored` does not exist.
    """
    states: dict[DocumentId, _State] = {}
    verdicts: list[Verdict] = []
    parked: list[Parked] = []
    for event in events:
        state = states.get(event.document)
        if state is None:
            state = states[event.document] = _State(
                stored.get(event.document, ABSENT), event.document in already_parked
            )
        verdict = _apply(state, event, rules)
        if isinstance(verdict, Refusal):
            state.is_parked = True
            parked.append(Parked(event, verdict))
            verdict = Verdict.PARKED
        verdicts.append(verdict)
    changes = Changes([], {}, {}, {}, verdicts, parked, states)
    for document in sorted(states):
        _collect(changes, document, states[document], rules)
    return changes


class Reduced(msgspec.Struct, frozen=True):
    """What events do to documents if nothing newer is stored.

    Per document, `latest` has the order value and the values to write, and `first` those of its
    first event if it has several.
    """

    latest: dict[DocumentId, tuple[int | None, Values]]
    first: dict[DocumentId, tuple[int | None, Values]]
    verdicts: list[Verdict]


def reduce(events: Sequence[Event], rules: Rules) -> Reduced | None:
    """Return what `settle` gives for documents of which nothing newer is stored.

    None if an event does not set every column, or if more than the order value decides.
    """
    if rules.missing != "insert" or rules.transitions:
        return None
    latest: dict[DocumentId, tuple[int | None, Values]] = {}
    first: dict[DocumentId, tuple[int | None, Values]] = {}
    verdicts = [Verdict.APPLIED] * len(events)
    ordered, order_is_time = rules.ordered, rules.order_is_time
    for number, event in enumerate(events):
        document, order, values = event.document, event.order, event.values
        if values is None or event.refusal is not None or UNSET in values:
            return None
        before = latest.get(document)
        if before is not None:
            if document not in first:
                first[document] = before
            # Most events are newer; a comparison costs less than a call.
            is_newer = order is not None and before[0] is not None and order > before[0]
            if ordered and not is_newer:
                verdict = judge(order, before[0], order_is_time)
                if verdict is not Verdict.APPLIED:
                    verdicts[number] = verdict
                    continue
        latest[document] = (order, values)
    return Reduced(latest, first, verdicts)


def rejudge(
    reduced: Reduced, events: Sequence[Event], late: Mapping[DocumentId, Stored], rules: Rules
) -> tuple[list[Verdict], int]:
    """Correct the verdicts on documents of which something newer is stored.

    `late` has the documents whose stored order value is not older than their first event. Returns
    the verdicts, and the number of documents to write.
    """
    verdicts = list(reduced.verdicts)
    numbers = [number for number, event in enumerate(events) if event.document in late]
    changes = settle([events[number] for number in numbers], late, rules)
    for number, verdict in zip(numbers, changes.verdicts, strict=True):
        verdicts[number] = verdict
    return verdicts, len(reduced.latest) - len(late) + len(changes.updates)


def split_rounds(
    events: Sequence[Event], parked: Collection[DocumentId] = frozenset()
) -> list[list[Event]]:
    """Split events into rounds, each in log order and with at most one event per document.

    So every event is written. Events of parked documents only wait and need no further round.
    """
    rounds: list[list[Event]] = []
    next_round: dict[DocumentId, int] = {}
    for event in events:
        number = next_round.get(event.document, 0) if event.document not in parked else 0
        next_round[event.document] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(event)
    return rounds


class UniqueValues:
    """The unique values that documents have or get.

    Two documents may need the same unique value, so their events must be written in log order.
    Which events will be applied is not known yet: a document may have any of the values that it
    had or gets. Nor are key columns known that are not mapped: documents that agree in the other
    columns of a key are separated, even if they do not conflict.
    """

    POSSIBLE_MAX = 8  # of one document; one with more is written alone

    def __init__(
        self, keys: Sequence[tuple[int, ...]], stored: Mapping[DocumentId, Values]
    ) -> None:
        """Take the columns of each unique key, by number, and the stored values of documents."""
        self._keys = keys
        self._possible: dict[DocumentId, set[Values | None]] = {
            document: {values} for document, values in stored.items()
        }

    def rounds(self, events: Sequence[Event]) -> list[list[Event]]:
        """Split events, in log order, into rounds without two events that could conflict."""
        rounds: list[list[Event]] = []
        documents: set[DocumentId] = set()
        touched: set[tuple[int, Values]] = set()
        alone = False
        for event in events:
            possible = self._after(event)
            needed = {
                value for values in possible if values is not None for value in self._of(values)
            }
            if (
                not rounds
                or alone
                or event.document in documents
                or needed & touched
                or len(possible) > self.POSSIBLE_MAX
            ):
                rounds.append([])
                documents, touched = set(), set()
            rounds[-1].append(event)
            documents.add(event.document)
            touched |= needed
            alone = len(possible) > self.POSSIBLE_MAX
        return rounds

    def _after(self, event: Event) -> set[Values | None]:
        """Return the values that the event's document may have before and after it."""
        possible = self._possible.setdefault(event.document, {None})
        if len(possible) <= self.POSSIBLE_MAX:
            values = event.values
            if values is None:
                possible.add(None)
            else:
                possible |= {merged(before, values) for before in possible}
        return possible

    def _of(self, values: Values) -> list[tuple[int, Values]]:
        needed = []
        for number, places in enumerate(self._keys):
            parts = tuple(values[place] for place in places)
            if not any(part is None or part is UNSET for part in parts):
                needed.append((number, parts))
        return needed


def merged(before: Values | None, after: Values) -> Values:
    """Return values with later ones laid over them."""
    if before is None or UNSET not in after:
        return after
    return tuple(old if new is UNSET else new for old, new in zip(before, after, strict=True))


def judge(order: int | None, stored: int | None, order_is_time: bool) -> Verdict:
    """Return the guard's verdict on an event with this order value, given the stored one."""
    if order is None or stored is None or order > stored or (order == stored and order_is_time):
        return Verdict.APPLIED
    return Verdict.REPEATED if order == stored else Verdict.STALE


def _apply(state: _State, event: Event, rules: Rules) -> Verdict | Refusal:
    if state.is_parked:
        return WAITS_BEHIND
    if rules.ordered:
        verdict = judge(event.order, state.order, rules.order_is_time)
        if verdict is not Verdict.APPLIED:
            return verdict
    if event.values is None:
        return _delete(state, event, rules)
    if not state.present and rules.missing != "insert":
        return Verdict.IGNORED if rules.missing == "ignore" else DOCUMENT_MISSING
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
        return event.refusal or DELETE_NOT_ALLOWED
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


def _collect(changes: Changes, document: DocumentId, state: _State, rules: Rules) -> None:
    if state.before.present and state.deleted:
        changes.deletes.append(document)
    if state.values is not None:
        is_insert = state.deleted or not state.before.present
        (changes.inserts if is_insert else changes.updates)[document] = state.values
    elif (
        rules.ordered
        and not state.present
        and state.order is not None
        and (state.deleted or state.order != state.before.order)
    ):
        changes.deleted_orders[document] = state.order
