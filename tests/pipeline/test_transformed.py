"""Pipelines with a transformation: from the topic to the table, and what operators do with them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Producer

from instep import errors, settings
from instep.kafka import places, topics
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster
from instep.operate import dead_letters, log_replay, rewind
from instep.pipeline import flow_runner
from instep.pipeline.apply import release
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.pipeline.runner import Runner, RunnerState
from instep.pipeline.transformed.transformer import EventPlan, Transformer
from instep.pipeline.transformed.worker import RecordSource
from instep.sinks import inspection, preparation
from instep.sinks.journal_entries import Selection
from tests.support.databases import run_sql
from tests.support.pipelines import OwnRunner, Prove, drained, following
from tests.support.producing import IN_ORDER
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "transform-records.md").read_text(encoding="utf-8")
SINK_GUIDE = "docs/guides/write-a-spark-stream.md"
FILTERED = """
SELECT doc.* FROM (SELECT from_json(value, 'doc_id STRING, status STRING, version BIGINT') AS doc
FROM records) WHERE doc.status <> 'DRAFT'
"""
IN_STEPS = """
WITH kept AS (SELECT value FROM records WHERE key IS NOT NULL),
parsed AS (
    SELECT from_json(value, 'doc_id STRING, status STRING, version BIGINT') AS doc FROM kept
),
named AS (SELECT doc.doc_id, doc.status AS state, doc.version FROM parsed)
SELECT doc_id, state AS status, version FROM named WHERE state <> 'DRAFT'
"""
SPLIT = """
SELECT item.no AS doc_id, item.status AS status, CAST(doc.version AS BIGINT) AS version,
       item.status = 'GONE' AS gone
FROM (SELECT from_json(value, 'version STRING, items ARRAY<STRUCT<no STRING, status STRING>>')
      AS doc FROM records)
