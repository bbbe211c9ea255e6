"""Test reconcile with a real broker, Spark and each database, on tables damaged by SQL."""

from __future__ import annotations

import itertools
import json
import random
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import TopicPartition
from msgspec import UNSET
from pyspark.sql import SparkSession

from instep import errors, settings
from instep.document.decoding import Event
from instep.document.guard import Rules
from instep.kafka import offsets, places, topics
from instep.kafka.connection import Cluster
from instep.operate import dead_letters, log_replay, parked, rewind
from instep.pipeline import session
from instep.pipeline.apply import release
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.pipeline.runner import Runner
from instep.reconcile import job, repair, spark_progress
from instep.sinks import preparation
from instep.sinks.journal_entries import Selection
from instep.spark_options import SparkFiles
from tests.support.databases import has_uuid_type, run_sql
from tests.support.guard_model import Model
from tests.support.open_transaction import wait_until_ended
from tests.support.pipelines import Prove, drained, following
from tests.support.producing import IN_ORDER
from tests.support.reconciling import counted, found
from tests.support.runs import event, rows, send
from tests.support.waiting import wait_until

Run = Callable[..., Runner]

FIX = repair.RepairRequest(execute=True, actor="tester")


# test_repair repairs tables of every database, and tests below compare every kind of column on each
@pytest.mark.parametrize(
    "database_url",
    ["sqlite", pytest.param("postgres", marks=pytest.mark.long)],
    indirect=True,
)
def test_damage_is_found_and_repaired(
    database_url: str, topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    pipeline = following(database_url, topic)
    log = [
        event(f"d{n:02}", version, name)
        for version, name in ((1, "CREATED"), (2, "PRINTED"))
        for n in range(20)
    ]
    send(cluster, topic, *log, (b"d19", None), (b"nobody", None), (b"d18", b"{"))
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, report.documents, report.documents_in_step, listed) == (
        True,
        19,
        19,
        [],
    )
    run_sql(
        database_url,
        "DELETE FROM contract_document WHERE doc_no = 'd01'",
        "UPDATE contract_document SET print_status = 'LOST' WHERE doc_no = 'd02'",
        "UPDATE contract_document SET print_version = 7 WHERE doc_no = 'd03'",
        "UPDATE contract_document SET print_version = 1, print_status = 'CREATED'"
        " WHERE doc_no = 'd04'",
        "UPDATE contract_document SET print_status = NULL,"
        " print_version = NULL, printed_at = NULL WHERE doc_no = 'd05'",
        "INSERT INTO contract_document (doc_no, print_status, print_version)"
        " VALUES ('d19', 'PRINTED', 2)",
        "INSERT INTO contract_document (doc_no, print_status) VALUES ('unheard', 'PRINTED')",
        "INSERT INTO instep_deleted (pipeline, document, order_value)"
        " VALUES ('contracts', 'unheard', 1)",
        "INSERT INTO contract_document (doc_no) VALUES ('own')",
    )
    report, listed = prove(pipeline)
    assert (report.in_step, counted(report)) == (False, (1, 2, 4))
    assert report.columns == {"print_status": 3, "print_version": 3, "printed_at": 1}
    assert found(listed) == [
        ("d01", "missing", None),
        ("d02", "different", "print_status"),
        ("d03", "different", "print_version"),
        ("d04", "different", "print_status"),
        ("d04", "different", "print_version"),
        ("d05", "different", "print_status"),
        ("d05", "different", "print_version"),
        ("d05", "different", "printed_at"),
        ("d19", "extra", None),
        ("unheard", "extra", None),
    ]
    assert listed[0]["expected"] == {
        "print_status": "PRINTED",
        "print_version": "2",
        "printed_at": "2026-09-21T14:13:20+00:00",
    }
    assert (listed[1]["expected"], listed[1]["found"]) == ("PRINTED", "LOST")
    assert listed[1]["place"].keys() == {"partition", "offset"}
    assert report.first_rows == [
        {k: v for k, v in row.items() if k not in ("pipeline", "table")} for row in listed
    ]

    before = rows(database_url)
    planned, listed = prove(pipeline, fix=repair.RepairRequest())
    assert rows(database_url) == before
    assert planned.repaired is None
    assert {row["document"]: row["repair"] for row in listed} == {
        "d01": "insert",
        "d02": "write",
        "d03": "leave: the table holds the higher order value 7",
        "d04": "write",
        "d05": "write",
        "d19": "delete",
        "unheard": "leave: the log does not say that it was deleted: use --delete-extra",
    }

    report, listed = prove(pipeline, fix=FIX)
    assert report.repaired is not None
    assert (
        report.in_step,
        report.repaired.inserted,
        report.repaired.written,
        report.repaired.deleted,
    ) == (False, 1, 3, 1)
    assert {name for name, _ in report.repaired.first_left_alone} == {"d03", "unheard"}
    assert {row["document"] for row in listed if row["kind"] == "left_alone"} == {"d03", "unheard"}
    assert run_sql(
        database_url, "SELECT document, order_value FROM instep_deleted WHERE document <> 'unheard'"
    ) == [("d19", 2)]
    decided = run_sql(
        database_url,
        "SELECT document, action, outcome, actor FROM instep_decisions ORDER BY document",
    )
    assert decided == [
        ("d01", "repaired", "inserted", "tester"),
        ("d02", "repaired", "written", "tester"),
        ("d04", "repaired", "written", "tester"),
        ("d05", "repaired", "written", "tester"),
        ("d19", "repaired", "deleted", "tester"),
    ]
    run_sql(database_url, "UPDATE contract_document SET print_version = 2 WHERE doc_no = 'd03'")
    report, _ = prove(pipeline, fix=repair.RepairRequest(execute=True, delete_extra=True))
    assert (report.in_step, report.extra) == (True, 1)
    report, listed = prove(pipeline)
    assert (report.in_step, listed) == (True, [])
    assert rows(database_url) == [
        *((f"d{n:02}", "PRINTED", 2) for n in range(19)),
        ("own", None, None),
    ]


