"""The steps of a KPI's recomputation that run in Spark tasks.

1. `changes_of_partitions` decodes the records of whole partitions in the order of the log, and
   finds the events that are too late, as the KPI does.
2. Spark brings the other events of a document together.
3. `additions_of_documents` computes what each document adds, and sums it up.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from instep.document.decoding import Decoder
from instep.kpis import counting, reading
from instep.kpis.counting import Additions, KpiKey, KpiKind, KpiRules, PartitionClock, StatusChange
from instep.kpis.definition import KpiDefinition
from instep.pipeline.micro_batch import task

BATCH_ROWS = 10_000
# An event of a document; or without a document, an event that is too late, in its clock's minute;
# or without a status too, the times of the partition's clock.
CHANGES = "document string, partition int, at_ms long, status string, version string, ahead_ms long"
CHANGES_SCHEMA = pa.schema(
    [
        ("document", pa.string()),
        ("partition", pa.int32()),
        ("at_ms", pa.int64()),
        ("status", pa.string()),
        ("version", pa.string()),
        ("ahead_ms", pa.int64()),
    ]
)
# What is added to a bucket of a row; with count 0, a row that is not known for sure; or what is
# remembered of a document; or the times of a partition's clock, the second one as its bucket.
FOLDED = (
    "minute_ms long, kind string, name string, bucket long, count long,"
    " document string, partition int, events string"
)
FOLDED_SCHEMA = pa.schema(
    [
        ("minute_ms", pa.int64()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("bucket", pa.int64()),
        ("count", pa.int64()),
        ("document", pa.string()),
        ("partition", pa.int32()),
        ("events", pa.string()),
    ]
)

Row = tuple[Any, ...]


class FoldPlan(msgspec.Struct, frozen=True):
    """What folding needs to know.

    `known_from_ms` is where an incomplete log begins; None if the log is complete. `remembers` says
    whether the remembered events of the documents are wanted as well.
    """

    rules: KpiRules
    known_from_ms: int | None = None
    remembers: bool = False


def changes_of_partitions(
    kpi: KpiDefinition, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the events of the partitions that this task reads, each from its beginning."""
    return _batched(_changes(kpi, batches), CHANGES_SCHEMA)


def additions_of_documents(
    plan: FoldPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield what the documents of this task, which are sorted, add to the rows."""
    return _batched(_folded(plan, batches), FOLDED_SCHEMA)


def _changes(kpi: KpiDefinition, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    decoder = Decoder(kpi.event)
    clocks: dict[int, PartitionClock] = {}
    for partition, records in task.runs(batches):
        clock = clocks.setdefault(partition, PartitionClock())
        for read in reading.read(decoder, partition, records).changes:
            change = read.change
            if late := clock.take(read, kpi.rules):
                yield None, partition, late.minute_ms, late.name, None, None
            else:
                yield (
                    read.document,
                    partition,
                    change.at_ms,
                    change.status,
                    change.version,
                    None,
                )
    for partition, clock in clocks.items():
        now_ms, ahead_ms = clock.times_ms
        yield None, partition, now_ms, None, None, ahead_ms


def _folded(plan: FoldPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    added: Additions = Counter()
    unsure: set[KpiKey] = set()
    rows = itertools.chain.from_iterable(_rows(batch) for batch in batches)
    for document, group in itertools.groupby(rows, key=lambda row: row[0]):
        if document is None:
            yield from _without_document(group, added)
            continue
        found = list(group)
        changes = {StatusChange(*row[2:5]) for row in found}
        added.update(counting.additions(changes, plan.rules))
        if plan.known_from_ms is not None:
            unsure |= counting.unsure(changes, plan.rules, plan.known_from_ms)
        if plan.remembers:
            events = msgspec.json.encode(sorted(changes, key=counting.order)).decode()
            yield (*[None] * 5, document, found[-1][1], events)
    for (key, bucket), count in added.items():
        yield (key.minute_ms, key.kind.value, key.name, bucket, count, None, None, None)
    for key in unsure:
        yield (key.minute_ms, key.kind.value, key.name, counting.NO_BUCKET, 0, None, None, None)


def _without_document(rows: Iterable[Row], added: Additions) -> Iterator[Row]:
    """Count events that are too late; pass on the times of partitions."""
    for _, partition, at_ms, status, _, ahead_ms in rows:
        if status is None:
            yield (at_ms, None, None, ahead_ms, None, None, partition, None)
        else:
            added[KpiKey(at_ms, KpiKind.TOO_LATE, status), counting.NO_BUCKET] += 1


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    return zip(*(batch.column(name).to_pylist() for name in CHANGES_SCHEMA.names), strict=True)


def _batched(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while page := list(itertools.islice(rows, BATCH_ROWS)):
        columns = zip(*page, strict=True)
        arrays = [pa.array(one, kind) for one, kind in zip(columns, schema.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
