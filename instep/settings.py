"""The settings file `instep.toml` as frozen values; each setting has a default and a help text.

Precedence: command line, environment (`INSTEP__KAFKA__BOOTSTRAP=…`), file, default. A string may
contain `${NAME}` from the environment. An unknown key is an error that suggests the nearest one.
"""

from __future__ import annotations

import os
import re
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import quote

import msgspec
from msgspec import Meta

from instep import bridge_urls, conversion_errors, durations, errors, spark_options
from instep.conversion_errors import nearest as nearest
from instep.masking import STARS, masked_url

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

TRANSFORMED_TOPIC_MAX = 244
TOPIC_PART = re.compile(r"[A-Za-z0-9._-]{1,100}")

DURATION_MIN, DURATION_MAX = timedelta(seconds=1), timedelta(days=3_650)

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# example lines of [kafka.security] for the remedy of an error
EXAMPLES = {
    "mechanism": 'mechanism = "SCRAM-SHA-512"',
    "username": 'username = "instep"',
    "password": 'password = "${KAFKA_PASSWORD}"',
}

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


# The kinds of jobs that `instep run` runs, with the tables that declare them. A name is declared
# only once among them.
JOB_TABLES = {"pipeline": "pipelines", "stream": "streams", "kpi": "kpis", "archive": "archives"}

Declared = TypeVar("Declared")


class SettingsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the settings file; its fields are the table's keys."""


class Security(SettingsTable, frozen=True, kw_only=True):
    """How a client connects to the brokers and authenticates."""

    protocol: Annotated[Protocol, Meta(description="security protocol")] = "PLAINTEXT"
    mechanism: Annotated[Mechanism | None, Meta(description="SASL mechanism")] = None
    username: Annotated[str | None, Meta(description="SASL user")] = None
    password: Annotated[str | None, Meta(description="SASL password", extra={"secret": True})] = (
        None
    )
    ca: Annotated[
        str | None,
        Meta(description="PEM file of the authority that signed the brokers' certificates"),
    ] = None
    certificate: Annotated[
        str | None, Meta(description="PEM file of the client's own certificate")
    ] = None
    key: Annotated[str | None, Meta(description="PEM file of the client certificate's key")] = None
    key_password: Annotated[
        str | None, Meta(description="password of the key", extra={"secret": True})
    ] = None


class Kafka(SettingsTable, frozen=True, kw_only=True):
    """The cluster, and how to connect to it."""

    bootstrap: Annotated[
        str | None,
        Meta(description="brokers, host:port,…; default: the local broker, started on demand"),
    ] = None
    security: Annotated[Security, Meta(description="encryption and authentication")] = Security()


class Spark(SettingsTable, frozen=True, kw_only=True):
    """The Spark session that runs the pipelines."""

    master: Annotated[str, Meta(description="Spark master; local[*] uses this machine's cores")] = (
        "local[*]"
    )
    memory: Annotated[str, Meta(description="memory of the driver's JVM")] = "640m"
    conf: Annotated[
        dict[str, str], Meta(description="further Spark settings, passed unchanged")
    ] = {}


class EventMapping(SettingsTable, frozen=True, kw_only=True):
    """The fields of a record that have a meaning for instep."""

    document: Annotated[
        str | list[str],
        Meta(
            description="field of the document's id; dots descend into objects,"
            ' "@key" is the record\'s key; for a composite key one field, or one for each of its'
            ' columns: ["tenant", "number"]'
        ),
    ] = "@key"
    status: Annotated[
        str | None, Meta(description="field of the status; default: the events have no status")
    ] = None
    order: Annotated[
        str | None,
        Meta(description="field that the guard compares, an integer or a time; default: log order"),
    ] = None
    at: Annotated[
        str | None,
        Meta(
            description="field of the event's time: epoch milliseconds or ISO 8601;"
            ' default: "@timestamp"'
        ),
    ] = None

    @property
    def documents(self) -> tuple[str, ...]:
        """Return the field of the id, or a field for each column of a composite key."""
        return tuple(_listed(self.document))


class ColumnMapping(SettingsTable, frozen=True, kw_only=True):
    """A column in the long form. The short form `column = "field"` only sets the field."""

    field: Annotated[str | None, Meta(description="event field of the column")] = None
    value: Annotated[
        str | int | float | bool | None, Meta(description="constant, instead of a field")
    ] = None
    type: Annotated[
        str | None,
        Meta(
            description="type of the column, which `instep init` creates and checks:"
            f" {', '.join(TYPES)}"
        ),
    ] = None
    unit: Annotated[
        Unit | None,
        Meta(description="for a time in an integer column: the unit since 1970; default: ms"),
    ] = None
    convert: Annotated[
        Convert | None,
        Meta(
            description='number: accept "20.50" as 20.50; boolean: accept 0, 1, "true" and "false",'
            " and write 0 and 1 to a number column; text: write numbers, booleans and objects to a"
            " text column"
        ),
    ] = None
    round: Annotated[
        bool,
        Meta(description="round a number half up to the column's scale instead of refusing it"),
    ] = False
    trim: Annotated[bool, Meta(description="remove white space from both ends of a string")] = False


class Redrive(SettingsTable, frozen=True, kw_only=True):
    """Which parked documents a running pipeline releases again by itself, and how often."""

    reason: Annotated[
        list[ParkingReason], Meta(description='reasons of the documents: ["REFUSED_BY_TARGET"]')
    ]
    every: Annotated[
        str, Meta(description="time between two attempts for a document: s, m, h or d")
    ] = "5m"
    attempts: Annotated[
        int, Meta(description="attempts until it is left to an operator", ge=1, le=1_000)
    ] = 3
    rate: Annotated[
        int, Meta(description="maximum number of documents per second", ge=1, le=10_000)
    ] = 100

    @property
    def interval(self) -> timedelta:
        """Return the time between two attempts."""
        return durations.parse(self.every) or timedelta.max


