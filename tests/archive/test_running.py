"""Test archives in Spark, with real topics: what is archived, and what stops them."""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from instep import errors, settings
from instep.archive import comparison, table
from instep.archive.comparison import ArchiveVerdict
from instep.archive.files import locate
from instep.archive.runner import ArchiveRunner
from instep.archive.share import ArchivePlan, ArchiveShares
from instep.kafka import groups, position_topic, topics
from instep.kafka.admin import consumer_groups
from instep.kafka.connection import Cluster
from instep.pipeline import flow_runner
from instep.pipeline.job import RunnerState
from instep.pipeline.resident.engine import ResidentEngine
from tests.support.archives import (
    DAY_MS,
    NOON_MS,
    archive,
    archived,
    created,
    opened,
    record,
)
from tests.support.runs import send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
TIMESTAMPS = [1, 1_763_467_200_000, 1_763_467_200_000_000, 2**63 - 1]
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}

Archiving = Callable[..., ArchiveRunner]


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"status-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, name, 3, config=ANY_TIME)
    return name


@pytest.fixture
def declared(topic: str, tmp_path: Path) -> settings.Archive:
    return settings.Archive(topic=topic, path=str(tmp_path / "archive"), commit_every_s=0.2)


@pytest.fixture
def archiving(
    spark: SparkSession, cluster: Cluster, declared: settings.Archive
) -> Iterator[Archiving]:
    """Return a function that starts the archive in two resident tasks."""
    _forget(cluster)
    plan = ArchivePlan(declared.topic, locate(declared.path), declared.commit_every_s)
    shares = ArchiveShares(cluster.kafka, cluster.bootstrap, {"a": plan})
    engine = ResidentEngine(spark.sparkContext, "archive", shares, tasks=2)
    started: list[ArchiveRunner] = []

    def start(*, once: bool = False) -> ArchiveRunner:
        runner = ArchiveRunner("a", declared, cluster, engine, once=once)
        started.append(runner)
        runner.start()
        return runner

    yield start
    for runner in started:
        runner.stop(60)
    engine.close()


def _forget(cluster: Cluster) -> None:
    """Forget the archive of the test before, which had the same name."""
    with contextlib.suppress(errors.TopicMissing):
        topics.delete(cluster, position_topic.of_archive("a").topic)


def ended(runner: ArchiveRunner) -> errors.InstepError | None:
    wait_until(lambda: runner.state is RunnerState.ENDED, "the end of the archive")
    return runner.error


def produce(cluster: Cluster, topic: str, transaction: str) -> None:
    """Publish records of all kinds: aborted ones, tombstones, headers, absurd timestamps."""
    plain = Producer({"bootstrap.servers": cluster.bootstrap})
    for number, timestamp in enumerate(TIMESTAMPS):
        plain.produce(topic, f"v{number}", f"k{number}", timestamp=timestamp, partition=number % 3)
    plain.produce(topic, None, "gone", headers=[("h", b"\xff"), ("h", None)], partition=0)
    plain.produce(topic, b"", None, partition=1)
    assert plain.flush(30) == 0
    atomic = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": transaction})
    atomic.init_transactions(30)
    for commits in (False, True, False):
        atomic.begin_transaction()
        for partition in range(3):
            atomic.produce(topic, b"t", b"t", partition=partition)
        if commits:
            atomic.commit_transaction(30)
        else:
            atomic.abort_transaction(30)


def test_everything_is_archived_once_and_follows_the_topic(
    archiving: Archiving, cluster: Cluster, declared: settings.Archive
) -> None:
    produce(cluster, declared.topic, declared.topic)
    assert ended(archiving(once=True)) is None
    report = comparison.compare(cluster, "a", declared)
    assert (report.verdict, report.compared, report.behind) == (ArchiveVerdict.IN_STEP, 9, 0)

    runner = archiving()
    send(cluster, declared.topic, *((b"k", {"n": number}) for number in range(500)))
    wait_until(lambda: runner.progress.totals["records"] == 500, "the records")
    runner.stop(60)
    report = comparison.compare(cluster, "a", declared)
    assert (report.verdict, report.compared, report.behind) == (ArchiveVerdict.IN_STEP, 509, 0)
    files = opened(Path(declared.path)).files()
    assert {file.day for file in files} >= {None, "1970-01-01", "2025-11-18"}
    assert groups.mirrored(cluster, "instep-a", declared.topic, range(3)).keys() == {0, 1, 2}


