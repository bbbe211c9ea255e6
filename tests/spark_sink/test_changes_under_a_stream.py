"""Test streams in a real Spark when the database, the table or Spark's settings change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import instep
from tests.support import cli
from tests.support.backups import Backup
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

CHECKED = ORDERS.replace("status VARCHAR(20)", "status VARCHAR(20) CHECK (status <> 'bad')")
DOORS = ["format", "foreachBatch"]


@pytest.fixture
def backup() -> Iterator[Callable[[str], Backup]]:
    made: list[Backup] = []

    def make(url: str) -> Backup:
        made.append(Backup(url))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def test_a_restored_database_stops_the_query_until_its_checkpoint_is_restored(
    spark: Any,
    kind: str,
    backup: Callable[[str], Backup],
    new_database: Callable[[str], str],
    tmp_path: Path,
) -> None:
    url, checkpoint = new_database(kind), tmp_path / "checkpoint"
    run_sql(url, ORDERS)
    add_rows(tmp_path / "in", 1, rows(1))
    stream = read_rows(spark, tmp_path / "in", SCHEMA)
    before_the_first = backup(url)
    run_format(stream, url, checkpoint)
    after_the_first = backup(url)
    shutil.copytree(checkpoint, tmp_path / "of the backup")
    add_rows(tmp_path / "in", 2, rows(2))
    run_format(stream, url, checkpoint)
    add_rows(tmp_path / "in", 3, rows(3))

    before_the_first.restore()
    with pytest.raises(StreamingQueryException, match=r"BATCHES_MISSING: .* no batch .* is at 2"):
        run_format(stream, url, checkpoint)
    assert run_sql(url, "SELECT * FROM orders") == []
    after_the_first.restore()
    with pytest.raises(StreamingQueryException, match=r"BATCHES_MISSING: .* batch 0, .* is at 2"):
        run_format(stream, url, checkpoint)
    assert run_sql(url, "SELECT order_id FROM orders") == [(1,)]
    run_format(stream, url, tmp_path / "of the backup")

    assert run_sql(url, "SELECT order_id FROM orders ORDER BY 1") == [(1,), (2,), (3,)]


@pytest.mark.long
def test_a_sink_never_seen_is_adopted_where_the_query_is(
    spark: Any, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """As after a change of `url` or `name`, in update mode."""
    first, second = new_database("sqlite"), new_database("sqlite")
    for url in (first, second):
        run_sql(url, COUNTS)
    table = instep.table("counts", key="status")
    add_rows(tmp_path / "in", 1, rows(1))
    counts = (
        read_rows(spark, tmp_path / "in", SCHEMA)
        .groupBy("status")
        .agg(sf.count("*").alias("orders"))
    )
    run_for_each(counts, instep.sink(first, table), tmp_path / "checkpoint")
    add_rows(tmp_path / "in", 2, rows(2))

    with pytest.raises(StreamingQueryException, match="BATCHES_MISSING: sink 'counts' has applied"):
        run_for_each(counts, instep.sink(second, table), tmp_path / "checkpoint")
    adopt = ("sink", "adopt", "counts", "--url", second)
    assert "has applied no batch in this database" in cli.instep(tmp_path, *adopt).stdout
    assert cli.reported(tmp_path, "sink", "list", "--url", second) == {"sinks": {}}
    assert cli.instep(tmp_path, *adopt, "--execute").returncode == 0
    [adopted] = cli.reported(tmp_path, "sink", "list", "--url", second)["sinks"].values()
    assert adopted["query_id"] == "*"
    run_for_each(counts, instep.sink(second, table), tmp_path / "checkpoint")

    assert run_sql(second, "SELECT * FROM counts") == [("new", 2)]


@pytest.mark.parametrize("door", DOORS)
def test_a_column_that_is_dropped_between_two_batches_stops_the_query(
    spark: Any, door: str, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("postgres")
    run_sql(url, ORDERS)
    add_rows(tmp_path / "in", 1, rows(1))
    stream = read_rows(spark, tmp_path / "in", SCHEMA)
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    if door == "format":
        writer = writer.format("instep").options(url=url, table="orders", key="order_id")
    else:
        writer = writer.foreachBatch(instep.sink(url, instep.table("orders", key="order_id")))
    query = writer.start()
    query.processAllAvailable()
    run_sql(url, "ALTER TABLE orders DROP COLUMN status")
    add_rows(tmp_path / "in", 2, rows(2))

    with pytest.raises(StreamingQueryException, match=r"TARGET_CHANGED: .* column 'status'"):
        query.awaitTermination(60)
    assert run_sql(url, "SELECT order_id FROM orders") == [(1,)]

    run_sql(url, "ALTER TABLE orders ADD COLUMN status VARCHAR(30)")
    again = writer.start()
    again.processAllAvailable()
    again.stop()
    found = run_sql(url, "SELECT order_id, status FROM orders ORDER BY 1")
    assert found == [(1, None), (2, "new")]


@pytest.mark.parametrize("door", DOORS)
def test_a_batch_is_recognised_with_other_partitions(
    spark: Any, door: str, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("sqlite")
    run_sql(url, ORDERS)
    sink = instep.sink(url, instep.table("orders", key="order_id", order="version"))
    add_rows(tmp_path / "in", 1, rows(*range(50)))
    stream = read_rows(spark, tmp_path / "in", SCHEMA)
    counted: list[int] = []

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        shuffled = batch.groupBy("order_id").agg(
            sf.max("status").alias("status"), sf.max("version").alias("version")
        )
        counted.append(len(shuffled.select(sf.spark_partition_id()).collect()))
        sink(shuffled, batch_id)

    def run() -> None:
        if door == "format":
            run_format(stream.repartition("order_id"), url, tmp_path / "checkpoint")
        else:
            run_for_each(stream, write_batch, tmp_path / "checkpoint", mode="append")

    changed = {"spark.sql.shuffle.partitions": "5", "spark.sql.adaptive.enabled": "false"}
    before = {name: spark.conf.get(name) for name in changed}
    run()
    forget_last_commit(tmp_path / "checkpoint")
    run_sql(url, "DELETE FROM orders WHERE order_id = 7")
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        run()
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)

    assert run_sql(url, "SELECT count(*) FROM orders") == [(49,)]
    assert run_sql(url, "SELECT batch_id, epoch, next_row FROM instep_sinks") == [(0, 2, 50)]


@pytest.mark.parametrize("door", DOORS)
def test_several_tables_with_deletes_and_refused_rows(
    spark: Any, door: str, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("postgres")
    run_sql(url, CHECKED)
    run_sql(url, AUDIT)
    add_rows(tmp_path / "in", 1, [*rows(1, 2), *rows(3, status="bad")])
    gone = rows(1, version=2, status="gone")
    add_rows(tmp_path / "in", 2, [*gone, *rows(2, 3, version=2, status="sent")])
    stream = read_rows(spark, tmp_path / "in", SCHEMA).select(
        sf.struct("*", sf.expr("status = 'gone' AS is_gone")).alias("o"),
        sf.array(sf.struct("order_id", "version", "status")).alias("a"),
    )
    if door == "format":
        options: dict[str, str | None] = {
            **dict.fromkeys(("table", "key", "order")),
            "tables": "o, a",
            "o.table": "orders",
            "o.key": "order_id",
            "o.order": "version",
            "o.delete_when": "is_gone",
            "a.table": "audit",
            "a.key": "order_id, version",
            "on_error": "park",
        }
        run_format(stream, url, tmp_path / "checkpoint", mode="append", **options)
    else:
        sink = instep.sink(
            url,
            instep.table(
                "orders", key="order_id", order="version", delete_when="is_gone", column="o"
            ),
            instep.table("audit", key=["order_id", "version"], column="a"),
            on_error="park",
        )
        run_for_each(stream, sink, tmp_path / "checkpoint", mode="append")

    assert run_sql(url, "SELECT * FROM orders") == [(2, "sent", 2)]
    assert run_sql(url, "SELECT count(*) FROM audit") == [(6,)]
    parked = run_sql(url, "SELECT pipeline, document, reason FROM instep_parked ORDER BY reason")
    assert parked == [
        ("sink:orders+audit/orders", "3", "REFUSED_BY_TARGET"),
        ("sink:orders+audit/orders", "3", "WAITS_BEHIND"),
    ]
