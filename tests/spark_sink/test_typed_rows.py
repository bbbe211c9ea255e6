"""Test that rows written in columns leave the same tables as rows written as records."""

from __future__ import annotations

import importlib
import io
import itertools
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from instep.document import kinds
from instep.document.mapping import Field, Mapping, TargetColumn
from instep.pipeline.apply import fast
from instep.sinks.sink import Sink
from instep.sinks.target_table import StagedColumns
from instep.spark_sink import definition, typed_rows
from instep.spark_sink.definition import SinkTable
from instep.spark_sink.merge import Merge
from tests.support.databases import KINDS, run_sql
from tests.support.spark_sinks import SinkQuery

COLUMNS = (
    "day DATE, price NUMERIC(12, 3), ratio DOUBLE PRECISION, version BIGINT, at TIMESTAMP(6), note"
    " VARCHAR(30)"
)
BY_VERSION = f"CREATE TABLE {{}}_version (id VARCHAR(20) PRIMARY KEY, {COLUMNS})"
BY_TIME = f"CREATE TABLE {{}}_time (id VARCHAR(20) PRIMARY KEY, {COLUMNS})"
BY_TWO = (
    "CREATE TABLE {}_two (tenant INTEGER NOT NULL, id VARCHAR(20) NOT NULL,"
    f" {COLUMNS}, PRIMARY KEY (tenant, id))"
)
SCHEMA = pa.schema(
    [
        ("tenant", pa.int32()),
        ("id", pa.string()),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("ratio", pa.float64()),
        ("version", pa.int64()),
        ("at", pa.timestamp("us", tz="Europe/Berlin")),
        ("note", pa.string()),
    ]
)
NOTES = ["", "a", 'quo"ted', "two\nlines", "comma, comma", "\\.", "a\n\\.\nb", "'", "ü€𝄞", None]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def for_database(url: str, statement: str) -> str:
    """Return the statement with types that keep every digit; SQLite has none for decimals."""
    if url.startswith("sqlite"):
        return statement.replace("price NUMERIC(12, 3), ", "")
    return statement.replace("TIMESTAMP(6)", "DATETIME(6)") if "mysql" in url else statement


def schema_for(url: str, *unused: str) -> pa.Schema:
    """Return the schema of rows, without unused columns."""
    unused = (*unused, "price") if url.startswith("sqlite") else unused
    return pa.schema([field for field in SCHEMA if field.name not in unused])


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, shared_database: Callable[[str], str]) -> str:
    where = shared_database(request.param)
    for table, name in itertools.product((BY_VERSION, BY_TIME, BY_TWO), ("typed", "records")):
        run_sql(where, for_database(where, table.format(name)))
    return where


