"""What `instep reconcile` does inside Spark tasks.

Two kinds of tasks exist: one turns records and rows into steps, the other turns sorted steps into
findings. Rows of the table and events of the log are sorted together by document. Marks use
partition numbers below 0, so they come before the events of their document. They say that a
document was written by the pipeline, was loaded, was replayed, is parked, was deleted, is in the
table, or has waiting events. A task never holds more than one chunk of records, or more than one
document.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET
from pyspark import SparkFiles

from instep.document import canonical, comparison, folded_rows, folding, guard
from instep.document.comparison import DocumentFinding, DocumentState, Question
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.folded_rows import FoldedRows, RowStep
from instep.document.folding import ABSENT, FoldedRun, FoldedState, FoldStep, Shape
from instep.document.mapping import Mapping
from instep.document.reasons import Refusal
from instep.pipeline.micro_batch import arrow_records
from instep.reconcile import coverage
from instep.reconcile.coverage import Ranges

CHUNK_RECORDS_MAX = 100_000
CHUNK_BYTES_MAX = 32 * 1024 * 1024
BATCH_ROWS = 10_000

# The kinds of marks, as numbers of partitions that no topic has. FOUND marks hold the table's row.
READ, LOADED = -8, -7
RECORDED, REPLAYED, PARKED, DELETED, FOUND, WAITING = -6, -5, -4, -3, -2, -1
NO_LOG = -1  # the partition of a row of another source, which has no offset and no headers
UNREADABLE = 3  # the shape of a row of the source that cannot be decoded

SCHEMA = pa.schema(
    [
        ("document", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("order_value", pa.int64()),
        ("floor", pa.int64()),
        ("shape", pa.int8()),
        ("line", pa.binary()),
    ]
)
SPARK_SCHEMA = (
    "document string, partition int, offset long, timestamp_ms long, order_value long, floor long,"
    " shape byte, line binary"
)
FINDINGS = pa.schema(
    [
        ("kind", pa.string()),
        ("seems", pa.string()),
        ("document", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("order_value", pa.int64()),
        ("known", pa.bool_()),
        ("split", pa.bool_()),
        ("recorded", pa.bool_()),
        ("loaded", pa.bool_()),
        ("columns", pa.list_(pa.int32())),
        ("expected", pa.binary()),
        ("found", pa.binary()),
    ]
)
FINDINGS_SPARK = (
    "kind string, seems string, document string, partition int, offset long, order_value long,"
    " known boolean, split boolean, recorded boolean, loaded boolean, columns array<int>,"
    " expected binary, found binary"
)
COUNTS, UNREADABLE_KIND = "counts", "unreadable"

Batches = Iterator[pa.RecordBatch]
Row = tuple[Any, ...]


class FurtherPlan(msgspec.Struct, frozen=True):
    """A further table: its number and mapping, and the rules of the main table."""

    number: int
    mapping: Mapping
    main: guard.Rules


class ComparisonPlan(msgspec.Struct, frozen=True):
    """Everything that the tasks need besides their rows.

    If a further table is compared, the question is about its rows.
    """

    mapping: Mapping
    database: str
    question: Question
    excluded: dict[int, Any]  # by partition, a sorted array of offsets
    from_source: bool = False
    # By partition, the offsets that the pipeline has applied; a missing partition means all.
    applied: dict[int, Ranges] = {}
    # By partition, the last offset outside these ranges that `instep replay` has applied.
    replayed: dict[int, int] = {}
    # The source was loaded: only its documents are compared.
    after_load: bool = False
    # Offsets are numbers of results, with this many for each offset; see `document/results.py`.
    slots: int = 1
    further: FurtherPlan | None = None

    @property
    def compared(self) -> Mapping:
        """Return the mapping of the table that is compared."""
        return self.further.mapping if self.further else self.mapping


class Counts(msgspec.Struct):
    """The numbers of compared documents, of documents by kind, and of differences by column."""

    documents: int = 0
    kinds: dict[str, int] = {}
    columns: dict[str, int] = {}

    def count(self, kind: str) -> None:
        """Count one document of a kind."""
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def add(self, other: Counts) -> None:
        """Add the counts of another task."""
        self.documents += other.documents
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count
        for column, count in other.columns.items():
            self.columns[column] = self.columns.get(column, 0) + count

    def of(self, *kinds: str) -> int:
        """Return the number of documents of these kinds."""
        return sum(self.kinds.get(kind, 0) for kind in kinds)


def row_packer(mapping: Mapping, database: str) -> Callable[[Row], bytes]:
    """Return the function that packs the mapped columns of a table's row into one line."""
    forms = [canonical.former(column, database) for column in mapping.columns]

    def pack_row(row: Row) -> bytes:
        return folding.pack(
            [None if value is None else form(value) for form, value in zip(forms, row, strict=True)]
        )

    return pack_row


