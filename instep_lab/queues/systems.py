"""The systems by name; their servers are started when first needed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, Self

from instep import errors, extras
from instep.local import activemq, rabbitmq, redis, server
from instep_lab.queues.system import Holder, Queue, ServerSystem, System

# RabbitMQ stores its list of quorum queues about once a second: a queue created just before a
# kill -9 exists afterwards but never responds (observed with 3.10; see rabbitmq-server#15725).
QUORUM_SETTLES_S = 3.0


class KafkaServer(Holder, Protocol):
    """A local Kafka server that may be killed."""

    @property
    def bootstrap(self) -> str: ...


@dataclass(frozen=True)
class SystemKind:
    """A system, with what its durable and its not durable use mean; no text: there is no such."""

    name: str
    as_durable: str = ""
    as_not_durable: str = ""

    @property
    def durable(self) -> tuple[bool, ...]:
        """Return the uses of the system."""
        uses = {True: self.as_durable, False: self.as_not_durable}
        return tuple(durable for durable, text in uses.items() if text)


REDIS = (
    "appendonly yes, appendfsync always: synced to disk before the response",
    "appendonly no: in memory",
)
KINDS = (
    SystemKind(
        "kafka",
        "acks=all, one replica, not synced to disk, which is the default; offsets committed",
        "acks=0, nothing committed",
    ),
    SystemKind("redis-list", f"{REDIS[0]}; read with LMOVE and deleted afterwards", REDIS[1]),
    SystemKind("redis-stream", f"{REDIS[0]}; a group that acknowledges", REDIS[1]),
    SystemKind(
        "rabbitmq-classic",
        "durable queue, persistent messages, a confirm for each, acknowledged by the reader",
        "queue in memory, no confirms, automatic acknowledgements",
    ),
    SystemKind(
        "rabbitmq-quorum",
        "one replica; a confirm for each message, acknowledged by the reader",
    ),
    SystemKind("zeromq", as_not_durable="PUSH and PULL over TCP, buffers without a limit"),
    SystemKind(
        "activemq",
        "persistent messages, one transaction and receipt per batch: synced to disk (KahaDB), "
        "acknowledged by the reader",
        "messages in memory, one receipt for the last",
    ),
)


class Servers:
    """The servers of the comparison; `close` stops all but Kafka, which belongs to the caller."""

    def __init__(self, kafka: KafkaServer) -> None:
        self._kafka = kafka
        self._servers: dict[str, server.Server] = {}

    def system(self, name: str, *, durable: bool) -> System:
        """Return a system with its server running; MissingPart says what to install."""
        client = _client(name)
        match name:
            case "kafka":
                kafka = self._kafka
                return ServerSystem(
                    name,
                    durable,
                    kafka,
                    lambda queue: client.KafkaQueue(kafka.bootstrap, queue, durable=durable),
                )
            case "redis-list" | "redis-stream":
                one = self._started(f"redis {durable}", redis.Redis(durable=durable))
                make = client.ListQueue if name == "redis-list" else client.StreamQueue
                return ServerSystem(
                    name, durable, one, lambda queue: make(one.address, queue, durable=durable)
                )
            case "rabbitmq-classic" | "rabbitmq-quorum":
                kind = name.removeprefix("rabbitmq-")
                one = self._started("rabbitmq", rabbitmq.RabbitMQ())

                def connect(queue: str) -> Queue:
                    opened: Queue = client.RabbitQueue(
                        one.address, queue, durable=durable, kind=kind
                    )
                    return opened

                return ServerSystem(
                    name, durable, one, connect, QUORUM_SETTLES_S if kind == "quorum" else 0.0
                )
            case "activemq":
                one = self._started(name, activemq.ActiveMQ())
                return ServerSystem(
                    name,
                    durable,
                    one,
                    lambda queue: client.ActiveQueue(one.address, queue, durable=durable),
                )
            case _:
                found: System = client.ZeroMQ()
                return found

    def close(self) -> None:
        for one in self._servers.values():
            one.close()
        self._servers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self, key: str, one: server.Server) -> server.Server:
        started = self._servers.setdefault(key, one)
        try:
            started.start()
        except BaseException:
            started.close()
            del self._servers[key]
            raise
        return started


def _client(name: str) -> ModuleType:
    """Import the client module of a system, whose library comes with an extra."""
    home = name.partition("-")[0]
    try:
        return importlib.import_module(f"instep_lab.queues.{home}")
    except ModuleNotFoundError as error:
        raise errors.MissingPart(
            f"the Python client of {home} is not installed: no module {error.name}",
            extras.command("lab"),
        ) from error
