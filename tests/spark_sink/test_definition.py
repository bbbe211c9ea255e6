"""Test what a sink accepts as its definition, and how it says what is wrong."""

from __future__ import annotations

import pytest
from pyspark.sql import types as spark

from instep import errors
from instep.settings.pipeline_checks import check_pipeline
from instep.spark_sink import data_source, definition, targets
from instep.spark_sink.definition import SinkTable, from_options

GIVEN = {"url": "sqlite:///t.db", "table": "orders", "key": "order_id"}


def test_options_describe_one_table() -> None:
    defined = from_options({**GIVEN, "key": "tenant, no", "order": "version", "on_error": "park"})

    assert defined.tables == (SinkTable("orders", ("tenant", "no"), "version"),)
    assert (defined.name, defined.on_error) == ("orders", "park")


def test_options_of_several_tables_begin_with_their_column() -> None:
    defined = from_options(
        {
            "url": "sqlite:///t.db",
            "tables": "orders, lines",
            "orders.key": "order_id",
            "lines.table": "order_lines",
            "lines.key": "order_id, line_no",
        }
    )

    assert defined.tables == (
        SinkTable("orders", ("order_id",), column="orders"),
        SinkTable("order_lines", ("order_id", "line_no"), column="lines"),
    )
    assert defined.name == "orders+order_lines"


def test_options_of_spark_are_ignored() -> None:
    spark = {"checkpointLocation": "/tmp/c", "queryName": "q", "path": "x"}

    assert from_options({**GIVEN, **spark}) == from_options(GIVEN)


def test_environment_variables_in_the_url_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "p@ss")

    defined = from_options({**GIVEN, "url": "postgresql://app:${DB_PASSWORD}@db/x"})

    assert defined.url == "postgresql://app:p%40ss@db/x"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"keys": "a"}, "unknown option 'keys'; did you mean 'key'?"),
        ({"key": ""}, "the option 'key' is missing"),
        ({"url": ""}, "the option 'url' is missing"),
        ({"table": ""}, "the option 'table' is missing"),
        ({"on_error": "parked"}, "on_error = 'parked' is not known; did you mean 'park'?"),
        ({"delete_when": "order_id"}, "cannot be `delete_when`"),
        ({"name": "x" * 100}, "at most 100 are kept"),
        ({"tables": "orders", "orders.key": "id"}, "unknown option 'table'"),
    ],
)
def test_a_wrong_option_is_named(changes: dict[str, str], problem: str) -> None:
    with pytest.raises(errors.SettingsError) as caught:
        from_options({**GIVEN, **changes})

    assert problem in caught.value.what


def test_several_tables_need_a_column_each() -> None:
    tables = [
        definition.table("orders", key="id", column="orders"),
        definition.table("lines", key="id"),
    ]

    with pytest.raises(errors.SettingsError, match="table 'lines' has no column"):
        definition.define("sqlite:///t.db", tables)


@pytest.mark.parametrize(
    ("checkpoint", "is_unsafe"),
    [
        ("s3a://bucket/checkpoint", True),
        ("S3://bucket/checkpoint", True),
        ("hdfs://names/checkpoint", False),
        ("abfss://container@account/checkpoint", False),
        ("/checkpoints/s3a", False),
        ("", False),
    ],
)
def test_a_checkpoint_that_is_not_atomic_gets_a_warning(checkpoint: str, is_unsafe: bool) -> None:
    warning = definition.unsafe_checkpoint({"checkpointLocation": checkpoint})

    assert (warning is not None) is is_unsafe


def test_the_format_warns_of_such_a_checkpoint_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(data_source.StreamWriter, "check", lambda _: None)
    options = {**GIVEN, "checkpointLocation": "s3a://bucket/checkpoint"}

    data_source.stream_writer(options, spark.StructType(), overwrite=False)

    [warning] = caplog.messages
    assert warning.startswith("the checkpoint is on s3a://")


def test_two_columns_of_one_name_are_refused() -> None:
    fields = [spark.StructField(name, spark.IntegerType()) for name in ("id", "status", "id")]

    with pytest.raises(errors.SettingsError, match="table 'orders' have 2 columns 'id'"):
        targets.rows_of(SinkTable("orders", ("id",)), spark.StructType(fields))


def test_no_pipeline_has_the_name_of_a_sink_in_the_journal() -> None:
    defined = from_options(GIVEN)
    name = defined.journal_name(defined.tables[0])
    declared = defined.tables[0].pipeline_settings("sqlite:///t.db", ["order_id", "status"])

    with pytest.raises(errors.SettingsError, match="belongs to a Spark sink"):
        check_pipeline(name, declared)
