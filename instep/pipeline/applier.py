"""Apply batches of records to a target, with retries: what a task of either engine does."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping, Sequence, Sized

import msgspec

from instep import errors, settings, sinks
from instep.document.decoding import Decoder, Record
from instep.kafka import offsets
from instep.kafka.connection import Cluster
from instep.kafka.topic_identity import SameTopic, TopicIdentity
from instep.pipeline import continuity
from instep.pipeline.apply import together, transaction
from instep.pipeline.apply.batch import BatchOutcome, Writer, find_probe
from instep.sinks import inspection
from instep.sinks.sink import Sink
from instep.sinks.target import Position, Target

BATCH_BYTES_MAX = 32 * 1024 * 1024
BATCH_RECORDS_MAX = 100_000
TRANSIENT_TRIES_MAX = 8
RECONNECT_PATIENCE_S = 2.0
BROKER_PATIENCE_S = 5.0  # short, because a transaction is open meanwhile


class TaskPlan(msgspec.Struct, frozen=True):
    """Everything that a task needs besides its records."""

    target: Target
    pipeline: settings.Pipeline
    writer: Writer
    kafka: settings.Kafka
    bootstrap: str


class Applier:
    """Applies the batches of one pipeline. It has its own connection to the target."""

    def __init__(self, plan: TaskPlan, stopped: threading.Event | None = None) -> None:
        """Take the plan, and an event that ends waits between two attempts."""
        self.plan = plan
        self._stopped = stopped or threading.Event()
        self._probe = find_probe()
        self._opened: tuple[Sink, Decoder] | None = None
        self._identity: tuple[Writer, TopicIdentity] | None = None

    def same_topic(self) -> SameTopic:
        """Return the check that records which were read by now are of the ledger's topic."""
        plan = self.plan
        if self._identity is None or self._identity[0] != plan.writer:
            self._close_identity()
            self._identity = (
                plan.writer,
                TopicIdentity(plan.kafka, plan.bootstrap, plan.target.topic, plan.writer.topic_id),
            )
        reader, topic = continuity.pipeline(plan.target.pipeline), plan.target.topic
        return SameTopic(
            self._identity[1],
            functools.partial(cluster_of, plan),
            replaced=functools.partial(continuity.replaced, reader, topic),
            gone=functools.partial(continuity.gone, reader, topic, ()),
        )

    def apply(
        self,
        partition: int,
        records: Sequence[Record],
        *,
        same_topic: transaction.Check | None = None,
        log_holds: transaction.LogHolds | None = None,
    ) -> BatchOutcome:
        """Run the transaction; retry it if the type of the error allows that.

        A reader that knows more about the log than one batch shows passes its own checks.
        """
        work = self._batch(partition, records, same_topic or self.same_topic(), log_holds)
        tries, give_up_at, wait_s = 0, time.monotonic() + RECONNECT_PATIENCE_S, 0.05
        while True:
            try:
                return work.apply(*self._sink_and_decoder())
            except errors.Transient:
                tries += 1
                if tries >= TRANSIENT_TRIES_MAX or self._stopped.is_set():
                    raise
            except errors.Unreachable:
                self.close()
                if time.monotonic() >= give_up_at or self._stopped.is_set():
                    raise
            except BaseException:
                self.close()
                raise
            self._stopped.wait(wait_s)
            wait_s = min(wait_s * 2, 1.0)

    def apply_together(
        self,
        read: Mapping[int, Sequence[Record]],
        *,
        same_topic: transaction.Check,
        log_holds: transaction.LogHolds,
    ) -> dict[int, BatchOutcome] | None:
        """Run one transaction for the records of several partitions.

        Return None, with nothing applied, if each partition has to be applied alone.
        """
        batches = [
            self._batch(partition, records, same_topic, log_holds)
            for partition, records in sorted(read.items())
        ]
        try:
            outcomes = together.apply(batches, *self._sink_and_decoder())
        except errors.InstepError:  # the connection cannot be opened
            return None
        if outcomes is None:
            return None
        return {one.partition: outcome for one, outcome in zip(batches, outcomes, strict=True)}

    def _batch(
        self,
        partition: int,
        records: Sequence[Record],
        same_topic: transaction.Check,
        log_holds: transaction.LogHolds | None,
    ) -> transaction.BatchTransaction:
        plan = self.plan
        return transaction.BatchTransaction(
            plan.writer,
            partition,
            records,
            log_holds or functools.partial(log_has_records, plan),
            self._probe,
            same_topic=same_topic,
            same_table=functools.partial(_refuse_changed, plan),
            slots=plan.target.slots,
        )

    def positions(self) -> dict[int, Position]:
        """Return the ledger."""
        sink, _ = self._sink_and_decoder()
        with sink.translated():
            return sink.ledger.positions()

    def close(self) -> None:
        """Close the connections. The next batch opens others."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()
        self._close_identity()

    def _close_identity(self) -> None:
        identity, self._identity = self._identity, None
        if identity is not None:
            identity[1].close()

    def _sink_and_decoder(self) -> tuple[Sink, Decoder]:
        if self._opened is None:
            sink = sinks.open_sink(self.plan.target)
            self._opened = sink, Decoder(self.plan.target.mapping, sink.record_bytes_max)
        return self._opened


def is_full(records: Sized, size: int) -> bool:
    """Return whether these records, of `size` bytes, must be applied before more are read."""
    return size > BATCH_BYTES_MAX or len(records) >= BATCH_RECORDS_MAX


@functools.cache
def task_cluster(kafka: settings.Kafka, bootstrap: str) -> Cluster:
    """Return the clients of this process; a worker process keeps them for its next tasks.

    One reader is kept too: a new one costs more than reading a small batch.
    """
    return Cluster(kafka, bootstrap, BROKER_PATIENCE_S, idle_max=1)


def cluster_of(plan: TaskPlan) -> Cluster:
    """Return the clients that a task of this plan uses."""
    return task_cluster(plan.kafka, plan.bootstrap)


def log_has_records(plan: TaskPlan, partition: int, start: int, end: int) -> bool:
    """Return whether the log holds, or may have lost, a committed record between two offsets.

    This is called only if offsets are missing between two records.
    """
    cluster, topic = cluster_of(plan), plan.target.topic
    if offsets.earliest(cluster, topic, [partition])[partition] > start:
        return True
    record = offsets.first_records(cluster, topic, {partition: start})[partition]
    return record is not None and record.offset < end


def _refuse_changed(plan: TaskPlan) -> None:
    """Raise a named stop if the table was altered: its refusals must not park documents."""
    inspection.refuse_constrained(plan.target, plan.pipeline)
