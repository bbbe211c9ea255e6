"""Clusters that do not answer, and clusters that say no."""

from __future__ import annotations

import time
import uuid

import pytest

from instep import errors, settings
from instep.kafka import connection, groups, offsets, topics
from instep.local import ports
from instep.local.broker import Broker
from tests.kafka import secured


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
    assert time.monotonic() - began < 6
    assert capfd.readouterr().err == ""


def test_a_name_that_does_not_resolve() -> None:
    with (
        connection.Cluster(settings.Kafka(), "no-such-host.invalid:9092", timeout_s=1) as cluster,
        pytest.raises(errors.BrokerUnreachable, match=r"no-such-host\.invalid:9092: tried for 1 s"),
    ):
        topics.describe(cluster, "any")


def test_a_setting_the_client_cannot_take(capfd: pytest.CaptureFixture[str]) -> None:
    kafka = settings.Kafka(security=settings.Security(protocol="SSL", ca="nowhere.pem"))
    with connection.Cluster(kafka, "a:1") as cluster, pytest.raises(errors.SettingsError, match=r"ssl\.ca\.location"):
        topics.describe(cluster, "any")
    assert capfd.readouterr().err == ""


def test_a_cluster_that_was_closed_can_be_used_again(broker: Broker) -> None:
    cluster = connection.Cluster(settings.Kafka(), broker.bootstrap)
    first = topics.names(cluster)
    cluster.close()
    assert topics.names(cluster) == first
    cluster.close()


def test_the_right_password_is_accepted(secured_broker: secured.SecuredBroker) -> None:
    with connection.Cluster(secured.login("ann", secured.PASSWORD), secured_broker.sasl_bootstrap) as cluster:
        name = f"ann-{uuid.uuid4().hex}"
        topics.create(cluster, name, 1)
        assert topics.describe(cluster, name).partitions == (0,)
        assert offsets.first_records(cluster, name, {0: 0}) == {0: None}


def test_a_wrong_password_is_not_called_unreachable(secured_broker: secured.SecuredBroker) -> None:
    began = time.monotonic()
    with (
        connection.Cluster(secured.login("ann", "wrong"), secured_broker.sasl_bootstrap) as cluster,
        pytest.raises(errors.NotAuthorised, match="does not accept user 'ann'"),
    ):
        topics.describe(cluster, "any")
    assert time.monotonic() - began < connection.TIMEOUT_S / 2


def test_a_missing_right_is_named(secured_broker: secured.SecuredBroker) -> None:
    with connection.Cluster(settings.Kafka(), secured_broker.bootstrap) as plain:
        name = f"theirs-{uuid.uuid4().hex}"
        topics.create(plain, name, 1)
    with connection.Cluster(secured.login("bob", "bob"), secured_broker.sasl_bootstrap) as cluster:
        with pytest.raises(errors.NotAuthorised, match=f"user 'bob' lacks .* on topic '{name}'"):
            topics.describe(cluster, name)
        with pytest.raises(errors.NotAuthorised, match=f"on topic '{name}'"):
            offsets.latest(cluster, name, [0])
        with pytest.raises(errors.NotAuthorised, match="on topic"):
            topics.create(cluster, "bobs", 1)
        with pytest.raises(errors.NotAuthorised, match="READ on group 'contracts'"):
            groups.mirror(cluster, "contracts", name, {0: 1})


def test_speaking_tls_to_a_plain_listener_hints_at_the_protocol(broker: Broker) -> None:
    kafka = settings.Kafka(security=settings.Security(protocol="SSL"))
    with (
        connection.Cluster(kafka, broker.bootstrap, timeout_s=1) as cluster,
        pytest.raises(errors.BrokerUnreachable) as caught,
    ):
        topics.describe(cluster, "any")
    assert "kafka.security.protocol" in caught.value.remedy
