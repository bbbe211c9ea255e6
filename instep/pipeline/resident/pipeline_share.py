"""What a resident task does for a pipeline: apply the records of its partitions to the table."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from typing import cast

import msgspec

from instep import settings
from instep.document.decoding import Record
from instep.kafka import offsets
from instep.kafka.connection import Cluster
from instep.pipeline.applier import BATCH_RECORDS_MAX, Applier, TaskPlan, cluster_of
from instep.pipeline.apply.batch import BatchOutcome, ProbeEvent, Writer, find_probe
from instep.pipeline.resident.assignments import FlowKey
from instep.pipeline.resident.share import Send, Share, ShareSource
from instep.sinks.ledger import fenced
from instep.sinks.target import Target

# Of all partitions together. In a large batch, several events of a document become one write.
READ_RECORDS_MAX = 160_000
# Up to this number, the records of several partitions are applied in one transaction. With more,
# the rows cost more than the transactions.
TOGETHER_RECORDS_MAX = 1_000


class PipelineShares(msgspec.Struct, frozen=True):
    """Opens the shares of a run's pipelines in a task."""

    kafka: settings.Kafka
    bootstrap: str
    pipelines: dict[str, settings.Pipeline]
    urls: dict[str, str]  # of the targets, secrets included

    def __call__(self, key: FlowKey, plan: bytes, send: Send) -> PipelineShare:
        """Return the share of a pipeline."""
        target, writer = decode_plan(plan, self.urls[key[0]])
        task_plan = TaskPlan(target, self.pipelines[key[0]], writer, self.kafka, self.bootstrap)
        return PipelineShare(task_plan, send)


def encode_plan(target: Target, writer: Writer) -> bytes:
    """Return what a task needs to apply records, without the password in the target's URL."""
    # Pickled, because a value that clears a column may be of any type of the database.
    return pickle.dumps((msgspec.structs.replace(target, url=""), writer))


def decode_plan(plan: bytes, url: str) -> tuple[Target, Writer]:
    """Return the plan with its URL. Only the driver, which has the job's key, can have sent it."""
    target, writer = cast("tuple[Target, Writer]", pickle.loads(plan))  # noqa: S301 - authenticated
    return msgspec.structs.replace(target, url=url), writer


class PipelineShare(Share):
    """Applies the records of a pipeline in transactions of its target database."""

    def __init__(self, plan: TaskPlan, send: Send) -> None:
        source = ShareSource(
            plan.target.topic,
            plan.target.mapping.reads_headers,
            plan.pipeline.linger_ms / 1000,
            min(READ_RECORDS_MAX, plan.pipeline.batch_rows_max),
        )
        super().__init__((plan.target.pipeline, plan.writer.epoch), source, send)
        self._plan = plan
        self._applier = Applier(plan, self._stopped)
        self._probe = find_probe()

    def _cluster(self) -> Cluster:
        return cluster_of(self._plan)

    def _close(self) -> None:
        self._applier.close()

    def _starts(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the ledger's offsets; a partition that is not in it yet begins at its first."""
        ledger = self._applier.positions()
        epoch = self._plan.writer.epoch
        newest = max((position.epoch for position in ledger.values()), default=0)
        if newest > epoch:
            raise fenced(self._plan.target.pipeline, newest, epoch)
        new = [partition for partition in partitions if partition not in ledger]
        firsts: Mapping[int, int] = {}
        if new:
            firsts = offsets.earliest(self._cluster(), self._plan.target.topic, new)
        return {
            partition: ledger[partition].next_offset if partition in ledger else firsts[partition]
            for partition in partitions
        }

    def _apply(self, read: Mapping[int, list[Record]]) -> None:
        """Apply what was read: a few records in one transaction, more in one per partition."""
        self._probe(ProbeEvent(self._plan.target.pipeline, 0))
        # Requested after all these records were read, so one answer serves them all.
        same_topic = self._applier.same_topic()
        few = len(read) > 1 and sum(map(len, read.values())) <= TOGETHER_RECORDS_MAX
        if few and (
            outcomes := self._applier.apply_together(
                read, same_topic=same_topic, log_holds=self._log_holds
            )
        ):
            for partition, outcome in outcomes.items():
                self._applied(partition, read[partition], outcome)
            return
        for partition, records in read.items():
            for start in range(0, len(records), BATCH_RECORDS_MAX):
                batch = records[start : start + BATCH_RECORDS_MAX]
                outcome = self._applier.apply(
                    partition, batch, same_topic=same_topic, log_holds=self._log_holds
                )
                self._applied(partition, batch, outcome)

    def _applied(self, partition: int, records: Sequence[Record], outcome: BatchOutcome) -> None:
        self._read_to[partition] = records[-1].offset + 1
        self._note_applied(partition, records[-1].offset + 1, outcome)

    def _log_holds(self, partition: int, start: int, end: int) -> bool:
        """Return whether the log may have a committed record between two offsets.

        What was read here from the ledger's offset on is known: offsets without a record are
        markers, aborted, or compacted. Only a ledger that was moved back leaves a doubt.
        """
        return start < self._read_to.get(partition, end)