KINDS = {
    "sqlite": {
        "a_text": "TEXT",
        "a_char": "CHAR(6)",
        "an_integer": "INTEGER",
        "a_real": "REAL",
        "a_single": "FLOAT",
        "a_decimal": "NUMERIC(20, 4)",
        "a_truth": "BOOLEAN",
        "a_time": "DATETIME",
        "a_coarse": "DATETIME",
        "a_date": "DATE",
        "a_choice": "VARCHAR(10)",
        "a_json": "JSON",
        "a_uuid": "VARCHAR(36)",
    },
    "postgresql": {
        "a_text": "text",
        "a_char": "char(6)",
        "an_integer": "bigint",
        "a_real": "double precision",
        "a_single": "real",
        "a_decimal": "numeric(20,4)",
        "a_truth": "boolean",
        "a_time": "timestamptz",
        "a_coarse": "timestamp(1)",
        "a_date": "date",
        "a_choice": "mood",
        "a_json": "jsonb",
        "a_uuid": "uuid",
    },
    "mysql": {
        "a_text": "TEXT",
        "a_char": "CHAR(6)",
        "an_integer": "BIGINT",
        "a_real": "DOUBLE",
        "a_single": "FLOAT",
        "a_decimal": "DECIMAL(20,4)",
        "a_truth": "BOOLEAN",
        "a_time": "DATETIME(6)",
        "a_coarse": "DATETIME",
        "a_date": "DATE",
        "a_choice": "ENUM('good', 'bad')",
        "a_json": "JSON",
        "a_uuid": "CHAR(36)",
    },
}