LATERAL VIEW explode(doc.items) AS item
"""
EVENT = {"document": "doc_id", "status": "status", "order": "version"}
COLUMNS = {"print_status": "status", "print_version": "version"}


def transforming(url: str, topic: str, sql: str, **transform: Any) -> settings.Pipeline:
    declared = {"sql": sql, **transform}
    return following(url, topic, event=EVENT, columns=COLUMNS, transform=declared)


def publish(cluster: Cluster, topic: str, values: Iterable[Any], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for number, value in enumerate(values):
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, text, f"key-{number}", partition=partition)
    assert producer.flush(30) == 0


def status(name: str, status: str, version: int) -> dict[str, Any]:
    return {"doc_id": name, "status": status, "version": version}


def order(version: Any, *items: tuple[str, str]) -> dict[str, Any]:
    return {"version": version, "items": [{"no": no, "status": status} for no, status in items]}


def table(url: str) -> list[Any]:
    return run_sql(
        url, "SELECT doc_no, print_status, print_version FROM contract_document ORDER BY doc_no"
    )


def ledger(url: str) -> dict[int, int]:
    return dict(run_sql(url, "SELECT partition, next_offset FROM instep_ledger"))


@pytest.mark.parametrize("sql", [FILTERED, IN_STEPS], ids=["filtered", "in-steps"])
def test_records_without_a_result_move_the_ledger(
    sql: str,
    new_database: Callable[[str], str],
    cluster: Cluster,
    topic: str,
    runner: Callable[..., Runner],
) -> None:
    url = new_database("sqlite")
    publish(cluster, topic, [status("a", "DRAFT", 1), status("a", "PRINTED", 2)])
    publish(cluster, topic, [status("b", "SENT", 1), *[status("b", "DRAFT", 2)] * 3], partition=1)
    run = drained(runner(transforming(url, topic, sql), once=True))
    assert table(url) == [("a", "PRINTED", 2), ("b", "SENT", 1)]
    assert ledger(url) == {0: 2, 1: 4, 2: 0}
    assert run.progress.totals["records"] == 6
    assert run.progress.totals["applied"] == 2


def test_a_record_becomes_several_events(
    new_database: Callable[[str], str], cluster: Cluster, topic: str, runner: Callable[..., Runner]
) -> None:
    url = new_database("sqlite")
    publish(
        cluster,
        topic,
        [
            order(1, ("a", "NEW"), ("b", "NEW"), ("c", "NEW")),
            order(2, ("b", "GONE"), ("a", "SENT")),
        ],
    )
    run = drained(runner(transforming(url, topic, SPLIT, delete_when="gone"), once=True))
    assert table(url) == [("a", "SENT", 2), ("c", "NEW", 1)]
    assert run.progress.totals["records"] == 2
    history = run_sql(
        url, 'SELECT topic, "offset", document, verdict FROM instep_history ORDER BY 2, 1'
    )
    assert history == [
        (topic, 0, "a", "applied"),
        (f"{topic}#1", 0, "b", "applied"),
        (f"{topic}#2", 0, "c", "applied"),
        (topic, 1, "b", "applied"),
        (f"{topic}#1", 1, "a", "applied"),
    ]


def test_only_the_record_that_fails_is_a_dead_letter(
    new_database: Callable[[str], str], cluster: Cluster, topic: str, runner: Callable[..., Runner]
) -> None:
    url = new_database("sqlite")
    publish(
        cluster, topic, [order(1, ("a", "NEW")), order("two", ("b", "NEW")), order(3, ("c", "NEW"))]
    )
    drained(runner(transforming(url, topic, SPLIT), once=True))
    assert table(url) == [("a", "NEW", 1), ("c", "NEW", 3)]
    [(offset, reason, detail)] = run_sql(
        url, 'SELECT "offset", reason, detail FROM instep_dead_letters'
    )
    assert (offset, reason) == (1, "TRANSFORMATION_FAILED")
    assert "CAST_INVALID_INPUT" in detail


def test_a_running_pipeline_follows_the_topic(
    new_database: Callable[[str], str], cluster: Cluster, topic: str, runner: Callable[..., Runner]
) -> None:
    url = new_database("sqlite")
    publish(cluster, topic, [status("a", "NEW", 1)])
    run = runner(transforming(url, topic, FILTERED))
    wait_until(lambda: bool(table(url)), "the first event")
    publish(cluster, topic, [status("a", "SENT", 2)])
    wait_until(lambda: table(url) == [("a", "SENT", 2)], "the second event")
    run.stop(patience_s=60)
    assert run.error is None


def test_fields_of_the_event_may_be_headers_of_the_record(
    new_database: Callable[[str], str],
    cluster: Cluster,
    topic: str,
    runner: Callable[..., Runner],
    prove: Prove,
) -> None:
    """The statement does not use them. Of one name, the last header counts."""
    url = new_database("sqlite")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    sent: list[tuple[str, list[tuple[str, str | bytes | None]]]] = [
        ("a", [("no", b"0"), ("no", b"7"), ("tenant", b"north")]),
        ("b", [("no", b"8")]),
        ("c", [("no", "né".encode()), ("tenant", None)]),
    ]
    for name, headers in sent:
        producer.produce(
            topic, json.dumps(status(name, "NEW", 1)), "key", partition=0, headers=headers
        )
    producer.produce(topic, json.dumps(status("d", "NEW", 1)), "key", partition=0)
    assert producer.flush(30) == 0
    pipeline = following(
        url,
        topic,
        event={"document": "doc_id", "status": "@header.no", "order": "version"},
        columns={"print_status": "@header.no", "tenant": "@header.tenant"},
        transform={"sql": FILTERED},
    )

    drained(runner(pipeline, once=True))

    select = "SELECT doc_no, print_status, tenant FROM contract_document ORDER BY doc_no"
    assert run_sql(url, select) == [("a", "7", "north"), ("b", "8", None), ("c", "né", None)]
    select = 'SELECT "offset", detail FROM instep_dead_letters'
    [(offset, detail)] = run_sql(url, select)
    assert (offset, "@header.no" in detail) == (3, True)
    report, _ = prove(pipeline)
    assert report.in_step


def test_a_topic_that_is_replaced_during_the_run_is_read_only_after_a_decision(
    new_database: Callable[[str], str],
    cluster: Cluster,
    topic: str,
    runner: Callable[..., Runner],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks keep a reader, which has read the former topic. The runner's checks are off."""
    monkeypatch.setattr(flow_runner, "CHECK_INTERVAL_S", 3_600.0)
    url = new_database("sqlite")
    publish(cluster, topic, [status("a", "NEW", 1)])
    pipeline = transforming(url, topic, FILTERED)
    run = runner(pipeline)
    wait_until(lambda: table(url) == [("a", "NEW", 1)], "the first record")
    topics.delete(cluster, topic)
    topics.create(cluster, topic, 3)
    publish(cluster, topic, [status(f"b{number}", "NEW", 1) for number in range(300)])
    wait_until(lambda: run.state is RunnerState.ENDED, "the pipeline to notice")
    assert isinstance(run.error, (errors.TopicReplaced, errors.TopicGone)), run.error
    assert table(url) == [("a", "NEW", 1)]

    plan = rewind.prepare(cluster, "contracts", pipeline, places.FromStart(), accept_new_topic=True)
    rewind.execute("contracts", pipeline, plan, actor="tester", reason="replaced")
    drained(runner(pipeline, once=True))
    assert len(table(url)) == 301


