"""The one transaction of a sink: all rows of a micro-batch, and that it is applied.

In the driver, in one transaction of the target database:

1. Lock the sink's row. A run that is not known takes the next epoch; an older one is fenced.
2. Decide whether the batch is applied, skipped or refused (`decision.py`).
3. Take the rows from the messages of the tasks, and those that they staged. Count the staged ones.
   Of several tables, all deletes come first, from the last table to the first.
4. Read the rows of each table in columns (`typed_rows.py`). Rows that need more than that are
   decoded as a pipeline decodes records. Without an order, a key occurs once.
5. Write them through the pipeline's write path (`pipeline/apply`), under key and guard.
6. Keep refused rows in quarantine, or refuse the batch, as `on_error` says.
7. Advance the sink's row by compare-and-set, and keep what identifies the batch.
8. Commit. On any error everything is rolled back.

A commit whose answer was lost needs no special case: the next attempt finds the batch applied, or
not. Unlike a pipeline's batch, this one is never split into several transactions: Spark may bring
its rows in another order when it repeats it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from instep import errors
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.guard import DocumentId, Parked
from instep.pipeline.apply import fast, rows
from instep.pipeline.apply.batch import ProbeEvent, find_probe
from instep.sinks.batches import Batches, LockedSink, StoredBatch, StoredSink
from instep.sinks.journal_entries import SpecialDocuments
from instep.sinks.sink import Sink
from instep.spark_sink import decision, encoding, quarantine
from instep.spark_sink.decision import BatchStep, IncomingBatch
from instep.spark_sink.definition import SinkDefinition, SinkTable
from instep.spark_sink.typed_rows import TypedReader

PARTITION = 0  # in quarantine: rows of a sink have numbers in place of offsets
ROWS_AT_ONCE = 500_000
BYTES_AT_ONCE = 32 * 1024 * 1024
RECORDS_AT_ONCE = 50_000  # of rows that cannot be written in columns
OUTRUN_MAX = 3
REFUSED_SHOWN = 3


class TaskMessage(msgspec.Struct, frozen=True):
    """What a task tells the driver: its rows, or the token under which it staged them."""

    query_id: str
    run_id: str
    digest: str
    chunks: list[bytes] = []
    token: str | None = None
    staged: int = 0  # the number of pieces under the token


class MergeResult(msgspec.Struct, frozen=True):
    """What became of a batch: its rows, and how many of them are in quarantine, by reason."""

    step: BatchStep
    rows: int = 0
    reasons: dict[str, int] = {}

    @property
    def quarantined(self) -> int:
        """Return the number of rows in quarantine."""
        return sum(self.reasons.values())


class TablePass(msgspec.Struct, frozen=True):
    """The rows of one table that are written together: all, only deletes, or all others."""

    table: int
    deletes: bool | None = None


def passes(tables: Sequence[SinkTable]) -> list[TablePass]:
    """Return in which order rows are written.

    Of several tables, deletes come first, lines before their parents; then all other rows, parents
    first, as in a pipeline with several tables. With an order, a delete and another row of the same
    key end the same whichever comes first; without one, a batch may not have both.
    """
    if len(tables) == 1:
        return [TablePass(0)]
    numbers = range(len(tables))
    deletes = [TablePass(one, deletes=True) for one in reversed(numbers) if tables[one].delete_when]
    return [*deletes, *(TablePass(one, deletes=False) for one in numbers)]


class _WaitingRows:
    """Rows of one table that are not written yet, with the number of the first of each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, pa.RecordBatch]] = []
        self.count = self.size = 0

    def add(self, first: int, batch: pa.RecordBatch) -> None:
        """Add rows whose numbers begin with `first`."""
        self.batches.append((first, batch))
        self.count += batch.num_rows
        self.size += batch.nbytes

    def records(self, table: SinkTable) -> Iterator[tuple[Record, bool]]:
        """Yield the rows as records, and whether each deletes its key."""
        for first, batch in self.batches:
            rows = encoding.json_rows(batch, table)
            for number, (row, is_delete) in enumerate(rows, start=first):
                yield Record(number, -1, b"", row), is_delete


