"""Kill the driver of a sink at every step, and compare the tables with the source."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from instep.waiting import wait_until
from tests.support import sink_lives
from tests.support.databases import run_sql
from tests.support.sink_lives import Checkpoint, Life

SHAPES = sorted(sink_lives.SHAPES)
STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 9, sink_lives.PLANNED, sink_lives.STAGED, sink_lives.MERGED)
KILLS = int(os.environ.get("INSTEP_TEST_SINK_KILLS", "40"))
ROWS = 1_500


def prepared(url: str) -> str:
    for statement in sink_lives.TABLES.values():
        run_sql(url, statement)
    return url


class Lives:
    """Runs drivers in forked processes, and counts how they end."""

    def __init__(
        self,
        url: str,
        shape: str,
        folder: Path,
        *,
        knows_offsets: bool,
        atomic: bool = False,
        rows: int = ROWS,
    ) -> None:
        self.atomic, self.rows = atomic, rows
        self.url, self.shape, self.folder = url, shape, folder
        self.knows_offsets = knows_offsets
        self.ends: Counter[str] = Counter()

    def start(self, kill_step: str = "-1:0") -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 9
        try:
            os.environ["INSTEP_PROBE"] = "tests.support.sink_lives:strike"
            os.environ[sink_lives.KILL_STEP] = kill_step
            with (self.folder / "stderr").open("a") as log:
                sys.stderr = log
                life = Life(
                    self.url,
                    self.shape,
                    self.folder,
                    knows_offsets=self.knows_offsets,
                    atomic=self.atomic,
                )
                status = sink_lives.child(life, self.rows)
        finally:
            os._exit(status)

    def end(self, pid: int) -> str:
        _, status = os.waitpid(pid, 0)
        end = "killed" if os.WIFSIGNALED(status) else str(os.waitstatus_to_exitcode(status))
        self.ends[end] += 1
        return end

    def batch(self) -> int:
        """Return the last batch that was applied."""
        [(batch_id,)] = run_sql(self.url, "SELECT batch_id FROM instep_sinks")
        return -1 if batch_id is None else int(batch_id)

    def repair(self) -> None:
        """Do what the page of a stop says, if there is one: repeat and accept the last batch."""
        if self.end(self.start(f"{sink_lives.DONE}:0")) == "3":
            Checkpoint(self.folder).forget_last_commit()
            sink_lives.adopt(self.url, self.shape)

    def check(self) -> None:
        for table, rows in sink_lives.expected(self.shape, self.rows).items():
            assert sorted(run_sql(self.url, f"SELECT * FROM {table}")) == rows, table
        assert run_sql(self.url, "SELECT count(*) FROM instep_staged_rows") == [(0,)]


def kill_at_every_step(lives: Lives, kills: int, chance: random.Random) -> None:
    """Kill drivers one after the other, then let one end, and compare the tables."""
    checkpoint = Checkpoint(lives.folder)
    for number in range(kills):
        step = STEPS[number % len(STEPS)]
        pid = lives.start(f"{step}:{chance.randint(0, 2)}")
        if lives.end(pid) == "0":
            break
        if chance.random() < 0.3:
            checkpoint.forget_last_commit()
    assert lives.end(lives.start()) == "0", (lives.folder / "stderr").read_text()

    lives.check()
    [(rows,)] = run_sql(lives.url, "SELECT next_row FROM instep_sinks")
    if lives.shape != "aggregate":
        assert rows == (2 * lives.rows if lives.shape == "two-tables" else lives.rows)
    assert lives.ends.keys() <= {"killed", "0"}


@pytest.mark.parametrize("knows_offsets", [True, False], ids=["foreachBatch", "format"])
def test_a_driver_that_is_killed_once_at_every_step(
    knows_offsets: bool, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """The short form of the test below: one database and one shape, a life for each step."""
    url = prepared(new_database("postgres"))
    lives = Lives(url, "two-tables", tmp_path, knows_offsets=knows_offsets, rows=600)
    kill_at_every_step(lives, len(STEPS), random.Random(knows_offsets))
    assert lives.ends["killed"] == len(STEPS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
@pytest.mark.parametrize("knows_offsets", [True, False], ids=["foreachBatch", "format"])
@pytest.mark.long
def test_one_driver_that_is_killed_at_every_step(
    kind: str,
    shape: str,
    knows_offsets: bool,
    new_database: Callable[[str], str],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    url = prepared(new_database(kind))
    lives = Lives(url, shape, tmp_path, knows_offsets=knows_offsets)
    kill_at_every_step(lives, KILLS, random.Random(f"{kind} {shape} {knows_offsets}"))

    assert lives.ends["killed"] >= KILLS // 2
    record_property("kills", lives.ends["killed"])
    print(f"KILLS {kind} {shape} {knows_offsets} {dict(lives.ends)}")  # noqa: T201


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
@pytest.mark.parametrize("knows_offsets", [True, False], ids=["foreachBatch", "format"])
@pytest.mark.long
def test_two_drivers_at_once_on_one_checkpoint(
    kind: str,
    shape: str,
    knows_offsets: bool,
    new_database: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Two drivers never lose a row: one of them is stopped.

    Behind foreachBatch the planned offsets show it. The format door does not know them, and needs
    a checkpoint that is atomic.
    """
    url = prepared(new_database(kind))
    lives = Lives(url, shape, tmp_path, knows_offsets=knows_offsets, atomic=not knows_offsets)
    chance = random.Random(f"{kind} {shape} {knows_offsets}")
    lives.end(lives.start(f"{sink_lives.DONE}:0"))
    for _ in range(KILLS // 2):
        before = lives.batch()
        pids = [lives.start(), lives.start()]
        wanted = before + chance.randint(1, 4)
        wait_until(lambda wanted=wanted: lives.batch() >= wanted, 20)  # type: ignore[misc]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            lives.end(pid)
        if chance.random() < 0.3:
            lives.repair()
    for _ in range(10):
        if lives.end(lives.start()) == "0":
            break
        lives.repair()

    lives.check()
    assert lives.ends["killed"] >= KILLS // 4
    stops = Counter((tmp_path / "stderr").read_text().split())
    print(  # noqa: T201
        f"KILLS two drivers {kind} {shape} {knows_offsets} {dict(lives.ends)} {dict(stops)}"
    )
