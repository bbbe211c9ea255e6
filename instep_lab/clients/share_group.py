"""A member of a share group (Kafka 4.2).

Partitions are not assigned: each record is handed to one member, which acknowledges it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import ShareConsumer

from instep_lab import workload
from instep_lab.clients.consuming import POLL_S, ConsumerProgress, Consuming
from instep_lab.history import ClientOperation, HistoryWriter, OperationKind, OperationStatus


def consume(
    plan: Consuming,
    connection: Mapping[str, Any],
    history_writer: HistoryWriter,
    stop: threading.Event,
    progress: ConsumerProgress,
) -> None:
    """Read and record operations until stopped; each poll acknowledges the records of the last."""
    own = {"group.id": plan.group, "client.id": plan.member, "log_level": 0}

    def note(outcome: OperationStatus, **rest: Any) -> None:
        history_writer.note(
            ClientOperation(
                kind=OperationKind.READ,
                outcome=outcome,
                group=plan.group,
                member=plan.member,
                **rest,
            )
        )

    with ShareConsumer({**plan.config, **connection, **own}) as consumer:
        consumer.subscribe([plan.topic, *plan.also])
        while not stop.is_set():
            for message in consumer.poll(POLL_S):
                if (error := message.error()) is not None:
                    progress.errors.append(error.name())
                    note(OperationStatus.FAIL, note=f"{error.name()}: {error.str()}")
                    continue
                key, number = workload.parse(message.value() or b"")
                sender, sequence = workload.parse_headers(message.headers())
                note(
                    OperationStatus.OK,
                    key=key,
                    number=number,
                    topic=message.topic() or "",
                    partition=message.partition(),
                    offset=message.offset(),
                    sender=sender,
                    sequence=sequence,
                )
                progress.read += 1
