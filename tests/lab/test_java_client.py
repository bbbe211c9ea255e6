"""Test the lab's client with Kafka's Java library on a real broker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from instep import errors
from instep.local import java
from instep_lab import checkers
from instep_lab.claim import Tier
from instep_lab.clients import java_client
from instep_lab.clients.consuming import CommitMode, Consuming, CrashPoint
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import DeliveryMode, KeyEncoding, Publishing
from instep_lab.cluster_pool import ClusterPool
from instep_lab.history import OperationKind, OperationStatus
from instep_lab.trial import Scenario, Trial

JAVA = Library.JAVA


@pytest.fixture
def trial(pool: ClusterPool, tmp_path: Path) -> Trial:
    return Trial("probe", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))


def count(scenario: Scenario, kind: OperationKind, outcome: OperationStatus | None = None) -> int:
    return sum(one.kind is kind and outcome in (None, one.outcome) for one in scenario.history())


def test_both_libraries_read_what_the_java_producer_sends(trial: Trial) -> None:
    scenario, topic = trial.scenario("probe"), trial.topic(2)
    scenario.publish(Publishing(topic=topic, count=200, keys=5, library=JAVA))
    assert scenario.acknowledged == 200
    for library in (JAVA, Library.LIBRDKAFKA):
        group = trial.group()
        read = scenario.consume(Consuming(topic=topic, group=group, library=library, to_end=True))
        operations = scenario.history()
        assert read.read == 200
        assert not checkers.lost(operations, group)
        assert not checkers.repeated(operations, group)
        assert not checkers.inverted(operations, group)
        assert not checkers.unsent(operations, group)
    # each record was read at the offset that was acknowledged
    placed = {
        (one.record, one.partition, one.offset)
        for one in operations
        if one.kind is OperationKind.SEND
    }
    assert placed == {
        (one.record, one.partition, one.offset)
        for one in operations
        if one.kind is OperationKind.READ
    }
    trial.close()


def test_clients_share_a_virtual_machine_that_survives_a_failure(trial: Trial) -> None:
    scenario, topic = trial.scenario("probe"), trial.topic(1)
    scenario.publish(Publishing(topic=topic, count=10, library=JAVA))
    host = trial.cluster.java_host()
    unknown = {"auto.offset.reset": "unknown"}
    plan = Consuming(topic=topic, group=trial.group(), library=JAVA, config=unknown)
    with pytest.raises(errors.InstepError, match="ConfigException: Invalid value unknown"):
        scenario.consume(plan)
    reading = Consuming(topic=topic, group=trial.group(), library=JAVA, to_end=True)
    assert scenario.consume(reading).read == 10
    assert trial.cluster.java_host() is host
    assert host.status is None
    trial.close()


def test_a_new_virtual_machine_replaces_one_that_was_ended(trial: Trial, tmp_path: Path) -> None:
    scenario, topic, release = trial.scenario("probe"), trial.topic(1), tmp_path / "release"
    scenario.publish(Publishing(topic=topic, count=10, library=JAVA))
    plan = Consuming(topic=topic, group=trial.group(), hangs_on=5, hangs_until=str(release))
    host = trial.cluster.java_host()
    connection = trial.cluster.java_connection(trial.cluster.connection)
    hanging = host.start(
        msgspec.structs.replace(plan, library=JAVA), connection, tmp_path / "hanging.jsonl"
    )
    trial.wait(lambda: "hangs" in hanging.file.read_text(encoding="utf-8"), "the client to hang")
    hanging.close()
    assert hanging.status == -signal.SIGKILL
    scenario.publish(Publishing(topic=topic, count=10, first=10, library=JAVA))
    assert scenario.acknowledged == 20
    assert trial.cluster.java_host() is not host
    trial.close()


def test_a_consumer_that_dies_leaves_its_history(trial: Trial) -> None:
    scenario, topic, group = trial.scenario("probe"), trial.topic(1), trial.group()
    scenario.publish(Publishing(topic=topic, count=50, library=JAVA))
    plan = Consuming(
        topic=topic,
        group=group,
        library=JAVA,
        commit=CommitMode.SYNC,
        batch=10,
        to_end=True,
        dies_at=CrashPoint.WORKED,
        dies_on=25,
        config={"session.timeout.ms": 1_500, "heartbeat.interval.ms": 500},
    )
    assert scenario.run(plan) == -signal.SIGKILL
    assert count(scenario, OperationKind.WORK) == 25
    commits = [one.offset for one in scenario.history() if one.kind is OperationKind.COMMIT]
    assert commits == [10, 20]
    trial.close()


def test_a_background_publisher_ends_when_it_is_stopped(trial: Trial) -> None:
    scenario, topic = trial.scenario("probe"), trial.topic(1)
    plan = Publishing(topic=topic, count=1_000_000, per_s=200, library=JAVA)
    with scenario.background(plan):
        trial.wait_for_more([scenario], 20)
    assert scenario.acknowledged == count(scenario, OperationKind.SEND, OperationStatus.OK)
    scenario.read_topic(topic)
    assert not checkers.lost(scenario.history(), by=OperationKind.READ)
    trial.close()


def test_a_consumer_hangs_until_it_may_go_on_and_notes_the_end(
    trial: Trial, tmp_path: Path
) -> None:
    scenario, topic, release = trial.scenario("probe"), trial.topic(1), tmp_path / "release"
    scenario.publish(Publishing(topic=topic, count=50))
    plan = Consuming(
        topic=topic, group=trial.group(), library=JAVA, hangs_on=30, hangs_until=str(release)
    )
    with scenario.background(plan) as (progress, _):
        trial.wait(lambda: count(scenario, OperationKind.FAULT) == 1, "the consumer to hang")
        assert count(scenario, OperationKind.WORK) == 29
        assert progress.ends == {}
        release.touch()
        trial.wait(lambda: progress.ends == {0: 50}, "the end of the partition")
    assert count(scenario, OperationKind.WORK) == 50
    trial.close()


@pytest.mark.parametrize("library", [JAVA, Library.LIBRDKAFKA])
def test_a_sampled_consumer_records_only_the_first_and_the_last_operation(
    trial: Trial, library: Library
) -> None:
    scenario, topic = trial.scenario("measured"), trial.topic(1)
    trial.fill(topic, 50)
    plan = Consuming(
        topic=topic,
        group=trial.group(),
        library=library,
        count=40,
        batch=20,
        commit_every=1,
        sampled=True,
    )
    scenario.consume(plan)
    found = [
        (one.kind, one.offset)
        for one in scenario.history()
        if one.kind in (OperationKind.READ, OperationKind.WORK, OperationKind.COMMIT)
    ]
    assert sorted(found) == [
        (OperationKind.COMMIT, 1),
        (OperationKind.COMMIT, 40),
        (OperationKind.READ, 0),
        (OperationKind.READ, 39),
        (OperationKind.WORK, 0),
        (OperationKind.WORK, 39),
    ]
    assert scenario.check().operations == 0
    trial.close()


def test_a_producer_that_forgets_knows_no_outcome(trial: Trial) -> None:
    scenario, topic = trial.scenario("probe"), trial.topic(4)
    scenario.publish(
        Publishing(
            topic=topic,
            count=20,
            keys=4,
            library=JAVA,
            mode=DeliveryMode.FORGET,
            encoding=KeyEncoding.INTEGER,
            by_number=4,
        )
    )
    assert count(scenario, OperationKind.SEND, OperationStatus.UNKNOWN) == 20
    scenario.read_topic(topic, 4)
    read = [one for one in scenario.history() if one.kind is OperationKind.READ]
    assert len(read) == 20
    assert all(one.key == f"k{one.partition}" for one in read)
    trial.close()


def test_settings_that_the_client_rejects() -> None:
    refused = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 6}
    assert "at most 5" in (java_client.rejection(refused) or "")  # test_chooser.py has others


def test_a_java_without_a_compiler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = java.find()
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && exec {real} -version\n'
        "echo 'Module jdk.compiler not found' >&2; exit 1\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java_client, "SOURCE", tmp_path / "Changed.java")
    java_client.SOURCE.write_text("class Changed {}", encoding="utf-8")
    with pytest.raises(errors.MissingPart, match="cannot compile") as missing:
        java_client.command()
    assert "openjdk-17-jdk-headless" in missing.value.remedy


def test_the_connection_is_in_no_argument_list() -> None:
    assert java_client.CONNECTION not in os.environ
    assert not any("bootstrap" in argument for argument in java_client.command())
