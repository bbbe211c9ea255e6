"""Test headers, offsets and partitions as fields: in the flow, parked, and in the proof."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from instep.document.decoding import Record
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.pipeline.apply import release
from instep.pipeline.apply.maintenance import MaintenanceSession
from tests.support.databases import declare, run_sql
from tests.support.pipelines import Prove, drained, following
from tests.support.producing import IN_ORDER
from tests.support.transactions import Open, apply, begun

COLUMNS: dict[str, Any] = {
    "print_status": "status",
    "tenant": "@header.tenant",
    "place": "@offset",
    "part": "@partition",
    "source": {"value": "print"},
}
EVENT = {"status": "status", "at": "@header.ce_time"}
BEYOND_SPARK_MS = 9_300_000_000_000_000


def test_pipeline_and_reconcile_read_record_fields(
    new_database: Callable[[str], str], cluster: Cluster, runner: Callable[..., Any], prove: Prove
) -> None:
    url = new_database("sqlite")
    topic = f"fields-{uuid.uuid4().hex[:8]}"
    topics.create(
        cluster,
        topic,
        2,
        config={"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"},
    )
    pipeline = following(url, topic, event=EVENT, columns=COLUMNS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})

    def send(name: str, tenant: bytes | None, **further: Any) -> None:
        headers: Any = [
            ("tenant", b"first"),
            ("tenant", tenant),
            ("ce_time", b"2026-11-01T08:00:00Z"),
        ]
        producer.produce(
            topic,
            json.dumps({"status": name}).encode(),
            name.encode(),
            partition=1,
            headers=headers,
            **further,
        )
        producer.flush()

    send("a", b"north")
    send("b", None)
    drained(runner(pipeline, once=True))
    expected = [("a", "a", "north", 0, 1, "print"), ("b", "b", None, 1, 1, "print")]
    select = (
        "SELECT doc_no, print_status, tenant, place, part, source FROM contract_document"
        " ORDER BY doc_no"
    )
    assert run_sql(url, select) == expected
    report, listed = prove(pipeline)
    assert (report.in_step, report.documents_in_step, listed) == (True, 2, [])

    # Spark cannot read it: the driver applies and proves it
    send("c", b"south", timestamp=BEYOND_SPARK_MS)
    drained(runner(pipeline, once=True))
    assert run_sql(url, select) == [*expected, ("c", "c", "south", 2, 1, "print")]
    report, listed = prove(pipeline)
    assert (report.in_step, report.documents_in_step, listed) == (True, 3, [])
    run_sql(url, "UPDATE contract_document SET tenant = 'x' WHERE doc_no = 'c'")
    assert [row["column"] for row in prove(pipeline)[1]] == ["tenant"]


def test_a_parked_record_keeps_its_record_fields(database_url: str, open_sink: Open) -> None:
    pipeline = declare(database_url, event=EVENT, columns=COLUMNS, missing="park")
    sink = begun(open_sink(pipeline))
    headers = (("tenant", "né".encode()), ("ce_time", b"2026-11-01T08:00:00Z"), ("empty", None))
    apply(sink, [Record(0, 1, b"d1", b'{"status":"X"}', 0, headers)])
    run_sql(database_url, "INSERT INTO contract_document (doc_no) VALUES ('d1')")
    with MaintenanceSession("contracts", pipeline, "ann") as session:
        assert [line.verdict for line in release.release(session, "d1", execute=True)] == [
            "applied"
        ]
    found = run_sql(
        database_url, "SELECT print_status, tenant, place, part, source FROM contract_document"
    )
    assert found == [("X", "né", 0, 0, "print")]
