"""The tables of the source side: relays and polling bridges."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from instep.settings.values import (
    IN_URL,
    LINK_HEADER,
    RelayGuarantee,
    SettingsTable,
    TooLarge,
    Vanished,
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
    invalid: Annotated[
        TooLarge,
        Meta(
            description="what to do with a row of which no record can be made (an id that is empty,"
            " longer than 255 characters or not UTF-8; headers that are no JSON object): keep it in"
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
            ge=2.5,
            le=3_600,
        ),
    ] = 3.0


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
    deletes_share_max: Annotated[
        float,
        Meta(description="share of the documents that may be deleted within an hour", ge=0, le=1),
    ] = 0.1
    state: Annotated[
        str | None,
        Meta(description="SQLite file of the bridge; default: bridge-NAME.db in this folder"),
    ] = None
