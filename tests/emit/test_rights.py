"""Test a publisher that the broker does not accept, or does not allow to write."""

from __future__ import annotations

import pytest

from instep import errors, settings
from instep.emit import Publisher, StatusEvent
from instep.kafka import connection, topics
from instep.waiting import retrying
from tests.support import secured

EVENT = StatusEvent(document="d-1", status="PRINTED")
BOB = secured.login("bob", "bob")


@pytest.fixture(scope="module")
def bootstrap(secured_broker: secured.SecuredBroker) -> str:
    """Return the address where users log in. `bob` may only read the topic "theirs"."""
    with connection.Cluster(settings.Kafka(), secured_broker.bootstrap) as cluster:
        topics.create(cluster, "theirs", 1)
        secured.grant(cluster, "User:bob", "READ", topic="theirs")
    return secured_broker.bootstrap_of("login")


def test_a_wrong_password_is_reported_at_the_start(bootstrap: str) -> None:
    security = secured.login("ann", "wrong").security
    with pytest.raises(errors.NotAuthorised, match="does not accept user 'ann'"):
        Publisher(bootstrap, "theirs", security=security)


def test_a_missing_right_to_write_is_reported_for_the_record(bootstrap: str) -> None:
    publisher = retrying(  # the right to read takes a moment to reach the broker
        lambda: Publisher(bootstrap, "theirs", security=BOB.security),
        lambda error: isinstance(error, errors.NotAuthorised),
        timeout_s=90,
    )
    with pytest.raises(errors.Undelivered, match="user 'bob' lacks the WRITE permission") as caught:
        publisher.send(EVENT).result(60)
    assert "WRITE on topic 'theirs'" in caught.value.remedy
    publisher.close()


def test_the_password_is_accepted_from_settings_or_librdkafkas_own_names(bootstrap: str) -> None:
    with Publisher(
        bootstrap, "theirs", security=secured.login("ann", secured.PASSWORD).security
    ) as publisher:
        publisher.send(EVENT).result(60)
    named = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "ann",
    }
    with Publisher(bootstrap, "theirs", sasl_password=secured.PASSWORD, **named) as publisher:  # type: ignore[arg-type]
        publisher.send(EVENT).result(60)
