"""What the tasks of a stream get, and how a stream is named in errors."""

from __future__ import annotations

import functools

import msgspec

from instep import errors, settings
from instep.kafka import output_topic
from instep.kafka.connection import Cluster
from instep.kafka.output_topic import KnownTopic, TimestampBounds
from instep.kafka.topics import Topic
from instep.pipeline.continuity import LogReader
from instep.streams.position import StreamPosition

BROKER_PATIENCE_S = 5.0


class StreamPlan(msgspec.Struct, frozen=True):
    """Everything that a task needs besides its records.

    `begins` has the partitions that have no position yet, and where they begin.
    """

    name: str
    stream: settings.Stream
    cluster_id: str
    source_id: str
    target_id: str
    target_partitions: int
    epoch: int
    run: str
    begins: dict[int, int]
    record_bytes_max: int
    dead_bytes_max: int
    timestamps: TimestampBounds | None  # of the output topic; None: the time of publication

    @property
    def writer(self) -> tuple[int, str]:
        """Return who writes, as the positions say it."""
        return self.epoch, self.run

    @property
    def target(self) -> KnownTopic:
        """Return the output topic as it was when the flow started."""
        return KnownTopic(self.cluster_id, self.target_id, self.target_partitions)

    def first_position(self, next_offset: int) -> StreamPosition:
        """Return the position of a partition that was never read."""
        return StreamPosition(
            source=self.stream.source,
            cluster_id=self.cluster_id,
            topic_id=self.source_id,
            next_offset=next_offset,
            target=self.stream.target,
            target_id=self.target_id,
            target_partitions=self.target_partitions,
            epoch=self.epoch,
            run=self.run,
        )

    def refuse_changed_target(self, now: Topic) -> None:
        """Raise if the output topic is no longer what it was when the flow started."""
        refuse_changed_target(self.name, self.target, now)


def refuse_changed_target(name: str, known: KnownTopic, now: Topic) -> None:
    """Raise if the output topic was replaced, or has another number of partitions."""
    remedy = (
        f"accept the topic as it is now: instep stream reset {name} --to current; then: instep run"
    )
    output_topic.refuse_changed(f"stream {name!r}", known, now, remedy)


def reader_of(name: str) -> LogReader:
    """Return a stream as the reader of its topic."""
    return LogReader(
        f"stream {name!r}", "the stream", "published", f"instep stream reset {name}", ""
    )


def target_gone(name: str, target: str) -> errors.OutputTopicChanged:
    """Return the error for an output topic that was deleted."""
    return errors.OutputTopicChanged(
        f"topic {target!r}, to which stream {name!r} publishes, no longer exists",
        "create it again, decide where to continue (instep stream reset"
        f" {name} --to PLACE), then: instep run",
    )


@functools.cache
def cluster_of(kafka: settings.Kafka, bootstrap: str) -> Cluster:
    """Return the clients of this process; a worker process keeps them for its next tasks."""
    return Cluster(kafka, bootstrap, BROKER_PATIENCE_S)
