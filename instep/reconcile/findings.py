"""What a comparison found, on its way from Spark to people: counted, listed by document, written to a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from instep.document import folding
from instep.document.comparison import DocumentState
from instep.reconcile import spark_steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PIECE_ROWS = 10_000  # as many as are handed from Spark to Python at a time


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
    columns: tuple[int, ...]
    expected: bytes | None
    found: bytes | None


def counted(findings: DataFrame) -> dict[str, Any]:
    """How many documents of each kind, and how often each column differs."""
    totals: dict[str, Any] = {"documents": 0, "columns": {}}
    for row in findings.where(F.col("kind") == spark_steps.COUNTS).select("expected").collect():
        for kind, count in msgspec.json.decode(bytes(row[0])).items():
            if kind == "columns":
                for name, many in count.items():
                    totals["columns"][name] = totals["columns"].get(name, 0) + many
            else:
                totals[kind] = totals.get(kind, 0) + count
    return totals


def listed(findings: DataFrame, count: int) -> Iterator[RowDifference]:
    """The differences by document, a piece at a time."""
    if not count:
        return
    rows = findings.where(F.col("kind") != spark_steps.COUNTS)
    pieces = count // PIECE_ROWS + 1
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
            tuple(row.columns or ()),
            _bytes(row.expected),
            _bytes(row.found),
        )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def shown(
    one: RowDifference, columns: list[str], *, mend: str | None, from_source: bool
) -> Iterator[dict[str, Any]]:
    """A difference as rows of the file: one a column where columns differ, else one."""
    place = None
    if one.offset is not None:
        place = (
            {"row": one.offset}
            if from_source
            else {"partition": one.partition, "offset": one.offset}
        )
    row: dict[str, Any] = {
        "document": one.document,
        "kind": one.kind,
        "column": None,
        "expected": None,
        "found": None,
    }
    row["place"] = place
    if one.kind != one.seems and one.seems:
        row["seems"] = one.seems
    if mend is not None:
        row["mend"] = mend
    if one.kind == spark_steps.UNREADABLE_KIND:
        yield row | {"expected": (one.expected or b"").decode()}
        return
    expected, found = _by_name(columns, one.expected), _by_name(columns, one.found)
    if one.seems != DocumentState.DIFFERENT:
        yield row | {"expected": expected, "found": found}
        return
    for number in one.columns:
        name = columns[number]
        yield row | {
            "column": name,
            "expected": (expected or {}).get(name),
            "found": (found or {}).get(name),
        }


def default_file(pipeline: str) -> Path:
    """In the working directory, named after the pipeline and the moment."""
    name = re.sub(r"[^\w.-]", "_", pipeline)
    return Path(f"reconcile-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl")


def _by_name(columns: list[str], line: bytes | None) -> dict[str, Any] | None:
    if line is None:
        return None
    return {
        name: value
        for name, value in zip(columns, folding.unpack(line), strict=True)
        if value != folding.ABSENT
    }
