"""A local Kafka: one broker, or several that form a cluster; each node is KRaft controller and broker at once."""

from __future__ import annotations

import base64
import io
import socket
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from instep import errors
from instep.local import artifacts, class_archives, java, ports, server

JVM_FLAGS = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)
LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


@dataclass(frozen=True)
class Peer:
    """A node of the cluster, as the others find its controller."""

    node: int
    controller_port: int


@dataclass(frozen=True)
class ProxiedListener:
    """A second listener for clients, on a port of its own, that tells them another port: that of a proxy in front of it."""

    port: int
    told_port: int


class Broker(server.Server):
    """One node. Alone it is a whole cluster; with peers it needs them to answer."""

    name = "kafka"

    def __init__(
        self,
        *,
        port: int | None = None,
        root: Path | None = None,
        node: int = 1,
        properties: Mapping[str, str] | None = None,
        start_timeout_s: float = 120.0,
        stop_timeout_s: float = 30.0,
        tied: bool = True,
    ) -> None:
        super().__init__(
            port=port,
            root=root,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
            tied=tied,
        )
        self.node = node
        self.properties = dict(properties or {})
        self.peers: tuple[Peer, ...] = ()
        self.cluster_id = new_cluster_id()
        self.side_door: ProxiedListener | None = None

    @property
    def address(self) -> str:
        return f"{ports.HOST}:{self.port}"

    @property
    def bootstrap(self) -> str:
        """What a Kafka client takes as bootstrap servers."""
        return self.address

    @property
    def controller_port(self) -> int:
        return next(peer.controller_port for peer in self.peers if peer.node == self.node)

    def join(self, port: int, peers: tuple[Peer, ...], cluster_id: str) -> None:
        """Be a node of a cluster, which chooses the ports."""
        self._port, self.peers, self.cluster_id = port, peers, cluster_id

    def choose_ports(self) -> None:
        if len(self.peers) < 2:
            port, controller_port = ports.free(2)
            self._port = self._port if self._port_is_fixed else port
            self.peers = (Peer(self.node, controller_port),)

    def prepare(self) -> None:
        """Write the node's properties, and format its log folder at the first start."""
        text = "".join(f"{key}={value}\n" for key, value in self.all_properties().items())
        (self.root / "server.properties").write_text(text, encoding="latin-1")
        (self.root / "log4j2.properties").write_text(LOG4J, encoding="latin-1")
        if not (self.root / "data" / "meta.properties").exists():
            arguments = [
                "format",
                "--cluster-id",
                self.cluster_id,
                "--config",
                "server.properties",
                "--ignore-formatted",
            ]
            self.run_step([*_jvm("-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool", *arguments])

    def all_properties(self) -> dict[str, str]:
        """The node's properties. Paths are relative to its folder: log.dirs would split one at a comma."""
        copies, in_sync = (3, 2) if len(self.peers) >= 3 else (1, 1)
        door = self.side_door
        listens = f",SIDE://{ports.HOST}:{door.port}" if door else ""
        tells = f",SIDE://{ports.HOST}:{door.told_port}" if door else ""
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            "controller.quorum.voters": ",".join(
                f"{peer.node}@{ports.HOST}:{peer.controller_port}" for peer in self.peers
            ),
            "listeners": f"CLIENT://{ports.HOST}:{self.port},CONTROLLER://{ports.HOST}:{self.controller_port}{listens}",
            "advertised.listeners": f"CLIENT://{ports.HOST}:{self.port}{tells}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,SIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "CLIENT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker may register again only when its old session is over: 9 s by default.
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "3000",
            "default.replication.factor": str(copies),
            "min.insync.replicas": str(in_sync),
            # The internal topics' usual 50 partitions each cost seconds on a small machine, and serve nobody here.
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(in_sync),
            "share.coordinator.state.topic.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": str(copies),
            "share.coordinator.state.topic.min.isr": str(in_sync),
            **self.properties,
        }

    def command(self) -> list[str]:
        return [
            *_jvm("-Dlog4j2.configurationFile=log4j2.properties"),
            "kafka.Kafka",
            "server.properties",
        ]

    def answers(self) -> bool:
        """Whether this very node is up in its cluster; a stranger on the port belongs to another."""
        said = ask_membership(self.port)
        return said.cluster_id == self._formatted_for() and self.node in said.nodes

    def _formatted_for(self) -> str | None:
        """The id of the cluster that the data belongs to."""
        for line in (
            (self.root / "data" / "meta.properties").read_text(encoding="latin-1").splitlines()
        ):
            if line.startswith("cluster.id="):
                return line.removeprefix("cluster.id=").replace("\\", "")
        return None


