"""Test that the last position is found although a former leader reports an older one."""

from __future__ import annotations

import pytest

from instep import settings
from instep.kafka import connection, position_topic, topics
from instep.kafka.record_writer import RecordWriter
from instep.local.broker import LocalCluster

NAME = "orders"
TURNS = 3


def _started(cluster: connection.Cluster) -> RecordWriter:
    writer = RecordWriter(
        cluster,
        position_topic.of_relay(NAME),
        "orders",
        guarantee="exactly-once",
        record_bytes_max=1_000_000,
        is_stopped=lambda: False,
    )
    writer.start()
    return writer


@pytest.mark.long
def test_a_former_leader_that_wakes_up_does_not_hide_the_last_position() -> None:
    """Freeze the leader, commit through the next one, and read when the former one wakes up.

    Read with clients that know only the former leader. Without a mark most reads of the first
    seconds return an old position.
    """
    place = position_topic.of_relay(NAME)
    with LocalCluster(3) as brokers:
        with connection.Cluster(settings.Kafka(), brokers.bootstrap) as cluster:
            position_topic.create(cluster, place.topic)
            topics.create(cluster, "orders", 1)
        for turn in range(TURNS):
            with (
                connection.Cluster(settings.Kafka(), brokers.bootstrap) as cluster,
                connection.Cluster(settings.Kafka(), brokers.bootstrap) as reader,
            ):
                before, after = b"%d, before" % turn, b"%d, after" % turn
                _commit(cluster, before)
                assert position_topic.read(reader, place) == before
                leader = topics.read_layouts(cluster, [place.topic]).topics[place.topic]
                [node] = [part.leader for part in leader.partitions]
                assert node is not None
                former = brokers.nodes[node - 1]
                former.pause()
                _commit(cluster, after)
                heir = _started(cluster)
                mark = heir.mark()
                former.resume()
                found = position_topic.read_all(reader, place.topic, [0], {0: mark})
                assert found == {0: after}
                heir.close()


def _commit(cluster: connection.Cluster, position: bytes) -> None:
    writer = _started(cluster)
    writer.begin()
    writer.commit(position)
    writer.complete()
    writer.close()