class FurtherTable(SettingsTable, frozen=True, kw_only=True):
    """A table that a pipeline writes besides its main one, in the same transaction."""

    table: Annotated[str, Meta(description="further table, or schema.table")]
    key: Annotated[
        str | list[str],
        Meta(
            description="columns with the document's id, in the order of the pipeline's `key`;"
            " default: the same names"
        ),
    ] = []
    line_key: Annotated[
        str | list[str],
        Meta(
            description="columns of `columns` that belong to the key too: each event with other"
            " values adds a row (a line); default: one row for each document"
        ),
    ] = []
    order: Annotated[
        str | None,
        Meta(
            description="field that a guard of this table's own compares; default: the table takes"
            " the events that the pipeline's guard lets through"
        ),
    ] = None
    deletes: Annotated[
        FurtherDeletes | None,
        Meta(
            description="what a delete does to the document's rows: row deletes them, ignore keeps"
            " them; default: row if it deletes the main row, else ignore"
        ),
    ] = None
    columns: Annotated[
        dict[str, str | ColumnMapping],
        Meta(description="table column = event field, or a table with `field` and more"),
    ]

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the key's columns behind the document's id."""
        return tuple(_listed(self.line_key))

    @property
    def mapped(self) -> dict[str, ColumnMapping]:
        """Return the columns, each in the long form."""
        return _long_form(self.columns)


class Transform(SettingsTable, frozen=True, kw_only=True):
    """The transformation of a pipeline: what becomes of a record before it is an event."""

    sql: Annotated[
        str | None,
        Meta(description="one SELECT statement of Spark SQL: `SELECT … FROM records`"),
    ] = None
    python: Annotated[
        str | None,
        Meta(description="a function from DataFrame to DataFrame: package.module:function"),
    ] = None
    delete_when: Annotated[
        str | None,
        Meta(description="boolean column of the result; if it is true, the event is a delete"),
    ] = None


class Pipeline(SettingsTable, frozen=True, kw_only=True):
    """One flow from a topic to a target table."""

    topic: Annotated[str, Meta(description="topic to read")]
    guarantee: Annotated[
        Guarantee, Meta(description="exactly-once, at-least-once or at-most-once")
    ] = "exactly-once"
    start: Annotated[
        str,
        Meta(description="where a new pipeline starts: earliest, latest or an ISO 8601 time"),
    ] = "earliest"
    target: Annotated[
        str, Meta(description="target database as a SQLAlchemy URL", extra={"secret": IN_URL})
    ]
    table: Annotated[str, Meta(description="target table, or schema.table")]
    key: Annotated[
        str | list[str],
        Meta(
            description="key column of the table, which has the document's id;"
            ' a list for a composite key: ["tenant", "no"]'
        ),
    ]
    key_type: Annotated[
        str | list[str] | None,
        Meta(
            description=f"type of the key column, like a column's `type`: {', '.join(KEY_TYPES)};"
            " for a composite key a list, which may also contain date and timestamp"
        ),
    ] = None
    key_separator: Annotated[
        str,
        Meta(
            description="one character that separates the parts of a composite key"
            " in a document's id and a record's key"
        ),
    ] = "/"
    missing: Annotated[
        Missing, Meta(description="if the table does not have the document: insert, park or ignore")
    ] = "insert"
    deletes: Annotated[
        Deletes | None,
        Meta(
            description="what a record without a value does: row deletes the row, clear clears the"
            " mapped columns, park, ignore; default: row, or park or ignore if `missing` says so"
        ),
    ] = None
    cleared_status: Annotated[
        str | None, Meta(description='status that deletes = "clear" writes; default: null')
    ] = None
    retry_parked_s: Annotated[
        int,
        Meta(
            description="how many seconds a running pipeline retries a parked document whose row or"
            " parent row does not exist yet; 0: never",
            ge=0,
            le=31_536_000,
        ),
    ] = 900
    history: Annotated[bool, Meta(description="keep every event in instep_history")] = True
    engine: Annotated[
        EngineName | None,
        Meta(
            description="resident: tasks that keep running read the topic, for the least delay;"
            " micro-batch: Spark plans batches; default: resident, or micro-batch if the pipeline"
            " has a transformation, which needs it"
        ),
    ] = None
    linger_ms: Annotated[
        int,
        Meta(
            description="resident: how long a transaction waits for more records, at most;"
            " 0: not at all",
            ge=0,
            le=10_000,
        ),
    ] = 5
    batch_rows_max: Annotated[
        int, Meta(description="maximum number of records that are read at once", ge=1)
    ] = 400_000
    transform: Annotated[
        Transform | None,
        Meta(description="transformation of the records; the event's fields are its columns"),
    ] = None
    event: Annotated[EventMapping, Meta(description="fields of the record")] = EventMapping()
    columns: Annotated[
        dict[str, str | ColumnMapping],
        Meta(description="table column = event field, or a table with `field` and more"),
    ]
    transitions: Annotated[
        dict[str, list[str]],
        Meta(
            description="which status may follow which; an event that violates this parks its"
            " document"
        ),
    ] = {}
    due: Annotated[
        dict[str, str],
        Meta(
            description='how long a document may keep a status before it is overdue: QUEUED = "2h";'
            " s, m, h or d"
        ),
    ] = {}
    tables: Annotated[
        list[FurtherTable],
        Meta(description="further tables that the same transaction writes, parents first"),
    ] = []

    redrive: Annotated[
        Redrive | None,
        Meta(description="release parked documents again by themselves; default: not"),
    ] = None

    @property
    def due_after(self) -> dict[str, timedelta]:
        """Return, by status, how long a document may keep it."""
        return {status: durations.parse(text) or timedelta.max for status, text in self.due.items()}

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns of the key: one, or those of a composite key."""
        return tuple(_listed(self.key))

    @property
    def key_types(self) -> dict[str, str | None]:
        """Return the declared type of each key column; None if none is declared."""
        types = _listed(self.key_type) if self.key_type is not None else [None] * len(self.keys)
        return dict(zip(self.keys, types, strict=True))

    @property
    def mapped(self) -> dict[str, ColumnMapping]:
        """Return the columns, each in the long form."""
        return _long_form(self.columns)

    @property
    def line_columns(self) -> dict[str, ColumnMapping]:
        """Return the key's columns behind the document's id; only a further table has some."""
        return {}

    @property
    def order_fields(self) -> tuple[str | None, ...]:
        """Return the fields that a guard compares."""
        return (self.event.order,)

    @property
    def chosen_engine(self) -> EngineName:
        """Return the engine that runs the pipeline."""
        return self.engine or ("resident" if self.transform is None else "micro-batch")

    @property
    def on_delete(self) -> Deletes:
        """Return what a record without a value does.

        By default, rows that the pipeline does not insert are not deleted either.
        """
        defaults: dict[Missing, Deletes] = {"insert": "row", "park": "park", "ignore": "ignore"}
        return self.deletes or defaults[self.missing]


class FurtherView(Pipeline, frozen=True, kw_only=True):
    """A pipeline as one of its further tables sees it. Not a table of the settings file."""

    id_types: tuple[str | None, ...]
    lines: dict[str, ColumnMapping]
    main_order: str | None

    @property
    def line_columns(self) -> dict[str, ColumnMapping]:
        """Return the key's columns behind the document's id."""
        return self.lines

    @property
    def order_fields(self) -> tuple[str | None, ...]:
        """Return the fields that a guard compares."""
        return (self.event.order, self.main_order)

    @property
    def key_types(self) -> dict[str, str | None]:
        """Return the declared type of each key column; None if none is declared."""
        types = [*self.id_types, *(one.type for one in self.lines.values())]
        return dict(zip(self.keys, types, strict=True))


def further_views(pipeline: Pipeline) -> list[FurtherView]:
    """Return the pipeline as each of its further tables sees it."""
    return [_further_view(pipeline, one) for one in pipeline.tables]


def _further_view(pipeline: Pipeline, one: FurtherTable) -> FurtherView:
    return FurtherView(
        topic=pipeline.topic,
        guarantee=pipeline.guarantee,
        target=pipeline.target,
        table=one.table,
        key=[*(_listed(one.key) or pipeline.keys), *one.lines],
        id_types=tuple(pipeline.key_types.values()),
        key_separator=LINE_SEPARATOR,
        deletes=one.deletes or ("row" if pipeline.on_delete == "row" else "ignore"),
        history=False,
        event=msgspec.structs.replace(pipeline.event, order=one.order),
        columns={name: column for name, column in one.mapped.items() if name not in one.lines},
        lines={name: one.mapped[name] for name in one.lines},
        main_order=pipeline.event.order,
    )


class OutboxColumns(SettingsTable, frozen=True, kw_only=True):
    """The columns of an outbox table, for one that `instep relay init` did not create."""

    id: Annotated[str, Meta(description="number that increases with every row; the key")] = "id"
    transaction: Annotated[
        str,
        Meta(description="PostgreSQL: transaction of the row, xid8 DEFAULT pg_current_xact_id()"),
    ] = "xid"
    document: Annotated[str, Meta(description="the document's id, which becomes the key")] = (
        "document"
    )
    value: Annotated[str, Meta(description="the record's value; null deletes the document")] = (
        "value"
    )
    headers: Annotated[
        str | None,
        Meta(description="JSON object with the record's headers; null: instep sets the headers"),
    ] = "headers"


class Relay(SettingsTable, frozen=True, kw_only=True):
    """One relay from an outbox table to a topic."""

    source: Annotated[
        str, Meta(description="source database as a SQLAlchemy URL", extra={"secret": IN_URL})
    ]
    outbox: Annotated[str, Meta(description="outbox table, or schema.table")] = "instep_outbox"
    topic: Annotated[str, Meta(description="topic to publish to")]
    guarantee: Annotated[
        RelayGuarantee,
        Meta(description="exactly-once, or at-least-once for a cluster without transactions"),
    ] = "exactly-once"
    columns: Annotated[OutboxColumns, Meta(description="names of the outbox's columns")] = (
        OutboxColumns()
    )
    version: Annotated[
        str | None,
        Meta(
            description="field that the relay adds to values that do not have it: the row's id,"
            " which increases per document"
        ),
    ] = None
    too_large: Annotated[
        TooLarge,
        Meta(
            description="what to do with a record that the topic does not accept: keep it in"
            " instep_outbox_dead, or stop"
        ),
    ] = "dead-letter"
    batch_rows_max: Annotated[
        int,
        Meta(description="maximum number of rows of one Kafka transaction", ge=1, le=100_000),
    ] = 20_000
    poll_ms_max: Annotated[
        int, Meta(description="longest pause between two reads of the outbox", ge=1, le=60_000)
    ] = 50
    take_over_s: Annotated[
        float,
        Meta(
            description="a standby takes over after this many seconds without a heartbeat",
            ge=1,
            le=3_600,
        ),
    ] = 3.0


