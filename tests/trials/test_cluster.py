"""A real Spark cluster of two workers, from the pip-installed Spark: the same job, by `--master` alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from instep import settings
from instep.emit import Publisher, StatusEvent
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local import broker as kafka
from instep.local import keeping, ports
from instep.sinks import preparation
from instep.trials.processes import PipelineProcess
from tests.sinks.conftest import run_sql
from tests.waiting import wait_until

SETTINGS = """
[kafka]
bootstrap = "{bootstrap}"

[spark]
conf = {{ "spark.driver.host" = "127.0.0.1", "spark.driver.bindAddress" = "127.0.0.1", "spark.executor.memory" = "512m" }}

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


class SparkCluster:
    """A master and two workers of one core each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        found = find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        self._home = Path(found.origin).parent
        self._folder, self._stack = folder, stack
        port, page = ports.free(2)
        self.url = f"spark://127.0.0.1:{port}"
        self._launch(
            "master",
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            str(page),
        )
        wait_until(lambda: _listens(port), "the master")
        for number in (1, 2):
            page = ports.free()[0]
            self._launch(
                f"worker-{number}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1g",
                "--webui-port", str(page), "--work-dir", str(folder / f"work-{number}"), self.url,
            )  # fmt: skip
            wait_until(lambda number=number: "Successfully registered" in self.log(f"worker-{number}"), "a worker")  # type: ignore[misc]

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _launch(self, name: str, *arguments: str) -> None:
        keeper = keeping.Keeper()
        self._stack.callback(keeper.close)
        environment = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        keeper.launch([str(self._home / "bin" / "spark-class"), *arguments], log=self._folder / f"{name}.log", env=environment)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with ExitStack() as stack:
        yield SparkCluster(tmp_path, stack)


def test_a_cluster_of_two_workers(
    spark_cluster: SparkCluster, broker: kafka.Cluster, new_database: object, tmp_path: Path
) -> None:
    url = new_database("postgres")  # type: ignore[operator]
    config = tmp_path / "instep.toml"
    config.write_text(SETTINGS.format(bootstrap=broker.bootstrap, url=url), encoding="utf-8")
    preparation.prepare(settings.load(config).pipelines["contracts"])
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, "on-a-cluster", 4)
    with Publisher(broker.bootstrap, "on-a-cluster") as publisher:
        for version in (1, 2):
            for number in range(2_000):
                publisher.send(StatusEvent(document=f"d{number}", status="PRINTED", version=version))
    with PipelineProcess(config, "--once", "--master", spark_cluster.url, log=tmp_path / "run.log") as process:
        assert process.wait(180) == 0, process.tail()
    assert run_sql(url, "SELECT count(*), min(print_version) FROM contract_document") == [(2_000, 2)]
    assert run_sql(url, "SELECT count(*) FROM instep_history") == [(4_000,)]
    assert all("Asked to launch executor" in spark_cluster.log(f"worker-{number}") for number in (1, 2))
    run_sql(url, "DELETE FROM contract_document WHERE doc_no = 'd7'")
    command = [sys.executable, "-m", "instep", "--config", str(config), "reconcile", "--json", "--master", spark_cluster.url]
    proof = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert proof.returncode == 1, proof.stderr
    [report] = json.loads(proof.stdout)["pipelines"]
    assert (report["documents"], report["documents_in_step"], report["missing"]) == (2_000, 1_999, 1)
