"""Test named stops on real servers: nothing wrong is written, and the remedy works.

After each stop, the table must be what one event at a time gives: per document, the event of the
highest version.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlparse, urlunparse

import msgspec
import pytest
from pyspark.sql import SparkSession

from instep import errors, settings, sinks
from instep.demo.pipeline_process import PipelineProcess
from instep.document.decoding import Record
from instep.kafka import configs, offsets, topic_identity, topics
from instep.kafka.connection import Cluster
from instep.local import broker as local
from instep.pipeline import flow_runner
from instep.pipeline.applier import Applier, TaskPlan
from instep.pipeline.apply import batch
from instep.pipeline.runner import Runner, RunnerState
from instep.sinks import inspection, preparation, tables
from instep.sinks.target import Position
from tests.support.cli import instep, settings_text
from tests.support.databases import declare, run_sql
from tests.support.pipelines import OwnRunner, drained, mostly_resident, on_both_engines
from tests.support.runs import event, rows, send
from tests.support.waiting import wait_until


class Harness:
    """One pipeline from a topic to a table, and what was published so far."""

    def __init__(
        self, folder: Path, cluster: Cluster, spark: SparkSession, topic: str, url: str, owner: str
    ) -> None:
        self.folder, self.cluster, self.spark, self.topic, self.url, self.owner = (
            folder,
            cluster,
            spark,
            topic,
            url,
            owner,
        )
        self.events: list[tuple[bytes, dict[str, Any]]] = []
        self.runners: list[Runner] = []
        self.config = folder / "instep.toml"
        self.config.write_text(
            settings_text(bootstrap=cluster.bootstrap, topic=topic, target=url), encoding="utf-8"
        )
        preparation.prepare(declare(owner, topic=topic))

    def publish(self, *events: tuple[bytes, dict[str, Any]]) -> None:
        send(self.cluster, self.topic, *events, partitioner="murmur2")
        self.events += events

    def run(self, *, once: bool = False, **changes: Any) -> Runner:
        pipeline = declare(self.url, topic=self.topic, **changes)
        one = OwnRunner(
            "contracts",
            pipeline,
            self.cluster,
            self.spark,
            self.folder / str(len(self.runners)),
            once=once,
        )
        self.runners.append(one)
        one.start()
        return one

    def drain(self) -> None:
        drained(self.run(once=True))

    def refused(self, kind: type[errors.NamedStop]) -> errors.NamedStop:
        """Run the pipeline, and return the named stop that it ends with."""
        return ended(self.run(once=True), kind)

    def instep(self, *arguments: str) -> str:
        """Run a command as a user does, and return what it prints."""
        done = instep(self.folder, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rewind(self, *arguments: str) -> dict[str, Any]:
        """Run `instep rewind` as a message suggests: first the plan, then with --execute."""
        looked = json.loads(self.instep("rewind", "contracts", *arguments, "--json"))
        done = json.loads(self.instep("rewind", "contracts", *arguments, "--json", "--execute"))
        assert (looked["executed"], done["executed"]) == (False, True)
        plan: dict[str, Any] = done["plan"]
        return plan

    def next_offsets(self) -> dict[int, int]:
        name = "`partition`" if self.url.startswith("m") else '"partition"'
        return dict(run_sql(self.owner, f"SELECT {name}, next_offset FROM instep_ledger"))

    def expected(self) -> list[tuple[str, str, int]]:
        latest: dict[str, tuple[str, int]] = {}
        for _, body in self.events:
            if body["version"] > latest.get(body["doc_id"], ("", -1))[1]:
                latest[body["doc_id"]] = (body["status"], body["version"])
        return sorted((document, *row) for document, row in latest.items())

    def in_step(self) -> bool:
        return rows(self.owner) == self.expected()

    def assert_in_step(self) -> None:
        """Check that the table is in step, and that nothing is in quarantine."""
        assert rows(self.owner) == self.expected()
        for table in ("instep_dead_letters", "instep_parked"):
            assert run_sql(self.owner, f"SELECT count(*) FROM {table}") == [(0,)]

    def partition_of(self, document: str) -> int:
        """Return the partition of this document's only record, from the broker."""
        found = {
            p: r
            for p, r in offsets.first_records(
                self.cluster, self.topic, dict.fromkeys(range(3), 0)
            ).items()
            if r
        }
        return next(
            partition for partition, record in found.items() if record.key == document.encode()
        )

    def make_topic_again(self, partitions: int = 3) -> None:
        topics.delete(self.cluster, self.topic)
        topics.create(self.cluster, self.topic, partitions)


