"""The one transaction: where "in order per document, exactly once" is kept.

A task brings the records of one partition in offset order. In the target database, in one transaction:

1. lock the ledger row of this partition; a newer epoch than mine means that I am fenced: stop. An older one, or a record
   between the ledger's next offset and mine, means that the ledger was moved (rewound, or a backup was put back): start
   again from it
2. drop records below the ledger's next offset: they are applied already
3. take what they hold, decoded beforehand: events, and dead letters with their reasons
4. read what is stored of the documents that the events name, and which of them are parked
5. settle: per document, what the guard lets through, and what has to wait
6. write: documents in id order, history, dead letters, parked events
7. make sure that the records came from the topic that the ledger knows; advance the ledger by compare-and-set
8. commit; on any error everything is rolled back, and the caller tries again by the error's type

A commit whose answer was lost needs no care: the next try finds the ledger moved, or not, and step 2 does the rest.

The weaker guarantees part step 7 from the rest: at-least-once commits 1-6, then 7; at-most-once commits 7 first. A crash
between the two repeats or loses that batch, which is what they allow. A batch with a delete is one transaction under
at-least-once too: the delete, done again, would remove what the events behind it made, and these would be repeated ones by then.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from instep import errors
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.guard import Verdict
from instep.document.reasons import Refusal
from instep.pipeline.apply import rows
from instep.sinks import quarantine
from instep.sinks.sink import Sink
from instep.sinks.target import Position

Probe = Callable[["ProbeEvent"], None]
Holds = Callable[[int, int, int], bool]
Check = Callable[[], None]


OUTRUN_MAX = 3
ISOLATED_RECORDS = 1_000  # in a transaction that looks for refused rows: what is good of a large batch is kept in between
TOTALS = ("records", *(verdict.value for verdict in Verdict), "dead")  # what the ledger sums up
FRESHNESS_US_MAX = (
    24 * 3600 * 1_000_000
)  # clocks differ and dates are absurd; beyond a day the number says nothing


class Writer(msgspec.Struct, frozen=True):
    """Who writes: the epoch that this run took, and the log it reads."""

    epoch: int
    cluster_id: str
    topic_id: str
    applied: dict[
        int, list[tuple[int, int]]
    ] = {}  # offsets of each partition that were applied before the ledger was moved

    def applied_among(self, partition: int, records: Sequence[Record]) -> set[int]:
        """The offsets of those of these records that were applied before."""
        ranges = self.applied.get(partition, ())
        return (
            {
                one.offset
                for one in records
                if any(start <= one.offset < end for start, end in ranges)
            }
            if ranges
            else set()
        )


class BatchOutcome(msgspec.Struct, frozen=True):
    """What one transaction did."""

    partition: int
    records: int
    verdicts: dict[Verdict, int]
    dead: int
    freshness_us: list[int]

    @property
    def totals(self) -> dict[str, int]:
        """The counts that the ledger sums up."""
        return dict(
            zip(
                TOTALS,
                (self.records, *(self.verdicts[verdict] for verdict in Verdict), self.dead),
                strict=True,
            )
        )


class ProbeEvent(msgspec.Struct, frozen=True):
    """A step that begins, and the records it is about; 9 is the end, and 0 a task that begins and knows no records yet."""

    pipeline: str
    step: int
    partition: int = -1
    first: int = -1
    last: int = -1


def no_probe(_moment: ProbeEvent) -> None:
    """Tests and trials watch the steps; a pipeline at work does not."""


def _together(outcomes: Sequence[BatchOutcome]) -> BatchOutcome:
    """What several transactions did."""
    if len(outcomes) == 1:
        return outcomes[0]
    return BatchOutcome(
        outcomes[0].partition,
        sum(one.records for one in outcomes),
        {verdict: sum(one.verdicts[verdict] for one in outcomes) for verdict in Verdict},
        sum(one.dead for one in outcomes),
        [age for one in outcomes for age in one.freshness_us],
    )


def no_check() -> None:
    """Nothing to make sure of."""


def digest(record: Record) -> str:
    """What the ledger keeps of the last applied record, to know the log again."""
    key, value = record.key or b"", record.value or b""
    # Spark counts years before 1582 by another calendar: a negative timestamp is none, here as everywhere
    facts = b"%d %d %d %d " % (
        max(record.timestamp_ms, -1),
        len(key) if record.key is not None else -1,
        len(key),
        len(value),
    )
    return hashlib.blake2b(facts + key + value, digest_size=16).hexdigest()


def fenced(pipeline: str, newest: int, mine: int) -> errors.Fenced:
    """The error for a writer that a newer run has taken over from."""
    return errors.Fenced(
        f"pipeline {pipeline!r} was started elsewhere: epoch {newest} is newer than {mine}",
        f"the newer run goes on, and nothing is lost; to take over from it: instep run {shlex.quote(pipeline)}",
    )


class BatchPart:
    """Records of a batch that are applied in a transaction of their own."""

    def __init__(self, records: Sequence[Record], *, isolate: bool = False) -> None:
        self.records = records
        self.isolate = isolate  # find the rows that the table refuses
        self.refusal: Refusal | None = (
            None  # of its only record: nothing but the commit shows that it is refused
        )
        self.claimed: Position | None = (
            None  # at-most-once: where the ledger stood before it was moved
        )
        self.lost = False  # at-most-once: nobody knows whether the rows were committed, so they are not written again

    def decode(self, decoder: Decoder) -> tuple[list[Event], list[DeadLetter]]:
        events, dead = decoder.decode_all(self.records)
        if self.refusal is not None:
            events = [
                msgspec.structs.replace(event, refusal=event.refusal or self.refusal)
                for event in events
            ]
        return events, dead

    def split(self, size: int) -> list[BatchPart]:
        """The same records in parts of at most this size; a part that is claimed, or has a single record, stays whole."""
        if self.claimed is not None or len(self.records) <= size:
            return [self]
        starts = range(0, len(self.records), size)
        return [
            BatchPart(self.records[start : start + size], isolate=self.isolate) for start in starts
        ]


class BatchTransaction:
    """The records of one partition on their way through the steps. May be applied again after an error.

    They are one transaction, unless the table refuses rows or the database reaches a limit: then they are several, each with
    its own step of the ledger, so that what was good is kept and not done again.
    """

    def __init__(
        self,
        writer: Writer,
        partition: int,
        records: Sequence[Record],
        holds: Holds,
        probe: Probe = no_probe,
        *,
        same_topic: Check = no_check,
        same_table: Check = no_check,
    ) -> None:
        """`holds` asks the log whether it has records of a partition from one offset up to another.

        `same_topic` raises when the records are not of the topic that the writer knows; it is called before anything is
        committed. `same_table` raises when the table is no longer the one that the mapping was compiled for; it is called
        before rows that the table refuses are set aside.
        """
        self.writer, self.partition = writer, partition
        self._holds, self._probe, self._same_topic, self._same_table = (
            holds,
            probe,
            same_topic,
            same_table,
        )
        self._parts = [BatchPart(records)]
        self._done: list[BatchOutcome] = []
        self._outrun = 0
        self._found_same = False
        self._decoded: tuple[BatchPart, Decoder, list[Event], list[DeadLetter]] | None = None

    def apply(self, sink: Sink, decoder: Decoder) -> BatchOutcome:
        """Apply the records under the pipeline's guarantee."""
        self.sink = sink
        while self._parts:
            self.part = self._parts[0]
            self._decode(decoder)
            instead = self._apply_part()
            if isinstance(instead, BatchOutcome):
                self._done.append(instead)
                del self._parts[0]
                if self._parts and self.part.isolate and instead.verdicts[Verdict.PARKED]:
                    self._parts[0].isolate = True  # refused rows come in crowds
            else:
                self._parts[:1] = instead
        return _together(self._done)

    def _decode(self, decoder: Decoder) -> None:
        """Before the transaction, which then holds its locks for a shorter time; and once for all tries."""
        if (
            self._decoded is None
            or self._decoded[0] is not self.part
            or self._decoded[1] is not decoder
        ):
            self._decoded = (self.part, decoder, *self.part.decode(decoder))
        _, _, self._events, self._dead = self._decoded

    def _apply_part(self) -> BatchOutcome | list[BatchPart]:
        """What the first part came to, or the parts to try in its place."""
        part, sink = self.part, self.sink
        sink.passes_over_is_refusal = self._outrun >= OUTRUN_MAX
        try:
            return self._run(careful=part.isolate)
        except errors.Outrun:
            self._outrun += 1
            if self._outrun > 1:
                self._same_table()
            raise
        except errors.TooMuchAtOnce:
            halves = part.split(max(1, len(part.records) // 2))
            if len(halves) == 1:
                raise
            return halves
        except errors.MAY_BE_A_ROW as error:
            self._refuse_changed(error)
            return self._isolated(error)

    def _refuse_changed(self, error: errors.InstepError) -> None:
        """Raise when it is not a row that is refused: the table is another one now, or takes no statement at all."""
        if (
            not self._found_same
        ):  # once is enough: a look at the table costs as much as a thousand rows
            self._same_table()
            self._found_same = True
        if not isinstance(error, errors.RowRefused):
            self.sink.try_statements()

    def _isolated(self, error: errors.InstepError) -> list[BatchPart]:
        """The part in smaller ones, which look for the row that is refused; a single record is refused itself."""
        part = self.part
        if not part.isolate:
            some = part.split(ISOLATED_RECORDS)
            if len(some) == 1:
                part.isolate = True
            return some
        # it was looked for and not found: the refusal shows at the commit only, or undoes the whole transaction
        halves = part.split(max(1, len(part.records) // 2))
        if len(halves) > 1:
            return halves
        if part.refusal is not None:
            raise error
        part.refusal, self._decoded = rows.refused_by(error, next(iter(self._events), None)), None
        return [part]

    def _run(self, careful: bool) -> BatchOutcome:
        """The whole in one transaction, or in the two that a weaker guarantee asks for."""
        match self.sink.target.guarantee:
            case guarantee if guarantee == "exactly-once" or (
                guarantee == "at-least-once" and self._has_delete
            ):
                with self.sink.transaction():
                    before = self._lock()  # 1
                    outcome = self._write(before, careful)  # 2-6
                    self._same_topic()
                    self._advance(before, outcome)  # 7
                    self._at(8)
            case "at-least-once":
                with self.sink.transaction():
                    outcome = self._write(self._lock(), careful)
                    self._same_topic()
                self._at(7)
                with self.sink.transaction():
                    self._advance(self._lock(), outcome)
            case _:
                if self.part.claimed is None:
                    with self.sink.transaction():
                        before = self._lock()
                        self._same_topic()
                        self._advance(before)
                    self.part.claimed = before
                self._at(7)
                outcome = self._write_at_most_once(self.part.claimed, careful)
        self._at(9)
        return outcome

    @property
    def _has_delete(self) -> bool:
        return any(event.values is None for event in self._events)

    def _write_at_most_once(self, claimed: Position, careful: bool) -> BatchOutcome:
        if self.part.lost:
            return self._outcome(0, (), (), (), datetime.now(UTC))
        try:
            with self.sink.transaction():
                outcome = self._write(claimed, careful)
                self.sink.keep_totals(
                    msgspec.structs.replace(
                        claimed, epoch=self.writer.epoch, totals=_sum(claimed, outcome)
                    )
                )
            return outcome
        except errors.Unreachable:
            self.part.lost = True
            raise

    def _lock(self) -> Position:
        """Step 1. A partition that came to be after the start has no row yet: it begins where its log does."""
        self._at(1)
        position = self.sink.lock(self.partition)
        if position is None:
            newest = max(
                (known.epoch for known in self.sink.positions(lock=True).values()), default=0
            )
            self._refuse_newer(newest)
            position = Position(
                self.partition, 0, self.writer.epoch, self.writer.cluster_id, self.writer.topic_id
            )
            self.sink.create(position)
        self._refuse_newer(position.epoch)
        self._refuse_moved(position)
        return position

    def _refuse_newer(self, epoch: int) -> None:
        if epoch > self.writer.epoch:
            raise fenced(self.sink.target.pipeline, epoch, self.writer.epoch)

    def _refuse_moved(self, position: Position) -> None:
        """Offsets between the ledger and the batch are transaction markers or were compacted away; a record there is not."""
        first = self.part.records[0].offset
        other = position.epoch < self.writer.epoch or position.topic_id != self.writer.topic_id
        if other or (
            first > position.next_offset
            and self._holds(self.partition, position.next_offset, first)
        ):
            raise errors.LedgerMoved(
                f"the ledger of {self.sink.target.pipeline!r}, partition {self.partition}, was moved to {position.next_offset}"
            )

    def _write(self, before: Position, careful: bool) -> BatchOutcome:
        """Steps 2 to 6."""
        sink = self.sink
        self._at(2)
        fresh = [record for record in self.part.records if record.offset >= before.next_offset]
        again = self.writer.applied_among(self.partition, fresh)
        if again:
            # what was set aside of them stays so
            kept = quarantine.passed_over_within(sink, self.partition, min(again), max(again) + 1)
            fresh = [record for record in fresh if record.offset not in kept]
        self._at(3)
        events, dead = self._events, self._dead
        if len(fresh) < len(self.part.records):
            offsets = {record.offset for record in fresh}
            events = [event for event in events if event.offset in offsets]
            dead = [letter for letter in dead if letter.record.offset in offsets]
        if again:
            overtaken = self._overtaken([event for event in events if event.offset in again])
            events = [event for event in events if event.offset not in overtaken]
        self._at(4)
        verdicts, parked = rows.write(sink, events, careful=careful, known=again, at_step=self._at)
        now = datetime.now(UTC)
        if sink.target.history and events:
            sink.keep_history(
                self.partition, events, verdicts, now, skip_known=careful or bool(again)
            )
        if dead:
            sink.keep_dead(self.partition, dead, now, skip_known=careful)
        if parked:
            records = {record.offset: record for record in fresh}
            waiting = [(one, records[one.event.offset]) for one in parked]
            sink.keep_parked(self.partition, waiting, now, skip_known=careful)
        return self._outcome(len(fresh), events, verdicts, dead, now)

    def _overtaken(self, events: Sequence[Event]) -> set[int]:
        """Of events that come again, the offsets of those that would undo what was applied to their documents after them.

        An event with an order value is left to the guard. A delete has none, nor has any event of a pipeline without an order:
        the history says whether it was the document's last. Where the history knows nothing, a delete is not done again.
        """
        sink = self.sink
        doubtful = [
            event
            for event in events
            if event.order is None and (event.values is None or not sink.target.rules.ordered)
        ]
        if not doubtful:
            return set()
        wrote = (
            quarantine.wrote(sink, {event.document for event in doubtful})
            if sink.target.history
            else None
        )
        found = set()
        for event in doubtful:
            last = wrote.last(event.document) if wrote else None
            here = quarantine.RecordPosition(sink.target.topic, self.partition, event.offset)
            if last != here and (last is not None or sink.target.rules.ordered):
                found.add(event.offset)
        return found

    def _advance(self, before: Position, outcome: BatchOutcome | None = None) -> None:
        """Step 7. The outcome is not known yet where the ledger is moved first."""
        if self.sink.target.guarantee == "exactly-once":
            self._at(7)
        last = self.part.records[-1]
        if last.offset < before.next_offset:
            return
        after = msgspec.structs.replace(
            before,
            next_offset=last.offset + 1,
            epoch=self.writer.epoch,
            last_digest=digest(last),
            committed_at=datetime.now(UTC),
            totals=_sum(before, outcome) if outcome else before.totals,
        )
        self.sink.advance(before, after)

    def _outcome(
        self,
        count: int,
        events: Sequence[Event],
        verdicts: Sequence[Verdict],
        dead: Sequence[Any],
        now: datetime,
    ) -> BatchOutcome:
        counts = {verdict: verdicts.count(verdict) for verdict in Verdict}
        now_us = int(now.timestamp() * 1_000_000)
        times = [
            event.at_us
            for event, verdict in zip(events, verdicts, strict=True)
            if verdict is Verdict.APPLIED and event.at_us is not None
        ]
        return BatchOutcome(
            self.partition,
            count,
            counts,
            len(dead),
            [min(max(now_us - at, 0), FRESHNESS_US_MAX) for at in times],
        )

    def _at(self, step: int) -> None:
        if self._probe is not no_probe:
            first, last = self.part.records[0].offset, self.part.records[-1].offset
            self._probe(ProbeEvent(self.sink.target.pipeline, step, self.partition, first, last))


def _sum(before: Position, outcome: BatchOutcome) -> dict[str, int]:
    """The totals of a partition with one more outcome."""
    return {name: before.totals.get(name, 0) + count for name, count in outcome.totals.items()}
