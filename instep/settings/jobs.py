"""The tables of streams, KPIs and archives."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from instep.settings.pipelines import EventMapping
from instep.settings.values import IN_URL, RelayGuarantee, SettingsTable, StreamTimestamp


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
    timestamp: Annotated[
        StreamTimestamp,
        Meta(description="timestamp of what is published: the source record's, or the time then"),
    ] = "source"
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
