"""What the driver hands to Spark: pages of rows as Parquet files in the run's folder, never all of them in memory.

`take` reads the target in one snapshot, so that the table's rows and the ledger's position belong together, whatever the
pipeline commits meanwhile.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from instep.pipeline import arrow, arrow_records, query
from instep.reconcile import spark_steps
from instep.reconcile.coverage import Coverage
from instep.sinks import scan
from instep.sinks.ledger import AppliedRanges
from instep.sinks.scan import PAGE_ROWS
from instep.sinks.sink import Sink
from instep.sinks.target import Position

RECORD_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)

Say = Callable[[str], None]
Row = tuple[Any, ...]
Covered = Callable[[dict[int, Position], AppliedRanges], Coverage]


class Parts:
    """Files of one schema in one folder."""

    def __init__(self, folder: Path, schema: pa.Schema, spark_schema: str) -> None:
        folder.mkdir(parents=True)
        self._folder, self._schema, self._spark_schema = folder, schema, spark_schema
        self._paths: list[Path] = []
        self.rows = 0

    def add(self, rows: list[Row]) -> None:
        """One more file."""
        path = self._folder / f"{len(self._paths):06}.parquet"
        pq.write_table(pa.Table.from_batches([spark_steps.batch_of(self._schema, rows)]), path)
        self._paths.append(path)
        self.rows += len(rows)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows, a task a file."""
        count = len(self._paths)
        numbers = spark.range(0, count, 1, max(1, count))
        names = _handed_out(spark, self._paths)
        return arrow.map_batches(
            numbers, lambda batches: spark_steps.from_files(names, batches), self._spark_schema
        )


class TargetSnapshot(msgspec.Struct, frozen=True):
    """The target at one moment."""

    ledger: dict[int, Position]
    parts: Parts
    left_out: dict[int, Any]
    documents: int  # rows of the table
    rewound_from: dict[int, int]
    followed_another: bool
    coverage: Coverage
    replayed: dict[
        int, tuple[int, int]
    ]  # per partition the first and last offset that was passed over and replayed since


def take(sink: Sink, folder: Path, covered: Covered, say: Say) -> TargetSnapshot:
    """The table, what is parked, deleted and recorded, the places that were left out, and the ledger, all of one moment.

    `covered` tells from the ledger and the stretches before it which part of the log was applied.
    """
    line = spark_steps.liner(sink.target.mapping, sink.url.get_backend_name())
    parts = Parts(folder, spark_steps.SCHEMA, spark_steps.SPARK_SCHEMA)
    with sink.snapshot():
        ledger = sink.ledger.positions()
        left_out: dict[int, Any] = {}
        for partition, offset in sorted(sink.journal.excluded()):
            left_out.setdefault(partition, array("q")).append(offset)
        documents = 0
        for page in scan.rows(sink):
            parts.add(
                [
                    (str(row[0]), spark_steps.FOUND, 0, -1, None, None, None, line(row[1:]))
                    for row in page
                ]
            )
            documents += len(page)
            if len(page) == PAGE_ROWS:
                say(f"{documents:,} rows of the table read")
        for parked in scan.parked_documents(sink):
            parts.add(
                [
                    (document, spark_steps.PARKED, 0, -1, None, None, None, None)
                    for (document,) in parked
                ]
            )
        for deleted in scan.deleted_documents(sink):
            parts.add(
                [
                    (document, spark_steps.FORGOTTEN, 0, -1, order, None, None, None)
                    for document, order in deleted
                ]
            )
        for written in scan.written_documents(sink):
            parts.add(
                [
                    (document, spark_steps.RECORDED, 0, -1, None, None, None, None)
                    for (document,) in written
                ]
            )
        before = sink.ledger.applied_ranges()
        rewound = {partition: max(end for _, end in ranges) for partition, ranges in before.items()}
        applied = covered(ledger, before)
        replayed = _replayed(sink, ledger, applied, parts)
        another = scan.followed_another_topic(sink)
    return TargetSnapshot(ledger, parts, left_out, documents, rewound, another, applied, replayed)


def _replayed(
    sink: Sink, ledger: dict[int, Position], applied: Coverage, parts: Parts
) -> dict[int, tuple[int, int]]:
    """Add a mark for each document with events that were passed over and replayed since; where those events lie.

    Without an order a replay goes up to the ledger, and its decision names the last event of the document.
    """
    found: dict[int, tuple[int, int]] = {}
    for partition, ranges in applied.passed_over.items():
        for start, end in ranges:
            until = end if sink.target.rules.ordered else ledger[partition].next_offset
            for page in scan.replayed_documents(sink, partition, start, until):
                parts.add(
                    [
                        (document, spark_steps.REPLAYED, at, -1, partition, None, None, None)
                        for document, at in page
                    ]
                )
                first, last = found.get(partition, (start, -1))
                found[partition] = (first, max(last, *(at for _, at in page)))
    return found


def keep_records(records: Iterable[Row], folder: Path, say: Say, *, headers: bool = False) -> Parts:
    """Records that Spark does not read itself: partition, offset, timestamp, key, value and, if asked for, headers of each."""
    schema = (
        RECORD_SCHEMA.append(pa.field(arrow_records.HEADERS, arrow_records.HEADERS_TYPE))
        if headers
        else RECORD_SCHEMA
    )
    parts = Parts(folder, schema, query.record_schema(headers=headers))
    source = iter(records)
    while page := list(itertools.islice(source, PAGE_ROWS)):
        parts.add(page)
        if len(page) == PAGE_ROWS:
            say(f"{parts.rows:,} rows read")
    return parts


def _handed_out(spark: SparkSession, paths: list[Path]) -> list[str]:
    """The files by the names that a task opens them by; executors on other machines are sent a copy."""
    if str(spark.sparkContext.master).startswith("local"):
        return [str(path) for path in paths]
    named = []
    for path in paths:
        sent = path.with_name(f"{path.parent.parent.name}-{path.parent.name}-{path.name}")
        path.rename(sent)
        spark.sparkContext.addFile(str(sent))
        named.append(sent.name)
    return named
