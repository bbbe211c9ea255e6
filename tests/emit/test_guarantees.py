"""Test that settings that break a guarantee are refused by name, and others are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from instep import errors
from instep.emit import guarantees

IN_FLIGHT = "max.in.flight.requests.per.connection"


def test_the_defaults_are_idempotent_acknowledged_by_all_and_javas_partitioner() -> None:
    config = guarantees.producer_config("exactly-once", {})
    assert config["enable.idempotence"] is True
    assert config["acks"] == "all"
    assert config["partitioner"] == "murmur2"


@pytest.mark.parametrize("guarantee", guarantees.STRENGTH)
@pytest.mark.parametrize(
    "wanted",
    [
        {"partitioner": "consistent_random"},
        {"partitioner": "fnv1a"},
        {"queuing.strategy": "lifo"},
        {"queuing_strategy": "lifo"},
    ],
)
def test_settings_that_break_the_order_are_refused_for_every_guarantee(
    guarantee: str, wanted: dict[str, Any]
) -> None:
    with pytest.raises(errors.SettingsError, match=f"^{next(iter(wanted))}=.*order per document"):
        guarantees.producer_config(guarantee, wanted)


REPEATS = [
    ("enable.idempotence", False),
    ("enable.idempotence", "false"),
    ("enable_idempotence", 0),
    ("max.in.flight", 6),
    (IN_FLIGHT, "100"),
]
LOSES = [
    ("acks", 0),
    ("acks", "1"),
    ("request.required.acks", 1),
    ("request_required_acks", 0),
    ("retries", 0),
    ("message.send.max.retries", "0"),
]


@pytest.mark.parametrize(("name", "value"), REPEATS + LOSES)
def test_exactly_once_refuses_each_setting_by_the_name_it_was_given(name: str, value: Any) -> None:
    with pytest.raises(
        errors.SettingsError, match=f"^{name}={value} breaks the guarantee exactly-once"
    ) as caught:
        guarantees.producer_config("exactly-once", {name: value})
    assert f"remove {name}" in caught.value.remedy
    assert "guarantee=" in caught.value.remedy


@pytest.mark.parametrize(("name", "value"), REPEATS)
def test_at_least_once_may_repeat(name: str, value: Any) -> None:
    config = guarantees.producer_config("at-least-once", {name: value})
    assert str(config["enable.idempotence"]).lower() in ("false", "0")
    Producer({**config, "log_level": 0}).close()


@pytest.mark.parametrize(("name", "value"), LOSES)
def test_at_least_once_must_not_lose(name: str, value: Any) -> None:
    with pytest.raises(errors.SettingsError, match="breaks the guarantee at-least-once") as caught:
        guarantees.producer_config("at-least-once", {name: value})
    assert 'guarantee="at-most-once"' in caught.value.remedy


@pytest.mark.parametrize(("name", "value"), LOSES)
def test_at_most_once_may_lose_and_does_not_repeat(name: str, value: Any) -> None:
    config = guarantees.producer_config("at-most-once", {name: value})
    assert config["enable.idempotence"] is False
    assert int(config["retries"]) == 0
    Producer({**config, "log_level": 0}).close()


def test_at_most_once_must_not_repeat() -> None:
    with pytest.raises(errors.SettingsError, match=r"retries=3 breaks the guarantee at-most-once"):
        guarantees.producer_config("at-most-once", {"acks": 1, "retries": 3})


def test_order_without_idempotence_requires_one_request_at_a_time() -> None:
    assert (
        guarantees.producer_config("at-least-once", {"enable.idempotence": False})[IN_FLIGHT] == 1
    )


@pytest.mark.parametrize(
    "wanted",
    [
        {"acks": "all"},
        {"acks": -1},
        {"acks": "-1"},
        {"enable.idempotence": "true"},
        {"partitioner": "murmur2_random"},
        {"max.in.flight": 5},
        {"retries": 10},
        {"linger.ms": 50},
        {"linger_ms": 50},
        {"queue.buffering.max.ms": 50},
        {"compression.codec": "zstd"},
        {"queue.buffering.max.messages": 1000},
        {"message.max.bytes": 5_000_000},
        {"delivery.timeout.ms": 1000},
    ],
)
def test_settings_that_keep_the_guarantee_are_accepted(wanted: dict[str, Any]) -> None:
    Producer({**guarantees.producer_config("exactly-once", wanted), "log_level": 0}).close()


def test_an_alias_replaces_the_default() -> None:
    config = guarantees.producer_config(
        "exactly-once", {"compression.codec": "zstd", "queue_buffering_max_ms": 7}
    )
    assert (config["compression.type"], config["linger.ms"]) == ("zstd", 7)
    assert not {"compression.codec", "queue.buffering.max.ms"} & config.keys()


@pytest.mark.parametrize("name", guarantees.OUR_OWN)
def test_settings_that_the_publisher_makes_itself_are_refused(name: str) -> None:
    with pytest.raises(errors.SettingsError, match=name):
        guarantees.producer_config("exactly-once", {name: "x"})


def test_aliases_of_settings_that_the_publisher_makes_are_refused() -> None:
    with pytest.raises(errors.SettingsError, match=r"metadata\.broker\.list"):
        guarantees.producer_config("exactly-once", {"metadata.broker.list": "a:1"})


def test_invalid_values_are_named() -> None:
    with pytest.raises(errors.SettingsError, match="'many' is not a whole number"):
        guarantees.producer_config("exactly-once", {"retries": "many"})
    with pytest.raises(errors.SettingsError, match="unknown guarantee 'twice'"):
        guarantees.producer_config("twice", {})


def test_connection_settings_apply_to_every_client() -> None:
    config = guarantees.producer_config(
        "exactly-once", {"sasl_username": "ann", "socket.timeout.ms": 9, "linger.ms": 1}
    )
    assert guarantees.for_any_client(config) == {"sasl.username": "ann", "socket.timeout.ms": 9}
