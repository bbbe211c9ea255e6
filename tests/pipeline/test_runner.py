"""Test the runner with a real broker, a real Spark session and real databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from instep import errors
from instep.emit import Publisher, StatusEvent
from instep.kafka import groups, topics
from instep.kafka.connection import Cluster
from instep.operate import status
from instep.pipeline.micro_batch.flow import MicroBatchFlow
from instep.pipeline.runner import RunnerState
from tests.support.databases import run_sql
from tests.support.open_transaction import wait_until_ended
from tests.support.pipelines import drained, following, mostly_resident, on_both_engines
from tests.support.runs import Run, event, rows, send
from tests.support.waiting import wait_until

KINDS = ("sqlite", "postgres", "mariadb", "mysql")


def reasons(url: str) -> list[str]:
    return [
        row[0] for row in run_sql(url, "SELECT reason FROM instep_dead_letters ORDER BY reason")
    ]


@pytest.mark.parametrize(
    ("database_url", "both_engines"),
    [
        *((kind, "resident") for kind in KINDS),
        ("sqlite", "micro-batch"),
        *(pytest.param(kind, "micro-batch", marks=pytest.mark.long) for kind in KINDS[1:]),
    ],
    indirect=True,
)
def test_published_events_reach_the_table(
    database_url: str, both_engines: str, topic: str, cluster: Cluster, runner: Run
) -> None:
    with Publisher(cluster.bootstrap, topic, source="print-system") as publisher:
        for version, name in enumerate(("CREATED", "QUEUED", "PRINTED"), start=1):
            for number in range(200):
                at = datetime(2026, 11, 1, 8, version, tzinfo=UTC)
                publisher.send(
                    StatusEvent(document=f"d{number:03}", status=name, version=version, at=at)
                )
        publisher.delete("d000")
    pipeline = following(database_url, topic)
    drained(runner(pipeline, once=True))
    assert rows(database_url) == [(f"d{number:03}", "PRINTED", 3) for number in range(1, 200)]
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(601,)]
    found = status.read(cluster, "contracts", pipeline)
    assert (found.lag_records, found.lag_seconds, found.dead_letters, found.error) == (
        0,
        0.0,
        0,
        None,
    )
    assert groups.positions(cluster, groups.mirror_name("contracts"), topic) == {
        part.partition: part.next_offset for part in found.partitions
    }
    drained(runner(pipeline, once=True))
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(601,)]


@mostly_resident
def test_odd_records_are_quarantined_and_stop_nothing(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run
) -> None:
    url = new_database("sqlite")
    bad: list[tuple[bytes | None, Any]] = [
        (None, event("a", 1)[1]),
        (None, None),
        (b"\xff", event("a", 1)[1]),
        (b"a", b"\xff\xfe"),
        (b"a", b""),
        (b"a", b"{"),
        (b"a", event("x" * 256, 1)[1]),
        (b"a", event("a", 1, status=None)[1]),  # type: ignore[arg-type]
        (b"a", {"status": "X", "version": 1}),
    ]
    good = [
        event("😀", 1, "😀"),
        event("b", 1, note="x" * 1_000_000),
        event("c'; --", 1),
        *(event("many", n) for n in range(3_000)),
    ]
    send(cluster, topic, *bad, *good, *bad)
    name = """it's "quoted"; %s"""
    drained(runner(following(url, topic), name, once=True))
    assert rows(url) == [
        ("b", "PRINTED", 1),
        ("c'; --", "PRINTED", 1),
        ("many", "PRINTED", 2_999),
        ("😀", "😀", 1),
    ]
    once = [
        "FIELD_MISSING",
        "ID_TOO_LONG",
        "KEY_MISSING",
        "KEY_MISSING",
        "KEY_NOT_UTF8",
        "NOT_JSON",
        "NOT_JSON",
        "NOT_UTF8",
        "WRONG_TYPE",
    ]
    assert reasons(url) == sorted(once * 2)
    assert run_sql(url, "SELECT DISTINCT pipeline FROM instep_ledger") == [(name,)]


@on_both_engines
def test_nothing_of_an_aborted_transaction_arrives(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run
) -> None:
    url = new_database("sqlite")
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": topic,
            "partitioner": "murmur2",
        }
    )
    producer.init_transactions()
    for number, commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for document in range(5):
            key, value = event(f"d{number}-{document}", 1)
            producer.produce(topic, key=key, value=json.dumps(value).encode())
        producer.commit_transaction() if commit else producer.abort_transaction()
    wait_until_ended(cluster, topic, range(3))
    pipeline = following(url, topic)
    drained(runner(pipeline, once=True))
    assert [row[0] for row in rows(url)] == [
        f"d{number}-{document}" for number in (0, 2) for document in range(5)
    ]
    assert status.read(cluster, "contracts", pipeline).lag_records == 0
    send(cluster, topic, event("later", 1))
    assert status.read(cluster, "contracts", pipeline).lag_records != 0
    drained(runner(pipeline, once=True))
    assert rows(url)[-1][0] == "later"


