"""The topic that a relay or a stream publishes to, as its last position knows it."""

from __future__ import annotations

import msgspec

from instep import errors
from instep.kafka.topics import Topic


class KnownTopic(msgspec.Struct, frozen=True):
    """What must not change while somebody publishes to a topic."""

    cluster_id: str
    topic_id: str
    partitions: int


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
