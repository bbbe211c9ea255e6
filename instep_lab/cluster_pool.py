"""What experiments run on: brokers of the lab's own, started when they are first needed, or a cluster of the user's."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from instep import errors, settings
from instep.kafka import connection, layout
from instep.kafka.admin import admin_extras
from instep.local import broker, ports
from instep.local.proxy import Proxy

# So that what takes minutes with a broker's defaults takes seconds here: sessions of dead consumers, deletion of old segments.
PROPERTIES: Mapping[str, str] = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "500",
}


class LabCluster:
    """A cluster to experiment on. Only the lab's own has nodes, which faults may go to, and proxies before them."""

    def __init__(
        self,
        kafka: settings.Kafka,
        bootstrap: str,
        own: broker.LocalCluster | None = None,
        proxies: Mapping[int, Proxy] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.cluster = connection.Cluster(kafka, bootstrap)
        self.connection = connection.client_config(kafka, bootstrap)
        self.own = own
        self.proxies = dict(proxies or {})

    @property
    def brokers(self) -> int:
        return len(layout.read(self.cluster).brokers)

    @functools.cached_property
    def features(self) -> Mapping[str, int]:
        """What the cluster has switched on; group.version 1 is the new consumer protocol, share.version 1 share groups."""
        with admin_extras.opened(self.cluster) as asked:
            return (asked.features() if asked else None) or {}

    @property
    def protocols(self) -> tuple[str, ...]:
        """How members can share partitions: agreed among themselves, and since Kafka 4.0 also told by the brokers."""
        return (
            ("classic", "consumer") if self.features.get("group.version", 0) >= 1 else ("classic",)
        )

    def node(self, number: int) -> broker.Broker:
        """A node that may be killed and frozen: one that the lab started."""
        if self.own is None:
            raise errors.SettingsError(
                "faults go only to brokers that the lab started", "leave --bootstrap out"
            )
        return self.own.nodes[number - 1]

    @property
    def proxied(self) -> dict[str, Any]:
        """How to reach the cluster through the proxies."""
        return {
            **self.connection,
            "bootstrap.servers": ",".join(
                f"{ports.HOST}:{one.port}" for one in self.proxies.values()
            ),
        }

    def mend(self) -> None:
        """Let the proxies behave, thaw what is frozen, start what is dead and wait for that."""
        for proxy in self.proxies.values():
            proxy.behave()
        if self.own:
            self.own.resume()
            if not self.own.alive:
                self.own.start()

    def wait_whole(self, topic: str, timeout_s: float = 60.0) -> None:
        """Return when every replica of the topic is in sync."""
        deadline = time.monotonic() + timeout_s
        while True:
            # KeyError: not every broker's metadata has a topic that was just created
            with contextlib.suppress(errors.InstepError, KeyError):
                found = layout.read(self.cluster).topics[topic]
                if all(
                    part.leader is not None and set(part.in_sync) == set(part.replicas)
                    for part in found.partitions
                ):
                    return
            if time.monotonic() > deadline:
                raise errors.InstepError(
                    f"the replicas of topic {topic!r} are not in sync after {timeout_s:.0f} s"
                )
            time.sleep(0.05)

    def close(self) -> None:
        self.cluster.close()
        for proxy in self.proxies.values():
            proxy.close()
        if self.own:
            self.own.close()


class ClusterPool:
    """The clusters of one run."""

    def __init__(
        self, given: tuple[settings.Kafka, str] | None, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._grounds: dict[int, LabCluster] = {}
        self._given = LabCluster(*given) if given else None

    def of(self, brokers: int) -> LabCluster | None:
        """The user's cluster if there is one; else one of our own with so many brokers, or none for an experiment without."""
        if self._given:
            return self._given
        if brokers == 0:
            return None
        if brokers not in self._grounds:
            self._say(
                f"starting {brokers} Kafka {'broker' if brokers == 1 else 'brokers'} on this machine"
            )
            self._grounds[brokers] = _own(brokers)
        return self._grounds[brokers]

    def drop(self, brokers: int) -> None:
        """Give up a cluster of our own that does not come back; the next that asks gets a new one."""
        if ground := self._grounds.pop(brokers, None):
            ground.close()

    def close(self) -> None:
        for ground in (*self._grounds.values(), *((self._given,) if self._given else ())):
            ground.close()
        self._grounds.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _own(brokers: int) -> LabCluster:
    own = broker.LocalCluster(brokers, properties=PROPERTIES)
    proxies: dict[int, Proxy] = {}
    try:
        for node in own.nodes:
            port, told_port = ports.free(2)
            node.side_door = broker.ProxiedListener(port, told_port)
            proxies[node.node] = Proxy(port, told_port)
            proxies[node.node].start()
        own.start()
        return LabCluster(settings.Kafka(), own.bootstrap, own, proxies)
    except BaseException:
        for proxy in proxies.values():
            proxy.close()
        own.close()
        raise
