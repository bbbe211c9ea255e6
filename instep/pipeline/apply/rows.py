"""Events to rows: what the guard lets through is written, what is refused parks its document.

Steps 4 to 6 of the transaction, shared by everything that applies events: the flow, a release, a replay. The caller holds
the transaction and the ledger's lock; the events are of one partition, in log order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from instep import errors, settings
from instep.document import guard
from instep.document.decoding import Event
from instep.document.guard import Changes, Document, Parked, Stored, Verdict
from instep.document.reasons import Reason, Refusal
from instep.document.transitions import Transitions
from instep.sinks import fast_path
from instep.sinks.sink import Sink

AtStep = Callable[[int], None]


def write(
    sink: Sink,
    events: Sequence[Event],
    *,
    careful: bool,
    held: set[Document] | None = None,
    known: Collection[int] = (),
    at_step: AtStep = lambda _: None,
) -> tuple[list[Verdict], list[Parked]]:
    """The verdict on each event, and those that have to wait. `careful` goes through what the table refuses by halving.

    `held` are the documents that are parked already; left out, the sink is asked. `known` are the offsets of events that were
    let through before: the ledger was moved back since, so no transition is judged again, and nothing but the table parks them.
    """
    if held is None:
        held = sink.held(event.document for event in events) if events else set()
    if events and fast_path.is_open(sink) and not (careful or held or known):
        verdicts = _upsert(sink, events, at_step)
        if verdicts is not None:
            return verdicts, []
    return _write(sink, events, careful, held, known, at_step)


def _upsert(sink: Sink, events: Sequence[Event], at_step: AtStep) -> list[Verdict] | None:
    """Write the latest of each document without reading what is stored: counted rows, or the database, tell what is late.

    None when these events cannot be written so; then nothing was.
    """
    at_step(5)
    reduced = guard.reduce(events, sink.target.rules)
    if reduced is None:
        return None
    if sink.trusts(reduced):
        late = fast_path.late_of_several(sink, reduced)
        if late is None:
            return None
        verdicts, written = guard.rejudge(reduced, events, late, sink.target.rules)
        at_step(6)
        if fast_path.attempt(sink, reduced, written):
            return verdicts
    late = fast_path.stage(sink, reduced)
    if late is None:
        return None
    verdicts, written = guard.rejudge(reduced, events, late, sink.target.rules)
    at_step(6)
    fast_path.write_staged(sink, written)
    return verdicts


def _write(
    sink: Sink,
    events: Sequence[Event],
    careful: bool,
    held: set[Document],
    known: Collection[int],
    at_step: AtStep,
) -> tuple[list[Verdict], list[Parked]]:
    """The same by what is stored of every document."""
    batches = [
        (
            [event for event in events if event.offset in known],
            _Batch(sink, set(), relaxed(sink.target.rules), at_step),
        ),
        (
            [event for event in events if event.offset not in known],
            _Batch(sink, held, sink.target.rules, at_step),
        ),
    ]
    verdicts: dict[int, Verdict] = {}
    parked: list[Parked] = []
    for some, batch in batches:
        batch.held.update(one.event.document for one in parked)
        batch.read_stored(some)
        for wave in _rounds(sink, some, batch.held):
            if careful:
                batch.write_carefully(wave)
            else:
                batch.write(wave)
        verdicts |= batch.verdicts
        parked += batch.parked
    return [verdicts[event.offset] for event in events], sorted(
        parked, key=lambda one: one.event.offset
    )


def _rounds(
    sink: Sink, events: Sequence[Event], held: Collection[Document]
) -> Sequence[Sequence[Event]]:
    """What is written together. Events of one document become one write, unless the table may refuse one of them.

    Where two documents may meet on a unique value, the log's order decides which of them has it.
    """
    if not events:
        return []
    if not sink.target.refuses:
        return [events]
    keys = sink.unique_places()
    if not keys:
        return guard.waves(events, held)
    return guard.Claims(keys, sink.unique_values(event.document for event in events)).rounds(events)


def relaxed(rules: guard.Rules) -> guard.Rules:
    """For events that were let through before: no transition is judged, and no document waits for its row."""
    missing: settings.Missing = "insert" if rules.missing == "insert" else "ignore"
    return msgspec.structs.replace(rules, missing=missing, transitions=Transitions())


def refused_by(error: errors.InstepError, event: Event | None) -> Refusal:
    """Return why the target refused an event's row. A foreign key that refuses a delete misses no parent: a child is left."""
    missing = (
        isinstance(error, errors.ParentMissing) and event is not None and event.values is not None
    )
    return Refusal(Reason.PARENT_MISSING if missing else Reason.REFUSED_BY_TARGET, error.what)


