"""How each Kafka client interprets its settings: its defaults and what they imply.

client         acks   idempotence   in flight    keys by     notes
java           all    on            5            murmur2     a conflict turns idempotence off
librdkafka     all    off           1,000,000    CRC32       confluent-kafka, most other languages
kafka-python   all    on            5            murmur2     as Java
aiokafka       1      off           1            murmur2
instep         all    on            5            murmur2     librdkafka with emit's own defaults
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import msgspec

from instep import errors, settings
from instep.emit import guarantees

MURMUR2, CRC32, NO_KEYS = "murmur2", "CRC32", "none: keys are ignored"
UNLIMITED = 2**31 - 1  # Java's default for retries
ACKS_ALL = ("all", "-1")
ON = ("true", "t", "1", "on", "yes")

JAVA: Mapping[str, str] = {
    "acks": "all",
    "enable.idempotence": "true",
    "max.in.flight.requests.per.connection": "5",
    "partitioner": MURMUR2,
    "retries": str(UNLIMITED),
    "delivery.timeout.ms": "120000",
    "linger.ms": "5",
    "max.request.size": "1048576",
    "transaction.timeout.ms": "60000",
    "request.timeout.ms": "30000",
    "max.block.ms": "60000",
    "compression.type": "none",
}
DEFAULTS: Mapping[settings.Client, Mapping[str, str]] = {
    "java": JAVA,
    "librdkafka": {
        **JAVA,
        "enable.idempotence": "false",
        "max.in.flight.requests.per.connection": "1000000",
        "partitioner": "consistent_random",
        "delivery.timeout.ms": "300000",
        "max.request.size": "1000000",
    },
    "kafka-python": {**JAVA, "linger.ms": "0"},
    "aiokafka": {
        **JAVA,
        "acks": "1",
        "enable.idempotence": "false",
        # It sends one batch of a partition at a time.
        "max.in.flight.requests.per.connection": "1",
        "linger.ms": "0",
        "delivery.timeout.ms": "40000",
        "request.timeout.ms": "40000",
    },
    "instep": {
        **JAVA,
        "compression.type": "lz4",
        "delivery.timeout.ms": "300000",
        "max.request.size": "1048588",
    },
}
# Other spellings of the names above.
NAMES: Mapping[str, str] = {
    **{old: new for old, new in guarantees.ALIASES.items() if new in JAVA},
    "message.timeout.ms": "delivery.timeout.ms",
    "message.max.bytes": "max.request.size",
    "partitioner.class": "partitioner",
}
# Names that the rules use, and similar names that are correct too, so that these are not
# reported as misspelt.
KNOWN = frozenset(
    {
        *JAVA,
        *NAMES,
        "transactional.id",
        "partitioner.ignore.keys",
        "request.timeout.ms",
        "compression.type",
        "batch.size",
        "client.id",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "message.copy.max.bytes",
        "socket.timeout.ms",
        "retry.backoff.ms",
        "buffer.memory",
        "max.block.ms",
    }
)
LIBRDKAFKA_HASHES: Mapping[str, str] = {
    "consistent": CRC32,
    "consistent_random": CRC32,
    "murmur2": MURMUR2,
    "murmur2_random": MURMUR2,
    "fnv1a": "FNV-1a",
    "fnv1a_random": "FNV-1a",
    "random": NO_KEYS,
}
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd", "inherit")
ACKS = ("all", "-1", "0", "1")
NUMBERS = (
    "max.in.flight.requests.per.connection",
    "retries",
    "delivery.timeout.ms",
    "linger.ms",
    "max.request.size",
    "transaction.timeout.ms",
    "request.timeout.ms",
    "max.block.ms",
)
IGNORE_KEYS = ("roundrobinpartitioner", "uniformstickypartitioner")


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """How a publisher sends. `origins` says, by name, where a value comes from."""

    acks: str
    idempotent: bool
    in_flight: int
    hashing: str
    retries: int
    delivery_timeout_ms: int
    linger_ms: int
    record_bytes_max: int
    transactional: bool
    transaction_timeout_ms: int
    request_timeout_ms: int
    block_ms: int | None  # how long send() waits; None where a client has no such limit
    compression: str
    transactional_id: str | None
    origins: dict[str, str]
    refused: str | None = None
    misspelt: list[tuple[str, str]] = []


def effective(client: settings.Client, config: Mapping[str, str]) -> Effective:
    """Return the settings that are in effect for a client."""
    given = _canonical(config)
    defaults = DEFAULTS[client]
    values = {**defaults, **given}
    origins = {name: "set" if name in given else f"default of {client}" for name in values}
    transactional = bool(given.get("transactional.id"))
    idempotent = transactional or values["enable.idempotence"].lower() in ON
    # A transactional.id requires idempotence, so it counts as a request for it.
    explicit = transactional or "enable.idempotence" in given
    if client in ("librdkafka", "instep") and _number(values["delivery.timeout.ms"]) == 0:
        values["delivery.timeout.ms"] = str(UNLIMITED)  # librdkafka: 0 means no limit
    if client == "aiokafka":  # it has no delivery timeout of its own
        values["delivery.timeout.ms"] = given.get(
            "request.timeout.ms", values["delivery.timeout.ms"]
        )
    conflicts = _conflicts(given) if idempotent else []
    refused = None
    if conflicts and (explicit or client not in ("java", "kafka-python")):
        refused = f"idempotence conflicts with {' and '.join(conflicts)}"
    elif conflicts:
        # Java and kafka-python turn a default idempotence off; other clients refuse to start.
        idempotent = False
        origins["enable.idempotence"] = f"turned off by {' and '.join(conflicts)}"
    # These clients adapt the settings that idempotence needs, as long as they are not given.
    if idempotent and client in ("librdkafka", "aiokafka") and not refused:
        values |= {
            "acks": "all",
            "max.in.flight.requests.per.connection": given.get(
                "max.in.flight.requests.per.connection", "5"
            ),
        }
    # Java raises a default that is too short, but refuses one that was set.
    if client == "java" and "delivery.timeout.ms" in given:
        refused = refused or _delivery_too_short(values)
    if client == "instep":
        refused = refused or _refused_by_emit(config)
    refused = refused or _not_a_value(client, given)
    return Effective(
        acks="all" if values["acks"].lower() in ACKS_ALL else values["acks"],
        idempotent=idempotent,
        in_flight=_number(values["max.in.flight.requests.per.connection"]),
        hashing=_hashing(client, values, given),
        retries=_number(values["retries"]),
        delivery_timeout_ms=_number(values["delivery.timeout.ms"]),
        linger_ms=_number(values["linger.ms"]),
        record_bytes_max=_number(values["max.request.size"]),
        transactional=transactional,
        transaction_timeout_ms=_number(values["transaction.timeout.ms"]),
        request_timeout_ms=_number(values["request.timeout.ms"]),
        block_ms=_number(values["max.block.ms"]) if client in ("java", "kafka-python") else None,
        compression=values["compression.type"].lower() or "none",
        transactional_id=given.get("transactional.id") or None,
        origins=origins,
        refused=refused,
        misspelt=_misspelt(config),
    )


def reads_committed(client: settings.ReaderClient, isolation: str | None) -> bool:
    """Return whether a reader sees only committed records. None: the client's default."""
    if isolation is None:
        return client == "librdkafka"  # the only client with this default
    return isolation.lower() == "read_committed"


