"""Test rules on real servers with wrong settings: the snapshot has what is there."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from instep import settings
from instep.kafka import topics
from instep.kafka.admin import replication
from instep.kafka.connection import Cluster
from instep.local import broker as kafka
from instep.sinks import preparation
from instep.sources import tables
from instep.vet import gathering, judgement, snapshot
from tests.support import relays
from tests.support.databases import declare, run_sql
from tests.support.waiting import wait_until

Vet = Callable[..., set[str]]
WRONG_BROKERS = {
    "auto.create.topics.enable": "true",
    "offsets.retention.minutes": "60",
    "replica.lag.time.max.ms": "120000",
    "min.insync.replicas": "1",
    "broker.rack": "cellar",
}
EVENT = {"doc_id": "C-1", "status": "PRINTED", "version": 1, "updated_at": "2026-11-01T08:00:00Z"}


def take_snapshot(
    cluster: Cluster, pipeline: settings.Pipeline, **declared: Any
) -> snapshot.Snapshot:
    whole = settings.Settings(pipelines={"contracts": pipeline}, **declared)
    return gathering.gather(cluster, whole, ["contracts"])


def broken(cluster: Cluster, pipeline: settings.Pipeline) -> set[str]:
    """Return the broken rules, and check that every rule could be judged."""
    verdict = judgement.judge(take_snapshot(cluster, pipeline))
    assert verdict.unjudged == []
    return {one.rule for one in verdict.findings}


def broken_at_least(cluster: Cluster, pipeline: settings.Pipeline) -> set[str]:
    """Return the broken rules, though others may be unknown."""
    return {one.rule for one in judgement.judge(take_snapshot(cluster, pipeline)).findings}


def send(
    cluster: Cluster,
    topic: str,
    *records: tuple[bytes | None, Any],
    times: int | None = None,
    **config: Any,
) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **config})
    for key, value in records:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, body, key, timestamp=times or 0)
    assert producer.flush(30) == 0


@pytest.fixture
def cluster(broker: kafka.LocalCluster) -> Iterator[Cluster]:
    with Cluster(settings.Kafka(), broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def vet(cluster: Cluster, tmp_path: Path) -> Vet:
    """Return a function that makes a topic and judges a pipeline from it into SQLite."""

    def judge(
        partitions: int = 2,
        fill: Callable[[str], None] | None = None,
        config: Any = None,
        **pipeline: Any,
    ) -> set[str]:
        topic = f"vet-{uuid.uuid4().hex[:8]}"
        topics.create(cluster, topic, partitions, config=config)
        if fill:
            fill(topic)
        declared = declare(f"sqlite:///{tmp_path}/{topic}.db", topic=topic, **pipeline)
        preparation.prepare(declared)
        return broken(cluster, declared)

    return judge


@pytest.mark.parametrize(
    ("config", "pipeline", "rule"),
    [
        ({"min.insync.replicas": "2"}, {}, "TOPIC_MIN_INSYNC_REPLICAS_TOO_HIGH"),
        ({"unclean.leader.election.enable": "true"}, {}, "TOPIC_UNCLEAN_ELECTION_ALLOWED"),
        ({"retention.ms": "3600000"}, {}, "TOPIC_RETENTION_SHORT"),
        ({"retention.bytes": "100000"}, {}, "TOPIC_RETENTION_BY_SIZE"),
        ({"cleanup.policy": "compact"}, {}, "TOPIC_COMPACTED"),
        ({"cleanup.policy": "compact,delete"}, {}, "TOPIC_DELETE_RETENTION_SHORT"),
        (
            {"message.timestamp.type": "LogAppendTime"},
            {"event": {"status": "status"}},
            "TOPIC_USES_LOG_APPEND_TIME",
        ),
        ({"message.timestamp.before.max.ms": "60000"}, {}, "TOPIC_REFUSES_OLD_TIMESTAMPS"),
        ({"max.message.bytes": "2000"}, {}, "TOPIC_MAX_RECORD_SIZE_LOW"),
        ({"leader.replication.throttled.replicas": "*"}, {}, "TOPIC_REPLICATION_THROTTLED"),
        ({}, {"event": {"status": "status"}}, "PIPELINE_WITHOUT_GUARD"),
        ({}, {"start": "latest"}, "PIPELINE_SKIPS_EXISTING_RECORDS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_misconfigured_topic_is_found(
    vet: Vet, config: dict[str, str], pipeline: dict[str, Any], rule: str
) -> None:
    found = vet(config=config, **pipeline)
    assert rule in found
    assert "TOPIC_SINGLE_REPLICA" in found
    assert "CLUSTER_SINGLE_BROKER" in found


def test_problems_are_found_in_the_records(vet: Vet, cluster: Cluster) -> None:
    idempotent: dict[str, Any] = {"enable.idempotence": True, "partitioner": "murmur2"}

    def wrongly(topic: str) -> None:
        # librdkafka's defaults: CRC32, not idempotent
        send(
            cluster, topic, *((f"C-{n}".encode(), {**EVENT, "doc_id": f"C-{n}"}) for n in range(20))
        )
        send(cluster, topic, (None, EVENT), (b"C-1", b"no JSON"))
        send(cluster, topic, (b"C-2", EVENT), times=int(time.time() * 1000) + 1_800_000)
        send(cluster, topic, (b"C-3", {**EVENT, "note": "x" * 1700}))
        send(
            cluster,
            topic,
            (b"C-4", {**EVENT, "doc_id": "C-4"}),
            (b"C-4", {**EVENT, "doc_id": "C-4", "status": "SENT"}),
        )
        send(cluster, topic, (b"C-5", {**EVENT, "doc_id": "C-5", "updated_at": 1_793_000_000}))

    found = vet(partitions=4, fill=wrongly, config={"max.message.bytes": "2000"})
    assert found >= {
        "RECORDS_WITHOUT_KEY",
        "RECORDS_IN_WRONG_PARTITION",
        "RECORDS_NOT_IDEMPOTENT",
        "RECORDS_UNREADABLE",
        "RECORDS_NEAR_SIZE_LIMIT",
        "RECORDS_TIMESTAMPS_IN_FUTURE",
        "RECORDS_KEY_IS_NOT_DOCUMENT_ID",
        "RECORDS_SAME_ORDER_VALUE",
        "RECORDS_EVENT_TIME_IMPLAUSIBLE",
    }

    def rightly(topic: str) -> None:
        events = ((f"C-{n}".encode(), {**EVENT, "doc_id": f"C-{n}"}) for n in range(20))
        send(cluster, topic, *events, **idempotent)

    assert not {rule for rule in vet(partitions=4, fill=rightly) if rule.startswith("RECORDS")}


def test_problems_are_found_in_statuses_and_timestamps(vet: Vet, cluster: Cluster) -> None:
    def early(topic: str) -> None:
        send(
            cluster,
            topic,
            *((f"C-{n}".encode(), {**EVENT, "doc_id": f"C-{n}"}) for n in range(10)),
            times=1_793_000,
        )

    found = vet(
        fill=early,
        config={"cleanup.policy": "compact"},
        transitions={"QUEUED": ["PRINTD"], "PRINTD": []},
    )
    assert found >= {"RECORDS_TIMESTAMPS_TOO_OLD", "PIPELINE_STATUS_NOT_DECLARED"}


def test_an_open_transaction_is_found(vet: Vet, cluster: Cluster) -> None:
    """Send records of five minutes ago in a transaction that is never ended."""
    config: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "transactional.id": uuid.uuid4().hex,
    }
    producer = Producer(config)
    producer.init_transactions(30)
    producer.begin_transaction()

    def begin(topic: str) -> None:
        producer.produce(
            topic,
            json.dumps(EVENT).encode(),
            b"C-1",
            partition=0,
            timestamp=int(time.time() * 1000) - 300_000,
        )
        assert producer.flush(30) == 0

    try:
        assert "TOPIC_TRANSACTION_OPEN" in vet(fill=begin)
    finally:
        producer.abort_transaction(30)


def test_problems_are_found_in_the_ledger(cluster: Cluster, tmp_path: Path) -> None:
    topic = f"vet-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 1)
    send(cluster, topic, *((b"C-1", {**EVENT, "version": n}) for n in range(10)))
    pipeline = declare(f"sqlite:///{tmp_path}/t.db", topic=topic)
    preparation.prepare(pipeline)
    now = topics.describe(cluster, topic)

    def ledger(next_offset: int, topic_id: str = now.id) -> set[str]:
        run_sql(
            pipeline.target,
            "DELETE FROM instep_ledger",
            "INSERT INTO instep_ledger (pipeline, topic, partition, next_offset, epoch,"
            " cluster_id, topic_id)"
            f" VALUES ('contracts', '{topic}', 0, {next_offset}, 1, '{now.cluster_id}',"
            f" '{topic_id}')",
        )
        return {rule for rule in broken(cluster, pipeline) if rule.startswith("PIPELINE")}

    assert ledger(10) == set()
    assert ledger(10, "another") == {"PIPELINE_TOPIC_REPLACED"}
    assert ledger(50) == {"PIPELINE_AHEAD_OF_LOG"}
    kafka_admin = cluster.admin
    from confluent_kafka import TopicPartition

    kafka_admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0, 5)].result(
        30
    )
    assert ledger(2) == {"PIPELINE_RECORDS_EXPIRED"}


def test_an_old_backlog_and_quarantine_are_found(cluster: Cluster, tmp_path: Path) -> None:
    """Leave five-day-old records in a log that keeps seven, a dead letter, a parked document."""
    topic, day_s = f"vet-{uuid.uuid4().hex[:8]}", 86_400
    topics.create(cluster, topic, 1, config={"retention.bytes": "1", "segment.bytes": "1048576"})
    send(
        cluster,
        topic,
        *((b"C-1", {**EVENT, "version": n}) for n in range(10)),
        times=int((time.time() - 5 * day_s) * 1000),
    )
    pipeline = declare(f"sqlite:///{tmp_path}/t.db", topic=topic)
    preparation.prepare(pipeline)
    now = topics.describe(cluster, topic)
    place = f"'contracts', '{topic}', 0"
    run_sql(
        pipeline.target,
        "INSERT INTO instep_ledger (pipeline, topic, partition, next_offset, epoch,"
        " cluster_id, topic_id)"
        f" VALUES ({place}, 4, 1, '{now.cluster_id}', '{now.id}')",
        'INSERT INTO instep_dead_letters (pipeline, topic, partition, "offset", reason, at)'
        f" VALUES ({place}, 1, 'x', '2026-11-01')",
        'INSERT INTO instep_parked (pipeline, topic, partition, "offset", document, reason, at)'
        f" VALUES ({place}, 2, 'C-1', 'x', '2026-11-01')",
    )
    observed = take_snapshot(cluster, pipeline)
    held, found = observed.pipelines["contracts"], observed.topics[topic]
    assert (held.dead_letters, held.parked_documents) == (1, 1)
    assert held.ledger is not None
    assert held.ledger[0].waiting_age_s == pytest.approx(5 * day_s, abs=600)
    assert found is not None
    assert found.span_s == pytest.approx(5 * day_s, abs=600)
    assert (found.partitions[0].size_bytes or 0) > 100
    assert {"PIPELINE_RECORDS_EXPIRE_SOON", "PIPELINE_HAS_QUARANTINE"} <= {
        one.rule for one in judgement.judge(observed).findings
    }


def test_another_program_in_the_mirror_group(vet: Vet, cluster: Cluster) -> None:
    name = f"vet-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, name, 1)
    stranger = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "instep-contracts",
            "client.id": "billing",
        }
    )
    try:
        stranger.subscribe([name])
        wait_until(
            lambda: stranger.poll(0.1) is None and bool(stranger.assignment()),
            "the stranger's assignment",
        )
        assert "PIPELINE_GROUP_IN_USE" in vet()
    finally:
        stranger.close()


@pytest.mark.long
def test_three_misconfigured_brokers_are_found(tmp_path: Path) -> None:
    with ExitStack() as opened:
        servers = opened.enter_context(kafka.LocalCluster(3, properties=WRONG_BROKERS))
        cluster = opened.enter_context(Cluster(settings.Kafka(), servers.nodes[0].bootstrap))
        topics.create(cluster, "two", 2, 2)
        topics.create(cluster, "all", 2, 3, {"min.insync.replicas": "3"})
        topics.create(cluster, "alone", 3, 1)
        _alter_broker(cluster, 2, "message.max.bytes", "2000000")
        pipeline = declare(f"sqlite:///{tmp_path}/t.db", topic="two")
        preparation.prepare(pipeline)
        wait_until(
            lambda: "CLUSTER_BROKER_SETTINGS_DIFFER" in broken(cluster, pipeline),
            "the broker's own setting",
        )
        assert broken(cluster, pipeline) == {
            "CLUSTER_AUTO_CREATES_TOPICS",
            "CLUSTER_BROKER_SETTINGS_DIFFER",
            "CLUSTER_OFFSETS_RETENTION_SHORT",
            "CLUSTER_LOGS_IN_TMP",
            "CLUSTER_NO_AUTHORIZER",
            "CLUSTER_SINGLE_BOOTSTRAP_ADDRESS",
            "CLUSTER_REPLICA_LAG_TIMEOUT_LONG",
            "PUBLISHER_NOT_DECLARED",
            "TOPIC_MIN_INSYNC_REPLICAS_ONE",
            "TOPIC_TWO_REPLICAS",
        }
        notes: list[str] = []
        replication.execute(cluster, "two", replication.plan(cluster, "two", 3), notes.append)
        assert notes[-1] == "2 of 2 partitions done"
        assert "TOPIC_TWO_REPLICAS" not in broken(cluster, pipeline)
        assert {broker.rack for broker in take_snapshot(cluster, pipeline).cluster.brokers} == {
            "cellar"
        }
        whole = msgspec.structs.replace(pipeline, topic="all")
        assert "TOPIC_MIN_INSYNC_REPLICAS_ALL" in broken(cluster, whole)
        dying = servers.nodes[2]
        dying.kill()
        wait_until(
            lambda: "CLUSTER_BROKER_DOWN" in broken_at_least(cluster, whole),
            "the broker's death",
        )
        wait_until(
            lambda: (
                broken_at_least(cluster, whole)
                >= {"TOPIC_UNDER_MIN_INSYNC_REPLICAS", "TOPIC_UNDER_REPLICATED"}
            ),
            "replicas out of sync",
        )
        alone = msgspec.structs.replace(pipeline, topic="alone")
        assert "TOPIC_WITHOUT_LEADER" in broken_at_least(cluster, alone)


def _alter_broker(cluster: Cluster, node: int, name: str, value: str) -> None:
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ConfigResource.Type.BROKER, str(node), incremental_configs=[change])
    cluster.admin.incremental_alter_configs([asked])[asked].result(30)


def test_a_sound_database_has_no_findings(cluster: Cluster, database_url: str) -> None:
    topic = f"vet-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 1)
    pipeline = declare(database_url, topic=topic)
    preparation.prepare(pipeline)
    # the tests use MariaDB and MySQL as root
    assert {rule for rule in broken(cluster, pipeline) if rule.startswith("DATABASE")} <= {
        "DATABASE_USER_IS_SUPERUSER"
    }


def test_a_misconfigured_postgres_is_found(
    cluster: Cluster, new_database: Callable[[str], str]
) -> None:
    url = new_database("postgres")
    topic = f"vet-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 1)
    pipeline = declare(url, topic=topic)

    def database_rules() -> set[str]:
        return {
            rule.removeprefix("DATABASE_")
            for rule in broken_at_least(cluster, pipeline)
            if rule.startswith("DATABASE")
        }

    assert database_rules() == {"TABLE_DOES_NOT_MATCH"}
    preparation.prepare(pipeline)
    assert database_rules() == set()
    name = url.rpartition("/")[2]
    role = f"vet_{uuid.uuid4().hex[:8]}"
    run_sql(
        url,
        f"ALTER DATABASE {name} SET synchronous_commit = off",
        f"ALTER DATABASE {name} SET statement_timeout = '5s'",
        f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'",
        f"ALTER DATABASE {name} SET timezone = 'Europe/Berlin'",
        "ALTER TABLE contract_document ALTER printed_at TYPE timestamp(6)"
        " USING printed_at AT TIME ZONE 'UTC'",
        "CREATE TABLE page (doc_no text REFERENCES contract_document, number int)",
        "CREATE TABLE kind (name text PRIMARY KEY)",
        "ALTER TABLE contract_document ADD FOREIGN KEY (print_status) REFERENCES kind",
        "ALTER TABLE contract_document ADD CHECK (print_status IN ('QUEUED', 'PRINTED'))",
        "ALTER TABLE contract_document ALTER print_version TYPE smallint",
        "ALTER TABLE instep_ledger SET UNLOGGED",
        "ALTER TABLE contract_document ADD UNIQUE (print_version)",
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER audit AFTER INSERT ON contract_document FOR EACH ROW"
        " EXECUTE FUNCTION nothing()",
        "ALTER TABLE contract_document ENABLE ROW LEVEL SECURITY",
        f"CREATE ROLE {role} LOGIN PASSWORD 'x' CONNECTION LIMIT 3 VALID UNTIL '{_in_days(5)}'",
        f"ALTER ROLE {role} SET idle_in_transaction_session_timeout = '2s'",
        f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}",
    )
    try:
        login, _, place = url.partition("://")[2].rpartition("@")
        assert login
        pipeline = msgspec.structs.replace(pipeline, target=f"postgresql://{role}:x@{place}")
        assert database_rules() == {
            "COMMITS_ASYNCHRONOUSLY",
            "TIMEOUT_SHORT",
            "TABLE_UNLOGGED",
            "SECOND_UNIQUE_KEY",
            "TABLE_HAS_TRIGGERS",
            "ROW_SECURITY_HIDES_ROWS",
            "RIGHTS_MISSING",
            "CONNECTION_LIMIT_LOW",
            "PASSWORD_EXPIRES",
            "DELETE_AFFECTS_OTHER_TABLES",
            "PARENT_ROW_MAY_BE_MISSING",
            "ISOLATION_TOO_STRICT",
            "TIMESTAMPS_WITHOUT_TIME_ZONE",
            "CHECK_CONSTRAINTS",
            "ORDER_COLUMN_SMALL",
        }
        fixes = {one.fix for one in judgement.judge(take_snapshot(cluster, pipeline)).findings}
        assert {
            f'ALTER DATABASE "{name}" SET statement_timeout = 0',
            f'ALTER ROLE "{role}" SET idle_in_transaction_session_timeout = 0',
            f'ALTER ROLE "{role}" CONNECTION LIMIT 24',
            f"ALTER ROLE \"{role}\" VALID UNTIL 'infinity'",
        } <= fixes
        run_sql(url, *_statements(fixes))
        assert database_rules() == {
            "SECOND_UNIQUE_KEY",
            "TABLE_HAS_TRIGGERS",
            "ROW_SECURITY_HIDES_ROWS",
            "DELETE_AFFECTS_OTHER_TABLES",
            "PARENT_ROW_MAY_BE_MISSING",
            "CHECK_CONSTRAINTS",
        }
        on_some = f"GRANT UPDATE (print_status) ON contract_document TO {role}"
        run_sql(url, f"REVOKE UPDATE ON contract_document FROM {role}", on_some)
        assert take_snapshot(cluster, pipeline).databases["contracts"].lacking_rights == [
            "UPDATE on contract_document"
        ]
        run_sql(url, on_some.replace("print_status", "print_status, print_version, printed_at"))
        assert "RIGHTS_MISSING" not in database_rules()
        run_sql(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        assert "READ_ONLY" in database_rules()
    finally:
        run_sql(
            url,
            "SET TRANSACTION READ WRITE",
            f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}",
            f"DROP ROLE {role}",
        )


def _statements(fixes: set[str]) -> list[str]:
    """Return the statements among the fixes, as a person would paste them.

    BYPASSRLS is left out, since only a superuser may grant it.
    """
    parts = [part for fix in sorted(fixes) for part in fix.split("; ")]
    return [
        part
        for part in parts
        if part.split()[0] in ("ALTER", "GRANT", "SET") and "BYPASSRLS" not in part
    ]


def _in_days(days: int) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


def test_the_mysql_superuser_is_found(cluster: Cluster, new_database: Callable[[str], str]) -> None:
    topic = f"vet-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 1)
    pipeline = declare(new_database("mysql"), topic=topic)
    preparation.prepare(pipeline)
    observed = take_snapshot(cluster, pipeline)
    assert observed.databases["contracts"].superuser
    assert observed.databases["contracts"].user.startswith("'root'@")
    assert observed.databases["contracts"].sources["wait_timeout"] == "server"


def test_a_misconfigured_mariadb_is_found(
    cluster: Cluster, new_database: Callable[[str], str]
) -> None:
    url = new_database("mariadb")
    topic = f"vet-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 1)
    pipeline = declare(url, topic=topic)
    preparation.prepare(pipeline)

    def database_rules() -> set[str]:
        return {
            rule.removeprefix("DATABASE_")
            for rule in broken_at_least(cluster, pipeline)
            if rule.startswith("DATABASE")
        }

    assert database_rules() == {"USER_IS_SUPERUSER"}
    role = f"vet_{uuid.uuid4().hex[:8]}"
    name = url.rpartition("/")[2]
    run_sql(
        url,
        "ALTER TABLE contract_document ADD UNIQUE (print_version)",
        "ALTER TABLE instep_history ENGINE = Aria",
        "CREATE TABLE page (doc_no VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,"
        " FOREIGN KEY (doc_no) REFERENCES contract_document (doc_no)"
        " ON DELETE CASCADE) ENGINE = InnoDB",
        f"CREATE USER '{role}'@'127.0.0.1' IDENTIFIED BY 'x'"
        " WITH MAX_USER_CONNECTIONS 5 MAX_UPDATES_PER_HOUR 1000 MAX_STATEMENT_TIME 2",
        f"GRANT SELECT, INSERT ON {name}.* TO '{role}'@'127.0.0.1'",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
    )
    try:
        place = url.partition("://")[2].rpartition("@")[2]
        pipeline = msgspec.structs.replace(pipeline, target=f"mariadb://{role}:x@{place}")
        assert database_rules() == {
            "SECOND_UNIQUE_KEY",
            "NO_TRANSACTIONS",
            "RIGHTS_MISSING",
            "COMMITS_ASYNCHRONOUSLY",
            "CONNECTION_LIMIT_LOW",
            "HOURLY_LIMITS",
            "TIMEOUT_SHORT",
            "DELETE_AFFECTS_OTHER_TABLES",
        }
        fixes = {one.fix for one in judgement.judge(take_snapshot(cluster, pipeline)).findings}
        account = f"'{role}'@'127.0.0.1'"
        assert f"ALTER USER {account} WITH MAX_UPDATES_PER_HOUR 0" in fixes
        assert f"ALTER USER {account} WITH MAX_STATEMENT_TIME 0" in fixes
        run_sql(url, *_statements(fixes))
        # people must decide which of two documents may have a value
        assert database_rules() == {"DELETE_AFFECTS_OTHER_TABLES", "SECOND_UNIQUE_KEY"}
    finally:
        run_sql(
            url, f"DROP USER '{role}'@'127.0.0.1'", "SET GLOBAL innodb_flush_log_at_trx_commit = 1"
        )


def test_an_unreachable_database_is_found(cluster: Cluster) -> None:
    topic = f"vet-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 1)
    verdict = judgement.judge(
        take_snapshot(cluster, declare("postgresql://a:s3cret@127.0.0.1:1/b", topic=topic))
    )
    assert "DATABASE_UNREACHABLE" in {one.rule for one in verdict.errors}
    assert any(one.why.startswith("database of contracts: ") for one in verdict.unjudged)
    assert b"s3cret" not in msgspec.json.encode(verdict)


def test_a_topic_that_does_not_exist(cluster: Cluster, tmp_path: Path) -> None:
    pipeline = declare(f"sqlite:///{tmp_path}/t.db", topic="no-such-topic")
    preparation.prepare(pipeline)
    verdict = judgement.judge(take_snapshot(cluster, pipeline))
    assert "TOPIC_MISSING" in {one.rule for one in verdict.errors}


def test_a_saved_snapshot_is_judged_like_the_live_one(cluster: Cluster, tmp_path: Path) -> None:
    topic = f"vet-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 2)
    pipeline = declare(f"sqlite:///{tmp_path}/t.db", topic=topic)
    secret = {
        "print": settings.DeclaredPublisher(
            topic=topic,
            client="java",
            config={
                "sasl.jaas.config": "s3cret",
                "ssl.keystore.key": "s3cret",
                "acks": 1,
                "ack": 2,
            },
        )
    }
    observed = take_snapshot(cluster, pipeline, publishers=secret)
    snapshot.save(observed, tmp_path / "snapshot.json")
    assert "s3cret" not in (tmp_path / "snapshot.json").read_text(encoding="utf-8")
    assert observed.publishers["print"].config == {"acks": "1", "ack": "2"}
    assert judgement.judge(snapshot.load(tmp_path / "snapshot.json")) == judgement.judge(observed)


# --- relays ---------------------------------------------------------------------------------------

# What the servers of the tests do not do, for speed, and what one broker cannot do.
UNSYNCED = {
    "sqlite": set(),
    "postgres": set(),
    "mariadb": {"RELAY_SOURCE_COMMITS_NOT_DURABLE", "RELAY_SOURCE_CRASH_SAFETY_OFF"},
    "mysql": {"RELAY_SOURCE_COMMITS_NOT_DURABLE", "RELAY_SOURCE_CRASH_SAFETY_OFF"},
}
# statements that spoil the outbox, and the rule that finds it
SPOILT = {
    "sqlite": (
        ("DROP TABLE instep_outbox", "CREATE TABLE instep_outbox (id INTEGER PRIMARY KEY)"),
        "RELAY_ID_NOT_AUTOINCREMENT",
    ),
    "postgres": (
        ("ALTER TABLE instep_outbox ALTER COLUMN id SET CACHE 20",),
        "RELAY_SEQUENCE_CACHED",
    ),
    "mariadb": (("ALTER TABLE instep_outbox ENGINE = MyISAM",), "RELAY_TABLE_WITHOUT_TRANSACTIONS"),
    "mysql": (
        ("ALTER TABLE instep_outbox MODIFY id BIGINT NOT NULL",),
        "RELAY_ID_NOT_AUTOINCREMENT",
    ),
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
def test_a_relay_is_judged_without_a_pipeline(
    kind: str, new_database: Callable[[str], str], cluster: Cluster
) -> None:
    url = new_database(kind)
    name, relay = relays.declare(url, cluster)
    whole = settings.Settings(relays={name: relay})

    def judge() -> judgement.VetReport:
        return judgement.judge(gathering.gather(cluster, whole, [], relays=[name]))

    def found() -> set[str]:
        verdict = judge()
        assert verdict.unjudged == []
        return {one.rule for one in verdict.findings} - UNSYNCED[kind]

    if kind == "sqlite":
        assert judge().errors[0].rule == "RELAY_SOURCE_UNREACHABLE"
        run_sql(url, "CREATE TABLE print_job (id TEXT)")
    assert "RELAY_NOT_INITIALISED" in {one.rule for one in judge().findings}
    tables.prepare(relay, name)
    usual = {"OUTPUT_POSITION_UNDER_REPLICATED"}
    of_one_broker = {"TOPIC_SINGLE_REPLICA", "CLUSTER_TRANSACTION_LOG_UNDER_REPLICATED"}
    before = found()
    assert {rule for rule in before if rule.startswith(("RELAY", "OUTPUT"))} == usual
    assert before >= of_one_broker

    relays.run_once(name, relay, cluster)  # writes a position
    assert found() == before
    topics.grow(cluster, relay.topic, 5)
    statements, rule = SPOILT[kind]
    run_sql(url, *statements)
    assert found() >= before | {"OUTPUT_CHANGED", rule}


def test_the_fix_for_a_cached_sequence_is_accepted(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    url = new_database("postgres")
    name, relay = relays.declare(url, cluster, outbox="own_outbox")
    run_sql(
        url,
        "CREATE SEQUENCE shared_ids CACHE 50",
        "CREATE TABLE own_outbox (id bigint DEFAULT nextval('shared_ids'), xid xid8 NOT NULL"
        " DEFAULT pg_current_xact_id(), document text, value bytea, headers text)",
    )
    tables.prepare(relay, name)
    whole = settings.Settings(relays={name: relay})

    def fixes() -> list[str]:
        verdict = judgement.judge(gathering.gather(cluster, whole, [], relays=[name]))
        return [one.fix for one in verdict.findings if one.rule == "RELAY_SEQUENCE_CACHED"]

    (fix,) = fixes()
    run_sql(url, fix)
    assert fixes() == []


def test_a_group_that_reads_a_relays_topic_has_to_be_declared(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    name, relay = relays.declare(new_database("sqlite"), cluster)
    tables.prepare(relay, name)
    group = f"billing-{uuid.uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(relay.topic, 0, 0)], asynchronous=False)
    finally:
        consumer.close()

    def broken_by(**readers: settings.DeclaredReader) -> list[str]:
        whole = settings.Settings(relays={name: relay}, readers=readers)
        verdict = judgement.judge(gathering.gather(cluster, whole, [], relays=[name]))
        return [one.rule for one in verdict.findings if one.rule.startswith("READER")]

    reader = settings.DeclaredReader(topic=relay.topic, group=group, client="aiokafka")
    assert broken_by() == ["READER_NOT_DECLARED"]
    assert broken_by(billing=reader) == ["READER_NOT_READ_COMMITTED"]
    config = {"isolation_level": "read_committed"}
    assert broken_by(billing=msgspec.structs.replace(reader, config=config)) == []


def test_a_bridge_is_a_known_publisher(cluster: Cluster, tmp_path: Path) -> None:
    topic = f"vet-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 1)
    pipeline = declare(f"sqlite:///{tmp_path}/t.db", topic=topic)
    preparation.prepare(pipeline)
    bridge = settings.Bridge(
        topic=topic, url="http://127.0.0.1:1/{document}", status="status", ids_file="ids.txt"
    )

    def rules(bridges: dict[str, settings.Bridge]) -> set[str]:
        whole = settings.Settings(pipelines={"contracts": pipeline}, bridges=bridges)
        report = judgement.judge(gathering.gather(cluster, whole, ["contracts"]))
        return {finding.rule for finding in report.findings}

    assert "PUBLISHER_NOT_DECLARED" in rules({})
    assert not {rule for rule in rules({"print": bridge}) if rule.startswith("PUBLISHER")}
