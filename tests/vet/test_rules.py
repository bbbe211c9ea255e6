"""Test every rule on a snapshot that breaks it, and on one that does not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from instep.sinks.facts import Reference
from instep.vet import judgement, rules
from instep.vet.rule import Severity
from instep.vet.snapshot import (
    Disk,
    EffectiveSetting,
    PublishedPosition,
    PublisherFacts,
    ReaderFacts,
    Snapshot,
    SparkFacts,
)
from tests.vet import sound
from tests.vet.sound import (
    GIB,
    broker,
    changed,
    on_mysql,
    only_relay,
    partition,
    with_brokers,
    with_cluster,
    with_database,
    with_database_settings,
    with_ledger,
    with_mysql_source,
    with_pipeline,
    with_position_topic,
    with_publisher,
    with_relay,
    with_replicas,
    with_sample,
    with_seen,
    with_settings,
    with_source,
    with_source_settings,
    with_sqlite_source,
    with_stream,
    with_topic,
)

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
STATUSES = {"QUEUED": ["PRINTED"], "PRINTED": ["SENT"]}
Change = Callable[[Snapshot], Snapshot]


def _disk(free: int, error: int = 0) -> Change:
    found = [Disk(path="/data", total_bytes=100 * GIB, free_bytes=free, error=error)]
    return lambda base: with_cluster(base, brokers=[broker(1, disks=found), broker(2), broker(3)])


def _tmp(base: Snapshot) -> Snapshot:
    return with_cluster(
        base, brokers=[broker(1, disks=[Disk(path="/tmp/kafka-logs")]), broker(2), broker(3)]
    )


def _two_pipelines(base: Snapshot) -> Snapshot:
    mine = base.writers["contracts"]
    return changed(
        base,
        writers={
            "contracts": mine,
            "other": msgspec.structs.replace(mine, columns=["print_status"]),
        },
    )


def _two_pipelines_under_other_names(base: Snapshot) -> Snapshot:
    """Name the same table differently.

    Another user, another name of this machine, and the default port and schema written out.
    """
    mine = base.writers["contracts"]
    other = msgspec.structs.replace(
        mine, target="postgresql://bob@localhost:5432/contracts", table="public.contract_document"
    )
    return changed(base, writers={"contracts": mine, "other": other})


def _reference(on_delete: str) -> Reference:
    return Reference(
        table="page", columns=["doc_no"], refers_to="contract_document", on_delete=on_delete
    )


def _refusing_check(base: Snapshot) -> Snapshot:
    base = with_pipeline(
        with_seen(base, statuses={"QUEUED": 1, "LOST": 1}), status_column="print_status"
    )
    return with_database(base, checks={"known": "print_status IN ('QUEUED', 'PRINTED')"})


def _read_only_by_default(base: Snapshot) -> Snapshot:
    return with_database_settings(
        base, transaction_read_only="on", default_transaction_read_only="on"
    )


def _publishers(base: Snapshot, **given: PublisherFacts) -> Snapshot:
    return changed(base, publishers={**base.publishers, **given})


def _odd_broker(base: Snapshot) -> Snapshot:
    odd = {
        **(base.cluster.brokers[2].settings or {}),
        "unclean.leader.election.enable": EffectiveSetting("true"),
    }
    return with_cluster(base, brokers=[broker(1), broker(2), broker(3, settings=odd)])


def _second_relay(base: Snapshot, **fields: str) -> Snapshot:
    """Declare a second relay that differs from the first in these fields."""
    relayed = with_relay(base)
    other = msgspec.structs.replace(relayed.declared_relays["shop"], **fields)
    return changed(relayed, declared_relays={**relayed.declared_relays, "other": other})


def _position(**fields: object) -> Change:
    known = PublishedPosition(topic_id="t1", cluster_id="c1", partitions=3, source_id="s1")
    return lambda base: with_relay(base, position=msgspec.structs.replace(known, **fields))


def _reader(base: Snapshot, **fields: object) -> Snapshot:
    reader = ReaderFacts(topic="print-status", client="java", group="billing")
    changed_reader = msgspec.structs.replace(reader, **fields)
    return changed(with_relay(base, groups=["billing"]), readers={"billing": changed_reader})


def _without_position_topic(base: Snapshot) -> Snapshot:
    return changed(with_relay(base), topics=base.topics)


# rule, its severity, what breaks it
BREAKS: list[tuple[str, Severity, Change]] = [
    ("CLUSTER_SINGLE_BROKER", WARNING, lambda s: with_cluster(s, brokers=[broker(1)])),
    ("CLUSTER_BROKER_DOWN", WARNING, lambda s: with_cluster(s, brokers=[broker(1), broker(2)])),
    (
        "CLUSTER_AUTO_CREATES_TOPICS",
        WARNING,
        lambda s: with_brokers(s, auto_create_topics_enable="true"),
    ),
    ("CLUSTER_BROKER_SETTINGS_DIFFER", WARNING, _odd_broker),
    ("CLUSTER_TOO_FEW_CONTROLLERS", WARNING, lambda s: with_cluster(s, voters=[1])),
    ("CLUSTER_TOO_FEW_CONTROLLERS", WARNING, lambda s: with_cluster(s, voters=[1, 2, 3, 4])),
    ("CLUSTER_DISK_NEARLY_FULL", WARNING, _disk(10 * GIB)),
    ("CLUSTER_DISK_NEARLY_FULL", ERROR, _disk(GIB)),
    ("CLUSTER_DISK_OFFLINE", ERROR, _disk(60 * GIB, error=56)),
    (
        "CLUSTER_OFFSETS_TOPIC_UNDER_REPLICATED",
        NOTE,
        lambda s: with_cluster(s, internal={"__consumer_offsets": (1, 1)}),
    ),
    (
        "CLUSTER_TRANSACTION_LOG_UNDER_REPLICATED",
        ERROR,
        lambda s: with_publisher(
            with_cluster(s, internal={"__transaction_state": (3, 1)}), transactional_id="x"
        ),
    ),
    (
        "CLUSTER_SINGLE_BOOTSTRAP_ADDRESS",
        WARNING,
        lambda s: with_cluster(s, bootstrap=["127.0.0.1:9092"]),
    ),
    (
        "CLUSTER_NOT_ENCRYPTED",
        WARNING,
        lambda s: with_cluster(s, brokers=[broker(n, host="kafka.example") for n in (1, 2, 3)]),
    ),
    ("CLUSTER_NO_AUTHORIZER", NOTE, lambda s: with_brokers(s, authorizer_class_name="")),
    (
        "CLUSTER_REPLICA_LAG_TIMEOUT_LONG",
        WARNING,
        lambda s: with_brokers(s, replica_lag_time_max_ms="600000"),
    ),
    (
        "CLUSTER_OFFSETS_RETENTION_SHORT",
        NOTE,
        lambda s: with_brokers(s, offsets_retention_minutes="60"),
    ),
    (
        "CLUSTER_TRANSACTION_PROTOCOL_OLD",
        NOTE,
        lambda s: with_publisher(
            with_cluster(s, features={"transaction.version": 1}), transactional_id="x"
        ),
    ),
    (
        "CLUSTER_ELIGIBLE_LEADER_REPLICAS_OFF",
        NOTE,
        lambda s: with_cluster(s, features={"transaction.version": 2}),
    ),
    ("CLUSTER_CLOCK_DIFFERS", WARNING, lambda s: with_cluster(s, clock_ahead_s=-40.0)),
    ("CLUSTER_LOGS_IN_TMP", WARNING, _tmp),
    (
        "CLUSTER_TRANSACTION_LOG_UNDER_REPLICATED",
        ERROR,
        lambda s: with_publisher(
            with_brokers(with_cluster(s, internal={}), transaction_state_log_min_isr="1"),
            transactional_id="x",
        ),
    ),
    (
        "CLUSTER_ALLOWS_EVERYONE_WITHOUT_ACL",
        NOTE,
        lambda s: with_brokers(s, allow_everyone_if_no_acl_found="true"),
    ),
    (
        "CLUSTER_CONTROLLED_SHUTDOWN_OFF",
        WARNING,
        lambda s: with_brokers(s, controlled_shutdown_enable="false"),
    ),
    (
        "CLUSTER_TRANSACTION_VERIFICATION_OFF",
        WARNING,
        lambda s: with_publisher(
            with_brokers(s, transaction_partition_verification_enable="false"), transactional_id="x"
        ),
    ),
    ("TOPIC_MISSING", ERROR, lambda s: changed(s, topics={"print-status": None})),
    (
        "TOPIC_MISSING",
        ERROR,
        lambda s: changed(
            s, topics={"print-status": None}, near_topics={"print-status": "print_status"}
        ),
    ),
    ("TOPIC_SINGLE_REPLICA", ERROR, lambda s: with_replicas(s, 1)),
    (
        "TOPIC_SINGLE_REPLICA",
        NOTE,
        lambda s: with_pipeline(with_replicas(s, 1), guarantee="at-most-once"),
    ),
    ("TOPIC_TWO_REPLICAS", WARNING, lambda s: with_replicas(s, 1, 2)),
    ("TOPIC_MIN_INSYNC_REPLICAS_ONE", ERROR, lambda s: with_settings(s, min_insync_replicas="1")),
    ("TOPIC_MIN_INSYNC_REPLICAS_ALL", WARNING, lambda s: with_settings(s, min_insync_replicas="3")),
    (
        "TOPIC_MIN_INSYNC_REPLICAS_TOO_HIGH",
        WARNING,
        lambda s: with_settings(s, min_insync_replicas="4"),
    ),
    (
        "TOPIC_UNCLEAN_ELECTION_ALLOWED",
        ERROR,
        lambda s: with_settings(s, unclean_leader_election_enable="true"),
    ),
    (
        "TOPIC_WITHOUT_LEADER",
        ERROR,
        lambda s: with_topic(s, partitions=[partition(0), partition(1, leader=None, in_sync=[])]),
    ),
    ("TOPIC_UNDER_MIN_INSYNC_REPLICAS", ERROR, lambda s: with_replicas(s, 1, 2, 3, in_sync=[1])),
    (
        "TOPIC_UNDER_MIN_INSYNC_REPLICAS",
        ERROR,
        lambda s: with_settings(with_replicas(s, 1, 2, in_sync=[1]), min_insync_replicas="3"),
    ),
    ("TOPIC_UNDER_REPLICATED", WARNING, lambda s: with_replicas(s, 1, 2, 3, in_sync=[1, 2])),
    (
        "TOPIC_REPLICAS_IN_ONE_RACK",
        WARNING,
        lambda s: with_cluster(
            s, brokers=[*(broker(n, rack="a") for n in (1, 2, 3)), broker(4, rack="b")]
        ),
    ),
    ("TOPIC_RETENTION_SHORT", ERROR, lambda s: with_settings(s, retention_ms="3600000")),
    ("TOPIC_RETENTION_BY_SIZE", WARNING, lambda s: with_settings(s, retention_bytes="1000000")),
    (
        "TOPIC_RETENTION_BY_SIZE",
        ERROR,
        lambda s: with_topic(
            with_settings(s, retention_bytes="9000"),
            partitions=[partition(0, first=50)],
            span_s=600.0,
        ),
    ),
    (
        "TOPIC_RETENTION_BY_SIZE",
        WARNING,
        lambda s: with_topic(
            with_settings(s, retention_bytes="9000000"),
            partitions=[partition(0, first=50)],
            span_s=600.0,
        ),
    ),
    ("TOPIC_COMPACTED", WARNING, lambda s: with_settings(s, cleanup_policy="compact")),
    (
        "TOPIC_COMPACTED",
        ERROR,
        lambda s: with_pipeline(with_settings(s, cleanup_policy="compact"), transitions=True),
    ),
    (
        "TOPIC_COMPACTED",
        NOTE,
        lambda s: with_pipeline(with_settings(s, cleanup_policy="compact"), history=False),
    ),
    (
        "TOPIC_COMPACTED",
        NOTE,
        lambda s: with_settings(
            s, cleanup_policy="compact,delete", min_compaction_lag_ms=str(4 * sound.DAY_MS)
        ),
    ),
    ("TOPIC_DELETE_RETENTION_SHORT", WARNING, lambda s: with_settings(s, cleanup_policy="compact")),
    (
        "TOPIC_USES_LOG_APPEND_TIME",
        WARNING,
        lambda s: with_pipeline(
            with_settings(s, message_timestamp_type="LogAppendTime"), order="@timestamp"
        ),
    ),
    (
        "TOPIC_USES_LOG_APPEND_TIME",
        NOTE,
        lambda s: with_pipeline(with_settings(s, message_timestamp_type="LogAppendTime"), at=None),
    ),
    (
        "TOPIC_TIMESTAMPS_UNBOUNDED",
        WARNING,
        lambda s: with_pipeline(
            with_settings(s, message_timestamp_after_max_ms=str(2**63 - 1)), order="@timestamp"
        ),
    ),
    (
        "TOPIC_REFUSES_OLD_TIMESTAMPS",
        WARNING,
        lambda s: with_settings(s, message_timestamp_before_max_ms="60000"),
    ),
    ("TOPIC_MAX_RECORD_SIZE_LOW", WARNING, lambda s: with_settings(s, max_message_bytes="2000")),
    ("TOPIC_SEGMENTS_TINY", WARNING, lambda s: with_settings(s, segment_ms="1000")),
    (
        "TOPIC_TRANSACTION_OPEN",
        ERROR,
        lambda s: with_topic(s, partitions=[partition(0, open_from=40), partition(1)]),
    ),
    (
        "TOPIC_REPLICATION_THROTTLED",
        WARNING,
        lambda s: with_settings(s, leader_replication_throttled_replicas="0:1"),
    ),
    (
        "TOPIC_LED_BY_ONE_BROKER",
        NOTE,
        lambda s: with_topic(s, partitions=[partition(n, leader=1) for n in range(3)]),
    ),
    ("RECORDS_WITHOUT_KEY", ERROR, lambda s: with_sample(s, keyless=3, in_murmur2_place=27)),
    (
        "RECORDS_IN_WRONG_PARTITION",
        WARNING,
        lambda s: with_sample(s, in_murmur2_place=12, in_crc32_place=22),
    ),
    (
        "RECORDS_IN_WRONG_PARTITION",
        ERROR,
        lambda s: with_pipeline(with_sample(s, in_murmur2_place=12, in_crc32_place=22), order=None),
    ),
    ("RECORDS_NOT_IDEMPOTENT", WARNING, lambda s: with_topic(s, idempotent_producers=0)),
    (
        "RECORDS_NOT_IDEMPOTENT",
        ERROR,
        lambda s: with_pipeline(with_topic(s, idempotent_producers=0), order=None),
    ),
    (
        "RECORDS_UNREADABLE",
        ERROR,
        lambda s: with_sample(
            s, unreadable={"contracts: NOT_JSON": 20, "contracts: WRONG_TYPE": 10}
        ),
    ),
    (
        "RECORDS_UNREADABLE",
        WARNING,
        lambda s: with_sample(s, unreadable={"contracts: VALUE_NOT_JSON": 2}),
    ),
    ("RECORDS_NEAR_SIZE_LIMIT", WARNING, lambda s: with_sample(s, largest_bytes=1_000_000)),
    (
        "RECORDS_TIMESTAMPS_TOO_OLD",
        WARNING,
        lambda s: with_sample(s, newest_age_s=20_000 * 86_400.0),
    ),
    ("RECORDS_TIMESTAMPS_TOO_OLD", ERROR, lambda s: with_sample(s, before_2000=30)),
    (
        "RECORDS_TIMESTAMPS_TOO_OLD",
        WARNING,
        lambda s: with_settings(with_sample(s, before_2000=30), cleanup_policy="compact"),
    ),
    (
        "RECORDS_TIMESTAMPS_TOO_OLD",
        WARNING,
        lambda s: with_settings(with_sample(s, before_2000=1), retention_ms="-1"),
    ),
    ("RECORDS_KEY_IS_NOT_DOCUMENT_ID", WARNING, lambda s: with_seen(s, key_differs=30)),
    (
        "RECORDS_KEY_IS_NOT_DOCUMENT_ID",
        ERROR,
        lambda s: with_pipeline(with_seen(s, key_differs=30, two_keys=2), order=None),
    ),
    ("RECORDS_SAME_ORDER_VALUE", ERROR, lambda s: with_seen(s, same_order=3)),
    ("RECORDS_OUT_OF_ORDER", WARNING, lambda s: with_seen(s, backwards=3)),
    ("RECORDS_OUT_OF_ORDER", ERROR, lambda s: with_pipeline(with_seen(s, backwards=3), order=None)),
    (
        "RECORDS_ORDER_IN_WHOLE_SECONDS",
        WARNING,
        lambda s: with_pipeline(with_seen(s, whole_seconds=30), order_is_time=True),
    ),
    ("RECORDS_EVENT_TIME_IMPLAUSIBLE", WARNING, lambda s: with_seen(s, before_2000=30)),
    (
        "RECORDS_EVENT_TIME_IMPLAUSIBLE",
        ERROR,
        lambda s: with_pipeline(with_seen(s, ahead=30), order_is_time=True),
    ),
    (
        "RECORDS_FIELD_MISSING",
        WARNING,
        lambda s: with_seen(s, absent={"pages": "page; did you mean 'pages'?"}),
    ),
    ("RECORDS_FIELD_MISSING", WARNING, lambda s: with_seen(s, absent={"pages": "page"})),
    ("RECORDS_TIME_WITHOUT_ZONE", NOTE, lambda s: with_seen(s, without_zone=30)),
    (
        "RECORDS_TIME_WITHOUT_ZONE",
        WARNING,
        lambda s: with_pipeline(with_seen(s, without_zone=30), order_is_time=True),
    ),
    (
        "RECORDS_STATUS_SPELLINGS_DIFFER",
        NOTE,
        lambda s: with_seen(s, statuses={"PRINTED": 9, "printed": 1, "SENT": 2}),
    ),
    ("RECORDS_REPEATED", NOTE, lambda s: with_seen(s, repeated=2)),
    ("RECORDS_TIMESTAMPS_IN_FUTURE", WARNING, lambda s: with_sample(s, ahead_s_max=3_600.0)),
    (
        "RECORDS_TIMESTAMPS_IN_FUTURE",
        ERROR,
        lambda s: with_pipeline(with_sample(s, ahead_s_max=3_600.0), order="@timestamp"),
    ),
    ("PUBLISHER_NOT_DECLARED", NOTE, lambda s: changed(s, publishers={})),
    ("PUBLISHER_ACKS_NOT_ALL", ERROR, lambda s: with_publisher(s, acks="1")),
    ("PUBLISHER_ACKS_NOT_ALL", ERROR, lambda s: with_publisher(s, "aiokafka")),
    (
        "PUBLISHER_ACKS_NOT_ALL",
        NOTE,
        lambda s: with_pipeline(with_publisher(s, acks="0"), guarantee="at-most-once"),
    ),
    (
        "PUBLISHER_NOT_IDEMPOTENT",
        WARNING,
        lambda s: with_publisher(s, "librdkafka", partitioner="murmur2"),
    ),
    (
        "PUBLISHER_NOT_IDEMPOTENT",
        ERROR,
        lambda s: with_pipeline(with_publisher(s, acks="1"), order=None),
    ),
    (
        "PUBLISHER_NOT_IDEMPOTENT",
        ERROR,
        lambda s: with_pipeline(with_publisher(s, acks="1"), order_is_time=True),
    ),
    (
        "PUBLISHER_NOT_IDEMPOTENT",
        NOTE,
        lambda s: with_pipeline(
            with_publisher(s, enable_idempotence="false"), guarantee="at-least-once"
        ),
    ),
    ("PUBLISHER_NOT_IDEMPOTENT", WARNING, lambda s: with_publisher(s, retries="0")),
    (
        "PUBLISHER_NOT_IDEMPOTENT",
        WARNING,
        lambda s: with_publisher(s, enable_idempotence="false", retries="0"),
    ),
    (
        "PUBLISHER_REORDERS_ON_RETRY",
        WARNING,
        lambda s: with_publisher(s, enable_idempotence="false"),
    ),
    (
        "PUBLISHER_REORDERS_ON_RETRY",
        ERROR,
        lambda s: with_pipeline(with_publisher(s, enable_idempotence="false"), order=None),
    ),
    (
        "PUBLISHER_PARTITIONER_NOT_MURMUR2",
        WARNING,
        lambda s: with_publisher(s, "librdkafka", enable_idempotence="true"),
    ),
    (
        "PUBLISHER_PARTITIONER_NOT_MURMUR2",
        ERROR,
        lambda s: with_pipeline(with_publisher(s, partitioner_ignore_keys="true"), order=None),
    ),
    (
        "PUBLISHER_PARTITIONERS_DIFFER",
        WARNING,
        lambda s: _publishers(s, second=PublisherFacts(topic="print-status", client="librdkafka")),
    ),
    ("PUBLISHER_DOES_NOT_RETRY", ERROR, lambda s: with_publisher(s, retries="0")),
    ("PUBLISHER_TOO_FEW_RETRIES", WARNING, lambda s: with_publisher(s, retries="3")),
    (
        "PUBLISHER_DELIVERY_TIMEOUT_SHORT",
        WARNING,
        lambda s: with_publisher(s, delivery_timeout_ms="5000", request_timeout_ms="2000"),
    ),
    (
        "PUBLISHER_SETTINGS_CONFLICT",
        ERROR,
        lambda s: with_publisher(s, enable_idempotence="true", acks="1"),
    ),
    ("PUBLISHER_SETTINGS_CONFLICT", ERROR, lambda s: with_publisher(s, delivery_timeout_ms="5000")),
    (
        "PUBLISHER_SETTINGS_CONFLICT",
        ERROR,
        lambda s: with_publisher(s, acks="2", enable_idempotence="false"),
    ),
    ("PUBLISHER_SETTINGS_CONFLICT", ERROR, lambda s: with_publisher(s, linger_ms="soon")),
    ("PUBLISHER_SETTINGS_CONFLICT", ERROR, lambda s: with_publisher(s, compression_type="gz")),
    (
        "PUBLISHER_SETTINGS_CONFLICT",
        ERROR,
        lambda s: with_publisher(s, "librdkafka", partitioner="murmur"),
    ),
    (
        "PUBLISHER_TRANSACTIONAL_ID_SHARED",
        ERROR,
        lambda s: _publishers(
            with_publisher(s, transactional_id="print"),
            second=PublisherFacts(
                topic="other", client="java", config={"transactional.id": "print"}
            ),
        ),
    ),
    (
        "PUBLISHER_REQUEST_TIMEOUT_SHORT",
        NOTE,
        lambda s: with_publisher(s, request_timeout_ms="500"),
    ),
    (
        "PUBLISHER_REQUEST_TIMEOUT_SHORT",
        WARNING,
        lambda s: with_publisher(s, request_timeout_ms="500", enable_idempotence="false"),
    ),
    ("PUBLISHER_BLOCK_TIMEOUT_SHORT", WARNING, lambda s: with_publisher(s, max_block_ms="0")),
    (
        "PUBLISHER_TOPIC_WITHOUT_PIPELINE",
        WARNING,
        lambda s: _publishers(s, second=PublisherFacts(topic="print-staus", client="java")),
    ),
    (
        "PUBLISHER_COMPRESSION_DIFFERS",
        NOTE,
        lambda s: with_settings(with_publisher(s, compression_type="lz4"), compression_type="gzip"),
    ),
    ("PUBLISHER_SETTING_MISSPELT", WARNING, lambda s: with_publisher(s, enable_idempotency="true")),
    (
        "PUBLISHER_RECORD_LIMIT_ABOVE_TOPIC",
        WARNING,
        lambda s: with_publisher(s, max_request_size="5000000"),
    ),
    ("PUBLISHER_LINGER_LONG", WARNING, lambda s: with_publisher(s, linger_ms="5000")),
    (
        "PUBLISHER_TRANSACTION_TIMEOUT_LONG",
        WARNING,
        lambda s: with_publisher(s, transactional_id="x", transaction_timeout_ms="600000"),
    ),
    (
        "PUBLISHER_TRANSACTION_TIMEOUT_REFUSED",
        ERROR,
        lambda s: with_publisher(s, transactional_id="x", transaction_timeout_ms="9000000"),
    ),
    ("PIPELINE_WITHOUT_GUARD", WARNING, lambda s: with_pipeline(s, order=None)),
    (
        "PIPELINE_ORDERED_BY_SEVERAL_CLOCKS",
        WARNING,
        lambda s: _publishers(
            with_pipeline(s, order_is_time=True),
            second=PublisherFacts(topic="print-status", client="java"),
        ),
    ),
    (
        "PIPELINE_SKIPS_EXISTING_RECORDS",
        WARNING,
        lambda s: with_pipeline(s, start="latest", ledger=[]),
    ),
    ("PIPELINE_SHARES_COLUMNS", ERROR, _two_pipelines),
    ("PIPELINE_SHARES_COLUMNS", ERROR, _two_pipelines_under_other_names),
    (
        "PIPELINE_STATUS_NOT_DECLARED",
        WARNING,
        lambda s: with_pipeline(
            with_seen(s, statuses={"QUEUED": 20, "LOST": 1}), followers=STATUSES
        ),
    ),
    (
        "PIPELINE_STATUS_NOT_DECLARED",
        ERROR,
        lambda s: with_pipeline(with_seen(s, statuses={"queued": 30}), followers=STATUSES),
    ),
    (
        "PIPELINE_STATUS_NOT_DECLARED",
        WARNING,
        lambda s: with_pipeline(s, followers=STATUSES, statuses=["BURNT", "QUEUED"]),
    ),
    (
        "PIPELINE_STATUS_UNREACHABLE",
        WARNING,
        lambda s: with_pipeline(s, followers={**STATUSES, "LOST": ["FOUND"], "FOUND": ["LOST"]}),
    ),
    (
        "PIPELINE_STATUS_UNREACHABLE",
        WARNING,
        lambda s: with_pipeline(s, followers={**STATUSES, "SENT": ["QUEUDE"]}),
    ),
    (
        "PIPELINE_DUE_STATUS_UNKNOWN",
        WARNING,
        lambda s: with_pipeline(s, followers=STATUSES, due={"QUEUED": "2h", "Queued": "2h"}),
    ),
    (
        "PIPELINE_DUE_STATUS_UNKNOWN",
        WARNING,
        lambda s: with_pipeline(
            with_seen(s, statuses={"QUEUED": 20}), statuses=["SENT"], due={"queued": "2h"}
        ),
    ),
    ("PIPELINE_GUARANTEE_WEAK", WARNING, lambda s: with_pipeline(s, guarantee="at-most-once")),
    ("PIPELINE_GUARANTEE_WEAK", NOTE, lambda s: with_pipeline(s, guarantee="at-least-once")),
    ("PIPELINE_WITHOUT_HISTORY", NOTE, lambda s: with_pipeline(s, history=False)),
    ("PIPELINE_PASSWORD_IN_FILE", NOTE, lambda s: with_pipeline(s, password_written=True)),
    ("PIPELINE_TOPIC_REPLACED", ERROR, lambda s: with_ledger(s, topic_id="t0")),
    (
        "PIPELINE_RECORDS_EXPIRED",
        ERROR,
        lambda s: with_topic(s, partitions=[partition(0, first=150, end=200)]),
    ),
    ("PIPELINE_AHEAD_OF_LOG", ERROR, lambda s: with_topic(s, partitions=[partition(0, end=90)])),
    ("PIPELINE_RECORDS_EXPIRE_SOON", WARNING, lambda s: with_ledger(s, waiting_age_s=5 * 86_400.0)),
    ("PIPELINE_HAS_QUARANTINE", WARNING, lambda s: with_pipeline(s, parked_documents=2)),
    ("PIPELINE_HAS_QUARANTINE", NOTE, lambda s: with_pipeline(s, dead_letters=2)),
    (
        "PIPELINE_GROUP_IN_USE",
        ERROR,
        lambda s: with_pipeline(s, group_members=["app-1 at /10.0.0.7"]),
    ),
    (
        "PIPELINE_GROUP_IN_USE",
        WARNING,
        lambda s: with_pipeline(s, group_foreign=["print-status 0"]),
    ),
    (
        "PIPELINE_SQLITE_ON_CLUSTER",
        ERROR,
        lambda s: changed(
            with_pipeline(s, target="sqlite:////data/t.db"),
            spark=SparkFacts(master="spark://host:7077"),
        ),
    ),
    (
        "PIPELINE_LOCALHOST_ON_CLUSTER",
        WARNING,
        lambda s: changed(s, spark=SparkFacts(master="spark://host:7077")),
    ),
    (
        "PIPELINE_SPECULATION_ON",
        WARNING,
        lambda s: changed(s, spark=SparkFacts(master="yarn", conf={"spark.speculation": "true"})),
    ),
    ("PIPELINE_SMALL_BATCHES", WARNING, lambda s: with_pipeline(s, batch_rows_max=10)),
    ("PIPELINE_HUGE_BATCHES", WARNING, lambda s: with_pipeline(s, batch_rows_max=10_000_000)),
    (
        "PIPELINE_DELETES_UNMAPPED_COLUMNS",
        NOTE,
        lambda s: with_database(s, other_columns=["owner"]),
    ),
    (
        "PIPELINE_DELETES_UNMAPPED_COLUMNS",
        WARNING,
        lambda s: with_pipeline(with_database(s, other_columns=["owner"]), missing="park"),
    ),
    ("PIPELINE_IGNORES_MISSING_DOCUMENTS", NOTE, lambda s: with_pipeline(s, missing="ignore")),
    (
        "DATABASE_UNREACHABLE",
        ERROR,
        lambda s: with_database(s, unreachable="no connection to db\nstart it"),
    ),
    (
        "DATABASE_TABLE_DOES_NOT_MATCH",
        ERROR,
        lambda s: with_database(s, unfit=("no table contract_document", "run: instep init")),
    ),
    ("DATABASE_READ_ONLY", ERROR, lambda s: with_database_settings(s, in_recovery="on")),
    ("DATABASE_READ_ONLY", ERROR, lambda s: with_database_settings(on_mysql(s), read_only="ON")),
    ("DATABASE_CRASH_SAFETY_OFF", ERROR, lambda s: with_database_settings(s, fsync="off")),
    (
        "DATABASE_CRASH_SAFETY_OFF",
        ERROR,
        lambda s: with_database_settings(on_mysql(s), innodb_doublewrite="OFF"),
    ),
    (
        "DATABASE_COMMITS_ASYNCHRONOUSLY",
        NOTE,
        lambda s: with_database_settings(s, synchronous_commit="off"),
    ),
    (
        "DATABASE_COMMITS_ASYNCHRONOUSLY",
        NOTE,
        lambda s: with_pipeline(
            with_database_settings(on_mysql(s), innodb_flush_log_at_trx_commit="2"),
            guarantee="at-least-once",
        ),
    ),
    (
        "DATABASE_NO_TRANSACTIONS",
        ERROR,
        lambda s: on_mysql(s, engines={"contract_document": "MyISAM"}),
    ),
    (
        "DATABASE_TABLE_UNLOGGED",
        ERROR,
        lambda s: with_database(s, engines={"instep_ledger": "unlogged"}),
    ),
    (
        "DATABASE_SECOND_UNIQUE_KEY",
        WARNING,
        lambda s: with_database(s, unique_keys=[["doc_no"], ["print_version"]]),
    ),
    ("DATABASE_TABLE_HAS_TRIGGERS", NOTE, lambda s: with_database(s, triggers=["audit"])),
    (
        "DATABASE_TIMEOUT_SHORT",
        WARNING,
        lambda s: with_database_settings(s, statement_timeout="2000"),
    ),
    (
        "DATABASE_TIMEOUT_SHORT",
        WARNING,
        lambda s: with_database_settings(on_mysql(s), max_statement_time="2.000000"),
    ),
    (
        "DATABASE_CONNECTION_LIMIT_LOW",
        WARNING,
        lambda s: with_database_settings(s, max_connections="5"),
    ),
    (
        "DATABASE_CONNECTION_LIMIT_LOW",
        WARNING,
        lambda s: with_database_settings(on_mysql(s), max_user_connections="4"),
    ),
    (
        "DATABASE_CONNECTION_LIMIT_LOW",
        WARNING,
        lambda s: with_database(s, limits={"ROLE_CONNECTIONS": 4}),
    ),
    (
        "DATABASE_CONNECTION_LIMIT_LOW",
        ERROR,
        lambda s: with_database(s, limits={"ROLE_CONNECTIONS": 2}),
    ),
    (
        "DATABASE_CONNECTION_LIMIT_LOW",
        ERROR,
        lambda s: with_database(s, limits={"DATABASE_CONNECTIONS": 1}),
    ),
    (
        "DATABASE_CONNECTION_LIMIT_LOW",
        ERROR,
        lambda s: on_mysql(s, limits={"MAX_USER_CONNECTIONS": 1}),
    ),
    (
        "DATABASE_TIMEOUT_SHORT",
        WARNING,
        lambda s: with_database_settings(s, idle_session_timeout="5000"),
    ),
    (
        "DATABASE_TIMEOUT_SHORT",
        WARNING,
        lambda s: with_database_settings(on_mysql(s, "mysql"), max_execution_time="900"),
    ),
    (
        "DATABASE_TIMEOUT_SHORT",
        WARNING,
        lambda s: with_database_settings(on_mysql(s), wait_timeout="10"),
    ),
    (
        "DATABASE_HOURLY_LIMITS",
        WARNING,
        lambda s: on_mysql(s, limits={"MAX_UPDATES_PER_HOUR": 100}),
    ),
    (
        "DATABASE_PASSWORD_EXPIRES",
        WARNING,
        lambda s: with_database(s, password_valid_s=5 * 86_400.0),
    ),
    ("DATABASE_PASSWORD_EXPIRES", ERROR, lambda s: with_database(s, password_valid_s=-1.0)),
    (
        "DATABASE_DELETE_AFFECTS_OTHER_TABLES",
        WARNING,
        lambda s: with_database(s, referenced_by=[_reference("NO ACTION")]),
    ),
    (
        "DATABASE_DELETE_AFFECTS_OTHER_TABLES",
        WARNING,
        lambda s: with_database(s, referenced_by=[_reference("CASCADE")]),
    ),
    (
        "DATABASE_PARENT_ROW_MAY_BE_MISSING",
        NOTE,
        lambda s: with_database(s, references=[_reference("NO ACTION")]),
    ),
    (
        "DATABASE_CONSTRAINT_CHECKS_OFF",
        WARNING,
        lambda s: with_database_settings(s, session_replication_role="replica"),
    ),
    (
        "DATABASE_CONSTRAINT_CHECKS_OFF",
        WARNING,
        lambda s: with_database_settings(on_mysql(s), foreign_key_checks="OFF"),
    ),
    (
        "DATABASE_ISOLATION_TOO_STRICT",
        WARNING,
        lambda s: with_database_settings(s, default_transaction_isolation="serializable"),
    ),
    (
        "DATABASE_SYNCHRONOUS_STANDBY",
        NOTE,
        lambda s: with_database_settings(s, synchronous_standby_names="ANY 1 (a, b)"),
    ),
    ("DATABASE_LOGS_STATEMENTS", NOTE, lambda s: with_database_settings(s, log_statement="all")),
    (
        "DATABASE_LOGS_STATEMENTS",
        NOTE,
        lambda s: with_database_settings(on_mysql(s), general_log="ON"),
    ),
    (
        "DATABASE_BINLOG_NOT_SYNCED",
        NOTE,
        lambda s: with_database_settings(on_mysql(s), sync_binlog="0"),
    ),
    (
        "DATABASE_TIMESTAMPS_WITHOUT_TIME_ZONE",
        NOTE,
        lambda s: with_database_settings(
            with_database(s, times_without_zone=["printed_at"]), TimeZone="Europe/Berlin"
        ),
    ),
    (
        "DATABASE_TIMESTAMPS_WITHOUT_TIME_ZONE",
        NOTE,
        lambda s: with_database_settings(
            on_mysql(s, times_without_zone=["printed_at"]),
            time_zone="SYSTEM",
            system_time_zone="CET",
        ),
    ),
    (
        "DATABASE_CERTIFICATE_NOT_VERIFIED",
        WARNING,
        lambda s: with_database(s, host="db.example", encrypted=True, sslmode="require"),
    ),
    (
        "DATABASE_USER_IS_SUPERUSER",
        WARNING,
        lambda s: on_mysql(s, host="db.example", superuser=True),
    ),
    ("DATABASE_READ_ONLY", ERROR, _read_only_by_default),
    ("DATABASE_CLOCK_DIFFERS", WARNING, lambda s: with_database(s, clock_ahead_s=30.0)),
    (
        "DATABASE_CHECK_CONSTRAINTS",
        NOTE,
        lambda s: with_database(s, checks={"positive": "print_version > 0"}),
    ),
    ("DATABASE_CHECK_CONSTRAINTS", WARNING, _refusing_check),
    (
        "DATABASE_ORDER_COLUMN_SMALL",
        WARNING,
        lambda s: with_database(s, order_column=("print_version", "SMALLINT", 32_767)),
    ),
    (
        "DATABASE_MAX_PACKET_SMALL",
        WARNING,
        lambda s: with_database_settings(on_mysql(s), max_allowed_packet="1048576"),
    ),
    (
        "DATABASE_BINLOG_FORMAT_STATEMENT",
        ERROR,
        lambda s: with_database_settings(on_mysql(s), binlog_format="STATEMENT"),
    ),
    (
        "DATABASE_RIGHTS_MISSING",
        ERROR,
        lambda s: with_database(s, lacking_rights=["INSERT on contract_document"]),
    ),
    (
        "DATABASE_RIGHTS_MISSING",
        ERROR,
        lambda s: with_database(s, lacking_rights=["TEMPORARY on the database"]),
    ),
    (
        "DATABASE_RIGHTS_MISSING",
        WARNING,
        lambda s: with_database(s, lacking_rights=["DELETE on contract_document"]),
    ),
    ("DATABASE_ROW_SECURITY_HIDES_ROWS", WARNING, lambda s: with_database(s, row_security=True)),
    ("DATABASE_USER_IS_SUPERUSER", NOTE, lambda s: with_database(s, superuser=True)),
    ("DATABASE_NOT_ENCRYPTED", WARNING, lambda s: with_database(s, host="db.example")),
    ("DATABASE_VERSION_OLD", WARNING, lambda s: with_database(s, version=(12, 9))),
    ("DATABASE_VERSION_OLD", WARNING, lambda s: on_mysql(s, "mysql", version=(5, 7, 44))),
    (
        "DATABASE_SQLITE_ON_NETWORK_DISK",
        ERROR,
        lambda s: with_database(s, kind="sqlite", version=(3, 45), filesystem="nfs4"),
    ),
    ("RELAY_SOURCE_UNREACHABLE", ERROR, lambda s: with_source(s, {"unreachable": "no answer"})),
    ("RELAY_NOT_INITIALISED", ERROR, lambda s: with_source(s, missing=["table instep_outbox"])),
    ("RELAY_NOT_INITIALISED", ERROR, _without_position_topic),
    ("RELAY_SOURCE_READ_ONLY", ERROR, lambda s: with_source_settings(s, in_recovery="on")),
    ("RELAY_SOURCE_READ_ONLY", ERROR, lambda s: with_mysql_source(s, read_only="ON")),
    (
        "RELAY_SOURCE_READ_ONLY",
        ERROR,
        lambda s: with_source_settings(s, default_transaction_read_only="on"),
    ),
    (
        "RELAY_SOURCE_SEVERAL_WRITABLE_NODES",
        WARNING,
        lambda s: with_source(
            s, {"kind": "mariadb", "settings": {**sound.MYSQL, "wsrep_on": "ON"}}, writable_nodes=3
        ),
    ),
    (
        "RELAY_SOURCE_SEVERAL_WRITABLE_NODES",
        WARNING,
        lambda s: with_source(s, {"kind": "mysql", "settings": sound.MYSQL}, writable_nodes=3),
    ),
    ("RELAY_SOURCE_CRASH_SAFETY_OFF", ERROR, lambda s: with_source_settings(s, fsync="off")),
    (
        "RELAY_SOURCE_CRASH_SAFETY_OFF",
        ERROR,
        lambda s: with_mysql_source(s, innodb_doublewrite="OFF"),
    ),
    (
        "RELAY_SOURCE_COMMITS_NOT_DURABLE",
        NOTE,
        lambda s: with_source_settings(s, synchronous_commit="off"),
    ),
    (
        "RELAY_SOURCE_COMMITS_NOT_DURABLE",
        ERROR,
        lambda s: with_mysql_source(s, innodb_flush_log_at_trx_commit="2"),
    ),
    (
        "RELAY_SOURCE_COMMITS_NOT_DURABLE",
        WARNING,
        lambda s: with_mysql_source(s, "mysql", sync_binlog="0"),
    ),
    (
        "RELAY_SOURCE_COMMITS_NOT_DURABLE",
        WARNING,
        lambda s: with_sqlite_source(s, settings={"synchronous": "1"}),
    ),
    (
        "RELAY_SQLITE_NOT_WAL",
        WARNING,
        lambda s: with_sqlite_source(s, settings={"journal_mode": "delete"}),
    ),
    ("RELAY_SQLITE_ON_NETWORK_DISK", ERROR, lambda s: with_sqlite_source(s, filesystem="nfs")),
    ("RELAY_SEQUENCE_CACHED", ERROR, lambda s: with_source(s, sequence_cache=20)),
    (
        "RELAY_ID_NOT_AUTOINCREMENT",
        ERROR,
        lambda s: with_source(s, {"kind": "sqlite"}, is_id_generated=False),
    ),
    (
        "RELAY_ID_NOT_AUTOINCREMENT",
        ERROR,
        lambda s: with_source(s, {"kind": "mysql"}, is_id_generated=False),
    ),
    ("RELAY_ID_NOT_AUTOINCREMENT", ERROR, lambda s: with_source(s, is_id_generated=False)),
    (
        "RELAY_TABLE_WITHOUT_TRANSACTIONS",
        ERROR,
        lambda s: with_source(s, {"engines": {"instep_outbox": "unlogged"}}),
    ),
    (
        "RELAY_TABLE_WITHOUT_TRANSACTIONS",
        ERROR,
        lambda s: with_source(s, {"kind": "mariadb", "engines": {"instep_outbox": "MyISAM"}}),
    ),
    (
        "RELAY_OUTBOX_SHARED",
        ERROR,
        lambda s: _second_relay(
            s, source="postgresql://localhost:5432/shop", outbox="public.instep_outbox"
        ),
    ),
    ("RELAY_HAS_DEAD_ROWS", WARNING, lambda s: with_source(s, dead_rows=2)),
    ("OUTPUT_CHANGED", ERROR, _position(partitions=2)),
    ("OUTPUT_CHANGED", ERROR, _position(topic_id="t0")),
    ("OUTPUT_CHANGED", ERROR, _position(cluster_id="c0")),
    ("RELAY_SOURCE_CHANGED", ERROR, _position(source_id="s0")),
    (
        "OUTPUT_POSITION_TOPIC_SETTINGS",
        ERROR,
        lambda s: with_position_topic(s, settings={"cleanup_policy": "compact,delete"}),
    ),
    (
        "OUTPUT_POSITION_TOPIC_SETTINGS",
        WARNING,
        lambda s: with_position_topic(s, partitions=[partition(0), partition(1)]),
    ),
    (
        "OUTPUT_POSITION_UNDER_REPLICATED",
        WARNING,
        lambda s: with_position_topic(s, partitions=[partition(0, replicas=[1])]),
    ),
    (
        "OUTPUT_POSITION_UNDER_REPLICATED",
        WARNING,
        lambda s: with_position_topic(s, settings={"min_insync_replicas": "1"}),
    ),
    (
        "OUTPUT_POSITION_UNDER_REPLICATED",
        WARNING,
        lambda s: with_position_topic(s, settings={"unclean_leader_election_enable": "true"}),
    ),
    (
        "OUTPUT_TRANSACTION_TIMEOUT_REFUSED",
        ERROR,
        lambda s: with_relay(with_brokers(s, transaction_max_timeout_ms="30000")),
    ),
    (
        "CLUSTER_TRANSACTION_LOG_UNDER_REPLICATED",
        ERROR,
        lambda s: with_cluster(only_relay(s), internal={"__transaction_state": (1, 1)}),
    ),
    ("TOPIC_MISSING", ERROR, lambda s: changed(only_relay(s), topics={"print-status": None})),
    ("OUTPUT_TOPIC_SHARED", WARNING, lambda s: _second_relay(s, outbox="other_outbox")),
    ("OUTPUT_GUARANTEE_WEAK", NOTE, lambda s: with_relay(s, guarantee="at-least-once")),
    (
        "RELAY_SOURCE_NOT_ENCRYPTED",
        WARNING,
        lambda s: with_source(s, {"host": "db.example"}),
    ),
    ("RELAY_PASSWORD_IN_FILE", NOTE, lambda s: with_relay(s, password_written=True)),
    ("READER_NOT_READ_COMMITTED", ERROR, _reader),
    (
        "READER_NOT_READ_COMMITTED",
        ERROR,
        lambda s: _reader(s, client="librdkafka", isolation="read_uncommitted"),
    ),
    ("READER_NOT_DECLARED", NOTE, lambda s: with_relay(s, groups=["billing"])),
    ("READER_NOT_DECLARED", NOTE, lambda s: with_stream(s, groups=["billing"])),
    ("OUTPUT_GUARANTEE_WEAK", NOTE, lambda s: with_stream(s, guarantee="at-least-once")),
    (
        "OUTPUT_CHANGED",
        ERROR,
        lambda s: with_stream(
            s, position=PublishedPosition(topic_id="t1", cluster_id="c1", partitions=2)
        ),
    ),
    (
        "OUTPUT_RECORDS_SMALLER",
        WARNING,
        lambda s: with_stream(s, {"max_message_bytes": "20000000"}),
    ),
    ("OUTPUT_SOURCE_EXPIRES_EARLY", WARNING, lambda s: with_stream(s, {"retention_ms": "60000"})),
]


def test_every_rule_has_a_test_case() -> None:
    assert {name for name, _, _ in BREAKS} == rules.ALL.keys()
    assert len(rules.ALL) >= 40


@pytest.mark.parametrize(
    "keeps",
    [
        sound.snapshot(),
        on_mysql(sound.snapshot()),
        on_mysql(sound.snapshot(), "mysql"),
        with_database(
            sound.snapshot(),
            kind="sqlite",
            version=(3, 45),
            settings=None,
            engines={},
            filesystem="ext4",
        ),
        with_publisher(sound.snapshot(), "instep"),
        with_publisher(sound.snapshot(), "kafka-python"),
        with_publisher(
            sound.snapshot(), "librdkafka", enable_idempotence="true", partitioner="murmur2"
        ),
        with_publisher(sound.snapshot(), "aiokafka", enable_idempotence="true"),
        with_publisher(sound.snapshot(), transactional_id="print-1"),
        with_relay(sound.snapshot()),
        with_stream(sound.snapshot()),
        only_relay(sound.snapshot()),
        with_mysql_source(sound.snapshot()),
        with_mysql_source(sound.snapshot(), "mysql"),
        with_sqlite_source(sound.snapshot()),
        _reader(sound.snapshot(), client="librdkafka"),
        _reader(sound.snapshot(), client="spark", isolation="read_committed"),
    ],
    ids=[
        "postgres",
        "mariadb",
        "mysql",
        "sqlite",
        "instep",
        "kafka-python",
        "librdkafka",
        "aiokafka",
        "transactions",
        "relay",
        "stream",
        "relay without pipelines",
        "relay from mariadb",
        "relay from mysql",
        "relay from sqlite",
        "reader",
        "reader in Spark",
    ],
)
def test_a_sound_snapshot_keeps_every_rule(keeps: Snapshot) -> None:
    verdict = judgement.judge(keeps)
    assert [one.rule for one in verdict.findings] == []
    assert verdict.unjudged == []
    assert all(one.kept for one in verdict.outcomes)


@pytest.mark.parametrize(
    ("name", "severity", "change"),
    BREAKS,
    ids=[f"{name} {severity}" for name, severity, _ in BREAKS],
)
def test_each_rule_reports_its_problem(name: str, severity: Severity, change: Change) -> None:
    verdict = judgement.judge(change(sound.snapshot()))
    found = [one for one in verdict.findings if one.rule == name]
    assert found, [one.rule for one in verdict.findings]
    assert {one.severity for one in found} == {severity}
    for one in found:
        assert one.evidence
        assert one.fix
        assert one.subject
        assert one.page == f"instep explain {name}"
        for placeholder in ("…", "NAME", "<", "***"):
            assert placeholder not in one.fix, "a fix can be run or pasted as it stands"
    assert (name in {one.rule for one in verdict.errors}) == (severity is ERROR)


@pytest.mark.parametrize("name", rules.ALL)
def test_a_rule_explains_itself(name: str) -> None:
    rule = rules.ALL[name]
    assert rule.part in judgement.PARTS
    for text in (rule.what, rule.consequence, rule.remedy, rule.acceptable_when):
        assert text.endswith(".")
    assert rule.when[0].islower()
    assert not rule.when.endswith(".")