def isolation_level(config: Mapping[str, object]) -> str | None:
    """Return the isolation level that a reader sets, if any."""
    for name, value in config.items():
        if name.strip().replace("_", ".").removeprefix("kafka.") == "isolation.level":
            return str(value)
    return None


def _canonical(config: Mapping[str, str]) -> dict[str, str]:
    # Clients in Python spell the names with underscores.
    dotted = {name.strip().replace("_", "."): value.strip() for name, value in config.items()}
    return {NAMES.get(name, name): value for name, value in dotted.items()}


def _conflicts(given: Mapping[str, str]) -> list[str]:
    """Return the given settings that conflict with an idempotent producer."""
    found = []
    if given.get("acks", "all").lower() not in ACKS_ALL:
        found.append(f"acks={given['acks']}")
    if given.get("transactional.id") and given.get("enable.idempotence", "true").lower() not in ON:
        found.append("enable.idempotence=false and a transactional.id")
    if _number(given.get("retries", "1")) < 1:
        found.append(f"retries={given['retries']}")
    in_flight = "max.in.flight.requests.per.connection"
    if _number(given.get(in_flight, "1")) > 5:
        found.append(f"{in_flight}={given[in_flight]}")
    return found


def _not_a_value(client: settings.Client, given: Mapping[str, str]) -> str | None:
    """Return why no client accepts the value of a setting, or None."""
    for name in NUMBERS:
        if name in given and not _is_number(given[name]):
            return f"{name}={given[name]} is not a number"
    if given.get("acks", "all").lower() not in ACKS:
        return f"acks={given['acks']} is none of {', '.join(ACKS)}"
    compression = given.get("compression.type", "none").lower()
    if compression not in (*COMPRESSIONS, ""):
        return f"compression.type={compression} is none of {', '.join(COMPRESSIONS[:-1])}"
    partitioner = given.get("partitioner")
    if (
        partitioner is not None
        and client in ("librdkafka", "instep")
        and partitioner not in LIBRDKAFKA_HASHES
    ):
        return f"partitioner={partitioner} is none of {', '.join(LIBRDKAFKA_HASHES)}"
    return None


