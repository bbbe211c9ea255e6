"""A local ActiveMQ (classic): one broker that speaks STOMP, loopback only.

A persistent message is in the store when the broker answers; any other is kept in memory.
"""

from __future__ import annotations

import socket
from urllib.parse import urlencode

from instep.local import artifacts, java, ports, server

JVM_FLAGS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)
UP = "INFO org.apache.activemq.broker.TransportConnector - Connector stomp:"
SETTINGS = {
    "brokerName": "instep",
    "persistent": "true",
    "useJmx": "false",
    "dataDirectory": "data",
}


class ActiveMQ(server.Server):
    """An ActiveMQ broker."""

    name = "activemq"

    @property
    def address(self) -> str:
        return f"stomp://{ports.HOST}:{self.port}"

    def prepare(self) -> None:
        """Do nothing: the broker creates its store."""

    def command(self) -> list[str]:
        folder = artifacts.jars("activemq")[0].parent
        broker = f"broker:({self.address})?{urlencode(SETTINGS)}"
        start = ["org.apache.activemq.console.command.ShellCommand", "start", broker]
        return [str(java.find()), *JVM_FLAGS, "-cp", f"{folder}/*", *start]

    def answers(self) -> bool:
        with socket.create_connection((ports.HOST, self.port), timeout=1):
            return UP in self.read_log()
