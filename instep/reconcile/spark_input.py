"""The rows that the driver hands to Spark: pages of rows as Parquet files in the run's folder.

The driver never holds all rows in memory. `take` reads the target in one snapshot, so that the
table's rows and the ledger's position belong together, whatever the pipeline commits meanwhile.
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

from instep.pipeline.micro_batch import arrow, arrow_records, query
from instep.reconcile import spark_steps
from instep.reconcile.coverage import Coverage
from instep.reconcile.spark_steps import mark
from instep.sinks import scan
from instep.sinks.journal_entries import number_of
from instep.sinks.ledger import AppliedRanges
from instep.sinks.scan import PAGE_ROWS
from instep.sinks.sink import FurtherSink, Sink
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
CoverageOf = Callable[[dict[int, Position], AppliedRanges], Coverage]


class Parts:
    """Parquet files of one schema in one folder."""

    def __init__(self, folder: Path, schema: pa.Schema, spark_schema: str) -> None:
        folder.mkdir(parents=True)
        self._folder, self._schema, self._spark_schema = folder, schema, spark_schema
        self._paths: list[Path] = []
        self.rows = 0

    def add(self, rows: list[Row]) -> None:
        """Write rows to a new file."""
        path = self._folder / f"{len(self._paths):06}.parquet"
        pq.write_table(pa.Table.from_batches([spark_steps.batch_of(self._schema, rows)]), path)
        self._paths.append(path)
        self.rows += len(rows)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a data frame that reads each file in its own task."""
        count = len(self._paths)
        numbers = spark.range(0, count, 1, max(1, count))
        names = _names_for_tasks(spark, self._paths)
        return arrow.map_batches(
            numbers, lambda batches: spark_steps.rows_of_files(names, batches), self._spark_schema
        )


class TargetSnapshot(msgspec.Struct, frozen=True):
    """The target at one moment."""

    ledger: dict[int, Position]
    parts: Parts
    excluded: dict[int, Any]  # by partition, the offsets that quarantine and decisions rule out
    documents: int  # rows of the table
    rewound_from: dict[int, int]
    followed_another: bool
    coverage: Coverage
    # By partition, the first and the last offset that was skipped and has been replayed since.
    replayed: dict[int, tuple[int, int]]
    loaded: bool = False  # `instep load` has written rows that the log does not explain


def take(
    sink: Sink,
    folder: Path,
    coverage_of: CoverageOf,
    say: Say,
    *,
    after_load: bool = False,
    further: FurtherSink | None = None,
) -> TargetSnapshot:
    """Read table, quarantine, deleted and written documents, decisions and ledger in one snapshot.

    `coverage_of` computes which part of the log was applied, from the ledger and the ranges that
    were applied before a rewind. `after_load` is for the comparison with a source that was loaded.
    With `further`, its rows are read in place of those of the main table.
    """
    compared = further or sink
    mark_of = _marker(compared)
    parts = Parts(folder, spark_steps.SCHEMA, spark_steps.SPARK_SCHEMA)
    with sink.snapshot():
        ledger = sink.ledger.positions()
        excluded: dict[int, Any] = {}
        for position in sorted(sink.journal.excluded()):
            numbers = excluded.setdefault(position.partition, array("q"))
            numbers.append(number_of(sink.target, position))
        documents = 0
        for page in scan.rows(compared):
            parts.add([mark_of(row) for row in page])
            documents += len(page)
            if len(page) == PAGE_ROWS:
                say(f"{documents:,} rows of the table read")
        for parked in scan.parked_documents(sink):
            parts.add([mark(spark_steps.PARKED, document) for (document,) in parked])
        for deleted in scan.deleted_documents(sink):
            parts.add(
                [mark(spark_steps.DELETED, document, order=order) for document, order in deleted]
            )
        for written in scan.written_documents(sink):
            parts.add([mark(spark_steps.RECORDED, document) for (document,) in written])
        loaded = scan.any_load(sink)
        if after_load:
            for read in scan.read_documents(sink):
                parts.add([mark(spark_steps.READ, document, order=one) for document, one in read])
        elif loaded:
            for page_of_load in scan.loaded_documents(sink):
                parts.add(
                    [
                        mark(spark_steps.LOADED, document, order=order)
                        for document, order in page_of_load
                    ]
                )
        before = sink.ledger.applied_ranges()
        rewound_from = {p: max(end for _, end in ranges) for p, ranges in before.items()}
        coverage = coverage_of(ledger, before)
        replayed = _add_replayed(sink, ledger, coverage, parts)
        followed_another = scan.followed_another_topic(sink)
    return TargetSnapshot(
        ledger,
        parts,
        excluded,
        documents,
        rewound_from,
        followed_another,
        coverage,
        replayed,
        loaded,
    )


def _marker(compared: Sink) -> Callable[[Row], Row]:
    """Return the function that makes the mark of a row of the compared table."""
    mapping = compared.target.mapping
    pack_row = spark_steps.row_packer(mapping, compared.url.get_backend_name())
    if not isinstance(compared, FurtherSink):
        return lambda row: mark(spark_steps.FOUND, str(row[0]), line=pack_row(row[1:]))
    owner_of = compared.document_of

    def mark_of(row: Row) -> Row:
        line = msgspec.json.encode((str(row[0]), pack_row(row[1:]).decode()))
        return mark(spark_steps.FOUND, owner_of(str(row[0])), line=line)

    return mark_of


def _add_replayed(
    sink: Sink, ledger: dict[int, Position], coverage: Coverage, parts: Parts
) -> dict[int, tuple[int, int]]:
    """Add a mark for each document with events that were skipped and have been replayed since.

    Return by partition the first and the last offset of such events. Without an order, a replay
    goes up to the ledger, and its decision names the last event of the document.
    """
    replayed: dict[int, tuple[int, int]] = {}
    for partition, ranges in coverage.skipped.items():
        for start, end in ranges:
            until = end if sink.target.rules.ordered else ledger[partition].next_offset
            for page in scan.replayed_documents(sink, partition, start, until):
                parts.add(
                    [
                        mark(
                            spark_steps.REPLAYED,
                            document,
                            offset=(offset + 1) * sink.target.slots - 1,
                            order=partition,
                        )
                        for document, offset in page
                    ]
                )
                first, last = replayed.get(partition, (start, -1))
                replayed[partition] = (first, max(last, *(offset for _, offset in page)))
    return replayed


def store_records(
    records: Iterable[Row], folder: Path, say: Say, *, headers: bool = False
) -> Parts:
    """Store records that Spark does not read itself.

    Each has partition, offset, timestamp, key, value and, with `headers`, its headers.
    """
    schema = RECORD_SCHEMA
    if headers:
        schema = schema.append(pa.field(arrow_records.HEADERS, arrow_records.HEADERS_TYPE))
    parts = Parts(folder, schema, query.record_schema(headers=headers))
    source = iter(records)
    while page := list(itertools.islice(source, PAGE_ROWS)):
        parts.add(page)
        if len(page) == PAGE_ROWS:
            say(f"{parts.rows:,} rows read")
    return parts


def _names_for_tasks(spark: SparkSession, paths: list[Path]) -> list[str]:
    """Return the names by which tasks open the files.

    Executors on other machines get a copy of each file. Spark keeps all copies in one folder, so
    their names must be unique in the session.
    """
    if str(spark.sparkContext.master).startswith("local"):
        return [str(path) for path in paths]
    names = []
    for path in paths:
        unique = path.with_name(f"{path.parent.parent.name}-{path.parent.name}-{path.name}")
        path.rename(unique)
        spark.sparkContext.addFile(str(unique))
        names.append(unique.name)
    return names