def mark(
    kind: int,
    document: str | None,
    *,
    offset: int = 0,
    order: int | None = None,
    line: bytes | None = None,
) -> Row:
    """Return a mark as a row of `SCHEMA`."""
    return (document, kind, offset, -1, order, None, None, line)


def steps_of_records(plan: ComparisonPlan, batches: Batches) -> Batches:
    """Decode records into steps, and drop the steps that cannot matter, chunk by chunk."""
    decoder = Decoder(plan.mapping)
    step_of = _stepper(plan)
    for chunk in _chunks(batches, from_source=plan.from_source):
        runs: dict[tuple[int, int, str], FoldedRun] = {}
        unreadable: list[Row] = []
        for partition, records in chunk.items():
            kept = _without(_within(records, plan, partition), plan.excluded.get(partition))
            ranges = plan.applied.get(partition, [])
            events, dead = decoder.decode_all(kept)
            times = {record.offset: record.timestamp_ms for record in kept}
            for event in events:
                name = str(event.document)
                if event.refusal is not None:  # it parks its document, or was skipped since
                    if plan.from_source:
                        unreadable.append(_unreadable(name, partition, event.offset, event.refusal))
                    continue
                step = step_of(partition, event, times[event.offset])
                if step is None:
                    continue
                # Events inside and outside the applied ranges must not thin each other out: of
                # those outside, only the replayed ones count, which is known only after the sort.
                segment = coverage.segment(ranges, event.offset)
                run = runs.get((partition, segment, name))
                if run is None:
                    run = runs[partition, segment, name] = FoldedRun()
                if plan.further:  # each step may have its own row
                    run.steps.append(step)
                else:
                    run.add(step, plan.question.rules)
            if plan.from_source:
                for letter in dead:
                    name = (letter.record.key or b"").decode(errors="replace")
                    unreadable.append(_unreadable(name, partition, letter.record.offset, letter))
        yield from _batches(SCHEMA, _step_rows(runs, unreadable))


def waiting_marks(plan: ComparisonPlan, batches: Batches) -> Batches:
    """Yield a mark for each document with events, its offset being the number of these events.

    Dead letters are counted in a mark without a document.
    """
    decoder = Decoder(plan.mapping)
    for chunk in _chunks(batches):
        counts: Counter[str | None] = Counter()
        for records in chunk.values():
            events, dead = decoder.decode_all(records)
            counts.update(str(event.document) for event in events)
            counts[None] += len(dead)
        rows = (mark(WAITING, name, offset=count) for name, count in counts.items() if count)
        yield from _batches(SCHEMA, rows)


