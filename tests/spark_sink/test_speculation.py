"""Test the sink on a real cluster that runs slow tasks twice: spark.speculation=true."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from instep.local.spark_cluster import CONF, SparkCluster
from tests.support.databases import run_sql
from tests.support.spark_doors import ORDERS, SCHEMA, run_format
from tests.support.spark_sessions import add_rows, read_rows, user_session

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = [
    pytest.mark.own_spark,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),  # mapInArrow
]

ROWS = 30_000  # tasks stage rows above 256 KiB
SPECULATING = {
    **CONF,
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    with (
        SparkCluster(folder, workers=2, own_hosts=True) as cluster,
        user_session(SPECULATING, master=cluster.url) as started,
    ):
        yield started


def with_a_straggler(frame: Any, folder: Path) -> Any:
    """Return the rows, of which the first attempt of one task never says that it has them all."""
    waits, again = str(folder / "waits"), str(folder / "again")

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is None or context.partitionId() != 1:
            return
        if context.attemptNumber():
            Path(again).touch()
            return
        Path(waits).touch()
        while True:  # until Spark ends this attempt
            time.sleep(0.01)

    return frame.mapInArrow(passed, frame.schema)


def check(url: str, folder: Path) -> None:
    assert (folder / "waits").exists()
    assert (folder / "again").exists()
    found = run_sql(url, "SELECT count(*), sum(order_id) FROM orders")
    assert [tuple(map(int, row)) for row in found] == [(ROWS, sum(range(ROWS)))]
    assert run_sql(url, "SELECT next_row FROM instep_sinks") == [(ROWS,)]


@pytest.fixture
def url(new_database: Callable[[str], str]) -> str:
    where = new_database("postgres")
    run_sql(where, ORDERS)
    return where


def test_a_task_of_a_stream_that_runs_twice_is_written_once(
    spark: Any, url: str, tmp_path: Path
) -> None:
    rows = [{"order_id": one, "status": "x" * 20, "version": 1} for one in range(ROWS)]
    add_rows(tmp_path / "in", 1, rows)
    stream = read_rows(spark, tmp_path / "in", SCHEMA).repartition(2)
    run_format(with_a_straggler(stream, tmp_path), url, tmp_path / "checkpoint")
    check(url, tmp_path)


def test_a_task_of_a_batch_job_that_runs_twice_is_written_once(
    spark: Any, url: str, tmp_path: Path
) -> None:
    frame = spark.range(ROWS, numPartitions=2).selectExpr(
        "CAST(id AS INT) AS order_id", "repeat('x', 20) AS status", "1L AS version"
    )
    writer = with_a_straggler(frame, tmp_path).write.format("instep")
    writer.options(url=url, table="orders", key="order_id").mode("append").save()
    check(url, tmp_path)