class LocalCluster:
    """One broker or three, and what one asks of all of them; a single node is asked by `nodes[i]`."""

    def __init__(
        self,
        brokers: int = 1,
        *,
        given_ports: Sequence[int] | None = None,
        root: Path | None = None,
        properties: Mapping[str, str] | None = None,
        start_timeout_s: float = 120.0,
        stop_timeout_s: float = 30.0,
        tied: bool = True,
    ) -> None:
        if brokers not in (1, 3):
            raise errors.SettingsError(
                f"a local Kafka of {brokers} brokers is not to be had", "ask for 1 or 3"
            )
        if given_ports is not None and len(given_ports) != brokers:
            raise errors.SettingsError(
                f"{len(given_ports)} ports were given for {brokers} brokers",
                "give one for each, or none",
            )
        self.cluster_id = new_cluster_id()
        self._ports_were_given = given_ports is not None
        self._has_answered = False
        self.nodes = tuple(
            Broker(
                port=given_ports[index] if given_ports else None,
                root=root / f"kafka-{index + 1}" if root else None,
                node=index + 1,
                properties=properties,
                start_timeout_s=start_timeout_s,
                stop_timeout_s=stop_timeout_s,
                tied=tied,
            )
            for index in range(brokers)
        )

    @property
    def bootstrap(self) -> str:
        """What a Kafka client takes as bootstrap servers."""
        return ",".join(node.address for node in self.nodes)

    @property
    def alive(self) -> bool:
        """Whether every node runs."""
        return all(node.alive for node in self.nodes)

    def start(self) -> None:
        """Start every node that does not run, on its old port and data, and return when all know each other."""
        java.find()
        artifacts.jars(
            "kafka"
        )  # here, where Ctrl-C is heard at once: a thread of the pool would be waited for
        for _ in range(server.ATTEMPTS_ON_FREE_PORTS):
            if not self._has_answered:
                self._choose_ports()
            with futures.ThreadPoolExecutor(len(self.nodes)) as pool:
                for launched in [pool.submit(node.launch) for node in self.nodes if not node.alive]:
                    launched.result()
            try:
                for node in self.nodes:
                    node.wait_ready()
                self._wait_for_each_other()
            except server.PortLost:
                self.kill()
                continue
            self._has_answered = True
            return
        raise errors.SettingsError(
            f"a port of the local Kafka ({self.bootstrap}) is taken by another program", "try again"
        )

    def stop(self) -> None:
        """Stop every node at once: the last ones could not find a quorum to sign off from."""
        with futures.ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Broker.stop, self.nodes))

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def pause(self) -> None:
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        for node in self.nodes:
            node.resume()

    def close(self) -> None:
        """End every node for good; temporary data goes with them."""
        with futures.ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Broker.close, self.nodes))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _choose_ports(self) -> None:
        chosen = ports.free(2 * len(self.nodes))
        peers = tuple(Peer(node.node, chosen.pop()) for node in self.nodes)
        for node in self.nodes:
            node.join(node.port if self._ports_were_given else chosen.pop(), peers, self.cluster_id)

    def _wait_for_each_other(self) -> None:
        deadline = time.monotonic() + self.nodes[0].start_timeout_s
        while not self._know_each_other():
            if time.monotonic() > deadline:
                raise errors.InstepError(
                    "the local brokers do not find each other", f"see {self.nodes[0].log}"
                )
            time.sleep(0.05)

    def _know_each_other(self) -> bool:
        expected = {node.node for node in self.nodes}
        try:
            return all(ask_membership(node.port).nodes == expected for node in self.nodes)
        except OSError:
            return False


def new_cluster_id() -> str:
    """A Kafka id: 16 random bytes in URL-safe base64, not starting with a dash that would read as an option."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


@dataclass(frozen=True)
class Membership:
    """What a broker says of its cluster: the cluster's id, and the ids of the brokers that live."""

    cluster_id: str | None
    nodes: frozenset[int]


def ask_membership(port: int, timeout_s: float = 1.0) -> Membership:
    """Ask the broker on this port, by a Metadata request (version 2, no topics)."""
    body = struct.pack(">hhih6si", 3, 2, 1, 6, b"instep", 0)
    with (
        socket.create_connection((ports.HOST, port), timeout=timeout_s) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(struct.pack(">i", len(body)) + body)
        size = struct.unpack(">i", _exactly(stream, 4))[0]
        answer = io.BytesIO(_exactly(stream, size))
    _, count = struct.unpack(">ii", _exactly(answer, 8))
    nodes = set()
    for _ in range(count):
        nodes.add(struct.unpack(">i", _exactly(answer, 4))[0])
        _read_string(answer)
        _exactly(answer, 4)
        _read_string(answer)
    return Membership(_read_string(answer), frozenset(nodes))


def _read_string(stream: BinaryIO) -> str | None:
    length = struct.unpack(">h", _exactly(stream, 2))[0]
    return None if length < 0 else _exactly(stream, length).decode(errors="replace")


def _exactly(stream: BinaryIO, size: int) -> bytes:
    read = stream.read(size)
    if len(read) != size:
        raise ConnectionError("the broker's answer broke off")
    return read


def _jvm(*flags: str) -> list[str]:
    jars = artifacts.jars("kafka")
    archived = class_archives.KAFKA.jvm_flags(jars)
    return [
        str(java.find()),
        *JVM_FLAGS,
        *archived,
        *flags,
        "-cp",
        class_archives.kafka_class_path(jars),
    ]