def test_a_new_partition_is_archived_from_its_first_record(
    archiving: Archiving,
    cluster: Cluster,
    declared: settings.Archive,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_runner, "CHECK_INTERVAL_S", 0.2)
    runner = archiving()
    wait_until(lambda: runner.state is RunnerState.RUNNING, "the start")
    topics.grow(cluster, declared.topic, 4)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(declared.topic, b"new", b"new", partition=3)
    assert producer.flush(30) == 0
    wait_until(lambda: runner.progress.totals["records"] == 1, "the record")
    assert archived(Path(declared.path), 3) == [0]


def test_a_second_run_fences_the_first(
    archiving: Archiving,
    cluster: Cluster,
    declared: settings.Archive,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_runner, "CHECK_INTERVAL_S", 0.2)
    first = archiving()
    wait_until(lambda: first.state is RunnerState.RUNNING, "the first run")
    second = archiving()
    assert isinstance(ended(first), errors.Fenced)
    send(cluster, declared.topic, (b"k", {}))
    wait_until(lambda: second.progress.totals["records"] == 1, "the second run")


def test_named_stops(
    archiving: Archiving,
    cluster: Cluster,
    declared: settings.Archive,
    tmp_path: Path,
) -> None:
    """One archive meets every stop in turn: a start in Spark takes seconds."""
    folder = Path(declared.path)
    for number in range(3):
        send(cluster, declared.topic, *((f"k{key}".encode(), {"n": number}) for key in range(20)))
        assert ended(archiving(once=True)) is None
    newest = opened(folder).version

    opened(folder)._delta.restore(newest - 2)
    assert isinstance(ended(archiving(once=True)), errors.ArchiveRestored)
    opened(folder)._delta.restore(newest)
    assert ended(archiving(once=True)) is None

    shutil.move(folder, tmp_path / "away")
    gone = ended(archiving(once=True))
    assert isinstance(gone, errors.ArchiveGone)
    assert "60 offsets" in gone.what
    consumer_groups.delete(cluster, "instep-a")  # as it expires when the archive rests for a week
    gone = ended(archiving(once=True))
    assert isinstance(gone, errors.ArchiveGone)
    assert "instep topics delete instep-archive.a --execute" in gone.remedy
    shutil.move(tmp_path / "away", folder)

    send(cluster, declared.topic, *((f"k{key}".encode(), {}) for key in range(20)))
    ends = opened(folder).positions(range(3))
    lost = topics.trim(cluster, declared.topic, {part: end + 2 for part, end in ends.items()})
    expired = ended(archiving(once=True))
    assert isinstance(expired, errors.OffsetsExpired)
    assert f"partition 0: {ends[0]} to {ends[0] + 1}" in expired.what
    opened(folder).skip({part: (ends[part], end) for part, end in lost.items()})
    assert ended(archiving(once=True)) is None
    report = comparison.compare(cluster, "a", declared)
    assert report.verdict is ArchiveVerdict.IN_STEP
    assert report.only_archived == 66
    assert report.skipped[0] == [(ends[0], ends[0] + 2)]

    topics.delete(cluster, declared.topic)
    topics.create(cluster, declared.topic, 3)
    assert isinstance(ended(archiving(once=True)), errors.TopicReplaced)
    opened(folder)._delta.alter.set_table_properties(
        {table.TOPIC: "another"}, raise_if_not_exists=False
    )
    assert isinstance(ended(archiving(once=True)), errors.ArchiveReplaced)


def test_the_guide_reads_an_archive(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "archive" / "print-status"
    folder.mkdir(parents=True)
    created(folder)
    for offset in range(3):
        archive(folder, record(offset, NOON_MS + offset * DAY_MS))
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "docs/guides/archive-a-topic.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```py\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    read: list[dict[str, Any]] = []
    for example in examples:
        read.append({"spark": spark})
        exec(example, read[-1])
    in_duckdb, in_pandas, in_spark = read
    assert in_duckdb["per_day"].fetchall()[0] == (date(2025, 11, 18), 1)
    assert list(in_pandas["frame"]["event"]) == ["{}"] * 3
    assert sorted(row.offset for row in in_spark["records"].collect()) == [0, 1, 2]