class Stream(SettingsTable, frozen=True, kw_only=True):
    """One stream from a topic to another topic, with or without a transformation between them."""

    source: Annotated[str, Meta(description="topic to read")] = msgspec.field(name="from")
    target: Annotated[str, Meta(description="topic to publish to")] = msgspec.field(name="to")
    sql: Annotated[
        str | None,
        Meta(description="transformation as one SELECT statement of Spark SQL: `… FROM records`"),
    ] = None
    python: Annotated[
        str | None,
        Meta(
            description="transformation as a function from DataFrame to DataFrame:"
            " package.module:function"
        ),
    ] = None
    start: Annotated[
        str,
        Meta(description="where a new stream starts: earliest, latest or an ISO 8601 time"),
    ] = "earliest"
    guarantee: Annotated[
        RelayGuarantee,
        Meta(description="exactly-once, or at-least-once for a cluster without transactions"),
    ] = "exactly-once"
    dead_letters: Annotated[
        str | None,
        Meta(
            description="topic for records that cannot be published, because they have no key, are"
            " too large or cannot be transformed; default: the stream stops"
        ),
    ] = None
    batch_rows_max: Annotated[
        int, Meta(description="maximum number of records that are read at once", ge=1)
    ] = 400_000

    @property
    def is_transformed(self) -> bool:
        """Return whether it has a transformation, for which Spark SQL is needed."""
        return self.sql is not None or self.python is not None


class Kpi(SettingsTable, frozen=True, kw_only=True):
    """Status changes counted per minute, and the time between two of them, kept in a table."""

    pipeline: Annotated[
        str | None,
        Meta(description="pipeline whose topic, event fields and target database are used"),
    ] = None
    topic: Annotated[str | None, Meta(description="topic to read, instead of `pipeline`")] = None
    event: Annotated[
        EventMapping | None, Meta(description="fields of the record, if there is no `pipeline`")
    ] = None
    target: Annotated[
        str | None,
        Meta(
            description="target database as a SQLAlchemy URL; default: that of the pipeline",
            extra={"secret": IN_URL},
        ),
    ] = None
    table: Annotated[str, Meta(description="table of the KPI rows, or schema.table")]
    durations: Annotated[
        dict[str, list[str]],
        Meta(
            description="durations by name: the time from a document's first event with one status"
            ' to the first with another: ["QUEUED", "PRINTED"]'
        ),
    ] = {}
    watermark_s: Annotated[
        int,
        Meta(
            description="how many seconds an event may be late; a document without an event for"
            " longer is a new one when it comes back",
            ge=60,
            le=31_536_000,
        ),
    ] = 86_400
    start: Annotated[
        str, Meta(description="where a new KPI starts: earliest, latest or an ISO 8601 time")
    ] = "earliest"
    batch_rows_max: Annotated[
        int, Meta(description="maximum number of records that are read at once", ge=1)
    ] = 100_000


class Archive(SettingsTable, frozen=True, kw_only=True):
    """One archive: a topic as a Delta table."""

    topic: Annotated[str, Meta(description="topic to archive")]
    path: Annotated[
        str,
        Meta(
            description="folder of the Delta table, or an object store's URL: s3://…, az://…, gs://…"
        ),
    ]
    start: Annotated[
        str,
        Meta(description="where a new archive starts: earliest, latest or an ISO 8601 time"),
    ] = "earliest"
    commit_every_s: Annotated[
        float,
        Meta(description="longest time that a record waits for its commit", ge=0.1, le=3_600),
    ] = 60.0
    file_mb: Annotated[
        int,
        Meta(
            description="size of the files into which small ones are joined; joining needs about"
            " ten times that much memory in the driver",
            ge=1,
            le=1_024,
        ),
    ] = 64
    vacuum_after_hours: Annotated[
        int,
        Meta(description="remove files that the table has not needed for so long; 0: never", ge=0),
    ] = 168


class DeclaredPublisher(SettingsTable, frozen=True, kw_only=True):
    """A program that publishes to a topic, for `instep vet`."""

    topic: Annotated[str, Meta(description="topic that it publishes to")]
    client: Annotated[Client, Meta(description="client library, whose defaults instep knows")] = (
        "instep"
    )
    config: Annotated[
        dict[str, str | int | float | bool],
        Meta(description="settings of the client that it changes, by the client's own names"),
    ] = {}


class DeclaredReader(SettingsTable, frozen=True, kw_only=True):
    """A program other than a pipeline that reads a topic, for `instep vet`."""

    topic: Annotated[str, Meta(description="topic that it reads")]
    client: Annotated[
        ReaderClient, Meta(description="client library, whose defaults instep knows")
    ] = "java"
    group: Annotated[
        str | None, Meta(description="its consumer group; default: the name of this table")
    ] = None
    config: Annotated[
        dict[str, str | int | float | bool],
        Meta(description="settings of the client that it changes, by the client's own names"),
    ] = {}


class IdsList(SettingsTable, frozen=True, kw_only=True):
    """A list endpoint of the source, whose pages contain the ids of its documents."""

    url: Annotated[
        str, Meta(description="URL of the first page, a JSON document", extra={"secret": IN_URL})
    ]
    items: Annotated[
        str | None,
        Meta(description="path of the list within a page: data.items; default: the page itself"),
    ] = None
    id: Annotated[
        str, Meta(description="path of the id within an entry, unless an entry is the id itself")
    ] = "id"
    next: Annotated[
        str | None,
        Meta(
            description="path of the link to the next page within a page: links.next;"
            f' "{LINK_HEADER}" for the Link header'
        ),
    ] = None
    next_parameter: Annotated[
        str | None,
        Meta(description="query parameter that takes the value of `next`, if it is not a link"),
    ] = None
    page_parameter: Annotated[
        str | None,
        Meta(description="query parameter of the page's number; the first empty page is the last"),
    ] = None
    first_page: Annotated[int, Meta(description="number of the first page", ge=0)] = 1
    headers: Annotated[
        dict[str, str],
        Meta(
            description="request headers; default: those of the bridge, if `url` has the same"
            " scheme, host and port",
            extra={"secret": True},
        ),
    ] = {}


class Bridge(SettingsTable, frozen=True, kw_only=True):
    """A polling bridge: from a source's query service to a topic."""

    topic: Annotated[str, Meta(description="topic that it publishes to")]
    url: Annotated[
        str,
        Meta(
            description="URL of a document's status, with {document} in its path or query",
            extra={"secret": IN_URL},
        ),
    ]
    status: Annotated[str, Meta(description="path of the status in the answer: print.status")]
    version: Annotated[
        str | None,
        Meta(
            description="path of the version, an integer that increases with every change;"
            " default: the bridge assigns versions itself"
        ),
    ] = None
    at: Annotated[
        str | None,
        Meta(description="path of the change's time: epoch milliseconds or ISO 8601"),
    ] = None
    fields: Annotated[
        dict[str, str], Meta(description="further fields of the event: field = path in the answer")
    ] = {}
    ids_file: Annotated[str | None, Meta(description="file with the ids, one per line")] = None
    ids_query: Annotated[
        str | None, Meta(description="query that returns the ids, in one column; needs `ids_url`")
    ] = None
    ids_url: Annotated[
        str | None,
        Meta(description="database of `ids_query` as a SQLAlchemy URL", extra={"secret": IN_URL}),
    ] = None
    ids_list: Annotated[IdsList | None, Meta(description="list endpoint with the ids")] = None
    ids_refresh_s: Annotated[
        float, Meta(description="seconds until the ids are read again", ge=1)
    ] = 300.0
    headers: Annotated[
        dict[str, str],
        Meta(description="request headers, with secrets as ${NAME}", extra={"secret": True}),
    ] = {}
    ca: Annotated[
        str | None, Meta(description="PEM file of the authority that signed the certificate")
    ] = None
    rate_per_s: Annotated[
        float, Meta(description="maximum number of requests per second", gt=0, le=10_000)
    ] = 10.0
    concurrency: Annotated[
        int, Meta(description="maximum number of open requests", ge=1, le=1_000)
    ] = 8
    timeout_s: Annotated[
        float, Meta(description="maximum seconds for a complete response", gt=0, le=3_600)
    ] = 10.0
    body_bytes_max: Annotated[
        int, Meta(description="maximum size of an answer", ge=1, le=268_435_456)
    ] = 1_048_576
    interval_min_s: Annotated[
        float, Meta(description="minimum seconds between two polls of a document", gt=0)
    ] = 10.0
    interval_max_s: Annotated[
        float, Meta(description="maximum seconds between two polls of a document", gt=0)
    ] = 3_600.0
    final: Annotated[
        list[str], Meta(description="final statuses: such documents are not polled again")
    ] = []
    final_interval_s: Annotated[
        float,
        Meta(description="seconds until a document with a final status is polled again; 0: never"),
    ] = 0.0
    missing: Annotated[
        Vanished,
        Meta(description="if the source answers 404 or 410: ignore it, or publish a delete"),
    ] = "ignore"
    state: Annotated[
        str | None,
        Meta(description="SQLite file of the bridge; default: bridge-NAME.db in this folder"),
    ] = None


