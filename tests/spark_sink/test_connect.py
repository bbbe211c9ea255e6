"""Test the sink on Spark Connect and in Declarative Pipelines, as their users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.databases import run_sql
from tests.support.spark_sessions import ROOT, add_rows, forget_last_commit

pytestmark = [pytest.mark.own_spark, pytest.mark.long, pytest.mark.timeout(900)]

ORDERS = "CREATE TABLE orders (order_id INTEGER PRIMARY KEY, status VARCHAR(20), version BIGINT)"
COUNTS = "CREATE TABLE counts (status VARCHAR(20) PRIMARY KEY, orders BIGINT)"
SPECIFICATION = """
name: orders
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATION = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink(
    "orders_sink",
    "instep",
    {{"url": "{url}", "table": "orders", "key": "order_id", "order": "version"}},
)


@dp.append_flow(target="orders_sink")
def incoming():
    return (
        spark.readStream.schema("order_id int, status string, version long")
        .option("maxFilesPerTrigger", "1")
        .json("{folder}/in")
    )
"""


@pytest.fixture
def url(new_database: Callable[[str], str]) -> str:
    where = new_database("sqlite")
    run_sql(where, ORDERS)
    run_sql(where, COUNTS)
    return where


def run(folder: Path, *command: str) -> str:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_TESTING": "1",  # a free port for the server, which has a fixed one otherwise
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


def add_orders(folder: Path, number: int, orders: Sequence[tuple[int, str, int]]) -> None:
    names = ("order_id", "status", "version")
    add_rows(folder / "in", number, [dict(zip(names, one, strict=True)) for one in orders])


@pytest.mark.parametrize("door", ["format", "foreachBatch"])
def test_both_doors_write_once_on_spark_connect(door: str, url: str, tmp_path: Path) -> None:
    program = (sys.executable, "-m", "tests.support.connect_program", door, url, str(tmp_path))
    add_orders(tmp_path, 1, [(1, "new", 1), (2, "new", 1)])
    add_orders(tmp_path, 2, [(1, "sent", 2)])
    run(ROOT, *program)
    forget_last_commit(tmp_path / f"checkpoint-{door}")
    add_orders(tmp_path, 3, [(3, "new", 1)])
    run(ROOT, *program)

    if door == "format":
        expected = [(1, "sent", 2), (2, "new", 1), (3, "new", 1)]
        assert run_sql(url, "SELECT * FROM orders ORDER BY order_id") == expected
    else:
        expected_counts = [("new", 3), ("sent", 1)]
        assert run_sql(url, "SELECT * FROM counts ORDER BY status") == expected_counts
    assert run_sql(url, "SELECT batch_id, epoch FROM instep_sinks") == [(2, 2)]


def test_several_queries_of_one_session_need_the_format(url: str, tmp_path: Path) -> None:
    """Spark Connect does not tell which of them calls a function of foreachBatch."""
    run_sql(url, ORDERS.replace("orders", "copies"))
    add_orders(tmp_path, 1, [(1, "new", 1), (2, "new", 1)])
    add_orders(tmp_path, 2, [(1, "sent", 2)])

    program = (sys.executable, "-m", "tests.support.connect_program", "several")
    printed = run(ROOT, *program, url, str(tmp_path))

    assert "the session of Spark Connect runs 3 streaming queries" in printed
    for table in ("orders", "copies"):
        found = run_sql(url, f"SELECT * FROM {table} ORDER BY order_id")
        assert found == [(1, "sent", 2), (2, "new", 1)]
    assert run_sql(url, "SELECT sink, next_row FROM instep_sinks ORDER BY sink") == [
        ("copies", 3),
        ("orders", 3),
    ]


def test_a_sink_of_declarative_pipelines_continues_where_it_was(url: str, tmp_path: Path) -> None:
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=tmp_path))
    flow = TRANSFORMATION.format(url=url, folder=tmp_path)
    (tmp_path / "transformations" / "orders.py").write_text(flow)
    add_orders(tmp_path, 1, [(1, "new", 1), (2, "new", 1)])
    run(tmp_path, "spark-pipelines", "run")
    add_orders(tmp_path, 2, [(1, "sent", 2)])
    run(tmp_path, "spark-pipelines", "run")

    assert run_sql(url, "SELECT * FROM orders ORDER BY order_id") == [
        (1, "sent", 2),
        (2, "new", 1),
    ]
    assert run_sql(url, "SELECT next_row FROM instep_sinks") == [(3,)]
