"""Test how rows travel from a task to the driver."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from instep.spark_sink import encoding
from instep.spark_sink.definition import SinkTable

ORDERS = SinkTable("orders", ("id",), delete_when="gone")


def encoded(rows: list[dict[str, Any]], table: SinkTable = ORDERS, schema: Any = None) -> Any:
    """Return the rows of a table as the driver gets them, and the digest."""
    digest = encoding.RowDigest()
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    chunks = [encoding.unpack(data) for data in encoding.encode([batch], [table], digest)]
    pairs = [
        [pair for rows in chunk.batches() for pair in encoding.json_rows(rows, table)]
        for chunk in chunks
    ]
    found = [msgspec.json.decode(row) for of_chunk in pairs for row, _ in of_chunk]
    deletes = [[at for at, (_, gone) in enumerate(of_chunk) if gone] for of_chunk in pairs]
    return found, deletes, digest.text


def test_values_keep_every_digit() -> None:
    row = {
        "id": 2**62,
        "price": Decimal("12345678901234567890.123456"),
        "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - a time without a zone
        "ratio": 0.1,
        "none": None,
    }
    digest = encoding.RowDigest()
    batch = pa.RecordBatch.from_pylist([row])
    [data] = encoding.encode([batch], [ORDERS], digest)
    [rows] = encoding.unpack(data).batches()

    assert [found for found, _ in encoding.json_rows(rows, ORDERS)] == [
        b'{"id":4611686018427387904,"price":12345678901234567890.123456,"day":"2026-01-02",'
        b'"at":"2026-01-02T03:04:05.000006Z","local":"2026-01-02T03:04:05.000006Z",'
        b'"ratio":0.1,"none":null}'
    ]


def test_numbers_that_json_lacks_become_text_that_a_column_refuses() -> None:
    rows, _, _ = encoded([{"id": 1, "ratio": float("nan")}, {"id": 2, "ratio": float("-inf")}])

    assert [row["ratio"] for row in rows] == ["nan", "-inf"]


def test_deletes_are_marked() -> None:
    _, deletes, _ = encoded([{"id": 1, "gone": False}, {"id": 2, "gone": True}, {"id": 3}])

    assert deletes == [[1]]


def test_structs_and_arrays_of_structs_hold_the_rows_of_a_table() -> None:
    rows: list[dict[str, Any]] = [
        {"one": {"id": 1}, "many": [{"id": 2}, {"id": 3}]},
        {"one": None, "many": None},
    ]

    one, _, _ = encoded(rows, SinkTable("t", ("id",), column="one"))
    many, _, _ = encoded(rows, SinkTable("t", ("id",), column="many"))

    assert (one, many) == ([{"id": 1}], [{"id": 2}, {"id": 3}])


def test_the_digest_ignores_the_order_of_rows_and_the_last_digits_of_sums() -> None:
    one = encoded([{"id": 1, "sum": 0.1 + 0.2}, {"id": 2, "sum": 1.0}])[2]
    other = encoded([{"id": 2, "sum": 1.0}, {"id": 1, "sum": 0.3}])[2]
    different = encoded([{"id": 2, "sum": 1.0}, {"id": 1, "sum": 0.4}])[2]

    assert one == other
    assert one != different


def test_the_digest_ignores_the_order_of_entries_of_a_map() -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.map_(pa.string(), pa.int64()))])

    def digest(*entries: tuple[str, int]) -> str:
        return str(encoded([{"id": 1, "tags": entries}], schema=schema)[2])

    assert digest(("a", 1), ("b", 2)) == digest(("b", 2), ("a", 1))
    assert digest(("a", 1), ("b", 2)) != digest(("a", 2), ("b", 1))


def test_the_digests_of_tasks_make_that_of_the_batch() -> None:
    whole = encoded([{"id": 1}, {"id": 2}, {"id": 3}])[2]
    parts = [encoded([{"id": 3}])[2], encoded([{"id": 1}, {"id": 2}])[2]]

    assert encoding.combined(parts) == whole


def test_large_tasks_have_several_chunks() -> None:
    rows, deletes, _ = encoded([{"id": number, "text": "x" * 1_000} for number in range(600)])

    assert len(rows) == 600
    assert len(deletes) == 3
