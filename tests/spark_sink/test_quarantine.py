"""Test what people do with rows that a sink keeps in quarantine. Spark itself is not needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from instep import errors
from instep.document.showing import plain
from instep.spark_sink import definition
from tests.support import cli
from tests.support.databases import run_sql
from tests.support.spark_sinks import SinkQuery

ORDERS = (
    "CREATE TABLE orders (order_id INTEGER PRIMARY KEY, status VARCHAR(20) NOT NULL,"
    " version BIGINT, CHECK (status <> 'bad'))"
)
LINES = (
    "CREATE TABLE order_lines (order_id INTEGER NOT NULL, line_no INTEGER NOT NULL,"
    " item VARCHAR(20), PRIMARY KEY (order_id, line_no),"
    " FOREIGN KEY (order_id) REFERENCES orders (order_id))"
)
PLAIN = "CREATE TABLE plain (order_id INTEGER PRIMARY KEY, status VARCHAR(20))"
ROW = pa.schema(
    [
        ("order_id", pa.int32()),
        ("status", pa.string()),
        ("version", pa.int64()),
        ("gone", pa.bool_()),
    ]
)
LINE = pa.schema([("order_id", pa.int32()), ("line_no", pa.int32()), ("item", pa.string())])
UNORDERED = pa.schema([("order_id", pa.int32()), ("status", pa.string())])


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, shared_database: Callable[[str], str]) -> str:
    where = shared_database(request.param)
    for statement in (ORDERS, LINES, PLAIN):
        run_sql(where, statement)
    return where


def orders(url: str) -> list[Any]:
    return run_sql(url, "SELECT order_id, status, version FROM orders ORDER BY order_id")


def row(order_id: int | None, status: str, version: int, gone: bool = False) -> dict[str, Any]:
    return {"order_id": order_id, "status": status, "version": version, "gone": gone}


def test_parked_rows_are_skipped_and_released(url: str, tmp_path: Path) -> None:
    table = definition.table("orders", key="order_id", order="version", delete_when="gone")
    query = SinkQuery(url, table, schema=ROW, on_error="park")
    query.write(0, [row(1, "new", 1), row(2, "bad", 1), row(3, "bad", 1)])
    query.write(1, [row(2, "good", 2), row(3, "good", 2)])
    query.write(2, [row(3, "good", 3, gone=True)])
    at = ("--url", url, "--pipeline", "orders")

    listed = cli.reported(tmp_path, "parked", "list", "--url", url)["documents"]
    assert [(one["document"], one["waiting"]) for one in listed] == [("2", 2), ("3", 3)]
    assert {one["retried_until"] for one in listed} == {None}
    refused = cli.instep(tmp_path, "parked", "release", "--all", *at, "--execute")
    assert (refused.returncode, "refused again stay parked" in refused.stderr) == (1, True)
    for document in ("2", "3"):
        skipped = ("parked", "skip", document, "--why", "a wrong status", *at, "--execute")
        assert cli.instep(tmp_path, *skipped).returncode == 0
    assert cli.instep(tmp_path, "parked", "release", "--all", *at).returncode == 0
    assert orders(url) == [(1, "new", 1)]
    assert cli.instep(tmp_path, "parked", "release", "--all", *at, "--execute").returncode == 0

    assert orders(url) == [(1, "new", 1), (2, "good", 2)]
    query.write(3, [row(2, "sent", 3), row(3, "late", 2)])
    assert orders(url) == [(1, "new", 1), (2, "sent", 3)]
    decided = run_sql(url, "SELECT action, count(*) FROM instep_decisions GROUP BY action")
    assert sorted(decided) == [("released", 3), ("skipped", 2)]
    query.close()


def test_a_line_without_its_parent_is_released_by_the_id_that_the_list_shows(
    url: str, tmp_path: Path
) -> None:
    table = definition.table("order_lines", key=["order_id", "line_no"])
    query = SinkQuery(url, table, schema=LINE, on_error="park")
    query.write(0, [{"order_id": 9, "line_no": 1, "item": "pen"}])
    run_sql(url, "INSERT INTO orders VALUES (9, 'new', 1)")

    shown = plain(f"9{definition.SEPARATOR}1")
    at = ("--url", url, "--pipeline", "order_lines")
    assert shown in cli.instep(tmp_path, "parked", "list", "order_lines", "--url", url).stdout
    assert cli.instep(tmp_path, "parked", "release", shown, *at, "--execute").returncode == 0

    assert run_sql(url, "SELECT * FROM order_lines") == [(9, 1, "pen")]
    query.close()


def test_a_pipeline_and_a_sink_of_one_name_share_no_quarantine(url: str, tmp_path: Path) -> None:
    table = definition.table("orders", key="order_id", order="version", delete_when="gone")
    query = SinkQuery(url, table, schema=ROW, on_error="park", name="shared")
    query.session.inspect()
    for statement in (
        "INSERT INTO instep_deleted VALUES ('shared', '71', 5)",
        "INSERT INTO instep_parked (pipeline, topic, partition, offset, document, reason, at)"
        " VALUES ('shared', 'print-status', 0, 0, '72', 'REFUSED_BY_TARGET', '2026-05-01')",
    ):
        quoted = statement.replace("partition, offset", '"partition", "offset"')
        run_sql(url, quoted.replace(" at)", ' "at")'))

    result = query.write(0, [row(71, "new", 1), row(72, "new", 1), row(73, "bad", 1)])

    query.close()
    assert result.reasons == {"REFUSED_BY_TARGET": 1}
    found = run_sql(url, "SELECT order_id FROM orders WHERE order_id > 70 ORDER BY 1")
    assert found == [(71,), (72,)]
    listed = cli.reported(tmp_path, "parked", "list", "shared", "--url", url)["documents"]
    assert [(one["pipeline"], one["document"]) for one in listed] == [("shared", "73")]


def test_dead_letters_are_dropped_and_replayed_only_with_an_order(url: str, tmp_path: Path) -> None:
    table = definition.table("plain", key="order_id")
    query = SinkQuery(url, table, schema=UNORDERED, on_error="park")
    query.write(0, [{"order_id": None, "status": "new"}])
    at = ("--url", url, "--pipeline", "plain")

    problem = cli.refused(tmp_path, "dead", "replay", "--all", *at)
    assert "a dead letter could overwrite a newer row" in problem
    dropped = ("dead", "drop", "--all", "--why", "a row without key", *at, "--execute")
    assert cli.instep(tmp_path, *dropped).returncode == 0

    assert cli.reported(tmp_path, "dead", "list", "plain", "--url", url) == {"reasons": []}
    query.close()


def test_a_sink_is_forgotten_with_its_quarantine(url: str, tmp_path: Path) -> None:
    table = definition.table("orders", key="order_id", order="version", delete_when="gone")
    kept, gone = (
        SinkQuery(url, table, schema=ROW, on_error="park", name=name) for name in ("kept", "gone")
    )
    for number, query in enumerate((kept, gone), start=81):
        query.write(0, [row(number, "bad", 1), row(None, "new", 1), row(89, "new", 1)])
        query.close()
    forget = ("sink", "forget", "gone", "--url", url)

    planned = cli.instep(tmp_path, *forget)
    assert (planned.returncode, "Dry run" in planned.stderr) == (0, True)
    assert "instep_dead_letters" in planned.stdout
    assert "gone" in cli.instep(tmp_path, "sink", "list", "--url", url).stdout
    assert cli.instep(tmp_path, *forget, "--execute").returncode == 0

    for name, column in (
        ("instep_sinks", "sink"),
        ("instep_sink_runs", "sink"),
        ("instep_batches", "sink"),
        ("instep_sink_tables", "sink"),
        ("instep_parked", "pipeline"),
        ("instep_dead_letters", "pipeline"),
    ):
        left = run_sql(url, f"SELECT {column} FROM {name} WHERE {column} LIKE '%gone'")
        assert left == []
        assert run_sql(url, f"SELECT 1 FROM {name} WHERE {column} LIKE '%kept'") != []
    assert run_sql(url, "SELECT order_id FROM orders WHERE order_id = 89") == [(89,)]
    assert "no sink 'gone'" in cli.refused(tmp_path, *forget)


def test_a_database_without_sinks_says_so(tmp_path: Path) -> None:
    empty = f"sqlite:///{tmp_path}/empty.db"
    run_sql(empty, PLAIN)

    assert "no Spark sink has written" in cli.refused(tmp_path, "parked", "list", "--url", empty)


DEFERRED = (
    "CREATE TABLE deferred (order_id INTEGER PRIMARY KEY, parent INTEGER"
    " REFERENCES plain (order_id) DEFERRABLE INITIALLY DEFERRED)"
)


def test_a_refusal_at_the_commit_writes_nothing_or_parks_the_row(url: str) -> None:
    """PostgreSQL checks deferred constraints with the statement, SQLite only at the commit."""
    run_sql(url, DEFERRED)
    schema = pa.schema([("order_id", pa.int32()), ("parent", pa.int32())])
    table = definition.table("deferred", key="order_id")
    query = SinkQuery(url, table, schema=schema, on_error="park")
    rows: list[dict[str, Any]] = [{"order_id": 1, "parent": None}, {"order_id": 2, "parent": 77}]

    if url.startswith("sqlite"):
        with pytest.raises(errors.RowRefused, match="FOREIGN KEY"):
            query.write(0, rows)
    else:
        assert query.write(0, rows).quarantined == 1

    written = [] if url.startswith("sqlite") else [(1,)]
    assert run_sql(url, "SELECT order_id FROM deferred") == written
    query.close()