def rows_of_files(names: list[str], batches: Batches) -> Batches:
    """Yield the rows of files that the driver wrote. Each task gets the numbers of its files."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            path = Path(names[number])
            if not path.is_absolute():
                path = Path(SparkFiles.get(names[number]))
            yield from pq.ParquetFile(path).iter_batches(BATCH_ROWS)


def compare_documents(plan: ComparisonPlan, batches: Batches) -> Batches:
    """Fold and compare, document by document. Yield the differences, and the counts at the end."""
    comparer = _RowsComparer(plan) if plan.further else _DocumentComparer(plan)
    for batch in batches:
        findings = [
            finding
            for row in zip(*(batch.column(name).to_pylist() for name in SCHEMA.names), strict=True)
            for finding in comparer.add(row)
        ]
        yield from _batches(FINDINGS, iter(findings))
    # Each task returns its counts as one more row, in the column `expected`.
    rows = [*comparer.finish()]
    rows.append((COUNTS, *[None] * 10, msgspec.json.encode(comparer.counts), None))
    yield from _batches(FINDINGS, iter(rows))


class _DocumentComparer:
    """The document whose rows are being collected, and the counts of the documents before it."""

    def __init__(self, plan: ComparisonPlan) -> None:
        self._question, self._applied = plan.question, plan.applied
        self._after_load, self._slots = plan.after_load, plan.slots
        # What a load wrote is not in the log: nothing is known of any column.
        self._loaded_line = folding.pack([ABSENT] * len(plan.mapping.columns))
        self._names = [column.name for column in plan.compared.columns]
        self.counts = Counts()
        self._document: str | None = None
        self._clear()

    def _clear(self) -> None:
        self._parked = self._waiting = self._recorded = False
        self._replayed: dict[int, int] = {}
        self._deleted_order: int | None = None
        self._is_loaded = False
        self._loaded_order: int | None = None
        self._read: int | None = None
        self._found: bytes | None = None
        self._unreadable: bytes | None = None
        self._states: list[FoldedState] = []
        self._partition = -1

    def add(self, row: Row) -> Sequence[Row]:
        """Add one row. If a new document begins, return the findings on the one before it."""
        document, partition, offset, timestamp_ms, order, floor, shape, line = row
        findings: Sequence[Row] = ()
        if document != self._document:
            findings = self.finish()
            self._document = document
        if partition >= 0:
            if shape == UNREADABLE:
                self._unreadable = line
            elif self._took_effect(partition, offset):
                # Each partition has its own order, so each gets a state. `folding.joined`
                # combines them if a document has events in several partitions.
                is_first = partition != self._partition
                self._partition = partition
                step = FoldStep(partition, offset, timestamp_ms, order, SHAPES[shape], line, floor)
                self._apply(step, is_first=is_first)
        elif partition == FOUND:
            self._find(line)
        elif partition == DELETED:
            self._deleted_order, self._recorded = order, True
        elif partition == PARKED:
            self._parked = True
        elif partition == RECORDED:
            self._recorded = True
        elif partition == LOADED:
            self._is_loaded, self._loaded_order = True, order
        elif partition == READ:
            self._read = order
        elif partition == REPLAYED:
            self._replayed[order] = max(offset, self._replayed.get(order, 0))
        else:
            self._waiting = True
        return findings

    def _apply(self, step: FoldStep, *, is_first: bool) -> None:
        """Apply an event; `is_first` is whether it is the first of its partition."""
        if is_first:
            self._states.append(self._first_state(step.partition))
        self._states[-1].apply(step, self._question.rules)

    def _find(self, line: bytes) -> None:
        """Take the row of the table."""
        self._found = line

    def _first_state(self, partition: int) -> FoldedState:
        """Return the state of a document before its events.

        If a row of a load was applied to it, older events do not matter, and nothing is known of
        its columns.
        """
        state = FoldedState()
        if self._is_loaded:
            loaded = FoldStep(partition, -1, -1, self._loaded_order, Shape.FULL, self._loaded_line)
            state.apply(loaded, self._question.rules)
        return state

    def _took_effect(self, partition: int, offset: int) -> bool:
        """Return whether an event was applied by the pipeline or by a replay.

        A replay applies a document's events up to the offset that its decision names.
        """
        ranges = self._applied.get(partition)
        return (
            ranges is None
            or coverage.contains(ranges, offset)
            or offset <= self._replayed.get(partition, -1)
        )

    def finish(self) -> Sequence[Row]:
        """Return the findings on the current document."""
        if self._document is None:
            return ()
        findings: Sequence[Row]
        if self._unreadable is not None:
            self.counts.count(UNREADABLE_KIND)
            empty = [None] * 8
            row = (UNREADABLE_KIND, None, self._document, *empty, self._unreadable, self._found)
            findings = [row]
        else:
            findings = self._compare(self._document)
        self._clear()
        return findings

    def _compare(self, document: str) -> Sequence[Row]:
        state = folding.joined(self._states, self._question.rules) if self._states else None
        if self._after_load and state is None:
            return ()  # the source does not have it
        question = self._question
        if self._is_loaded:  # for this document, the log is incomplete
            question = msgspec.structs.replace(question, whole=False)
        finding = comparison.compare(
            question,
            state,
            self._found,
            forgotten=self._deleted_order,
            parked=self._parked,
            waiting=self._waiting,
            recorded=self._recorded,
        )
        if finding is None:
            return ()
        if finding.kind in comparison.REAL and self._is_explained(finding, state):
            finding = comparison.NOT_IN_LOG
        return self._counted(document, finding, state, self._found)

    def _counted(
        self,
        document: str,
        finding: DocumentFinding,
        state: FoldedState | None,
        found: bytes | None,
    ) -> Sequence[Row]:
        """Count a finding; return it as a row if it is to be listed."""
        if finding.kind is DocumentState.NOT_OURS:
            self.counts.count(finding.kind.value)
            return ()
        self.counts.documents += 1
        self.counts.count(finding.kind.value)
        if finding.kind is DocumentState.DIFFERENT:
            columns = self.counts.columns
            for number in finding.columns:
                columns[self._names[number]] = columns.get(self._names[number], 0) + 1
        if finding.kind in (DocumentState.IN_STEP, DocumentState.NOT_IN_LOG):
            return ()
        return [self._row(document, finding, state, found)]

    def _is_explained(self, finding: DocumentFinding, state: FoldedState | None) -> bool:
        """Return whether a load, or events after it, explain a difference.

        With the topic: the row is the one that a load wrote. With the source of a load: an event
        decided, because it was read before, or later than the load.
        """
        question = self._question
        order = None
        if self._found is not None:
            order = comparison.order_of(question, folding.unpack(self._found))
        if self._is_loaded:
            return order is not None and order == self._loaded_order
        if not self._after_load or self._read is None:
            return False
        if not question.rules.ordered:
            return True
        if finding.kind is DocumentState.MISSING:
            # one of its events is a delete, of a document whose order value was not known
            return bool(self._read) and self._deleted_order is None
        is_tie = state is not None and order is not None and order == state.order
        return is_tie and question.guard_is_time

    def _row(
        self,
        document: str,
        finding: DocumentFinding,
        state: FoldedState | None,
        found: bytes | None,
    ) -> Row:
        last = state.last if state else None
        return (
            finding.kind.value,
            finding.seems.value,
            document,
            last.partition if last else None,
            last.offset // self._slots if last else None,
            state.order if state else None,
            state is not None,
            len(self._states) > 1,
            self._recorded,
            self._is_loaded,
            list(finding.columns),
            state.line if state else None,
            found,
        )


class _RowsComparer(_DocumentComparer):
    """The same for a further table: a document may have several rows, each with a finding.

    What the log leaves open is not judged: documents that a load wrote or a replay, documents with
    events in several partitions, and a missing row if an event before it may have been lost.
    """

    def __init__(self, plan: ComparisonPlan) -> None:
        super().__init__(plan)
        assert plan.further is not None
        main = self._main = plan.further.main
        self._may_be_stale = main.missing != "insert" or (main.ordered and not plan.question.whole)

    def _clear(self) -> None:
        super()._clear()
        self._folded: list[FoldedRows] = []
        self._found_rows: dict[str, bytes] = {}

    def _apply(self, step: FoldStep, *, is_first: bool) -> None:
        if is_first:
            self._folded.append(FoldedRows(self._main, self._question.rules))
        self._folded[-1].apply(step)

    def _find(self, line: bytes) -> None:
        row, values = msgspec.json.decode(line)
        self._found_rows[row] = values.encode()

    def _compare(self, _document: str) -> Sequence[Row]:
        expected: dict[str, FoldedState] = {}
        for state in self._folded:
            expected |= state.rows
        is_open = len(self._folded) > 1 or self._is_loaded or bool(self._replayed)
        findings: list[Row] = []
        for row in sorted(expected.keys() | self._found_rows.keys()):
            found = self._found_rows.get(row)
            finding = comparison.compare(
                self._question,
                expected.get(row),
                found,
                parked=self._parked,
                waiting=self._waiting,
                recorded=self._recorded,
            )
            if finding is None:
                continue
            is_missing = finding.kind is DocumentState.MISSING
            if finding.kind in comparison.REAL and (is_open or (is_missing and self._may_be_stale)):
                finding = comparison.NOT_IN_LOG
            findings += self._counted(row, finding, expected.get(row), found)
        return findings


SHAPES = {shape.value: shape for shape in Shape}


def _stepper(plan: ComparisonPlan) -> Callable[[int, Event, int], FoldStep | None]:
    """Return the function that makes an event's step, or None for a delete that does nothing."""
    forms = [canonical.former(column, plan.database) for column in plan.compared.columns]
    further = plan.further
    rules = further.main if further else plan.question.rules

    def packed(values: guard.Values) -> bytes:
        line: list[Any] = []
        for form, value in zip(forms, values, strict=True):
            if value is UNSET:
                line.append(ABSENT)
            else:
                line.append(None if value is None else form(value))
        return folding.pack(line)

    def packed_rows(event: Event, number: int) -> bytes:
        rows = []
        for row in event.further[number]:
            values = row.values or ()
            line = packed(values).decode()
            rows.append(RowStep(str(row.document), row.order, UNSET in values, line))
        return folded_rows.pack_rows(rows)

    def step_of(partition: int, event: Event, timestamp_ms: int) -> FoldStep | None:
        values = event.values
        line: bytes | None
        if values is not None and further:
            shape, line = Shape.FULL, packed_rows(event, further.number)
        elif values is not None:
            shape = Shape.PARTIAL if UNSET in values else Shape.FULL
            line = packed(values)
        elif rules.deletes == "row":
            shape, line = Shape.DELETE, None
        elif rules.deletes == "clear":
            shape, line = Shape.CLEAR, None if further else packed(rules.cleared)
        else:
            return None
        return FoldStep(partition, event.offset, timestamp_ms, event.order, shape, line)

    return step_of


