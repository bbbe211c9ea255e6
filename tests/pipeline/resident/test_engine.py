"""Test the driver's part of the resident engine with real Spark tasks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from instep import errors
from instep.kafka.connection import Cluster
from instep.pipeline import failures
from instep.pipeline.resident import channel, worker
from instep.pipeline.resident import engine as resident
from instep.pipeline.resident.engine import ResidentEngine
from instep.pipeline.resident.pipeline_share import PipelineShares
from instep.pipeline.runner import RunnerState
from tests.support.pipelines import following
from tests.support.runs import Run, event, rows, send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def engine(spark: SparkSession, cluster: Cluster) -> ResidentEngine:
    return _engine(spark, cluster, tasks=2)


def _engine(spark: SparkSession, cluster: Cluster, tasks: int) -> ResidentEngine:
    shares = PipelineShares(cluster.kafka, cluster.bootstrap, {}, {})
    return ResidentEngine(spark.sparkContext, "pipeline", shares, tasks=tasks)


def test_tasks_connect_and_end_with_the_engine(engine: ResidentEngine) -> None:
    wait_until(lambda: len(engine._tasks) == 2, "both tasks")
    engine.close()
    wait_until(lambda: not engine._job_thread.is_alive(), "the end of the job")
    wait_until(
        lambda: not any("resident" in thread.name for thread in threading.enumerate()),
        "the end of its threads",
    )
    with socket.socket() as probe:
        assert probe.connect_ex(engine._job.address) != 0, "it still listens"


def test_each_kind_of_jobs_has_a_port_of_its_own() -> None:
    assert [resident.port_of(kind, 7099) for kind in resident.KINDS] == [7099, 7100, 7101]
    assert resident.port_of("stream", 0) == 0


def test_a_stranger_gets_no_partitions(engine: ResidentEngine) -> None:
    wait_until(lambda: len(engine._tasks) == 2, "both tasks")
    with socket.create_connection(engine._job.address) as stranger:
        stranger.sendall(b"let me in")
        assert len(engine._tasks) == 2
    engine.close()


def test_a_task_that_cannot_reach_the_driver_says_so(
    engine: ResidentEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.close()

    def refused(*_: object) -> None:
        raise ConnectionRefusedError("connection refused")

    monkeypatch.setattr(channel, "connect", refused)
    with pytest.raises(failures.TaskFailed) as failed:
        worker.serve(engine._job, iter([0]))
    error = failures.read(str(failed.value))
    assert isinstance(error, errors.InstepError)
    assert "cannot reach the driver at 127.0.0.1" in error.what
    assert "spark.instep.port" in error.remedy


def test_a_run_without_a_core_says_what_it_waits_for(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    spark: SparkSession,
    runner: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resident, "CORE_PATIENCE_S", 0.0)
    url = new_database("sqlite")
    send(cluster, topic, event("a", 1))
    cores = spark.sparkContext.defaultParallelism
    busy = _engine(spark, cluster, tasks=cores)
    try:
        wait_until(lambda: len(busy._tasks) == cores, "all cores to be used")
        run = runner(following(url, topic))
        wait_until(lambda: run.state is RunnerState.WAITING, "the run to wait")
        assert "a free core of Spark at local[8" in run.waiting_for
    finally:
        busy.close()
    wait_until(lambda: len(rows(url)) == 1, "the record")
    wait_until(lambda: run.state is RunnerState.RUNNING, "the run to say so")