def ended(run: Runner, kind: type[errors.NamedStop]) -> errors.NamedStop:
    """Wait until the run ends with the expected stop. Check that it names a page and a command."""
    wait_until(lambda: run.state is RunnerState.ENDED, f"the pipeline to end with {kind.code}")
    assert isinstance(run.error, kind), run.error
    assert str(run.error).startswith(f"{kind.code}: ")
    assert str(run.error).endswith(f"(instep explain {kind.code})")
    assert "instep " in run.error.remedy
    return run.error


OWN = tuple(tables.metadata.tables)


def granted(owner: str, topic: str) -> str:
    """Return the database's URL for a user who owns nothing and has only a pipeline's rights."""
    preparation.prepare(declare(owner, topic=topic))
    name, parts = f"u_{uuid.uuid4().hex[:12]}", urlparse(owner)
    if owner.startswith("postgresql"):
        run_sql(owner, f"CREATE ROLE {name} LOGIN", f"GRANT {name} TO CURRENT_USER")
    else:
        run_sql(
            owner,
            f"CREATE USER {name}",
            f"GRANT CREATE TEMPORARY TABLES ON `{parts.path[1:]}`.* TO {name}",
        )
    run_sql(
        owner,
        *(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {name}"
            for table in ("contract_document", *OWN)
        ),
    )
    return urlunparse(parts._replace(netloc=f"{name}@{parts.hostname}:{parts.port}"))


@pytest.fixture(autouse=True)
def _quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval of the runner's checks and the time until it believes a finding."""
    monkeypatch.setattr(flow_runner, "CHECK_INTERVAL_S", 0.5)
    monkeypatch.setattr(flow_runner, "DOUBT_S", 0.5)


class TaskHarness:
    """A task's part of a pipeline, without Spark: records go in as if they had just been read."""

    def __init__(self, cluster: Cluster, topic: str, url: str, owner: str, **changes: Any) -> None:
        self.cluster, self.topic, self.url, self.owner, self.next = cluster, topic, url, owner, 0
        pipeline = declare(url, topic=topic, **changes)
        preparation.prepare(declare(owner, topic=topic, **changes))
        found = topics.describe(cluster, topic)
        to = inspection.inspect("contracts", pipeline)
        self.plan = TaskPlan(
            to,
            pipeline,
            batch.Writer(1, found.cluster_id, found.id),
            cluster.kafka,
            cluster.bootstrap,
        )
        with closing(sinks.open_sink(to)) as sink:
            sink.ledger.take_epoch([Position(0, 0, 0, found.cluster_id, found.id)])
        self.applier = Applier(self.plan)

    def apply(self, *events: tuple[bytes, dict[str, Any]]) -> None:
        records = [
            Record(self.next + n, 1, key, json.dumps(body).encode())
            for n, (key, body) in enumerate(events)
        ]
        self.applier.apply(0, records)
        self.next += len(events)


@pytest.fixture
def session(
    cluster: Cluster, topic: str, new_database: Callable[[str], str]
) -> Iterator[Callable[..., TaskHarness]]:
    made: list[TaskHarness] = []

    def make(kind: str, *, user: bool = False, **changes: Any) -> TaskHarness:
        owner = new_database(kind)
        made.append(
            TaskHarness(cluster, topic, granted(owner, topic) if user else owner, owner, **changes)
        )
        return made[-1]

    yield make
    for one in made:
        one.applier.close()


@pytest.fixture
def make_harness(
    tmp_path: Path,
    cluster: Cluster,
    spark: SparkSession,
    topic: str,
    new_database: Callable[[str], str],
) -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(kind: str = "sqlite", *, user: bool = False, kafka: Cluster | None = None) -> Harness:
        owner = new_database(kind)
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(
            Harness(
                folder,
                kafka or cluster,
                spark,
                topic,
                granted(owner, topic) if user else owner,
                owner,
            )
        )
        return made[-1]

    yield make
    for one in made:
        for runner in one.runners:
            runner.stop(patience_s=60)


