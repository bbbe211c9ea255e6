"""What `instep reconcile` does inside Spark tasks: records and rows in, steps out; sorted steps in, findings out.

Rows of the table and events of the log go through one sort by document. Marks, as partitions below 0, come first: a
document is recorded as written by the pipeline, was replayed, is parked, was deleted, stands in the table, has events that
wait. Nothing here holds more than one stretch of records, or more than one document.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET
from pyspark import SparkFiles

from instep.document import canonical, comparison, folding, guard
from instep.document.comparison import DocumentFinding, DocumentState, Question
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.folding import ABSENT, FoldedRun, FoldedState, FoldStep, Shape
from instep.document.mapping import Mapping
from instep.document.reasons import Refusal
from instep.pipeline import arrow_records as arriving
from instep.reconcile import coverage
from instep.reconcile.coverage import Ranges

STRETCH_RECORDS = 100_000
STRETCH_BYTES = 32 * 1024 * 1024
BATCH_ROWS = 10_000

RECORDED, REPLAYED, PARKED, FORGOTTEN, FOUND, WAITING = -6, -5, -4, -3, -2, -1
NO_LOG = (
    -1
)  # the partition of a row that another source gave: it has no place in a log, and no headers
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
SPARK_SCHEMA = "document string, partition int, offset long, timestamp_ms long, order_value long, floor long, shape byte, line binary"
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
        ("columns", pa.list_(pa.int32())),
        ("expected", pa.binary()),
        ("found", pa.binary()),
    ]
)
FINDINGS_SPARK = (
    "kind string, seems string, document string, partition int, offset long, order_value long, known boolean, split boolean,"
    " recorded boolean, columns array<int>, expected binary, found binary"
)
COUNTS, UNREADABLE_KIND = "counts", "unreadable"

Batches = Iterator[pa.RecordBatch]
Row = tuple[Any, ...]


class ComparisonPlan(msgspec.Struct, frozen=True):
    """Everything the tasks need besides their rows."""

    mapping: Mapping
    database: str
    asked: Question
    left_out: dict[int, Any]  # per partition a sorted array of offsets
    from_source: bool = False
    applied: dict[
        int, Ranges
    ] = {}  # per partition the offsets that the pipeline has applied; all, if it is not named
    replayed: dict[
        int, int
    ] = {}  # per partition the last offset outside of those that `instep replay` has applied


def liner(mapping: Mapping, database: str) -> Callable[[Row], bytes]:
    """The function from the mapped columns of a row, as a table gave them, to a packed line."""
    forms = [canonical.former(column, database) for column in mapping.columns]

    def line(row: Row) -> bytes:
        return folding.pack(
            [None if value is None else form(value) for form, value in zip(forms, row, strict=True)]
        )

    return line


def from_records(plan: ComparisonPlan, batches: Batches) -> Batches:
    """Decode records and thin them, stretch by stretch."""
    decoder = Decoder(plan.mapping)
    step_of = _stepper(plan)
    for records in _stretches(batches, from_source=plan.from_source):
        runs: dict[tuple[int, int, str], FoldedRun] = {}
        unreadable: list[Row] = []
        for partition, some in records.items():
            kept = _without(_within(some, plan, partition), plan.left_out.get(partition))
            ranges = plan.applied.get(partition, [])
            events, dead = decoder.decode_all(kept)
            times = {record.offset: record.timestamp_ms for record in kept}
            for event in events:
                name = str(event.document)
                if event.refusal is not None:  # it parked its document, or was passed over since
                    if plan.from_source:
                        unreadable.append(_unreadable(name, partition, event.offset, event.refusal))
                    continue
                step = step_of(partition, event, times[event.offset])
                if step is None:
                    continue
                # events of different stretches are thinned apart, as not all of them may count
                stretch = coverage.place(ranges, event.offset)
                run = runs.get((partition, stretch, name))
                if run is None:
                    run = runs[partition, stretch, name] = FoldedRun()
                run.add(step, plan.asked.rules)
            if plan.from_source:
                for letter in dead:
                    name = (letter.record.key or b"").decode(errors="replace")
                    unreadable.append(_unreadable(name, partition, letter.record.offset, letter))
        yield from _batches(SCHEMA, _step_rows(runs, unreadable))


def waiting(plan: ComparisonPlan, batches: Batches) -> Batches:
    """A mark for each document that records name, with how many; those that name none count under no document."""
    decoder = Decoder(plan.mapping)
    for records in _stretches(batches):
        counts: Counter[str | None] = Counter()
        for some in records.values():
            events, dead = decoder.decode_all(some)
            counts.update(str(event.document) for event in events)
            counts[None] += len(dead)
        rows = (
            (name, WAITING, count, -1, None, None, None, None)
            for name, count in counts.items()
            if count
        )
        yield from _batches(SCHEMA, rows)


def from_files(paths: list[str], batches: Batches) -> Batches:
    """The rows of files that the driver wrote; each task reads those whose numbers it is given."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            path = paths[number] if os.path.isabs(paths[number]) else SparkFiles.get(paths[number])  # noqa: PTH117
            yield from pq.ParquetFile(path).iter_batches(BATCH_ROWS)


