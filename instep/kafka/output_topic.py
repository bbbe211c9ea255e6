"""The topic that a relay or a stream publishes to: what it must be, and what it accepts."""

from __future__ import annotations

import msgspec

from instep import errors
from instep.kafka.topics import Topic


class KnownTopic(msgspec.Struct, frozen=True):
    """What must not change while somebody publishes to a topic."""

    cluster_id: str
    topic_id: str
    partitions: int


CLOCK_SLACK_MS = 60_000  # between our clock and the broker's, and until it checks a record


class TimestampBounds(msgspec.Struct, frozen=True):
    """How far the timestamp of a record may be from the broker's time, in milliseconds."""

    before_ms: int
    after_ms: int

    def around(self, now_ms: int) -> tuple[int, int]:
        """Return the earliest and the latest timestamp that the topic accepts for certain.

        A timestamp of 0 or less is that of a record without one.
        """
        before_ms, after_ms = (
            bound - min(CLOCK_SLACK_MS, bound // 2) for bound in (self.before_ms, self.after_ms)
        )
        return max(1, now_ms - before_ms), now_ms + after_ms


def refuse_changed(publisher: str, known: KnownTopic, now: Topic, remedy: str = "") -> None:
    """Raise if it is another topic, or has another number of partitions.

    `publisher` names who publishes, e.g. relay 'orders'.
    """
    if (known.cluster_id, known.topic_id) != (now.cluster_id, now.id):
        raise errors.OutputTopicChanged(
            f"topic {now.name!r} is not the one that {publisher} published to:"
            " it was deleted and created again, or this is another cluster",
            remedy,
        )
    if known.partitions != len(now.partitions):
        raise errors.OutputTopicChanged(
            f"topic {now.name!r} has {len(now.partitions)} partitions, and had"
            f" {known.partitions}: documents would move to other partitions, and their order"
            " would be lost",
            remedy,
        )
