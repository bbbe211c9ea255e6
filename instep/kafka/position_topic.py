"""The positions of relays and streams: compacted topics, written by their transactions.

The last record of a partition is the position. It is read after `init_transactions`, which fences
every older process and ends its open transaction. So whatever is read then is the truth, and stays
true until the reader itself commits.

A broker that was the leader, was frozen and wakes up reports an old end of the log until it learns
that another one leads. So a writer first commits a mark, for which the leader needs the other
brokers, and reads until it meets the mark.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from instep import errors
from instep.kafka import configs, connection, offsets, reading, topics

KEY = b"position"
MARK = b"mark"  # the key of the marks
LOOK_BACK = 1_000  # offsets at the end of a partition that are read first
MARK_PAUSE_S, MARK_PAUSE_MAX_S = 0.005, 0.1  # before the end of the log is read again
MARK_WAIT_MAX_S = 30.0
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "16777216",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": "4194304",
}


class PositionPlace(msgspec.Struct, frozen=True):
    """Where a position is kept, and the transactional ids of its writers.

    The partition has no other writer: its open transaction would hold up whoever reads this
    position. The ids are in the order in which they are used.
    """

    topic: str
    partition: int
    transactional_ids: tuple[str, str]
    created_by: str = ""  # the command that creates the topic


class Found(msgspec.Struct, frozen=True):
    """The last position and the last mark of each partition that has one."""

    positions: dict[int, bytes]
    marks: dict[int, bytes]


def of_relay(relay: str) -> PositionPlace:
    """Return the place of a relay's position."""
    # Not a suffix: the name of another relay could end in it.
    ids = f"instep-relay.{relay}", f"instep-relay-2.{relay}"
    return PositionPlace(f"instep-relay.{relay}", 0, ids, f"instep relay init {relay}")


def of_stream(stream: str, partition: int) -> PositionPlace:
    """Return the place of a stream's position in one partition of the topic that it reads."""
    # No name of a stream contains a slash.
    ids = f"instep-stream.{stream}/{partition}", f"instep-stream-2.{stream}/{partition}"
    return PositionPlace(f"instep-stream.{stream}", partition, ids)


def of_archive(archive: str) -> PositionPlace:
    """Return the place where an archive notes its table. It is written without transactions."""
    return PositionPlace(f"instep-archive.{archive}", 0, ("", ""))


def create(cluster: connection.Cluster, topic: str, partitions: int = 1) -> bool:
    """Create a position topic, or add what partitions it lacks; return False if it has them.

    Raise SettingsError if it exists, and Kafka deletes old records there: also the only position.
    """
    try:
        known = topics.describe(cluster, topic)
    except errors.TopicMissing:
        topics.create(cluster, topic, partitions, config=CONFIG)
        return True
    _refuse_deleting(cluster, topic)
    if len(known.partitions) >= partitions:
        return False
    topics.grow(cluster, topic, partitions)
    return True


def read(
    cluster: connection.Cluster, place: PositionPlace, mark: Callable[[], bytes] | None = None
) -> bytes | None:
    """Return the last committed position; None if there is none.

    With `mark` of a writer that has started, it is certain that no later one exists.
    """
    try:  # before the mark: whoever writes to a missing topic would create it
        topics.describe(cluster, place.topic)
    except errors.TopicMissing as failure:
        if not place.created_by:
            raise
        raise errors.TopicMissing(
            f"topic {place.topic!r}, which keeps a position, does not exist",
            f"create it with its settings: {place.created_by}",
        ) from failure
    marks = {} if mark is None else {place.partition: mark()}
    return read_all(cluster, place.topic, [place.partition], marks).get(place.partition)


def read_all(
    cluster: connection.Cluster,
    topic: str,
    partitions: Collection[int],
    marks: Mapping[int, bytes] | None = None,
) -> dict[int, bytes]:
    """Return the last committed position of each partition that has one.

    Wait until the marks appear. Raise SessionEnded if one does not: a newer writer may have written
    its own.
    """
    marks = marks or {}
    until, pause_s = time.monotonic() + MARK_WAIT_MAX_S, MARK_PAUSE_S
    found = _last(cluster, topic, partitions)
    while left := [part for part, mark in marks.items() if found.marks.get(part) != mark]:
        if time.monotonic() > until:
            raise errors.SessionEnded(
                f"a mark in topic {topic!r}, partition {left[0]}, has not appeared for"
                f" {MARK_WAIT_MAX_S:.0f} seconds"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MARK_PAUSE_MAX_S)
        later = _last(cluster, topic, left)
        found = Found(found.positions | later.positions, found.marks | later.marks)
    return found.positions


def _refuse_deleting(cluster: connection.Cluster, topic: str) -> None:
    with contextlib.suppress(errors.NotAuthorised):  # `instep vet` says what it cannot check
        policy = configs.of_topics(cluster, [topic])[topic]["cleanup.policy"].value or ""
        if "delete" in policy or "compact" not in policy:
            raise errors.SettingsError(
                f"topic {topic!r} keeps a position, and has cleanup.policy={policy}: Kafka deletes"
                " old records there",
                f"instep topics alter {topic} -c cleanup.policy=compact --execute",
            )


def _last(cluster: connection.Cluster, topic: str, partitions: Collection[int]) -> Found:
    """Return the last records of partitions, as far as the brokers that answer know them."""
    firsts = offsets.earliest(cluster, topic, partitions)
    ends = offsets.latest(cluster, topic, partitions)
    starts = {part: max(firsts[part], ends[part] - LOOK_BACK) for part in partitions}
    found = _scan(cluster, topic, {part: (starts[part], ends[part]) for part in partitions})
    # Some have only marks, transaction markers and aborted positions at the end.
    rest = [
        part for part in partitions if part not in found.positions and starts[part] > firsts[part]
    ]
    if rest:
        whole = _scan(cluster, topic, {part: (firsts[part], ends[part]) for part in rest})
        found = Found(found.positions | whole.positions, found.marks | whole.marks)
    return found


def _scan(cluster: connection.Cluster, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Found:
    found = Found({}, {})
    for record in reading.read(cluster, topic, ranges):
        if record.value is not None and record.key == KEY:
            found.positions[record.partition] = record.value
        elif record.value is not None and record.key == MARK:
            found.marks[record.partition] = record.value
    return found
