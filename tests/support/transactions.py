"""Batches applied to a real sink: records and events, the writer, and the tables' contents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from instep.document.decoding import Decoder, Record
from instep.pipeline.apply.batch import BatchOutcome, Writer
from instep.pipeline.apply.transaction import BatchTransaction
from instep.sinks.sink import Sink
from instep.sinks.target import Position
from tests.support.databases import run_sql

Open = Callable[..., Sink]


WRITER = Writer(epoch=1, cluster_id="c", topic_id="t")


def record(offset: int, document: str | None, value: Any) -> Record:
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return Record(
        offset, 1_790_000_000_000 + offset, None if document is None else document.encode(), raw
    )


def event(
    offset: int, document: str, version: int, status: str = "PRINTED", **fields: Any
) -> Record:
    return record(
        offset,
        document,
        {
            "doc_id": document,
            "status": status,
            "version": version,
            "updated_at": 1_790_000_000_000,
            **fields,
        },
    )


def apply(
    sink: Sink, records: list[Record], partition: int = 0, writer: Writer = WRITER
) -> BatchOutcome:
    return BatchTransaction(writer, partition, records, log_holds_nothing).apply(
        sink, Decoder(sink.target.mapping)
    )


def log_holds_nothing(_partition: int, _start: int, _end: int) -> bool:
    """Return False: offsets that a batch lacks are transaction markers."""
    return False


def begun(sink: Sink, partitions: int = 1) -> Sink:
    sink.ledger.take_epoch(Position(partition, 0, 0, "c", "t") for partition in range(partitions))
    return sink


def table(url: str, columns: str = "doc_no, print_status, print_version") -> list[Any]:
    return run_sql(url, f"SELECT {columns} FROM contract_document ORDER BY doc_no, print_version")


def KNOWN_DOCUMENTS(url: str) -> str:  # noqa: N802 - reads as the statement it is
    collation = {"mysql": " COLLATE utf8mb4_0900_bin", "mariadb": " COLLATE utf8mb4_nopad_bin"}.get(
        url.partition(":")[0], ""
    )
    charset = " CHARACTER SET utf8mb4" if collation else ""
    key = f"doc_no VARCHAR(40){charset}{collation} NOT NULL PRIMARY KEY"
    return f"CREATE TABLE contract_document ({key}, owner VARCHAR(40) NOT NULL)"


def parked(url: str) -> list[Any]:
    quoted = "`offset`" if url.startswith("m") else '"offset"'
    return run_sql(url, f"SELECT {quoted}, document, reason FROM instep_parked ORDER BY {quoted}")


class Crash(Exception):
    """A simulated crash of the process."""


def is_blocked(url: str, kind: str) -> bool:
    """Return whether a session of the database waits for a lock."""
    if kind == "postgres":
        waiting = "wait_event_type = 'Lock' AND datname = current_database()"
        return run_sql(url, f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}") != [(0,)]
    # Not information_schema.innodb_trx: it is refreshed only if nobody has read it for 0.1 s.
    [(_, waits)] = run_sql(url, "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return int(waits) > 0