@on_both_engines
def test_new_partitions_are_picked_up_while_it_runs(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run
) -> None:
    url = new_database("sqlite")
    send(cluster, topic, *(event(f"a{n}", 1) for n in range(30)))
    run = runner(following(url, topic))
    wait_until(lambda: len(rows(url)) == 30, "the first records")
    topics.grow(cluster, topic, 6)
    send(
        cluster,
        topic,
        *(event(f"b{n}", 1) for n in range(60)),
        partitioner="murmur2",
        **{"topic.metadata.refresh.interval.ms": 100},
    )
    wait_until(lambda: len(rows(url)) == 90, "the records of the new partitions")
    assert run_sql(url, "SELECT count(*) FROM instep_ledger") == [(6,)]
    assert (run.state, run.restarts) == (RunnerState.RUNNING, 0)


@on_both_engines
def test_a_second_run_fences_the_first(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run
) -> None:
    url = new_database("postgres")
    send(cluster, topic, event("a", 1))
    first = runner(following(url, topic))
    wait_until(lambda: len(rows(url)) == 1, "the first record")
    second = runner(following(url, topic))
    wait_until(lambda: second.state is RunnerState.RUNNING, "the second run")
    send(cluster, topic, *(event(f"b{n}", 1) for n in range(50)))
    wait_until(lambda: first.state is RunnerState.ENDED, "the first run to be fenced")
    assert isinstance(first.error, errors.Fenced)
    wait_until(lambda: len(rows(url)) == 51, "the second run to apply")
    assert run_sql(url, "SELECT count(*) FROM instep_history") == [(51,)]


@on_both_engines
def test_a_run_that_waited_does_not_take_the_pipeline_back(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run
) -> None:
    url = new_database("postgres")
    send(cluster, topic, event("a", 1))
    first = runner(following(url, topic))
    wait_until(lambda: len(rows(url)) == 1, "the first record")
    first.suspend()
    second = runner(following(url, topic))
    wait_until(lambda: second.state is RunnerState.RUNNING, "the second run")
    first.resume(first.engine)
    wait_until(lambda: first.state is RunnerState.ENDED, "the first run to be fenced")
    assert isinstance(first.error, errors.Fenced)
    send(cluster, topic, event("b", 1))
    wait_until(lambda: len(rows(url)) == 2, "the second run to apply")
    assert (second.state, second.restarts) == (RunnerState.RUNNING, 0)


@mostly_resident
def test_a_new_pipeline_starts_where_the_settings_say(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run
) -> None:
    send(cluster, topic, event("old", 1))
    moment = datetime.now(UTC) + timedelta(milliseconds=5)
    wait_until(lambda: datetime.now(UTC) > moment, "the next moment")
    latest = new_database("sqlite")
    drained(runner(following(latest, topic, start="latest"), "latest", once=True))
    send(cluster, topic, event("new", 1))
    drained(runner(following(latest, topic, start="latest"), "latest", once=True))
    assert [row[0] for row in rows(latest)] == ["new"]
    timed = new_database("sqlite")
    drained(runner(following(timed, topic, start=moment.isoformat()), "timed", once=True))
    assert [row[0] for row in rows(timed)] == ["new"]


@on_both_engines
def test_an_empty_topic_ends_at_once(
    new_database: Callable[[str], str], topic: str, runner: Run
) -> None:
    url = new_database("sqlite")
    drained(runner(following(url, topic), once=True))
    assert rows(url) == []
    assert run_sql(url, "SELECT count(*) FROM instep_ledger") == [(3,)]


@on_both_engines
def test_batches_stay_within_their_size(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run
) -> None:
    url = new_database("sqlite")
    send(cluster, topic, *(event(f"d{n}", 1) for n in range(1_000)))
    run = drained(runner(following(url, topic, batch_rows_max=300), once=True))
    assert run.progress.totals["applied"] == 1_000
    commits = run_sql(url, "SELECT count(DISTINCT committed_at) FROM instep_history")[0][0]
    assert commits >= 4


@on_both_engines
def test_counts_are_kept_through_idle_times(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run
) -> None:
    """Count batches after the report of an idle query: it must not make the next one look known."""
    url = new_database("sqlite")
    run = runner(following(url, topic))
    wait_until(lambda: run._flow is not None, "the start")
    if isinstance(run._flow, MicroBatchFlow):
        query = run._flow
        wait_until(lambda: query._last_report != "", "the report of an idle query")
    for number in range(3):
        send(cluster, topic, event(f"d{number}", 1))
        wait_until(lambda number=number: len(rows(url)) == number + 1, "the row")  # type: ignore[misc]
    wait_until(lambda: run.progress.totals["applied"] == 3, "the counts")
