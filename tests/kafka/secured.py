"""A broker with a second listener that asks for a user and a password, and with rights."""

from __future__ import annotations

from typing import Any

from instep import settings
from instep.local import ports
from instep.local.broker import Broker

# a password that every way of quoting gets wrong unless it is done right
PASSWORD = 'q"u\\o te='


class SecuredBroker(Broker):
    """`ann` may do everything, `bob` nothing; on the plain listener everybody may do everything."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.sasl_port = ports.free(1)[0]

    @property
    def sasl_bootstrap(self) -> str:
        return f"{ports.HOST}:{self.sasl_port}"

    def all_properties(self) -> dict[str, str]:
        plain = super().all_properties()
        password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        users = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="{password}" user_bob="bob";'
        return {
            **plain,
            "listeners": f"{plain['listeners']},LOGIN://{self.sasl_bootstrap}",
            "advertised.listeners": f"{plain['advertised.listeners']},LOGIN://{self.sasl_bootstrap}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},LOGIN:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            # a properties file halves backslashes
            "listener.name.login.plain.sasl.jaas.config": users.replace("\\", "\\\\"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:ann",
        }


def login(username: str, password: str) -> settings.Kafka:
    return settings.Kafka(
        security=settings.Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=username, password=password)
    )
