"""The position of a stream in one partition: how far it was published, kept in Kafka."""

from __future__ import annotations

import msgspec

from instep import errors

RESET = "reset"  # stands in positions instead of the id of a run


class StreamPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Written in the same transaction as the records that it describes.

    `cluster_id` and `topic_id` are those of the topic that the stream reads. `run` and `epoch`
    say which run wrote it; a later run has a higher epoch.
    """

    source: str
    cluster_id: str
    topic_id: str
    next_offset: int
    last_digest: str | None = None
    target: str
    target_id: str
    target_partitions: int
    epoch: int
    run: str
    records: int = 0  # that were read so far
    published: int = 0
    dead: int = 0
    at_ms: int = 0  # when it was written

    @property
    def writer(self) -> tuple[int, str]:
        """Return who wrote it. Of two writers, the greater one goes on."""
        return self.epoch, self.run


def encode(position: StreamPosition) -> bytes:
    """Return a position as the value of a record."""
    return msgspec.json.encode(position)


def decode(value: bytes, stream: str, partition: int) -> StreamPosition:
    """Return the position of a record's value."""
    try:
        return msgspec.json.decode(value, type=StreamPosition)
    except msgspec.MsgspecError as failure:
        raise missing(stream, [partition], f"its position cannot be read: {failure}") from failure


def missing(stream: str, partitions: list[int], why: str) -> errors.PositionMissing:
    """Return the error for partitions whose position was lost."""
    places = ", ".join(map(str, partitions))
    return errors.PositionMissing(
        f"stream {stream!r} has published records of partition {places} before, but {why}",
        f"decide where to continue: instep stream reset {stream} --to PLACE; then: instep run",
    )


def doubtful(stream: str, partitions: list[int], why: str) -> errors.PositionMissing:
    """Return the error for partitions that may have had a position."""
    places = ", ".join(map(str, partitions))
    return errors.PositionMissing(
        f"stream {stream!r} has no position of partition {places}, and may have published records"
        f" of it before: {why}",
        f"if it is new: instep stream reset {stream} --to start --execute; then: instep run\n"
        f"otherwise decide where to continue: instep stream reset {stream} --to PLACE",
    )


def fenced(stream: str, position: StreamPosition, epoch: int) -> errors.Fenced:
    """Return the error for a run that a newer one has taken over from."""
    return errors.Fenced(
        f"a newer run of stream {stream!r} has taken over (epoch {position.epoch}, this run has"
        f" {epoch})"
    )
