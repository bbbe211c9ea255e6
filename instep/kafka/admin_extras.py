"""Requests that librdkafka does not have, sent with kafka-python: log sizes, quorum, producers.

The import of kafka-python takes a while, so only commands that need these facts import it. All of
them are optional: a broker that does not answer (an old one, a cloud's, or one where we lack the
right) leaves a fact unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from instep import errors, settings
from instep.kafka import connection

# kafka-python logs every failed request. Here a failed request only leaves a fact unknown.
log = logging.getLogger("kafka")
log.addHandler(logging.NullHandler())
log.propagate = False

UNKNOWN = -1  # Kafka's code for an error without one
UNCLEAN_ELECTION = 1

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker: its total and free bytes, and the size of each replica."""

    broker: int
    path: str
    total_bytes: int | None
    free_bytes: int | None
    replicas: Mapping[tuple[str, int], int]
    error: int = 0


@dataclass(frozen=True, slots=True)
class Quorum:
    """The voting controllers, their leader, and the leader's clock."""

    leader: int
    voters: tuple[int, ...]
    leader_clock_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProducerState:
    """An idempotent producer that a partition's leader remembers, and its last sequence number."""

    partition: int
    producer: int
    epoch: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction in one partition. Readers of committed records stop at its start."""

    partition: int
    start_offset: int
    producer: int
    since: datetime | None
    transactional_id: str | None


class AdminExtras:
    """Requests to one cluster; each returns None if the cluster does not answer it."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin
        self.is_broken = False  # whether a request got no answer

    def close(self) -> None:
        self._admin.close()

    def _or_none(self, request: Callable[[], Result]) -> Result | None:
        from kafka import errors as client_errors

        try:
            return request()
        except (client_errors.KafkaError, OSError, KeyError, IndexError) as failure:
            log.debug("the cluster does not answer: %r", failure)
            self.is_broken |= not isinstance(failure, client_errors.BrokerResponseError)
            return None

    def log_dirs(self, topics: Collection[str] | None = None) -> list[LogDir] | None:
        """Return every log directory with the replicas of these topics, or of all."""

        def request() -> list[LogDir]:
            answer = self._admin.describe_log_dirs(None if topics is None else list(topics))
            return [
                _log_dir(broker["broker"], log_dir)
                for broker in answer
                for log_dir in broker["log_dirs"]
            ]

        return self._or_none(request)

    def setting(self, topics: Collection[str], name: str) -> dict[str, str] | None:
        """Return one setting of many topics; librdkafka reads all settings, which takes longer."""

        def request() -> dict[str, str]:
            from kafka.admin import ConfigResource, ConfigResourceType

            resources = [
                ConfigResource(ConfigResourceType.TOPIC, topic, {name: None}) for topic in topics
            ]
            answer = self._admin.describe_configs(resources, config_filter="all")["topic"]
            return {topic: values[name]["value"] for topic, values in answer.items()}

        return self._or_none(request)

    def eligible(self, topics: Collection[str]) -> dict[tuple[str, int], tuple[int, ...]] | None:
        """Return the eligible leader replicas (ELR): not in sync, but electable without loss."""

        def request() -> dict[tuple[str, int], tuple[int, ...]]:
            answer = self._admin.describe_topic_partitions(list(topics))["topics"]
            parts = [(topic["name"], part) for topic in answer for part in topic["partitions"]]
            return {
                (name, p["partition_index"]): tuple(p["eligible_leader_replicas"] or ())
                for name, p in parts
            }

        return self._or_none(request)

    def racks(self) -> dict[int, str | None] | None:
        """Return the rack of each broker."""
        return self._or_none(
            lambda: {
                broker["broker_id"]: broker["rack"]
                for broker in self._admin.describe_cluster()["brokers"]
            }
        )

    def producer_count(self, topic: str, partitions: Collection[int]) -> int | None:
        """Return how many idempotent producers the leaders of these partitions remember."""
        found = self.producer_states(topic, partitions)
        if found is None:
            return None
        return len({one.producer for one in found})

    def producer_states(
        self, topic: str, partitions: Collection[int]
    ) -> list[ProducerState] | None:
        """Return the idempotent producers that leaders remember, by default for a day."""

        def request() -> list[ProducerState]:
            from kafka import TopicPartition

            states = self._admin.describe_producers(
                [TopicPartition(topic, partition) for partition in partitions]
            )
            return [
                ProducerState(
                    topic_partition.partition,
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.last_sequence,
                )
                for topic_partition, state in sorted(states.items())
                for producer in state.active_producers
            ]

        return self._or_none(request)

    def open_transactions(
        self, topic: str, partitions: Collection[int]
    ) -> list[OpenTransaction] | None:
        """Return the open transactions in these partitions.

        Their start is the coordinator's, or else the time of the last record.
        """

        def request() -> list[OpenTransaction]:
            from kafka import TopicPartition

            states = self._admin.describe_producers(
                [TopicPartition(topic, partition) for partition in partitions]
            )
            producers = [
                (topic_partition.partition, producer)
                for topic_partition, state in sorted(states.items())
                for producer in state.active_producers
                if producer.current_transaction_start_offset >= 0
            ]
            producer_ids = {producer.producer_id for _, producer in producers}
            transactions = self._or_none(lambda: self._transactions(producer_ids)) or {}
            found = []
            for partition, producer in producers:
                transactional_id, since_ms = transactions.get(
                    producer.producer_id, (None, producer.last_timestamp)
                )
                since = datetime.fromtimestamp(since_ms / 1000, UTC) if since_ms > 0 else None
                found.append(
                    OpenTransaction(
                        partition,
                        producer.current_transaction_start_offset,
                        producer.producer_id,
                        since,
                        transactional_id,
                    )
                )
            return found

        return self._or_none(request)

    def _transactions(self, producers: Collection[int]) -> dict[int, tuple[str, int]]:
        """Return transactional id and start time by producer id, as far as coordinators know."""
        if not producers:
            return {}
        listed = self._admin.list_transactions(producer_id_filters=list(producers))
        names = [
            transaction.transactional_id
            for of_broker in listed.values()
            for transaction in of_broker
        ]
        described = self._admin.describe_transactions(names) if names else {}
        return {
            transaction.producer_id: (name, transaction.transaction_start_time_ms)
            for name, transaction in described.items()
            if transaction.transaction_start_time_ms > 0
        }

    def quorum(self) -> Quorum | None:
        """Return the controllers' quorum."""

        def request() -> Quorum:
            quorum = self._admin.describe_metadata_quorum()["topics"][0]["partitions"][0]
            voters = {
                voter["replica_id"]: voter["last_caught_up_timestamp"]
                for voter in quorum["current_voters"]
            }
            # The leader has always just caught up with itself, so this timestamp is its clock.
            clock_ms = voters.get(quorum["leader_id"], -1)
            return Quorum(
                quorum["leader_id"],
                tuple(sorted(voters)),
                clock_ms / 1000 if clock_ms > 0 else None,
            )

        return self._or_none(request)

    def reassign(self, topic: str, replicas: Mapping[int, list[int]]) -> dict[int, int]:
        """Move partitions to these brokers; return the error code of each, 0 if accepted."""
        from kafka import TopicPartition
        from kafka import errors as client_errors

        assignment = {
            TopicPartition(topic, partition): nodes for partition, nodes in replicas.items()
        }
        try:
            answer = self._admin.alter_partition_reassignments(assignment)
        except client_errors.KafkaError as failure:
            return dict.fromkeys(replicas, failure.errno or UNKNOWN)
        return {
            topic_partition.partition: error.errno if error else 0
            for topic_partition, error in answer.items()
        }

    def elect_unclean(self, topic: str, partition: int) -> bool:
        """Elect any live replica as leader, even if records are lost; return whether it worked."""

        def request() -> bool:
            self._admin.elect_leaders(UNCLEAN_ELECTION, {topic: [partition]})
            return True

        return self._or_none(request) or False

    def features(self) -> dict[str, int] | None:
        """Return the finalized features of the cluster and their levels."""

        def request() -> dict[str, int]:
            found = self._admin.describe_features()
            return {
                name: levels["finalized"][1]
                for name, levels in found.items()
                if "finalized" in levels
            }

        return self._or_none(request)