def test_a_broker_that_restarts_does_not_end_a_running_pipeline(
    new_database: Callable[[str], str], spark: SparkSession, tmp_path: Path
) -> None:
    """Tasks keep a reader, whose connections the broker's end closes."""
    url = new_database("sqlite")
    with (
        LocalCluster() as servers,
        Cluster(settings.Kafka(), servers.bootstrap) as cluster,
    ):
        topics.create(cluster, "restarts", 3)
        publish(cluster, "restarts", [status("a", "NEW", 1)])
        pipeline = transforming(url, "restarts", FILTERED)
        preparation.prepare(pipeline, add_columns=True)
        run = OwnRunner("contracts", pipeline, cluster, spark, tmp_path / "run", once=False)

        def wait_for(version: int) -> None:
            wait_until(lambda: table(url) == [("a", "NEW", version)], f"record {version}")

        run.start()
        try:
            wait_for(1)
            for version in range(2, 4):
                servers.kill()
                servers.start()
                publish(cluster, "restarts", [status("a", "NEW", version)])
                wait_for(version)
        finally:
            run.stop(patience_s=60)
        assert run.error is None


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"sql": "SELECT key FROM records"}, "does not yield the column 'doc_id'", ""),
        ({"sql": "SELECT count(*) AS doc_id FROM records"}, "an aggregation combines", SINK_GUIDE),
    ],
)
def test_a_transformation_that_does_not_fit_ends_the_start(
    new_database: Callable[[str], str],
    cluster: Cluster,
    topic: str,
    runner: Callable[..., Runner],
    changes: dict[str, str],
    what: str,
    remedy: str,
) -> None:
    run = runner(transforming(new_database("sqlite"), topic, **changes), once=True)
    with pytest.raises(errors.SettingsError, match=what) as caught:
        drained(run)
    assert remedy in caught.value.remedy
    assert not remedy or (ROOT / remedy).is_file()


def in_guide(number: int, url: str, topic: str, **files: Path) -> settings.Pipeline:
    """Return a pipeline as printed in the guide, with another database, topic and folder."""
    text = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)[number]
    for name, file in files.items():
        text = text.replace(f"{name}.json", str(file))
    pipeline = settings.parse(text, {}).pipelines["orders"]
    return msgspec.structs.replace(pipeline, target=url, topic=topic)


