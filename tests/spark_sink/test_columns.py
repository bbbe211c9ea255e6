"""Test keys and values of unusual types in every database. Spark itself is not needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from instep import errors
from instep.spark_sink import definition
from tests.support import cli
from tests.support.databases import KINDS, run_sql
from tests.support.spark_sinks import SinkQuery

MINUTE = datetime(2026, 5, 1, 10, 0, tzinfo=UTC)
# The type of the key's column, that of the DataFrame, and three values.
KEYS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "date": ("DATE", pa.date32(), [date(2026, 5, 1), date(2026, 5, 2), date(1969, 1, 1)]),
    "time": (
        "TIMESTAMP(6)",
        pa.timestamp("us", tz="Europe/Berlin"),
        [MINUTE, MINUTE + timedelta(minutes=1), MINUTE + timedelta(microseconds=1)],
    ),
    "local time": (
        "TIMESTAMP(6)",
        pa.timestamp("us"),
        [MINUTE.replace(tzinfo=None), datetime(2026, 5, 2), datetime(2026, 5, 3)],  # noqa: DTZ001
    ),
    "decimal": (
        "NUMERIC(10, 2)",
        pa.decimal128(10, 2),
        [Decimal("1.50"), Decimal("-100.00"), Decimal("0.00")],
    ),
    "boolean": ("BOOLEAN", pa.bool_(), [True, False]),
}


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, shared_database: Callable[[str], str]) -> str:
    return shared_database(request.param)


def table_of(url: str, name: str, columns: str) -> None:
    """Create an empty table."""
    run_sql(url, f"DROP TABLE IF EXISTS {name}")
    if not url.startswith(("sqlite", "postgres")):
        columns = columns.replace("TIMESTAMP(6)", "DATETIME(6)")
    run_sql(url, f"CREATE TABLE {name} ({columns})")


@pytest.mark.parametrize("order", ["version", None])
@pytest.mark.parametrize("kind", KEYS)
def test_a_key_may_be_a_date_a_time_a_decimal_or_a_boolean(
    url: str, kind: str, order: str | None
) -> None:
    declared, arrow, values = KEYS[kind]
    if url.startswith("sqlite") and kind in ("time", "local time", "decimal"):
        pytest.skip("SQLite has no such column with one form for each value")
    name = f"by_{kind.replace(' ', '_')}_{order or 'none'}"
    table_of(url, name, f"k {declared} NOT NULL PRIMARY KEY, n BIGINT, version BIGINT")
    schema = pa.schema([("k", arrow), ("n", pa.int64()), ("version", pa.int64())])
    plain = SinkQuery(url, definition.table(name, key="k", order=order), schema=schema)
    plain.write(0, [{"k": key, "n": 1, "version": 1} for key in values])
    plain.write(1, [{"k": values[0], "n": 2, "version": 2}])
    plain.close()
    schema = schema.append(pa.field("gone", pa.bool_()))
    table = definition.table(name, key="k", order=order, delete_when="gone")
    deleting = SinkQuery(url, table, schema=schema)
    deleting.write(2, [{"k": values[1], "n": 0, "version": 3, "gone": True}])
    deleting.write(3, [{"k": values[0], "n": 3, "version": 3, "gone": False}])
    if order:
        deleting.write(4, [{"k": values[1], "n": 4, "version": 2, "gone": False}])
    deleting.close()

    expected = [3] + [1] * (len(values) - 2)
    assert run_sql(url, f"SELECT n FROM {name} ORDER BY n DESC") == [(n,) for n in expected]


def test_a_parked_row_is_released_by_its_day(url: str, tmp_path: Path) -> None:
    table_of(url, "days", "day DATE NOT NULL PRIMARY KEY, n BIGINT, CHECK (n < 10)")
    schema = pa.schema([("day", pa.date32()), ("n", pa.int64())])
    query = SinkQuery(
        url, definition.table("days", key="day"), schema=schema, on_error="park", name="days"
    )
    query.write(0, [{"day": date(2026, 5, 1), "n": 99}, {"day": date(2026, 5, 2), "n": 1}])
    query.write(1, [{"day": date(2026, 5, 1), "n": 9}])
    query.close()
    at = ("--url", url, "--pipeline", "days", "--execute")

    skipped = cli.instep(tmp_path, "parked", "skip", "2026-05-01", "--why", "too many", *at)
    assert skipped.returncode == 0, skipped.stderr
    assert cli.instep(tmp_path, "parked", "release", "2026-05-01", *at).returncode == 0

    assert run_sql(url, "SELECT n FROM days ORDER BY day") == [(9,), (1,)]


def test_json_text_is_written_as_json(url: str) -> None:
    kind = "JSONB" if url.startswith("postgres") else "JSON"
    table_of(url, "docs", f"id INTEGER NOT NULL PRIMARY KEY, doc {kind}")
    schema = pa.schema([("id", pa.int32()), ("doc", pa.string())])
    query = SinkQuery(
        url, definition.table("docs", key="id"), schema=schema, on_error="park", name="docs"
    )
    texts = ['{"a": 1, "price": 0.10}', "[1, null]", '"text"', "7", None, "not JSON", '{"a": ']

    result = query.write(0, [{"id": at, "doc": text} for at, text in enumerate(texts)])

    query.close()
    assert result.reasons == {"WRONG_TYPE": 2}
    found = run_sql(url, "SELECT id, doc FROM docs ORDER BY id")
    stored = [json.loads(doc) if isinstance(doc, str) and at != 2 else doc for at, doc in found]
    if isinstance(stored[2], str):
        stored[2] = stored[2].strip('"')
    assert stored == [{"a": 1, "price": 0.1}, [1, None], "text", 7, None]


def test_text_that_is_not_json_stops_the_query(url: str) -> None:
    kind = "JSONB" if url.startswith("postgres") else "JSON"
    table_of(url, "strict_docs", f"id INTEGER NOT NULL PRIMARY KEY, doc {kind}")
    schema = pa.schema([("id", pa.int32()), ("doc", pa.string())])
    query = SinkQuery(url, definition.table("strict_docs", key="id"), schema=schema)

    with pytest.raises(errors.RowRefused, match="'plain text' is text that is not JSON"):
        query.write(0, [{"id": 1, "doc": "plain text"}])
    query.close()


@pytest.mark.parametrize("on_error", ["stop", "park"])
def test_a_table_may_have_only_a_key(url: str, on_error: str) -> None:
    run_sql(url, "DROP TABLE IF EXISTS links")
    table_of(url, "ends", "id INTEGER NOT NULL PRIMARY KEY")
    for end in (1, 2, 3):
        run_sql(url, f"INSERT INTO ends VALUES ({end})")
    columns = "a INTEGER NOT NULL, b INTEGER NOT NULL, PRIMARY KEY (a, b)"
    table_of(url, "links", f"{columns}, FOREIGN KEY (b) REFERENCES ends (id)")
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("gone", pa.bool_())])
    table = definition.table("links", key=["a", "b"], delete_when="gone")
    name = f"links or {on_error}"
    query = SinkQuery(url, table, schema=schema, on_error=on_error, name=name)

    query.write(0, [{"a": 1, "b": 1, "gone": False}, {"a": 1, "b": 2, "gone": False}])
    query.write(1, [{"a": 1, "b": 2, "gone": False}, {"a": 2, "b": 3, "gone": None}])
    query.write(2, [{"a": 1, "b": 1, "gone": True}])
    if on_error == "park":
        assert query.write(3, [{"a": 9, "b": 9, "gone": False}]).reasons == {"PARENT_MISSING": 1}

    query.close()
    assert run_sql(url, "SELECT a, b FROM links ORDER BY a, b") == [(1, 2), (2, 3)]