class Vet(SettingsTable, frozen=True, kw_only=True):
    """What `instep vet` needs to know."""

    outage_hours_max: Annotated[
        int,
        Meta(
            description="longest outage, in hours, that a pipeline must survive without losing"
            " events",
            ge=1,
        ),
    ] = 72
    accept: Annotated[
        dict[str, str], Meta(description="rules whose findings are accepted: RULE = reason")
    ] = {}


class Settings(SettingsTable, frozen=True, kw_only=True):
    """Everything that a settings file declares."""

    kafka: Annotated[Kafka, Meta(description="the cluster")] = Kafka()
    spark: Annotated[Spark, Meta(description="where the pipelines run")] = Spark()
    pipelines: Annotated[dict[str, Pipeline], Meta(description="pipelines, by name")] = {}
    streams: Annotated[dict[str, Stream], Meta(description="streams, by name")] = {}
    kpis: Annotated[dict[str, Kpi], Meta(description="KPIs, by name")] = {}
    archives: Annotated[dict[str, Archive], Meta(description="archives, by name")] = {}
    relays: Annotated[dict[str, Relay], Meta(description="relays, by name")] = {}
    publishers: Annotated[
        dict[str, DeclaredPublisher],
        Meta(description="publishers, by name; only used by `instep vet`"),
    ] = {}
    readers: Annotated[
        dict[str, DeclaredReader],
        Meta(description="readers other than pipelines, by name; only used by `instep vet`"),
    ] = {}
    bridges: Annotated[dict[str, Bridge], Meta(description="polling bridges, by name")] = {}
    vet: Annotated[Vet, Meta(description="for `instep vet`")] = Vet()


class Loaded(msgspec.Struct, frozen=True):
    """Settings, the origin of every key that was set, and masked values of those with `${NAME}`."""

    settings: Settings
    origins: Mapping[str, str]
    hidden: Mapping[str, Any] = {}

    def shown(self) -> list[tuple[str, Any]]:
        """Return (key, value) of every setting, without secrets and values from `${NAME}`."""
        return effective(self.settings, hidden=self.hidden)

    def origin(self, key: str) -> str:
        """Return the origin of a setting; for a table, the origins of its keys."""
        below = [
            where
            for name, where in self.origins.items()
            if name == key or name.startswith(f"{key}.")
        ]
        return ", ".join(dict.fromkeys(below)) or "default"


def _long_form(columns: Mapping[str, str | ColumnMapping]) -> dict[str, ColumnMapping]:
    return {
        name: one if isinstance(one, ColumnMapping) else ColumnMapping(field=one)
        for name, one in columns.items()
    }


def _listed(one_or_several: str | list[str]) -> list[str]:
    return [one_or_several] if isinstance(one_or_several, str) else one_or_several


