"""Test reconcile after a load: with the source that was loaded, and with the topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from instep.kafka.connection import Cluster
from instep.operate.row_source import RowSource
from instep.pipeline.runner import Runner
from instep.reconcile import repair
from tests.support.databases import run_sql
from tests.support.loading import counts, loaded, row, write_lines
from tests.support.pipelines import Prove, drained, following
from tests.support.reconciling import counted, found
from tests.support.runs import event, rows, send

Run = Callable[..., Runner]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_load_agrees_with_its_source_and_with_the_topic(
    database_url: str,
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
    tmp_path: Path,
) -> None:
    pipeline = following(database_url, topic)
    send(
        cluster,
        topic,
        event("newer", 7),
        event("older", 1),
        event("partial", 1),
        event("deleted", 4),
        (b"deleted", None),
        (b"never", None),
        event("renewed", 1),
        (b"renewed", None),
        event("untouched", 1),
    )
    drained(runner(pipeline, once=True))
    names = ("loaded", "newer", "older", "partial", "deleted", "never", "renewed")
    file = write_lines(
        tmp_path / "source.jsonl",
        [*(row(name, 3) for name in names), "{", {"doc_id": "loaded", "$delete": True}],
    )
    report = loaded(pipeline, file)
    applied = {"records": 9, "applied": 4, "stale": 3, "ignored": 1, "dead": 1}
    assert counts(report) == applied
    source = RowSource(file=str(file))
    later = event("partial", 5)[1]
    del later["updated_at"]
    send(cluster, topic, event("loaded", 9), (b"partial", later), event("new", 1))
    drained(runner(pipeline, once=True))
    compared, listed = prove(pipeline, source=source, loaded=True)
    assert (compared.in_step, listed) == (True, [])
    assert (compared.documents, compared.documents_in_step, compared.not_in_log) == (7, 2, 5)
    compared, listed = prove(pipeline)  # with the topic
    assert (compared.in_step, listed) == (True, [])

    run_sql(
        database_url,
        "UPDATE contract_document SET print_status = 'LOST'"
        " WHERE doc_no IN ('partial', 'older', 'untouched')",
        "DELETE FROM contract_document WHERE doc_no IN ('loaded', 'renewed')",
    )
    compared, listed = prove(pipeline, source=source, loaded=True)
    assert found(listed) == [
        ("loaded", "missing", None),
        ("older", "different", "print_status"),
        ("renewed", "missing", None),
    ]
    compared, listed = prove(pipeline, fix=repair.RepairRequest(execute=True, actor="tester"))
    assert found([one for one in listed if one["kind"] != "left_alone"]) == [
        ("loaded", "missing", None),
        ("partial", "different", "print_status"),
        ("untouched", "different", "print_status"),
    ]
    assert compared.repaired is not None
    assert counted(compared) == (1, 0, 2)
    assert (compared.repaired.written, compared.repaired.left_alone) == (2, 1)
    assert ("partial", "PRINTED", 5) in rows(database_url)
