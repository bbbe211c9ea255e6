"""Test both doors of the sink with a real Spark."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as sf

import instep
from instep.spark_sink import collecting
from instep.spark_sink.collecting import RowCollector
from tests.support import cli
from tests.support.counting_source import Counting
from tests.support.databases import run_sql
from tests.support.spark_doors import (
    AUDIT,
    COUNTS,
    ORDERS,
    SCHEMA,
    rows,
    run_for_each,
    run_format,
)
from tests.support.spark_sessions import add_rows, forget_last_commit, read_rows

pytestmark = pytest.mark.own_spark

GUIDE = Path(__file__).parents[2] / "docs/guides/write-a-spark-stream.md"
LIMITS = (Path(__file__).parents[2] / "docs/concepts/limits.md").read_text(encoding="utf-8")
LAST_ID = 30_000
LOOSE = "CREATE TABLE loose (order_id INTEGER NOT NULL, status VARCHAR(20), version BIGINT)"


@pytest.fixture
def url(new_database: Callable[[str], str]) -> str:
    where = new_database("sqlite")
    for statement in (ORDERS, COUNTS, AUDIT, LOOSE):
        run_sql(where, statement)
    return where


def _random_text(number: int) -> str:
    return hashlib.sha1(b"%d" % number, usedforsecurity=False).hexdigest()[:20]


def epochs(url: str) -> list[Any]:
    return run_sql(url, "SELECT batch_id, epoch, next_row FROM instep_sinks")


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        "postgres",
        pytest.param("mariadb", marks=pytest.mark.long),
        pytest.param("mysql", marks=pytest.mark.long),
    ],
)
def test_a_stream_is_written_once_also_if_spark_repeats_its_last_batch(
    spark: Any, kind: str, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database(kind)
    run_sql(url, ORDERS)
    add_rows(tmp_path / "in", 1, rows(1, 2, 3))
    # statuses that cannot be compressed, so that a task stages its rows
    many = [{**row, "status": _random_text(row["order_id"])} for row in rows(*range(10, LAST_ID))]
    add_rows(tmp_path / "in", 2, [*rows(2, version=2, status="sent"), *many])
    stream = read_rows(spark, tmp_path / "in", SCHEMA)

    run_format(stream, url, tmp_path / "checkpoint")
    forget_last_commit(tmp_path / "checkpoint")
    run_sql(url, "DELETE FROM orders WHERE order_id = 10")
    run_format(stream.repartition(3), url, tmp_path / "checkpoint")

    assert epochs(url) == [(1, 2, LAST_ID - 6)]
    found = run_sql(url, "SELECT count(*), max(version), sum(order_id) FROM orders")
    assert found == [(LAST_ID - 8, 2, 6 + sum(range(11, LAST_ID)))]
    assert run_sql(url, "SELECT count(*) FROM instep_staged_rows") == [(0,)]


def test_running_counts_are_written_in_update_mode(spark: Any, url: str, tmp_path: Path) -> None:
    add_rows(tmp_path / "in", 1, rows(1, 2, 3))
    add_rows(tmp_path / "in", 2, [*rows(4, 5), *rows(6, status="sent")])
    stream = read_rows(spark, tmp_path / "in", SCHEMA)
    counts = stream.groupBy("status").agg(sf.count("*").alias("orders"))
    sink = instep.sink(url, instep.table("counts", key="status"))

    run_for_each(counts, sink, tmp_path / "checkpoint")
    forget_last_commit(tmp_path / "checkpoint")
    run_for_each(counts, sink, tmp_path / "checkpoint")

    assert run_sql(url, "SELECT * FROM counts ORDER BY status") == [("new", 5), ("sent", 1)]
    [(offsets,)] = run_sql(url, "SELECT offsets FROM instep_batches WHERE batch_id = 1")
    planned = [json.loads(place.removeprefix("0=")) for place in json.loads(offsets)]
    assert planned == [{"logOffset": 0}, {"logOffset": 1}]  # by the place of the source
    with pytest.raises(StreamingQueryException, match=r'outputMode\("complete"\)'):
        run_for_each(counts, sink, tmp_path / "another", mode="complete")


@pytest.mark.parametrize(("partitions", "count_every"), [(1, 50), (1, 1), (3, 50)])
def test_a_batch_that_grows_is_done_again_through_tasks(
    spark: Any,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    count_every: int,
) -> None:
    monkeypatch.setattr(collecting, "COUNT_EVERY", count_every)
    monkeypatch.setattr(collecting, "ROWS_MIN", 3)
    monkeypatch.setattr(collecting, "DIRECT_BYTES_MAX", 600)
    ways: list[str] = []
    for way in ("_directly", "_through_tasks"):
        original = getattr(RowCollector, way)

        def noted(*given: Any, way: str = way, original: Any = original) -> Any:
            found = original(*given)
            ways.append(way if found else f"{way}: too many")
            return found

        monkeypatch.setattr(RowCollector, way, noted)
    for number, ids in enumerate([range(3), range(3, 7), range(7, 99), range(99, 101)]):
        add_rows(tmp_path / "in", number + 1, rows(*ids))
    stream = read_rows(spark, tmp_path / "in", SCHEMA).repartition(partitions)

    table = instep.table("orders", key="order_id", order="version")
    run_for_each(stream, instep.sink(url, table), tmp_path / "checkpoint", mode="append")

    again = ["_directly: too many", "_through_tasks"]
    assert ways == ["_through_tasks", "_directly", *again, "_through_tasks"]
    assert run_sql(url, "SELECT count(*), sum(order_id) FROM orders") == [(101, 5_050)]


def test_a_sink_that_is_called_twice_in_a_batch_stops_the_query(
    spark: Any, url: str, tmp_path: Path
) -> None:
    add_rows(tmp_path / "in", 1, rows(1, 2, 3, 4))
    stream = read_rows(spark, tmp_path / "in", SCHEMA)
    table = instep.table("orders", key="order_id", order="version")
    sinks = [instep.sink(url, table), instep.sink(url, table)]  # of the same default name
    done: list[Any] = []

    def twice(frame: Any, batch_id: int) -> None:
        done.append(sinks[0].write(frame.where("order_id % 2 = 0"), batch_id))
        done.append(sinks[1].write(frame.where("order_id % 2 = 1"), batch_id))

    for _ in range(2):  # Spark repeats the batch, whose first part is skipped then
        with pytest.raises(StreamingQueryException, match="SINK_CALLED_TWICE: sink 'orders'"):
            run_for_each(stream, twice, tmp_path / "checkpoint", mode="append")
    assert [str(result.step) for result in done] == ["apply", "skip"]
    sinks[1] = instep.sink(url, table, name="odd")
    run_for_each(stream, twice, tmp_path / "checkpoint", mode="append")

    assert run_sql(url, "SELECT order_id FROM orders ORDER BY 1") == [(1,), (2,), (3,), (4,)]


def test_several_tables_are_written_together(spark: Any, url: str, tmp_path: Path) -> None:
    add_rows(tmp_path / "in", 1, rows(1, 2))
    add_rows(tmp_path / "in", 2, rows(2, version=2, status="sent"))
    stream = read_rows(spark, tmp_path / "in", SCHEMA).select(
        sf.struct("order_id", "status", "version").alias("orders"),
        sf.struct("order_id", "version", "status").alias("audit"),
    )
    query = (
        stream.writeStream.format("instep")
        .options(url=url, tables="orders, audit", checkpointLocation=str(tmp_path / "c"))
        .options(**{"orders.key": "order_id", "orders.order": "version"})
        .options(**{"audit.key": "order_id, version"})
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert run_sql(url, "SELECT * FROM orders ORDER BY 1") == [(1, "new", 1), (2, "sent", 2)]
    assert run_sql(url, "SELECT count(*) FROM audit") == [(3,)]


def test_a_deleted_checkpoint_stops_the_query_until_it_is_adopted(
    spark: Any, url: str, tmp_path: Path
) -> None:
    add_rows(tmp_path / "in", 1, rows(1, 2))
    stream = read_rows(spark, tmp_path / "in", SCHEMA)
    run_format(stream, url, tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "moved")
    shutil.rmtree(tmp_path / "checkpoint")
    add_rows(tmp_path / "in", 2, rows(3))
    run_format(stream, url, tmp_path / "moved")  # a moved checkpoint is the same one

    with pytest.raises(StreamingQueryException, match="CHECKPOINT_REPLACED: sink 'orders'"):
        run_format(stream, url, tmp_path / "checkpoint")
    planned = cli.instep(tmp_path, "sink", "adopt", "orders", "--url", url)
    assert "Dry run" in planned.stderr
    assert (
        cli.instep(tmp_path, "sink", "adopt", "orders", "--url", url, "--execute").returncode == 0
    )
    run_format(stream, url, tmp_path / "checkpoint")

    assert run_sql(url, "SELECT count(*) FROM orders") == [(3,)]
    assert "orders" in cli.instep(tmp_path, "sink", "list", "--url", url).stdout


def test_a_source_without_a_name_is_the_same_after_a_restart(
    spark: Any, url: str, tmp_path: Path
) -> None:
    spark.dataSource.register(Counting)
    stream = spark.readStream.format("counting").load().selectExpr("*", "'new' AS status")
    for _ in range(2):
        sink = instep.sink(url, instep.table("orders", key="order_id"))
        writer = stream.writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        forget_last_commit(tmp_path / "checkpoint")

    assert run_sql(url, "SELECT count(*), max(order_id) FROM orders") == [(9, 8)]
    assert epochs(url)[0][1:] == (2, 9)


def test_a_batch_job_is_one_transaction(spark: Any, url: str) -> None:
    frame = spark.createDataFrame([(1, "new", 1), (2, "new", 1)], SCHEMA)
    writer = frame.write.format("instep").options(url=url, table="orders", key="order_id")

    writer.mode("append").save()
    writer.mode("append").save()

    assert run_sql(url, "SELECT * FROM orders ORDER BY 1") == [(1, "new", 1), (2, "new", 1)]
    with pytest.raises(PySparkException, match=r'mode\("overwrite"\) would replace the table'):
        writer.mode("overwrite").save()


def test_other_modes_of_a_batch_job_are_in_the_documentation(spark: Any, url: str) -> None:
    frame = spark.createDataFrame([(1, "new", 1)], SCHEMA)
    writer = frame.write.format("instep").options(url=url, table="orders", key="order_id")

    for mode in ("ErrorIfExists", "Ignore"):
        text = f'The data source "instep" cannot be written in the "{mode}" mode'
        with pytest.raises(PySparkException, match=text):
            writer.mode(mode.lower()).save()
        assert f"`{text}`" in LIMITS


@pytest.mark.parametrize("kind", ["postgres", pytest.param("mariadb", marks=pytest.mark.long)])
def test_windows_are_keyed_by_their_begin_and_json_is_parsed(
    spark: Any, kind: str, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database(kind)
    types = ("TIMESTAMPTZ", "JSONB") if kind == "postgres" else ("DATETIME(6)", "JSON")
    columns = f"window_start {types[0]} NOT NULL PRIMARY KEY, orders BIGINT, latest {types[1]}"
    run_sql(url, f"CREATE TABLE per_minute ({columns})")
    add_rows(tmp_path / "in", 1, rows(1, 2, 61))
    add_rows(tmp_path / "in", 2, rows(62, 121))
    stream = read_rows(spark, tmp_path / "in", SCHEMA).withColumn(
        "at", sf.timestamp_seconds(sf.lit(1_700_000_040) + sf.col("order_id"))
    )
    counts = (
        stream.groupBy(sf.window("at", "1 minute"))
        .agg(sf.count("*").alias("orders"), sf.max("order_id").alias("order_id"))
        .select(
            sf.col("window.start").alias("window_start"),
            "orders",
            sf.to_json(sf.struct("order_id")).alias("latest"),
        )
    )
    sink = instep.sink(url, instep.table("per_minute", key="window_start"))

    run_for_each(counts, sink, tmp_path / "checkpoint")

    found = run_sql(url, "SELECT orders, latest FROM per_minute ORDER BY window_start")
    parsed = [(count, json.loads(doc) if isinstance(doc, str) else doc) for count, doc in found]
    assert parsed == [(2, {"order_id": 2}), (2, {"order_id": 62}), (1, {"order_id": 121})]


def test_a_batch_job_that_fails_leaves_no_staged_rows(spark: Any, url: str) -> None:
    many = spark.range(40_000, numPartitions=2).selectExpr("CAST(id AS INT) AS order_id")
    # statuses that cannot be compressed, so that a task stages its rows
    columns = ("order_id", "left(sha(string(order_id)), 20) AS status", "1L AS version")
    fails = "IF(order_id = 39999, raise_error('on purpose'), 1L) AS version"

    def write(frame: Any) -> None:
        writer = frame.write.format("instep").options(url=url, table="orders", key="order_id")
        writer.mode("append").save()

    with pytest.raises(PySparkException, match="on purpose"):
        write(many.selectExpr(*columns[:2], fails))
    with pytest.raises(PySparkException, match="KEY_NOT_UNIQUE"):
        write(many.selectExpr("order_id % 39000 AS order_id", *columns[1:]))
    assert run_sql(url, "SELECT count(*) FROM instep_staged_rows") == [(0,)]
    write(many.selectExpr(*columns))

    assert run_sql(url, "SELECT count(*) FROM orders") == [(40_000,)]
    assert run_sql(url, "SELECT count(*) FROM instep_staged_rows") == [(0,)]


@pytest.mark.parametrize(
    ("options", "mode", "problem"),
    [
        ({"keys": "order_id"}, "append", "unknown option 'keys'; did you mean 'key'?"),
        ({"key": "status"}, "append", "the key and may be null"),
        ({"table": "loose"}, "append", "column 'order_id' is the key and not unique"),
        ({"order": None}, "append", "KEY_NOT_UNIQUE: batch 0 of sink 'orders' has several rows"),
        ({}, "complete", 'outputMode("complete") writes the whole result'),
        ({}, "update", "requirement failed: instep does not support Update mode"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_written(
    spark: Any, url: str, tmp_path: Path, options: dict[str, str | None], mode: str, problem: str
) -> None:
    add_rows(tmp_path / "in", 1, [*rows(1), *rows(1, version=2)])
    stream = read_rows(spark, tmp_path / "in", SCHEMA)
    if mode != "append":
        stream = stream.groupBy("order_id").agg(
            sf.max("status").alias("status"), sf.max("version").alias("version")
        )

    with pytest.raises(PySparkException) as caught:
        run_format(stream, url, tmp_path / "checkpoint", mode, **options)

    assert problem in str(caught.value)
    if mode == "update":
        assert f"`{problem}`" in LIMITS
    for table in ("orders", "loose"):
        assert run_sql(url, f"SELECT count(*) FROM {table}") == [(0,)]


def test_the_guide_works(spark: Any, tmp_path: Path) -> None:
    """Run the examples of the guide one after the other, as one program in its own folder."""
    url = f"sqlite:///{tmp_path}/shop.db"
    for statement in (ORDERS, COUNTS.replace("orders BIGINT", "count BIGINT"), AUDIT):
        run_sql(url, statement)
    add_rows(tmp_path / "incoming", 1, rows(1, 2))
    names = {"spark": spark}

    guide = GUIDE.read_text().replace("sqlite:///shop.db", url)
    guide = re.sub(r'"(incoming|checkpoint[a-z-]*)"', rf'"{tmp_path}/\1"', guide)
    for block in re.findall(r"^```py\n(.*?)^```", guide, re.MULTILINE | re.DOTALL):
        exec(block, names)

    assert run_sql(url, "SELECT * FROM orders ORDER BY 1") == [(1, "new", 1), (2, "new", 1)]
    assert run_sql(url, "SELECT * FROM counts") == [("new", 2)]
    assert run_sql(url, "SELECT count(*) FROM audit") == [(2,)]


REFUSED_BY_SPARK: dict[str, tuple[Callable[[Any], Any], str]] = {
    "Invalid streaming output mode: append. This output mode is not supported for streaming"
    " aggregations without watermark": (
        lambda rows: rows.groupBy("status").count(),
        "append",
    ),
    "Invalid streaming output mode: complete. This output mode is not supported for no streaming"
    " aggregations": (
        lambda rows: rows,
        "complete",
    ),
    "Sorting is not supported on streaming DataFrames": (
        lambda rows: rows.orderBy("order_id"),
        "append",
    ),
    "Window function is not supported": (
        lambda rows: rows.selectExpr("*", "max(version) OVER (PARTITION BY status) AS latest"),
        "append",
    ),
    "Distinct aggregations are not supported on streaming DataFrames": (
        lambda rows: rows.groupBy("status").agg(sf.count_distinct("order_id")),
        "update",
    ),
}


def test_what_spark_refuses_is_in_the_documentation(spark: Any, url: str, tmp_path: Path) -> None:
    add_rows(tmp_path / "in", 1, rows(1))
    stream = read_rows(spark, tmp_path / "in", SCHEMA)

    for text, (made_of, mode) in REFUSED_BY_SPARK.items():
        with pytest.raises(PySparkException, match=re.escape(text)):
            run_format(made_of(stream), url, tmp_path / "checkpoint", mode)
        assert f"`{text}`" in LIMITS
    with pytest.raises(PySparkException) as caught:
        stream.write.format("instep").save()
    text = "The method `write` can not be called on streaming Dataset/DataFrame"
    assert text in str(caught.value)
    assert f"``{text}``" in LIMITS


def test_a_sink_outside_a_stream_is_refused(spark: Any, url: str) -> None:
    frame = spark.createDataFrame([(1, "new", 1)], SCHEMA)

    with pytest.raises(instep.errors.SettingsError, match="do not come from a streaming query"):
        instep.sink(url, instep.table("orders", key="order_id"))(frame, 0)