def judge(plan: ComparisonPlan, batches: Batches) -> Batches:
    """Fold and compare, document by document; differences come out as they are found, counts at the end."""
    judging = _Judging(plan)
    for batch in batches:
        findings = [
            found
            for row in zip(*(batch.column(name).to_pylist() for name in SCHEMA.names), strict=True)
            if (found := judging.take(row)) is not None
        ]
        yield from _batches(FINDINGS, iter(findings))
    last = judging.finish()
    rows = [
        *([last] if last else []),
        (COUNTS, *[None] * 9, msgspec.json.encode(judging.counts), None),
    ]
    yield from _batches(FINDINGS, iter(rows))


class _Judging:
    """The one document that is being gathered, and the counts of those before it."""

    def __init__(self, plan: ComparisonPlan) -> None:
        self._asked, self._applied = plan.asked, plan.applied
        self._names = [column.name for column in plan.mapping.columns]
        self.counts: dict[str, Any] = {"documents": 0, "columns": {}}
        self._document: str | None = None
        self._clear()

    def _clear(self) -> None:
        self._parked = self._waiting = self._recorded = False
        self._replayed: dict[int, int] = {}
        self._forgotten: int | None = None
        self._found: bytes | None = None
        self._why: bytes | None = None
        self._states: list[FoldedState] = []
        self._partition = -1

    def take(self, row: Row) -> Row | None:
        """One more row; the finding on the document before it, when that ends here."""
        document, partition, offset, timestamp_ms, order, floor, shape, line = row
        done = None
        if document != self._document:
            done = self.finish()
            self._document = document
        if partition >= 0:
            if shape == UNREADABLE:
                self._why = line
            elif self._counts(partition, offset):
                if partition != self._partition:
                    self._partition = partition
                    self._states.append(FoldedState())
                step = FoldStep(partition, offset, timestamp_ms, order, SHAPES[shape], line, floor)
                self._states[-1].apply(step, self._asked.rules)
        elif partition == FOUND:
            self._found = line
        elif partition == FORGOTTEN:
            self._forgotten, self._recorded = order, True
        elif partition == PARKED:
            self._parked = True
        elif partition == RECORDED:
            self._recorded = True
        elif partition == REPLAYED:
            self._replayed[order] = max(offset, self._replayed.get(order, 0))
        else:
            self._waiting = True
        return done

    def _counts(self, partition: int, offset: int) -> bool:
        """Whether an event took effect: it was applied in the flow, or lies before one of the document that was replayed."""
        ranges = self._applied.get(partition)
        return (
            ranges is None
            or coverage.holds(ranges, offset)
            or offset <= self._replayed.get(partition, -1)
        )

    def finish(self) -> Row | None:
        """The finding on the document at hand, None when it is in step."""
        if self._document is None:
            return None
        if self._why is not None:
            self._count(UNREADABLE_KIND)
            done: Row | None = (
                UNREADABLE_KIND,
                None,
                self._document,
                *[None] * 7,
                self._why,
                self._found,
            )
        else:
            done = self._judged(self._document)
        self._clear()
        return done

    def _judged(self, document: str) -> Row | None:
        state = folding.joined(self._states, self._asked.rules) if self._states else None
        finding = comparison.compare(
            self._asked,
            state,
            self._found,
            forgotten=self._forgotten,
            parked=self._parked,
            waiting=self._waiting,
            recorded=self._recorded,
        )
        if finding is None:
            return None
        if finding.kind is DocumentState.NOT_OURS:
            self._count(finding.kind.value)
            return None
        self.counts["documents"] += 1
        self._count(finding.kind.value)
        if finding.kind is DocumentState.DIFFERENT:
            columns = self.counts["columns"]
            for number in finding.columns:
                columns[self._names[number]] = columns.get(self._names[number], 0) + 1
        return (
            None
            if finding.kind in (DocumentState.IN_STEP, DocumentState.NOT_IN_LOG)
            else self._row(document, finding, state)
        )

    def _row(self, document: str, finding: DocumentFinding, state: FoldedState | None) -> Row:
        last = state.last if state else None
        return (
            finding.kind.value,
            finding.seems.value,
            document,
            last.partition if last else None,
            last.offset if last else None,
            state.order if state else None,
            state is not None,
            len(self._states) > 1,
            self._recorded,
            list(finding.columns),
            state.line if state else None,
            self._found,
        )

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1


