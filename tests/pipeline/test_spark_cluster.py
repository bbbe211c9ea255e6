"""Test the same job on a real cluster of two workers of the pip-installed Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from instep import settings
from instep.demo.pipeline_process import PipelineProcess
from instep.emit import Publisher, StatusEvent
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local import broker as kafka
from instep.local.spark_cluster import CONF, SparkCluster
from instep.sinks import preparation
from tests.support.databases import run_sql
from tests.support.waiting import wait_until

DOCUMENTS = 400
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


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path) as cluster:
        yield cluster


@pytest.mark.timeout(900)
def test_a_pipeline_runs_on_a_cluster_of_two_workers(
    spark_cluster: SparkCluster, broker: kafka.LocalCluster, new_database: object, tmp_path: Path
) -> None:
    url = new_database("postgres")  # type: ignore[operator]
    conf = ", ".join(f'"{name}" = "{value}"' for name, value in CONF.items())
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
    for number in (1, 2):  # the job may end before a worker has logged the request
        name = f"worker-{number}"
        wait_until(
            lambda name=name: "Asked to launch executor" in spark_cluster.log(name),  # type: ignore[misc]
            "an executor",
        )
    run_sql(url, "DELETE FROM contract_document WHERE doc_no = 'd7'")
    command = [
        sys.executable,
        "-m",
        "instep",
        "--config",
        str(config),
        "reconcile",
        "--json",
        "--master",
        spark_cluster.url,
    ]
    proof = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert proof.returncode == 1, proof.stderr
    [report] = json.loads(proof.stdout)["pipelines"]
    assert (report["documents"], report["documents_in_step"], report["missing"]) == (
        DOCUMENTS,
        DOCUMENTS - 1,
        1,
    )
