"""Test the commands of README in order, and the repair of damage.

In a separate file: it shares the Spark session, and the other tests of commands need none.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import Result

from instep.local.broker import LocalCluster
from tests.support.cli import EVENTS, instep, instep_in_session, prepare_folder
from tests.support.databases import run_sql

ODD = "odd\u001b[31m\nid"


@pytest.fixture
def place(tmp_path: Path, broker: LocalCluster) -> Path:
    """Make a folder with a settings file, and the topic that it names."""
    prepare_folder(tmp_path, broker.bootstrap)
    return tmp_path


def test_the_first_pipeline_runs_and_reconciles(
    place: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run init, emit, run --once and status as in the README, then reconcile and repair damage."""
    assert "instep_ledger" in instep(place, "init", "--sql").stdout
    assert not (place / "contracts.db").exists()
    done = instep(place, "init")
    assert (done.returncode, done.stderr) == (0, "contracts: ready\n")
    (place / "events.jsonl").write_text(
        f"{EVENTS}\n{json.dumps({'doc_id': ODD, 'status': 'PRINTED', 'version': 1})}",
        encoding="utf-8",
    )
    done = instep(place, "emit", "-", given=(place / "events.jsonl").read_text(encoding="utf-8"))
    assert (done.returncode, done.stderr) == (0, "21 records published\n")
    before = json.loads(instep(place, "status", "--json").stdout)["pipelines"][0]
    assert before["lag_records"] is None
    done = instep(place, "run", "--once", "--json", "--fail-on", "quarantine")
    assert done.returncode == 0, done.stderr
    assert "21 records: 21 applied" in done.stderr
    assert "WARNING" not in done.stderr
    [job] = json.loads(done.stdout)["jobs"]
    totals = job.pop("totals")
    assert (totals["records"], totals["applied"], totals["dead"]) == (21, 21, 0)
    assert job == {
        "job": "contracts",
        "kind": "pipeline",
        "state": "ended",
        "lag": 0,
        "restarts": 0,
        "error": None,
    }
    assert "contracts: 21 records waiting; starting Spark" in done.stderr.splitlines()[0]
    after = json.loads(instep(place, "status", "--json").stdout)["pipelines"][0]
    assert (after["run"]["state"], after["run"]["code"], after["run"]["epoch"]) == (
        "stopped",
        None,
        1,
    )
    assert (
        after["lag_records"],
        after["lag_seconds"],
        after["dead_letters"],
        after["parked_documents"],
    ) == (0, 0.0, 0, 0)
    assert sum(part["next_offset"] for part in after["partitions"]) == 21
    assert "NEXT-OFFSET" in instep(place, "status").stdout
    assert run_sql(f"sqlite:///{place}/contracts.db", "SELECT count(*) FROM contract_document") == [
        (21,)
    ]
    _reconcile(place, functools.partial(instep_in_session, place, spark, monkeypatch))


def _reconcile(place: Path, command: Callable[..., Result]) -> None:
    """Compare, repair and compare again in the tests' session.

    The commands of docs/quickstart.md compare in a separate process.
    """
    url = f"sqlite:///{place}/contracts.db"
    run_sql(url, "UPDATE contract_document SET print_status = 'LOST' WHERE doc_no LIKE 'odd%'")
    run_sql(url, "DELETE FROM contract_document WHERE doc_no = 'd3'")
    found = command("reconcile", "--fix")
    assert found.exit_code == 1, found.stderr
    assert re.search(
        r"^contracts +contract_document +21 +19 +1 +0 +1 ", found.stdout, re.MULTILINE
    ), found.stdout
    assert r"different  odd\x1b[31m\nid  print_status  PRINTED" in found.stdout
    assert "\x1b" not in found.stdout + found.stderr
    assert "--execute" in found.stderr
    [file] = place.glob("reconcile-contracts-*.jsonl")
    assert [
        json.loads(line)["document"] for line in file.read_text(encoding="utf-8").splitlines()
    ] == ["d3", ODD]
    # the application's own row
    run_sql(url, "INSERT INTO contract_document (doc_no, print_status) VALUES ('own', 'OLD')")
    repaired = command("reconcile", "--fix", "--execute", "--json", "--out", "rows.jsonl")
    assert repaired.exit_code == 0, repaired.stderr
    printed = json.loads(repaired.stdout)
    assert printed["executed"] is True
    [report] = printed["pipelines"]
    assert (report["in_step"], report["missing"], report["different"], report["not_ours"]) == (
        True,
        1,
        1,
        1,
    )
    assert (report["repaired"]["inserted"], report["repaired"]["written"]) == (1, 1)
    again = command("reconcile", "--source", "events.jsonl")
    assert again.exit_code == 0, again.stderr
    assert "contracts: 1 row was never written by this pipeline, and not compared" in again.stderr
    assert again.stderr.rstrip().endswith("contracts: in step")
    assert len(list(place.glob("reconcile-*.jsonl"))) == 1
