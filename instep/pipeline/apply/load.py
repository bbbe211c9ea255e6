"""Apply rows of another source beside a running pipeline: the transaction of `instep load`.

A load is to the transaction what a topic with one partition is: its rows have numbers in place of
offsets, and its own row in the ledger says which comes next. So the steps are those of
`transaction.py`, and a row is applied once, however often a load is killed. What differs:

- Step 1 also locks the pipeline's own rows in the ledger, as a maintenance session does, so that no
  task writes meanwhile. They are not changed.
- A row of the source is older than any event with the same order value: a tie changes nothing.
- Without an order, a row is applied only if the pipeline has read no event of the document and the
  table has no values of it.
- With an order, a row does not bring back a document that an event deleted before the table had
  it. No order value is known of such a document, but the history has the event.
- A load deletes nothing: a delete in the source is ignored.

Tasks wait while the pipeline's rows are locked. Most batches are therefore written in another
sequence (`_run_prepared`): first everything that tasks do not touch (the stage, the history and the
load's own position), as if all rows were applied; then the lock; then the upsert, whose count shows
whether that was true. If it was not, the transaction is rolled back, and what is stored of the
documents is read, without a lock. Rows that have something as new in the table are left out: no
event makes that older. Then the same sequence is tried again with the others. Only what cannot be
prepared is done in the usual sequence, in which tasks wait for all of it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import msgspec

from instep import errors
from instep.document import guard
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.guard import DocumentId, Parked, Reduced, Verdict
from instep.document.reasons import Reason
from instep.pipeline.apply import batch, fast, rows, slow, transaction
from instep.pipeline.apply.batch import BatchOutcome, Probe, Writer
from instep.pipeline.apply.transaction import BatchTransaction, Check, TakenRecords
from instep.sinks import loads
from instep.sinks.journal_entries import SpecialDocuments
from instep.sinks.ledger import Ledger
from instep.sinks.loads import Loads
from instep.sinks.sink import Sink
from instep.sinks.source_query import RowMark
from instep.sinks.target import Position, Target

LOOKS_MAX = 2  # at what is stored of a batch's documents, before tasks wait for all of it


def load_target(target: Target, number: int) -> Target:
    """Return the target of a pipeline as the sink of a load takes it.

    Rows of a source are events: a transformation does not apply to them. They make no rows in
    further tables.
    """
    rules = msgspec.structs.replace(target.rules, order_is_time=False)  # a tie changes nothing
    return msgspec.structs.replace(
        target,
        topic=loads.topic_of(number),
        rules=rules,
        guarantee="exactly-once",
        mapping=target.mapping.without_further,
        further=(),
        slots=1,
    )


class RowDecoder(Decoder):
    """Decodes rows of a source. Rows that could not be read become dead letters."""

    def decode_rows(
        self, records: Sequence[Record], problems: Mapping[int, str]
    ) -> tuple[list[Event], list[DeadLetter]]:
        """Decode rows; `problems` says by row number what is wrong with those not readable."""
        if not problems:
            return self.decode_all(records)
        events, dead = self.decode_all([one for one in records if one.offset not in problems])
        dead += [
            DeadLetter(one, Reason.ROW_UNREADABLE, problems[one.offset])
            for one in records
            if one.offset in problems
        ]
        dead.sort(key=lambda letter: letter.record.offset)
        return events, dead


class RowBatch:
    """Rows of a source that are applied together, decoded, and where to continue behind each."""

    def __init__(
        self,
        records: Sequence[Record],
        decoder: RowDecoder,
        *,
        problems: Mapping[int, str] | None = None,
        marks: Mapping[int, RowMark] | None = None,
    ) -> None:
        self.records, self.decoder, self.marks = records, decoder, marks or {}
        self.events, self.dead = decoder.decode_rows(records, problems or {})


def left_to_pipeline(sink: Sink, events: Sequence[Event]) -> set[int]:
    """Return the numbers of rows that are older than what the pipeline has read, in any case.

    The caller holds the lock on the pipeline's ledger. The guard decides on the other rows.
    """
    rules, documents = sink.target.rules, {event.document for event in events}
    if rules.ordered:
        if not (sink.target.history and rules.missing == "insert" and rules.deletes == "row"):
            return set()
        deleted = sink.journal.read_documents(documents, deletes=True)
        stored = sink.stored(deleted) if deleted else {}
        left = {document for document in deleted if document not in stored}
        return {event.offset for event in events if event.document in left}
    left = set(sink.journal.parked_among(documents))
    if sink.target.history:
        left |= sink.journal.read_documents(documents)
    for document, row in sink.table.look_up(documents).items():
        if any(value is not None for value in row.values()):
            left.add(document)
    numbers = set()
    for event in events:
        if event.document in left:
            numbers.add(event.offset)
        left.add(event.document)  # of several rows of a document, the first is applied
    return numbers


class LoadTransaction(BatchTransaction):
    """A batch of rows on its way through the steps."""

    def __init__(
        self,
        writer: Writer,
        pipeline_topic: str,
        number: int,
        rows_: RowBatch,
        probe: Probe = batch.no_probe,
        *,
        same_table: Check = transaction.no_check,
    ) -> None:
        """Take the writer of the load, the pipeline's topic, the load's number and the rows."""
        super().__init__(
            writer,
            loads.PARTITION,
            rows_.records,
            _holds_nothing,
            probe,
            same_table=same_table,
        )
        self._pipeline_topic, self._number, self._rows = pipeline_topic, number, rows_
        self._locked_at = 0.0
        self._late_times = 0  # how often a prepared upsert wrote fewer rows than expected
        self.locked_s = 0.0  # how long the last transaction kept tasks waiting
        self.pipeline_offset = 0  # the sum of the pipeline's next offsets under the last lock

    def apply_rows(self, sink: Sink) -> BatchOutcome:
        """Apply the rows in one transaction, or in several if the table refuses some."""
        return self.apply(sink, self._rows.decoder)

    def _decode(self, _decoder: Decoder) -> None:
        """Take what was decoded beforehand."""
        part, all_rows = self.part, self._rows
        events, dead = all_rows.events, all_rows.dead
        if len(part.records) < len(all_rows.records):
            numbers = {record.offset for record in part.records}
            events = [event for event in events if event.offset in numbers]
            dead = [letter for letter in dead if letter.record.offset in numbers]
        self._events, self._dead = part.with_refusal(events), dead

    def _run(self, isolate_failures: bool) -> BatchOutcome:
        reduced = None
        if not (isolate_failures or self._dead or self._late_times > LOOKS_MAX):
            reduced = self._reduced()
        began = time.monotonic()
        if reduced is not None:
            try:
                outcome = self._run_prepared(reduced)
            except fast.LateRows:
                self._late_times += 1
                raise
        else:
            outcome = super()._run(isolate_failures)
        # SQLite has one writer at a time.
        since = self._locked_at if self.sink.connection.for_update else began
        self.locked_s = time.monotonic() - since
        return outcome

    def _reduced(self) -> Reduced | None:
        """Return what the rows do, by what is stored of them now; None if more has to be known."""
        table, rules = self.sink.table, self.sink.target.rules
        if not (rules.ordered and table.guard is not None and table.may_upsert and self._events):
            return None
        reduced = guard.reduce(self._events, rules)
        if reduced is None or reduced.first:
            return None
        if not self.part.stage_first and table.is_optimistic(len(reduced.latest)):
            return reduced
        return self._without_late(reduced)

    def _without_late(self, reduced: Reduced) -> Reduced:
        """Leave out the rows of documents of which something as new is stored."""
        with self.sink.snapshot():
            stored = self.sink.stored(reduced.latest)
        verdicts = guard.settle(self._events, stored, self.sink.target.rules).verdicts
        latest = {
            event.document: reduced.latest[event.document]
            for event, verdict in zip(self._events, verdicts, strict=True)
            if verdict is Verdict.APPLIED
        }
        return Reduced(latest, {}, verdicts)

    def _run_prepared(self, reduced: Reduced) -> BatchOutcome:
        """Write what tasks do not touch, then lock, then upsert and count.

        Raise LateRows if not every row was written: the rows are then applied in the usual way.
        """
        sink = self.sink
        with sink.transaction():
            before, _ = super()._lock()
            taken = self.take(before)
            if len(taken.events) < len(self._events):
                self._late_times = LOOKS_MAX
                raise fast.LateRows  # some rows were applied before
            upsert = _nothing
            if reduced.latest:
                upsert = sink.table.prepared_upsert(fast.staged_rows(sink, reduced))
            outcome = self.keep(taken, reduced.verdicts)
            self._advance(before, outcome)
            self._lock_pipeline()
            if self._has_special_documents(taken.events):
                self._late_times = LOOKS_MAX  # a look at the table does not help
                raise fast.LateRows
            self.at(6)
            written = upsert()
            if written != len(reduced.latest):
                sink.table.expect_late_rows(0 if written is None else fast.PESSIMISTIC_BATCHES)
                raise fast.LateRows
            self.at(8)
        self.at(9)
        return outcome

    def _has_special_documents(self, events: Sequence[Event]) -> bool:
        """Return whether a document is parked, was deleted, or is left to the pipeline."""
        journal, documents = self.sink.journal, [event.document for event in events]
        special = journal.special_documents()
        return bool(
            (special.any_parked and journal.parked_among(documents))
            or (special.any_deleted and journal.deleted_orders(documents))
            or left_to_pipeline(self.sink, events)
        )

    def _lock(self) -> tuple[Position, SpecialDocuments]:
        """Lock the rows of the pipeline, then that of the load (step 1)."""
        self._lock_pipeline()
        return super()._lock()

    def _lock_pipeline(self) -> None:
        ledger = Ledger(self.sink.connection, self._pipeline_topic)
        positions = ledger.positions(lock=True)
        if not positions:
            raise no_ledger(self.sink.target.pipeline)
        self._locked_at = time.monotonic()
        self.pipeline_offset = sum(position.next_offset for position in positions.values())

    def write(
        self,
        taken: TakenRecords,
        *,
        isolate_failures: bool = False,
        special: SpecialDocuments | None = None,
    ) -> BatchOutcome:
        """Do steps 4 to 6 for the rows that the guard may let through."""
        verdicts = {event.offset: Verdict.IGNORED for event in taken.events if event.values is None}
        brought = [event for event in taken.events if event.offset not in verdicts]
        verdicts |= dict.fromkeys(left_to_pipeline(self.sink, brought), Verdict.STALE)
        events = [event for event in brought if event.offset not in verdicts]
        written, parked = self._write_events(events, isolate_failures, special)
        for event, verdict in zip(events, written, strict=True):
            verdicts[event.offset] = verdict
        in_order = [verdicts[event.offset] for event in taken.events]
        return self.keep(taken, in_order, parked, isolate_failures=isolate_failures)

    def _write_events(
        self,
        events: Sequence[Event],
        isolate_failures: bool,
        special: SpecialDocuments | None,
    ) -> tuple[list[Verdict], list[Parked]]:
        if self.sink.target.rules.ordered:
            return rows.write(
                self.sink,
                events,
                isolate_failures=isolate_failures,
                at_step=self.at,
                stage_first=self.part.stage_first,
                special=special,
            )
        # Without an order an upsert would overwrite a row that another program has just inserted.
        parked: Collection[DocumentId] = ()
        return slow.write(
            self.sink,
            events,
            isolate_failures=isolate_failures,
            parked=parked,
            already_applied=(),
            at_step=self.at,
        )

    def _advance(self, before: Position, outcome: BatchOutcome | None = None) -> None:
        """Advance the load's row in the ledger, and keep where to continue (step 7)."""
        super()._advance(before, outcome)
        mark = self._rows.marks.get(self.part.records[-1].offset)
        if mark is not None:
            Loads(self.sink.connection).save_mark(self._number, mark)


def no_ledger(pipeline: str) -> errors.SettingsError:
    """Return the error for a pipeline that never ran: nothing would keep its first run out."""
    return errors.SettingsError(
        f"pipeline {pipeline!r} has no ledger: it has never run",
        "start it before you export the rows, so that no change in between is missed: instep run;"
        " then load",
    )


def _nothing() -> int | None:
    """Write no row."""
    return 0


def _holds_nothing(_partition: int, _start: int, _end: int) -> bool:
    """Return False: numbers between two rows are blank lines, or lines of a row before."""
    return False
