"""Test what a task does with the batches that Spark gives it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from instep.pipeline import applier
from instep.pipeline.micro_batch import task


def batch(*rows: tuple[int, int, bytes | None]) -> pa.RecordBatch:
    columns = [
        [row[0] for row in rows],
        [row[1] for row in rows],
        [0] * len(rows),
        [b"k"] * len(rows),
        [row[2] for row in rows],
    ]
    types = (pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(
        arrays, names=["partition", "offset", "timestamp_ms", "key", "value"]
    )


def runs(*batches: pa.RecordBatch) -> list[tuple[int, list[int]]]:
    return [
        (partition, [record.offset for record in records])
        for partition, records in task.runs(iter(batches))
    ]


def test_a_run_joins_batches_of_one_partition() -> None:
    assert runs(batch((0, 1, b"v"), (0, 2, None)), batch((0, 3, b"v"), (1, 7, b"v"))) == [
        (0, [1, 2, 3]),
        (1, [7]),
    ]
    assert runs() == []


def test_a_run_is_limited_by_records_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "BATCH_RECORDS_MAX", 3)
    assert runs(batch(*((0, offset, b"v") for offset in range(7)))) == [
        (0, [0, 1, 2]),
        (0, [3, 4, 5]),
        (0, [6]),
    ]
    monkeypatch.setattr(applier, "BATCH_BYTES_MAX", 9)
    assert runs(batch((0, 1, b"x" * 10), (0, 2, b"v"), (0, 3, b"v"))) == [(0, [1]), (0, [2, 3])]
