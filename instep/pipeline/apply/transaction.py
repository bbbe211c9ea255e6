"""The one transaction: where "in order per document, exactly once" is kept.

A task brings the records of one partition in offset order. In the target database, in one
transaction:

1. Lock the ledger row of this partition. A newer epoch than ours means that we are fenced: stop.
   An older one, or a record between the ledger's next offset and our first record, means that the
   ledger was moved (by a rewind, or a backup that was restored): start again from the ledger.
2. Drop records below the ledger's next offset. They are applied already.
3. Take the events and dead letters that were decoded from the remaining records. Decoding happens
   before the transaction begins.
4. Find out which documents are parked. Slow path: read their stored state.
5. Decide per document what the guard lets through and what has to wait.
6. Write documents in id order, then history, dead letters and parked events.
7. Check that the records came from the topic that the ledger knows. Advance the ledger by
   compare-and-set.
8. Commit. On any error everything is rolled back, and the caller retries depending on its type.

The few records that several partitions have at low rates share a transaction: `together.py`.

A commit whose answer was lost needs no special case: the next attempt finds the ledger advanced or
not, and step 2 does the rest.

The weaker guarantees separate step 7 from the others. At-least-once commits steps 1 to 6, then
step 7; at-most-once commits step 7 first. A crash between the two repeats or loses that batch,
which is what they allow. A batch with a delete is one transaction under at-least-once too: the
delete, done again, would remove what later events created, and those would be repeated by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from instep import errors
from instep.document import results
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.guard import Parked, Verdict
from instep.pipeline.apply import batch, fast, rows, slow
from instep.pipeline.apply.batch import BatchOutcome, BatchPart, Probe, ProbeEvent, Writer
from instep.sinks.journal_entries import SpecialDocuments, position_of
from instep.sinks.ledger import fenced
from instep.sinks.sink import Sink
from instep.sinks.target import Position

LogHolds = Callable[[int, int, int], bool]
Check = Callable[[], None]

OUTRUN_MAX = 3
# Records in a transaction that looks for refused rows. What is good of a large batch is committed
# in between.
ISOLATED_RECORDS = 1_000


def no_check() -> None:
    """Check nothing."""


def digest(record: Record) -> str:
    """Return what the ledger keeps of the last applied record, to recognise the log."""
    found_key, found_value = results.in_log(record)
    key, value = found_key or b"", found_value or b""
    # Spark counts years before 1582 by another calendar, so a negative timestamp is none.
    facts = b"%d %d %d %d " % (
        max(record.timestamp_ms, -1),
        len(key) if found_key is not None else -1,
        len(key),
        len(value),
    )
    return hashlib.blake2b(facts + key + value, digest_size=16).hexdigest()


class TakenRecords(msgspec.Struct, frozen=True, gc=False):
    """Records that are applied now, and what was decoded from them.

    `already_applied` has the offsets of those that were applied before the ledger was moved back.
    """

    fresh: Sequence[Record]
    already_applied: set[int]
    events: list[Event]
    dead: list[DeadLetter]


class BatchTransaction:
    """The records of one partition on their way through the steps.

    May be applied again after an error. The records are one transaction, unless the table refuses
    rows or the database reaches a limit: then they are several, each with its own ledger step, so
    that what succeeded is kept and not done again.
    """

    def __init__(
        self,
        writer: Writer,
        partition: int,
        records: Sequence[Record],
        log_holds: LogHolds,
        probe: Probe = batch.no_probe,
        *,
        same_topic: Check = no_check,
        same_table: Check = no_check,
        slots: int = 1,
    ) -> None:
        """Take the records, and how to check what they depend on.

        Results of a transformation have `slots` numbers for each offset of the log.

        `log_holds` asks the log whether it has records of a partition between two offsets.
        `same_topic` raises if the records are not of the topic that the writer knows; it is called
        before every commit. `same_table` raises if the table changed since the mapping was
        compiled for it; it is called before refused rows are parked.
        """
        self.writer, self.partition = writer, partition
        self._log_holds, self._probe = log_holds, probe
        self._same_topic, self._same_table = same_topic, same_table
        self._slots = slots
        self._parts = [BatchPart(records, slots=slots)]
        self._outcomes: list[BatchOutcome] = []
        self._times_outrun = 0
        self._table_checked = False
        self._decoded: tuple[BatchPart, Decoder, list[Event], list[DeadLetter]] | None = None

    def apply(self, sink: Sink, decoder: Decoder) -> BatchOutcome:
        """Apply the records under the pipeline's guarantee."""
        while self._parts:
            self.begin(sink, decoder)
            result = self._apply_part()
            if isinstance(result, BatchOutcome):
                self._outcomes.append(result)
                del self._parts[0]
                if self.part.isolate_failures and result.verdicts[Verdict.PARKED]:
                    self._expect_more_refusals()
            else:
                self._parts[:1] = result
        return batch.merged(self._outcomes)

    def begin(self, sink: Sink, decoder: Decoder) -> None:
        """Take the first part, decoded."""
        self.sink, self.part = sink, self._parts[0]
        self._decode(decoder)

    def _expect_more_refusals(self) -> None:
        """Let the next part isolate failures at once: refused rows rarely come alone."""
        if self._parts:
            self._parts[0].isolate_failures = True

    def _decode(self, decoder: Decoder) -> None:
        """Decode before the transaction, so that locks are held shorter, and once for all tries."""
        decoded = self._decoded
        if decoded is None or decoded[0] is not self.part or decoded[1] is not decoder:
            decoded = self._decoded = (self.part, decoder, *self.part.decode(decoder))
        _, _, self._events, self._dead = decoded

    def _apply_part(self) -> BatchOutcome | list[BatchPart]:
        """Apply the first part; return its outcome, or the parts to try in its place."""
        part, sink = self.part, self.sink
        try:
            with sink.shortfall_is_refusal(self._times_outrun >= OUTRUN_MAX):
                return self._run(part.isolate_failures)
        except errors.Outrun:
            self._times_outrun += 1
            # The first time another writer may have been faster. Again, the table itself may differ
            # from what the statements were made for.
            if self._times_outrun > 1:
                self._same_table()
            raise
        except fast.LateRows:
            part.stage_first = True
            return [part]
        except errors.TooMuchAtOnce:
            halves = part.halves()
            if len(halves) == 1:
                raise
            return halves
        except errors.MAY_BE_A_ROW as error:
            self._check_table(error)
            return self._narrowed(error)

    def _check_table(self, error: errors.InstepError) -> None:
        """Raise if it is not a row that is refused, but the table that changed."""
        if not self._table_checked:  # once: a look at the table costs as much as a thousand rows
            self._same_table()
            self._table_checked = True
        if not isinstance(error, errors.RowRefused):
            self.sink.try_statements()

    def _narrowed(self, error: errors.InstepError) -> list[BatchPart]:
        """Return smaller parts that look for the refused row; one record is refused itself."""
        part = self.part
        if not part.isolate_failures:
            smaller = part.split(ISOLATED_RECORDS)
            if len(smaller) == 1:
                part.isolate_failures = True
            return smaller
        # The search did not find it: the refusal shows only at the commit, or it undoes the
        # whole transaction.
        halves = part.halves()
        if len(halves) > 1:
            return halves
        if part.refusal is not None:
            raise error
        part.refusal = slow.refusal_of(error, next(iter(self._events), None))
        self._decoded = None
        return [part]

    def _run(self, isolate_failures: bool) -> BatchOutcome:
        """Apply the part in one transaction, or in the two that a weaker guarantee uses."""
        guarantee = self.sink.target.guarantee
        if guarantee == "exactly-once" or (guarantee == "at-least-once" and self._has_delete()):
            with self.sink.transaction():
                before, special = self._lock()  # 1
                outcome = self._write(before, isolate_failures, special)  # 2-6
                self.check_topic()
                self._advance(before, outcome)  # 7
                self.at(8)
        elif guarantee == "at-least-once":
            with self.sink.transaction():
                before, special = self._lock()
                outcome = self._write(before, isolate_failures, special)
                self.check_topic()
            self.at(7)
            with self.sink.transaction():
                self._advance(self._lock()[0], outcome)
        else:
            outcome = self._write_at_most_once(self._claim(), isolate_failures)
        self.at(9)
        return outcome

    def _has_delete(self) -> bool:
        return any(event.values is None for event in self._events)

    def _claim(self) -> Position:
        """Advance the ledger before the rows are written; return where it stood."""
        if self.part.claimed is None:
            with self.sink.transaction():
                before, _ = self._lock()
                self.check_topic()
                self._advance(before)
            self.part.claimed = before
        self.at(7)
        return self.part.claimed

    def _write_at_most_once(self, claimed: Position, isolate_failures: bool) -> BatchOutcome:
        if self.part.lost:
            return self._outcome(0, (), (), 0, datetime.now(UTC))
        try:
            with self.sink.transaction():
                outcome = self._write(claimed, isolate_failures)
                totals = _totals_with(claimed, outcome)
                counted = msgspec.structs.replace(claimed, epoch=self.writer.epoch, totals=totals)
                self.sink.ledger.update_totals(counted)
            return outcome
        except errors.Unreachable:
            # The rows may have been committed. Writing them again could repeat them, so they count
            # as lost, which this guarantee allows.
            self.part.lost = True
            raise

    def check_topic(self) -> None:
        """Raise if the records are not of the topic that the writer knows."""
        self._same_topic()

    def _lock(self) -> tuple[Position, SpecialDocuments]:
        """Step 1. A partition that was added after the start has no row yet: it begins at 0."""
        self.at(1)
        positions, special = self.sink.lock([self.partition])
        position = positions.get(self.partition)
        if position is None:
            # A newer run may have raised the epoch of the other rows before this one existed.
            rows_of_others = self.sink.ledger.positions(lock=True).values()
            self._refuse_newer(max((row.epoch for row in rows_of_others), default=0))
            writer = self.writer
            position = Position(self.partition, 0, writer.epoch, writer.cluster_id, writer.topic_id)
            self.sink.ledger.create(position)
        self.check_position(position)
        return position, special

    def check_position(self, position: Position) -> None:
        """Raise if a newer run has fenced this one, or if the ledger was moved."""
        self._refuse_newer(position.epoch)
        self._refuse_moved(position)

    def _refuse_newer(self, epoch: int) -> None:
        if epoch > self.writer.epoch:
            raise fenced(self.sink.target.pipeline, epoch, self.writer.epoch)

    def _refuse_moved(self, position: Position) -> None:
        """Raise LedgerMoved if the ledger is not where this batch continues.

        Offsets between the ledger and the batch may be transaction markers, or records that
        compaction removed. A record that is still there means that the ledger was moved back.
        """
        first = self.part.records[0].offset // self._slots
        other_run = position.epoch < self.writer.epoch or position.topic_id != self.writer.topic_id
        if other_run or (
            first > position.next_offset
            and self._log_holds(self.partition, position.next_offset, first)
        ):
            raise errors.LedgerMoved(
                f"the ledger of {self.sink.target.pipeline!r}, partition {self.partition},"
                f" was moved to {position.next_offset}"
            )

    def _write(
        self,
        before: Position,
        isolate_failures: bool,
        special: SpecialDocuments | None = None,
    ) -> BatchOutcome:
        """Do steps 2 to 6."""
        taken = self.take(before)
        self.at(4)
        return self.write(taken, isolate_failures=isolate_failures, special=special)

    def write(
        self,
        taken: TakenRecords,
        *,
        isolate_failures: bool = False,
        special: SpecialDocuments | None = None,
    ) -> BatchOutcome:
        """Do steps 4 to 6."""
        verdicts, parked = rows.write(
            self.sink,
            taken.events,
            isolate_failures=isolate_failures,
            already_applied=taken.already_applied,
            at_step=self.at,
            stage_first=self.part.stage_first,
            special=special,
        )
        return self.keep(taken, verdicts, parked, isolate_failures=isolate_failures)

    def take(self, before: Position) -> TakenRecords:
        """Do steps 2 and 3: return the records that are not applied yet, and what they hold."""
        self.at(2)
        fresh, next_offset = self.part.records, before.next_offset * self._slots
        if fresh[0].offset < next_offset:
            fresh = [record for record in fresh if record.offset >= next_offset]
        already_applied = self.writer.already_applied_among(self.partition, fresh, self._slots)
        if already_applied:
            # What is in quarantine, or was skipped or dropped, stays so.
            kept = self.sink.journal.unapplied_in_range(
                self.partition, min(already_applied), max(already_applied) + 1
            )
            fresh = [record for record in fresh if record.offset not in kept]
        self.at(3)
        return TakenRecords(fresh, already_applied, *self._events_of(fresh, already_applied))

    def keep(
        self,
        taken: TakenRecords,
        verdicts: Sequence[Verdict],
        parked: Sequence[Parked] = (),
        *,
        isolate_failures: bool = False,
    ) -> BatchOutcome:
        """Do the rest of step 6: add to the journal what became of the records."""
        sink, now = self.sink, datetime.now(UTC)
        if sink.target.history and taken.events:
            skip_known = isolate_failures or bool(taken.already_applied)
            sink.journal.add_history(
                self.partition, taken.events, verdicts, now, skip_existing=skip_known
            )
        self._keep_quarantine(taken.fresh, taken.dead, parked, now, isolate_failures)
        return self._outcome(
            results.records_of(taken.fresh), taken.events, verdicts, len(taken.dead), now
        )

    def _events_of(
        self, fresh: Sequence[Record], already_applied: set[int]
    ) -> tuple[list[Event], list[DeadLetter]]:
        """Return what was decoded from these records, without what must not be applied again."""
        events, dead = self._events, self._dead
        if len(fresh) < len(self.part.records):
            offsets = {record.offset for record in fresh}
            events = [event for event in events if event.offset in offsets]
            dead = [letter for letter in dead if letter.record.offset in offsets]
        if already_applied:
            overtaken = self._overtaken(
                [event for event in events if event.offset in already_applied]
            )
            events = [event for event in events if event.offset not in overtaken]
        return events, dead

    def _overtaken(self, events: Sequence[Event]) -> set[int]:
        """Return the offsets of already applied events that would undo something newer.

        An event with an order value is left to the guard. A delete has none, nor has any event of
        a pipeline without an order: the history says whether it was the document's last. If the
        history knows nothing, a delete is not repeated.
        """
        target = self.sink.target
        doubtful = [
            event
            for event in events
            if event.order is None and (event.values is None or not target.rules.ordered)
        ]
        if not doubtful:
            return set()
        written = None
        if target.history:
            written = self.sink.journal.row_origins({event.document for event in doubtful})
        overtaken = set()
        for event in doubtful:
            last = written.last(event.document) if written else None
            here = position_of(target, self.partition, event.offset)
            if last != here and (last is not None or target.rules.ordered):
                overtaken.add(event.offset)
        return overtaken

    def _keep_quarantine(
        self,
        fresh: Sequence[Record],
        dead: Sequence[DeadLetter],
        parked: Sequence[Parked],
        now: datetime,
        skip_known: bool,
    ) -> None:
        if dead:
            self.sink.journal.add_dead_letters(self.partition, dead, now, skip_existing=skip_known)
        if parked:
            records = {record.offset: record for record in fresh}
            waiting = [(one, records[one.event.offset]) for one in parked]
            self.sink.journal.add_parked(self.partition, waiting, now, skip_existing=skip_known)

    def _advance(self, before: Position, outcome: BatchOutcome | None = None) -> None:
        """Step 7. The outcome is not known yet if the ledger is advanced first."""
        if self.sink.target.guarantee == "exactly-once":
            self.at(7)
        after = self.next_position(before, outcome)
        if after is not None:
            self.sink.ledger.advance([(before, after)])

    def next_position(self, before: Position, outcome: BatchOutcome | None) -> Position | None:
        """Return the ledger's row behind these records; None if all were applied before."""
        last = self.part.records[-1]
        next_offset = last.offset // self._slots + 1
        if next_offset <= before.next_offset:
            return None  # the ledger must not go back
        return msgspec.structs.replace(
            before,
            next_offset=next_offset,
            epoch=self.writer.epoch,
            last_digest=digest(last),
            committed_at=datetime.now(UTC),
            totals=_totals_with(before, outcome) if outcome else before.totals,
        )

    def _outcome(
        self,
        count: int,
        events: Sequence[Event],
        verdicts: Sequence[Verdict],
        dead: int,
        now: datetime,
    ) -> BatchOutcome:
        counts = {verdict: verdicts.count(verdict) for verdict in Verdict}
        applied = events
        if counts[Verdict.APPLIED] < len(events):
            pairs = zip(events, verdicts, strict=True)
            applied = [event for event, verdict in pairs if verdict is Verdict.APPLIED]
        now_us = int(now.timestamp() * 1_000_000)
        ages = [now_us - event.at_us for event in applied if event.at_us is not None]
        return BatchOutcome(self.partition, count, counts, dead, batch.bounded(ages))

    def at(self, step: int) -> None:
        """Report a step to the probe."""
        if self._probe is not batch.no_probe:
            first, last = (self.part.records[at].offset // self._slots for at in (0, -1))
            pipeline = self.sink.target.pipeline
            self._probe(ProbeEvent(pipeline, step, self.partition, first, last))


def _totals_with(before: Position, outcome: BatchOutcome) -> dict[str, int]:
    """Return the totals of a partition with one more outcome."""
    return {name: before.totals.get(name, 0) + count for name, count in outcome.totals.items()}