def _unreadable(name: str, partition: int, offset: int, problem: DeadLetter | Refusal) -> Row:
    line = f"{problem.reason}: {problem.detail}".encode()
    return (name, partition, offset, -1, None, None, UNREADABLE, line)


def _chunks(batches: Batches, *, from_source: bool = False) -> Iterator[dict[int, list[Record]]]:
    """Yield chunks of records that fit into memory, by partition and in log order."""
    records: dict[int, list[Record]] = {}
    count = size = 0
    for batch in batches:
        for partition, offset, timestamp_ms, key, value, headers in arrow_records.rows(batch):
            own_partition = NO_LOG if from_source else partition
            records.setdefault(partition, []).append(
                Record(offset, timestamp_ms, key, value, own_partition, headers)
            )
            count += 1
            size += len(value) if value is not None else 0
            if count >= CHUNK_RECORDS_MAX or size > CHUNK_BYTES_MAX:
                yield records
                records, count, size = {}, 0, 0
    if records:
        yield records


def _within(records: list[Record], plan: ComparisonPlan, partition: int) -> list[Record]:
    """Return the records that were applied, and those before the last replayed one.

    Which of the latter count is decided for each document in `_DocumentComparer`.
    """
    ranges = plan.applied.get(partition)
    if ranges is None:
        return records
    last = plan.replayed.get(partition, -1)
    return [
        record
        for record in records
        if record.offset <= last or coverage.contains(ranges, record.offset)
    ]


def _without(records: list[Record], excluded: array[int] | None) -> list[Record]:
    if not excluded:
        return records
    return [record for record in records if not _contains(excluded, record.offset)]


def _contains(ranked: array[int], offset: int) -> bool:
    at = bisect_left(ranked, offset)
    return at < len(ranked) and ranked[at] == offset


def _step_rows(runs: dict[tuple[int, int, str], FoldedRun], unreadable: list[Row]) -> Iterator[Row]:
    for (partition, _, name), run in runs.items():
        for step in run.steps:
            yield (
                name,
                partition,
                step.offset,
                step.timestamp_ms,
                step.order,
                step.floor,
                int(step.shape),
                step.values,
            )
    yield from unreadable


def _batches(schema: pa.Schema, rows: Iterator[Row]) -> Batches:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) >= BATCH_ROWS:
            yield batch_of(schema, batch)
            batch = []
    if batch:
        yield batch_of(schema, batch)


def batch_of(schema: pa.Schema, rows: list[Row]) -> pa.RecordBatch:
    """Return rows as one Arrow batch."""
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