def _is_number(text: str) -> bool:
    try:
        return float(text) >= -1
    except ValueError:
        return False


def _delivery_too_short(values: Mapping[str, str]) -> str | None:
    """Return why the delivery timeout is too short: one request must fit into it."""
    request = values.get("request.timeout.ms", "30000")
    if _number(values["delivery.timeout.ms"]) >= _number(values["linger.ms"]) + _number(request):
        return None
    whole = f"delivery.timeout.ms={values['delivery.timeout.ms']}"
    return (
        f"{whole} is less than the sum of linger.ms={values['linger.ms']} and"
        f" request.timeout.ms={request}"
    )


def _hashing(client: settings.Client, values: Mapping[str, str], given: Mapping[str, str]) -> str:
    named = values["partitioner"]
    if client in ("librdkafka", "instep"):
        return LIBRDKAFKA_HASHES.get(named, named)
    if (
        given.get("partitioner.ignore.keys", "").lower() in ON
        or named.rpartition(".")[2].lower() in IGNORE_KEYS
    ):
        return NO_KEYS
    if "partitioner" in given and named.lower() not in ("murmur2", "defaultpartitioner", ""):
        return named
    return MURMUR2


def _refused_by_emit(config: Mapping[str, str]) -> str | None:
    try:
        # What even the weakest guarantee refuses is never accepted.
        guarantees.producer_config("at-most-once", config)
    except errors.SettingsError as error:
        return error.what
    return None


def of_interest(config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the rules check, and similar names. Logins and keys are left out."""
    misspelt = {name for name, _ in _misspelt(config)}
    return {
        name: value
        for name, value in config.items()
        if name.strip().replace("_", ".") in KNOWN or name in misspelt
    }


def _misspelt(config: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names that no client knows, each with the name that was probably meant."""
    found = []
    for name in config:
        dotted = name.strip().replace("_", ".")
        if dotted not in KNOWN:
            # Strict: most names that no rule uses are correct settings of the client.
            close = difflib.get_close_matches(dotted, KNOWN, n=1, cutoff=0.85)
            found += [(name, meant) for meant in close]
    return found


def _number(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return UNLIMITED if text.lower() in ("inf", "infinity") else 0
