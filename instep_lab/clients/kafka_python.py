"""A small consumer with kafka-python.

It is a second client with its own defaults and errors, and it has the eager sticky assignor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka import errors as client_errors
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from instep_lab import workload
from instep_lab.clients.consuming import POLL_S, CommitMode, ConsumerProgress, Consuming
from instep_lab.history import ClientOperation, HistoryWriter, OperationKind, OperationStatus

ASSIGNORS = {
    one.name: one
    for one in (
        RangePartitionAssignor,
        RoundRobinPartitionAssignor,
        StickyPartitionAssignor,
        CooperativeStickyAssignor,
    )
}
# names of librdkafka's connection settings that differ by more than underscores for dots
RENAMED = {
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
DEFAULTS: Mapping[str, Any] = {
    "auto_offset_reset": "earliest",
    "fetch_max_wait_ms": 10,
    "allow_auto_create_topics": False,
}


def consume(
    plan: Consuming,
    connection: Mapping[str, Any],
    history_writer: HistoryWriter,
    stop: threading.Event,
    progress: ConsumerProgress,
) -> None:
    """Read and record operations until the end of the plan or until stopped."""
    reader = _PythonReader(plan, connection, history_writer, progress)
    try:
        reader.run(stop)
        reader.end()
    finally:
        reader.close()


class _PythonReader(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(
        self,
        plan: Consuming,
        connection: Mapping[str, Any],
        history_writer: HistoryWriter,
        progress: ConsumerProgress,
    ) -> None:
        self._plan, self._history_writer, self.progress = plan, history_writer, progress
        self._consumer = KafkaConsumer(**_config(plan, connection))
        if plan.assigned is None:
            # otherwise it may join before it knows the topic, and then gets no partitions
            self._consumer.partitions_for_topic(plan.topic)
            self._consumer.subscribe([plan.topic, *plan.also], listener=self)
        else:
            parts = [TopicPartition(plan.topic, number) for number in plan.assigned]
            self._consumer.assign(parts)
            self.on_partitions_assigned(parts)

    def _finish_joining(self) -> None:
        """Let the client finish a join that it would forget.

        The leader of a group joins again if its metadata has changed. When the assignment is
        computed, it takes itself for joined, and a poll that ends before the assignment arrives
        (kafka-python 3.0.12) is the last one to look for it: the member has given its partitions
        up, sends no heartbeats, and waits forever.
        """
        coordinator = self._consumer._coordinator
        if coordinator.rejoining and not coordinator.need_rejoin():
            coordinator.request_rejoin()

    def run(self, stop: threading.Event) -> None:
        plan, quiet_since = self._plan, time.monotonic()
        while not stop.is_set() and (plan.count is None or self.progress.read < plan.count):
            try:
                found = self._consumer.poll(
                    timeout_ms=int(POLL_S * 1000), max_records=plan.batch_limit(self.progress.read)
                )
            except client_errors.KafkaError as error:
                self._fail(error)
                if not plan.continue_after_error:
                    return
                found = {}
            if not found:
                self._note_ends()
                self._finish_joining()
            if found:
                quiet_since = time.monotonic()
                self._handle([record for records in found.values() for record in records])
            elif plan.idle_s is not None and time.monotonic() - quiet_since > plan.idle_s:
                return

    def end(self) -> None:
        self._note(OperationKind.END)

    def close(self) -> None:
        self._consumer.close(timeout_ms=10_000)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._hold(OperationKind.REVOKE, revoked)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._hold(OperationKind.ASSIGN, assigned)

    def _hold(self, kind: OperationKind, parts: Collection[TopicPartition]) -> None:
        places = {(one.topic, one.partition) for one in parts}
        held = set(self.progress.held)
        if kind is OperationKind.ASSIGN:
            held |= places
        else:
            held -= places
        self.progress.hold(self._plan.topic, held)
        for one in sorted(parts):
            self._note(kind, partition=one.partition)

    def _handle(self, records: list[Any]) -> None:
        for kind in (OperationKind.READ, OperationKind.WORK):
            for record in records:
                key, number = workload.parse(record.value)
                sender, sequence = workload.parse_headers(record.headers)
                self._note(
                    kind,
                    key=key,
                    number=number,
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    timestamp_ms=record.timestamp,
                    sender=sender,
                    sequence=sequence,
                )
        self.progress.read += len(records)
        if self._plan.commit is CommitMode.SYNC:
            try:
                self._consumer.commit()
            except client_errors.KafkaError as error:
                self._note(OperationKind.COMMIT, OperationStatus.FAIL, note=type(error).__name__)

    # kafka-python does not report the end of a partition.
    def _note_ends(self) -> None:
        for one in self._consumer.assignment():
            end = self._consumer.highwater(one)
            if end is not None and self._consumer.position(one) == end:
                self.progress.ends[one.partition] = end

    def _fail(self, error: Exception) -> None:
        self.progress.errors.append(type(error).__name__)
        self._note(
            OperationKind.READ, OperationStatus.FAIL, note=f"{type(error).__name__}: {error}"
        )

    def _note(
        self, kind: OperationKind, outcome: OperationStatus = OperationStatus.OK, **rest: Any
    ) -> None:
        self._history_writer.note(
            ClientOperation(
                kind=kind, outcome=outcome, group=self._plan.group, member=self._plan.member, **rest
            )
        )


def _config(plan: Consuming, connection: Mapping[str, Any]) -> dict[str, Any]:
    connecting = {
        RENAMED.get(name, name.replace(".", "_")): value for name, value in connection.items()
    }
    own = {"group_id": plan.group or None, "enable_auto_commit": plan.commit is CommitMode.AUTO}
    config = {**DEFAULTS, **own, **plan.config, **connecting, "client_id": plan.member}
    if (assignor := config.get("partition_assignment_strategy")) is not None:
        config["partition_assignment_strategy"] = [ASSIGNORS[assignor]]
    return {
        name: value for name, value in config.items() if value is not None or name == "group_id"
    }