HUGE = 12345678901234567890123
VALUES: list[dict[str, Any]] = [
    {
        "a_text": "é 😀 \\ % ' \" ",
        "a_char": "ab",
        "an_integer": -(2**63),
        "a_real": 0.1,
        "a_single": 0.1,
        "a_decimal": 12.5,
        "a_truth": True,
        "a_time": "2026-11-01T08:00:00.123456Z",
        "a_coarse": "2026-11-01T08:00:00.550000Z",
        "a_date": "2026-11-01",
        "a_choice": "good",
        "a_json": {"b": [1.0, 2.50, 1e100, None, True], "a": "é"},
        "a_uuid": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
    },
    {
        "a_text": "",
        "a_char": "abcdef",
        "an_integer": 2**63 - 1,
        "a_real": 1e300,
        "a_single": 16777217,
        "a_decimal": 1234567890123456,
        "a_truth": False,
        "a_time": "1999-12-31T23:59:59.999999Z",
        "a_coarse": "1999-12-31T23:59:59.949999Z",
        "a_date": "1000-01-01",
        "a_choice": "bad",
        "a_json": HUGE,
        "a_uuid": "00000000-0000-0000-0000-000000000000",
    },
    {
        "a_text": "0",
        "a_char": "0",
        "an_integer": 0,
        "a_real": -0.0,
        "a_single": 123456.789,
        "a_decimal": 0.0001,
        "a_truth": False,
        "a_time": 1_790_000_000_123,
        "a_coarse": 1_790_000_000_999,
        "a_date": "9999-12-31",
        "a_choice": "bad",
        "a_json": "text",
        "a_uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff",
    },
    dict.fromkeys(KINDS["sqlite"]),
    {
        "a_text": "12",
        "a_json": 0.30000000000000004,
        "a_decimal": -99.9999,
        "a_real": 3,
        "a_single": 1e-30,
    },
    {"a_json": "12", "a_real": 123456789012345680, "a_decimal": 0},
    {"a_json": 12},
]


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
def test_every_kind_of_column_compares_equal_after_its_round_trip(
    kind: str,
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
) -> None:
    url = new_database(kind)
    types = KINDS[{"postgres": "postgresql", "mariadb": "mysql"}.get(kind, kind)]
    if kind == "mariadb" and has_uuid_type(url):
        types = {**types, "a_uuid": "UUID"}
    if kind == "postgres":
        run_sql(url, "CREATE TYPE mood AS ENUM ('good', 'bad')")
    declared = ", ".join(f"{name} {of}" for name, of in types.items())
    charset = " CHARACTER SET utf8mb4" if kind in ("mysql", "mariadb") else ""
    exact = {"mysql": " COLLATE utf8mb4_0900_bin", "mariadb": " COLLATE utf8mb4_nopad_bin"}.get(
        kind, ""
    )
    run_sql(
        url,
        f"CREATE TABLE kinds (id VARCHAR(20){charset}{exact} NOT NULL PRIMARY KEY,"
        f" {declared}){charset}",
    )
    pipeline = following(
        url,
        topic,
        table="kinds",
        key="id",
        event={"status": "status"},
        columns={name: name for name in types},
    )
    values = VALUES
    # these would store the number as a double, so its document would be parked
    if kind in ("sqlite", "mysql"):
        values = [{**row, "a_json": 2**62} if row.get("a_json") == HUGE else row for row in VALUES]
    send(
        cluster,
        topic,
        *((f"d{n}".encode(), {"status": "S", **row}) for n, row in enumerate(values)),
    )
    drained(runner(pipeline, once=True))
    assert run_sql(url, "SELECT reason, detail FROM instep_dead_letters") == []
    report, listed = prove(pipeline)
    assert (report.documents_in_step, listed) == (len(VALUES), [])
    run_sql(
        url,
        "DELETE FROM kinds WHERE id IN ('d0', 'd1', 'd2')",
        f"UPDATE kinds SET {', '.join(f'{c} = NULL' for c in types)}",
    )
    report, _ = prove(pipeline, fix=FIX)
    assert (report.in_step, counted(report)) == (True, (3, 0, 3))
    report, listed = prove(pipeline)
    assert (report.documents_in_step, listed) == (len(VALUES), [])


PARTIAL = {"print_status": "status", "print_version": "version", "note": "note", "place": "place"}
UNORDERED = {column: field for column, field in PARTIAL.items() if field != "version"}


