"""Test every way to connect to a secured cluster, for every client, and every refusal."""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instep import errors, settings
from instep.emit import Publisher, StatusEvent
from instep.kafka import admin_extras, connection, groups, handshake, offsets, reading, topics
from instep.local import ports
from tests.support import kafka_tools as tools
from tests.support import secured
from tests.support.authority import PKCS1
from tests.support.kafka_users import LOGINS, files, kafka, user
from tests.support.secured import PASSWORD, SecuredBroker
from tests.support.waiting import wait_until


def refused(broker: SecuredBroker, listener: str, **options: Any) -> errors.InstepError:
    """Return the error of describing a topic, and check that a publisher's is the same."""
    kafka_settings = kafka(broker, **options)
    found = []
    with (
        pytest.raises(errors.InstepError) as caught,
        connection.Cluster(kafka_settings, broker.bootstrap_of(listener)) as cluster,
    ):
        topics.describe(cluster, "any")
    found.append(caught.value)
    with pytest.raises(errors.InstepError) as caught:
        Publisher(broker.bootstrap_of(listener), "any", security=kafka_settings.security)
    found.append(caught.value)
    assert len({str(error) for error in found}) == 1
    assert found[0].exit_status == 2
    assert PASSWORD not in str(found[0])
    return found[0]


@pytest.mark.parametrize("way", LOGINS)
def test_every_client_can_log_in(secured_broker: SecuredBroker, way: str) -> None:
    listener, said = LOGINS[way]
    kafka_settings, bootstrap = (
        kafka(secured_broker, **said(secured_broker)),
        secured_broker.bootstrap_of(listener),
    )
    name = f"in-{uuid.uuid4().hex[:8]}"
    with connection.Cluster(kafka_settings, bootstrap) as cluster:
        topics.create(cluster, name, 1)
        with Publisher(bootstrap, name, security=kafka_settings.security) as publisher:
            publisher.send(StatusEvent(document="d-1", status="PRINTED")).result(60)
        assert offsets.latest(cluster, name, [0]) == {0: 1}
        (record,) = reading.read(cluster, name, {0: (0, 1)})
        assert record.key == b"d-1"
        groups.mirror(cluster, name, name, {0: 1})
        assert groups.positions(cluster, name, name) == {0: 1}
        with admin_extras.connect(cluster) as second:
            assert second is not None
            assert second.quorum() is not None


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        ("expired", r"the certificate of the broker at \S+ has expired"),
        ("elsewhere", r"the certificate of the broker at \S+ is for another host"),
        (
            "stranger",
            (
                r"the certificate of the broker at \S+ is signed by an authority that is not"
                r" trusted here"
            ),
        ),
    ],
)
def test_a_wrong_broker_certificate_is_explained(
    secured_broker: SecuredBroker, listener: str, words: str
) -> None:
    error = refused(secured_broker, listener)
    assert isinstance(error, errors.NotAuthorised)
    assert re.search(words, error.what)


REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "wrong password": (
        "scram",
        user("PLAIN", password="wrong"),
        "does not accept user 'ann': .*Invalid username or password",
    ),
    "wrong password, SCRAM": (
        "scram",
        user("SCRAM-SHA-512", password="wrong"),
        "does not accept user 'ann': .*invalid credentials",
    ),
    "unknown user": ("scram", user("SCRAM-SHA-256", "eve"), "does not accept user 'eve'"),
    "a mechanism that is not on": (
        "login",
        user("SCRAM-SHA-256", protocol="SASL_PLAINTEXT"),
        "does not support the mechanism SCRAM-SHA-256; it supports PLAIN",
    ),
    "plain to TLS": (
        "mutual",
        {"protocol": "PLAINTEXT"},
        "uses TLS, but kafka.security.protocol is PLAINTEXT",
    ),
    "a user, plain to TLS": (
        "scram",
        user("PLAIN", protocol="SASL_PLAINTEXT"),
        "uses TLS, but .* is SASL_PLAINTEXT",
    ),
    "TLS to plain": ("login", {}, "does not support TLS, but kafka.security.protocol is SSL"),
    "a user, TLS to plain": (
        "login",
        user("PLAIN"),
        "does not support TLS, but kafka.security.protocol is SASL_SSL",
    ),
    "nobody where a user is asked for": (
        "login",
        {"protocol": "PLAINTEXT"},
        r"requires a user \(mechanisms: PLAIN\)",
    ),
    "no authority": (
        "scram",
        {**user("PLAIN"), "ca": None},
        "signed by an authority that is not trusted here",
    ),
    "no certificate": ("mutual", {}, "requires a client certificate, but none is set"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_reported_in_its_own_words(secured_broker: SecuredBroker, case: str) -> None:
    listener, options, words = REFUSALS[case]
    error = refused(secured_broker, listener, **options)
    assert isinstance(error, errors.NotAuthorised)
    assert re.search(words, error.what), error.what
    assert error.remedy


def test_a_refused_client_certificate_is_explained(secured_broker: SecuredBroker) -> None:
    old = secured_broker.authority.issue("ann-old", days=(-9, -1))
    assert "ann-old.pem: it has expired" in refused(secured_broker, "mutual", **files(old)).what
    eve = secured_broker.stranger.issue("eve")
    assert re.search(
        r"does not accept the client certificate \S+eve.pem: it says",
        refused(secured_broker, "mutual", **files(eve)).what,
    )


def test_the_second_client_verifies_too(secured_broker: SecuredBroker) -> None:
    for listener in ("elsewhere", "expired", "stranger"):
        with (
            connection.Cluster(
                kafka(secured_broker), secured_broker.bootstrap_of(listener), timeout_s=0.5
            ) as cluster,
            admin_extras.connect(cluster) as second,
        ):
            assert second is None


def test_a_blocking_call_reports_the_refusal_too(
    secured_broker: SecuredBroker,
) -> None:
    kafka_settings = kafka(secured_broker, **user("SCRAM-SHA-512", password="wrong"))
    with (
        connection.Cluster(
            kafka_settings, secured_broker.bootstrap_of("scram"), timeout_s=3
        ) as cluster,
        pytest.raises(errors.NotAuthorised, match="does not accept user 'ann'"),
    ):
        topics.names(cluster)


def test_wrong_files_are_named(secured_broker: SecuredBroker, tmp_path: Path) -> None:
    ann, locked = secured_broker.ann, secured_broker.ann_locked
    text, noise = tmp_path / "text.pem", tmp_path / "noise.pem"
    text.write_text("no certificate", encoding="utf-8")
    noise.write_bytes(b"\xff\xfe")
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"ca": str(tmp_path / "none.pem")},
            r"kafka.security.ca \S+none.pem cannot be read: No such file",
        ),
        ({"ca": str(tmp_path)}, "kafka.security.ca .* cannot be read: Is a directory"),
        ({"ca": str(text)}, "kafka.security.ca .*text.pem contains no certificate in PEM"),
        ({"ca": str(noise)}, "kafka.security.ca .*noise.pem contains no certificate in PEM"),
        (
            files(ann, certificate=str(text)),
            "kafka.security.certificate .*text.pem contains no certificate in PEM",
        ),
        (
            files(ann, key=str(tmp_path / "none.key")),
            r"kafka.security.key \S+none.key cannot be read",
        ),
        (files(ann, key=str(text)), "kafka.security.key .*text.pem contains no key in PEM"),
        (files(ann, key=str(noise)), "kafka.security.key .*noise.pem contains no key in PEM"),
        (
            files(ann, key=str(secured_broker.bob.key)),
            "bob.key is not the key of kafka.security.certificate .*ann.pem",
        ),
        (
            files(locked, key_password="wrong"),
            "kafka.security.key_password does not decrypt .*locked.java.key",
        ),
        (files(locked), "kafka.security.key .*locked.java.key has a password"),
        ({"key": str(ann.key)}, "kafka.security.key needs"),
    ]
    for options, words in cases:
        error = refused(secured_broker, "mutual", **options)
        assert isinstance(error, errors.SettingsError)
        assert re.search(words, error.what), error.what


def test_a_key_format_that_java_cannot_read_is_explained(secured_broker: SecuredBroker) -> None:
    old = secured_broker.authority.issue("pkcs1", form=PKCS1)
    kafka_settings = kafka(secured_broker, **files(old))
    with pytest.raises(
        errors.SettingsError, match="is not in PKCS #8, the only form that Java reads"
    ) as caught:
        connection.java_config(kafka_settings, "a:1")
    assert caught.value.remedy.startswith("openssl pkcs8 -topk8 -nocrypt -in")
    kafka_settings = kafka(
        secured_broker, **files(secured_broker.ann_pbes2, key_password=secured.KEY_PASSWORD)
    )
    with pytest.raises(
        errors.SettingsError, match="is encrypted with PBES2, which Java's Kafka client cannot read"
    ):
        connection.java_config(kafka_settings, "a:1")


