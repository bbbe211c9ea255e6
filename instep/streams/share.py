"""What a resident task does for a stream without a transformation: copy records to its topic.

The thread of the share reads and adds records; `partition_publishers.py` commits them in others.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from typing import cast

import msgspec

from instep import settings
from instep.document.decoding import Record
from instep.kafka.connection import Cluster
from instep.pipeline.resident.assignments import FlowKey
from instep.pipeline.resident.share import Send, Share, ShareSource
from instep.streams import output
from instep.streams.partition_publishers import PartitionPublishers
from instep.streams.plan import StreamPlan, cluster_of
from instep.streams.publisher import SourceRecords

LINGER_S = 0.02
READ_RECORDS_MAX = 40_000  # so that a commit and the next read overlap


class StreamShares(msgspec.Struct, frozen=True):
    """Opens the shares of a run's streams in a task."""

    kafka: settings.Kafka
    bootstrap: str

    def __call__(self, key: FlowKey, plan: bytes, send: Send) -> StreamShare:
        """Return the share of a stream."""
        # Only the driver, which has the job's key, can have sent it.
        decoded = cast("StreamPlan", pickle.loads(plan))  # noqa: S301
        return StreamShare(key, decoded, cluster_of(self.kafka, self.bootstrap), send)


class StreamShare(Share):
    """Publishes the records of a stream in transactions of one source partition each."""

    def __init__(self, key: FlowKey, plan: StreamPlan, cluster: Cluster, send: Send) -> None:
        source = ShareSource(
            plan.stream.source,
            headers=True,
            linger_s=LINGER_S,
            records_max=min(READ_RECORDS_MAX, plan.stream.batch_rows_max),
        )
        super().__init__(key, source, send)
        self._clients = cluster
        self._publishers = PartitionPublishers(plan, cluster, self._stopped.is_set)

    def _cluster(self) -> Cluster:
        return self._clients

    # --- partitions -------------------------------------------------------------------------------

    def _starts(self, partitions: Collection[int]) -> dict[int, int]:
        return self._publishers.open(partitions)

    def _give_up(self, partitions: Collection[int]) -> None:
        self._publishers.give_up(partitions)

    def _close(self) -> None:
        self._stopped.set()  # ends the attempts of commits
        self._publishers.close()

    # --- records ----------------------------------------------------------------------------------

    def _apply(self, read: Mapping[int, list[Record]]) -> None:
        """Add the records to a transaction of each partition, and let them be committed."""
        # Requested after all these records were read, so one answer serves them all.
        same_source = self._publishers.same_source()
        added = []
        for partition, records in read.items():
            self._settle([partition])
            source = SourceRecords.of(records)
            self._publishers.add(partition, output.copies(records), source)
            self._read_to[partition] = source.last + 1
            added.append((partition, source))
        self._publishers.commit(added, same_source)

    def _settle(self, partitions: Collection[int]) -> None:
        """Wait for the commits of these partitions."""
        for partition, next_offset, outcome in self._publishers.settle(partitions):
            self._note_applied(partition, next_offset, outcome)

    def _collect(self) -> None:
        """Note the commits that are complete, or raise why one failed."""
        self._settle(self._publishers.complete_partitions)

    def _has_open(self, partition: int) -> bool:
        return self._publishers.is_open(partition)


def encode_plan(plan: StreamPlan) -> bytes:
    """Return the plan as the tasks get it."""
    return pickle.dumps(plan)
