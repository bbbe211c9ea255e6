"""Test receipts: what became of a record in the pipeline that follows its topic."""

from __future__ import annotations

import asyncio
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
from instep.operate import dead_letters, parked
from instep.operate.outcomes import OutcomeReader
from instep.pipeline.apply import release
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import preparation
from instep.sinks.journal_entries import Selection
from instep.sinks.outcome_query import OutcomeQuery
from tests.support import commands
from tests.support.databases import run_sql
from tests.support.pipelines import following
from tests.support.runs import Run as Start
from tests.support.runs import event
from tests.support.terminals import OnTerminal

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


def test_what_the_pipeline_ignores_and_what_an_operator_decides(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Start
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic, missing="ignore")
    with (
        reader_of(pipeline) as reader,
        instep.Publisher(cluster.bootstrap, topic, outcomes=reader) as publisher,
    ):
        run_sql(url, "INSERT INTO contract_document (doc_no) VALUES ('a')")
        unknown = send(publisher, "z", 1)
        quarantined = [
            send(publisher, "a", 1, status=TOO_LONG),
            send(publisher, "a", 2),
            publisher.send_raw(b"a", b"{"),
        ]
        runner(pipeline)
        assert unknown.applied(PATIENCE_S).verdict == "ignored"
        found = [one.applied(PATIENCE_S).verdict for one in quarantined]
        assert found == ["parked", "parked", "dead"]
        with MaintenanceSession("contracts", pipeline, "ann") as session:
            parked.skip(session, "a", "the printer lied", execute=True)
            release.release(session, "a", execute=True)
            dead_letters.drop(session, Selection(), "a test", execute=True)
        decided = [one.applied(PATIENCE_S) for one in quarantined]
    assert [(one.verdict, one.reason, one.detail) for one in decided] == [
        ("skipped", "TEXT_TOO_LONG", "the printer lied"),
        ("released", "applied", None),
        ("dropped", "NOT_JSON", "a test"),
    ]
    assert all(one.committed_at is not None for one in decided)


def test_an_event_loop_goes_on_while_tasks_wait_for_the_pipeline(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Start
) -> None:
    """Let more tasks wait than the event loop has threads."""
    pipeline = following(new_database("sqlite"), topic)

    async def main(reader: OutcomeReader) -> list[str]:
        async with instep.AsyncPublisher(cluster.bootstrap, topic, outcomes=reader) as publisher:
            receipts = []
            for number in range(40):
                key, body = event(f"d{number}", 1)
                receipts.append(await publisher.enqueue_raw(key, json.dumps(body).encode()))
            with pytest.raises(errors.NotReached, match="'contracts' has not reached"):
                await receipts[0].applied_async(0.1)
            tasks = [asyncio.create_task(one.applied_async(PATIENCE_S)) for one in receipts]
            given_up = asyncio.create_task(receipts[1].applied_async())
            await publisher.flush()  # in one of the event loop's threads
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert not any(task.done() for task in tasks)
            await asyncio.to_thread(runner, pipeline)
            return [outcome.verdict for outcome in await asyncio.gather(*tasks)]

    with reader_of(pipeline) as reader:
        assert asyncio.run(main(reader)) == ["applied"] * 40

    async def refused() -> None:
        async with instep.AsyncPublisher(cluster.bootstrap, topic) as publisher:
            receipt = await publisher.enqueue(instep.StatusEvent(document="a", status="X"))
            with pytest.raises(errors.SettingsError, match=r"outcomes=instep\.OutcomeReader"):
                await receipt.applied_async(1)

    asyncio.run(refused())


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


def test_records_before_the_start_and_of_another_topic_with_the_same_name(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Start
) -> None:
    url = new_database("sqlite")
    pipeline = following(url, topic, start="latest")
    with (
        reader_of(pipeline) as reader,
        instep.Publisher(cluster.bootstrap, topic, outcomes=reader) as publisher,
    ):
        early = send(publisher, "a", 1)
        early.result(PATIENCE_S)
        runner(pipeline, once=True)
        assert early.applied(PATIENCE_S).verdict == "unread"
        run_sql(url, "UPDATE instep_ledger SET topic_id = 'another'")
        with pytest.raises(errors.NotReached, match="has not reached"):
            early.applied(0.1)


def test_a_record_that_the_broker_has_not_acknowledged_in_time(
    new_database: Callable[[str], str], topic: str, cluster: Cluster
) -> None:
    pipeline = following(new_database("sqlite"), topic)
    with (
        reader_of(pipeline) as reader,
        instep.Publisher(cluster.bootstrap, topic, outcomes=reader, linger_ms=500) as publisher,
        pytest.raises(errors.NotReached, match="has not acknowledged the record"),
    ):
        send(publisher, "a", 1).applied(0.01)


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


def run_examples(folder: Path, bootstrap: str, topic: str) -> str:
    """Run the examples of the guide beside a running pipeline, and return what they print."""
    page = (ROOT / "docs" / "guides" / "publish-status-events.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
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
    with OnTerminal(tmp_path, "await", position) as shown_live:
        shown_live.wait_for(f"contracts: waiting for {position}")
        shown_live.end()
    runner(pipeline)
    done = commands.run(["await", position, "--timeout", "60"], cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:3] == ["contracts", "applied", "a"]
    shown = commands.run(["await", position, "--json"], cwd=tmp_path, env=dict(os.environ))
    [found] = json.loads(shown.stdout)["pipelines"]
    assert (found["pipeline"], found["outcome"]["verdict"]) == ("contracts", "applied")
    with instep.Publisher(cluster.bootstrap, topic) as publisher:
        dead = publisher.send_raw(b"c", b"{").result(PATIENCE_S)
    position = f"{topic}:{dead.partition}:{dead.offset}"
    done = commands.run(["await", position, "--timeout", "60"], cwd=tmp_path, env=dict(os.environ))
    assert (done.returncode, "NOT_JSON" in done.stdout) == (5, True), done.stderr
    assert run_examples(tmp_path, cluster.bootstrap, topic) == "applied None\nrepeated None\n"
    for wrong, words in (
        ("status-0-1", "write TOPIC:PARTITION:OFFSET"),
        ("nowhere:0:0", "no pipeline follows topic 'nowhere'"),
        (f"{topic}:{at.partition}:{at.offset + 5}", "has no record at"),
    ):
        refused = commands.run(["await", wrong], cwd=tmp_path, env=dict(os.environ))
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
