"""Test replay of what Kafka no longer has, from an archive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from instep.archive import table
from instep.archive.files import locate
from instep.archive.log import ArchivedLog
from instep.archive.table import ArchivedTopic
from instep.archive.writer import ArchiveWriter
from instep.document.records import Record
from instep.kafka import offsets, places, reading, topics
from instep.kafka.connection import Cluster
from instep.kafka.logs import TopicLog
from instep.operate import log_replay
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import preparation
from instep.sinks.target import Position
from tests.support.databases import declare, run_sql
from tests.support.transactions import Open


def publish(cluster: Cluster, topic: str, *events: tuple[str, int | None]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for document, version in events:
        body: Any = {"doc_id": document, "status": f"S{version}", "version": version}
        body["updated_at"] = 1_790_000_000_000
        value = None if version is None else json.dumps(body).encode()
        producer.produce(topic, key=document.encode(), value=value)
    assert producer.flush(30) == 0


def archive(
    cluster: Cluster, topic: str, folder: Path, begins: Mapping[int, int] | None = None
) -> table.ArchiveTable:
    """Archive everything that the topic has, or what it has from these offsets on."""
    found = topics.describe(cluster, topic)
    owner = ArchivedTopic(topic, found.id, found.cluster_id)
    made = table.create("a", locate(str(folder)), owner)
    begins = begins or dict.fromkeys(found.partitions, 0)
    writer = ArchiveWriter(made, made.take_epoch(begins))
    writer.take(writer.positions(found.partitions))
    ends = offsets.latest(cluster, topic, found.partitions)
    for partition, end in ends.items():
        read = reading.read(cluster, topic, {partition: (begins[partition], end)})
        records = [Record(one.offset, one.timestamp_ms, one.key, one.value) for one in read]
        if records:
            writer.add(partition, records)
    writer.commit()
    return table.require("a", locate(str(folder)))


def test_a_new_pipeline_gets_what_only_the_archive_has(
    open_sink: Open, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    names = [f"d{number}" for number in range(20)]
    publish(cluster, topic, *((name, version) for version in (1, 2, 3) for name in names))
    publish(cluster, topic, ("d0", None), ("d1", None), ("d1", 4), ("d2", None))
    archived = archive(cluster, topic, tmp_path / "archive")
    ends = offsets.latest(cluster, topic, range(3))
    topics.trim(cluster, topic, ends)
    publish(cluster, topic, ("d2", 5), ("d3", None), ("d4", 6))  # not archived yet

    pipeline = declare(f"sqlite:///{tmp_path}/target.db", topic=topic, history=False)
    preparation.prepare(pipeline, add_columns=True)
    sink = open_sink(pipeline)
    found = topics.describe(cluster, topic)
    now = offsets.latest(cluster, topic, range(3))
    sink.ledger.take_epoch(
        Position(part, end, 0, found.cluster_id, found.id) for part, end in now.items()
    )
    log = ArchivedLog(archived, TopicLog(cluster, topic), range(3), keeps_deleted=False)
    with MaintenanceSession("contracts", pipeline, "tester") as session:
        selected = log_replay.resolve_range(session, cluster, first=places.FromStart(), log=log)
        assert selected.from_start
        changes = list(log_replay.replay(session, cluster, selected, execute=True, log=log))

    expected = dict.fromkeys(names, 3) | {"d1": 4, "d2": 5, "d4": 6}
    del expected["d0"], expected["d3"]
    rows = run_sql(pipeline.target, "SELECT doc_no, print_version FROM contract_document")
    assert dict(rows) == expected
    assert {change.document for change in changes} >= expected.keys()


def test_what_neither_archive_nor_topic_has_is_named(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    publish(cluster, topic, *((f"d{number}", 1) for number in range(20)))
    archived = archive(cluster, topic, tmp_path / "archive")
    positions = archived.positions(range(3))
    publish(cluster, topic, *((f"d{number}", 2) for number in range(20)))
    ends = offsets.latest(cluster, topic, range(3))

    def lost(starts: dict[int, int]) -> table.Ranges:
        found = table.require("a", archived.location)
        log = ArchivedLog(found, TopicLog(cluster, topic), range(3), keeps_deleted=True)
        return log.lost({part: (start, ends[part]) for part, start in starts.items()})

    everything = dict.fromkeys(range(3), 0)
    assert lost(everything) == {}
    gap = positions[0], positions[0] + 2
    topics.trim(cluster, topic, {0: gap[1]})
    assert lost(everything) == {0: [gap]}
    assert lost({1: 0, 2: 0}) == {}
    archived.skip({0: gap})
    assert lost(everything) == {0: [gap]}
    assert lost({0: gap[0] + 1}) == {0: [(gap[0] + 1, gap[1])]}
    assert lost({0: gap[1]}) == {}


def test_what_is_before_the_archive_is_read_from_the_topic(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    publish(cluster, topic, *((f"d{number}", 1) for number in range(20)), ("d1", None))
    first = offsets.latest(cluster, topic, range(3))
    publish(cluster, topic, *((f"d{number}", 2) for number in range(20)))
    archived = archive(cluster, topic, tmp_path / "archive", begins=first)
    log = ArchivedLog(archived, TopicLog(cluster, topic), range(3), keeps_deleted=True)
    ends = offsets.latest(cluster, topic, range(3))
    starts = log.starts(range(3))
    assert starts == dict.fromkeys(range(3), 0)
    read = [record for part, end in ends.items() for record in log.records({part: (0, end)})]
    assert len(read) == 41
    topics.trim(cluster, topic, {0: 1})
    assert log.lost({0: (0, ends[0])}) == {0: [(0, 1)]}


def test_a_time_is_found_in_the_archive_before_the_topic(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    publish(cluster, topic, *((f"d{number}", 1) for number in range(20)))
    archived = archive(cluster, topic, tmp_path / "archive")
    topics.trim(cluster, topic, offsets.latest(cluster, topic, range(3)))
    log = ArchivedLog(archived, TopicLog(cluster, topic), range(3), keeps_deleted=True)
    hour_ago = places.resolve_in(log, range(3), places.Ago(3_600))
    assert hour_ago == {0: 0, 1: 0, 2: 0}
    assert places.resolve_in(log, range(3), places.Ago(0)) == log.ends(range(3))
