"""Test a cluster that refuses, and one that lost a broker: what is unknown has a reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from instep import errors, settings
from instep.kafka import configs, connection, groups, layout, places, topics
from instep.kafka.admin import consumer_groups, log_bounds, resets, tail, topic_admin, topic_details
from instep.local.broker import LocalCluster
from tests.support import secured
from tests.support.waiting import wait_until

Query = Callable[[connection.Cluster], object]


@pytest.mark.parametrize(
    ("operation", "permission"),
    [
        (
            lambda cluster: topic_details.describe(cluster, ["closed"]),
            "DESCRIBE permission on topic 'closed'",
        ),
        (
            lambda cluster: log_bounds.read(cluster, ["closed"], (), None),
            "DESCRIBE permission on topic 'closed'",
        ),
        (
            lambda cluster: tail.resolve_range(cluster, "closed", places.parse_range("-1")),
            "DESCRIBE permission on topic 'closed'",
        ),
        (
            lambda cluster: topic_admin.alter(cluster, "closed", {"retention.ms": "1"}, ()),
            "DESCRIBE_CONFIGS permission on topic 'closed'",
        ),
        (
            lambda cluster: configs.alter_topic(cluster, "closed", {"retention.ms": "1"}),
            "ALTER_CONFIGS permission on topic 'closed'",
        ),
        (lambda cluster: topics.create(cluster, "mine", 1), "CREATE permission on topic 'mine'"),
        (lambda cluster: topics.grow(cluster, "closed", 9), "ALTER permission on topic 'closed'"),
        (lambda cluster: topics.delete(cluster, "closed"), "DELETE permission on topic 'closed'"),
        (
            lambda cluster: consumer_groups.describe(cluster, "theirs"),
            "DESCRIBE permission on group 'theirs'",
        ),
        (
            lambda cluster: consumer_groups.delete(cluster, "theirs"),
            "DELETE permission on group 'theirs'",
        ),
        (
            lambda cluster: groups.commit(cluster, "theirs", {("closed", 0): 0}),
            "READ permission on group 'theirs'",
        ),
    ],
)
def test_a_missing_permission_is_named(
    secured_broker: secured.SecuredBroker, operation: Query, permission: str
) -> None:
    with connection.Cluster(settings.Kafka(), secured_broker.bootstrap) as administrator:
        if "closed" not in topics.names(administrator):
            topics.create(administrator, "closed", 1)
    with (
        connection.Cluster(
            secured.login("bob", "bob"), secured_broker.bootstrap_of("login")
        ) as bob,
        pytest.raises(errors.NotAuthorised, match=f"user 'bob' lacks the {permission}"),
    ):
        operation(bob)


def test_a_lost_broker_hides_only_its_own_partitions() -> None:
    with (
        LocalCluster(3) as brokers,
        connection.Cluster(settings.Kafka(), brokers.bootstrap) as cluster,
    ):
        topics.create(cluster, "single", 6, 1)
        # With all three required in sync, a new leader that does not know the high watermark yet
        # could never raise it.
        topics.create(cluster, "triple", 1, 3, {"min.insync.replicas": "2"})
        producer = Producer({"bootstrap.servers": brokers.bootstrap})
        for number in range(12):
            producer.produce("single", b"%d" % number, partition=number % 6)
        producer.produce("triple", b"x")
        assert producer.flush(30) == 0
        groups.mirror(cluster, "readers", "single", dict.fromkeys(range(6), 1))
        brokers.nodes[2].kill()

        def lost() -> list[int]:
            found = layout.read(cluster)
            short = found.topics["triple"].partitions[0].is_under_replicated
            return [
                part.partition
                for part in found.topics["single"].partitions
                if part.leader is None and short
            ]

        wait_until(lambda: bool(lost()), "the cluster to notice")
        # its leader may have been the lost broker
        wait_until(
            lambda: topic_details.describe(cluster, ["triple"])[0].partitions[0].end == 1,
            "a leader that answers",
        )
        leaderless = lost()
        single, triple = topic_details.describe(cluster, ["single", "triple"])
        assert [part.partition for part in single.partitions if part.end is None] == leaderless
        assert {part.end for part in single.partitions if part.partition not in leaderless} == {2}
        assert {part.offline for part in single.partitions if part.partition in leaderless} == {
            (3,)
        }
        assert (triple.partitions[0].offline, triple.partitions[0].end) == ((3,), 1)
        noted = {
            one.partition: one.note
            for one in log_bounds.read(cluster, ["single"], (), places.FromEnd())
        }
        assert noted == {
            number: log_bounds.NO_LEADER if number in leaderless else "" for number in range(6)
        }
        # a new coordinator shows a group only after its replicas have caught up
        wait_until(
            lambda: bool(groups.all_positions(cluster, "readers")),
            "the group at its new coordinator",
        )
        lags = {
            one.partition: one.lag_records
            for one in consumer_groups.describe(cluster, "readers").positions
        }
        assert lags == {number: None if number in leaderless else 1 for number in range(6)}
        part = tail.resolve_range(cluster, "single", places.parse_range("-1"))
        assert part.without_leader == tuple(leaderless)
        assert len(list(tail.records(cluster, part, None, None))) == 6 - len(leaderless)
        with pytest.raises(
            errors.BrokerUnreachable, match=f"no leader for partition {leaderless[0]}"
        ):
            resets.plan(
                cluster,
                "readers",
                [("single", number) for number in range(6)],
                resets.ToPlace(places.FromStart()),
            )
