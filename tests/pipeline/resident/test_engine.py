"""Test the driver's part of the resident engine with real Spark tasks."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from instep import errors
from instep.kafka.connection import Cluster
from instep.pipeline import failures
from instep.pipeline.resident import channel, worker
from instep.pipeline.resident.engine import ResidentEngine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def engine(spark: SparkSession, cluster: Cluster) -> ResidentEngine:
    return ResidentEngine(spark.sparkContext, cluster, {}, tasks=2)


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
