"""The state of a stream, from its positions and the log. It starts nothing and changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from instep import errors, settings
from instep.kafka import backlog
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster
from instep.streams import starts
from instep.streams.position import StreamPosition

NO_BROKER = "the local Kafka is not running, so nothing is known\nstart it: instep up"


class StreamPartitionStatus(msgspec.Struct, frozen=True):
    """One partition of the topic that a stream reads. None means unknown, not 0."""

    partition: int
    next_offset: int | None
    end_offset: int
    lag_records: int | None
    lag_seconds: float | None
    committed_at: datetime | None
    held_back: int


class StreamStatus(msgspec.Struct, frozen=True):
    """The state of one stream, or the error that keeps it from running or from being read."""

    stream: str
    source: str
    target: str
    guarantee: str
    lag_records: int | None = None
    lag_seconds: float | None = None
    held_back: int | None = None
    published: int | None = None
    dead_letters: int | None = None
    committed_at: datetime | None = None
    epoch: int | None = None
    partitions: list[StreamPartitionStatus] = []
    notes: list[str] = []
    error: str | None = None


def read(cluster: Cluster | None, name: str, stream: settings.Stream) -> StreamStatus:
    """Return the stream's status. An error is part of it, so that it does not hide the others."""
    status = StreamStatus(name, stream.source, stream.target, stream.guarantee)
    if cluster is None:
        return msgspec.structs.replace(status, error=NO_BROKER)
    try:
        return _read(cluster, status, stream)
    except errors.InstepError as error:
        return msgspec.structs.replace(status, error=str(error))


def _read(cluster: Cluster, status: StreamStatus, stream: settings.Stream) -> StreamStatus:
    start = starts.inspect(cluster, status.stream, stream)
    backlogs = backlog.read(cluster, stream.source, start.next_offsets)
    now = datetime.now(UTC)
    partitions = [
        _partition(one, start.positions.get(part), now) for part, one in sorted(backlogs.items())
    ]
    held_back = {part.partition: part.held_back for part in partitions if part.held_back}
    transactions = backlog.open_transactions(cluster, stream.source, held_back)
    seconds = [part.lag_seconds for part in partitions if part.lag_seconds is not None]
    commits = [part.committed_at for part in partitions if part.committed_at is not None]
    known = start.positions.values()
    return msgspec.structs.replace(
        status,
        lag_records=sum(one.records for one in backlogs.values()),
        lag_seconds=max(seconds) if len(seconds) == len(partitions) else None,
        held_back=sum(held_back.values()),
        published=sum(one.published for one in known),
        dead_letters=sum(one.dead for one in known),
        committed_at=max(commits, default=None),
        epoch=max((one.epoch for one in known), default=None),
        partitions=partitions,
        notes=backlog.describe_held_back(held_back, transactions),
    )


def _partition(
    unread: PartitionBacklog, known: StreamPosition | None, now: datetime
) -> StreamPartitionStatus:
    return StreamPartitionStatus(
        partition=unread.partition,
        next_offset=known.next_offset if known else None,
        end_offset=unread.end,
        lag_records=unread.records,
        lag_seconds=unread.age_s(now),
        committed_at=datetime.fromtimestamp(known.at_ms / 1000, UTC) if known else None,
        held_back=unread.held_back,
    )
