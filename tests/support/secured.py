"""A broker with users, certificates and rights, and one listener per way to connect."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import admin

from instep import settings
from instep.kafka import connection
from instep.local import ports
from instep.local.broker import Broker
from tests.support.authority import Authority, relocked

KAFKA: Any = admin
KEY_PASSWORD = "the key's own"
# a password that only correct quoting keeps intact
PASSWORD = 'q"u\\o te='
# listener: its protocol, and how its certificate is wrong
LISTENERS = {
    "login": "SASL_PLAINTEXT",
    "scram": "SASL_SSL",
    "mutual": "SSL",
    "expired": "SSL",
    "elsewhere": "SSL",
    "stranger": "SSL",
}
SCRAM = (KAFKA.ScramMechanism.SCRAM_SHA_256, KAFKA.ScramMechanism.SCRAM_SHA_512)


class SecuredBroker(Broker):
    """A broker where `ann` may do everything and `bob` nothing.

    On the plain listener, and on those without a user, everybody may do everything.

    The listeners: `login` takes PLAIN, without TLS; `scram` takes PLAIN and SCRAM over TLS;
    `mutual` requires a client's certificate; `expired`, `elsewhere` (for another host) and
    `stranger` (of another authority) show a wrong one.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._files = tempfile.TemporaryDirectory(prefix="instep-authority-")
        folder = Path(self._files.name)
        self.authority, self.stranger = Authority(folder), Authority(folder, "stranger")
        self.ann = self.authority.issue("ann")
        self.ann_pbes2 = self.authority.issue("ann-locked", password=KEY_PASSWORD)
        self.ann_locked = relocked(self.ann_pbes2, KEY_PASSWORD)
        self.bob = self.authority.issue("bob")
        self._certificates = {
            "scram": self.authority.issue("broker"),
            "expired": self.authority.issue("broker-expired", days=(-9, -1)),
            "elsewhere": self.authority.issue("broker-elsewhere", host="kafka.example.org"),
            "stranger": self.stranger.issue("broker-stranger"),
        }
        self._certificates["mutual"] = self._certificates["scram"]
        self._listener_ports = dict(zip(LISTENERS, ports.free(len(LISTENERS)), strict=True))

    def bootstrap_of(self, listener: str) -> str:
        return f"{ports.HOST}:{self._listener_ports[listener]}"

    @property
    def ca(self) -> str:
        return str(self.authority.ca)

    def start(self) -> None:
        super().start()
        with connection.Cluster(settings.Kafka(), self.bootstrap) as cluster:
            for (user, password), mechanism in itertools.product(
                (("ann", PASSWORD), ("bob", "bob")), SCRAM
            ):
                credential = KAFKA.ScramCredentialInfo(mechanism, 4096)
                change = KAFKA.UserScramCredentialUpsertion(user, credential, password.encode())
                cluster.admin.alter_user_scram_credentials([change])[user].result(60)

    def close(self) -> None:
        super().close()
        self._files.cleanup()

    def all_properties(self) -> dict[str, str]:
        plain = super().all_properties()
        addresses = "".join(f",{name.upper()}://{self.bootstrap_of(name)}" for name in LISTENERS)
        protocols = "".join(f",{name.upper()}:{protocol}" for name, protocol in LISTENERS.items())
        password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        users = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            f' user_ann="{password}" user_bob="bob";'
        )
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        found = {
            **plain,
            "listeners": plain["listeners"] + addresses,
            "advertised.listeners": plain["advertised.listeners"] + addresses,
            "listener.security.protocol.map": plain["listener.security.protocol.map"] + protocols,
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.scram.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            # a properties file halves backslashes
            "listener.name.login.plain.sasl.jaas.config": users.replace("\\", "\\\\"),
            "listener.name.scram.plain.sasl.jaas.config": users.replace("\\", "\\\\"),
            "listener.name.scram.scram-sha-256.sasl.jaas.config": scram,
            "listener.name.scram.scram-sha-512.sasl.jaas.config": scram,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.truststore.type": "PEM",
            "listener.name.mutual.ssl.truststore.location": self.ca,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:ann;User:CN=ann;User:CN=ann-locked",
        }
        for name, pair in self._certificates.items():
            found[f"listener.name.{name}.ssl.keystore.type"] = "PEM"
            found[f"listener.name.{name}.ssl.keystore.location"] = str(pair.joined())
        return found


def login(username: str, password: str) -> settings.Kafka:
    return settings.Kafka(
        security=settings.Security(
            protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=username, password=password
        )
    )


def grant(
    cluster: connection.Cluster, principal: str, operation: str, *, topic: str = "", group: str = ""
) -> None:
    """Allow a user an operation on a topic or a group."""
    for answer in cluster.admin.create_acls([_right(principal, operation, topic, group)]).values():
        answer.result(60)


def revoke(
    cluster: connection.Cluster, principal: str, operation: str, *, topic: str = "", group: str = ""
) -> None:
    """Revoke what was granted."""
    right = _right(principal, operation, topic, group)
    named = (
        right.restype,
        right.name,
        right.resource_pattern_type,
        principal,
        "*",
        right.operation,
        right.permission_type,
    )
    for answer in cluster.admin.delete_acls([KAFKA.AclBindingFilter(*named)]).values():
        assert answer.result(60), "there was no such right"


def _right(principal: str, operation: str, topic: str, group: str) -> Any:
    kind = KAFKA.ResourceType.TOPIC if topic else KAFKA.ResourceType.GROUP
    allowed = KAFKA.AclPermissionType.ALLOW
    literal = KAFKA.ResourcePatternType.LITERAL
    return KAFKA.AclBinding(
        kind, topic or group, literal, principal, "*", KAFKA.AclOperation[operation], allowed
    )
