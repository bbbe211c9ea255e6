"""What a resident task does for an archive: collect the records of its partitions, and commit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from instep import settings
from instep.archive import table
from instep.archive.files import Location
from instep.archive.writer import ArchiveWriter
from instep.document.guard import Verdict
from instep.document.records import Record
from instep.kafka.connection import Cluster
from instep.kafka.partition_reader import PartitionReader
from instep.pipeline.applier import task_cluster
from instep.pipeline.apply.batch import BatchOutcome
from instep.pipeline.resident.assignments import FlowKey
from instep.pipeline.resident.share import Send, Share, ShareSource

READ_RECORDS_MAX = 50_000
# In memory per task and archive, until the next commit. Under a backlog it decides when that is.
COLLECTED_BYTES_MAX = 64 * 1024 * 1024


class ArchivePlan(msgspec.Struct, frozen=True):
    """What a task needs to write one archive."""

    topic: str
    location: Location
    commit_every_s: float


class ArchiveShares(msgspec.Struct, frozen=True):
    """Opens the shares of a run's archives in a task. Locations contain credentials."""

    kafka: settings.Kafka
    bootstrap: str
    plans: dict[str, ArchivePlan]

    def __call__(self, key: FlowKey, _plan: bytes, send: Send) -> ArchiveShare:
        """Return the share of an archive."""
        cluster = task_cluster(self.kafka, self.bootstrap)
        return ArchiveShare(key, self.plans[key[0]], cluster, send)


class ArchiveShare(Share):
    """Writes the records of an archive's partitions to its table."""

    def __init__(self, key: FlowKey, plan: ArchivePlan, cluster: Cluster, send: Send) -> None:
        source = ShareSource(plan.topic, headers=True, linger_s=0.0, records_max=READ_RECORDS_MAX)
        super().__init__(key, source, send)
        self._plan, self._clients = plan, cluster
        self._writer: ArchiveWriter | None = None
        self._counts: Counter[int] = Counter()  # of records that are not committed yet
        self._collecting_since = 0.0

    def _cluster(self) -> Cluster:
        return self._clients

    def _opened(self) -> ArchiveWriter:
        if self._writer is None:
            name, epoch = self._key
            self._writer = ArchiveWriter(table.require(name, self._plan.location), epoch)
        return self._writer

    def _starts(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the positions of the table; the driver has added all partitions to it."""
        starts = self._opened().positions(partitions)
        self._opened().take(starts)
        return starts

    def _give_up(self, partitions: Collection[int]) -> None:
        self._opened().release(partitions)

    def _settle(self, partitions: Collection[int]) -> None:
        if any(self._counts[partition] for partition in partitions):
            self._commit()

    def _apply(self, read: Mapping[int, list[Record]]) -> None:
        writer = self._opened()
        if not writer.records:
            self._collecting_since = time.monotonic()
        for partition, records in read.items():
            writer.add(partition, records)
            self._counts[partition] += len(records)

    def _cycle(self, reader: PartitionReader) -> None:
        super()._cycle(reader)
        writer = self._opened()
        waited_s = time.monotonic() - self._collecting_since
        if writer.size >= COLLECTED_BYTES_MAX or (
            writer.records and waited_s >= self._plan.commit_every_s
        ):
            self._commit()

    def _commit(self) -> None:
        for partition, position in self._opened().commit().items():
            self._note_applied(partition, position, _outcome(partition, self._counts[partition]))
        self._counts.clear()


def _outcome(partition: int, records: int) -> BatchOutcome:
    verdicts = dict.fromkeys(Verdict, 0) | {Verdict.APPLIED: records}
    return BatchOutcome(partition, records, verdicts, 0, [])
