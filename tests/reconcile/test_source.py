"""Test reconcile with another source than the topic: a file, or a query of the source's table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instep import errors
from instep.kafka.connection import Cluster
from instep.operate import row_source
from instep.pipeline.runner import Runner
from instep.reconcile import repair
from tests.support.databases import run_sql
from tests.support.pipelines import Prove, drained, following
from tests.support.reconciling import counted, found
from tests.support.runs import event, send

Run = Callable[..., Runner]


def test_the_table_is_compared_with_a_file_of_the_source(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
    tmp_path: Path,
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic)
    send(cluster, topic, *(event(f"d{n}", 1, "QUEUED") for n in range(6)))
    drained(runner(pipeline, once=True))
    file = tmp_path / "source.jsonl"
    bodies = {f"d{n}": event(f"d{n}", 1, "QUEUED")[1] for n in range(6)}

    def source_is(**changes: Any) -> row_source.RowSource:
        rows = {**bodies, **changes}
        file.write_text(
            "".join(f"{json.dumps(body)}\n" for body in rows.values() if body), encoding="utf-8"
        )
        return row_source.RowSource(file=str(file))

    report, listed = prove(pipeline, source=source_is())
    assert (report.in_step, report.documents, listed) == (True, 6, [])
    changes: dict[str, Any] = {
        "d0": event("d0", 2)[1],
        "d1": None,
        "d2": {"doc_id": "d2", "$delete": True},
    }
    changed = source_is(**changes, d3={**bodies["d3"], "version": "x"}, e=event("e", 1)[1])
    send(cluster, topic, event("d0", 2), event("e", 1))
    report, listed = prove(pipeline, source=changed)
    assert (report.in_step, counted(report), report.behind.documents, report.unreadable) == (
        False,
        (0, 2, 0),
        2,
        1,
    )
    assert [(row["document"], row["kind"]) for row in listed] == [
        ("d0", "behind"),
        ("d0", "behind"),
        ("d1", "extra"),
        ("d2", "extra"),
        ("d3", "unreadable"),
        ("e", "behind"),
    ]
    assert "WRONG_TYPE: version" in listed[4]["expected"]
    assert listed[3]["place"] == {"row": 2}
    report, _ = prove(
        pipeline, source=changed, fix=repair.RepairRequest(execute=True, actor="tester")
    )
    assert report.repaired is not None
    assert (report.repaired.deleted, report.repaired.left_alone) == (1, 1)
    assert run_sql(url, "SELECT document, outcome FROM instep_decisions") == [("d2", "deleted")]
    drained(runner(pipeline, once=True))
    report, listed = prove(
        pipeline, source=source_is(d0=event("d0", 2)[1], d2=None, e=event("e", 1)[1])
    )
    assert (report.in_step, listed) == (True, [])
    file.write_text("[]", encoding="utf-8")
    for named, words in (
        (file, r"source\.jsonl, line 1: not a JSON object"),
        (tmp_path / "none.csv", "cannot be read"),
    ):
        with pytest.raises(errors.SettingsError, match=words):
            prove(pipeline, source=row_source.RowSource(file=str(named)))


def test_the_table_is_compared_with_a_csv_file_of_the_source(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
    tmp_path: Path,
) -> None:
    pipeline = following(
        new_database("sqlite"),
        topic,
        event={"status": "status", "order": "version"},
        columns={"print_status": "status", "print_version": "version"},
    )
    send(cluster, topic, *(event(f"d{n}", n) for n in range(3)))
    drained(runner(pipeline, once=True))
    file = tmp_path / "source.csv"
    file.write_text(
        "id,status,version\nd0,PRINTED,0\nd1,PRINTED,1\nd2,QUEUED,2\n", encoding="utf-8"
    )
    report, listed = prove(pipeline, source=row_source.RowSource(file=str(file), key="id"))
    assert (found(listed), report.documents_in_step) == ([("d2", "different", "print_status")], 2)


@pytest.mark.parametrize(
    "database_url",
    ["sqlite", "postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.long)],
    indirect=True,
)
def test_the_table_is_compared_with_a_query_of_the_source(
    database_url: str, topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    """Query the source's table beside the target's, with different types."""
    pipeline = following(database_url, topic)
    send(cluster, topic, *(event(f"d{n}", n + 1) for n in range(4)))
    drained(runner(pipeline, once=True))
    at = "TIMESTAMP" if database_url.startswith("postgres") else "DATETIME"
    run_sql(
        database_url,
        f"CREATE TABLE prints (no VARCHAR(20), state VARCHAR(20), version BIGINT, changed {at})",
        *(
            f"INSERT INTO prints VALUES ('d{n}', 'PRINTED', {n + 1}, '2026-09-21 14:13:20')"
            for n in range(4)
        ),
    )
    query = (
        "SELECT no AS doc_id, state AS status, version, changed AS updated_at FROM prints"
        " WHERE state LIKE '%:%' OR 1 = 1"
    )
    prints = row_source.RowSource(url=database_url, query=query)
    report, listed = prove(pipeline, source=prints)
    assert (report.in_step, report.documents, listed) == (True, 4, [])
    run_sql(
        database_url,
        "UPDATE prints SET state = 'LOST', version = 9 WHERE no = 'd3'",
        "DELETE FROM prints WHERE no = 'd0'",
    )
    report, listed = prove(pipeline, source=prints)
    assert found(listed) == [
        ("d0", "extra", None),
        ("d3", "different", "print_status"),
        ("d3", "different", "print_version"),
    ]
    for wrong, words in (
        ("SELECT no FROM prints", "no column 'doc_id'"),
        ("SELECT 1 FROM nowhere", "nowhere"),
    ):
        with pytest.raises(errors.InstepError, match=words):
            prove(pipeline, source=row_source.RowSource(url=database_url, query=wrong))


def test_a_table_with_a_composite_key_is_compared_and_repaired(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
    tmp_path: Path,
) -> None:
    """Compare with the topic and with a CSV file, whose integers are as in the table."""
    url = new_database("sqlite")
    pipeline = following(
        url,
        topic,
        key=["tenant", "no"],
        key_type=["text", "bigint"],
        event={"document": ["tenant", "no"], "status": "status", "order": "version"},
        columns={"print_status": "status", "print_version": "version"},
    )
    body = {"tenant": "t", "status": "PRINTED", "version": 1}
    send(
        cluster, topic, *((f"t/{n}".encode(), {**body, "no": n}) for n in range(4)), (b"t/3", None)
    )
    drained(runner(pipeline, once=True))
    run_sql(
        url,
        "UPDATE contract_document SET print_status = 'LOST' WHERE no = 1",
        "DELETE FROM contract_document WHERE no = 2",
    )
    report, listed = prove(pipeline, fix=repair.RepairRequest(execute=True, actor="tester"))
    assert found(listed) == [("t/1", "different", "print_status"), ("t/2", "missing", None)]
    assert report.repaired is not None
    assert report.repaired.left_alone == 0
    file = tmp_path / "source.csv"
    file.write_text(
        "tenant,no,status,version\nt,0,PRINTED,1\nt,1,PRINTED,1\nt,2,PRINTED,1\n", encoding="utf-8"
    )
    report, listed = prove(pipeline, source=row_source.RowSource(file=str(file)))
    assert (report.in_step, report.documents, listed) == (True, 3, [])
