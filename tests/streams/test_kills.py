"""Kill the tasks and the driver of a stream at every step of its transaction.

A stream with a transformation publishes in the driver, and its tasks only transform.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from instep import settings
from instep.kafka.connection import Cluster
from tests.support import probes
from tests.support.runs import event, send
from tests.support.streams import Copy, declare, log, own_id, same
from tests.support.waiting import wait_until

# before the transaction, after its begin, after its records, with the position, after the commit
STEPS = (1, 2, 3, 4, 5)
DOCUMENTS = 12
UNCHANGED = "SELECT value FROM records"
PATIENCE_S = 120.0


class StreamProcess:
    """`instep run` of one stream, whose tasks and driver can be killed at a step."""

    def __init__(self, folder: Path, cluster: Cluster, name: str, stream: settings.Stream) -> None:
        self._folder, self._cluster, self.name, self.stream = folder, cluster, name, stream
        self._process: subprocess.Popen[bytes] | None = None
        self._versions = itertools.count(1)
        (folder / "instep.toml").write_text(
            f'[kafka]\nbootstrap = "{cluster.bootstrap}"\n[spark]\nmaster = "local[2]"\n'
            f'[streams.{name}]\nfrom = "{stream.source}"\nto = "{stream.target}"\n'
            f'guarantee = "{stream.guarantee}"\n'
            + (f'sql = "{stream.sql}"\n' if stream.sql else ""),
            encoding="utf-8",
        )

    def start(self) -> None:
        environment = {
            **os.environ,
            "INSTEP_PROBE": "tests.support.probes:kill_once",
            probes.FOLDER: str(self._folder),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        with (self._folder / "log").open("ab") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "instep", "run"],
                cwd=self._folder,
                env=environment,
                stderr=log_file,
            )

    def publish(self) -> None:
        """Publish the next version of every document."""
        version = next(self._versions)
        documents = [event(f"job-{number}", version) for number in range(DOCUMENTS)]
        send(self._cluster, self.stream.source, *documents)

    def kill(self, step: int, *, driver: bool) -> None:
        """Kill a task, or the whole run, when a transaction reaches the step."""
        assert self._process is not None
        killed = self._folder / "killed"
        killed.unlink(missing_ok=True)
        asked = self._folder / "asked"
        asked.write_text(f"{step} {self._process.pid if driver else 0}", encoding="utf-8")
        asked.rename(self._folder / "kill")
        self.publish()
        wait_until(killed.exists, f"a kill at step {step}\n{self.said()}", PATIENCE_S)
        if driver:
            assert self._process.wait(30) == -signal.SIGKILL
            self.start()

    def kill_worker(self) -> None:
        """Kill a Python process of a task, whatever it does."""
        assert self._process is not None
        family = psutil.Process(self._process.pid).children(recursive=True)
        workers = [
            one for one in family if "pyspark.daemon" in one.cmdline() and not one.children()
        ]
        for one in workers[:1]:
            one.kill()
        self.publish()

    def send_all(self, number: signal.Signals) -> list[psutil.Process]:
        """Send a signal to the run and to all processes that it has started."""
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        family = [driver, *driver.children(recursive=True)]
        for one in family:
            one.send_signal(number)
        return family

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def said(self) -> str:
        return (self._folder / "log").read_text(encoding="utf-8")[-2_000:]

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            # the second status while it starts: a kill at the last step leaves nothing to publish
            assert self._process.wait(30) in (0, 128 + signal.SIGTERM), self.said()


@contextlib.contextmanager
def _running(folder: Path, cluster: Cluster, **changes: str) -> Iterator[StreamProcess]:
    name, stream = declare(cluster, partitions=(2, 2), **changes)
    run = StreamProcess(folder, cluster, name, stream)
    run.start()
    try:
        yield run
    finally:
        run.end()


def _prove(cluster: Cluster, stream: settings.Stream) -> None:
    """Compare output and input: nothing is lost, repeated or reordered."""
    wait_until(
        lambda: len(log(cluster, stream.target)) >= len(log(cluster, stream.source)),
        "the records in the output",
        PATIENCE_S,
    )
    assert same(cluster, stream)
    ids = [own_id(record) for record in log(cluster, stream.target)]
    assert len(set(ids)) == len(ids)


@pytest.mark.own_spark
def test_kills_of_a_task_and_of_the_driver_lose_and_repeat_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    with _running(tmp_path, cluster) as run:
        for step in (2, 4, 5):
            run.kill(step, driver=False)
        run.kill(4, driver=True)
        _prove(cluster, run.stream)


@pytest.mark.long
def test_an_older_run_that_wakes_up_publishes_nothing(
    cluster: Cluster, copy: Copy, tmp_path: Path
) -> None:
    """Stop all processes of a run at any moment, let another one take over, and continue them."""
    with _running(tmp_path, cluster) as run:
        run.publish()
        _prove(cluster, run.stream)
        run.publish()
        stopped = run.send_all(signal.SIGSTOP)
        newer = copy(run.name, run.stream)
        _prove(cluster, run.stream)
        run.publish()
        _prove(cluster, run.stream)
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        run.publish()
        assert run.wait() == 3, run.said()
        assert "FENCED" in run.said()
        run.publish()
        _prove(cluster, run.stream)
        assert newer.error is None


@pytest.mark.own_spark
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_hundred_kills_lose_repeat_and_reorder_nothing(cluster: Cluster, tmp_path: Path) -> None:
    chance = random.Random(7)
    with _running(tmp_path, cluster) as run:
        for number in range(105):
            run.kill(STEPS[number % len(STEPS)], driver=number % 15 == 14)
            for _ in range(chance.randrange(3)):
                run.publish()
        _prove(cluster, run.stream)


@pytest.mark.own_spark
@pytest.mark.long
def test_a_kill_before_the_commit_of_a_transformed_batch_repeats_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    with _running(tmp_path, cluster, sql=UNCHANGED) as run:
        run.publish()
        run.kill(4, driver=True)
        _prove(cluster, run.stream)


@pytest.mark.own_spark
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_kills_of_a_transformed_stream_lose_repeat_and_reorder_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    chance = random.Random(11)
    with _running(tmp_path, cluster, sql=UNCHANGED) as run:
        for number in range(30):
            run.kill(STEPS[number % len(STEPS)], driver=True)
            for _ in range(chance.randrange(3)):
                run.publish()
                run.kill_worker()
        _prove(cluster, run.stream)
