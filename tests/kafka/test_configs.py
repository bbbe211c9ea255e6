"""Test the settings as each client spells them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ConfigSource  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from instep import errors, settings
from instep.kafka import configs, connection

CLEAR = settings.Kafka()
SCRAM = settings.Kafka(
    security=settings.Security(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        username="instep",
        password="secret",
        ca="ca.pem",
    )
)


def test_plaintext_needs_only_an_address() -> None:
    assert connection.client_config(CLEAR, "a:1,b:2") == {
        "bootstrap.servers": "a:1,b:2",
        "client.id": "instep",
        "security.protocol": "PLAINTEXT",
    }
    assert connection.java_config(CLEAR, "a:1") == {
        "bootstrap.servers": "a:1",
        "security.protocol": "PLAINTEXT",
    }


def test_librdkafka_gets_user_and_certificate_authority() -> None:
    config = connection.client_config(SCRAM, "a:1")
    assert config["security.protocol"] == "SASL_SSL"
    assert config["sasl.mechanism"] == "SCRAM-SHA-512"
    assert (config["sasl.username"], config["sasl.password"]) == ("instep", "secret")
    assert config["ssl.ca.location"] == "ca.pem"


def test_java_gets_user_and_certificate_authority() -> None:
    config = connection.java_config(SCRAM, "a:1")
    assert config["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="instep"'
        ' password="secret";'
    )
    assert (config["ssl.truststore.type"], config["ssl.truststore.location"]) == ("PEM", "ca.pem")


def test_both_clients_get_the_client_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "client.pem", tmp_path / "key.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----\n…\n")
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n…\n")
    security = settings.Security(
        protocol="SSL", certificate=str(certificate), key=str(key), key_password="k"
    )
    kafka = settings.Kafka(security=security)

    config = connection.client_config(kafka, "a:1")
    assert (config["ssl.certificate.location"], config["ssl.key.location"]) == (
        str(certificate),
        str(key),
    )
    assert config["ssl.key.password"] == "k"

    java = connection.java_config(kafka, "a:1")
    assert java["ssl.keystore.type"] == "PEM"
    assert java["ssl.keystore.certificate.chain"] == certificate.read_text()
    assert java["ssl.keystore.key"] == key.read_text()
    assert java["ssl.key.password"] == "k"


def test_a_key_java_cannot_read_names_the_command_that_converts_it(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN RSA PRIVATE KEY-----\n…\n")
    kafka = settings.Kafka(security=settings.Security(protocol="SSL", key=str(key)))
    with pytest.raises(errors.SettingsError, match="PKCS #8") as caught:
        connection.java_config(kafka, "a:1")
    assert "openssl pkcs8" in caught.value.remedy


@dataclass(frozen=True)
class FakeEntry:
    """What the admin client returns for a setting."""

    name: str
    value: str | None
    source: int = ConfigSource.DEFAULT_CONFIG.value
    is_sensitive: bool = False
    synonyms: dict[str, FakeEntry] | None = None


def test_a_setting_without_a_value_that_has_none_by_default_is_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_file = ConfigSource.STATIC_BROKER_CONFIG.value
    entries = {
        "unset": FakeEntry("unset", None),
        "cleared": FakeEntry("cleared", None, of_file, synonyms={"": FakeEntry("cleared", "1")}),
        "set": FakeEntry("set", "2", of_file, synonyms={"": FakeEntry("set", None)}),
        "same": FakeEntry("same", "3", of_file, synonyms={"": FakeEntry("same", "3")}),
        "secret": FakeEntry("secret", None, of_file, is_sensitive=True),
    }
    monkeypatch.setattr(configs, "_broker_entries", lambda *_: entries)
    found = configs.changed_by_broker(connection.Cluster(CLEAR, "a:1"), 1)
    assert found == {"cleared": (None, "1"), "set": ("2", None)}


def test_a_missing_certificate_is_named() -> None:
    kafka = settings.Kafka(security=settings.Security(protocol="SSL", certificate="nowhere.pem"))
    with pytest.raises(errors.SettingsError, match=r"nowhere\.pem"):
        connection.java_config(kafka, "a:1")


@hypothesis_settings(max_examples=200)
@given(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1),
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1),
)
def test_java_reads_any_user_and_password_unchanged(
    kafka_classes: Any, username: str, password: str
) -> None:
    security = settings.Security(
        protocol="SASL_SSL", mechanism="PLAIN", username=username, password=password
    )
    config = connection.java_config(settings.Kafka(security=security), "a:1")
    secret = kafka_classes.org.apache.kafka.common.config.types.Password(config["sasl.jaas.config"])
    values = kafka_classes.java.util.HashMap()
    values.put("sasl.jaas.config", secret)
    context = kafka_classes.org.apache.kafka.common.security.JaasContext.loadClientContext(values)
    options = context.configurationEntries()[0].getOptions()
    assert (options["username"], options["password"]) == (username, password)
