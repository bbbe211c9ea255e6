"""The report of one reconciliation: verdict, counts, and the file that lists the findings."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from instep import errors
from instep.document import comparison, folding
from instep.document.comparison import DocumentState
from instep.reconcile import findings, spark_steps
from instep.reconcile.findings import RowDifference
from instep.reconcile.repair import Repairer, RepairResult
from instep.sinks.sink import Sink

SHOWN_MAX = 20
LISTED = (
    *comparison.REAL,
    DocumentState.PARKED,
    DocumentState.BEHIND,
    spark_steps.UNREADABLE_KIND,
)


class ComparedRange(msgspec.Struct, frozen=True):
    """The compared offsets of one partition, from `begin` up to `applied`, and the log's end."""

    partition: int
    begin: int
    applied: int
    end: int


class Behind(msgspec.Struct, frozen=True):
    """The number of records that wait in the log, and of their documents."""

    records: int = 0
    documents: int = 0


class ReconcileVerdict(StrEnum):
    """The result of a reconciliation."""

    IN_STEP = "in step"
    NOT_IN_STEP = "not in step"
    # Nothing differs, but the log holds records that nobody can read yet.
    HELD_BACK = "held back by an open transaction"


class ReconcileReport(msgspec.Struct, frozen=True, rename={"skipped": "passed_over"}):
    """The result of comparing one table of a pipeline."""

    pipeline: str
    topic: str
    target: str
    table: str
    compared_with: str
    in_step: bool
    documents: int
    documents_in_step: int
    missing: int
    extra: int
    different: int
    columns: dict[str, int]
    parked: int
    behind: Behind
    not_in_log: int
    unreadable: int
    places_left_out: int
    partitions: list[ComparedRange]
    notes: list[str]
    rows_file: str | None
    first_rows: list[dict[str, Any]]
    repaired: RepairResult | None = None
    verdict: ReconcileVerdict = ReconcileVerdict.IN_STEP
    held_back: int = 0  # offsets that an open transaction kept out of the comparison
    not_ours: int = 0  # rows that the pipeline never wrote, which are not compared
    skipped: int = 0  # offsets never applied: before the start, or skipped by a rewind
    is_further: bool = False  # the table is a further one, not the main one

    @property
    def name(self) -> str:
        """Return the pipeline, and the table if it is a further one."""
        return f"{self.pipeline}, table {self.table}" if self.is_further else self.pipeline


def verdict(*, differs: bool, held_back: int) -> ReconcileVerdict:
    """Return the verdict: a difference outweighs what an open transaction holds back."""
    if differs:
        return ReconcileVerdict.NOT_IN_STEP
    if held_back:
        return ReconcileVerdict.HELD_BACK
    return ReconcileVerdict.IN_STEP


def default_file(pipeline: str) -> Path:
    """Return a file in the working directory, named after the pipeline and the current time."""
    name = re.sub(r"[^\w.-]", "_", pipeline)
    return Path(f"reconcile-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl")


class RowsFile:
    """The file that lists the findings of one table as JSON lines."""

    def __init__(
        self,
        path: Path,
        pipeline: str,
        compared: Sink,
        repairer: Repairer | None,
        *,
        from_source: bool,
    ) -> None:
        self._path, self._pipeline = path, pipeline
        self._table, self._columns = str(compared.target.table), list(compared.table.columns)
        self._repairer, self._from_source = repairer, from_source

    def write(self, differences: Iterable[RowDifference]) -> list[dict[str, Any]]:
        """Write the differences; return the first rows."""
        first: list[dict[str, Any]] = []
        try:
            with self._path.open("ab") as file:
                for difference in differences:
                    for row in self._rows(difference):
                        file.write(self._line(row))
                        if len(first) < SHOWN_MAX:
                            first.append(row)
        except OSError as error:
            raise errors.SettingsError(
                f"{self._path} cannot be written: {error.strerror}", "name another file with --out"
            ) from error
        return first

    @contextlib.contextmanager
    def left_alone(self) -> Iterator[Callable[[str, str], None]]:
        """Yield a function that writes a document that was not repaired, with the reason."""
        with self._path.open("ab") as file:

            def write(document: str, reason: str) -> None:
                row = {"document": findings.shown(document), "kind": "left_alone", "why": reason}
                file.write(self._line(row))

            yield write

    def _line(self, row: dict[str, Any]) -> bytes:
        row = {"pipeline": self._pipeline, "table": self._table, **row}
        return msgspec.json.encode(row) + b"\n"

    def _rows(self, difference: RowDifference) -> Iterator[dict[str, Any]]:
        action, mark = None, None
        if self._repairer is not None and difference.kind in comparison.REAL:
            action, mark = self._repairer.planned(difference), self._repairer.mark(difference)
        for row in difference_rows(
            difference, self._columns, action=action, from_source=self._from_source
        ):
            yield row if mark is None else {**row, "plan": mark}


def difference_rows(
    difference: RowDifference, columns: list[str], *, action: str | None, from_source: bool
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the file for a difference: one for each column that differs, else one."""
    row: dict[str, Any] = {
        "document": findings.shown(difference.document),
        "kind": difference.kind,
        "column": None,
        "expected": None,
        "found": None,
        "place": _place(difference, from_source=from_source),
    }
    if difference.kind != difference.seems and difference.seems:
        row["seems"] = difference.seems
    if action is not None:
        row["repair"] = action
    if difference.kind == spark_steps.UNREADABLE_KIND:
        yield row | {"expected": (difference.expected or b"").decode()}
        return
    expected, found = _by_name(columns, difference.expected), _by_name(columns, difference.found)
    if difference.seems != DocumentState.DIFFERENT:
        yield row | {"expected": expected, "found": found}
        return
    for number in difference.columns:
        name = columns[number]
        values = {"expected": (expected or {}).get(name), "found": (found or {}).get(name)}
        yield row | {"column": name, **values}


def _place(difference: RowDifference, *, from_source: bool) -> dict[str, int | None] | None:
    if difference.offset is None:
        return None
    if from_source:
        return {"row": difference.offset}
    return {"partition": difference.partition, "offset": difference.offset}


def _by_name(columns: list[str], line: bytes | None) -> dict[str, Any] | None:
    if line is None:
        return None
    values = zip(columns, folding.unpack(line), strict=True)
    return {name: value for name, value in values if value != folding.ABSENT}
