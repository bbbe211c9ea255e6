"""Users and ways to log in to the secured broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from instep import settings
from tests.support import secured
from tests.support.authority import Pair
from tests.support.secured import PASSWORD, SecuredBroker


def files(pair: Pair, **further: Any) -> dict[str, Any]:
    return {"certificate": str(pair.certificate), "key": str(pair.key), **further}


def user(
    mechanism: str, name: str = "ann", password: str = PASSWORD, protocol: str = "SASL_SSL"
) -> dict[str, Any]:
    return {"protocol": protocol, "mechanism": mechanism, "username": name, "password": password}


def kafka(broker: SecuredBroker, **options: Any) -> settings.Kafka:
    """Return settings that trust the tests' authority unless they say otherwise."""
    return settings.Kafka(
        security=settings.Security(**{"protocol": "SSL", "ca": broker.ca, **options})
    )


LOGINS: dict[str, tuple[str, Callable[[SecuredBroker], dict[str, Any]]]] = {
    "PLAIN": ("login", lambda broker: {**user("PLAIN", protocol="SASL_PLAINTEXT"), "ca": None}),
    "PLAIN over TLS": ("scram", lambda broker: user("PLAIN")),
    "SCRAM-SHA-256": ("scram", lambda broker: user("SCRAM-SHA-256")),
    "SCRAM-SHA-512": ("scram", lambda broker: user("SCRAM-SHA-512")),
    "certificate": ("mutual", lambda broker: files(broker.ann)),
    "certificate with a locked key": (
        "mutual",
        lambda broker: files(broker.ann_locked, key_password=secured.KEY_PASSWORD),
    ),
}
