"""Test jobs on a real cluster of three workers of the pip-installed Spark, and the loss of parts.

One test kills and pauses parts of the cluster while resident tasks run: two tasks read a topic of
two partitions, so one slot of the cluster is free. The target's table counts every write by a
trigger, and the pipeline has no order, so the guard hides no repetition. The long tests end with a
comparison that runs on the cluster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import tomli_w

from instep import settings
from instep.demo.pipeline_process import PipelineProcess
from instep.emit import Publisher, StatusEvent
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.local import broker as kafka
from instep.local import class_archives, processes
from instep.local.spark_cluster import CONF, SparkCluster
from instep.sinks import preparation
from instep.waiting import wait_until
from tests.support import probes, waiting
from tests.support.databases import run_sql

DOCUMENTS = 400
# Executors live for seconds: they start from the class archive, as drivers do.
QUICK_CONF = {
    **CONF,
    "spark.executor.extraJavaOptions": " ".join(
        ["-XX:+UseSerialGC", *class_archives.SPARK.jvm_flags()]
    ),
}
SETTINGS = """
[kafka]
bootstrap = "{bootstrap}"

[spark]
conf = {{ {conf} }}

[pipelines.contracts]
topic = "on-a-cluster"
target = "{url}"
table = "contract_document"
key = "doc_no"

[pipelines.contracts.event]
status = "status"
order = "version"

