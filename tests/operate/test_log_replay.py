"""Test replay of a range of a real log, on tables with all damage that the guard can repair."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from instep import errors, settings
from instep.document.decoding import Decoder, Event, Record
from instep.kafka import offsets, places, reading, topics
from instep.kafka.connection import Cluster
from instep.kafka.logs import TopicLog
from instep.operate import dead_letters, log_replay, parked, timeline
from instep.pipeline.apply.batch import Writer
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.pipeline.apply.transaction import BatchTransaction
from instep.sinks import preparation
from instep.sinks.journal_entries import Selection
from instep.sinks.sink import Sink
from instep.sinks.target import Position
from tests.support.databases import declare, run_sql
from tests.support.producing import IN_ORDER
from tests.support.transactions import Open, log_holds_nothing, table

Put = Callable[..., None]
UNORDERED = {
    "event": {"document": "doc_id", "status": "status"},
    "columns": {"print_status": "status", "print_version": "version"},
}


@pytest.fixture
def put(cluster: Cluster, topic: str) -> Put:
    """Return a function that publishes records, keyed by document."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, **IN_ORDER})

    def publish(*records: tuple[str, Any]) -> None:
        for document, value in records:
            producer.produce(
                topic,
                key=document.encode(),
                value=value if value is None else json.dumps(value).encode(),
            )
        assert producer.flush(30) == 0

    return publish


def event(
    document: str, version: int, status: str = "PRINTED", **fields: Any
) -> tuple[str, dict[str, Any]]:
    return document, {
        "doc_id": document,
        "status": status,
        "version": version,
        "updated_at": 1_790_000_000_000,
        **fields,
    }


def flow(cluster: Cluster, topic: str, sink: Sink) -> None:
    """Apply what the log has beyond the ledger, as the pipeline's tasks do."""
    found = topics.describe(cluster, topic)
    if not sink.ledger.positions():
        sink.ledger.take_epoch(
            Position(part, 0, 0, found.cluster_id, found.id) for part in found.partitions
        )
    ends = offsets.latest(cluster, topic, found.partitions)
    for partition, position in sink.ledger.positions().items():
        records = [
            Record(one.offset, one.timestamp_ms, one.key, one.value)
            for one in reading.read(
                cluster, topic, {partition: (position.next_offset, ends[partition])}
            )
        ]
        if records:
            writer = Writer(position.epoch, found.cluster_id, found.id)
            BatchTransaction(writer, partition, records, log_holds_nothing).apply(
                sink, Decoder(sink.target.mapping)
            )


def repaired(
    session: MaintenanceSession, cluster: Cluster, *, execute: bool = True, **which: Any
) -> list[Change]:
    part = log_replay.resolve_range(session, cluster, **which)
    return sorted(
        log_replay.replay(session, cluster, part, execute=execute),
        key=lambda line: line.document or "",
    )


@pytest.mark.parametrize("history", [True, False])
def test_a_damaged_table_is_repaired(
    database_url: str,
    open_sink: Open,
    cluster: Cluster,
    topic: str,
    put: Put,
    history: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_replay, "CHUNK_EVENTS", 3)
    pipeline = declare(database_url, topic=topic, history=history)
    sink = open_sink(pipeline)
    documents = [f"d{number}" for number in range(8)]
    put(*(event(name, version, f"S{version}") for version in (1, 2, 3) for name in documents))
    put(
        event("d0", 3, "ANOTHER BODY"),
        event("d7", 1, "LATE"),
        ("gone", None),
        event("gone", 5),
        ("gone", None),
    )
    flow(cluster, topic, sink)
    put(event("ahead", 1))
    good = table(database_url)
    assert good == [(name, "S3", 3) for name in documents]
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        assert repaired(session, cluster) == []
        run_sql(
            database_url,
            "UPDATE contract_document SET print_status = 'DAMAGED' WHERE doc_no IN ('d0', 'd1')",
            "UPDATE contract_document SET print_status = 'S1', print_version = 1"
            " WHERE doc_no = 'd2'",
            "DELETE FROM contract_document WHERE doc_no = 'd3'",
            "UPDATE contract_document SET print_status = 'NEWER', print_version = 9"
            " WHERE doc_no = 'd4'",
        )
        plan = repaired(session, cluster, execute=False)
        assert {line.document for line in plan} == {"d0", "d1", "d2", "d3"}
        assert [row[1] for row in table(database_url)].count("DAMAGED") == 2
        only = repaired(session, cluster, documents=["d1"])
        assert [(line.document, line.before and line.before["print_status"]) for line in only] == [
            ("d1", "DAMAGED")
        ]
        assert {line.document for line in repaired(session, cluster)} == {"d0", "d2", "d3"}
        expected = [row if row[0] != "d4" else ("d4", "NEWER", 9) for row in good]
        assert table(database_url) == expected
        assert session.sink.ledger.positions() == sink.ledger.positions()
        assert {
            one.action
            for one in timeline.read(
                session, "d3", lambda: Cluster(settings.Kafka(), cluster.bootstrap)
            ).decisions
        } == {"replayed"}
    flow(cluster, topic, sink)
    assert table(database_url)[0][0] == "ahead"


