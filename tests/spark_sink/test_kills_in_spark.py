"""Kill workers and drivers of a real Spark at every step of a micro-batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.support import probes, sink_lives, sink_program
from tests.support.databases import run_sql
from tests.support.spark_sessions import ROOT, add_rows, user_session

pytestmark = [pytest.mark.own_spark, pytest.mark.long, pytest.mark.timeout(1_200)]

STEPS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
ROWS = 40  # in each file


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    folder = tmp_path_factory.mktemp("kills")
    changed = {"INSTEP_PROBE": "tests.support.probes:kill_once", probes.FOLDER: str(folder)}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in changed.items():
            patched.setenv(name, value)
        with user_session() as started:
            yield started, folder


def add_file(folder: Path, number: int) -> None:
    rows = map(sink_lives.source_row, range(number * ROWS, (number + 1) * ROWS))
    add_rows(folder / "in", number, rows)


def check(url: str, shape: str, files: int) -> None:
    for table, rows in sink_lives.expected(shape, files * ROWS).items():
        assert sorted(run_sql(url, f"SELECT * FROM {table}")) == rows


@pytest.mark.parametrize("shape", ["provenance", "two-tables"])
def test_workers_that_are_killed_at_every_step(
    spark: tuple[Any, Path], shape: str, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """A killed worker fails the query; the same query, started again, continues."""
    url = new_database("postgres")
    for statement in sink_lives.TABLES.values():
        run_sql(url, statement)
    started, folder = spark
    killed = 0
    for number, step in enumerate(STEPS):
        add_file(tmp_path, number)
        (folder / "kill").write_text(f"{step} 0")
        try:
            sink_program.start(started, shape, url, tmp_path).awaitTermination()
        except PySparkException:
            killed += 1
            sink_program.start(started, shape, url, tmp_path).awaitTermination()
        check(url, shape, number + 1)
    assert killed == len(STEPS)
    [(rows,)] = run_sql(url, "SELECT next_row FROM instep_sinks")
    assert rows == len(STEPS) * ROWS * (2 if shape == "two-tables" else 1)


def test_workers_of_a_for_each_batch_that_are_killed(
    spark: tuple[Any, Path], new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """Its workers only encode and stage rows; the driver merges them."""
    url = new_database("postgres")
    for statement in sink_lives.TABLES.values():
        run_sql(url, statement)
    started, folder = spark
    killed = 0
    for number in range(4):
        add_file(tmp_path, number)
        (folder / "kill").write_text("0 0")
        try:
            sink_program.start(started, "aggregate", url, tmp_path).awaitTermination()
        except PySparkException:
            killed += 1
            sink_program.start(started, "aggregate", url, tmp_path).awaitTermination()
        check(url, "aggregate", number + 1)
    assert killed == 4


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ("aggregate", (0, 3, 6, 8, 9)),
        ("provenance", (0, 8, 9)),
        ("two-tables", (0, 3, 6, 8, 9)),
    ],
)
def test_drivers_that_are_killed(
    shape: str, steps: tuple[int, ...], new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("postgres")
    for statement in sink_lives.TABLES.values():
        run_sql(url, statement)
    environment = {
        **os.environ,
        "INSTEP_PROBE": "tests.support.probes:kill_once",
        probes.FOLDER: str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.support.sink_program", shape, url, str(tmp_path)]
    for number, step in enumerate(steps):
        add_file(tmp_path, number)
        (tmp_path / "kill").write_text(f"{step} 0")
        killed = subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=300)
        assert killed.returncode == -signal.SIGKILL
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)

    check(url, shape, len(steps))