def load(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the file `path`, else INSTEP_CONFIG, else `./instep.toml`; without a file, defaults."""
    return load_with_origins(path, environ).settings


def file_of(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the settings file, which may not exist."""
    return path or Path(environ.get("INSTEP_CONFIG") or FILE_NAME)


def load_with_origins(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Read the settings like `load`, with the origin of every value."""
    named = path is not None or bool(environ.get("INSTEP_CONFIG"))
    found = file_of(path, environ)
    try:
        text = found.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named:
            raise errors.SettingsError(
                f"settings file {found} does not exist",
                f"create it, or omit --config to use ./{FILE_NAME}",
            ) from None
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise errors.SettingsError(
            f"settings file {found} cannot be read: {error}",
            "make it readable for this user, as UTF-8 text",
        ) from error
    try:
        return _read(text, environ, str(found))
    except errors.SettingsError as error:
        if named or text:
            raise errors.SettingsError(f"{found}: {error.what}", error.remedy) from error
        raise


def parse(text: str, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return settings from a file's text and the environment."""
    return _read(text, environ, FILE_NAME).settings


def _read(text: str, environ: Mapping[str, str], file: str) -> Loaded:
    try:
        tree: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.SettingsError(
            f"{file} is not valid TOML: {error}",
            "correct that line: strings are quoted, tables are in [brackets]",
        ) from error
    _join_dotted(tree)
    origins = {key: _origin(file, value) for key, value in _leaves(tree, "")}
    for name, value in environ.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            key, given = _override(
                tree, Settings, name.removeprefix(ENVIRONMENT_PREFIX).split("__"), value, name
            )
            origins = {
                known: where for known, where in origins.items() if not known.startswith(f"{key}.")
            }
            origins |= {leaf: name for leaf, _ in _leaves({key: given}, "")}
    _join_dotted(tree)
    _refuse_unknown(tree, Settings, "")
    expanded = _expand(tree, "", environ)
    try:
        settings = _converted(expanded)
    except errors.SettingsError as error:
        raise errors.SettingsError(
            _without(error.what, tree, environ), _without(error.remedy, tree, environ)
        ) from error.__cause__
    return Loaded(settings, origins, _hidden(tree))


def _converted(expanded: dict[str, Any]) -> Settings:
    """Convert a tree to settings, and check them."""
    tables = (
        (Pipeline, "pipelines"),
        (Stream, "streams"),
        (Kpi, "kpis"),
        (Archive, "archives"),
        (Relay, "relays"),
        (Bridge, "bridges"),
    )
    for kind, place in tables:
        named = expanded.get(place, {})
        for name, table in named.items() if isinstance(named, dict) else ():
            _convert(table, kind, f"{place}.{name}")
    settings: Settings = _convert(expanded, Settings, "")
    for relay_name in settings.relays:
        _check_relay(relay_name)
    for pipeline_name, pipeline in settings.pipelines.items():
        _check(pipeline_name, pipeline)
    for stream_name, declared_stream in settings.streams.items():
        _check_stream(stream_name, declared_stream)
    for kpi_name, declared_kpi in settings.kpis.items():
        _check_kpi(settings, kpi_name, declared_kpi)
    for archive_name, declared_archive in settings.archives.items():
        _check_archive(archive_name, declared_archive)
    for bridge_name, declared in settings.bridges.items():
        _check_bridge(bridge_name, declared)
    _refuse_shared_names(settings)
    _refuse_shared_folders(settings)
    _check_security(settings.kafka.security)
    spark_options.check(settings.spark.master, settings.spark.memory)
    return _with_absolute_paths(settings)


def _hidden(tree: dict[str, Any]) -> dict[str, Any]:
    """Return every value with `${NAME}`, with stars in place of each variable."""

    def masked(value: Any) -> Any:
        if isinstance(value, list):
            return [masked(one) for one in value]
        return VARIABLE.sub(STARS, value) if isinstance(value, str) else value

    return {key: masked(value) for key, value in _leaves(tree, "") if masked(value) != value}


def _without(text: str, tree: dict[str, Any], environ: Mapping[str, str]) -> str:
    """Return an error's text with the names of variables in place of their values."""
    names = {name for _, value in _leaves(tree, "") for name in VARIABLE.findall(str(value))}
    for name in sorted(names, key=lambda name: len(environ.get(name, "")), reverse=True):
        if value := environ.get(name):
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", f"${{{name}}}", text)
    return text


def _origin(file: str, value: Any) -> str:
    """Return the file, and the variables in the value."""
    names = [f"${{{name}}}" for name in VARIABLE.findall(value)] if isinstance(value, str) else []
    return " with ".join([file, *names])


def any_query(settings: Settings, names: Iterable[str]) -> bool:
    """Return whether any of these jobs is a query of Structured Streaming."""
    for name in names:
        match job_kind(settings, name):
            case "pipeline":
                is_query = settings.pipelines[name].chosen_engine == "micro-batch"
            case "stream":
                is_query = settings.streams[name].is_transformed
            case "archive":
                is_query = False
            case _:
                is_query = True
        if is_query:
            return True
    return False


def job_names(settings: Settings) -> list[str]:
    """Return the names of everything that `instep run` runs, pipelines first."""
    return [name for table in JOB_TABLES.values() for name in getattr(settings, table)]


def job_kind(settings: Settings, name: str) -> str:
    """Return the kind of a declared job; raise SettingsError that suggests the nearest name."""
    for kind, table in JOB_TABLES.items():
        if name in getattr(settings, table):
            return kind
    kinds = " or ".join(kind for kind, table in JOB_TABLES.items() if getattr(settings, table))
    _named(kinds or "pipeline", dict.fromkeys(job_names(settings)), name)
    raise AssertionError(name)


def stream(settings: Settings, name: str) -> Stream:
    """Return the stream with that name; raise SettingsError that suggests the nearest one."""
    return _named("stream", settings.streams, name)


def kpi(settings: Settings, name: str) -> Kpi:
    """Return the KPI with that name; raise SettingsError that suggests the nearest one."""
    return _named("kpi", settings.kpis, name)


def archive(settings: Settings, name: str) -> Archive:
    """Return the archive with that name; raise SettingsError that suggests the nearest one."""
    return _named("archive", settings.archives, name)


def pipeline(settings: Settings, name: str) -> Pipeline:
    """Return the pipeline with that name; raise SettingsError that suggests the nearest one."""
    return _named("pipeline", settings.pipelines, name)


def relay(settings: Settings, name: str) -> Relay:
    """Return the relay with that name; raise SettingsError that suggests the nearest one."""
    return _named("relay", settings.relays, name)


def bridge(settings: Settings, name: str) -> Bridge:
    """Return the bridge with that name; raise SettingsError that suggests the nearest one."""
    return _named("bridge", settings.bridges, name)


def _named(kind: str, declared: Mapping[str, Declared], name: str) -> Declared:
    if name in declared:
        return declared[name]
    if not declared:
        raise errors.SettingsError(
            f"there is no {kind} {name!r}: the settings declare none",
            f"add a [{kind}s.NAME] table to {FILE_NAME}",
        )
    raise errors.SettingsError(
        f"there is no {kind} {name!r}{nearest(name, declared)}",
        f"declared: {', '.join(map(repr, declared))}",
    )


def start_time(start: str) -> datetime | None:
    """Return the time of `start`; None for earliest and latest. Without a zone it is UTC."""
    if start in ("earliest", "latest"):
        return None
    instant: datetime = msgspec.convert(start, datetime)
    return instant


# --- reading the tree ---------------------------------------------------------------------------


def _override(
    tree: dict[str, Any], table: Any, path: list[str], text: str, name: str
) -> tuple[str, Any]:
    """Set the setting that an environment variable names; return its key and the value."""
    kind = _plain(table)
    step, rest = path[0], path[1:]
    if _is_table(kind):
        known = {
            field.encode_name.upper(): (field.encode_name, field.type)
            for field in msgspec.structs.fields(kind)
        }
        if step.upper() not in known:
            raise errors.SettingsError(
                f"environment variable {name} names no setting{nearest(step.upper(), known)}",
                f"use one of: {', '.join(known)}; two underscores separate the parts of a name",
            )
        key, child = known[step.upper()]
    elif get_origin(kind) is dict:
        key = next((key for key in tree if key.upper() == step.upper()), step.lower())
        child = get_args(kind)[1]
        if rest and isinstance(tree.get(key), str):  # a column's short form becomes its long form
            tree[key] = {"field": tree[key]}
    else:
        raise errors.SettingsError(
            f"environment variable {name} names no setting: {step!r} is below a value",
            f"unset {name}, or correct its name",
        )
    if rest:
        branch = tree.setdefault(key, {})
        if not isinstance(branch, dict):
            raise errors.SettingsError(
                f"environment variable {name} names no setting: {key} is a value, not a table",
                f"unset {name}, or correct its name",
            )
        below, value = _override(branch, child, rest, text, name)
        return f"{key}.{below}", value
    is_short = child == str | ColumnMapping and not text.lstrip().startswith("{")
    if _takes_list(child) and text.lstrip().startswith("["):
        child = list[str]
    tree[key] = text if is_short else _from_text(_plain(child), text, name)
    return str(key), tree[key]


def _takes_list(kind: Any) -> bool:
    """Return whether a setting can be a list as well as a single value."""
    return list[str] in get_args(conversion_errors.plain(kind))


def _from_text(kind: Any, text: str, name: str) -> Any:
    if _is_table(kind) or get_origin(kind) in (dict, list):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise errors.SettingsError(
                f"environment variable {name} must be JSON: {error}",
                f"""write e.g. export {name}='{{"name": "value"}}'""",
            ) from error
    try:
        return msgspec.to_builtins(msgspec.convert(text, kind, strict=False))
    except msgspec.ValidationError as error:
        problem = conversion_errors.explain(str(error), kind, name)
        raise errors.SettingsError(
            f"environment variable {problem.what}", problem.remedy
        ) from error


def _join_dotted(tree: dict[str, Any]) -> None:
    """Join the names of other tools' settings.

    They contain dots, which TOML takes for nested tables unless the names are quoted.
    """
    holders = [(tree.get("spark"), "conf")]
    for kind in ("publishers", "readers"):
        clients = tree.get(kind)
        if isinstance(clients, dict):
            holders += [(client, "config") for client in clients.values()]
    for holder, key in holders:
        if isinstance(holder, dict) and isinstance(holder.get(key), dict):
            holder[key] = dict(_leaves(holder[key], ""))


def _leaves(tree: dict[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            for number, table in enumerate(value):
                yield from _leaves(table, f"{before}{key}[{number}].")
        else:
            yield f"{before}{key}", value


def _refuse_unknown(tree: Any, table: Any, where: str) -> None:
    kind = _plain(table)
    if isinstance(tree, list) and get_origin(kind) is list:
        for number, one in enumerate(tree):
            _refuse_unknown(one, get_args(kind)[0], f"{where.rstrip('.')}[{number}].")
    if not isinstance(tree, dict):
        return
    if get_origin(kind) is dict:
        for key, value in tree.items():
            _refuse_unknown(value, get_args(kind)[1], f"{where}{key}.")
    elif _is_table(kind):
        known = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for key, value in tree.items():
            if key not in known:
                place = f"[{where.rstrip('.')}]" if where else "the settings file"
                raise errors.SettingsError(
                    f"unknown key {key!r} in {place}{nearest(key, known)}",
                    f"known keys: {', '.join(known)}",
                )
            _refuse_unknown(value, known[key], f"{where}{key}.")


def expanded(text: str, where: str, environ: Mapping[str, str]) -> str:
    """Return a text with the values of `${NAME}`, percent-encoded in a URL's login."""
    return str(_expand(text, where, environ))


def _expand(tree: Any, where: str, environ: Mapping[str, str]) -> Any:
    """Replace `${NAME}` in every string; percent-encode the value in a URL's login."""
    if isinstance(tree, dict):
        return {
            key: _expand(value, f"{where}.{key}" if where else key, environ)
            for key, value in tree.items()
        }
    if isinstance(tree, list):
        return [_expand(value, where, environ) for value in tree]
    if not isinstance(tree, str):
        return tree
    login_ends = tree.rfind("@") if "://" in tree else -1

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environ:
            raise errors.SettingsError(
                f"{where} needs ${{{name}}}, which is not in the environment", f"export {name}=…"
            )
        return quote(environ[name], safe="") if match.start() < login_ends else environ[name]

    return VARIABLE.sub(value_of, tree)


def _convert(tree: Any, table: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(tree, table)
    except msgspec.ValidationError as error:
        raise errors.SettingsError(*conversion_errors.explain(str(error), table, where)) from error


def _plain(kind: Any) -> Any:
    """Return the type behind Annotated and Optional; a table if it also has a short form."""
    found = conversion_errors.plain(kind)
    if get_origin(found) in (Union, types.UnionType):
        return next((part for part in get_args(found) if _is_table(part)), found)
    return found


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, SettingsTable)


# --- what types cannot express ------------------------------------------------------------------


def _check(name: str, pipeline: Pipeline) -> None:
    place = f"pipelines.{name}"
    if not name or len(name) > 100:
        raise errors.SettingsError(
            f"{place}: a pipeline's name must have 1 to 100 characters",
            "choose another name",
        )
    if not pipeline.columns:
        raise errors.SettingsError(
            f"{place}.columns is empty", "add at least one line: column = field"
        )
    _check_key(place, pipeline)
    fields = {column.field for column in pipeline.mapped.values()}
    if pipeline.event.order is not None and pipeline.event.order not in fields:
        raise errors.SettingsError(
            f"{place}.event.order is {pipeline.event.order!r}, but no column stores it,"
            " so the guard has nothing to compare",
            f'add a column to [{place}.columns]: print_version = "{pipeline.event.order}"',
        )
    _check_columns(place, pipeline)
    for number, further in enumerate(pipeline.tables):
        _check_further(f"{place}.tables[{number}]", pipeline, further)
    _check_transitions(place, pipeline)
    _check_transform(place, pipeline)
    _check_due(place, pipeline)
    _check_redrive(place, pipeline)
    if pipeline.cleared_status is not None and (
        pipeline.deletes != "clear" or pipeline.event.status not in fields
    ):
        raise errors.SettingsError(
            f'{place}.cleared_status needs deletes = "clear" and a column for the status',
            f'add deletes = "clear" to [{place}], or remove cleared_status',
        )
    _check_start(place, pipeline.start)


def _check_further(place: str, pipeline: Pipeline, further: FurtherTable) -> None:
    view = _further_view(pipeline, further) if set(further.lines) <= set(further.columns) else None
    if view is None or len(set(further.lines)) < len(further.lines):
        raise errors.SettingsError(
            f"{place}.line_key is {further.line_key!r}",
            f"name each column once, and say in {place}.columns which field it holds",
        )
    if len(view.keys) - len(view.lines) != len(pipeline.keys):
        raise errors.SettingsError(
            f"{place}.key is {further.key!r}, but a document's id has the columns"
            f" {', '.join(pipeline.keys)}",
            "name as many columns, in the same order; other columns of the key belong in line_key",
        )
    tables = [pipeline.table, *(one.table for one in pipeline.tables)]
    if tables.count(further.table) > 1:
        raise errors.SettingsError(
            f"{place}.table is {further.table!r}, which the pipeline writes already",
            "name each table once",
        )
    if not view.columns:
        raise errors.SettingsError(
            f"{place}.columns has no column beside the key", "add at least one line: column = field"
        )
    for name in view.keys:
        if name in view.columns:
            raise errors.SettingsError(
                f"{place}.columns.{name} is a key column, which has the document's id already",
                "remove the line",
            )
    for name, line in view.lines.items():
        _check_line(f"{place}.columns.{name}", line)
    fields = {column.field for column in further.mapped.values()}
    if further.order is not None and further.order not in fields:
        raise errors.SettingsError(
            f"{place}.order is {further.order!r}, but no column of the table stores it",
            f'add a column to {place}.columns: version = "{further.order}"',
        )
    _refuse_position(f"{place}.order", further.order)
    for name, column in further.mapped.items():
        _check_column(f"{place}.columns.{name}", column, view.event)


def _check_line(place: str, line: ColumnMapping) -> None:
    if line.field is None or line.convert == "boolean":
        raise errors.SettingsError(
            f"{place} is part of the key and {'a constant' if line.field is None else 'a boolean'}",
            "name a field with a text, a number, a time or a date; for a line for every event:"
            ' "@partition" and "@offset"',
        )
    if line.type is not None:
        column_type(line.type, f"{place}.type", PART_TYPES)


def _refuse_position(place: str, field: str | None) -> None:
    if field in ("@offset", "@partition"):
        raise errors.SettingsError(
            f"{place} is {field!r}, which says nothing about the document",
            "use a field of the value, a header or @timestamp",
        )


def _check_start(place: str, start: str) -> None:
    try:
        start_time(start)
    except msgspec.ValidationError:
        raise errors.SettingsError(
            f"{place}.start is {start!r}",
            'use "earliest", "latest" or a time such as "2026-11-01T08:00:00Z"',
        ) from None


def _refuse_shared_names(settings: Settings) -> None:
    """Refuse a name that two jobs have: `instep run NAME` would be ambiguous."""
    seen: dict[str, str] = {}
    for table in JOB_TABLES.values():
        for name in getattr(settings, table):
            if name in seen:
                raise errors.SettingsError(
                    f"{seen[name]}.{name} and {table}.{name} have the same name, which"
                    " `instep run` needs to tell them apart",
                    "rename one of them; a job that has run before keeps its position only under"
                    " its old name",
                )
            seen[name] = table


def _refuse_shared_folders(settings: Settings) -> None:
    """Refuse two archives in one folder."""
    seen: dict[str, str] = {}
    for name, archive in settings.archives.items():
        other = seen.setdefault(archive.path.rstrip("/"), name)
        if other != name:
            raise errors.SettingsError(
                f"archives.{name}.path is the folder of archives.{other}",
                "give each archive a folder of its own",
            )


def _check_stream(name: str, stream: Stream) -> None:
    place = f"streams.{name}"
    if not TOPIC_PART.fullmatch(name):
        raise errors.SettingsError(
            f"{place}: a stream's name is part of a topic's name",
            "use 1 to 100 letters, digits, dots, hyphens and underscores",
        )
    if stream.sql is not None and stream.python is not None:
        raise errors.SettingsError(f"{place} has both sql and python", "remove one of them")
    if stream.target == stream.source or stream.dead_letters == stream.source:
        raise errors.SettingsError(
            f"{place} publishes to the topic {stream.source!r} that it reads: it would never end",
            "publish to another topic",
        )
    if stream.dead_letters == stream.target:
        raise errors.SettingsError(
            f"{place}.dead_letters is the output topic", "choose another topic"
        )
    _check_start(place, stream.start)


def _check_kpi(settings: Settings, name: str, kpi: Kpi) -> None:
    place = f"kpis.{name}"
    if not name or len(name) > 100:
        raise errors.SettingsError(
            f"{place}: a KPI's name must have 1 to 100 characters", "choose another name"
        )
    if (kpi.pipeline is None) is (kpi.topic is None):
        problem = "both `pipeline` and `topic`" if kpi.topic else "neither `pipeline` nor `topic`"
        raise errors.SettingsError(f"{place} has {problem}", "name one of them")
    event = kpi.event
    if kpi.pipeline is not None:
        event = pipeline(settings, kpi.pipeline).event
    if kpi.pipeline is not None and kpi.event is not None:
        raise errors.SettingsError(
            f"{place}.event is set, but pipeline {kpi.pipeline!r} says which fields are used",
            "remove it, or name a topic instead of the pipeline",
        )
    if kpi.topic is not None and kpi.target is None:
        raise errors.SettingsError(
            f"{place} has no target database", 'add e.g. target = "sqlite:///kpis.db"'
        )
    if event is None or event.status is None:
        where = f"pipelines.{kpi.pipeline}" if kpi.pipeline else place
        raise errors.SettingsError(
            f"{place} counts status changes, but {where}.event.status is not set",
            f'add to [{where}.event]: status = "status"',
        )
    _check_durations(place, kpi)
    _check_start(place, kpi.start)


def _check_durations(place: str, kpi: Kpi) -> None:
    for name, statuses in kpi.durations.items():
        if not name or len(name) > KPI_NAME_CHARACTERS_MAX or not name.isprintable():
            raise errors.SettingsError(
                f"{place}.durations: {name!r} cannot be the name of a duration",
                f"use 1 to {KPI_NAME_CHARACTERS_MAX} printable characters",
            )
        if len(set(statuses)) != 2 or len(statuses) != 2 or "" in statuses:
            raise errors.SettingsError(
                f"{place}.durations.{name} is {statuses!r}",
                'name two different statuses: ["QUEUED", "PRINTED"]',
            )


def _check_archive(name: str, archive: Archive) -> None:
    place = f"archives.{name}"
    if not TOPIC_PART.fullmatch(name):
        raise errors.SettingsError(
            f"{place}: an archive's name is part of a consumer group's name",
            "use 1 to 100 letters, digits, dots, hyphens and underscores",
        )
    if not archive.path:
        raise errors.SettingsError(f"{place}.path is empty", "name a folder of its own")
    _check_start(place, archive.start)


def _check_relay(name: str) -> None:
    """Refuse a name that cannot be part of a topic's name."""
    if not TOPIC_PART.fullmatch(name):
        raise errors.SettingsError(
            f"relays.{name}: a relay's name is part of a topic's name",
            "use 1 to 100 letters, digits, dots, hyphens and underscores",
        )


def _check_key(place: str, pipeline: Pipeline) -> None:
    keys, documents = pipeline.keys, pipeline.event.documents
    if not keys or len(set(keys)) < len(keys):
        raise errors.SettingsError(
            f"{place}.key is {pipeline.key!r}",
            'name each key column once: key = "id", or key = ["tenant", "no"]',
        )
    for key in keys:
        if key in pipeline.columns:
            raise errors.SettingsError(
                f"{place}.columns.{key} is a key column, which has the document's id already",
                "remove the line",
            )
    for document in documents:
        if document.startswith("@") and document != "@key":
            raise errors.SettingsError(
                f"{place}.event.document is {document!r}", 'use "@key" or a field of the value'
            )
    is_whole = isinstance(pipeline.event.document, str)
    if not (is_whole or len(documents) == len(keys)) or len(set(documents)) < len(documents):
        raise errors.SettingsError(
            f"{place}.event.document is {pipeline.event.document!r},"
            f" but the key has the columns {', '.join(keys)}",
            "name one field with the whole id, or a field for each key column, in the order of"
            " `key`",
        )
    if pipeline.key_type is not None and len(_listed(pipeline.key_type)) != len(keys):
        raise errors.SettingsError(
            f"{place}.key_type is {pipeline.key_type!r},"
            f" but the key has the columns {', '.join(keys)}",
            'set a type for each key column, in the order of `key`: key_type = ["text", "bigint"]',
        )
    for kind in pipeline.key_types.values():
        if kind is not None:
            column_type(kind, f"{place}.key_type", KEY_TYPES if len(keys) == 1 else PART_TYPES)
    separator = pipeline.key_separator
    if len(separator) != 1 or separator.isalnum() or not separator.isprintable():
        raise errors.SettingsError(
            f"{place}.key_separator is {separator!r}",
            "use one character that occurs in no part of a key and is neither a letter nor a"
            ' digit: "/", ":" or "|"',
        )


def _check_columns(place: str, pipeline: Pipeline) -> None:
    event = pipeline.event
    for part in ("status", "order", "at"):
        _refuse_position(f"{place}.event.{part}", getattr(event, part))
    for name, column in pipeline.mapped.items():
        _check_column(f"{place}.columns.{name}", column, event)


def _check_column(place: str, column: ColumnMapping, event: EventMapping) -> None:
    if (column.field is None) is (column.value is None):
        problem = "has neither a field nor a value"
        if column.field is not None:
            problem = "has a field and a value"
        raise errors.SettingsError(
            f"{place} {problem}", 'set one of them: field = "…" or value = …'
        )
    if column.type is not None:
        column_type(column.type, f"{place}.type", TYPES)
    used = [name for name in ("unit", "convert", "round", "trim") if getattr(column, name)]
    if column.value is not None and used:
        raise errors.SettingsError(
            f"{place} is a constant, which does not allow {used[0]}",
            f"write the value as it should be stored, without {used[0]}",
        )
    if column.unit is not None and used != ["unit"]:
        other = (set(used) - {"unit"}).pop()
        raise errors.SettingsError(
            f"{place} has a unit, so its field is a time, which does not allow {other}",
            "remove one of them",
        )
    if (
        column.field is not None
        and column.field == event.order
        and (column.round or column.convert in ("boolean", "text"))
    ):
        raise errors.SettingsError(
            f"{place} stores the order value, which the guard compares unchanged",
            'remove `round`; of `convert`, only use "number"',
        )


def column_type(
    text: str, place: str, known: tuple[str, ...] = TYPES
) -> tuple[str, tuple[int, ...]]:
    """Parse a declared type: `decimal(12,2)` is ("decimal", (12, 2))."""
    found = TYPE.fullmatch(text.strip().lower())
    name, *numbers = [part for part in found.groups() if part is not None] if found else [""]
    if not found or not any(one.partition("(")[0] == name for one in known):
        bare = [one.partition("(")[0] for one in known]
        raise errors.SettingsError(
            f"{place} is {text!r}, which is not a type"
            f"{nearest(text.partition('(')[0].lower(), bare)}",
            f"use one of: {', '.join(known)}",
        )
    sizes = tuple(map(int, numbers))
    if (name == "varchar" and sizes[0] == 0) or (
        name == "decimal" and not (1 <= sizes[0] <= 65 and sizes[1] <= min(sizes[0], 30))
    ):
        raise errors.SettingsError(
            f"{place} is {text!r}, which not every database supports",
            "varchar needs at least 1 character, decimal 1 to 65 digits and a scale of at most 30",
        )
    return name, sizes


def _require_status(place: str, key: str, pipeline: Pipeline) -> None:
    """Refuse a setting that needs the document's status if the pipeline does not have it."""
    if pipeline.event.status is None:
        raise errors.SettingsError(
            f"{place}.{key} needs the event's status, but event.status is not set",
            f'add to [{place}.event]: status = "status"',
        )
    if pipeline.event.status not in {column.field for column in pipeline.mapped.values()}:
        raise errors.SettingsError(
            f"{place}.{key} needs the document's current status,"
            f" but no column stores {pipeline.event.status!r}",
            f'add a column to [{place}.columns]: print_status = "{pipeline.event.status}"',
        )


def _check_due(place: str, pipeline: Pipeline) -> None:
    if not pipeline.due:
        return
    _require_status(place, "due", pipeline)
    for status, text in pipeline.due.items():
        if not status:
            raise errors.SettingsError(f"{place}.due has an empty status", "name every status")
        after = durations.parse(text)
        if after is None or not DURATION_MIN <= after <= DURATION_MAX:
            raise errors.SettingsError(
                f"{place}.due.{status} is {text!r}, which is not a duration"
                f" from 1 s to {DURATION_MAX.days} days",
                'write e.g. "90s", "90m", "2h" or "3d"',
            )
    fields = {column.field for column in pipeline.mapped.values()}
    at = pipeline.event.at or "@timestamp"
    if not pipeline.history and at not in fields:
        raise errors.SettingsError(
            f"{place}.due needs the time of a document's last change, but history is off and no"
            " column stores the event's time",
            f"set history = true in [{place}], or add a column to [{place}.columns]:"
            f' changed_at = "{at}"',
        )


def _check_redrive(place: str, pipeline: Pipeline) -> None:
    if pipeline.redrive is None:
        return
    if not pipeline.redrive.reason:
        raise errors.SettingsError(
            f"{place}.redrive.reason is empty", 'name a reason: reason = ["REFUSED_BY_TARGET"]'
        )
    every = durations.parse(pipeline.redrive.every)
    if every is None or not DURATION_MIN <= every <= DURATION_MAX:
        raise errors.SettingsError(
            f"{place}.redrive.every is {pipeline.redrive.every!r}, which is not a duration"
            f" from 1 s to {DURATION_MAX.days} days",
            'write e.g. "90s", "5m", "2h" or "1d"',
        )


def _check_transitions(place: str, pipeline: Pipeline) -> None:
    if not pipeline.transitions:
        return
    _require_status(place, "transitions", pipeline)
    for status, following in pipeline.transitions.items():
        if "" in (status, *following):
            raise errors.SettingsError(
                f"{place}.transitions has an empty status", "name every status"
            )


def _check_transform(place: str, pipeline: Pipeline) -> None:
    transform = pipeline.transform
    if transform is None:
        return
    if (transform.sql is None) is (transform.python is None):
        has = "both sql and python" if transform.sql else "neither sql nor python"
        raise errors.SettingsError(
            f"{place}.transform has {has}",
            'set one of them: sql = "SELECT … FROM records" or python = "package.module:function"',
        )
    if pipeline.tables:
        raise errors.SettingsError(
            f"{place} has a transformation and further tables, which do not work together",
            "remove [[tables]], or declare a pipeline for each table; a Spark stream can write"
            " several in one transaction: docs/guides/write-a-spark-stream.md",
        )
    if pipeline.engine == "resident":
        raise errors.SettingsError(
            f"{place}.engine is 'resident', but a transformation needs Spark SQL,"
            " which resident tasks do not have",
            'remove `engine`, or set engine = "micro-batch"',
        )
    for name, column in pipeline.mapped.items():
        if column.field == "@offset":
            raise errors.SettingsError(
                f"{place}.columns.{name} is '@offset', which the events of a transformation lack",
                "select `offset` in the transformation, and map that column",
            )
    if len(pipeline.topic) > TRANSFORMED_TOPIC_MAX:
        raise errors.SettingsError(
            f"{place}.topic has {len(pipeline.topic)} characters, but with a transformation the"
            " number of a result is kept behind it",
            f"use a topic with at most {TRANSFORMED_TOPIC_MAX} characters",
        )


def _check_bridge(name: str, bridge: Bridge) -> None:
    place = f"bridges.{name}"
    if not BRIDGE_NAME.fullmatch(name):
        raise errors.SettingsError(
            f"{place}: a bridge's name has 1 to 100 letters, digits, dots, hyphens or underscores",
            "choose another name",
        )
    bridge_urls.check_template(bridge.url, f"{place}.url")
    _check_ids(place, bridge)
    _check_headers(f"{place}.headers", bridge.headers)
    if bridge.interval_min_s > bridge.interval_max_s:
        raise errors.SettingsError(
            f"{place}: interval_min_s is {bridge.interval_min_s:g},"
            f" but interval_max_s is {bridge.interval_max_s:g}",
            "set interval_min_s to at most interval_max_s",
        )
    if bridge.final_interval_s < 0:
        raise errors.SettingsError(
            f"{place}.final_interval_s is negative", "write a number of seconds, or 0 for never"
        )
    for field in bridge.fields:
        if field in EVENT_FIELDS:
            raise errors.SettingsError(
                f"{place}.fields.{field} is a field that the bridge writes itself",
                "choose another name, or use `status`, `version` and `at`",
            )
    paths = {name: getattr(bridge, name) for name in ("status", "version", "at")}
    for key, path in {
        **paths,
        **{f"fields.{name}": one for name, one in bridge.fields.items()},
    }.items():
        if path is not None and not all(path.removeprefix("$.").split(".")):
            raise errors.SettingsError(
                f"{place}.{key} is {path!r}, which is not a path",
                'write the names of objects and the numbers in lists with dots: "jobs.0.status"',
            )


def _check_ids(place: str, bridge: Bridge) -> None:
    named = [key for key in ("ids_file", "ids_query", "ids_list") if getattr(bridge, key)]
    if len(named) != 1:
        problem = f"sets {' and '.join(named)}" if named else "does not say where the ids are"
        raise errors.SettingsError(
            f"[{place}] {problem}", "set one of ids_file, ids_query with ids_url, and ids_list"
        )
    if (bridge.ids_query is None) is not (bridge.ids_url is None):
        lacks = "ids_url" if bridge.ids_url is None else "ids_query"
        raise errors.SettingsError(
            f"[{place}] lacks {lacks}", "set both: ids_query, and ids_url for its database"
        )
    listed = bridge.ids_list
    if listed is None:
        return
    bridge_urls.check(listed.url, f"{place}.ids_list.url")
    _check_headers(f"{place}.ids_list.headers", listed.headers)
    if listed.next is not None and listed.page_parameter is not None:
        raise errors.SettingsError(
            f"{place}.ids_list has both next and page_parameter",
            "keep next if a page contains the link to the next one, else page_parameter",
        )
    if listed.next_parameter is not None and listed.next in (None, LINK_HEADER):
        raise errors.SettingsError(
            f"{place}.ids_list.next_parameter needs the path of its value",
            'add e.g. next = "next_page_token"',
        )


def _check_headers(place: str, headers: Mapping[str, str]) -> None:
    """Refuse what no request can contain. The value is not shown: it may be a secret."""
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name) or name.lower() in ("host", "content-length"):
            raise errors.SettingsError(
                f"{place}: {name!r} cannot be set", 'write e.g. Authorization = "Bearer ${TOKEN}"'
            )
        if not HEADER_VALUE.fullmatch(value):
            raise errors.SettingsError(
                f"{place}.{name} is empty, begins or ends with a space,"
                " or contains a control or non-ASCII character",
                "correct it, or the environment variable that it names",
            )


def _with_absolute_paths(settings: Settings) -> Settings:
    """Make file names absolute, because a process in another directory may read the files."""
    bridges = {name: _bridge_files(name, one) for name, one in settings.bridges.items()}
    archives = {
        name: one
        if "://" in one.path
        else msgspec.structs.replace(one, path=str(Path(one.path).absolute()))
        for name, one in settings.archives.items()
    }
    security = settings.kafka.security
    files = {name: getattr(security, name) for name in ("ca", "certificate", "key")}
    absolute = {name: str(Path(file).absolute()) for name, file in files.items() if file}
    kafka = msgspec.structs.replace(
        settings.kafka, security=msgspec.structs.replace(security, **absolute)
    )
    return msgspec.structs.replace(settings, kafka=kafka, bridges=bridges, archives=archives)


def _bridge_files(name: str, bridge: Bridge) -> Bridge:
    files = {key: getattr(bridge, key) for key in ("ids_file", "ca")}
    files["state"] = bridge.state or f"bridge-{name}.db"
    absolute = {key: str(Path(file).absolute()) for key, file in files.items() if file}
    return msgspec.structs.replace(bridge, **absolute)


def _check_security(security: Security) -> None:
    if security.protocol.startswith("SASL"):
        for key in ("mechanism", "username", "password"):
            if getattr(security, key) is None:
                raise errors.SettingsError(
                    f"kafka.security: protocol {security.protocol} needs {key}",
                    f"add to [kafka.security]: {EXAMPLES[key]}",
                )
    elif security.username or security.password or security.mechanism:
        raise errors.SettingsError(
            f"kafka.security: protocol {security.protocol} does not use a user",
            'set protocol = "SASL_SSL" or "SASL_PLAINTEXT",'
            " or remove username, password and mechanism",
        )


def describe(table: type[SettingsTable] = Settings) -> list[tuple[str, str, str, str]]:
    """Return (key, type, default, help) of every setting, for the reference page."""
    rows: list[tuple[str, str, str, str]] = []
    hints = get_type_hints(table, include_extras=True)
    for field in msgspec.structs.fields(table):
        meta = next(
            (part for part in get_args(hints[field.name]) if isinstance(part, Meta)), Meta()
        )
        name, kind = field.encode_name, _plain(hints[field.name])
        if get_origin(kind) is list and _is_table(get_args(kind)[0]):
            name, kind = f"{name}[]", get_args(kind)[0]
        children = describe(kind) if _is_table(kind) else []
        if get_origin(kind) is dict and _is_table(_plain(get_args(kind)[1])):
            short = not _is_table(get_args(kind)[1])
            below = "COLUMN" if short else "NAME"
            inner = describe(_plain(get_args(kind)[1]))
            children = [(f"{below}.{key}", *rest) for key, *rest in inner]  # type: ignore[misc]
            if short:
                rows.append((name, _type_name(kind), _default(field), meta.description or ""))
        if children:
            rows += [(f"{name}.{key}", *rest) for key, *rest in children]  # type: ignore[misc]
        else:
            rows.append((name, _type_name(kind), _default(field), meta.description or ""))
    return rows


def effective(
    table: SettingsTable, where: str = "", *, hidden: Mapping[str, Any] | None = None
) -> list[tuple[str, Any]]:
    """Return (key, value) of every setting, with secrets and passwords in URLs masked.

    `hidden` has, by key, what to show in place of values from the environment.
    """
    hidden = hidden or {}
    rows: list[tuple[str, Any]] = []
    hints = get_type_hints(type(table), include_extras=True)
    for field in msgspec.structs.fields(table):
        value, key = getattr(table, field.name), f"{where}{field.encode_name}"
        extra = next(
            (part.extra or {} for part in get_args(hints[field.name]) if isinstance(part, Meta)), {}
        )
        if isinstance(value, SettingsTable):
            rows += effective(value, f"{key}.", hidden=hidden)
        elif isinstance(value, dict) and any(
            isinstance(child, SettingsTable) for child in value.values()
        ):
            for name, child in value.items():
                if isinstance(child, SettingsTable):
                    rows += effective(child, f"{key}.{name}.", hidden=hidden)
                else:
                    rows.append((f"{key}.{name}", hidden.get(f"{key}.{name}", child)))
        elif isinstance(value, list) and value and isinstance(value[0], SettingsTable):
            for number, child in enumerate(value):
                rows += effective(child, f"{key}[{number}].", hidden=hidden)
        elif isinstance(value, dict):
            shown = {name: hidden.get(f"{key}.{name}", child) for name, child in value.items()}
            for name in shown:
                if extra.get("secret") or SECRET.search(name):
                    shown[name] = STARS
            rows.append((key, shown))
        else:
            rows.append((key, _masked(hidden.get(key, value), extra.get("secret"))))
    return rows


def _masked(value: Any, secret: object) -> Any:
    """Return a value without its secret: stars, or a URL with stars."""
    if not secret or not value:
        return value
    return masked_url(value) if secret == IN_URL else STARS


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) is dict:
        return "table"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is list:
        return "list"
    return {str: "text", int: "integer", float: "number", bool: "true or false"}.get(
        kind, str(kind)
    )


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else {}
    return "" if value in (None, {}) else msgspec.json.encode(value).decode()
