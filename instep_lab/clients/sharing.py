"""A member of a share group (Kafka 4.2): partitions are not divided, each record is handed to one member and acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import ShareConsumer

from instep_lab import workload
from instep_lab.clients.consuming import POLL_S, Consuming, Counted
from instep_lab.history import ClientOperation, HistoryWriter, OperationKind, OperationStatus


def consume(
    plan: Consuming,
    connection: Mapping[str, Any],
    history_writer: HistoryWriter,
    stop: threading.Event,
    counted: Counted,
) -> None:
    """Read and note it until told to stop; what one poll brought is acknowledged by the next."""
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
                    counted.errors.append(error.name())
                    note(OperationStatus.FAIL, note=f"{error.name()}: {error.str()}")
                    continue
                key, number = workload.parse(message.value() or b"")
                note(
                    OperationStatus.OK,
                    key=key,
                    number=number,
                    partition=message.partition(),
                    offset=message.offset(),
                )
                counted.read += 1