def test_a_pruned_history_does_not_keep_a_row_damaged(
    new_database: Callable[[str], str],
    open_sink: Open,
    cluster: Cluster,
    topic: str,
    put: Put,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Repair also when the database rolls back the first attempt: the retry finds the same."""
    url = new_database("sqlite")
    pipeline = declare(url, topic=topic)
    put(event("a", 1, "ONE"), event("a", 2, "TWO"), event("a", 2, "ANOTHER BODY"))
    flow(cluster, topic, open_sink(pipeline))
    run_sql(
        url, "UPDATE contract_document SET print_status = 'DAMAGED'", "DELETE FROM instep_history"
    )
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        commit = session.sink.connection.commit
        given_up: list[bool] = []

        def give_up_once() -> None:
            if not given_up:
                given_up.append(True)
                raise errors.Transient("a deadlock")
            commit()

        monkeypatch.setattr(session.sink.connection, "commit", give_up_once)
        assert [line.document for line in repaired(session, cluster)] == ["a"]
    assert given_up
    assert table(url) == [("a", "TWO", 2)]


def test_a_range_without_an_order_must_reach_the_ledger(
    new_database: Callable[[str], str], open_sink: Open, cluster: Cluster, topic: str, put: Put
) -> None:
    url = new_database("postgres")
    preparation.prepare(declare(url))
    pipeline = declare(url, topic=topic, history=False, **UNORDERED)
    sink = open_sink(pipeline)
    put(
        event("a", 3, "ONE"),
        event("b", 1, "ONE"),
        event("a", 1, "TWO"),
        ("b", None),
        ("c", {"doc_id": "c"}),
    )
    flow(cluster, topic, sink)
    put(event("c", 1, "LATER"))
    flow(cluster, topic, sink)
    assert table(url) == [("a", "TWO", 1), ("c", "LATER", 1)]
    run_sql(
        url,
        "UPDATE contract_document SET print_status = 'DAMAGED'",
        "INSERT INTO contract_document VALUES ('b', 'BACK', 1)",
    )
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        with pytest.raises(errors.SettingsError, match="older statuses"):
            repaired(session, cluster, last=places.FromStart(1))
        assert {line.document for line in repaired(session, cluster)} == {"a", "b", "c"}
        assert table(url) == [("a", "TWO", 1), ("c", "LATER", 1)]
        # a dead letter of a document with a later event is stale, whatever its value
        run_sql(
            url,
            'UPDATE instep_dead_letters SET value = convert_to(\'{"doc_id": "c",'
            ' "status": "OLD"}\', \'UTF8\')',
        )
        overtaken = log_replay.OvertakenInLog(
            session, lambda: Cluster(settings.Kafka(), cluster.bootstrap)
        )
        assert [
            line.verdict
            for line in dead_letters.replay(session, Selection(), overtaken, execute=True)
        ] == ["stale"]
        assert table(url) == [("a", "TWO", 1), ("c", "LATER", 1)]
        life = timeline.read(session, "a", lambda: Cluster(settings.Kafka(), cluster.bootstrap))
        assert (life.source, [one.verdict for one in life.events]) == (
            "topic",
            ["applied", "applied"],
        )


def test_a_replay_respects_earlier_decisions(
    new_database: Callable[[str], str], open_sink: Open, cluster: Cluster, topic: str, put: Put
) -> None:
    url = new_database("mariadb")
    pipeline = declare(url, topic=topic, transitions={"NEW": ["BUSY"], "BUSY": ["DONE"]})
    sink = open_sink(pipeline)
    put(
        event("a", 1, "NEW"),
        event("a", 2, "DONE"),
        event("b", 1, "NEW"),
        event("b", 2, "DONE"),
        event("b", 3, "BUSY"),
    )
    flow(cluster, topic, sink)
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        parked.skip(session, "a", "not printed at all", execute=True)
        run_sql(url, "UPDATE contract_document SET print_status = 'DAMAGED'")
        assert [line.document for line in repaired(session, cluster, first=places.FromStart())] == [
            "a"
        ]
        assert table(url) == [("a", "NEW", 1), ("b", "DAMAGED", 1)]
        with pytest.raises(errors.SettingsError, match="no partition 9"):
            repaired(session, cluster, partitions=[9])


def test_a_row_that_the_table_refuses_is_reported(
    new_database: Callable[[str], str], open_sink: Open, cluster: Cluster, topic: str, put: Put
) -> None:
    url = new_database("postgres")
    pipeline = declare(url, topic=topic)
    sink = open_sink(pipeline)
    put(*(event(f"d{n}", 1, f"S{n}") for n in range(20)))
    flow(cluster, topic, sink)
    run_sql(
        url,
        "DELETE FROM contract_document",
        "ALTER TABLE contract_document ADD CHECK (print_status <> 'S7')",
    )
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        lines = repaired(session, cluster)
    assert len(lines) == 20
    assert [
        (line.document, line.reason) for line in lines if line.verdict == log_replay.REFUSED
    ] == [("d7", "REFUSED_BY_TARGET")]
    assert len(table(url)) == 19


def test_clock_differences_between_runs_do_not_matter(
    database_url: str, open_sink: Open, cluster: Cluster, topic: str, put: Put
) -> None:
    """Create and delete with a clock an hour ahead, then create again with a correct clock."""
    pipeline = declare(database_url, topic=topic)
    sink = open_sink(pipeline)
    put(event("a", 1, "FIRST"), ("a", None))
    flow(cluster, topic, sink)
    ahead = {
        "sqlite": "strftime('%Y-%m-%d %H:%M:%f', committed_at, '+1 hour')",
        "postgresql": "committed_at + INTERVAL '1 hour'",
    }.get(database_url.partition(":")[0], "committed_at + INTERVAL 1 HOUR")
    run_sql(database_url, f"UPDATE instep_history SET committed_at = {ahead}")
    put(event("a", 2, "MADE AGAIN"))
    flow(cluster, topic, sink)
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        assert repaired(session, cluster, last=places.FromStart(2)) == []
        assert repaired(session, cluster) == []
        life = timeline.read(session, "a", lambda: Cluster(settings.Kafka(), cluster.bootstrap))
        assert [one.position.offset for one in life.events] == [0, 1, 2]
    assert table(database_url) == [("a", "MADE AGAIN", 2)]


def test_under_the_lock_only_the_rest_of_the_log_is_read(
    new_database: Callable[[str], str],
    open_sink: Open,
    cluster: Cluster,
    topic: str,
    put: Put,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an order, only the log can tell which event came later."""
    url = new_database("sqlite")
    preparation.prepare(declare(url))
    pipeline = declare(url, topic=topic, **UNORDERED)
    sink = open_sink(pipeline)
    put(("a", {"doc_id": "a"}), event("a", 1, "ONE"))
    flow(cluster, topic, sink)
    [(partition, first)] = [
        (number, position)
        for number, position in sink.ledger.positions().items()
        if position.next_offset == 2
    ]
    assert sink.journal.dead_letter_count() == 1
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        ranges: list[Any] = []

        class Seen(TopicLog):
            def records(self, wanted: Any) -> Any:
                ranges.append(wanted)
                return super().records(wanted)

        monkeypatch.setattr(log_replay, "TopicLog", Seen)
        overtaken = log_replay.OvertakenInLog(
            session, lambda: Cluster(settings.Kafka(), cluster.bootstrap)
        )
        events = [Event(0, "a", None, None, None, ())]
        assert overtaken(first, events) == {0}
        assert overtaken(first, events) == {0}
        put(event("a", 2, "TWO"))
        flow(cluster, topic, sink)
        assert overtaken(sink.ledger.positions()[partition], events) == {0}
        assert ranges == [{partition: (0, 2)}, {partition: (2, 3)}]
        # a later event that is in quarantine has overtaken nothing
        second = [msgspec.structs.replace(events[0], offset=1)]
        assert overtaken(sink.ledger.positions()[partition], second) == {1}
        run_sql(url, 'UPDATE instep_dead_letters SET "offset" = 2')
        assert overtaken(sink.ledger.positions()[partition], second) == set()
