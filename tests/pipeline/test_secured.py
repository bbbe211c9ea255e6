"""Test pipelines on a secured cluster: every way to connect, and a revoked right as named stop."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from instep import errors, settings
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.pipeline import flow_runner
from instep.pipeline.runner import RunnerState
from instep.sinks import preparation
from tests.support import commands, secured
from tests.support.databases import run_sql
from tests.support.kafka_users import LOGINS, kafka, user
from tests.support.pipelines import OwnRunner, drained, following
from tests.support.runs import event, rows, send
from tests.support.secured import KEY_PASSWORD, PASSWORD, SecuredBroker
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RIGHTS = [("READ", "topic"), ("READ", "group")]  # all that a pipeline needs


@pytest.fixture
def plain(secured_broker: SecuredBroker) -> Iterator[Cluster]:
    """Return the cluster as its administrator sees it."""
    with Cluster(settings.Kafka(), secured_broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def topic(plain: Cluster) -> str:
    name = f"secured-{uuid.uuid4().hex[:8]}"
    topics.create(plain, name, 2)
    send(plain, name, *(event(f"d{number}", 1) for number in range(10)))
    return name


@pytest.mark.parametrize(
    "login",
    ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "certificate", "certificate with a locked key"],
)
def test_spark_connects_with_every_security_protocol(
    secured_broker: SecuredBroker,
    spark: SparkSession,
    new_database: Callable[[str], str],
    topic: str,
    tmp_path: Path,
    login: str,
) -> None:
    listener, options = LOGINS[login]
    pipeline = following(new_database("sqlite"), topic)
    preparation.prepare(pipeline)
    declared = kafka(secured_broker, **options(secured_broker))
    with Cluster(declared, secured_broker.bootstrap_of(listener)) as cluster:
        run = OwnRunner("contracts", pipeline, cluster, spark, tmp_path / "run", once=True)
        run.start()
        drained(run)
    assert rows(pipeline.target) == [(f"d{number}", "PRINTED", 1) for number in range(10)]


def test_a_revoked_right_is_named(
    secured_broker: SecuredBroker,
    spark: SparkSession,
    plain: Cluster,
    new_database: Callable[[str], str],
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_runner, "CHECK_INTERVAL_S", 0.5)
    monkeypatch.setattr(flow_runner, "BACKOFF_FIRST_S", 0.05)
    pipeline = following(new_database("sqlite"), topic)
    preparation.prepare(pipeline)
    names = {"topic": topic, "group": "instep-contracts"}
    for right, on in RIGHTS:
        secured.grant(plain, "User:bob", right, **{on: names[on]})
    bob = kafka(secured_broker, **user("SCRAM-SHA-512", "bob", "bob"))
    with Cluster(bob, secured_broker.bootstrap_of("scram")) as cluster:
        wait_until(lambda: _may_describe(cluster, topic), "the right to reach the broker")
        run = OwnRunner("contracts", pipeline, cluster, spark, tmp_path / "run", once=False)
        run.start()
        try:
            wait_until(lambda: len(rows(pipeline.target)) == 10, "the first events")
            secured.revoke(plain, "User:bob", "READ", topic=topic)
            send(plain, topic, *(event(f"e{number}", 1) for number in range(10)))
            wait_until(lambda: run.state is RunnerState.ENDED, "the stop")
        finally:
            run.stop(60)
        assert isinstance(run.error, errors.AccessLost)
        assert f"user 'bob' lacks the DESCRIBE permission on topic '{topic}'" in run.error.what
        assert "kafka-acls --add --allow-principal User:bob" in run.error.remedy
        # nothing is lost: new records wait in the log
        secured.grant(plain, "User:bob", "READ", topic=topic)
        wait_until(lambda: _may_describe(cluster, topic), "the right to reach the broker")
        again = OwnRunner("contracts", pipeline, cluster, spark, tmp_path / "again", once=True)
        again.start()
        drained(again)
    assert [row[0] for row in rows(pipeline.target)] == [
        f"{kind}{number}" for kind in "de" for number in range(10)
    ]
    assert run_sql(pipeline.target, "SELECT count(*) FROM instep_history") == [(20,)]


def _may_describe(cluster: Cluster, topic: str) -> bool:
    try:
        topics.describe(cluster, topic)
    except errors.NotAuthorised:
        return False
    return True


SETTINGS = """
[kafka]
bootstrap = "{bootstrap}"

[kafka.security]
protocol = "SASL_SSL"
mechanism = "SCRAM-SHA-512"
username = "ann"
password = "${{KAFKA_PASSWORD}}"
ca = "ca.pem"
certificate = "{certificate}"
key = "{key}"
key_password = "${{KEY_PASSWORD}}"

[pipelines.contracts]
topic = "{topic}"
target = "sqlite:///contracts.db"
table = "contract_document"
key = "doc_no"
event = {{ document = "doc_id", status = "status", order = "version" }}
columns = {{ print_status = "status", print_version = "version" }}
"""


def test_secrets_are_never_shown_and_errors_are_reported_at_the_start(
    secured_broker: SecuredBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes(secured_broker.authority.ca.read_bytes())
    locked = secured_broker.ann_locked
    text = SETTINGS.format(
        bootstrap=secured_broker.bootstrap_of("scram"),
        topic=topic,
        certificate=locked.certificate,
        key=locked.key,
    )
    (tmp_path / "instep.toml").write_text(text, encoding="utf-8")
    options: list[str] = []

    def instep(*arguments: str, given: str = "", **environment: str) -> Any:
        secrets = {"KAFKA_PASSWORD": PASSWORD, "KEY_PASSWORD": KEY_PASSWORD}
        done = commands.run(
            arguments, cwd=tmp_path, env={**os.environ, **secrets, **environment}, given=given
        )
        options.append(done.stdout + done.stderr)
        return done

    assert instep("settings").returncode == 0
    assert instep("init").returncode == 0
    assert instep("emit", "-", given=json.dumps(event("x", 1)[1])).returncode == 0
    done = instep("run", "--once", "--debug")
    assert done.returncode == 0, done.stderr
    assert (
        len(run_sql(f"sqlite:///{tmp_path}/contracts.db", "SELECT * FROM contract_document")) == 11
    )
    assert instep("status", "--json").returncode == 0
    faults: list[tuple[tuple[str, ...], dict[str, str], str]] = [
        (("run", "--once"), {"KAFKA_PASSWORD": "not-it-either"}, "does not accept user 'ann'"),
        (
            ("run", "--once"),
            {"KEY_PASSWORD": "not-it-either"},
            "kafka.security.key_password does not decrypt",
        ),
        (("emit", "-"), {"INSTEP__KAFKA__SECURITY__CA": "none.pem"}, "kafka.security.ca"),
        (
            ("emit", "-"),
            {"INSTEP__KAFKA__BOOTSTRAP": secured_broker.bootstrap_of("login")},
            "does not support TLS",
        ),
    ]
    for command, changed, words in faults:
        done = instep(*command, **changed)
        assert (done.returncode, len(done.stderr.splitlines()) <= 2) == (2, True), done.stderr
        assert words in done.stderr
    assert "does not accept user 'ann'" in instep("status", KAFKA_PASSWORD="not-it-either").stderr
    instep("run", "--once", "--debug", KAFKA_PASSWORD="not-it-either")
    for secret in (PASSWORD[-6:], KEY_PASSWORD, "not-it-either"):
        assert not [text for text in options if secret in text]
