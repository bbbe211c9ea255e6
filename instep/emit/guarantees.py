"""Which librdkafka settings keep which guarantee; a setting that breaks it is refused.

    exactly-once     idempotent, acknowledged by all in-sync replicas, in order
    at-least-once    may turn idempotence off: a record may be repeated
    at-most-once     may also omit acknowledgements or retries: a record may be lost

Order per document does not depend on the guarantee: the partitioner is always murmur2, as in Java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from instep import errors, settings

STRENGTH: Mapping[str, int] = {"at-most-once": 0, "at-least-once": 1, "exactly-once": 2}
ALWAYS = "always"

ALIASES: Mapping[str, str] = {
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "delivery.timeout.ms": "message.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
}

DEFAULTS: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2",
    "linger.ms": 5,
    "compression.type": "lz4",
    # Kafka's limit for a batch. librdkafka's default is lower and would refuse records that the
    # broker accepts.
    "message.max.bytes": 1_048_588,
    # If the topic is deleted, a broker would create it again with another number of partitions.
    "allow.auto.create.topics": False,
}

OUR_OWN: Mapping[str, str] = {
    "bootstrap.servers": "pass it as bootstrap",
    "default.topic.config": "pass its settings one by one",
    "delivery.report.only.error": "deliveries are always reported",
    "dr_cb": "use on_delivery of send",
    "dr_msg_cb": "use on_delivery of send",
    "on_delivery": "use on_delivery of send",
    "error_cb": "the future, the callback, flush and the logger instep.kafka report errors",
    "logger": "the client's log is the Python logger instep.kafka",
    "log_cb": "the client's log is the Python logger instep.kafka",
    "partitioner_cb": "the partitioner is murmur2",
    "transactional.id": "the publisher uses no transactions",
}

OF_ANY_CLIENT = (
    "broker.address.",
    "client.",
    "enable.s",
    "https.",
    "oauth",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
)

Breaks = Callable[[str], bool]

# setting, which values break a guarantee, the strongest guarantee that they break, what they do
RULES: tuple[tuple[str, Breaks, str, str], ...] = (
    (
        "partitioner",
        lambda value: value not in ("murmur2", "murmur2_random"),
        ALWAYS,
        "distributes a document over two partitions",
    ),
    (
        "queuing.strategy",
        lambda value: value != "fifo",
        ALWAYS,
        "sends a document's events in reverse order",
    ),
    (
        "enable.idempotence",
        lambda value: value not in ("true", "t", "1"),
        "exactly-once",
        "lets a retry repeat a record",
    ),
    (
        "max.in.flight.requests.per.connection",
        lambda value: _number(value) > 5,
        "exactly-once",
        "lets a retry overtake other records, above 5",
    ),
    (
        "acks",
        lambda value: value not in ("all", "-1"),
        "at-least-once",
        "loses records that only one broker had",
    ),
    (
        "retries",
        lambda value: _number(value) < 1,
        "at-least-once",
        "loses a record at the first temporary error",
    ),
)


def producer_config(guarantee: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka's settings: our defaults, changed by those that the guarantee allows."""
    if guarantee not in STRENGTH:
        raise errors.SettingsError(
            f"unknown guarantee {guarantee!r}",
            f"use one of {', '.join(get_args(settings.Guarantee))}",
        )
    given = {_canonical(name): (name, value) for name, value in wanted.items()}
    for name, (spelling, value) in given.items():
        if name in OUR_OWN:
            raise errors.SettingsError(f"{spelling} cannot be set for a publisher", OUR_OWN[name])
        _refuse_breaking(name, spelling, value, guarantee)
    chosen = {name: value for name, (_, value) in given.items()}
    return {**DEFAULTS, **_consequences(guarantee, chosen), **chosen}


def for_any_client(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a publisher's settings that concern the connection to a broker."""
    return {name: value for name, value in config.items() if name.startswith(OF_ANY_CLIENT)}


def _canonical(name: str) -> str:
    is_dotted = "." in name or name.endswith("_cb") or name in OUR_OWN
    dotted = name if is_dotted else name.replace("_", ".")
    return ALIASES.get(dotted, dotted)


def _refuse_breaking(name: str, spelling: str, value: Any, guarantee: str) -> None:
    text = str(value).strip().lower()
    for setting, breaks, kept_by, consequence in RULES:
        if name != setting or not breaks(text):
            continue
        if kept_by == ALWAYS:
            raise errors.SettingsError(
                f"{spelling}={value} {consequence}; order per document depends on it",
                f"remove {spelling}",
            )
        if STRENGTH[guarantee] >= STRENGTH[kept_by]:
            lower = "at-least-once" if kept_by == "exactly-once" else "at-most-once"
            raise errors.SettingsError(
                f"{spelling}={value} breaks the guarantee {guarantee}: it {consequence}",
                f'remove {spelling}, or lower the guarantee: guarantee="{lower}"',
            )


def _consequences(guarantee: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that follow if a setting gives up idempotence."""
    weak = ("acks", "retries", "max.in.flight.requests.per.connection")
    broken = [
        rule
        for rule in RULES
        if rule[0] in weak and rule[0] in chosen and rule[1](str(chosen[rule[0]]).lower())
    ]
    idempotent = str(chosen.get("enable.idempotence", not broken)).lower() in ("true", "t", "1")
    if idempotent:
        return {}
    result: dict[str, Any] = {
        "enable.idempotence": False,
        "max.in.flight.requests.per.connection": 1,
    }
    if guarantee == "at-most-once":
        if _number(str(chosen.get("retries", 0))) > 0:
            raise errors.SettingsError(
                f"retries={chosen['retries']} breaks the guarantee at-most-once:"
                " without idempotence a retry may repeat a record",
                "remove retries",
            )
        result["retries"] = 0
    return result


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as failure:
        raise errors.SettingsError(
            f"{text!r} is not a whole number", "write a number such as 5"
        ) from failure
