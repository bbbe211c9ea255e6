"""A snapshot in which nothing is wrong, and small changes to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from instep.sinks.facts import Facts
from instep.sources.facts import SourceFacts
from instep.vet.snapshot import (
    BrokerFacts,
    ClusterFacts,
    DeclaredRelay,
    DeclaredStream,
    DeclaredWriter,
    Disk,
    EffectiveSetting,
    MappedSample,
    PartitionFacts,
    PartitionProgress,
    PipelineFacts,
    PublishedPosition,
    PublisherFacts,
    RecordSample,
    RelayFacts,
    Snapshot,
    SparkFacts,
    StreamFacts,
    TopicFacts,
)

NOW = datetime(2026, 11, 15, 8, 0, tzinfo=UTC)
GIB = 2**30
DAY_MS = 86_400_000
TARGET = "postgresql+psycopg://app:***@127.0.0.1/contracts"

BROKER_SETTINGS = {
    "auto.create.topics.enable": "false",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "message.max.bytes": "1048588",
    "log.retention.ms": None,
    "replica.lag.time.max.ms": "30000",
    "offsets.retention.minutes": "10080",
    "transaction.max.timeout.ms": "900000",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "retention.ms": str(7 * DAY_MS),
    "retention.bytes": "-1",
    "delete.retention.ms": str(DAY_MS),
    "min.compaction.lag.ms": "0",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "leader.replication.throttled.replicas": "",
    "follower.replication.throttled.replicas": "",
}
SOURCE = "postgresql+psycopg://shop:***@127.0.0.1/shop"
POSITION_TOPIC = "instep-relay.shop"
POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "transaction_read_only": "off",
    "in_recovery": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "max_connections": "100",
}
MYSQL = {
    "innodb_flush_log_at_trx_commit": "1",
    "innodb_doublewrite": "ON",
    "read_only": "OFF",
    "log_bin": "ON",
    "binlog_format": "ROW",
    "max_allowed_packet": str(64 * 2**20),
    "max_connections": "151",
    "max_user_connections": "0",
    "max_statement_time": "0.000000",
}


def broker(node: int, **changed: Any) -> BrokerFacts:
    base = BrokerFacts(
        node=node,
        host="127.0.0.1",
        port=9091 + node,
        settings={name: EffectiveSetting(value) for name, value in BROKER_SETTINGS.items()},
        disks=[Disk(path="/var/lib/kafka", total_bytes=100 * GIB, free_bytes=60 * GIB)],
    )
    return msgspec.structs.replace(base, **changed)


def partition(number: int, **changed: Any) -> PartitionFacts:
    nodes = [1 + (number + step) % 3 for step in range(3)]
    base = PartitionFacts(
        partition=number,
        leader=nodes[0],
        replicas=nodes,
        in_sync=nodes,
        first=0,
        end=100,
        size_bytes=9_000,
    )
    return msgspec.structs.replace(base, **changed)


def snapshot() -> Snapshot:
    """Return three brokers, three replicas, an idempotent Java publisher, a guard, PostgreSQL."""
    return Snapshot(
        taken_at=NOW,
        instep="0",
        outage_hours_max=72,
        cluster=ClusterFacts(
            cluster_id="c1",
            bootstrap=["127.0.0.1:9092", "127.0.0.1:9093"],
            protocol="PLAINTEXT",
            brokers=[broker(1), broker(2), broker(3)],
            voters=[1, 2, 3],
            clock_ahead_s=0.1,
            features={"transaction.version": 2, "eligible.leader.replicas.version": 1},
            internal={"__consumer_offsets": (3, 2), "__transaction_state": (3, 2)},
        ),
        topics={
            "print-status": TopicFacts(
                name="print-status",
                id="t1",
                settings={name: EffectiveSetting(value) for name, value in TOPIC_SETTINGS.items()},
                partitions=[partition(number) for number in range(3)],
                sample=RecordSample(
                    records=30,
                    in_murmur2_place=30,
                    in_crc32_place=10,
                    largest_bytes=300,
                    newest_age_s=5.0,
                ),
                idempotent_producers=1,
                span_s=3600.0,
            )
        },
        publishers={"print-system": PublisherFacts(topic="print-status", client="java")},
        pipelines={
            "contracts": PipelineFacts(
                topic="print-status",
                guarantee="exactly-once",
                start="earliest",
                target=TARGET,
                table="contract_document",
                missing="insert",
                history=True,
                batch_rows_max=400_000,
                order="version",
                at="updated_at",
                order_is_time=False,
                ledger=[
                    PartitionProgress(partition=n, next_offset=100, topic_id="t1", cluster_id="c1")
                    for n in range(3)
                ],
                dead_letters=0,
                parked_documents=0,
                group_members=[],
                group_foreign=[],
            )
        },
        databases={
            "contracts": Facts(
                kind="postgresql",
                host="127.0.0.1",
                version=(17, 1),
                encrypted=False,
                settings=POSTGRES,
                engines={"contract_document": "logged", "instep_ledger": "logged"},
                key=["doc_no"],
                unique_keys=[["doc_no"]],
                superuser=False,
                lacking_rights=[],
                user='"app"',
                database="contracts",
            )
        },
        writers={
            "contracts": DeclaredWriter(
                target=TARGET,
                table="contract_document",
                columns=["print_status", "print_version"],
                topic="print-status",
            )
        },
        spark=SparkFacts(master="local[*]"),
    )


# --- small changes --------------------------------------------------------------------------------


def changed(base: Snapshot, **fields: Any) -> Snapshot:
    return msgspec.structs.replace(base, **fields)


def with_cluster(base: Snapshot, **fields: Any) -> Snapshot:
    return changed(base, cluster=msgspec.structs.replace(base.cluster, **fields))


def with_brokers(base: Snapshot, **settings: str) -> Snapshot:
    """Give every broker these settings; dots are written as underscores."""
    given = {name.replace("_", "."): EffectiveSetting(value) for name, value in settings.items()}
    brokers = [
        msgspec.structs.replace(one, settings={**(one.settings or {}), **given})
        for one in base.cluster.brokers
    ]
    return with_cluster(base, brokers=brokers)


def with_topic(base: Snapshot, **fields: Any) -> Snapshot:
    found = base.topics["print-status"]
    assert found is not None
    return changed(base, topics={"print-status": msgspec.structs.replace(found, **fields)})


def with_settings(base: Snapshot, **settings: str) -> Snapshot:
    found = base.topics["print-status"]
    assert found is not None
    given = {
        name.replace("_", "."): EffectiveSetting(value, "topic") for name, value in settings.items()
    }
    return with_topic(base, settings={**(found.settings or {}), **given})


def with_replicas(base: Snapshot, *nodes: int, in_sync: list[int] | None = None) -> Snapshot:
    held = [*nodes]
    parts = [
        partition(n, leader=held[n % len(held)], replicas=held, in_sync=in_sync or held)
        for n in range(3)
    ]
    return with_topic(base, partitions=parts)


def with_sample(base: Snapshot, **fields: Any) -> Snapshot:
    found = base.topics["print-status"]
    assert found is not None
    assert found.sample is not None
    return with_topic(base, sample=msgspec.structs.replace(found.sample, **fields))


def with_seen(base: Snapshot, **fields: Any) -> Snapshot:
    """Set what the pipeline reads from the newest records: thirty events with only this fault."""
    return with_sample(base, seen={"contracts": MappedSample(events=30, **fields)})


def with_publisher(base: Snapshot, client: str = "java", **config: str) -> Snapshot:
    given = {name.replace("_", "."): value for name, value in config.items()}
    one = PublisherFacts(topic="print-status", client=client, config=given)  # type: ignore[arg-type]
    return changed(base, publishers={"print-system": one})


def with_pipeline(base: Snapshot, **fields: Any) -> Snapshot:
    return changed(
        base,
        pipelines={"contracts": msgspec.structs.replace(base.pipelines["contracts"], **fields)},
    )


def with_ledger(base: Snapshot, **fields: Any) -> Snapshot:
    rows = base.pipelines["contracts"].ledger or []
    return with_pipeline(base, ledger=[msgspec.structs.replace(row, **fields) for row in rows])


def with_database(base: Snapshot, **fields: Any) -> Snapshot:
    return changed(
        base,
        databases={"contracts": msgspec.structs.replace(base.databases["contracts"], **fields)},
    )


def with_database_settings(base: Snapshot, **settings: str) -> Snapshot:
    return with_database(
        base, settings={**(base.databases["contracts"].settings or {}), **settings}
    )


def on_mysql(base: Snapshot, kind: str = "mariadb", **fields: Any) -> Snapshot:
    version = (11, 4) if kind == "mariadb" else (9, 7)
    given = {
        "settings": MYSQL,
        "engines": {"contract_document": "InnoDB"},
        "version": version,
        "user": "'app'@'%'",
        **fields,
    }
    return with_database(base, kind=kind, **given)


# --- relays ---------------------------------------------------------------------------------------


def with_relay(base: Snapshot, **fields: Any) -> Snapshot:
    """Add a relay that publishes to the topic, and with which nothing is wrong."""
    relay = RelayFacts(
        topic="print-status",
        guarantee="exactly-once",
        outbox="instep_outbox",
        position_topic=POSITION_TOPIC,
        transaction_timeout_ms=60_000,
        source_facts=SourceFacts(
            database=Facts(
                kind="postgresql",
                host="127.0.0.1",
                encrypted=False,
                settings=POSTGRES,
                engines={"instep_outbox": "logged", "instep_relays": "logged"},
                user='"shop"',
                database="shop",
            ),
            is_id_generated=True,
            sequence="instep_outbox_id_seq",
            sequence_cache=1,
            source_id="s1",
            dead_rows=0,
        ),
        position=PublishedPosition(topic_id="t1", cluster_id="c1", partitions=3, source_id="s1"),
        groups=[],
    )
    topic = TopicFacts(
        name=POSITION_TOPIC,
        id="p1",
        settings={
            name: EffectiveSetting(value)
            for name, value in (TOPIC_SETTINGS | {"cleanup.policy": "compact"}).items()
        },
        partitions=[partition(0)],
    )
    return changed(
        base,
        topics={**base.topics, POSITION_TOPIC: topic},
        relays={"shop": msgspec.structs.replace(relay, **fields)},
        declared_relays={
            "shop": DeclaredRelay(
                source=SOURCE,
                outbox="instep_outbox",
                topic="print-status",
                guarantee=fields.get("guarantee", "exactly-once"),
            )
        },
    )


def only_relay(base: Snapshot) -> Snapshot:
    """Leave nothing but the relay: no pipeline, no declared publisher."""
    return changed(with_relay(base), pipelines={}, writers={}, databases={}, publishers={})


def with_stream(base: Snapshot, source: dict[str, str] | None = None, **fields: Any) -> Snapshot:
    """Add a stream with which nothing is wrong. `source` changes settings of what it reads."""
    stream = StreamFacts(
        source="print-etl",
        target="print-status",
        guarantee="exactly-once",
        position_topic=POSITION_TOPIC,
        transaction_timeout_ms=60_000,
        position=PublishedPosition(topic_id="t1", cluster_id="c1", partitions=3),
        groups=[],
    )
    relayed = with_relay(base)
    output = relayed.topics["print-status"]
    assert output is not None
    given = {name.replace("_", "."): EffectiveSetting(one) for name, one in (source or {}).items()}
    read = msgspec.structs.replace(
        output, name="print-etl", id="e1", settings={**(output.settings or {}), **given}
    )
    declared = DeclaredStream(
        source="print-etl", target="print-status", guarantee=fields.get("guarantee", "exactly-once")
    )
    return changed(
        base,
        topics={**relayed.topics, "print-etl": read},
        streams={"etl": msgspec.structs.replace(stream, **fields)},
        declared_streams={"etl": declared},
    )


def with_source(base: Snapshot, database: dict[str, Any] | None = None, **fields: Any) -> Snapshot:
    """Add a relay whose source differs in these facts."""
    source = with_relay(base).relays["shop"].source_facts
    facts = msgspec.structs.replace(source.database, **(database or {}))
    return with_relay(base, source_facts=msgspec.structs.replace(source, database=facts, **fields))


def with_source_settings(base: Snapshot, **settings: str) -> Snapshot:
    return with_source(base, {"settings": {**POSTGRES, **settings}})


def with_mysql_source(base: Snapshot, kind: str = "mariadb", **settings: str) -> Snapshot:
    """Add a relay from MariaDB or MySQL, with these settings."""
    database = {
        "kind": kind,
        "settings": {**MYSQL, "sync_binlog": "1", **settings},
        "engines": {"instep_outbox": "InnoDB"},
        "user": "'shop'@'%'",
    }
    return with_source(base, database, is_id_generated=True, writable_nodes=1)


def with_sqlite_source(base: Snapshot, **database: Any) -> Snapshot:
    """Add a relay from SQLite."""
    settings = {"journal_mode": "wal", "synchronous": "2"} | database.pop("settings", {})
    given = {
        "kind": "sqlite",
        "host": None,
        "settings": settings,
        "engines": {},
        "filesystem": "ext4",
        **database,
    }
    return with_source(base, given, is_id_generated=True)


def with_position_topic(base: Snapshot, **fields: Any) -> Snapshot:
    """Add a relay whose position topic differs; `settings` are added to the usual ones."""
    relayed = with_relay(base)
    found = relayed.topics[POSITION_TOPIC]
    assert found is not None
    given = {
        name.replace("_", "."): EffectiveSetting(value)
        for name, value in fields.pop("settings", {}).items()
    }
    topic = msgspec.structs.replace(found, settings={**(found.settings or {}), **given}, **fields)
    return changed(relayed, topics={**relayed.topics, POSITION_TOPIC: topic})
