"""Test what `instep reconcile --archive` says about records that nobody has any more."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from instep import errors, settings
from instep.archive import comparison, table
from instep.archive.comparison import ArchiveReport, ArchiveVerdict
from instep.archive.files import locate
from instep.archive.table import ArchivedTopic, ArchiveTable
from instep.archive.writer import ArchiveWriter
from instep.cli import archive as archive_commands
from instep.document.records import Record
from instep.kafka import offsets, reading, topics
from instep.kafka.connection import Cluster

RECORDS = 30


@pytest.fixture
def declared(cluster: Cluster, tmp_path: Path) -> settings.Archive:
    topic = f"status-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 2)
    publish(cluster, topic, 0, RECORDS)
    publish(cluster, topic, 1, RECORDS)
    return settings.Archive(topic=topic, path=str(tmp_path / "archive"))


def publish(cluster: Cluster, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(topic, f"v{number}", f"k{number}", partition=partition)
    assert producer.flush(30) == 0


def archive(
    cluster: Cluster, declared: settings.Archive, begins: dict[int, int], commits: int = 3
) -> ArchiveTable:
    """Archive the topic from these offsets on, in several commits."""
    found = topics.describe(cluster, declared.topic)
    identity = ArchivedTopic(found.name, found.id, found.cluster_id)
    made = table.create("a", locate(declared.path), identity)
    writer = ArchiveWriter(made, made.take_epoch(begins))
    writer.take(writer.positions(begins))
    for partition, end in offsets.latest(cluster, found.name, begins).items():
        ranges = {partition: (begins[partition], end)}
        read = list(reading.read(cluster, found.name, ranges))
        records = [
            Record(one.offset, one.timestamp_ms, one.key, one.value, -1, (), 1) for one in read
        ]
        for number in range(commits):
            share = -(-len(records) // commits)
            writer.add(partition, records[number * share : (number + 1) * share])
            writer.commit()
    return opened(declared)


def opened(declared: settings.Archive) -> ArchiveTable:
    return table.require("a", locate(declared.path))


def compared(cluster: Cluster, declared: settings.Archive) -> ArchiveReport:
    return comparison.compare(cluster, "a", declared)


def test_rows_that_left_the_archive_and_the_topic_are_noticed(
    cluster: Cluster, declared: settings.Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    found = archive(cluster, declared, {0: 0, 1: 0})
    topics.trim(cluster, declared.topic, {0: RECORDS, 1: RECORDS})
    assert compared(cluster, declared).verdict is ArchiveVerdict.IN_STEP

    found._delta.delete("partition = 0 AND offset >= 5 AND offset < 12")

    report = compared(cluster, declared)
    assert (report.verdict, report.removed) == (ArchiveVerdict.DIFFERENT, {0: 7})
    archive_commands._print(report)
    assert "no longer in the archive: partition 0, 7 rows" in capsys.readouterr().err


def test_an_older_version_of_the_archive_is_noticed(
    cluster: Cluster, declared: settings.Archive
) -> None:
    found = archive(cluster, declared, {0: 0, 1: 0})
    topics.trim(cluster, declared.topic, {0: RECORDS, 1: RECORDS})

    found._delta.restore(found.version - 1)

    report = compared(cluster, declared)
    assert (report.verdict, report.removed) == (ArchiveVerdict.DIFFERENT, {1: RECORDS // 3})


def test_a_file_that_was_deleted_is_named(cluster: Cluster, declared: settings.Archive) -> None:
    found = archive(cluster, declared, {0: 0, 1: 0})
    topics.trim(cluster, declared.topic, {0: RECORDS, 1: RECORDS})
    path = found.files()[0].path
    Path(declared.path, path).unlink()

    with pytest.raises(errors.ArchiveUnusable, match=path.rpartition("/")[2]):
        compared(cluster, declared)


def test_an_archive_that_begins_too_late_is_not_in_step(
    cluster: Cluster, declared: settings.Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    archive(cluster, declared, {0: 0, 1: 4})

    report = compared(cluster, declared)
    assert report.verdict is ArchiveVerdict.DIFFERENT
    assert report.late_ranges == {1: [(0, 4)]}
    archive_commands._print(report)
    assert "although `start` includes them: partition 1: 0 to 3" in capsys.readouterr().err

    topics.trim(cluster, declared.topic, {1: 3})
    assert compared(cluster, declared).late_ranges == {1: [(3, 4)]}


def test_an_archive_that_was_to_begin_at_the_end_is_in_step(
    cluster: Cluster, declared: settings.Archive
) -> None:
    later = settings.Archive(topic=declared.topic, path=declared.path, start="latest")
    archive(cluster, later, {0: 3, 1: 4})

    assert compared(cluster, later).verdict is ArchiveVerdict.IN_STEP


def test_an_archive_that_was_to_begin_at_a_time_is_checked_from_there(
    cluster: Cluster, declared: settings.Archive
) -> None:
    since = settings.Archive(topic=declared.topic, path=declared.path, start="2020-01-01T00:00:00Z")
    archive(cluster, since, {0: 0, 1: 1})

    assert compared(cluster, since).late_ranges == {1: [(0, 1)]}


def test_a_new_partition_that_lost_records_before_they_were_archived_is_noticed(
    cluster: Cluster, declared: settings.Archive
) -> None:
    archive(cluster, declared, {0: 0, 1: 0})
    topics.grow(cluster, declared.topic, 3)
    publish(cluster, declared.topic, 2, 10)
    assert compared(cluster, declared).verdict is ArchiveVerdict.IN_STEP

    topics.trim(cluster, declared.topic, {2: 6})

    report = compared(cluster, declared)
    assert (report.verdict, report.behind) == (ArchiveVerdict.DIFFERENT, 4)
    assert report.lost_ranges == {2: [(0, 6)]}
