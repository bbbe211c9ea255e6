"""Test that what vet knows about each client agrees with the client itself."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from instep.emit import guarantees
from instep.vet import clients
from tests.kafka.conftest import kafka_classes

__all__ = ["kafka_classes"]


def test_java_defaults_match_the_client(kafka_classes: Any) -> None:
    defaults = (
        kafka_classes.org.apache.kafka.clients.producer.ProducerConfig.configDef().defaultValues()
    )
    for name, value in clients.JAVA.items():
        if name != "partitioner":
            assert str(defaults[name]).lower() == value, name


def test_kafka_python_defaults_match_the_client() -> None:
    from kafka import KafkaProducer

    defaults = KafkaProducer.DEFAULT_CONFIG
    ours = clients.effective("kafka-python", {})
    assert defaults["acks"] in (-1, "all")
    assert ours.acks == "all"
    assert defaults["enable_idempotence"] is ours.idempotent is True
    assert defaults["max_in_flight_requests_per_connection"] == ours.in_flight
    assert defaults["delivery_timeout_ms"] == ours.delivery_timeout_ms
    assert defaults["linger_ms"] == ours.linger_ms
    assert defaults["max_request_size"] == ours.record_bytes_max
    assert defaults["transaction_timeout_ms"] == ours.transaction_timeout_ms
    assert type(defaults["partitioner"]).__name__ == "DefaultPartitioner"


@pytest.mark.parametrize(
    "config",
    [
        {"enable.idempotence": "true", "acks": "1"},
        {"enable.idempotence": "true", "retries": "0"},
        {"enable.idempotence": "true", "max.in.flight.requests.per.connection": "6"},
        {"enable.idempotence": "true"},
        {"acks": "1"},
        {"retries": "0"},
    ],
)
def test_librdkafka_refuses_the_settings_listed_as_refused(config: dict[str, str]) -> None:
    expected = clients.effective("librdkafka", config).refused is not None
    try:
        Producer({"bootstrap.servers": "127.0.0.1:1", **config})
        refused = False
    except KafkaException:
        refused = True
    assert refused == expected


def test_the_defaults_of_instep_are_those_of_emit() -> None:
    config = guarantees.producer_config("exactly-once", {})
    ours = clients.effective("instep", {})
    assert (ours.acks, ours.idempotent, ours.hashing) == (
        config["acks"],
        config["enable.idempotence"],
        config["partitioner"],
    )
    assert ours.record_bytes_max == config["message.max.bytes"]
    assert ours.linger_ms == config["linger.ms"]


@pytest.mark.parametrize(
    ("client", "config", "expected"),
    [
        ("java", {"acks": "1"}, ("1", False, None)),
        (
            "java",
            {"acks": "1", "enable.idempotence": "true"},
            ("1", True, "idempotence conflicts with acks=1"),
        ),
        (
            "java",
            {"transactional.id": "x", "acks": "0"},
            ("0", True, "idempotence conflicts with acks=0"),
        ),
        ("kafka-python", {"retries": "0"}, ("all", False, None)),
        ("librdkafka", {}, ("all", False, None)),
        ("librdkafka", {"request.required.acks": "-1"}, ("all", False, None)),
        (
            "java",
            {"transactional.id": "x", "enable.idempotence": "false"},
            (
                "all",
                True,
                "idempotence conflicts with enable.idempotence=false and a transactional.id",
            ),
        ),
        ("aiokafka", {}, ("1", False, None)),
        ("aiokafka", {"enable_idempotence": "True"}, ("all", True, None)),
    ],
)
def test_settings_that_affect_each_other(
    client: Any, config: dict[str, str], expected: tuple[str, bool, str | None]
) -> None:
    found = clients.effective(client, config)
    assert (found.acks, found.idempotent, found.refused) == expected


@pytest.mark.parametrize(
    ("client", "config", "hashing"),
    [
        ("java", {}, clients.MURMUR2),
        (
            "java",
            {"partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"},
            clients.NO_KEYS,
        ),
        ("java", {"partitioner.ignore.keys": "true"}, clients.NO_KEYS),
        ("java", {"partitioner.class": "com.example.Mine"}, "com.example.Mine"),
        ("librdkafka", {}, clients.CRC32),
        ("librdkafka", {"partitioner": "murmur2_random"}, clients.MURMUR2),
        ("librdkafka", {"partitioner": "fnv1a"}, "FNV-1a"),
        ("librdkafka", {"partitioner": "random"}, clients.NO_KEYS),
        ("aiokafka", {}, clients.MURMUR2),
    ],
)
def test_the_hash_that_each_client_uses(client: Any, config: dict[str, str], hashing: str) -> None:
    assert clients.effective(client, config).hashing == hashing


def test_the_delivery_timeout_of_each_client_is_known() -> None:
    assert (
        clients.effective("librdkafka", {"message.timeout.ms": "0"}).delivery_timeout_ms
        == clients.UNLIMITED
    )
    assert clients.effective("aiokafka", {"request_timeout_ms": "1000"}).delivery_timeout_ms == 1000


def test_settings_of_one_client_are_not_typos_of_another_clients_settings() -> None:
    assert (
        clients.effective(
            "librdkafka", {"queue.buffering.max.kbytes": "1", "message.copy.max.bytes": "1"}
        ).misspelt
        == []
    )
