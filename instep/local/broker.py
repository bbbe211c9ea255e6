"""A local Kafka: one node, or three that form a cluster. Each is KRaft controller and broker."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import shutil
import socket
import struct
import uuid
from collections.abc import Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from instep import errors
from instep.local import artifacts, class_archives, java, paths, ports, server
from instep.local.lifetime import Lifetime
from instep.waiting import wait_until

JVM_FLAGS = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)
# Java's optimising compiler takes more processor time than it saves a broker of a few minutes.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"
CHECKPOINT = "bootstrap.checkpoint"  # the features with which a node begins
# Properties with these beginnings change where or what a format writes.
FORMAT_PROPERTIES = ("controller.", "log.dir", "metadata.", "process.", "unstable.")
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
    """A node of the cluster, and the port of its controller."""

    node: int
    controller_port: int


@dataclass(frozen=True)
class ProxiedListener:
    """A second listener that advertises the port of a proxy in front of it."""

    port: int
    advertised_port: int


class Broker(server.Server):
    """One node. Alone it is a complete cluster; with peers it needs a quorum to be ready.

    A broker that is short-lived starts in half the processor time, and is slower under load.
    """

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
        short_lived: bool = False,
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
        self._short_lived = short_lived
        self.peers: tuple[Peer, ...] = ()
        self.cluster_id = new_cluster_id()
        self.proxied: ProxiedListener | None = None

    @property
    def address(self) -> str:
        return f"{ports.HOST}:{self.port}"

    @property
    def bootstrap(self) -> str:
        """Return the bootstrap servers for a Kafka client."""
        return self.address

    @property
    def controller_port(self) -> int:
        """Return the port of this node's controller."""
        return next(peer.controller_port for peer in self.peers if peer.node == self.node)

    def join(self, port: int, peers: tuple[Peer, ...], cluster_id: str) -> None:
        """Make this a node of a cluster, which chooses the ports."""
        self._port, self.peers, self.cluster_id = port, peers, cluster_id

    def choose_ports(self) -> None:
        if len(self.peers) < 2:
            port, controller_port = ports.free(2)
            if not self._port_is_fixed:
                self._port = port
            self.peers = (Peer(self.node, controller_port),)

    def prepare(self) -> None:
        """Write the node's properties; format its log folder at the first start."""
        text = "".join(f"{key}={value}\n" for key, value in self.all_properties().items())
        (self.root / "server.properties").write_text(text, encoding="latin-1")
        (self.root / "log4j2.properties").write_text(LOG4J, encoding="latin-1")
        if not (self.root / "data" / "meta.properties").exists():
            self._format()

    def _format(self) -> None:
        """Format the log folder.

        Kafka's tool needs a JVM for it, which takes a second. What it writes, apart from the ids,
        is the same for every node of this Kafka, so it is kept in the cache and copied.
        """
        data = self.root / "data"
        kept = paths.cache() / f"{class_archives.kafka_home().name}-{CHECKPOINT}"
        depends = any(name.startswith(FORMAT_PROPERTIES) for name in self.properties)
        if not depends and kept.exists():
            data.mkdir(exist_ok=True)
            shutil.copyfile(kept, data / CHECKPOINT)
            ids = {
                "version": "1",
                "cluster.id": self.cluster_id,
                "node.id": str(self.node),
                "directory.id": new_cluster_id(),
            }
            text = "".join(f"{name}={value}\n" for name, value in ids.items())
            # Last, and at once: its existence says that the folder is formatted.
            (self.root / "meta.new").write_text(text, encoding="latin-1")
            (self.root / "meta.new").rename(data / "meta.properties")
            return
        arguments = [
            "format",
            "--cluster-id",
            self.cluster_id,
            "--config",
            "server.properties",
            "--ignore-formatted",
        ]
        self.run_step([*_jvm(SHORT_LIVED), "kafka.tools.StorageTool", *arguments])
        if not depends:
            with contextlib.suppress(OSError):  # without the copy, the next format takes longer
                new = kept.with_name(f"{kept.name}.{os.getpid()}-{self.node}.new")
                shutil.copyfile(data / CHECKPOINT, new)
                new.rename(kept)

    def all_properties(self) -> dict[str, str]:
        """Return the node's properties.

        Paths are relative to its folder, because log.dirs would split a path at a comma.
        """
        copies, in_sync = (3, 2) if len(self.peers) >= 3 else (1, 1)
        client = f"CLIENT://{ports.HOST}:{self.port}"
        controller = f"CONTROLLER://{ports.HOST}:{self.controller_port}"
        proxied, advertised_proxied = "", ""
        if self.proxied:
            proxied = f",PROXIED://{ports.HOST}:{self.proxied.port}"
            advertised_proxied = f",PROXIED://{ports.HOST}:{self.proxied.advertised_port}"
        voters = [f"{peer.node}@{ports.HOST}:{peer.controller_port}" for peer in self.peers]
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"{client},{controller}{proxied}",
            "advertised.listeners": f"{client}{advertised_proxied}",
            "listener.security.protocol.map": (
                "CLIENT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "inter.broker.listener.name": "CLIENT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker may register again only when its old session is over: 9 s by default.
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "3000",
            # An idle controller writes an empty record twice a second, for monitoring: a third of
            # an idle broker's processor time.
            "metadata.max.idle.interval.ms": "0",
            "default.replication.factor": str(copies),
            "min.insync.replicas": str(in_sync),
            # The default of 50 partitions for internal topics costs seconds on a small machine.
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
        compiler = [SHORT_LIVED] if self._short_lived else []
        return [
            *_jvm("-Dlog4j2.configurationFile=log4j2.properties", *compiler),
            "kafka.Kafka",
            "server.properties",
        ]

    def answers(self) -> bool:
        """Return whether this node is up. Another broker on the port belongs to another cluster."""
        membership = ask_membership(self.port)
        return membership.cluster_id == self._formatted_for() and self.node in membership.nodes

    @property
    def disk_id(self) -> str | None:
        """The id of the log folder, which a folder gets when it is formatted."""
        return self._formatted("directory.id")

    def _formatted_for(self) -> str | None:
        """Return the id of the cluster that the data belongs to."""
        return self._formatted("cluster.id")

    def _formatted(self, name: str) -> str | None:
        """Return a property that the log folder was formatted with."""
        properties = (self.root / "data" / "meta.properties").read_text(encoding="latin-1")
        for line in properties.splitlines():
            if line.startswith(f"{name}="):
                return line.removeprefix(f"{name}=").replace("\\", "")
        return None


class LocalCluster(Lifetime):
    """One broker or three, operated together; `nodes` gives access to a single one."""

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
        short_lived: bool = False,
    ) -> None:
        if brokers not in (1, 3):
            raise errors.SettingsError(
                f"a local Kafka cannot have {brokers} brokers", "choose 1 or 3"
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
                short_lived=short_lived,
            )
            for index in range(brokers)
        )

    @property
    def bootstrap(self) -> str:
        """Return the bootstrap servers for a Kafka client."""
        return ",".join(node.address for node in self.nodes)

    @property
    def alive(self) -> bool:
        """Return whether every node runs."""
        return all(node.alive for node in self.nodes)

    def start(self) -> None:
        """Start every dead node on its old port and data; wait until all know each other."""
        java.find()
        # Fetch here, where Ctrl-C interrupts at once; it would wait for a thread of the pool.
        artifacts.jars("kafka")
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
            except errors.PortLost:
                self.kill()
                continue
            self._has_answered = True
            return
        raise errors.PortTaken(
            f"a port of the local Kafka ({self.bootstrap}) is taken by another program", "try again"
        )

    def stop(self) -> None:
        """Stop all nodes at the same time: the last one would find no quorum to sign off from."""
        with futures.ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Broker.stop, self.nodes))

    def kill(self) -> None:
        """Kill every node."""
        for node in self.nodes:
            node.kill()

    def pause(self) -> None:
        """Freeze every node."""
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        """Continue every node."""
        for node in self.nodes:
            node.resume()

    def close(self) -> None:
        """End every node for good and remove temporary data."""
        with futures.ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Broker.close, self.nodes))

    def _choose_ports(self) -> None:
        chosen = ports.free(2 * len(self.nodes))
        peers = tuple(Peer(node.node, chosen.pop()) for node in self.nodes)
        for node in self.nodes:
            port = node.port if self._ports_were_given else chosen.pop()
            node.join(port, peers, self.cluster_id)

    def _wait_for_each_other(self) -> None:
        if not wait_until(self._know_each_other, self.nodes[0].start_timeout_s, interval_s=0.05):
            raise errors.InstepError(
                "the local brokers do not find each other", f"see {self.nodes[0].log}"
            )

    def _know_each_other(self) -> bool:
        expected = {node.node for node in self.nodes}
        try:
            return all(ask_membership(node.port).nodes == expected for node in self.nodes)
        except OSError:
            return False