SHAPES = {shape.value: shape for shape in Shape}


def _stepper(plan: ComparisonPlan) -> Callable[[int, Event, int], FoldStep | None]:
    """The function from an event to its step; None for a delete that changes nothing."""
    forms = [canonical.former(column, plan.database) for column in plan.mapping.columns]
    rules = plan.asked.rules

    def packed(values: guard.Values) -> bytes:
        brought = zip(forms, values, strict=True)
        return folding.pack(
            [
                ABSENT if value is UNSET else None if value is None else form(value)
                for form, value in brought
            ]
        )

    def step_of(partition: int, event: Event, timestamp_ms: int) -> FoldStep | None:
        brought = event.values
        if brought is not None:
            shape = Shape.PARTIAL if UNSET in brought else Shape.FULL
            return FoldStep(
                partition, event.offset, timestamp_ms, event.order, shape, packed(brought)
            )
        if rules.deletes == "row":
            return FoldStep(partition, event.offset, timestamp_ms, event.order, Shape.DELETE, None)
        if rules.deletes == "clear":
            return FoldStep(
                partition,
                event.offset,
                timestamp_ms,
                event.order,
                Shape.CLEAR,
                packed(rules.cleared),
            )
        return None

    return step_of


def _unreadable(name: str, partition: int, offset: int, why: DeadLetter | Refusal) -> Row:
    return (
        name,
        partition,
        offset,
        -1,
        None,
        None,
        UNREADABLE,
        f"{why.reason}: {why.detail}".encode(),
    )


def _stretches(batches: Batches, *, from_source: bool = False) -> Iterator[dict[int, list[Record]]]:
    """Records by partition, in log order, in stretches that fit into memory."""
    records: dict[int, list[Record]] = {}
    count = size = 0
    for batch in batches:
        for partition, offset, timestamp_ms, key, value, headers in arriving.rows(batch):
            place = NO_LOG if from_source else partition
            records.setdefault(partition, []).append(
                Record(offset, timestamp_ms, key, value, place, headers)
            )
            count += 1
            size += len(value) if value is not None else 0
            if count >= STRETCH_RECORDS or size > STRETCH_BYTES:
                yield records
                records, count, size = {}, 0, 0
    if records:
        yield records


def _within(records: list[Record], plan: ComparisonPlan, partition: int) -> list[Record]:
    """The records that were applied, and those before one that was replayed: `_Judging` knows of which documents these count."""
    ranges = plan.applied.get(partition)
    if ranges is None:
        return records
    last = plan.replayed.get(partition, -1)
    return [
        record
        for record in records
        if record.offset <= last or coverage.holds(ranges, record.offset)
    ]


def _without(records: list[Record], left_out: array[int] | None) -> list[Record]:
    if not left_out:
        return records
    return [record for record in records if not _holds(left_out, record.offset)]


def _holds(ranked: array[int], offset: int) -> bool:
    at = bisect_left(ranked, offset)
    return at < len(ranked) and ranked[at] == offset


def _step_rows(runs: dict[tuple[int, int, str], FoldedRun], further: list[Row]) -> Iterator[Row]:
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
    yield from further


def _batches(schema: pa.Schema, rows: Iterator[Row]) -> Batches:
    some: list[Row] = []
    for row in rows:
        some.append(row)
        if len(some) >= BATCH_ROWS:
            yield batch_of(schema, some)
            some = []
    if some:
        yield batch_of(schema, some)


def batch_of(schema: pa.Schema, rows: list[Row]) -> pa.RecordBatch:
    """Rows as one Arrow batch."""
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
