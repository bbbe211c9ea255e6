"""The values that settings may have, and the base of their tables."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Literal

import msgspec

FILE_NAME = "instep.toml"

ENVIRONMENT_PREFIX = "INSTEP__"

IN_URL = "in the URL"  # only a part of the value is secret

# names of settings of Spark and of Kafka's clients that are secret, or may contain a secret
SECRET = re.compile(
    r"(?i)secret|passw|token|access[._]?key|account[._]?key|private|key[._]pem|keystore[._]key"
    r"|jaas|credential|user[._]info|oauthbearer[._]config|javaoptions"
)

# the types of declared columns, with the same names for every database
TYPES = (
    "text",
    "varchar(N)",
    "integer",
    "bigint",
    "decimal(P,S)",
    "double",
    "boolean",
    "timestamp",
    "date",
    "uuid",
    "json",
)

KEY_TYPES = ("text", "varchar(N)", "integer", "bigint", "uuid")

PART_TYPES = (*KEY_TYPES, "date", "timestamp")  # of the columns of a composite key

TYPE = re.compile(
    r"(text|integer|bigint|double|boolean|timestamp|date|uuid|json)|(varchar)\((\d{1,5})\)"
    r"|(decimal)\((\d{1,3}), ?(\d{1,3})\)"
)

LINE_SEPARATOR = "\x1f"  # between the parts of a key of a further table; no id may contain it

SINK_PREFIX = "sink:"  # of the name of a Spark sink in the journal; no pipeline's name begins so

TRANSFORMED_TOPIC_MAX = 244

TOPIC_PART = re.compile(r"[A-Za-z0-9._-]{1,100}")

DURATION_MIN, DURATION_MAX = timedelta(seconds=1), timedelta(days=3_650)

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Guarantee = Literal["exactly-once", "at-least-once", "at-most-once"]

EngineName = Literal["resident", "micro-batch"]

Missing = Literal["insert", "park", "ignore"]

Deletes = Literal["row", "ignore", "park", "clear"]

FurtherDeletes = Literal["row", "ignore"]

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

Unit = Literal["s", "ms", "us"]

Convert = Literal["number", "boolean", "text"]

Client = Literal["instep", "java", "librdkafka", "kafka-python", "aiokafka"]

ReaderClient = Literal["java", "librdkafka", "kafka-python", "aiokafka", "spark"]

RelayGuarantee = Literal["exactly-once", "at-least-once"]

StreamTimestamp = Literal["source", "publish"]

TooLarge = Literal["dead-letter", "stop"]

Vanished = Literal["ignore", "delete"]

# the reasons for which a document is parked, except that it waits behind another event
ParkingReason = Literal[
    "TEXT_TOO_LONG",
    "NOT_IN_CHARACTER_SET",
    "NUMBER_OUT_OF_RANGE",
    "TIME_OUT_OF_RANGE",
    "NOT_A_CHOICE",
    "NULL_NOT_ALLOWED",
    "STATUS_UNKNOWN",
    "TRANSITION_NOT_ALLOWED",
    "DOCUMENT_MISSING",
    "DELETE_NOT_ALLOWED",
    "ID_TAKEN_FOR_ANOTHER",
    "LINE_KEY_UNFIT",
    "PARENT_MISSING",
    "REFUSED_BY_TARGET",
]

BRIDGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # the default state file has it

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")

KPI_NAME_CHARACTERS_MAX = 200  # of a status or a duration: a part of the key of a KPI row

EVENT_FIELDS = ("doc_id", "status", "version", "updated_at")  # what the publisher itself writes

LINK_HEADER = "@link"


class SettingsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the settings file; its fields are the table's keys."""


def start_time(start: str) -> datetime | None:
    """Return the time of `start`; None for earliest and latest. Without a zone it is UTC."""
    if start in ("earliest", "latest"):
        return None
    instant: datetime = msgspec.convert(start, datetime)
    return instant