# --- the topic ------------------------------------------------------------------------------------


@mostly_resident
def test_a_deleted_topic_stops_the_pipeline(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness()
    harness.publish(*(event(f"a{n}", 2) for n in range(9)))
    run = harness.run()
    wait_until(harness.in_step, "the first records")
    topics.delete(harness.cluster, harness.topic)
    ended(run, errors.TopicGone)
    stop = harness.refused(errors.TopicGone)
    assert f"instep topics create {harness.topic} --partitions 3" in stop.remedy
    assert instep(harness.folder, "rewind", "contracts", "--to", "start").returncode == 3
    harness.instep("topics", "create", harness.topic, "--partitions", "3", "--execute")
    stop = harness.refused(errors.TopicReplaced)
    assert "instep rewind contracts --to start --accept-new-topic" in stop.remedy
    harness.publish(*(event(f"b{n}", 1) for n in range(3)))
    harness.rewind("--to", "start", "--accept-new-topic")
    harness.drain()
    harness.assert_in_step()


@mostly_resident
@pytest.mark.parametrize(
    ("kind", "count", "partitions"),
    [("postgres", 2, 3), pytest.param("mariadb", 50, 3, marks=pytest.mark.long), ("sqlite", 50, 2)],
)
def test_a_replaced_topic_stops_the_pipeline(
    make_harness: Callable[..., Harness], kind: str, count: int, partitions: int
) -> None:
    """Cover topics shorter than the ledger's position, longer, and with fewer partitions."""
    harness = make_harness(kind)
    harness.publish(*(event(f"a{n}", 5) for n in range(20)))
    harness.drain()
    old = topics.describe(harness.cluster, harness.topic).id
    harness.make_topic_again(partitions)
    harness.publish(*(event(f"b{n}", 1) for n in range(count)), event("a1", 6), event("a2", 4))
    before = harness.next_offsets()
    harness.refused(errors.TopicReplaced)
    done = instep(harness.folder, "rewind", "contracts", "--to", "start", "--execute")
    assert done.returncode == 3, "accepted without being reported to"
    assert harness.next_offsets() == before
    assert len(rows(harness.owner)) == 20
    plan = harness.rewind("--to", "start", "--accept-new-topic")
    assert plan["kept_as"] == f"{harness.topic}~{old}"
    assert any("will be stale" in words for words in plan["words"])
    assert harness.next_offsets() == dict.fromkeys(range(partitions), 0)
    harness.drain()
    harness.assert_in_step()
    kept = run_sql(
        harness.owner, "SELECT topic, count(*) FROM instep_history GROUP BY topic ORDER BY topic"
    )
    assert kept == [(harness.topic, count + 2), (f"{harness.topic}~{old}", 20)]
    decided = run_sql(harness.owner, "SELECT DISTINCT action FROM instep_decisions")
    assert decided == [("rewound",)]
    harness.drain()
    harness.assert_in_step()


@on_both_engines
def test_a_topic_replaced_during_the_run_stops_the_pipeline(
    make_harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recreate a longer topic, without the runner's checks: none of its records is applied."""
    monkeypatch.setattr(flow_runner, "CHECK_INTERVAL_S", 3_600.0)
    harness = make_harness()
    harness.publish(*(event(f"a{n}", 5) for n in range(20)))
    run = harness.run()
    wait_until(harness.in_step, "the first records")
    expected = harness.expected()
    harness.make_topic_again()
    harness.publish(*(event(f"b{n}", 1) for n in range(300)))
    wait_until(lambda: run.state is RunnerState.ENDED, "the pipeline to notice")
    assert isinstance(run.error, (errors.TopicReplaced, errors.TopicGone)), run.error
    assert rows(harness.owner) == expected
    harness.rewind("--to", "start", "--accept-new-topic")
    harness.drain()
    harness.assert_in_step()


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_records_of_another_topic_are_not_committed(
    session: Callable[..., TaskHarness],
    guarantee: settings.Guarantee,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Give the task records that it read after the topic was recreated."""
    monkeypatch.setattr(topic_identity, "DOUBT_S", 0.1)
    one = session("sqlite", guarantee=guarantee)
    topics.delete(one.cluster, one.topic)
    with pytest.raises(errors.TopicGone):
        one.apply(event("a", 1))
    topics.create(one.cluster, one.topic, 3)
    with pytest.raises(errors.TopicReplaced):
        one.apply(event("a", 1))
    one.applier.plan = msgspec.structs.replace(
        one.plan, writer=msgspec.structs.replace(one.plan.writer, topic_id="another")
    )
    with pytest.raises(errors.LedgerMoved):
        one.apply(event("a", 1))
    assert rows(one.url) == []
    assert run_sql(one.url, "SELECT next_offset FROM instep_ledger") == [(0,)]


# --- the log --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frail() -> Iterator[local.LocalCluster]:
    """Start a broker for one test.

    Its records expire quickly on request, and its disk can be restored to an older state.
    """
    soon = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}
    with (
        tempfile.TemporaryDirectory() as folder,
        local.LocalCluster(root=Path(folder), properties=soon) as servers,
    ):
        yield servers


@pytest.fixture
def frail_harness(
    frail: local.LocalCluster, make_harness: Callable[..., Harness], topic: str
) -> Iterator[Harness]:
    with Cluster(settings.Kafka(), frail.bootstrap) as cluster:
        topics.create(cluster, topic, 3)
        harness = make_harness(kafka=cluster)
        yield harness
        for runner in harness.runners:
            runner.stop(patience_s=60)


@mostly_resident
def test_a_log_that_lost_its_newest_records_stops_the_pipeline(
    frail: local.LocalCluster, frail_harness: Harness, tmp_path: Path
) -> None:
    """Lose records while it runs, before it starts, and in a log that is past the ledger again."""
    harness, disk, copy = frail_harness, frail.nodes[0].root / "data", tmp_path / "older"
    harness.publish(*(event(f"a{n}", 2) for n in range(9)))
    harness.drain()
    frail.stop()
    shutil.copytree(disk, copy)
    frail.start()
    run = harness.run()
    harness.publish(*(event(f"b{n}", 2) for n in range(9)), event("a1", 3))
    wait_until(harness.in_step, "the records that will be lost")
    frail.stop()
    shutil.rmtree(disk)
    shutil.copytree(copy, disk)
    frail.start()
    ended(run, errors.LogDiverged)
    stop = harness.refused(errors.LogDiverged)
    assert "is next" in stop.what
    assert "instep rewind contracts --to @TIME" in stop.remedy
    harness.publish(*(event(f"c{n}", 2) for n in range(60)), event("a2", 1))
    stop = harness.refused(errors.LogDiverged)
    assert "another record" in stop.what
    plan = harness.rewind("--to", "start")
    assert any("applied again" in words for words in plan["words"])
    harness.drain()
    harness.assert_in_step()
    kept = run_sql(harness.owner, "SELECT count(*) FROM instep_history WHERE topic LIKE '%~%'")
    assert kept == [(19,)]
    assert run_sql(
        harness.owner, f"SELECT count(*) FROM instep_history WHERE topic = '{harness.topic}'"
    ) == [(70,)]


@mostly_resident
def test_retention_past_the_ledger_stops_the_pipeline(frail_harness: Harness) -> None:
    harness = frail_harness
    harness.publish(*(event(f"a{n}", 1) for n in range(9)))
    harness.drain()
    before = harness.next_offsets()
    harness.publish(*(event(f"a{n}", 2) for n in range(9)))
    configs.alter_topic(harness.cluster, harness.topic, {"retention.ms": "1"})
    ends = offsets.latest(harness.cluster, harness.topic, range(3))
    wait_until(
        lambda: offsets.earliest(harness.cluster, harness.topic, range(3)) == ends,
        "the records to expire",
    )
    stop = harness.refused(errors.OffsetsExpired)
    expired = {
        partition: (start, ends[partition] - 1)
        for partition, start in before.items()
        if ends[partition] > start
    }
    for partition, (start, last) in expired.items():
        assert f"partition {partition}: {start} to {last}" in stop.what
    assert len(rows(harness.owner)) == 9
    chosen = [word for partition in expired for word in ("--partition", str(partition))]
    assert f"instep rewind contracts --to start {' '.join(chosen)} --why TEXT" in stop.remedy
    done = instep(harness.folder, "rewind", "contracts", "--to", "start", *chosen, "--execute")
    assert (done.returncode, "--why" in done.stderr) == (2, True)
    assert harness.next_offsets() == before
    plan = harness.rewind("--to", "start", *chosen, "--why", "expired")
    assert (
        sum(last - start + 1 for start, last in (move["passed_over"] for move in plan["moves"]))
        == 9
    )
    assert run_sql(harness.owner, "SELECT DISTINCT reason FROM instep_decisions") == [("expired",)]
    harness.events = harness.events[:9]
    harness.drain()
    harness.assert_in_step()


@on_both_engines
def test_records_deleted_ahead_of_a_lagging_pipeline_stop_it(
    make_harness: Callable[..., Harness],
) -> None:
    harness = make_harness()
    padding = "x" * 20_000  # together more than a reader fetches ahead
    harness.publish(
        *(event(f"d{n}", version, note=padding) for version in range(1, 101) for n in range(30))
    )
    run = harness.run(batch_rows_max=30)
    wait_until(lambda: len(rows(harness.owner)) > 0, "the first batch")
    ends = offsets.latest(harness.cluster, harness.topic, range(3))
    with closing(sqlite3.connect(harness.owner.removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN IMMEDIATE")  # the pipeline waits meanwhile
        # by one request: a pipeline that the first partition stops must find the others cut too
        topics.trim(harness.cluster, harness.topic, {part: end - 60 for part, end in ends.items()})
    stop = ended(run, errors.OffsetsExpired)
    positions = harness.next_offsets()
    # a partition may have been read past the cut before the others were
    lagging = {part: start for part, start in positions.items() if start < ends[part] - 60}
    assert lagging
    for partition, start in lagging.items():
        assert f"partition {partition}: {start} to {ends[partition] - 61}" in stop.what
    for partition in positions.keys() - lagging.keys():
        assert f"partition {partition}: " not in stop.what
    harness.rewind("--to", "start", "--why", "deleted by hand")
    harness.drain()
    harness.assert_in_step()


# --- other runs -----------------------------------------------------------------------------------


@mostly_resident
def test_an_older_writer_that_wakes_up_is_fenced(make_harness: Callable[..., Harness]) -> None:
    """Pause a run, start another one, and resume the first.

    It ends by itself and has written nothing since.
    """
    harness = make_harness("postgres")
    harness.publish(event("a", 1))
    with PipelineProcess(harness.config, log=harness.folder / "run.log") as process:
        wait_until(harness.in_step, "the first record")
        everything = [process.pid, *process.children()]
        for pid in everything:
            os.kill(pid, signal.SIGSTOP)
        second = harness.run()
        harness.publish(*(event(f"b{n}", 1) for n in range(20)))
        wait_until(harness.in_step, "the second run to apply")
        for pid in everything:
            os.kill(pid, signal.SIGCONT)
        harness.publish(*(event(f"c{n}", 1) for n in range(20)))
        assert process.wait(120) == 3, process.tail()
        assert "FENCED: " in process.tail()
        assert "instep explain FENCED" in process.tail()
    wait_until(harness.in_step, "the second run to go on")
    wait_until(lambda: second.state is RunnerState.RUNNING, "the second run to run")
    harness.assert_in_step()
    assert run_sql(harness.owner, "SELECT count(*) FROM instep_history") == [(41,)]


# --- the target -----------------------------------------------------------------------------------


ALTERED = [
    (
        "postgres",
        "ALTER COLUMN print_status TYPE varchar(3)",
        "ALTER COLUMN print_status TYPE varchar(255)",
    ),
    ("mariadb", "ADD COLUMN owner VARCHAR(9) NOT NULL", "DROP COLUMN owner"),
    (
        "postgres",
        "ALTER COLUMN print_status TYPE integer USING 7",
        "ALTER COLUMN print_status TYPE varchar(255)",
    ),
    ("postgres", "RENAME COLUMN print_status TO other", "RENAME COLUMN other TO print_status"),
    ("mariadb", "MODIFY print_status VARCHAR(3)", "MODIFY print_status VARCHAR(255)"),
    ("mariadb", "DROP COLUMN print_status", "ADD COLUMN print_status VARCHAR(255)"),
    ("mysql", "MODIFY print_status VARCHAR(3)", "MODIFY print_status VARCHAR(255)"),
    ("sqlite", "RENAME TO other", ""),
]


@mostly_resident
def test_an_altered_table_stops_the_pipeline(make_harness: Callable[..., Harness]) -> None:
    """Check that no document is quarantined."""
    kind, change, repair = ALTERED[0]
    harness = make_harness(kind)
    harness.publish(*(event(f"a{n}", 1, "OK") for n in range(9)))
    run = harness.run()
    wait_until(harness.in_step, "the first records")
    before = harness.next_offsets()
    run_sql(harness.owner, f"ALTER TABLE contract_document {change}")
    harness.publish(*(event(f"b{n}", 1) for n in range(9)), *(event(f"a{n}", 2) for n in range(9)))
    stop = ended(run, errors.TargetChanged)
    assert "contract_document" in stop.what
    assert harness.next_offsets() == before
    run_sql(harness.owner, f"ALTER TABLE contract_document {repair}")
    harness.drain()
    harness.assert_in_step()


@pytest.mark.parametrize(("kind", "change", "repair"), ALTERED)
def test_a_task_reports_an_altered_table(
    session: Callable[..., TaskHarness], kind: str, change: str, repair: str
) -> None:
    task_harness = session(kind)
    task_harness.apply(event("a", 1, "OK"))
    run_sql(task_harness.url, f"ALTER TABLE contract_document {change}")
    with pytest.raises(errors.TargetChanged, match=r"contract_document|print_status"):
        task_harness.apply(event("a", 2), event("b", 1))
    assert run_sql(task_harness.url, "SELECT count(*) FROM instep_parked") == [(0,)]
    if repair:
        run_sql(task_harness.url, f"ALTER TABLE contract_document {repair}")
        task_harness.apply(event("a", 2), event("b", 1))
        assert rows(task_harness.url) == [("a", "PRINTED", 2), ("b", "PRINTED", 1)]


@mostly_resident
def test_a_constraint_added_during_the_run_does_not_stop_the_pipeline(
    make_harness: Callable[..., Harness],
) -> None:
    """Restart the query by itself: then the table judges every event, also within one batch."""
    harness = make_harness("postgres")
    harness.publish(event("a", 1, "OK"))
    run = harness.run()
    wait_until(harness.in_step, "the first record")
    run_sql(harness.owner, "ALTER TABLE contract_document ADD CHECK (print_status <> 'CANCELLED')")
    harness.publish(event("b", 1, "CANCELLED"))
    wait_until(
        lambda: run_sql(harness.owner, "SELECT document FROM instep_parked") == [("b",)],
        "the document to be parked",
    )
    harness.publish(event("c", 1, "CANCELLED"), event("c", 2), event("d", 1))
    wait_until(
        lambda: run_sql(harness.owner, "SELECT count(*) FROM instep_parked") == [(3,)],
        "the next one to be parked",
    )
    wait_until(
        lambda: rows(harness.owner) == [("a", "OK", 1), ("d", "PRINTED", 1)], "the others to flow"
    )
    wait_until(lambda: run.state is RunnerState.RUNNING, "the pipeline to say that it runs")
    assert run.restarts == 1


@mostly_resident
@pytest.mark.parametrize("kind", ["postgres", pytest.param("mariadb", marks=pytest.mark.long)])
def test_a_revoked_right_stops_the_pipeline(
    make_harness: Callable[..., Harness], kind: str
) -> None:
    harness = make_harness(kind, user=True)
    name = urlparse(harness.url).username
    harness.publish(*(event(f"a{n}", 1) for n in range(9)))
    run = harness.run()
    wait_until(harness.in_step, "the records so far")
    before = harness.next_offsets()
    run_sql(harness.owner, f"REVOKE INSERT ON contract_document FROM {name}")
    harness.publish(*(event(f"b{n}", 1) for n in range(9)))
    stop = ended(run, errors.PermissionLost)
    assert "contract_document" in stop.what
    assert kind != "mariadb" or "INSERT command denied" in stop.what
    assert harness.next_offsets() == before
    run_sql(harness.owner, f"GRANT INSERT ON contract_document TO {name}")
    # MariaDB does not even show a table on which the user has no right
    for table in (
        ("contract_document", "instep_ledger") if kind == "mariadb" else ("instep_ledger",)
    ):
        run_sql(harness.owner, f"REVOKE SELECT, INSERT, UPDATE, DELETE ON {table} FROM {name}")
        stop = harness.refused(errors.PermissionLost)
        assert table in stop.what
        run_sql(harness.owner, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {name}")
    harness.drain()
    harness.assert_in_step()


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
@pytest.mark.parametrize("table", ["instep_history", "instep_ledger"])
def test_a_task_reports_a_revoked_right(
    session: Callable[..., TaskHarness], kind: str, table: str
) -> None:
    one = session(kind, user=True)
    name, right = urlparse(one.url).username, "INSERT" if table == "instep_history" else "UPDATE"
    run_sql(one.owner, f"REVOKE {right} ON {table} FROM {name}")
    with pytest.raises(errors.PermissionLost, match=table):
        one.apply(event("a", 1))
    assert rows(one.owner) == []
    run_sql(one.owner, f"GRANT {right} ON {table} TO {name}")
    one.apply(event("a", 1))
    assert rows(one.owner) == [("a", "PRINTED", 1)]


@mostly_resident
def test_a_read_only_postgres_stops_the_pipeline(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness("postgres", user=True)
    name = urlparse(harness.url).username
    harness.publish(event("a", 1))
    run = harness.run()
    wait_until(harness.in_step, "the first record")
    run_sql(harness.owner, f"ALTER ROLE {name} SET default_transaction_read_only = on")
    run_sql(
        harness.owner,
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'",
    )
    harness.publish(event("b", 1))
    ended(run, errors.TargetReadOnly)
    harness.refused(errors.TargetReadOnly)
    run_sql(harness.owner, f"ALTER ROLE {name} RESET default_transaction_read_only")
    harness.drain()
    harness.assert_in_step()


@mostly_resident
def test_a_read_only_mariadb_stops_the_pipeline(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness("mariadb", user=True)
    harness.publish(event("a", 1))
    run = harness.run()
    wait_until(harness.in_step, "the first record")
    try:
        run_sql(harness.owner, "SET GLOBAL read_only = ON")
        harness.publish(event("b", 1))
        ended(run, errors.TargetReadOnly)
        harness.refused(errors.TargetReadOnly)
    finally:
        run_sql(harness.owner, "SET GLOBAL read_only = OFF")
    harness.drain()
    harness.assert_in_step()


READ_ONLY = """
import os, sys
from instep import errors, sinks
from instep.sinks import inspection
from tests.support.databases import declare
import instep.sinks.sqlite
file, mode = sys.argv[1:]
os.chmod(file, 0o444 if mode == "file" else 0o666)
os.chmod(os.path.dirname(file), 0o777 if mode == "file" else 0o555)
if os.geteuid() == 0:
    os.seteuid(65534)  # permissions do not bind root
try:
    sink = sinks.open_sink(inspection.inspect("contracts", declare(f"sqlite:///{file}")))
    with sink.transaction():
        sink.ledger.positions(lock=True)
        sink.connection.execute("UPDATE instep_ledger SET epoch = 0")
except errors.TargetReadOnly as error:
    print(error)
"""


@pytest.mark.parametrize("mode", ["file", "folder"])
def test_a_read_only_sqlite_file_stops_the_pipeline(mode: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "target.db"
        preparation.prepare(declare(f"sqlite:///{file}"))
        with closing(sqlite3.connect(file)) as opened:
            opened.execute("PRAGMA journal_mode = WAL")
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(file), mode],
            capture_output=True,
            text=True,
            check=False,
        )
        Path(folder).chmod(0o777)
    assert done.stdout.startswith("TARGET_READ_ONLY: "), done.stderr


# --- a database from a backup ---------------------------------------------------------------------


@mostly_resident
@pytest.mark.parametrize(
    "kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.long), "mariadb"]
)
def test_a_database_restored_from_a_backup_catches_up(
    make_harness: Callable[..., Harness], kind: str, tmp_path: Path
) -> None:
    """Restore a backup while it runs, with nothing new to apply.

    What was applied since the backup is applied again, and nothing is skipped.
    """
    harness = make_harness(kind)
    harness.publish(*(event(f"a{n}", 1) for n in range(10)))
    run = harness.run()
    wait_until(harness.in_step, "the first records")
    put_back = BACKUPS[kind](harness, tmp_path)
    harness.publish(*(event(f"b{n}", 1) for n in range(10)), event("a1", 2))
    wait_until(harness.in_step, "the records after the backup")
    put_back()
    wait_until(harness.in_step, "everything to be there again")
    wait_until(lambda: run.state is RunnerState.RUNNING, "the pipeline to say that it runs")
    assert run.restarts >= 1
    harness.publish(*(event(f"c{n}", 1) for n in range(10)))
    wait_until(harness.in_step, "it to go on")
    harness.assert_in_step()
    assert run_sql(harness.owner, "SELECT count(*) FROM instep_history") == [(31,)]


def _file_backup(harness: Harness, tmp_path: Path) -> Callable[[], None]:
    file, backup = Path(harness.owner.removeprefix("sqlite:///")), tmp_path / "backup.db"
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(backup)) as copy:
        source.backup(copy)

    def put_back() -> None:
        for rest in file.parent.glob("target.db-*"):
            rest.unlink()
        assert rows(f"sqlite:///{backup}") != harness.expected()
        backup.replace(file)

    return put_back


def _table_backup(harness: Harness, _tmp_path: Path) -> Callable[[], None]:
    """Copy every table in one transaction, and restore in one that waits for the pipeline's own."""
    tables = ("instep_ledger", "contract_document", "instep_history")
    lock = "SELECT count(*) FROM (SELECT 1 FROM instep_ledger FOR UPDATE) AS locked"
    for table in tables:
        run_sql(harness.owner, f"CREATE TABLE backup_{table} AS SELECT * FROM {table}")

    def put_back() -> None:
        emptied = [f"DELETE FROM {table}" for table in reversed(tables)]
        filled = [f"INSERT INTO {table} SELECT * FROM backup_{table}" for table in tables]
        run_sql(harness.owner, lock, *emptied, *filled)

    return put_back


BACKUPS: dict[str, Callable[[Harness, Path], Callable[[], None]]] = {
    "sqlite": _file_backup,
    "postgres": _table_backup,
    "mariadb": _table_backup,
}


# --- rewind, while it runs ------------------------------------------------------------------------


@mostly_resident
def test_a_running_pipeline_follows_a_rewind(make_harness: Callable[..., Harness]) -> None:
    """Rewind back: everything is applied again, and nothing quarantined.

    Rewind to the end: what lies between is not applied.
    """
    harness = make_harness("postgres")
    harness.publish(*(event(f"a{n % 10}", n) for n in range(60)))
    run = harness.run()
    wait_until(harness.in_step, "the records")
    before = harness.next_offsets()
    shown = harness.instep("rewind", "contracts", "--to", "start")
    assert shown.splitlines()[0].split() == [
        "PIPELINE",
        "TOPIC",
        "PARTITION",
        "CURRENT",
        "NEW",
        "DELTA",
    ]
    assert harness.next_offsets() == before
    run_sql(harness.owner, "DELETE FROM contract_document WHERE doc_no = 'a3'")
    harness.rewind("--to", "start")
    wait_until(
        lambda: harness.in_step() and harness.next_offsets() == before,
        "everything to be applied again",
    )
    harness.publish(event("b", 1))
    wait_until(harness.in_step, "it to go on")
    wait_until(lambda: run.state is RunnerState.RUNNING, "the pipeline to say that it runs")
    assert run.restarts == 1
    harness.assert_in_step()
    assert run_sql(harness.owner, "SELECT count(*) FROM instep_history") == [(61,)]