class Merge:
    """One micro-batch on its way into the tables. May be applied again after an error."""

    def __init__(
        self,
        definition: SinkDefinition,
        sinks: Sequence[Sink],
        batch: IncomingBatch,
        messages: Sequence[TaskMessage],
        *,
        same_tables: Callable[[], None],
        is_stream: bool = True,
    ) -> None:
        """Take the batch and its rows.

        `same_tables` raises if a table changed since it was inspected; it is called before rows
        count as refused. Without `is_stream` the batch is a single write: it has no predecessor,
        and its run id only tells whether it was committed before.
        """
        self._definition, self._sinks = definition, sinks
        self._batch, self._messages = batch, messages
        self._same_tables, self._is_stream = same_tables, is_stream
        self._probe = find_probe()
        self._decoders: dict[int, Decoder] = {}  # of tables with rows that need one
        self._readers = [
            TypedReader(table, sink.target, sink.record_bytes_max)
            for table, sink in zip(definition.tables, sinks, strict=True)
        ]
        self._batches = Batches(sinks[0].connection, definition.name)
        self._special: dict[int, SpecialDocuments] = {}
        self._isolate_failures = self._stage_first = False
        self._times_outrun = 0

    def apply(self) -> MergeResult:
        """Apply the batch, or find that it is applied already."""
        while True:
            try:
                with self._shortfalls_are_refusals(self._times_outrun >= OUTRUN_MAX):
                    return self._run()
            except fast.LateRows:
                self._stage_first = True
            except errors.Outrun:
                self._times_outrun += 1
                if self._times_outrun > OUTRUN_MAX:
                    raise
                self._same_tables()
            except errors.MAY_BE_A_ROW as error:
                if self._isolate_failures:
                    raise
                self._same_tables()
                if not isinstance(error, errors.RowRefused):
                    for sink in self._sinks:
                        sink.try_statements()
                self._isolate_failures = True

    @contextmanager
    def _shortfalls_are_refusals(self, when: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for sink in self._sinks:
                stack.enter_context(sink.shortfall_is_refusal(when))
            yield

    def _run(self) -> MergeResult:
        with self._sinks[0].transaction():
            self._at(1)
            locked = self._lock()
            before, run_epoch = locked.stored, locked.run_epoch
            if not self._is_stream:
                return self._write_once(before, run_epoch)
            epoch = decision.epoch_of(self._definition.name, before, run_epoch)
            self._at(2)
            step = decision.decide(self._definition.name, before, self._batch, locked.batches.get)
            if run_epoch is None:
                self._keep_tables()
                self._batches.add_run(self._batch.run_id, epoch)
                self._batches.remove_staged_by_others(self._batch.run_id)
                self._batches.remove_old_writes()
            after = msgspec.structs.replace(before, epoch=epoch)
            result, applied = MergeResult(step), None
            if step is BatchStep.APPLY:
                result = self._write(before.next_row)
                after = StoredSink(
                    self._batch.query_id,
                    self._batch.batch_id,
                    epoch,
                    before.next_row + result.rows,
                )
                applied = StoredBatch(self._batch.offsets, self._batch.digest)
            self._at(7)
            self._batches.advance(before, after, applied)
            self._remove_staged()
            self._at(8)
        self._at(9)
        return result

    def _lock(self) -> LockedSink:
        """Do step 1, and ask for special documents in the same round trip."""
        locked = self._batches.lock_for(
            self._batch.run_id,
            self._batch.batch_id,
            [sink.journal.special_documents_query() for sink in self._sinks],
        )
        self._special = {
            table: SpecialDocuments.of_rows(rows) for table, rows in enumerate(locked.answers)
        }
        return locked

    def _write_once(self, before: StoredSink, run_epoch: int | None) -> MergeResult:
        """Write the rows of a single write, unless they were committed by an attempt before."""
        if run_epoch is not None:
            return MergeResult(BatchStep.SKIP)
        self._keep_tables()
        result = self._write(before.next_row)
        # with the epoch of the stream, so that a stream of the same name is not fenced
        self._batches.add_run(self._batch.run_id, before.epoch)
        after = msgspec.structs.replace(before, next_row=before.next_row + result.rows)
        self._batches.advance(before, after)
        # Only its own: a stream of the same name may have staged rows for its next batch.
        self._batches.remove_write(self._batch.run_id)
        self._batches.remove_old_writes()
        return result

    def _keep_tables(self) -> None:
        """Keep how the tables are written, so that quarantine can apply a row again."""
        pairs = zip(self._definition.tables, self._sinks, strict=True)
        self._batches.keep_tables(
            {
                sink.target.pipeline: quarantine.definition_text(table, sink.target.mapping)
                for table, sink in pairs
            }
        )

    def _remove_staged(self) -> None:
        if any(message.token is not None for message in self._messages):
            self._batches.remove_staged(self._batch.run_id, self._batch.batch_id)

    def _write(self, next_row: int) -> MergeResult:
        """Do steps 3 to 6 for all tables."""
        self._at(3)
        count = 0
        reasons: Counter[str] = Counter()
        seen: list[set[DocumentId]] = [set() for _ in self._sinks]
        for part in passes(self._definition.tables):
            waiting = _WaitingRows()
            for batch in self._rows_of(part):
                waiting.add(next_row + count, batch)
                count += batch.num_rows
                if waiting.count >= ROWS_AT_ONCE or waiting.size >= BYTES_AT_ONCE:
                    reasons += self._write_rows(part.table, waiting, seen[part.table])
                    waiting = _WaitingRows()
            if waiting.count:
                reasons += self._write_rows(part.table, waiting, seen[part.table])
        return MergeResult(BatchStep.APPLY, count, dict(reasons))

    def _rows_of(self, part: TablePass) -> Iterator[pa.RecordBatch]:
        """Return the rows of all tasks that a pass writes."""
        delete_when = self._definition.tables[part.table].delete_when
        for chunk in self._chunks():
            if chunk.table != part.table:
                continue
            for batch in chunk.batches():
                if part.deletes is None or delete_when is None:
                    yield batch
                elif found := encoding.split(batch, delete_when, deletes=part.deletes):
                    yield found

    def _chunks(self) -> Iterator[encoding.RowChunk]:
        for message in self._messages:
            for data in message.chunks:
                yield encoding.unpack(data)
            if message.token is not None:
                for data in self._batches.staged(message.token, message.staged):
                    yield encoding.unpack(data)

    def _write_rows(self, table: int, waiting: _WaitingRows, seen: set[DocumentId]) -> Counter[str]:
        """Write rows of one table; return how many are in quarantine, by reason."""
        self._at(4)
        reasons: Counter[str] = Counter()
        if not self._isolate_failures and self._write_typed(table, waiting, seen):
            return reasons
        found = waiting.records(self._definition.tables[table])
        while part := list(itertools.islice(found, RECORDS_AT_ONCE)):
            reasons += self._write_records(table, part, seen)
        return reasons

    def _write_typed(self, table: int, waiting: _WaitingRows, seen: set[DocumentId]) -> bool:
        """Write rows in columns; return False, with nothing written, if that is not possible."""
        sink = self._sinks[table]
        typed = self._readers[table].read([batch for _, batch in waiting.batches])
        if typed is None:
            return False
        documents: list[DocumentId] = []
        if not sink.target.rules.ordered:
            documents = typed.documents()
            if len(documents) < typed.taken or not seen.isdisjoint(documents):
                return False
        self._at(5)
        # Only the first rows of a table may rely on it: they may add special documents.
        special = self._special.pop(table, None)
        if not fast.write_columns(sink, typed, stage_first=self._stage_first, special=special):
            return False
        seen.update(documents)
        self._at(6)
        return True

    def _write_records(
        self, table: int, waiting: Sequence[tuple[Record, bool]], seen: set[DocumentId]
    ) -> Counter[str]:
        """Write rows as records; return how many are in quarantine, by reason."""
        sink = self._sinks[table]
        records = [record for record, _ in waiting]
        events, dead = self._decoder(table).decode_all(records)
        deletes = {record.offset for record, is_delete in waiting if is_delete}
        if deletes:
            events = [
                quarantine.deleting(event) if event.offset in deletes else event for event in events
            ]
        if not sink.target.rules.ordered:
            self._check_unique(sink, events, seen)
        self._at(5)
        _, parked = rows.write(
            sink,
            events,
            isolate_failures=self._isolate_failures,
            stage_first=self._stage_first,
            special=self._special.pop(table, None),
        )
        self._at(6)
        if not (dead or parked):
            return Counter()
        if self._definition.on_error == "stop":
            raise _refused(sink, records, dead, parked)
        now = datetime.now(UTC)
        by_offset = {record.offset: record for record in records}
        if dead:
            sink.journal.add_dead_letters(PARTITION, dead, now)
        if parked:
            sink.journal.add_parked(
                PARTITION, [(one, by_offset[one.event.offset]) for one in parked], now
            )
        return Counter(
            [letter.reason.value for letter in dead] + [one.refusal.reason.value for one in parked]
        )

    def _decoder(self, table: int) -> Decoder:
        if table not in self._decoders:
            sink = self._sinks[table]
            self._decoders[table] = Decoder(sink.target.mapping, sink.record_bytes_max)
        return self._decoders[table]

    def _at(self, step: int) -> None:
        batch_id = self._batch.batch_id
        self._probe(ProbeEvent(self._definition.name, step, PARTITION, batch_id, batch_id))

    def _check_unique(self, sink: Sink, events: Sequence[Event], seen: set[DocumentId]) -> None:
        for event in events:
            if event.document in seen:
                shown = str(event.document).replace("\x1f", ", ")
                raise errors.KeyNotUnique(
                    f"batch {self._batch.batch_id} of sink {self._definition.name!r} has several"
                    f" rows of table {sink.target.table} with the key {shown}",
                    "aggregate to one row per key, or say which row is the latest: order",
                )
            seen.add(event.document)


def _refused(
    sink: Sink, records: Sequence[Record], dead: Sequence[DeadLetter], parked: Sequence[Parked]
) -> errors.RowRefused:
    """Return the error for rows that cannot be written, with the first of them."""
    by_offset = {record.offset: record for record in records}
    shown = [(letter.record, f"{letter.reason.value}: {letter.detail}") for letter in dead]
    shown += [
        (by_offset[one.event.offset], f"{one.refusal.reason.value}: {one.refusal.detail}")
        for one in parked
    ]
    lines = [
        f"  {(record.value or b'').decode(errors='replace')[:200]} ({why})"
        for record, why in shown[:REFUSED_SHOWN]
    ]
    return errors.RowRefused(
        f"{len(shown)} rows of the batch cannot be written to table {sink.target.table}:\n"
        + "\n".join(lines),
        "correct the query or the table and start the query again; or keep such rows in quarantine:"
        ' on_error = "park"',
    )