def new_cluster_id() -> str:
    """Return a Kafka id: 16 random bytes in URL-safe base64.

    It does not start with a dash, which would look like an option.
    """
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


@dataclass(frozen=True)
class Membership:
    """The cluster as a broker sees it: its id, and the ids of the live brokers."""

    cluster_id: str | None
    nodes: frozenset[int]


def ask_membership(port: int, timeout_s: float = 1.0) -> Membership:
    """Ask the broker on this port with a Metadata request (version 2, no topics)."""
    # Request header: API key (3 is Metadata), version, correlation id and client id, a string with
    # its length. Body: an empty array of topics, which asks for no topic.
    body = struct.pack(">hhih6si", 3, 2, 1, 6, b"instep", 0)
    with (
        socket.create_connection((ports.HOST, port), timeout=timeout_s) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(struct.pack(">i", len(body)) + body)
        size = struct.unpack(">i", _exactly(stream, 4))[0]
        answer = io.BytesIO(_exactly(stream, size))
    # Response: correlation id, then an array of brokers with id, host, port and rack each, then
    # the cluster's id. The rest, the controller and the topics, is not needed.
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
    if length < 0:
        return None
    return _exactly(stream, length).decode(errors="replace")


def _exactly(stream: BinaryIO, size: int) -> bytes:
    read = stream.read(size)
    if len(read) != size:
        raise ConnectionError("the broker's answer is incomplete")
    return read


def _jvm(*flags: str) -> list[str]:
    archived = class_archives.KAFKA.jvm_flags()
    return [
        str(java.find()),
        *JVM_FLAGS,
        *archived,
        *flags,
        "-cp",
        class_archives.kafka_class_path(),
    ]
