"""Baseline (a): the shortest correct loop, in one process with one connection.

It reads a batch, keeps the latest event of each document, and writes these events with a version
guard and the next offsets in the same transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition

from instep import settings
from instep.sinks import target
from instep_bench import baselines, contestant_program

UPSERTS: Mapping[str, str] = {
    "postgresql": """INSERT INTO {table} AS t (doc_id, status, version, updated_at)
        VALUES (%s, %s, %s, %s)
        ON CONFLICT (doc_id) DO UPDATE SET status = excluded.status,
            version = excluded.version, updated_at = excluded.updated_at
        WHERE t.version < excluded.version""",
    "sqlite": """INSERT INTO {table} AS t (doc_id, status, version, updated_at)
        VALUES (?, ?, ?, ?)
        ON CONFLICT (doc_id) DO UPDATE SET status = excluded.status,
            version = excluded.version, updated_at = excluded.updated_at
        WHERE t.version < excluded.version""",
    # MariaDB assigns from left to right: the version comes last because the others compare it.
    "mariadb": """INSERT INTO {table} (doc_id, status, version, updated_at)
        VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE
        status = IF(VALUES(version) > version, VALUES(status), status),
        updated_at = IF(VALUES(version) > version, VALUES(updated_at), updated_at),
        version = GREATEST(version, VALUES(version))""",
}
OFFSETS: Mapping[str, str] = {
    "postgresql": """INSERT INTO {table}_offsets VALUES (%s, %s)
        ON CONFLICT (part) DO UPDATE SET next_offset = excluded.next_offset""",
    "sqlite": "REPLACE INTO {table}_offsets VALUES (?, ?)",
    "mariadb": "REPLACE INTO {table}_offsets VALUES (%s, %s)",
}


class LoopEvent(msgspec.Struct):
    doc_id: str
    status: str
    version: int
    updated_at: str


def apply(order: contestant_program.Order) -> contestant_program.OrderResult:
    """Apply the topic from the offsets stored in the database to its end."""
    declared = settings.load(Path(order.config))
    pipeline = settings.pipeline(declared, order.pipeline)
    url = target.database_url(pipeline.target)
    kind = baselines.sql_dialect(url.get_backend_name())
    upsert, keep = (
        statements[kind].format(table=pipeline.table) for statements in (UPSERTS, OFFSETS)
    )
    decode = msgspec.json.Decoder(LoopEvent).decode
    config = {
        "bootstrap.servers": declared.kafka.bootstrap,
        "group.id": order.pipeline,
        "enable.auto.commit": False,
    }
    consumer = Consumer({**config, "isolation.level": "read_committed"})
    with contextlib.closing(connect(url, kind)) as connection, contextlib.closing(consumer):
        cursor = connection.cursor()
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {pipeline.table}_offsets"
            " (part int PRIMARY KEY, next_offset bigint)"
        )
        cursor.execute(f"SELECT part, next_offset FROM {pipeline.table}_offsets")  # noqa: S608
        known = dict(cursor.fetchall())
        connection.commit()  # ends the transaction that the driver opened for reading
        parts = sorted(consumer.list_topics(pipeline.topic).topics[pipeline.topic].partitions)
        at = {part: known.get(part, 0) for part in parts}
        ends = {
            part: consumer.get_watermark_offsets(TopicPartition(pipeline.topic, part))[1]
            for part in parts
        }
        consumer.assign([TopicPartition(pipeline.topic, part, at[part]) for part in parts])
        while any(at[part] < ends[part] for part in parts):
            latest: dict[str, LoopEvent] = {}
            moved: dict[int, int] = {}
            for message in consumer.consume(pipeline.batch_rows_max, timeout=0.2):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                moved[message.partition() or 0] = (message.offset() or 0) + 1
                try:
                    event = decode(message.value() or b"")
                except msgspec.DecodeError:
                    continue
                if event.doc_id not in latest or latest[event.doc_id].version < event.version:
                    latest[event.doc_id] = event
            if moved:
                write(cursor, upsert, [row(event, kind) for event in latest.values()])
                write(cursor, keep, list(moved.items()))
                connection.commit()
                at |= moved
        # Only in a benchmark: the next run starts from the beginning.
        cursor.execute(f"DROP TABLE {pipeline.table}_offsets")
        connection.commit()
    return contestant_program.OrderResult()


def row(event: LoopEvent, kind: str) -> tuple[str, str, int, str]:
    """Return the values of a row; MariaDB and MySQL accept no time zone in a time."""
    at = event.updated_at.removesuffix("Z") if kind == "mariadb" else event.updated_at
    return event.doc_id, event.status, event.version, at


def write(cursor: Any, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        cursor.executemany(statement, rows)


def connect(url: Any, kind: str) -> Any:
    """Connect to the database with its own driver."""
    connectors: Mapping[str, Callable[[Any], Any]] = {
        "postgresql": _postgres,
        "mariadb": _mariadb,
        "sqlite": _sqlite,
    }
    return connectors[kind](url)


def _postgres(url: Any) -> Any:
    import psycopg

    return psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))


def _mariadb(url: Any) -> Any:
    import pymysql

    return pymysql.connect(
        host=url.host,
        port=url.port or 3306,
        user=url.username,
        password=str(url.password or ""),
        database=url.database,
    )


def _sqlite(url: Any) -> Any:
    import sqlite3

    connection = sqlite3.connect(str(url.database), timeout=60)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


if __name__ == "__main__":
    contestant_program.serve(apply)