def shop_order(version: int, *lines: tuple[str, str, int | None]) -> dict[str, Any]:
    named = [dict(zip(("no", "state", "printer"), one, strict=True)) for one in lines]
    return {"version": version, "lines": named}


@pytest.mark.parametrize(("language", "kind"), [("sql", "postgres"), ("python", "mariadb")])
def test_the_guides_transformation_splits_records_and_joins_a_table(
    language: str,
    kind: str,
    new_database: Callable[[str], str],
    cluster: Cluster,
    topic: str,
    runner: Callable[..., Runner],
    prove: Prove,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, printers = new_database(kind), tmp_path / "printers.json"
    printers.write_text('{"id": 1, "name": "hall"}\n{"id": 2, "name": "cellar"}\n')
    run_sql(
        url,
        "CREATE TABLE order_line (line_no VARCHAR(20) PRIMARY KEY, state VARCHAR(20),"
        " version BIGINT, printer VARCHAR(20))",
    )
    publish(
        cluster,
        topic,
        [
            shop_order(1, ("a", "NEW", 1), ("b", "DRAFT", 1), ("c", "NEW", None)),
            shop_order(2, ("b", "NEW", 2), ("a", "SENT", 9)),
        ],
    )
    pipeline = in_guide(0, url, topic, printers=printers)
    if language == "python":
        [example] = re.findall(r"^```py\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
        module = example.replace("printers.json", str(printers))
        (tmp_path / "shop_events.py").write_text(module)
        monkeypatch.chdir(tmp_path)
        transform = settings.Transform(python="shop_events:lines")
        pipeline = msgspec.structs.replace(pipeline, transform=transform)

    drained(runner(pipeline, once=True))

    found = run_sql(url, "SELECT line_no, state, version, printer FROM order_line ORDER BY 1")
    assert found == [("a", "SENT", 2, None), ("b", "NEW", 2, "cellar"), ("c", "NEW", 1, None)]
    report, _ = prove(pipeline)
    assert report.in_step


def test_the_guides_deletes_work(
    new_database: Callable[[str], str], cluster: Cluster, topic: str, runner: Callable[..., Runner]
) -> None:
    url = new_database("sqlite")
    run_sql(url, "CREATE TABLE orders (order_no VARCHAR(20) PRIMARY KEY, state VARCHAR(20))")
    publish(cluster, topic, [{"state": "NEW"}, {"state": "NEW"}])
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, None, "key-0", partition=0)
    assert producer.flush(30) == 0

    drained(runner(in_guide(1, url, topic), once=True))

    assert run_sql(url, "SELECT order_no, state FROM orders") == [("key-1", "NEW")]


@pytest.fixture
def session(spark: SparkSession) -> Iterator[Callable[[settings.Pipeline], MaintenanceSession]]:
    """Return a function that opens maintenance sessions, which transform in the shared session."""
    with contextlib.ExitStack() as opened:

        def make(pipeline: settings.Pipeline) -> MaintenanceSession:
            assert pipeline.transform is not None
            mapping = inspection.inspect("contracts", pipeline).mapping
            source = RecordSource(settings.Kafka(), "", pipeline.topic)
            plan = EventPlan(spark, source, "contracts", pipeline.transform, mapping)
            maintenance = MaintenanceSession(
                "contracts", pipeline, "tester", transform=Transformer(plan)
            )
            return opened.enter_context(maintenance)

        yield make


Session = Callable[[settings.Pipeline], MaintenanceSession]


def with_a_failure(
    new_database: Callable[[str], str], cluster: Cluster, topic: str, runner: Callable[..., Runner]
) -> str:
    """Run a splitting pipeline over a record on which its transformation fails."""
    url = new_database("sqlite")
    values = [
        order(1, ("a", "NEW"), ("b", "NEW")),
        order("two", ("a", "SENT"), ("c", "NEW")),
        order(3, ("b", "SENT")),
    ]
    publish(cluster, topic, values)
    drained(runner(transforming(url, topic, SPLIT), once=True))
    assert table(url) == [("a", "NEW", 1), ("b", "SENT", 3)]
    return url


def test_replay_and_reconcile_transform_the_log_as_the_pipeline_does(
    new_database: Callable[[str], str],
    cluster: Cluster,
    topic: str,
    runner: Callable[..., Runner],
    session: Session,
    prove: Prove,
) -> None:
    url = with_a_failure(new_database, cluster, topic, runner)
    pipeline = transforming(url, topic, SPLIT)
    report, _ = prove(pipeline)
    assert report.in_step
    run_sql(url, "DELETE FROM contract_document WHERE doc_no = 'b'")
    report, [difference] = prove(pipeline)
    assert (difference["kind"], difference["document"]) == ("missing", "b")
    opened = session(pipeline)
    [change] = log_replay.replay(
        opened, cluster, log_replay.resolve_range(opened, cluster), execute=True
    )
    assert str(change.position) == "0:2"
    assert table(url) == [("a", "NEW", 1), ("b", "SENT", 3)]


def test_a_dead_letter_is_replayed_once_the_transformation_is_corrected(
    new_database: Callable[[str], str],
    cluster: Cluster,
    topic: str,
    runner: Callable[..., Runner],
    session: Session,
    prove: Prove,
) -> None:
    url = with_a_failure(new_database, cluster, topic, runner)

    def replayed(sql: str) -> list[tuple[str, str]]:
        opened = session(transforming(url, topic, sql))
        changes = dead_letters.replay(opened, Selection(), lambda *_: set(), execute=True)
        return [(str(change.position), change.verdict) for change in changes]

    assert replayed(SPLIT) == [("0:1", "dead")]
    corrected = SPLIT.replace("CAST(doc.version AS BIGINT)", "if(doc.version = 'two', 2, 0)")
    assert replayed(corrected) == [("0:1", "applied"), ("0:1#1", "applied")]
    assert table(url) == [("a", "SENT", 2), ("b", "SENT", 3), ("c", "NEW", 2)]
    assert run_sql(url, "SELECT count(*) FROM instep_dead_letters") == [(0,)]
    either = "coalesce(try_cast(doc.version AS BIGINT), 2)"
    report, _ = prove(
        transforming(url, topic, SPLIT.replace("CAST(doc.version AS BIGINT)", either))
    )
    assert report.in_step


def test_a_parked_result_is_released_alone(
    new_database: Callable[[str], str],
    cluster: Cluster,
    topic: str,
    runner: Callable[..., Runner],
    session: Session,
) -> None:
    url = new_database("sqlite")
    publish(cluster, topic, [order(1, ("a", "NEW"), ("b", "PRINTED AND SENT"), ("c", "NEW"))])
    publish(cluster, topic, [order(2, ("b", "SENT"))])
    run_sql(
        url,
        "CREATE TABLE contract_document (doc_no VARCHAR(40) PRIMARY KEY,"
        " print_status VARCHAR(8), print_version BIGINT)",
    )
    drained(runner(transforming(url, topic, SPLIT), once=True))
    assert [row[0] for row in table(url)] == ["a", "c"]
    assert run_sql(url, 'SELECT topic, "offset", document FROM instep_parked ORDER BY 2') == [
        (f"{topic}#1", 0, "b"),
        (topic, 1, "b"),
    ]
    shorter = SPLIT.replace("item.status AS status", "left(item.status, 7) AS status")
    changes = release.release(session(transforming(url, topic, shorter)), "b", execute=True)
    assert [(str(one.position), one.verdict) for one in changes] == [
        ("0:0#1", "applied"),
        ("0:1", "applied"),
    ]
    assert table(url)[1] == ("b", "SENT", 2)
