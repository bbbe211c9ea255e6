"""Test receipts: what became of a record in the pipeline that follows its topic."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import instep
from instep import errors, settings
from instep.kafka.connection import Cluster
from instep.operate.outcomes import OutcomeReader
from instep.sinks import preparation
from instep.sinks.outcome_query import OutcomeQuery
from tests.support import commands
from tests.support.pipelines import following
from tests.support.runs import Run as Start
from tests.support.runs import event

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
TOO_LONG = "S" * 300


def reader_of(pipeline: settings.Pipeline) -> OutcomeReader:
    preparation.prepare(pipeline, add_columns=True)
    return OutcomeReader(settings.Settings(pipelines={"contracts": pipeline}), "contracts")


def send(publisher: instep.Publisher, document: str, version: int, **fields: Any) -> instep.Receipt:
    key, body = event(document, version, **fields)
    return publisher.send_raw(key, json.dumps(body).encode())


def test_a_receipt_tells_what_became_of_the_record(
    database_url: str, topic: str, cluster: Cluster, runner: Start
) -> None:
    pipeline = following(database_url, topic)
    with (
        reader_of(pipeline) as reader,
        instep.Publisher(cluster.bootstrap, topic, outcomes=reader) as publisher,
    ):
        receipts = [
            send(publisher, "a", 2),
            send(publisher, "a", 2),
            send(publisher, "a", 1),
            send(publisher, "b", 1, status=TOO_LONG),
            send(publisher, "b", 2),
            publisher.send_raw(b"c", b"{"),
            publisher.delete("a"),
        ]
        runner(pipeline)
        found = [receipt.applied(PATIENCE_S) for receipt in receipts]
    assert [one.verdict for one in found] == [
        "applied",
        "repeated",
        "stale",
        "parked",
        "parked",
        "dead",
        "applied",
    ]
    assert [one.document for one in found] == ["a", "a", "a", "b", "b", None, "a"]
    assert [one.reason for one in found][3:6] == ["TEXT_TOO_LONG", "WAITS_BEHIND", "NOT_JSON"]
    assert all(one.committed_at is not None for one in found)


def test_a_pipeline_without_history_tells_that_it_processed_the_record(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Start
) -> None:
    pipeline = following(new_database("sqlite"), topic, history=False)
    with (
        reader_of(pipeline) as reader,
        instep.Publisher(cluster.bootstrap, topic, outcomes=reader) as publisher,
    ):
        receipts = [send(publisher, "a", 1), publisher.send_raw(b"c", b"{")]
        runner(pipeline)
        found = [receipt.applied(PATIENCE_S) for receipt in receipts]
    assert [one.verdict for one in found] == ["processed", "dead"]


def test_a_record_that_the_pipeline_has_not_reached_in_time(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = following(new_database("sqlite"), topic)
    with (
        reader_of(pipeline) as reader,
        instep.Publisher(cluster.bootstrap, topic, outcomes=reader) as publisher,
    ):
        receipt = send(publisher, "a", 1)
        at = receipt.result(PATIENCE_S)
        with pytest.raises(errors.NotReached) as raised:
            receipt.applied(0.1)
        assert f"'contracts' has not reached {topic}:{at.partition}:{at.offset}" in str(
            raised.value
        )
        assert "instep status contracts" in str(raised.value)
        runner(pipeline)
        # a database that does not answer is asked again
        find, failures = OutcomeQuery.find, [errors.DatabaseUnreachable("the database is down")]

        def flaky(self: OutcomeQuery, *given: Any) -> Any:
            if failures:
                raise failures.pop()
            return find(self, *given)

        monkeypatch.setattr(OutcomeQuery, "find", flaky)
        assert receipt.applied(PATIENCE_S).verdict == "applied"
        assert failures == []


def test_a_publisher_that_knows_no_pipeline_or_another_one(
    new_database: Callable[[str], str], topic: str, cluster: Cluster
) -> None:
    with instep.Publisher(cluster.bootstrap, topic) as publisher:
        receipt = send(publisher, "a", 1)
        with pytest.raises(errors.SettingsError, match=r"outcomes=instep\.OutcomeReader"):
            receipt.applied(1)
    with (
        reader_of(following(new_database("sqlite"), "another-topic")) as reader,
        instep.Publisher(cluster.bootstrap, topic, outcomes=reader) as publisher,
    ):
        receipt = send(publisher, "a", 1)
        with pytest.raises(errors.SettingsError, match="follows topic 'another-topic'"):
            receipt.applied(PATIENCE_S)


def write_settings(folder: Path, bootstrap: str, topic: str, url: str) -> None:
    declared = {
        "kafka": {"bootstrap": bootstrap},
        "pipelines": {
            "contracts": {
                "topic": topic,
                "target": url,
                "table": "contract_document",
                "key": "doc_no",
                "event": {"document": "doc_id", "status": "status", "order": "version"},
                "columns": {"print_status": "status", "print_version": "version"},
            }
        },
    }
    (folder / "instep.toml").write_text(tomli_w.dumps(declared), encoding="utf-8")


def run_example(folder: Path, bootstrap: str, topic: str) -> str:
    """Run the example of the guide beside a running pipeline, and return what it prints."""
    page = (ROOT / "docs" / "guides" / "publish-status-events.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    program = program.replace("localhost:9092", bootstrap).replace("print-status", topic)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_and_the_example_of_the_guide_wait_for_a_record(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Start,
    tmp_path: Path,
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic)
    write_settings(tmp_path, cluster.bootstrap, topic, url)
    preparation.prepare(pipeline, add_columns=True)
    with instep.Publisher(cluster.bootstrap, topic) as publisher:
        at = send(publisher, "a", 1).result(PATIENCE_S)
    position = f"{topic}:{at.partition}:{at.offset}"
    late = commands.run(["await", position, "--timeout", "0.2"], cwd=tmp_path, env=dict(os.environ))
    assert (late.returncode, "has not reached" in late.stderr) == (1, True), late.stderr
    runner(pipeline)
    done = commands.run(["await", position, "--timeout", "60"], cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:3] == ["contracts", "applied", "a"]
    shown = commands.run(["await", position, "--json"], cwd=tmp_path, env=dict(os.environ))
    [found] = json.loads(shown.stdout)
    assert (found["pipeline"], found["outcome"]["verdict"]) == ("contracts", "applied")
    assert run_example(tmp_path, cluster.bootstrap, topic) == "applied None\n"
    for wrong, words in (
        ("status-0-1", "write TOPIC:PARTITION:OFFSET"),
        ("nowhere:0:0", "no pipeline follows topic 'nowhere'"),
        (f"{topic}:{at.partition}:{at.offset + 5}", "has no record at"),
    ):
        refused = commands.run(["await", wrong], cwd=tmp_path, env=dict(os.environ))
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
