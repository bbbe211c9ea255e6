"""Kill the driver of a KPI at every step of its transaction, and compare the rows with the log."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from instep import errors
from tests.support import kpi_merging, kpis
from tests.support.databases import run_sql
from tests.support.kpi_merging import KpiRun, LogReader

STEPS = range(1, 10)
LEDGER = "SELECT partition, next_offset, epoch FROM instep_ledger ORDER BY partition"
KILLS = int(os.environ.get("INSTEP_TEST_KPI_KILLS", "90"))


class KpiLives:
    """Runs of a KPI in processes that end early."""

    def __init__(self, url: str, documents: int) -> None:
        self.records = kpis.log(seed=documents, documents=documents)
        self._definition = kpis.define(url, "t")
        self._log = LogReader(self._definition, self.records)
        self.ends: Counter[str] = Counter()

    def start(self, step: int, after: int, batch: int) -> int:
        """Start a run that is killed at a step, after this many batches."""

        def live() -> None:
            run = KpiRun(self._definition, kpi_merging.strike(step, after))
            while reads := self._log.batch(run.positions, {0: batch, 1: batch}):
                run.apply(reads)

        return kpi_merging.fork(live)

    def start_stopped(self, step: int, after: int, batch: int, ending: Path) -> int:
        """Start a run that stops at a step (SIGSTOP); `ending` gets its error later."""

        def live() -> None:
            try:
                run = KpiRun(self._definition, kpi_merging.strike(step, after, signal.SIGSTOP))
                while reads := self._log.batch(run.positions, {0: batch, 1: batch}):
                    run.apply(reads)
            except errors.InstepError as error:
                ending.write_text(type(error).__name__)
                raise

        pid = kpi_merging.fork(live)
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        return pid

    def end(self, pid: int) -> str:
        """Wait for the end of a run, and return how it ended."""
        _, status = os.waitpid(pid, 0)
        end = "killed" if os.WIFSIGNALED(status) else str(os.waitstatus_to_exitcode(status))
        self.ends[end] += 1
        return end


def test_a_driver_that_is_killed_once_at_every_step(new_database: Callable[[str], str]) -> None:
    url = new_database("sqlite")
    lives = KpiLives(url, documents=40)
    for step in STEPS:
        assert lives.end(lives.start(step, 0 if step < 8 else 1, batch=4)) == "killed"
    assert lives.end(lives.start(0, 0, batch=50)) == "0"
    kpis.assert_same(kpis.table(url), kpis.model(lives.records))


@pytest.mark.parametrize("step", [1, 9])
def test_a_driver_that_wakes_up_behind_a_newer_one_writes_nothing(
    step: int, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """Stop a driver before or after a transaction; inside one, its locks would stop the others."""
    url, ending = new_database("postgres"), tmp_path / "ending"
    lives = KpiLives(url, documents=40)
    stopped = lives.start_stopped(step, after=2, batch=4, ending=ending)
    try:
        assert lives.end(lives.start(0, 0, batch=50)) == "0"
        before = kpis.table(url), run_sql(url, LEDGER)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert lives.end(stopped) == "9"
    assert ending.read_text() in ("Fenced", "LedgerMoved")
    assert (kpis.table(url), run_sql(url, LEDGER)) == before
    kpis.assert_same(kpis.table(url), kpis.model(lives.records))


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
def test_a_driver_that_is_killed_again_and_again(
    kind: str, new_database: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    url, chance = new_database(kind), random.Random(kind)
    lives = KpiLives(url, documents=300)
    for number in range(KILLS):
        step = STEPS[number % len(STEPS)]
        lives.end(lives.start(step, chance.randint(0, 2), batch=chance.randint(1, 6)))
    assert lives.end(lives.start(0, 0, batch=200)) == "0"
    kpis.assert_same(kpis.table(url), kpis.model(lives.records))
    with capsys.disabled():
        print(f"KILLS {kind} {dict(lives.ends)}")  # noqa: T201


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb"])
def test_two_drivers_at_once(
    kind: str, new_database: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The newer one fences the older one, which ends with an error; both are killed as well."""
    url, chance = new_database(kind), random.Random(kind)
    lives = KpiLives(url, documents=300)
    lives.end(lives.start(1, 0, batch=1))  # creates the tables
    for _ in range(KILLS // 3):
        pids = [
            lives.start(chance.choice(STEPS), chance.randint(0, 3), batch=chance.randint(1, 6))
            for _ in range(2)
        ]
        for pid in pids:
            lives.end(pid)
    assert lives.end(lives.start(0, 0, batch=200)) == "0"
    kpis.assert_same(kpis.table(url), kpis.model(lives.records))
    with capsys.disabled():
        print(f"KILLS two drivers {kind} {dict(lives.ends)}")  # noqa: T201
