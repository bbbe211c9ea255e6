"""The tables of the cluster and of the Spark session."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from instep.settings.values import Mechanism, Protocol, SettingsTable


class Security(SettingsTable, frozen=True, kw_only=True):
    """How a client connects to the brokers and authenticates."""

    protocol: Annotated[Protocol, Meta(description="security protocol")] = "PLAINTEXT"
    mechanism: Annotated[Mechanism | None, Meta(description="SASL mechanism")] = None
    username: Annotated[str | None, Meta(description="SASL user")] = None
    password: Annotated[str | None, Meta(description="SASL password", extra={"secret": True})] = (
        None
    )
    ca: Annotated[
        str | None,
        Meta(description="PEM file of the authority that signed the brokers' certificates"),
    ] = None
    certificate: Annotated[
        str | None, Meta(description="PEM file of the client's own certificate")
    ] = None
    key: Annotated[str | None, Meta(description="PEM file of the client certificate's key")] = None
    key_password: Annotated[
        str | None, Meta(description="password of the key", extra={"secret": True})
    ] = None


class Kafka(SettingsTable, frozen=True, kw_only=True):
    """The cluster, and how to connect to it."""

    bootstrap: Annotated[
        str | None,
        Meta(description="brokers, host:port,…; default: the local broker, started on demand"),
    ] = None
    security: Annotated[Security, Meta(description="encryption and authentication")] = Security()


class Spark(SettingsTable, frozen=True, kw_only=True):
    """The Spark session that runs the pipelines."""

    master: Annotated[str, Meta(description="Spark master; local[*] uses this machine's cores")] = (
        "local[*]"
    )
    memory: Annotated[str, Meta(description="memory of the driver's JVM")] = "640m"
    conf: Annotated[
        dict[str, str], Meta(description="further Spark settings, passed unchanged")
    ] = {}