@pytest.fixture
def written_in_columns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many documents were written in columns, of each batch."""
    counts: list[int] = []
    write = fast.write_columns

    def counted(sink: Sink, staged: StagedColumns, **options: Any) -> bool:
        done = write(sink, staged, **options)
        counts.append(len(staged) if done else 0)
        return done

    monkeypatch.setattr(fast, "write_columns", counted)
    return counts


def rows_of(batch: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(f"{seed} {batch}")
    return [
        {
            "tenant": chance.randint(1, 3),
            "id": f"doc {chance.randint(1, 60)}",
            "day": chance.choice([None, date(2026, 1, chance.randint(1, 28))]),
            "price": chance.choice([None, Decimal(chance.randint(-9999, 9999)) / 100]),
            "ratio": chance.choice([None, chance.uniform(-1e9, 1e9), 0.1]),
            "version": chance.randint(batch * 5, batch * 5 + 10),
            "at": BEGIN + timedelta(microseconds=chance.randint(batch * 5, batch * 5 + 10)),
            "note": chance.choice(NOTES[:5] + NOTES[7:] if batch % 2 else NOTES),
        }
        for _ in range(200)
    ]


@pytest.mark.parametrize("kind", ["version", "time", "two"])
def test_columns_and_records_leave_the_same_rows(
    url: str, kind: str, monkeypatch: pytest.MonkeyPatch, written_in_columns: list[int]
) -> None:
    key = ["tenant", "id"] if kind == "two" else ["id"]
    schema = schema_for(url, *([] if kind == "two" else ["tenant"]))
    order = "at" if kind == "time" else "version"
    found = []
    for name in ("typed", "records"):
        if name == "records":
            monkeypatch.setattr(Merge, "_write_typed", lambda *_: False)
        table = definition.table(f"{name}_{kind}", key=key, order=order)
        one = SinkQuery(url, table, schema=schema)
        for batch in range(6):
            one.write(batch, rows_of(batch, seed=1))
        one.close()
        names = ", ".join(schema.names)
        found.append(run_sql(url, f"SELECT {names} FROM {name}_{kind} ORDER BY {', '.join(key)}"))

    assert found[0] == found[1]
    assert len(found[0]) > 50
    is_upserted = kind != "time" or not url.startswith("sqlite")
    assert [count > 0 for count in written_in_columns[-6:]] == [is_upserted] * 6


TEXT = TargetColumn("id", kinds.Text(characters=5), nullable=False)


def fitting(column: TargetColumn, values: Any) -> bool:
    """Return whether a row with this value in a column would be written in columns."""
    return typed_rows._fitting(column, pa.chunked_array([values]), required=False) is not None


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (kinds.Text(characters=2), pa.array(["abc"])),
        (kinds.Text(size=3), pa.array(["€€"])),
        (kinds.Text(), pa.array(["a\0"])),
        (kinds.Text(charset="latin1"), pa.array(["a"])),
        (kinds.Text(), pa.array([1])),
        (kinds.Integer(low=0, high=5), pa.array([1, 6])),
        (kinds.Integer(low=0, high=5), pa.array([-1])),
        (kinds.Integer(), pa.array([True])),
        (kinds.Float(), pa.array([1.0, float("nan")])),
        (kinds.Float(), pa.array([float("inf")])),
        (kinds.Numeric(digits=5, scale=1), pa.array([Decimal("1.25")], pa.decimal128(5, 2))),
        (kinds.Numeric(digits=5, scale=2), pa.array([Decimal("1.25")], pa.decimal128(6, 2))),
        (kinds.Timestamp(precision=3), pa.array([BEGIN], pa.timestamp("us", tz="UTC"))),
        (kinds.Timestamp(low=BEGIN), pa.array([-1], pa.timestamp("us"))),
        (kinds.Enumeration(labels=("a", "b")), pa.array(["a", "c"])),
        (kinds.Uuid(), pa.array(["x"])),
        (kinds.Json(), pa.array(["x"])),
    ],
)
def test_a_value_that_may_not_fit_is_left_to_the_decoder(kind: Any, values: Any) -> None:
    assert not fitting(TargetColumn("c", kind), values)


def test_null_is_left_to_the_decoder_if_the_column_refuses_it() -> None:
    values = pa.array([None], pa.string())

    assert fitting(TargetColumn("c", kinds.Text()), values)
    assert not fitting(TargetColumn("c", kinds.Text(), nullable=False), values)
    label = kinds.Enumeration(labels=("a", "b"))
    assert fitting(TargetColumn("c", label), pa.array(["b", None]))
    assert not fitting(TargetColumn("c", label, nullable=False), pa.array(["b", None]))


def test_only_columns_that_are_fields_as_they_are_make_plain_rows() -> None:
    note = TargetColumn("note", kinds.Text())
    plain = Mapping((("id",),), (TEXT,), None, None, ("@timestamp",), (Field(note, ("note",)),))
    padded = TargetColumn("id", kinds.Text(padded=True))

    assert typed_rows.is_plain_mapping(plain)
    assert not typed_rows.is_plain_mapping(Mapping((("id",),), (padded,), None, None, ("at",), ()))
    nested = Field(note, ("note", "text"))
    assert not typed_rows.is_plain_mapping(
        Mapping((("id",),), (TEXT,), None, None, ("@timestamp",), (nested,))
    )


def test_a_key_that_is_no_id_is_left_to_the_decoder(url: str) -> None:
    schema = schema_for(url, "tenant")
    one = SinkQuery(url, SinkTable("typed_version", ("id",), "version"), schema=schema)
    reader = typed_rows.TypedReader(one.definition.tables[0], one.session.inspect()[0], None)

    def read(key: str) -> Any:
        row = {**rows_of(0, seed=2)[0], "id": key}
        return reader.read([pa.RecordBatch.from_pylist([row], schema=schema)])

    assert read("doc") is not None
    assert read("") is None
    assert read("x" * 21) is None


READ_ALONE = """
import pickle, sys
import pyarrow as pa
from instep.document import kinds
from instep.document.mapping import TargetColumn
from instep.spark_sink import typed_rows

table, target, stream = pickle.load(sys.stdin.buffer)
rows = pa.ipc.open_stream(stream).read_all()
label = TargetColumn("note", kinds.Enumeration(labels=("a", "b")))
assert typed_rows._fitting(label, rows.column("note"), required=False) is not None
found = typed_rows.TypedReader(table, target, None).read(rows.to_batches())
assert found is not None
print(len(found.documents()), found.taken, any(found.csv(with_order=True)))
print("pandas" in sys.modules)
"""


def test_usual_rows_are_read_without_pandas(url: str) -> None:
    """Read them in a process of their own: Spark commits a batch of the format door in one."""
    schema = schema_for(url, "tenant")
    one = SinkQuery(url, SinkTable("typed_version", ("id",), "version"), schema=schema)
    rows = [
        {**row, "id": f"doc {number // 2}", "note": "a"}
        for number, row in enumerate(rows_of(1, seed=3))
    ]
    written = io.BytesIO()
    with pa.ipc.new_stream(written, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    given = one.definition.tables[0], one.session.inspect()[0], written.getvalue()
    importlib.import_module("pandas")  # installed, so that it could have been loaded

    done = subprocess.run(
        [sys.executable, "-c", READ_ALONE],
        input=pickle.dumps(given),
        capture_output=True,
        check=False,
    )

    expected = ["100", "200", "True", "False"]
    assert done.stdout.decode().split() == expected, done.stderr.decode()