class _Batch:
    """What is known so far of a batch: verdicts by offset, and which documents are held."""

    def __init__(
        self, sink: Sink, held: set[Document], rules: guard.Rules, at_step: AtStep
    ) -> None:
        self.sink, self.held, self.rules, self.at_step = sink, set(held), rules, at_step
        self.stored: dict[Document, Stored] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.parked: list[Parked] = []

    def read_stored(self, events: Sequence[Event]) -> None:
        """Read what is stored of all documents at once; what is written since is known without asking."""
        self.stored = self.sink.stored(event.document for event in events) if events else {}

    def write(self, events: Sequence[Event]) -> None:
        """All at once."""
        changes = self._settle(events)
        self.at_step(6)
        self.sink.write(changes)
        self._take(events, changes)

    def write_carefully(self, events: Sequence[Event]) -> None:
        """What the table takes; the documents that it refuses are parked. Found by halving, never by giving a batch up."""
        by_document: dict[Document, list[Event]] = {}
        for event in events:
            by_document.setdefault(event.document, []).append(event)
        waiting = [list(by_document.values())]
        while waiting:
            some = waiting.pop()
            together = sorted(
                (event for of_one in some for event in of_one), key=lambda event: event.offset
            )
            try:
                with self.sink.savepoint():
                    changes = self._settle(together)
                    self.sink.write(changes)
            except errors.TransactionUndone:
                raise
            except errors.MAY_BE_A_ROW as error:
                if len(together) == 1:
                    self._park(together[0], self._refusal(together[0], error))
                elif len(some) == 1:
                    waiting += [
                        [[event]] for event in reversed(together)
                    ]  # one by one: the first that is refused holds the rest
                else:
                    half = len(some) // 2
                    waiting += [some[half:], some[:half]]
            else:
                self._take(together, changes)

    def _settle(self, events: Sequence[Event]) -> Changes:
        self.at_step(5)
        return guard.settle(events, self.stored, self.rules, self.held)

    def _take(self, events: Sequence[Event], changes: Changes) -> None:
        self.stored.update(changes.after())
        self.held.update(one.event.document for one in changes.parked)
        self.parked += changes.parked
        self.verdicts.update(zip((event.offset for event in events), changes.verdicts, strict=True))

    def _refusal(self, event: Event, error: errors.InstepError) -> Refusal:
        """Why the table refuses a document's row, which is not so when another writer has inserted it just now."""
        document = event.document
        if self.stored.get(document, guard.ABSENT).present:
            return refused_by(error, event)
        occupants = self.sink.occupants(document)
        if document in occupants:
            raise errors.Outrun(
                f"document {document} of {self.sink.target.table} was inserted by another writer just now"
            )
        if occupants:
            other = next(iter(occupants))
            return Refusal(
                Reason.ID_TAKEN_FOR_ANOTHER,
                f"the table has the row {other!r}, which its key takes for this id",
            )
        return refused_by(error, event)

    def _park(self, event: Event, refusal: Refusal) -> None:
        self.held.add(event.document)
        self.parked.append(Parked(event, refusal))
        self.verdicts[event.offset] = Verdict.PARKED
