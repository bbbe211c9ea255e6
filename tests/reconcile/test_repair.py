"""Test repair on real databases: what is left alone, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from instep import errors, sinks
from instep.document import guard
from instep.document.decoding import Event, Record
from instep.document.reasons import Reason, Refusal
from instep.kafka.connection import Cluster
from instep.pipeline.runner import Runner
from instep.reconcile import repair
from instep.sinks import inspection
from tests.support.databases import run_sql
from tests.support.pipelines import Prove, drained, following
from tests.support.runs import event, rows, send

Run = Callable[..., Runner]

FIX = repair.RepairRequest(execute=True, actor="tester")
LONG = pytest.mark.long


class Meddling(repair.Repairer):
    """A repairer with an action between the comparison and the repair."""

    action: Callable[[], Any]

    def repair(self, *arguments: Any) -> repair.RepairResult:
        type(self).action()
        return super().repair(*arguments)


def test_rows_that_changed_since_the_comparison_are_not_repaired(
    database_url: str,
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = following(database_url, topic)
    send(
        cluster,
        topic,
        *(event(name, 1) for name in ("by-event", "by-sql", "gone", "parked", "plain")),
    )
    drained(runner(pipeline, once=True))
    run_sql(
        database_url,
        "UPDATE contract_document SET print_status = 'LOST'",
        "DELETE FROM contract_document WHERE doc_no = 'gone'",
    )
    sink = sinks.open_sink(inspection.inspect("contracts", pipeline))

    def meddle() -> None:
        send(cluster, topic, event("by-event", 2), (b"gone", None))
        drained(runner(pipeline, once=True))
        run_sql(
            database_url, "UPDATE contract_document SET print_version = 3 WHERE doc_no = 'by-sql'"
        )
        one = guard.Parked(
            Event(0, "parked", 2, None, None, ()), Refusal(Reason.STATUS_UNKNOWN, "")
        )
        with sink.transaction():
            sink.journal.add_parked(0, [(one, Record(0, 0, b"parked", b"{}"))], datetime.now(UTC))

    monkeypatch.setattr(repair, "Repairer", Meddling)
    monkeypatch.setattr(Meddling, "action", staticmethod(meddle), raising=False)
    report, _ = prove(pipeline, fix=FIX)
    sink.close()
    assert report.repaired is not None
    left = dict(report.repaired.first_left_alone)
    assert {name: why.split(":")[0] for name, why in left.items()} == {
        "by-event": "it has had events since the comparison",
        "by-sql": "its row has changed since the comparison",
        "gone": "it has had events since the comparison",
        "parked": "it is parked now",
    }
    assert rows(database_url) == [
        ("by-event", "PRINTED", 2),
        ("by-sql", "LOST", 3),
        ("parked", "LOST", 1),
        ("plain", "PRINTED", 1),
    ]


# how a refused row is found in each database is tested with the pipeline
@pytest.mark.parametrize(
    "database_url",
    ["sqlite", "postgres", pytest.param("mariadb", marks=LONG), pytest.param("mysql", marks=LONG)],
    indirect=True,
)
def test_only_what_a_plan_has_is_repaired(
    database_url: str, topic: str, cluster: Cluster, runner: Run, prove: Prove, tmp_path: Path
) -> None:
    pipeline = following(database_url, topic)
    send(cluster, topic, *(event(name, 1) for name in ("later", "other", "same")))
    drained(runner(pipeline, once=True))
    run_sql(
        database_url,
        "UPDATE contract_document SET print_status = 'LOST' WHERE doc_no IN ('other', 'same')",
    )
    _, listed = prove(pipeline, fix=repair.RepairRequest())
    out = tmp_path / "plan.jsonl"
    out.write_text("\n".join(map(json.dumps, listed)), encoding="utf-8")
    run_sql(
        database_url,
        "UPDATE contract_document SET print_status = 'LOST' WHERE doc_no = 'later'",
        "UPDATE contract_document SET print_status = 'GONE' WHERE doc_no = 'other'",
    )
    fix = msgspec.structs.replace(FIX, planned=repair.planned_marks([out]))
    report, _ = prove(pipeline, fix=fix)
    assert report.repaired is not None
    assert report.repaired.written == 1
    assert {name for name, _ in report.repaired.first_left_alone} == {"later", "other"}
    assert {why.split(",")[0] for _, why in report.repaired.first_left_alone} == {
        "it differs otherwise than in the plan"
    }
    stored = dict(run_sql(database_url, "SELECT doc_no, print_status FROM contract_document"))
    assert stored == {"later": "LOST", "other": "GONE", "same": "PRINTED"}


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.jsonl"
    with pytest.raises(errors.SettingsError, match="cannot be read"):
        repair.planned_marks([file])
    file.write_text("no plan\n", encoding="utf-8")
    with pytest.raises(errors.SettingsError, match="is not a plan"):
        repair.planned_marks([file])


def test_only_a_refused_row_is_left_out(
    database_url: str, topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    pipeline = following(database_url, topic)
    send(cluster, topic, *(event(f"d{n}", 1, f"S{n}") for n in range(5)))
    drained(runner(pipeline, once=True))
    run_sql(database_url, "DELETE FROM contract_document")
    if database_url.startswith("sqlite"):
        run_sql(
            database_url,
            "CREATE TRIGGER no_three BEFORE INSERT ON contract_document"
            " WHEN NEW.print_status = 'S3'"
            " BEGIN SELECT RAISE(ABORT, 'no three'); END",
        )
    else:
        run_sql(
            database_url,
            "ALTER TABLE contract_document ADD CONSTRAINT no_three CHECK (print_status <> 'S3')",
        )
    report, _ = prove(pipeline, fix=FIX)
    assert report.repaired is not None
    assert (report.in_step, report.repaired.inserted, report.repaired.left_alone) == (False, 4, 1)
    [(document, why)] = report.repaired.first_left_alone
    assert (document, "the table refuses it" in why) == ("d3", True)
    assert [row[0] for row in rows(database_url)] == ["d0", "d1", "d2", "d4"]


def test_the_repair_ends_when_the_ledger_goes_back(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic)
    send(cluster, topic, event("a", 1))
    drained(runner(pipeline, once=True))
    run_sql(url, "DELETE FROM contract_document")
    monkeypatch.setattr(repair, "Repairer", Meddling)
    back = staticmethod(lambda: run_sql(url, "UPDATE instep_ledger SET next_offset = 0"))
    monkeypatch.setattr(Meddling, "action", back, raising=False)
    with pytest.raises(errors.LedgerMoved, match="run it again"):
        prove(pipeline, fix=FIX)
    assert rows(url) == []
