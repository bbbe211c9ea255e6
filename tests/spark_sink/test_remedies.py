"""Test that a user of a sink can follow every remedy: there is no settings file, no `target`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

import instep
from instep import errors
from instep.sinks import sqlite
from instep.spark_sink import definition, remedies, session
from instep.spark_sink.targets import SinkSchema
from tests.support.databases import run_sql
from tests.support.spark_doors import SCHEMA, rows, run_for_each, run_format
from tests.support.spark_sessions import add_rows, read_rows

# Words of pipelines, which mean nothing to a user of a sink.
FOREIGN = (
    "settings",
    "missing =",
    "instep init",
    "instep run",
    "instep doctor",
    "`target`",
    "`document`",
    "map it",
    "mapping",
)
ROW = pa.schema([("id", pa.int32()), ("status", pa.string()), ("version", pa.int64())])
COLUMNS = "id INTEGER NOT NULL PRIMARY KEY, status VARCHAR(20), version BIGINT"


def refused(url: str, *, key: str = "id", order: str | None = None) -> errors.InstepError:
    """Return the error of a sink on table t."""
    defined = definition.define(url, [definition.table("t", key=key, order=order)])
    schema = SinkSchema(from_arrow_schema(ROW).json())
    with (
        pytest.raises(errors.InstepError) as caught,
        session.session_of(defined, schema) as opened,
    ):
        opened.inspect()
    for word in FOREIGN:
        assert word not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("statements", "what", "remedy"),
    [
        ([], "has no table t", "CREATE TABLE t"),
        (["CREATE VIEW t AS SELECT 1 AS id"], "t is a view", "name the table behind it"),
        (
            ["CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, status VARCHAR(20))"],
            "table t has no column 'version'",
            'drop("version"), or ALTER TABLE "t" ADD "version"',
        ),
        (
            ["CREATE TABLE t (nr INTEGER NOT NULL PRIMARY KEY)"],
            "table t has no column 'id'",
            "the table has: nr",
        ),
        (
            [f"CREATE TABLE t ({COLUMNS}, place VARCHAR(9) NOT NULL)"],
            "column 'place' does not allow null, has no default and is not written",
            "add the column 'place' to the DataFrame, or give it a default",
        ),
        (
            [
                "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, status VARCHAR(20),"
                " version BIGINT GENERATED ALWAYS AS (id * 2) STORED)"
            ],
            "column 'version' is computed by the database",
            'drop("version")',
        ),
        (
            [
                "CREATE TABLE t (id INTEGER NOT NULL, no INTEGER NOT NULL, status VARCHAR(20),"
                " version BIGINT, PRIMARY KEY (id, no))"
            ],
            "column 'id' is the key and not unique: the table's key is (id, no)",
            'name all of them as `key`, or ALTER TABLE "t" ADD UNIQUE ("id")',
        ),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_table_that_does_not_fit_has_a_remedy_for_a_sink(
    kind: str,
    statements: list[str],
    what: str,
    remedy: str,
    new_database: Callable[[str], str],
) -> None:
    url = new_database(kind)
    run_sql(url, "CREATE TABLE other (id INTEGER)")  # SQLite creates its file with the first table
    for statement in statements:
        run_sql(url, statement)

    error = refused(url)

    assert what in error.what
    assert remedy in error.remedy


def test_a_day_is_no_order(new_database: Callable[[str], str]) -> None:
    url = new_database("sqlite")
    run_sql(url, COLUMNS.join(["CREATE TABLE t (", ")"]).replace("BIGINT", "DATE"))

    error = refused(url, order="version")

    assert error.remedy == "order by a column of integers or times, or by none"


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("postgresql://nobody@127.0.0.1:1/shop", "correct host and port in `url`"),
        ("mysql://nobody@127.0.0.1:1/shop", "correct host and port in `url`"),
        ("sqlite:////no/such/folder/shop.db", "correct the path in `url`"),
        ("shop", "write e.g. postgresql://user@host/database"),
    ],
)
def test_a_database_that_cannot_be_reached_has_a_remedy_for_a_sink(url: str, remedy: str) -> None:
    assert remedy in refused(url).remedy


def test_remedies_that_are_replaced_are_those_of_the_code() -> None:
    usual = {kind.usual_remedy for kind in remedies.USUAL}
    code = (Path(sqlite.__file__)).read_text(encoding="utf-8")

    others = [text for text in remedies.BY_TEXT if text not in usual]
    assert [text for text in others if f'"{text}"' not in code] == []


@pytest.mark.parametrize("kind", remedies.USUAL)
def test_usual_remedies_are_those_of_a_sink(kind: type[errors.InstepError]) -> None:
    with pytest.raises(kind) as caught, remedies.in_terms_of_a_sink():
        raise kind("x")

    for word in FOREIGN:
        assert word not in caught.value.remedy


@pytest.mark.own_spark
@pytest.mark.parametrize("door", ["format", "foreachBatch"])
def test_both_doors_give_the_remedy(
    spark: Any, door: str, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("sqlite")
    run_sql(url, "CREATE TABLE other (id INTEGER)")
    add_rows(tmp_path / "in", 1, rows(1))
    stream = read_rows(spark, tmp_path / "in", SCHEMA)

    def write(where: str) -> None:
        if door == "format":
            run_format(stream, where, tmp_path / "checkpoint")
            return
        sink = instep.sink(where, instep.table("orders", key="order_id"))
        run_for_each(stream, sink, tmp_path / "checkpoint", mode="append")

    for where, problem, remedy in [
        (url, "has no table orders", "CREATE TABLE orders"),
        ("postgresql://nobody@127.0.0.1:1/shop", "no connection to", "host and port in `url`"),
    ]:
        with pytest.raises(PySparkException) as caught:
            write(where)
        assert problem in str(caught.value)
        assert remedy in str(caught.value)
