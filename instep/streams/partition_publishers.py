"""Publish what comes from the partitions of a stream that one process has taken over.

The caller's thread adds records to transactions. A few threads commit them, because a commit waits
for the brokers: meanwhile the caller goes on, and each partition has at most one commit under way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from instep import errors
from instep.kafka import position_topic
from instep.kafka.connection import Cluster
from instep.kafka.topic_identity import SameTopic, TopicIdentity
from instep.pipeline import continuity
from instep.pipeline.apply.batch import BatchOutcome
from instep.streams.output import OutputRecord
from instep.streams.plan import StreamPlan, reader_of
from instep.streams.publisher import PartitionPublisher, SameTarget, SourceRecords

COMMITS_MAX = 16  # at the same time

Answer = TypeVar("Answer")
Committed = tuple[int, int, BatchOutcome]  # partition, next offset, outcome


class PartitionPublishers:
    """A publisher for each partition, and the commits that are under way."""

    def __init__(self, plan: StreamPlan, cluster: Cluster, is_stopped: Callable[[], bool]) -> None:
        self._plan, self._cluster, self._is_stopped = plan, cluster, is_stopped
        self._publishers: dict[int, PartitionPublisher] = {}
        self._commits: dict[int, Future[BatchOutcome]] = {}
        self._pool = ThreadPoolExecutor(COMMITS_MAX, f"{plan.name} commit")
        self._target = SameTarget(plan, cluster)
        self._source = TopicIdentity(
            cluster.kafka, cluster.bootstrap, plan.stream.source, plan.source_id
        )

    def open(self, partitions: Collection[int]) -> dict[int, int]:
        """Take over partitions; return where they continue.

        Fence other publishers of these partitions, then read and claim the positions.
        """
        opened = {
            partition: PartitionPublisher(self._plan, partition, self._cluster, self._is_stopped)
            for partition in partitions
        }
        self._publishers |= opened
        marks = self._in_parallel([one.fence for one in opened.values()])
        topic = position_topic.of_stream(self._plan.name, 0).topic
        found = position_topic.read_all(
            self._cluster, topic, list(opened), dict(zip(opened, marks, strict=True))
        )
        self._in_parallel(
            [functools.partial(one.claim, found.get(part)) for part, one in opened.items()]
        )
        return {partition: one.next_offset for partition, one in opened.items()}

    def same_source(self) -> SameTopic:
        """Ask whether records that were read by now are of the topic that the plan names."""
        reader, topic = reader_of(self._plan.name), self._plan.stream.source
        return SameTopic(
            self._source,
            lambda: self._cluster,
            replaced=functools.partial(continuity.replaced, reader, topic),
            gone=functools.partial(continuity.gone, reader, topic, ()),
        )

    def add(self, partition: int, outputs: Iterable[OutputRecord], source: SourceRecords) -> None:
        """Begin a transaction of a partition whose last one is settled, and add records to it."""
        self._publishers[partition].add(outputs, source.first, source.last)

    def commit(self, added: Sequence[tuple[int, SourceRecords]], same_source: SameTopic) -> None:
        """Check both topics, then let the open transactions be committed."""
        self._target.ask()
        same_source()
        try:
            self._target.confirm()
        except errors.TopicMissing as error:
            raise errors.StartAgain(error.what) from error  # the start says that it is gone
        for partition, source in added:
            commit = functools.partial(self._publishers[partition].commit, source)
            self._commits[partition] = self._pool.submit(commit)

    def settle(self, partitions: Collection[int]) -> Iterator[Committed]:
        """Wait for the commits of these partitions; yield what they were, or raise why one failed.

        The caller must take all of them.
        """
        for partition in partitions:
            if commit := self._commits.pop(partition, None):
                outcome = commit.result()
                yield partition, self._publishers[partition].next_offset, outcome

    def is_open(self, partition: int) -> bool:
        """Return whether a commit of this partition is under way."""
        return partition in self._commits

    @property
    def open_partitions(self) -> list[int]:
        """Return the partitions with a commit under way."""
        return list(self._commits)

    @property
    def complete_partitions(self) -> list[int]:
        """Return the partitions whose commit is complete, or failed, and not settled."""
        return [partition for partition, one in self._commits.items() if one.done()]

    def give_up(self, partitions: Collection[int]) -> None:
        """Let go of these partitions: another process may take them over."""
        for partition in partitions:
            if publisher := self._publishers.pop(partition, None):
                publisher.close()

    def close(self) -> None:
        """Give up everything. `is_stopped` must be true by now: it ends attempts of commits."""
        self._pool.shutdown()
        self.give_up(list(self._publishers))
        self._source.close()
        self._target.close()

    def _in_parallel(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        return [done.result() for done in [self._pool.submit(call) for call in calls]]