[pipelines.contracts.columns]
print_status = "status"
print_version = "version"
"""


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark"), workers=3) as cluster:
        yield cluster


@pytest.mark.long  # the next test runs a pipeline there as well
@pytest.mark.timeout(900)
def test_a_pipeline_runs_on_several_workers(
    spark_cluster: SparkCluster,
    broker: kafka.LocalCluster,
    new_database: Callable[[str], str],
    tmp_path: Path,
) -> None:
    url = new_database("postgres")
    two_executors = {**QUICK_CONF, "spark.cores.max": "2"}
    conf = ", ".join(f'"{name}" = "{value}"' for name, value in two_executors.items())
    config = tmp_path / "instep.toml"
    config.write_text(
        SETTINGS.format(bootstrap=broker.bootstrap, url=url, conf=conf), encoding="utf-8"
    )
    preparation.prepare(settings.load(config).pipelines["contracts"])
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, "on-a-cluster", 4)
    with Publisher(broker.bootstrap, "on-a-cluster") as publisher:
        for version in (1, 2):
            for number in range(DOCUMENTS):
                publisher.send(
                    StatusEvent(document=f"d{number}", status="PRINTED", version=version)
                )
    with PipelineProcess(
        config, "--once", "--master", spark_cluster.url, log=tmp_path / "run.log"
    ) as process:
        assert process.wait(400) == 0, process.tail()
    assert run_sql(url, "SELECT count(*), min(print_version) FROM contract_document") == [
        (DOCUMENTS, 2)
    ]
    assert run_sql(url, "SELECT count(*) FROM instep_history") == [(2 * DOCUMENTS,)]
    # the job may end before a worker has logged the request
    waiting.wait_until(lambda: len(workers_with_executor(spark_cluster)) == 2, "two executors")
    run_sql(url, "DELETE FROM contract_document WHERE doc_no = 'd7'")
    assert documents_in_step(config, spark_cluster.url) == (DOCUMENTS, DOCUMENTS - 1)


def documents_in_step(config: Path, master: str) -> tuple[int, int]:
    """Reconcile on the cluster a table that lacks one row; return the documents, and those in step.

    The command runs in a separate process.
    """
    command = [sys.executable, "-m", "instep", "--config", str(config)]
    command += ["reconcile", "--json", "--master", master]
    done = subprocess.run(
        command, cwd=config.parent, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 1, done.stderr
    [report] = json.loads(done.stdout)["pipelines"]
    assert report["missing"] == 1
    return report["documents"], report["documents_in_step"]


def workers_with_executor(spark_cluster: SparkCluster) -> list[str]:
    """Return the workers that started an executor so far."""
    names = (f"worker-{number}" for number in (1, 2, 3))
    return [name for name in names if "Asked to launch executor" in spark_cluster.log(name)]


PATIENCE_S = 120.0
TRAVELLERS = 20
COUNTER = (
    "ALTER TABLE document ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
    "CREATE FUNCTION count_writes() RETURNS trigger LANGUAGE plpgsql AS"
    " 'BEGIN NEW.writes = OLD.writes + 1; RETURN NEW; END'",
    "CREATE TRIGGER count_writes BEFORE UPDATE ON document FOR EACH ROW"
    " EXECUTE FUNCTION count_writes()",
)


class Harness:
    """A pipeline on a cluster, and what was published so far."""

    def __init__(self, folder: Path, spark: SparkCluster, bootstrap: str, url: str) -> None:
        self.folder, self.spark, self.bootstrap, self.url = folder, spark, bootstrap, url
        self.topic = f"lost-{uuid.uuid4().hex[:8]}"
        self.config = folder / "instep.toml"
        self.hold = folder / "hold"
        self.hold.mkdir()
        executor = {
            "INSTEP_PROBE": "tests.support.probes:hold_while_asked",
            probes.FOLDER: str(self.hold),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        conf = {
            **QUICK_CONF,
            # a lost executor is noticed within seconds
            "spark.network.timeout": "8s",
            "spark.network.timeoutInterval": "2s",
            "spark.executor.heartbeatInterval": "1s",
            **{f"spark.executorEnv.{name}": value for name, value in executor.items()},
        }
        pipeline = {
            "topic": self.topic,
            "target": url,
            "table": "document",
            "key": "doc_no",
            "event": {"status": "status"},
            "columns": {"status": "status"},
        }
        declared = {
            "kafka": {"bootstrap": bootstrap},
            "spark": {"master": spark.url, "conf": conf},
            "pipelines": {"contracts": pipeline},
        }
        self.config.write_text(tomli_w.dumps(declared), encoding="utf-8")
        with Cluster(settings.Kafka(), bootstrap) as cluster:
            topics.create(cluster, self.topic, 2)
        preparation.prepare(settings.load(self.config).pipelines["contracts"])
        run_sql(url, *COUNTER)
        self.rounds = 0

    def publish(self) -> None:
        with Publisher(self.bootstrap, self.topic) as publisher:
            self.rounds += 1
            for number in range(TRAVELLERS):
                publisher.send(StatusEvent(document=f"d{number}", status=f"S{self.rounds}"))

    def ends(self) -> dict[int, int]:
        with Cluster(settings.Kafka(), self.bootstrap) as cluster:
            return offsets.latest(cluster, self.topic, range(2))

    def ledger(self) -> dict[int, int]:
        return dict(run_sql(self.url, 'SELECT "partition", next_offset FROM instep_ledger'))

    def tasks(self) -> list[int]:
        """Return the Python processes of the resident tasks, which are below the workers."""
        found = []
        for pid in self.spark.pids():
            try:
                command = psutil.Process(pid).cmdline()
                parent = psutil.Process(psutil.Process(pid).ppid()).cmdline()
            except psutil.NoSuchProcess:
                continue
            if "pyspark.daemon" in command and "pyspark.daemon" in parent:
                found.append(pid)
        return found

    def executor_of(self, task: int) -> int:
        """Return the JVM of the executor that a task belongs to."""
        for parent in psutil.Process(task).parents():
            if any("CoarseGrainedExecutorBackend" in part for part in parent.cmdline()):
                return parent.pid
        raise AssertionError(f"no executor above {task}")

    @contextmanager
    def flow(self) -> Iterator[None]:
        """Publish repeatedly until the block ends."""
        over = threading.Event()

        def publish() -> None:
            while not over.wait(0.2):
                self.publish()

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def process(self) -> PipelineProcess:
        return PipelineProcess(self.config, log=self.folder / "run.log")

    def wait(self, reached: Callable[[], bool], process: PipelineProcess, what: str) -> None:
        def is_reached() -> bool:
            assert process.poll() is None, f"the pipeline ended:\n{process.tail()}"
            return reached()

        assert wait_until(is_reached, PATIENCE_S, interval_s=0.05), f"{what}:\n{process.tail()}"

    def wait_for_more(self, process: PipelineProcess, what: str) -> None:
        """Wait until both partitions are applied up to what is published now."""
        self.publish()
        ends = self.ends()
        self.wait(
            lambda: all(self.ledger().get(part, 0) >= end for part, end in ends.items()),
            process,
            what,
        )


@pytest.fixture
def harness(
    tmp_path: Path,
    spark_cluster: SparkCluster,
    broker: kafka.LocalCluster,
    new_database: Callable[[str], str],
) -> Harness:
    return Harness(tmp_path, spark_cluster, broker.bootstrap, new_database("postgres"))


def kill_task(harness: Harness, process: PipelineProcess) -> None:
    """Kill the Python process of a task: Spark starts the task again."""
    os.kill(harness.tasks()[0], signal.SIGKILL)
    harness.wait_for_more(process, "after the kill of a task")


def kill_executor(harness: Harness, process: PipelineProcess) -> None:
    """Kill the JVM of an executor: its task moves to another."""
    os.kill(harness.executor_of(harness.tasks()[0]), signal.SIGKILL)
    harness.wait_for_more(process, "after the kill of an executor")


def pause_executor(harness: Harness, process: PipelineProcess) -> None:
    """Pause an executor with an open transaction until its task runs elsewhere, then resume it."""
    asked = harness.hold / "asked"
    asked.touch()
    harness.wait(lambda: any(harness.hold.glob("held-*")), process, "a held transaction")
    held = next(harness.hold.glob("held-*"))
    task = int(held.name.removeprefix("held-"))
    executor = harness.executor_of(task)
    paused = [executor, *processes.descendants(executor)]
    others = set(harness.tasks()) - {task}
    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    asked.unlink()
    try:
        harness.wait(
            lambda: len(set(harness.tasks()) - others - {task}) > 0, process, "its task elsewhere"
        )
    finally:
        for pid in paused:
            if processes.alive(pid):
                os.kill(pid, signal.SIGCONT)
    harness.wait_for_more(process, "after the pause of an executor")


def kill_worker(harness: Harness, process: PipelineProcess) -> None:
    """Kill a worker of the cluster, whose executors end with it."""
    executor = harness.executor_of(harness.tasks()[0])
    os.kill(psutil.Process(executor).ppid(), signal.SIGKILL)
    harness.wait(lambda: not processes.alive(executor), process, "the end of its executor")
    harness.wait_for_more(process, "after the kill of a worker")


@pytest.mark.timeout(600)
def test_lost_executors_lose_and_repeat_nothing(harness: Harness) -> None:
    with harness.process() as process:
        with harness.flow():
            harness.wait(lambda: len(harness.tasks()) == 2, process, "two tasks")
            harness.wait_for_more(process, "at the start")
            kill_task(harness, process)
            kill_executor(harness, process)
            pause_executor(harness, process)
            kill_worker(harness, process)
        harness.wait_for_more(process, "at the end")
        assert process.stop(60) == 0
    assert_applied_once(harness)


@pytest.mark.long  # tests/pipeline/test_exactly_once.py kills a driver and its local tasks
@pytest.mark.timeout(600)
def test_a_lost_driver_loses_and_repeats_nothing(harness: Harness) -> None:
    with harness.process() as process, harness.flow():
        harness.wait_for_more(process, "at the start")
        process.kill()
    with harness.process() as process:
        harness.wait_for_more(process, "after the kill of the driver")
        assert process.stop(60) == 0
    assert_applied_once(harness)
    run_sql(harness.url, "DELETE FROM document WHERE doc_no = 'd7'")
    assert documents_in_step(harness.config, harness.spark.url) == (TRAVELLERS, TRAVELLERS - 1)


def assert_applied_once(harness: Harness) -> None:
    applied = run_sql(
        harness.url,
        'SELECT "partition", "offset" FROM instep_history ORDER BY "partition", "offset"',
    )
    assert applied == [(part, at) for part, end in harness.ends().items() for at in range(end)]
    rows = run_sql(harness.url, "SELECT doc_no, status, writes FROM document ORDER BY doc_no")
    expected = [(f"d{n}", f"S{harness.rounds}", harness.rounds - 1) for n in range(TRAVELLERS)]
    assert rows == sorted(expected)
