"""Reconcile on real parts: a broker, Spark, and each database, with the damage done by SQL."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from instep import settings
from instep.kafka.connection import Cluster
from instep.pipeline import mending, reconcile
from instep.pipeline.reconcile import Report, Request
from instep.pipeline.runner import Runner
from tests.pipeline.conftest import drained, following
from tests.pipeline.test_runner import event, rows, send
from tests.sinks.conftest import run_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., Runner]
Prove = Callable[..., tuple[Report, list[dict[str, Any]]]]

FIX = mending.Fix(execute=True, who="tester")
numbers = itertools.count()


@pytest.fixture
def prove(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Prove:
    """Reconciles a pipeline; the report, and the rows of the file."""

    def do(pipeline: settings.Pipeline, name: str = "contracts", **asked: Any) -> tuple[Report, list[dict[str, Any]]]:
        out = tmp_path / f"rows-{next(numbers)}.jsonl"
        request = Request(**{"wait_s": 0.0, "out": out, **asked})
        folder = tmp_path / f"reconcile-{next(numbers)}"
        report = reconcile.reconcile(spark, folder, cluster, name, pipeline, request, say=lambda _: None)
        return report, [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]

    return do


def counted(report: Report) -> tuple[int, int, int]:
    return report.missing, report.extra, report.different


def found(listed: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    return [(row["document"], row["kind"], row["column"]) for row in listed]


def test_damage_is_found_and_mended(database_url: str, topic: str, cluster: Cluster, runner: Run, prove: Prove) -> None:
    pipeline = following(database_url, topic)
    log = [event(f"d{n:02}", version, name) for version, name in ((1, "CREATED"), (2, "PRINTED")) for n in range(20)]
    send(cluster, topic, *log, (b"d19", None), (b"nobody", None), (b"d18", b"{"))
    drained(runner(pipeline, once=True))
    report, listed = prove(pipeline)
    assert (report.in_step, report.documents, report.documents_in_step, listed) == (True, 19, 19, [])
    run_sql(
        database_url,
        "DELETE FROM contract_document WHERE doc_no = 'd01'",
        "UPDATE contract_document SET print_status = 'LOST' WHERE doc_no = 'd02'",
        "UPDATE contract_document SET print_version = 7 WHERE doc_no = 'd03'",
        "UPDATE contract_document SET print_version = 1, print_status = 'CREATED' WHERE doc_no = 'd04'",
        "UPDATE contract_document SET print_status = NULL, print_version = NULL, printed_at = NULL WHERE doc_no = 'd05'",
        "INSERT INTO contract_document (doc_no, print_status, print_version) VALUES ('d19', 'PRINTED', 2)",
        "INSERT INTO contract_document (doc_no, print_status) VALUES ('unheard', 'PRINTED')",
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
        "print_status": "PRINTED", "print_version": "2", "printed_at": "2026-09-21T14:13:20+00:00",
    }  # fmt: skip
    assert (listed[1]["expected"], listed[1]["found"]) == ("PRINTED", "LOST")
    assert listed[1]["place"].keys() == {"partition", "offset"}
    assert report.first_rows == [{k: v for k, v in row.items() if k != "pipeline"} for row in listed]

    before = rows(database_url)
    planned, listed = prove(pipeline, fix=mending.Fix())
    assert rows(database_url) == before
    assert planned.mended is None
    assert {row["document"]: row["mend"] for row in listed} == {
        "d01": "insert",
        "d02": "write",
        "d03": "leave: the table holds the higher order value 7",
        "d04": "write",
        "d05": "write",
        "d19": "delete",
        "unheard": "leave: nothing says that it was deleted: --delete-extra",
    }

    report, listed = prove(pipeline, fix=FIX)
    assert report.mended is not None
    assert (report.in_step, report.mended.inserted, report.mended.written, report.mended.deleted) == (False, 1, 3, 1)
    assert {name for name, _ in report.mended.first_left_alone} == {"d03", "unheard"}
    assert {row["document"] for row in listed if row["kind"] == "left_alone"} == {"d03", "unheard"}
    assert run_sql(database_url, "SELECT document, order_value FROM instep_deleted") == [("d19", 2)]
    decided = run_sql(database_url, "SELECT document, deed, outcome, who FROM instep_decisions ORDER BY document")
    assert decided == [
        ("d01", "mended", "inserted", "tester"),
        ("d02", "mended", "written", "tester"),
        ("d04", "mended", "written", "tester"),
        ("d05", "mended", "written", "tester"),
        ("d19", "mended", "deleted", "tester"),
    ]
    run_sql(database_url, "UPDATE contract_document SET print_version = 2 WHERE doc_no = 'd03'")
    report, _ = prove(pipeline, fix=mending.Fix(execute=True, delete_extra=True))
    assert (report.in_step, report.extra) == (True, 1)
    report, listed = prove(pipeline)
    assert (report.in_step, listed) == (True, [])
    assert rows(database_url) == [*((f"d{n:02}", "PRINTED", 2) for n in range(19)), ("own", None, None)]


KINDS = {
    "sqlite": {
        "a_text": "TEXT", "a_char": "CHAR(6)", "an_integer": "INTEGER", "a_real": "REAL", "a_single": "FLOAT",
        "a_decimal": "NUMERIC(20, 4)", "a_truth": "BOOLEAN", "a_time": "DATETIME", "a_coarse": "DATETIME", "a_date": "DATE",
        "a_choice": "VARCHAR(10)", "a_json": "JSON", "a_uuid": "VARCHAR(36)",
    },
    "postgresql": {
        "a_text": "text", "a_char": "char(6)", "an_integer": "bigint", "a_real": "double precision", "a_single": "real",
        "a_decimal": "numeric(20,4)", "a_truth": "boolean", "a_time": "timestamptz", "a_coarse": "timestamp(1)", "a_date": "date",
        "a_choice": "mood", "a_json": "jsonb", "a_uuid": "uuid",
    },
    "mysql": {
        "a_text": "TEXT", "a_char": "CHAR(6)", "an_integer": "BIGINT", "a_real": "DOUBLE", "a_single": "FLOAT",
        "a_decimal": "DECIMAL(20,4)", "a_truth": "BOOLEAN", "a_time": "DATETIME(6)", "a_coarse": "DATETIME", "a_date": "DATE",
        "a_choice": "ENUM('good', 'bad')", "a_json": "JSON", "a_uuid": "CHAR(36)",
    },
}  # fmt: skip

VALUES: list[dict[str, Any]] = [
    {"a_text": "é 😀 \\ % ' \" ", "a_char": "ab", "an_integer": -(2**63), "a_real": 0.1, "a_single": 0.1, "a_decimal": 12.5,
     "a_truth": True, "a_time": "2026-11-01T08:00:00.123456Z", "a_coarse": "2026-11-01T08:00:00.550000Z", "a_date": "2026-11-01",
     "a_choice": "good", "a_json": {"b": [1.0, 2.50, 1e100, None, True], "a": "é"},
     "a_uuid": "6f9619ff-8b86-d011-b42d-00c04fc964ff"},
    {"a_text": "", "a_char": "abcdef", "an_integer": 2**63 - 1, "a_real": 1e300, "a_single": 16777217,
     "a_decimal": 1234567890123456, "a_truth": False, "a_time": "1999-12-31T23:59:59.999999Z", "a_coarse": "1999-12-31T23:59:59.949999Z", "a_date": "1000-01-01",
     "a_choice": "bad", "a_json": 12345678901234567890123, "a_uuid": "00000000-0000-0000-0000-000000000000"},
    {"a_text": "0", "a_char": "0", "an_integer": 0, "a_real": -0.0, "a_single": 123456.789, "a_decimal": 0.0001,
     "a_truth": False, "a_time": 1_790_000_000_123, "a_coarse": 1_790_000_000_999, "a_date": "9999-12-31",
     "a_choice": "bad", "a_json": "text", "a_uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff"},
    dict.fromkeys(KINDS["sqlite"]),
    {"a_text": "12", "a_json": 0.30000000000000004, "a_decimal": -99.9999, "a_real": 3, "a_single": 1e-30},
    {"a_json": "12", "a_real": 123456789012345680, "a_decimal": 0},
    {"a_json": 12},
]  # fmt: skip


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
def test_every_kind_of_column_compares_equal_after_its_round_trip(
    kind: str, new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Run, prove: Prove
) -> None:
    url = new_database(kind)
    types = KINDS[{"postgres": "postgresql", "mariadb": "mysql"}.get(kind, kind)]
    if kind == "mariadb":
        types = {**types, "a_uuid": "UUID"}
    if kind == "postgres":
        run_sql(url, "CREATE TYPE mood AS ENUM ('good', 'bad')")
    declared = ", ".join(f"{name} {of}" for name, of in types.items())
    charset = " CHARACTER SET utf8mb4" if kind in ("mysql", "mariadb") else ""
    exact = {"mysql": " COLLATE utf8mb4_0900_bin", "mariadb": " COLLATE utf8mb4_nopad_bin"}.get(kind, "")
    run_sql(url, f"CREATE TABLE kinds (id VARCHAR(20){charset}{exact} NOT NULL PRIMARY KEY, {declared}){charset}")
    pipeline = following(url, topic, table="kinds", key="id", event={"status": "status"}, columns={name: name for name in types})
    send(cluster, topic, *((f"d{n}".encode(), {"status": "S", **values}) for n, values in enumerate(VALUES)))
    drained(runner(pipeline, once=True))
    assert run_sql(url, "SELECT reason, detail FROM instep_dead_letters") == []
    report, listed = prove(pipeline)
    assert (report.documents_in_step, listed) == (len(VALUES), [])
    run_sql(
        url, "DELETE FROM kinds WHERE id IN ('d0', 'd1', 'd2')", f"UPDATE kinds SET {', '.join(f'{c} = NULL' for c in types)}"
    )
    report, _ = prove(pipeline, fix=FIX)
    assert (report.in_step, counted(report)) == (True, (3, 0, 3))
    report, listed = prove(pipeline)
    assert (report.documents_in_step, listed) == (len(VALUES), [])
