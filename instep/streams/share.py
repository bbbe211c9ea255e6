"""What a resident task does for a stream without a transformation: copy records to its topic.

The thread of the share reads and adds records to transactions. A few threads commit them, because
a commit waits for the brokers: meanwhile the share reads on, and each partition has at most one
commit under way.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import msgspec

from instep import errors, settings
from instep.document.decoding import Record
from instep.kafka import position_topic
from instep.kafka.connection import Cluster
from instep.kafka.topic_identity import SameTopic, TopicIdentity
from instep.pipeline import continuity
from instep.pipeline.apply.batch import BatchOutcome
from instep.pipeline.resident.assignments import FlowKey
from instep.pipeline.resident.share import Send, Share, ShareSource
from instep.streams import output
from instep.streams.plan import StreamPlan, cluster_of, reader_of
from instep.streams.publisher import PartitionPublisher, SameTarget

LINGER_S = 0.02
READ_RECORDS_MAX = 40_000  # so that a commit and the next read overlap
COMMITS_MAX = 16  # at the same time


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
        self._plan, self._clients = plan, cluster
        self._publishers: dict[int, PartitionPublisher] = {}
        self._commits: dict[int, Future[BatchOutcome]] = {}
        self._pool = ThreadPoolExecutor(COMMITS_MAX, f"{key[0]} commit")
        self._target = SameTarget(plan, cluster)
        self._identity = TopicIdentity(
            cluster.kafka, cluster.bootstrap, plan.stream.source, plan.source_id
        )

    def _cluster(self) -> Cluster:
        return self._clients

    # --- partitions -------------------------------------------------------------------------------

    def _starts(self, partitions: Collection[int]) -> dict[int, int]:
        """Fence other publishers of these partitions, then read and claim the positions."""
        opened = {
            partition: PartitionPublisher(
                self._plan, partition, self._clients, self._stopped.is_set
            )
            for partition in partitions
        }
        self._publishers |= opened
        self._in_parallel([one.fence for one in opened.values()])
        topic = position_topic.of_stream(self._plan.name, 0).topic
        found = position_topic.read_all(self._clients, topic, list(opened))
        self._in_parallel(
            [functools.partial(one.claim, found.get(part)) for part, one in opened.items()]
        )
        return {partition: one.next_offset for partition, one in opened.items()}

    def _in_parallel(self, calls: Sequence[Callable[[], None]]) -> None:
        for done in [self._pool.submit(call) for call in calls]:
            done.result()

    def _give_up(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            if publisher := self._publishers.pop(partition, None):
                publisher.close()

    def _close(self) -> None:
        self._stopped.set()  # ends the attempts of commits
        self._pool.shutdown()
        for publisher in self._publishers.values():
            publisher.close()
        self._identity.close()
        self._target.close()

    # --- records ----------------------------------------------------------------------------------

    def _apply(self, read: Mapping[int, list[Record]]) -> None:
        """Add the records to a transaction of each partition, and let them be committed."""
        # Requested after all these records were read, so one answer serves them all.
        same_source = self._same_source()
        for partition, records in read.items():
            self._settle([partition])
            self._publishers[partition].add(
                output.copies(records), records[0].offset, records[-1].offset
            )
            self._read_to[partition] = records[-1].offset + 1
        self._target.ask()
        same_source()
        self._confirm_target()
        for partition, records in read.items():
            commit = functools.partial(self._publishers[partition].commit, records)
            self._commits[partition] = self._pool.submit(commit)

    def _settle(self, partitions: Collection[int]) -> None:
        """Wait for the commits of these partitions."""
        for partition in partitions:
            if commit := self._commits.pop(partition, None):
                outcome = commit.result()
                self._note_applied(partition, self._publishers[partition].next_offset, outcome)

    def _collect(self) -> None:
        """Note the commits that are complete, or raise why one failed."""
        self._settle([partition for partition, one in self._commits.items() if one.done()])

    def _has_open(self, partition: int) -> bool:
        return partition in self._commits

    def _same_source(self) -> SameTopic:
        reader, topic = reader_of(self._plan.name), self._plan.stream.source
        return SameTopic(
            self._identity,
            lambda: self._clients,
            replaced=functools.partial(continuity.replaced, reader, topic),
            gone=functools.partial(continuity.gone, reader, topic, ()),
        )

    def _confirm_target(self) -> None:
        try:
            self._target.confirm()
        except errors.TopicMissing as error:
            raise errors.StartAgain(error.what) from error  # the start says that it is gone


def encode_plan(plan: StreamPlan) -> bytes:
    """Return the plan as the tasks get it."""
    return pickle.dumps(plan)
