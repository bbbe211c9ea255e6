"""The slow path: read what is stored of every document, decide by the guard, insert or update.

For deletes, events that bring only some columns, transitions, parked documents, events that are
applied again, and tables that may refuse rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from instep import errors
from instep.document import guard
from instep.document.decoding import Event
from instep.document.guard import Changes, DocumentId, Parked, Stored, Verdict
from instep.document.reasons import Reason, Refusal
from instep.document.transitions import Transitions
from instep.pipeline.apply import isolate
from instep.pipeline.apply.fast import AtStep
from instep.pipeline.apply.further import FurtherBatch
from instep.sinks.sink import Sink


def write(
    sink: Sink,
    events: Sequence[Event],
    *,
    isolate_failures: bool,
    parked: Collection[DocumentId],
    already_applied: Collection[int],
    at_step: AtStep,
) -> tuple[list[Verdict], list[Parked]]:
    """Write the events and return the verdict on each, and the events that are parked by it.

    Events that were applied before come first: they are older than all others of the batch.
    """
    earlier = [event for event in events if event.offset in already_applied]
    others = [event for event in events if event.offset not in already_applied]
    verdicts: dict[int, Verdict] = {}
    waiting: list[Parked] = []
    for some, batch in (
        (earlier, _SlowBatch(sink, set(), relaxed(sink.target.rules), at_step)),
        (others, _SlowBatch(sink, set(parked), sink.target.rules, at_step)),
    ):
        batch.parked_documents.update(one.event.document for one in waiting)
        batch.read_stored(some)
        for together in _rounds(sink, some, batch.parked_documents):
            batch.write(together, isolate_failures=isolate_failures)
        verdicts |= batch.verdicts
        waiting += batch.waiting
    waiting.sort(key=lambda one: one.event.offset)
    return [verdicts[event.offset] for event in events], waiting


def relaxed(rules: guard.Rules) -> guard.Rules:
    """Return the rules for events that were let through before.

    No transition is checked, and no document waits for its row.
    """
    missing = rules.missing
    if missing == "park":
        missing = "ignore"
    return msgspec.structs.replace(rules, missing=missing, transitions=Transitions())


def refusal_of(error: errors.InstepError, event: Event | None) -> Refusal:
    """Return why the target refused an event's row.

    A foreign key that refuses a delete does not miss a parent: a child row is left.
    """
    is_insert_or_update = event is not None and event.values is not None
    if isinstance(error, errors.ParentMissing) and is_insert_or_update:
        return Refusal(Reason.PARENT_MISSING, error.what)
    return Refusal(Reason.REFUSED_BY_TARGET, error.what)


def _rounds(
    sink: Sink, events: Sequence[Event], parked: Collection[DocumentId]
) -> Sequence[Sequence[Event]]:
    """Return the events in rounds that are written together.

    All in one, unless the table may refuse rows: then no round has two events of one document. If
    two documents can meet on a unique value, a round is a stretch of the log in which they do
    not, so that the order of the log decides which of them gets it.
    """
    if not events:
        return []
    if not any(table.target.refuses for table in sink.all_tables):
        return [events]
    if any(table.table.unique_column_numbers() for table in sink.further):
        return [[event] for event in events]
    keys = sink.table.unique_column_numbers()
    if not keys:
        return guard.split_rounds(events, parked)
    stored_values = sink.table.unique_values(event.document for event in events)
    return guard.UniqueValues(keys, stored_values).rounds(events)


class _SlowBatch:
    """A batch in progress: what is stored of its documents, and the verdicts so far by offset."""

    def __init__(
        self, sink: Sink, parked: set[DocumentId], rules: guard.Rules, at_step: AtStep
    ) -> None:
        self.sink, self.rules, self.at_step = sink, rules, at_step
        self.parked_documents = parked
        self.stored: dict[DocumentId, Stored] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.waiting: list[Parked] = []
        self.further = [FurtherBatch(sink, number) for number in range(len(sink.further))]

    def read_stored(self, events: Sequence[Event]) -> None:
        """Read what is stored of all documents at once. What the batch writes is known."""
        if events:
            self.stored = self.sink.stored(event.document for event in events)
            for table in self.further:
                table.read(events)

    def write(self, events: Sequence[Event], *, isolate_failures: bool) -> None:
        """Write one round. With `isolate_failures`, park the documents that the table refuses."""
        if not isolate_failures:
            changes = self._decide(events)
            self.at_step(6)
            self.sink.write(changes)
            self._take(events, changes)
            return
        by_document: dict[DocumentId, list[Event]] = {}
        for event in events:
            by_document.setdefault(event.document, []).append(event)
        isolate.write(
            self.sink,
            list(by_document.values()),
            decide=self._decide,
            written=self._take,
            refused=self._park,
            refusals=errors.MAY_BE_A_ROW,
        )

    def _decide(self, events: Sequence[Event]) -> Changes:
        self.at_step(5)
        in_log_order = sorted(events, key=lambda event: event.offset)
        changes = guard.settle(in_log_order, self.stored, self.rules, self.parked_documents)
        if not self.further:
            return changes
        further = [
            table.decide(in_log_order, changes.verdicts, self.stored) for table in self.further
        ]
        return msgspec.structs.replace(changes, further=tuple(further))

    def _take(self, events: Sequence[Event], changes: Changes) -> None:
        offsets = sorted(event.offset for event in events)
        for table, of_table in zip(self.further, changes.further, strict=True):
            table.take(of_table)
        self.stored.update(changes.after())
        self.parked_documents.update(one.event.document for one in changes.parked)
        self.waiting += changes.parked
        self.verdicts.update(zip(offsets, changes.verdicts, strict=True))

    def _park(self, event: Event, error: errors.InstepError) -> None:
        """Park the document of a refused event. Events behind it wait, as `guard.settle` says."""
        refusal = self._refusal(event, error)
        self.parked_documents.add(event.document)
        self.waiting.append(Parked(event, refusal))
        self.verdicts[event.offset] = Verdict.PARKED

    def _refusal(self, event: Event, error: errors.InstepError) -> Refusal:
        """Return why the row is refused; raise Outrun if another writer inserted it just now."""
        document = event.document
        if self.stored.get(document, guard.ABSENT).present:
            return refusal_of(error, event)
        occupants = self.sink.table.occupants(document)
        if document in occupants:
            raise errors.Outrun(
                f"document {document} of {self.sink.target.table} was inserted by another writer"
            )
        if occupants:
            other = next(iter(occupants))
            return Refusal(
                Reason.ID_TAKEN_FOR_ANOTHER,
                f"the table has the row {other!r}, and its key treats both ids as equal",
            )
        return refusal_of(error, event)
