"""Test clusters that do not answer."""

from __future__ import annotations

import time

import pytest

from instep import errors, settings
from instep.kafka import connection, groups, offsets, topics
from instep.local import ports
from instep.local.broker import Broker


def test_a_closed_port_is_named_with_the_seconds_tried(capfd: pytest.CaptureFixture[str]) -> None:
    addresses = [f"{ports.HOST}:{port}" for port in ports.free(2)]
    began = time.monotonic()
    with connection.Cluster(settings.Kafka(), ",".join(addresses), timeout_s=1) as cluster:
        with pytest.raises(errors.BrokerUnreachable) as caught:
            topics.describe(cluster, "any")
        assert f"no broker answered at {', '.join(addresses)}: tried for 1 s" in caught.value.what
        assert "Connection refused" in caught.value.what
        with pytest.raises(errors.BrokerUnreachable):
            offsets.latest(cluster, "any", [0])
        with pytest.raises(errors.BrokerUnreachable):
            groups.mirror(cluster, "any", "any", {0: 1})
    assert time.monotonic() - began < 30  # bounded, however busy the machine is
    assert "instep#" not in capfd.readouterr().err  # clients of other tests may still be connected


def test_an_unresolvable_host_name_is_reported() -> None:
    with (
        connection.Cluster(settings.Kafka(), "no-such-host.invalid:9092", timeout_s=1) as cluster,
        pytest.raises(errors.BrokerUnreachable, match=r"no-such-host\.invalid:9092: tried for 1 s"),
    ):
        topics.describe(cluster, "any")


def test_a_closed_cluster_can_be_used_again(broker: Broker) -> None:
    cluster = connection.Cluster(settings.Kafka(), broker.bootstrap)
    first = topics.names(cluster)
    cluster.close()
    assert topics.names(cluster) == first
    cluster.close()