@pytest.mark.parametrize(
    ("order", "columns"), [("version", PARTIAL), (None, UNORDERED)], ids=["ordered", "log"]
)
def test_the_expected_rows_equal_those_of_the_model(
    order: str | None,
    columns: dict[str, str],
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
) -> None:
    """Send random partial, late and delete events. Empty the table to see all expected rows."""
    chance = random.Random(7)
    log: list[tuple[bytes, Any]] = []
    for number in range(1500):
        document = f"d{chance.randrange(60)}"
        if chance.random() < 0.1:
            log.append((document.encode(), None))
            continue
        body: dict[str, Any] = {
            "doc_id": document,
            "status": f"S{number}",
            "version": chance.randrange(number + 5),
        }
        body |= {
            name: chance.choice([None, f"{name}{number}"])
            for name in ("note", "place")
            if chance.random() < 0.6
        }
        log.append((document.encode(), body))
    url = new_database("sqlite")
    event = {"document": "doc_id", "status": "status"} | ({"order": order} if order else {})
    pipeline = following(url, topic, event=event, columns=columns)
    send(cluster, topic, *log)
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, listed) == (True, [])
    model = Model(Rules(ordered=order is not None), {}, {}, columns)
    for number, (key, body) in enumerate(log):
        values = (
            None if body is None else tuple(body.get(field, UNSET) for field in columns.values())
        )
        model.apply(
            Event(
                number,
                key.decode(),
                body["version"] if order and body else None,
                None,
                None,
                values,
            )
        )
    texts = {
        name: {
            column: None if row[column] is None else str(row[column])
            for column in columns
            if column in row
        }
        for name, row in model.rows.items()
    }
    run_sql(url, "DELETE FROM contract_document")
    report, listed = prove(pipeline, fix=FIX)
    assert {row["document"]: row["expected"] for row in listed} == texts
    report, listed = prove(pipeline)
    assert (report.in_step, report.documents) == (True, len(texts))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def test_lag_is_distinguished_from_damage_while_the_pipeline_runs(
    kind: str,
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
) -> None:
    url = new_database(kind)
    pipeline = following(url, topic)
    send(cluster, topic, *(event(f"d{n}", 1) for n in range(50)))
    runner(pipeline)
    wait_until(lambda: len(rows(url)) == 50, "the first records")
    ended = threading.Event()

    def publish() -> None:
        for version in itertools.count(2):
            if ended.wait(0.05):  # at full speed, the publisher would take a core
                return
            send(cluster, topic, *(event(f"d{n}", version, f"S{version}") for n in range(50)))

    busy = threading.Thread(target=publish)
    busy.start()
    try:
        report, listed = prove(pipeline, wait_s=90.0)
        assert (counted(report), listed) == ((0, 0, 0), [])
        assert report.in_step is not bool(report.behind.records)
        run_sql(
            url,
            "INSERT INTO contract_document (doc_no, print_status) VALUES ('unheard', 'X')",
            "INSERT INTO instep_deleted (pipeline, document, order_value)"
            " VALUES ('contracts', 'unheard', 1)",
        )
        report, listed = prove(
            pipeline, wait_s=90.0, fix=repair.RepairRequest(execute=True, delete_extra=True)
        )
        assert found(listed) == [("unheard", "extra", None)]
        assert report.repaired is not None
        assert report.repaired.deleted == 1
    finally:
        ended.set()
        busy.join()


def test_documents_with_waiting_events_are_behind(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic)
    preparation.prepare(pipeline)
    with pytest.raises(errors.SettingsError, match="has never run"):
        prove(pipeline)
    send(cluster, topic, *(event(f"d{n}", 1) for n in range(10)))
    drained(runner(pipeline, once=True))
    send(cluster, topic, event("d0", 2), event("d0", 3), event("new", 1), (b"d1", b"?"))
    run_sql(url, "UPDATE contract_document SET print_status = 'LOST' WHERE doc_no IN ('d0', 'd2')")
    report, listed = prove(pipeline)
    assert (report.in_step, report.behind.records, report.behind.documents) == (False, 4, 2)
    assert found(listed) == [
        ("d0", "different", "print_status"),
        ("d2", "different", "print_status"),
    ]
    report, _ = prove(pipeline, fix=FIX)
    assert report.repaired is not None
    assert (report.in_step, report.repaired.written) == (False, 2)
    drained(runner(pipeline, once=True))
    report, _ = prove(pipeline)
    assert (report.in_step, report.behind.records, report.places_left_out) == (True, 0, 1)


