"""One Spark session for all tests, and pipelines that run in it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from instep import settings
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local import broker, class_archives
from instep.pipeline import session
from instep.pipeline.engines import Engines
from instep.pipeline.runner import Runner, RunnerState
from instep.reconcile import job
from instep.reconcile.report import ReconcileReport
from instep.sinks import preparation
from tests.support.databases import BASE, declare
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 2  # of each resident engine

Test = TypeVar("Test", bound=Callable[..., None])


class OwnRunner(Runner):
    """A runner whose engine is its own and ends with it."""

    def __init__(
        self,
        name: str,
        pipeline: settings.Pipeline,
        cluster: Cluster,
        spark: SparkSession,
        folder: Path,
        *,
        once: bool,
    ) -> None:
        self._engines = Engines(
            spark.sparkContext, cluster, folder, {name: pipeline}, tasks_max=TASKS
        )
        super().__init__(name, pipeline, cluster, self._engines.of(name), once=once)

    def run(self) -> None:
        with self._engines:
            super().run()


@pytest.fixture(params=["resident", "micro-batch"])
def both_engines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once with each engine; return its name."""
    monkeypatch.setitem(BASE, "engine", request.param)
    return str(request.param)


def on_both_engines(test: Test) -> Test:
    """Run a test once with each engine: its result depends on the engine."""
    marked: Test = pytest.mark.usefixtures("both_engines")(test)
    return marked


def mostly_resident(test: Test) -> Test:
    """Run a test with the resident engine, and in long runs with the other one too.

    This is for tests of what lies behind the applier, or before an engine starts.
    """
    engines = ["resident", pytest.param("micro-batch", marks=pytest.mark.long)]
    marked: Test = pytest.mark.parametrize("both_engines", engines, indirect=True)(test)
    return on_both_engines(marked)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    place = session.RunFolder()
    opened = session.open_session(
        settings.Spark(master="local[8]"), class_archives.spark_files(queries=True), place
    )
    yield opened
    opened.stop()
    place.remove()


@pytest.fixture(scope="session")
def cluster(broker: broker.LocalCluster) -> Iterator[Cluster]:
    with Cluster(settings.Kafka(), broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Create a topic of three partitions."""
    name = f"status-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, name, 3)
    return name


@pytest.fixture
def runner(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> Iterator[Callable[..., Runner]]:
    """Return a function that starts pipelines. Stop them at the end."""
    started: list[Runner] = []

    def make(pipeline: settings.Pipeline, name: str = "contracts", *, once: bool = False) -> Runner:
        preparation.prepare(pipeline, add_columns=True)
        one = OwnRunner(name, pipeline, cluster, spark, tmp_path / str(len(started)), once=once)
        started.append(one)
        one.start()
        return one

    yield make
    for one in started:
        one.stop(patience_s=60)


Prove = Callable[..., tuple[ReconcileReport, list[dict[str, Any]]]]


@pytest.fixture
def prove(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Prove:
    """Return a function that reconciles a pipeline, and returns the report and the file's rows."""

    def do(
        pipeline: settings.Pipeline,
        name: str = "contracts",
        number: int | None = None,
        **options: Any,
    ) -> tuple[ReconcileReport, list[dict[str, Any]]]:
        folder = tmp_path / f"reconcile-{uuid.uuid4().hex[:8]}"
        out = folder.with_suffix(".jsonl")
        request = job.Request(**{"wait_s": 0.0, "out": out, **options})
        report = job.reconcile(
            spark, folder, cluster, name, pipeline, request, number=number, say=lambda _: None
        )
        return report, [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]

    return do


def drained(run: Runner) -> Runner:
    """Wait until a pipeline has run once, to its end and without error."""
    wait_until(lambda: run.state is RunnerState.ENDED, "the pipeline to end")
    run.join(90)
    if run.error:
        raise run.error
    return run


def following(url: str, topic: str, **changes: Any) -> settings.Pipeline:
    return declare(url, topic=topic, **changes)