@contextmanager
def connect(cluster: connection.Cluster) -> Iterator[AdminExtras | None]:
    """Borrow a second client to the cluster; None if it does not accept one."""
    from kafka import errors as client_errors

    pool = cluster.pool("extras", lambda: _open(cluster), AdminExtras.close)
    try:
        loan = pool.borrow()
        # the brokers that a kept client knows may be gone
        if not loan.is_new and loan.client.racks() is None:
            loan.replace()
    except (client_errors.KafkaError, errors.InstepError, OSError):
        yield None
        return
    with loan:
        yield loan.client
        loan.is_kept = not loan.client.is_broken


def _open(cluster: connection.Cluster) -> AdminExtras:
    from kafka.admin import KafkaAdminClient

    # Only brokers that are up: kafka-python waits for an address that does not answer.
    brokers = cluster.metadata(cluster.operation("look for the brokers")).brokers.values()
    bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    return AdminExtras(
        KafkaAdminClient(**client_config(cluster.kafka, bootstrap, cluster.timeout_s))
    )


def client_config(kafka: settings.Kafka, bootstrap: str, timeout_s: float) -> dict[str, Any]:
    """Return the settings of kafka-python for the cluster."""
    security = kafka.security
    config: dict[str, Any] = {
        "bootstrap_servers": [
            address.strip() for address in bootstrap.split(",") if address.strip()
        ],
        "client_id": "instep",
        "request_timeout_ms": int(timeout_s * 1000),
        "bootstrap_timeout_ms": int(timeout_s * 1000),
        "security_protocol": security.protocol,
        "sasl_mechanism": security.mechanism,
        "sasl_plain_username": security.username,
        "sasl_plain_password": security.password,
        "ssl_cafile": security.ca,
        "ssl_certfile": security.certificate,
        "ssl_keyfile": security.key,
        "ssl_password": security.key_password,
    }
    return {name: value for name, value in config.items() if value is not None}


def _log_dir(broker: int, description: Mapping[str, Any]) -> LogDir:
    replicas = {
        (topic["name"], part["partition_index"]): part["partition_size"]
        for topic in description["topics"]
        for part in topic["partitions"]
        if not part.get("is_future_key")
    }
    # Kafka before 3.3 does not report them.
    total, free = (
        size if size >= 0 else None
        for size in (description.get("total_bytes", -1), description.get("usable_bytes", -1))
    )
    return LogDir(broker, description["log_dir"], total, free, replicas, description["error_code"])