def test_aborted_transactions_and_markers_are_not_expected(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    pipeline = following(new_database("sqlite"), topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions()

    def publish(version: int, commit: bool) -> None:
        producer.begin_transaction()
        for number in range(9):
            key, value = event(f"d{number}", version)
            producer.produce(topic, key=key, value=json.dumps(value).encode())
        producer.commit_transaction() if commit else producer.abort_transaction()
        wait_until_ended(cluster, topic, range(3))

    for version, commit in ((1, True), (2, False), (3, True), (4, False)):
        publish(version, commit)
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, report.documents, listed) == (True, 9, [])
    publish(5, False)
    assert prove(pipeline)[0].in_step
    publish(6, True)
    publish(7, False)
    report, _ = prove(pipeline)
    assert (report.in_step, report.behind.records, report.behind.documents) == (False, 9, 9)


def test_quarantined_documents_are_left_out(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    url = new_database("postgres")
    pipeline = following(url, topic, transitions={"CREATED": ["QUEUED"], "QUEUED": ["PRINTED"]})
    send(cluster, topic, *(event(name, 1, "CREATED") for name in ("a", "b", "c", "d", "e")))
    drained(runner(pipeline, once=True))
    jump = event("b", 2, "PRINTED")
    send(
        cluster,
        topic,
        event("a", 2, "PRINTED"),
        jump,
        (b"c", b"{"),
        event("d", 2, "QUEUED"),
        event("b", 3, "QUEUED"),
    )
    drained(runner(pipeline, once=True))
    assert rows(url)[:3] == [("a", "CREATED", 1), ("b", "CREATED", 1), ("c", "CREATED", 1)]
    report, listed = prove(pipeline)
    assert (report.in_step, report.parked, counted(report), report.places_left_out) == (
        True,
        2,
        (0, 0, 0),
        1,
    )
    assert {(row["document"], row["kind"], row["seems"]) for row in listed} == {
        ("a", "parked", "different"),
        ("b", "parked", "different"),
    }
    with MaintenanceSession("contracts", pipeline, "tester") as maintenance_session:
        parked.skip(maintenance_session, "b", "a slip", execute=True)
        release.release(maintenance_session, "b", execute=True)
        dead_letters.drop(maintenance_session, Selection(reason="NOT_JSON"), "noise", execute=True)
    report, listed = prove(pipeline)
    assert (report.in_step, report.parked, report.places_left_out) == (True, 1, 2)
    run_sql(url, "UPDATE contract_document SET print_status = 'LOST'")
    report, listed = prove(pipeline, fix=FIX)
    assert report.repaired is not None
    assert (report.parked, report.different, report.repaired.written, report.in_step) == (
        1,
        4,
        4,
        True,
    )
    assert rows(url)[0] == ("a", "LOST", 1)


def test_a_log_that_lost_its_first_records(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic)
    send(
        cluster,
        topic,
        event("old", 1),
        event("later", 5),
        event("again", 3),
        event("gone", 4),
        (b"gone", None),
    )
    drained(runner(pipeline, once=True))
    ends = offsets.latest(cluster, topic, range(3))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for answer in admin.delete_records(
        [TopicPartition(topic, p, at) for p, at in ends.items() if at]
    ).values():
        answer.result(30)
    send(cluster, topic, event("later", 4), event("again", 4), event("gone", 2), event("new", 1))
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, report.not_in_log, listed) == (True, 3, [])
    assert any("not judged" in note for note in report.notes)
    run_sql(url, "DELETE FROM contract_document WHERE doc_no IN ('new', 'old')")
    report, listed = prove(pipeline)
    assert found(listed) == [("new", "missing", None)]


def test_extra_rows_of_a_compacted_topic_are_not_judged(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    name = f"{topic}-compacted"
    topics.create(cluster, name, 1, config={"cleanup.policy": "compact"})
    url = new_database("sqlite")
    pipeline = following(url, name)
    send(cluster, name, event("a", 1))
    drained(runner(pipeline, once=True))
    run_sql(
        url,
        "INSERT INTO contract_document (doc_no, print_status, print_version)"
        " VALUES ('before', 'X', 1), ('own', 'X', NULL)",
    )
    report, listed = prove(pipeline)
    assert (report.in_step, report.not_in_log, report.not_ours, listed) == (True, 1, 1, [])
    assert any("compacted" in note for note in report.notes)


def test_records_before_the_pipelines_start_are_not_expected(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    url = new_database("sqlite")
    send(cluster, topic, *(event(f"d{n}", 1) for n in range(9)))
    begun = datetime.now(UTC)
    ends = offsets.latest(cluster, topic, range(3))
    pipeline = following(url, topic, start="latest")
    drained(runner(pipeline, once=True))
    send(cluster, topic, *(event(f"e{n}", 1) for n in range(9)))
    drained(runner(pipeline, once=True))
    report, _ = prove(pipeline)
    assert (report.in_step, report.documents, [part.begin for part in report.partitions]) == (
        True,
        9,
        list(ends.values()),
    )
    assert report.skipped == 9
    report, _ = prove(pipeline, begin=f"@{begun:%Y-%m-%dT%H:%M:%S.%fZ}")
    assert (report.in_step, report.documents, [part.begin for part in report.partitions]) == (
        True,
        9,
        list(ends.values()),
    )
    report, _ = prove(pipeline, begin="start")
    assert (report.in_step, report.missing) == (False, 9)
    with pytest.raises(errors.SettingsError, match="not a place"):
        prove(pipeline, begin="yesterday")
    run_sql(url, "UPDATE instep_ledger SET since_offset = NULL")  # as an earlier release left it
    with pytest.raises(errors.SettingsError, match="--from"):
        prove(pipeline)


def test_a_document_with_events_in_two_partitions(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    pipeline = following(new_database("sqlite"), topic)
    send(cluster, topic, *(event(f"d{n}", version) for version in (1, 2) for n in range(30)))
    drained(runner(pipeline, once=True))
    topics.grow(cluster, topic, 5)
    moving = {"topic.metadata.refresh.interval.ms": 100}
    send(cluster, topic, *(event(f"d{n}", 3, "MOVED") for n in range(30)), (b"d7", None), **moving)
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, report.documents, listed) == (True, 29, [])


def test_ignored_missing_documents_are_not_expected(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic, missing="ignore")
    preparation.prepare(pipeline)
    run_sql(url, "INSERT INTO contract_document (doc_no) VALUES ('a'), ('b'), ('idle')")
    send(cluster, topic, event("a", 1), event("b", 1), event("other", 1))
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, listed) == (True, [])
    run_sql(
        url,
        "DELETE FROM contract_document WHERE doc_no = 'b'",
        "UPDATE contract_document SET print_status = NULL",
    )
    report, listed = prove(pipeline, fix=FIX)
    assert (found(listed)[0], report.in_step) == (("a", "different", "print_status"), True)
    assert rows(url) == [("a", "PRINTED", 1), ("idle", None, None)]


APPLICATION = (
    (
        "INSERT INTO contract_document (doc_no, print_status, print_version)"
        " VALUES ('full', 'OLD', 3), ('half', 'OLD', NULL)"
    ),
    "INSERT INTO contract_document (doc_no) VALUES ('bare')",
)


@pytest.mark.parametrize("database_url", ["sqlite", "mariadb"], indirect=True)
def test_rows_of_the_application_are_not_compared(
    database_url: str, topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    """Let two pipelines fill different columns of a table that has its own rows."""
    printing = following(database_url, topic)
    mailing = following(
        database_url,
        topic,
        event={"document": "doc_id", "status": "mail", "order": "mailed"},
        columns={"mail_status": "mail", "mail_version": {"field": "mailed", "type": "bigint"}},
        missing="ignore",
    )
    for pipeline in (printing, mailing):
        preparation.prepare(pipeline, add_columns=True)
    run_sql(database_url, *APPLICATION)
    send(cluster, topic, *(event(name, 1, mail="SENT", mailed=1) for name in ("half", "new")))
    drained(runner(printing, once=True))
    drained(runner(mailing, "mailing", once=True))
    before = rows(database_url)
    report, listed = prove(printing)
    assert (
        report.in_step,
        report.documents,
        report.documents_in_step,
        report.not_ours,
        listed,
    ) == (True, 2, 2, 2, [])
    assert "2 rows were never written by this pipeline, and not compared" in report.notes
    report, listed = prove(mailing, "mailing")
    assert (report.in_step, report.documents, report.not_ours, listed) == (True, 2, 2, [])

    report, listed = prove(
        printing, strict=True, fix=repair.RepairRequest(execute=True, delete_extra=True)
    )
    assert found(listed[:1]) == [("full", "extra", None)]
    assert report.repaired is not None
    assert (
        report.in_step,
        report.not_ours,
        report.repaired.deleted,
        report.repaired.left_alone,
    ) == (
        False,
        1,
        0,
        1,
    )
    assert rows(database_url) == before


def test_the_order_column_identifies_the_pipelines_rows_without_a_history(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic, history=False)
    preparation.prepare(pipeline)
    run_sql(url, *APPLICATION)
    send(cluster, topic, event("new", 1), (b"later", None))
    drained(runner(pipeline, once=True))
    run_sql(url, "INSERT INTO contract_document (doc_no, print_status) VALUES ('later', 'OWN')")
    report, listed = prove(pipeline, fix=repair.RepairRequest(execute=True, delete_extra=True))
    assert found(listed[:2]) == [("full", "extra", None), ("later", "extra", None)]
    assert (report.in_step, report.not_ours) == (False, 2)
    assert [row[0] for row in rows(url)] == ["bare", "full", "half", "later", "new"], (
        "instep recorded none of them: they stay"
    )


@pytest.mark.parametrize("order", ["version", None], ids=["ordered", "log"])
def test_skipped_records_are_not_expected(
    order: str | None,
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
) -> None:
    url = new_database("sqlite")
    described = {"document": "doc_id", "status": "status", "at": "updated_at"} | (
        {"order": order} if order else {}
    )
    columns = {"print_status": "status", "print_version": {"field": "version", "type": "bigint"}}
    pipeline = following(url, topic, event=described, columns=columns)
    send(cluster, topic, event("kept", 1), event("behind", 1), event("later", 1))
    drained(runner(pipeline, once=True))
    send(
        cluster,
        topic,
        event("behind", 2, "PASSED"),
        event("later", 2, "PASSED"),
        event("unheard", 1),
        (b"kept", None),
    )
    prepared = rewind.prepare(cluster, "contracts", pipeline, places.FromEnd())
    rewind.execute("contracts", pipeline, prepared, actor="tester", reason="known to be wrong")
    send(cluster, topic, event("later", 3, "LATER"))
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, report.documents, report.skipped, listed) == (True, 3, 4, [])
    assert any("up to 4 records of the log were never applied" in note for note in report.notes)

    run_sql(url, "UPDATE contract_document SET print_status = 'LOST' WHERE doc_no = 'later'")
    report, listed = prove(pipeline)
    assert {row[:2] for row in found(listed)} == {("later", "different")}
    with MaintenanceSession("contracts", pipeline, "tester") as maintenance_session:
        part = log_replay.resolve_range(
            maintenance_session, cluster, documents=["behind", "unheard"]
        )
        assert {
            line.document
            for line in log_replay.replay(maintenance_session, cluster, part, execute=True)
        } == {
            "behind",
            "unheard",
        }
    report, listed = prove(pipeline, fix=FIX)
    assert (report.in_step, {row[:2] for row in found(listed)}) == (
        True,
        {("later", "different")},
    ), "what was replayed since is expected"
    assert [row[:2] for row in rows(url)] == [
        ("behind", "PASSED"),
        ("kept", "PRINTED"),
        ("later", "LATER"),
        ("unheard", "PRINTED"),
    ]


def test_after_a_rewind_the_table_is_ahead(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic)
    send(
        cluster,
        topic,
        *(event(f"d{n}", version) for version in (1, 2) for n in range(9)),
        (b"d0", b"{"),
    )
    drained(runner(pipeline, once=True))
    with MaintenanceSession("contracts", pipeline, "tester") as maintenance_session:
        dead_letters.drop(maintenance_session, Selection(reason="NOT_JSON"), "noise", execute=True)
    prepared = rewind.prepare(cluster, "contracts", pipeline, places.FromStart())
    rewind.execute("contracts", pipeline, prepared, actor="tester", reason=None)
    report, listed = prove(pipeline)
    assert (report.in_step, counted(report), report.behind.documents) == (False, (0, 0, 0), 9)
    assert {row["kind"] for row in listed} == {"behind"}
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, listed, report.places_left_out) == (True, [], 1)


def test_a_recreated_topic_is_compared_by_its_own_offsets(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    """Ignore the positions of the old topic: the new one is shorter."""
    url = new_database("sqlite")
    pipeline = following(url, topic)
    send(cluster, topic, *(event(f"d{n}", version) for version in range(1, 9) for n in range(9)))
    drained(runner(pipeline, once=True))
    topics.delete(cluster, topic)
    topics.create(cluster, topic, 3)
    send(cluster, topic, *(event(f"d{n}", 20) for n in range(9)))
    prepared = rewind.prepare(
        cluster, "contracts", pipeline, places.FromStart(), accept_new_topic=True
    )
    rewind.execute("contracts", pipeline, prepared, actor="tester", reason=None)
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, listed, report.behind.documents) == (True, [], 0)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_weaker_guarantees_can_be_compared(
    guarantee: str,
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic, guarantee=guarantee)
    send(cluster, topic, event("a", 1), event("b", 1))
    drained(runner(pipeline, once=True))
    assert prove(pipeline)[0].in_step
    send(cluster, topic, event("a", 2, "AHEAD"))
    run_sql(url, "UPDATE contract_document SET print_status = 'AHEAD', print_version = 2")
    _, listed = prove(pipeline)
    assert [(row["document"], row["kind"]) for row in listed] == [
        ("a", "behind"),
        ("a", "behind"),
        ("b", "different"),
        ("b", "different"),
    ]


def test_a_record_that_spark_cannot_read_is_compared(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    name = f"{topic}-far"
    far = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
    topics.create(cluster, name, 1, config=far)
    url = new_database("sqlite")
    pipeline = following(url, name)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for number, timestamp_ms in enumerate((1_790_000_000_000, 2**62, 1_790_000_000_000)):
        key, body = event(f"d{number}", 1)
        producer.produce(name, key=key, value=json.dumps(body).encode(), timestamp=timestamp_ms)
    assert producer.flush(30) == 0
    drained(runner(pipeline, once=True))
    assert [row[0] for row in rows(url)] == ["d0", "d1", "d2"]
    run_sql(url, "DELETE FROM contract_document WHERE doc_no = 'd1'")
    report, listed = prove(pipeline, fix=FIX)
    assert (found(listed), report.in_step) == ([("d1", "missing", None)], True)


def test_the_progress_of_a_jobs_tasks_is_reported(spark: SparkSession) -> None:
    name, reported = f"counting {uuid.uuid4().hex}", list[tuple[str, int, int, str]]()
    tracker = spark.sparkContext.statusTracker()
    with spark_progress.followed(spark, name, lambda *progress: reported.append(progress)):
        assert len(spark.range(0, 8, 1, 4).collect()) == 8
        wait_until(lambda: (name, 4, 4, "tasks") in reported, "the progress of the job")
    spark.range(0, 8, 1, 2).collect()  # after the block: in no group
    assert spark_progress.tasks(tracker, name) == (4, 4)


def test_a_pipeline_that_cannot_be_compared_does_not_stop_the_others(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = new_database("sqlite")
    good, gone = following(url, topic), following(url, f"{topic}-gone")
    send(cluster, topic, event("a", 1))
    drained(runner(good, name="good", once=True))
    # the session that all tests share
    monkeypatch.setattr(session, "open_session", lambda *_, **__: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    declared = settings.Settings(pipelines={"gone": gone, "good": good})
    said: list[str] = []
    reports = job.run(
        declared, ["gone", "good"], cluster, SparkFiles(), job.Request(wait_s=0), say=said.append
    )
    assert [(report.pipeline, report.in_step) for report in itertools.islice(reports, 1)] == [
        ("good", True)
    ]
    assert any(line.startswith("gone: not compared: ") for line in said)
    with pytest.raises(errors.InstepError, match=f"{topic}-gone"):
        list(reports)