def test_no_fault_is_reported_if_the_cause_is_uncertain() -> None:
    nonsense = ("nonsense", ":", "a:99999", f"{'x' * 70}.org:1", "a:²")
    for address in (f"{ports.HOST}:{ports.free()[0]}", "no-such-host.invalid:9092", *nonsense):
        assert handshake.fault(settings.Security(protocol="SSL"), address) is None


def test_a_mechanism_that_instep_does_not_have_is_not_recommended() -> None:
    security = settings.Security(**user("PLAIN"))
    error = handshake.check_listener(
        security, "a:1", handshake.ListenerFacts(takes_users=True, mechanisms=("GSSAPI",))
    )
    assert error is not None
    assert "it supports GSSAPI" in error.what
    assert (
        error.remedy
        == "use the address of a listener that supports PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"
    )
    error = handshake.check_listener(
        settings.Security(**user("PLAIN")),
        "a:1",
        handshake.ListenerFacts(takes_users=False, mechanisms=()),
    )
    assert error is not None
    assert error.remedy.startswith("set kafka.security.protocol to SSL")


def test_each_missing_right_is_named_with_the_command_that_grants_it(
    secured_broker: SecuredBroker,
) -> None:
    name = f"theirs-{uuid.uuid4().hex[:8]}"
    lacks = "user 'bob' lacks the"
    with connection.Cluster(settings.Kafka(), secured_broker.bootstrap) as plain:
        topics.create(plain, name, 1)
        with connection.Cluster(
            secured.login("bob", "bob"), secured_broker.bootstrap_of("login")
        ) as cluster:
            with pytest.raises(
                errors.NotAuthorised, match=f"{lacks} DESCRIBE permission on topic '{name}'"
            ) as caught:
                topics.describe(cluster, name)
            grants_describe = caught.value.remedy
            with pytest.raises(errors.NotAuthorised, match=f"{lacks} DESCRIBE permission on topic"):
                offsets.latest(cluster, name, [0])
            with pytest.raises(
                errors.NotAuthorised, match=f"{lacks} CREATE permission on topic 'bobs'"
            ):
                topics.create(cluster, "bobs", 1)
            with pytest.raises(
                errors.NotAuthorised, match=f"{lacks} READ permission on group '{name}'"
            ):
                groups.mirror(cluster, name, name, {0: 1})
            with pytest.raises(
                errors.NotAuthorised, match=f"{lacks} DESCRIBE permission on group '{name}'"
            ):
                groups.positions(cluster, name, name)
            _follow(grants_describe, plain.bootstrap)
            wait_until(lambda: _allowed(lambda: topics.describe(cluster, name)))
            with Publisher(plain.bootstrap, name) as publisher:
                publisher.send(StatusEvent(document="d-1", status="PRINTED")).result(60)
            with pytest.raises(
                errors.NotAuthorised, match=f"{lacks} READ permission on topic '{name}'"
            ):
                offsets.first_records(cluster, name, {0: 0})
            with pytest.raises(
                errors.NotAuthorised, match=f"{lacks} READ permission on topic '{name}'"
            ):
                list(reading.read(cluster, name, {0: (0, 1)}))
            with pytest.raises(
                errors.NotAuthorised, match=f"{lacks} DELETE permission on topic '{name}'"
            ):
                topics.delete(cluster, name)
            with pytest.raises(
                errors.NotAuthorised, match=f"{lacks} ALTER permission on topic '{name}'"
            ):
                topics.grow(cluster, name, 2)
            with pytest.raises(
                errors.NotAuthorised, match=f"{lacks} DESCRIBE_CONFIGS permission on topic '{name}'"
            ) as caught:
                topics.is_compacted(cluster, name)
            _follow(caught.value.remedy, plain.bootstrap)
            wait_until(lambda: _allowed(lambda: topics.is_compacted(cluster, name)))
        kafka_settings = kafka(secured_broker, **files(secured_broker.bob))
        with (
            connection.Cluster(kafka_settings, secured_broker.bootstrap_of("mutual")) as cluster,
            pytest.raises(
                errors.NotAuthorised,
                match=r"the certificate \S+bob.pem lacks the DESCRIBE permission",
            ),
        ):
            topics.describe(cluster, name)


def _follow(remedy: str, bootstrap: str) -> None:
    """Run the command that an error recommends, as the administrator."""
    tools.run(tools.ACLS, bootstrap, *shlex.split(remedy.partition("kafka-acls ")[2]))


def _allowed(operation: Callable[[], object]) -> bool:
    """Return whether it is allowed by now: a right takes a moment to reach the broker."""
    try:
        operation()
    except errors.NotAuthorised:
        return False
    return True
