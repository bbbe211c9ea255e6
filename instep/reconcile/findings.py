"""The findings of a comparison, read from Spark: counted, and listed by document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses

from instep.reconcile import spark_steps
from instep.reconcile.spark_steps import Counts
from instep.settings import LINE_SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_PARTITION = 10_000  # Spark hands one partition at a time to Python


class RowDifference(msgspec.Struct, frozen=True):
    """One document as the comparison found it."""

    kind: str
    seems: str | None
    document: str
    partition: int | None
    offset: int | None
    order: int | None
    known: bool  # the log, or the source, knows the document
    split: bool  # its events lie in several partitions
    recorded: bool  # instep's tables say that the pipeline has written it
    loaded: bool  # `instep load` has written it
    columns: tuple[int, ...]
    expected: bytes | None
    found: bytes | None


def shown(document: str) -> str:
    """Return a document's id, or the key of a row of a further table, for people."""
    return document.replace(LINE_SEPARATOR, "/")


def counts(findings: DataFrame) -> Counts:
    """Return the totals of all tasks."""
    total = Counts()
    for row in findings.where(F.col("kind") == spark_steps.COUNTS).select("expected").collect():
        total.add(msgspec.json.decode(bytes(row[0]), type=Counts))
    return total


def listed(findings: DataFrame, count: int) -> Iterator[RowDifference]:
    """Yield the differences, sorted by document, without holding all of them in memory."""
    if not count:
        return
    rows = findings.where(F.col("kind") != spark_steps.COUNTS)
    pieces = count // ROWS_PER_PARTITION + 1
    ranked = rows.repartition(1) if pieces == 1 else rows.repartitionByRange(pieces, "document")
    for row in ranked.sortWithinPartitions("document").toLocalIterator():
        yield RowDifference(
            row.kind,
            row.seems,
            row.document,
            row.partition,
            row.offset,
            row.order_value,
            bool(row.known),
            bool(row.split),
            bool(row.recorded),
            bool(row.loaded),
            tuple(row.columns or ()),
            _bytes(row.expected),
            _bytes(row.found),
        )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
