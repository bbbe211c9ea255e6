"""Events published to a real topic, and the rows that a pipeline writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from instep.kafka.connection import Cluster
from instep.pipeline.runner import Runner
from tests.support.databases import run_sql
from tests.support.producing import IN_ORDER

Run = Callable[..., Runner]


def send(
    cluster: Cluster,
    topic: str,
    *records: tuple[bytes | None, Any],
    partition: int = -1,
    **config: Any,
) -> None:
    """Send plain records, as any other producer may."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "message.max.bytes": 5_000_000,
            **IN_ORDER,
            **config,
        }
    )
    for key, value in records:
        raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        producer.produce(topic, key=key, value=raw, partition=partition)
    assert producer.flush(30) == 0


def event(
    document: str, version: int, status: str = "PRINTED", **fields: Any
) -> tuple[bytes, dict[str, Any]]:
    body = {
        "doc_id": document,
        "status": status,
        "version": version,
        "updated_at": 1_790_000_000_000,
        **fields,
    }
    return document.encode(), body


def rows(url: str) -> list[Any]:
    return run_sql(
        url, "SELECT doc_no, print_status, print_version FROM contract_document ORDER BY doc_no"
    )
