"""Test that each table of a pipeline with several is written by both engines, compared, repaired.

The events come through a real broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from instep.kafka.connection import Cluster
from instep.pipeline.runner import Runner
from instep.reconcile import repair
from tests.support.databases import run_sql
from tests.support.pipelines import Prove, both_engines, drained, following, mostly_resident
from tests.support.reconciling import counted
from tests.support.runs import event, send

__all__ = ["both_engines"]

Run = Callable[..., Runner]

LINES: dict[str, Any] = {
    "table": "status_change",
    "line_key": "version",
    "columns": {"version": "version", "status": "status"},
}
FIX = repair.RepairRequest(execute=True, actor="tester")


def lines(url: str) -> list[Any]:
    query = "SELECT doc_no, version, status FROM status_change ORDER BY doc_no, version"
    return run_sql(url, query)


@mostly_resident
def test_damage_of_each_table_is_found_and_repaired(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    url = new_database("sqlite")
    pipeline = following(
        url, topic, tables=[LINES, {**LINES, "table": "every", "order": "version"}]
    )
    log = [event(f"d{n}", version, f"S{version}") for version in (2, 1, 3) for n in range(6)]
    send(cluster, topic, *log, (b"d5", None), event("d5", 9, "S9"), (b"d4", b"{"))
    drained(runner(pipeline, once=True))
    written = lines(url)
    assert written == [
        *((f"d{n}", version, f"S{version}") for n in range(5) for version in (2, 3)),
        ("d5", 9, "S9"),
    ]
    assert run_sql(url, "SELECT count(*) FROM every") == [(3 * 5 + 1,)]
    for number in (None, 0, 1):
        report, listed = prove(pipeline, number=number)
        assert (report.in_step, listed) == (True, []), report
    assert (report.table, report.documents) == ("every", 16)
    run_sql(
        url,
        "DELETE FROM status_change WHERE doc_no = 'd1' AND version = 2",
        "UPDATE status_change SET status = 'LOST' WHERE doc_no = 'd2' AND version = 3",
        "INSERT INTO status_change (doc_no, version, status) VALUES ('d3', 7, 'INVENTED')",
        "INSERT INTO status_change (doc_no, version, status) VALUES ('d5', 3, 'DELETED')",
        "INSERT INTO status_change (doc_no, version, status) VALUES ('own', 1, 'OWN')",
    )
    report, listed = prove(pipeline, number=0)
    assert counted(report) == (1, 2, 1)
    assert [(row["document"], row["kind"]) for row in listed] == [
        ("d1/2", "missing"),
        ("d2/3", "different"),
        ("d3/7", "extra"),
        ("d5/3", "extra"),
    ]
    assert report.not_ours == 1
    report, _ = prove(pipeline, number=0, fix=FIX)
    assert report.repaired is not None
    assert (report.repaired.done, report.repaired.first_left_alone[0][0]) == (3, "d3/7")
    full = repair.RepairRequest(execute=True, delete_extra=True, actor="tester")
    report, _ = prove(pipeline, number=0, fix=full)
    assert lines(url) == [*written, ("own", 1, "OWN")]
    for number in (None, 0, 1):
        assert prove(pipeline, number=number)[0].in_step
    decisions = run_sql(url, "SELECT DISTINCT document, outcome FROM instep_decisions ORDER BY 1")
    assert decisions == [
        ("d1", "inserted"),
        ("d2", "written"),
        ("d3", "deleted"),
        ("d5", "deleted"),
    ]
