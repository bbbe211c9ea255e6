"""The clusters that experiments run on: the lab's own or the user's.

The lab starts its own brokers when an experiment first needs them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from instep import errors, settings
from instep.document.showing import counted
from instep.kafka import admin_extras, configs, connection, layout
from instep.local import broker, ports
from instep.local.proxy import Proxy
from instep.waiting import wait_until
from instep_lab.clients import java_host
from instep_lab.store import BrokerSetting

# Shorter than the defaults, so that expired sessions and deleted segments take seconds instead of
# minutes.
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
    "offsets.retention.check.interval.ms": "500",
}


OWN_SETTINGS = (
    "advertised.listeners",
    "broker.id",
    "controller.listener.names",
    "controller.quorum.",
    "inter.broker.listener.name",
    "listener",
    "log.dir",
    "node.id",
    "process.roles",
)


class LabCluster:
    """A cluster to experiment on.

    Only the lab's own cluster has nodes, into which faults may be injected, and proxies in front of
    them.
    """

    def __init__(
        self,
        kafka: settings.Kafka,
        bootstrap: str,
        own: broker.LocalCluster | None = None,
        proxies: Mapping[int, Proxy] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.kafka = connection.Cluster(kafka, bootstrap)
        self.connection = connection.client_config(kafka, bootstrap)
        self.own = own
        self.proxies = dict(proxies or {})
        self._java_host: java_host.JavaHost | None = None
        self._java_lock = threading.Lock()

    @property
    def brokers(self) -> int:
        return len(layout.read(self.kafka).brokers)

    @functools.cached_property
    def features(self) -> Mapping[str, int]:
        """The enabled features and their levels.

        group.version 1 is the new consumer protocol, share.version 1 means share groups.
        """
        with admin_extras.connect(self.kafka) as extras:
            return (extras.features() if extras else None) or {}

    @property
    def protocols(self) -> tuple[str, ...]:
        """The rebalance protocols that the cluster supports.

        With "classic" the members agree on the assignment, with "consumer" (Kafka 4.0 or newer)
        the brokers decide it.
        """
        if self.features.get("group.version", 0) >= 1:
            return ("classic", "consumer")
        return ("classic",)

    def changed_settings(self) -> dict[str, BrokerSetting]:
        """Return the settings of the first broker that differ from Kafka's defaults.

        Names and addresses differ from broker to broker and say nothing about behaviour.
        """
        nodes = layout.read(self.kafka).brokers
        found = configs.changed_by_broker(self.kafka, min(nodes))
        return {
            name: BrokerSetting(value, default)
            for name, (value, default) in sorted(found.items())
            if not name.startswith(OWN_SETTINGS)
        }

    def node(self, number: int) -> broker.Broker:
        """Return a node that the lab started, which may be killed and frozen."""
        if self.own is None:
            raise errors.SettingsError(
                "the lab injects faults only into brokers that it started", "omit --bootstrap"
            )
        return self.own.nodes[number - 1]

    @property
    def proxied(self) -> dict[str, Any]:
        """The client settings that connect through the proxies."""
        addresses = ",".join(f"{ports.HOST}:{proxy.port}" for proxy in self.proxies.values())
        return {**self.connection, "bootstrap.servers": addresses}

    def java_connection(self, config: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings of a Java client for the same addresses as those of librdkafka."""
        return connection.java_config(self.kafka.kafka, config["bootstrap.servers"])

    def java_host(self) -> java_host.JavaHost:
        """Return the JVM for Java clients; start one if there is none that still runs."""
        with self._java_lock:
            if self._java_host is None or self._java_host.status is not None:
                if self._java_host is not None:
                    self._java_host.close()
                self._java_host = java_host.JavaHost()
            return self._java_host

    def recover(self) -> None:
        """Clear the proxies' faults, resume frozen brokers, and restart dead ones."""
        for proxy in self.proxies.values():
            proxy.clear_fault()
        if self.own:
            self.own.resume()
            if not self.own.alive:
                self.own.start()

    def wait_in_sync(self, topic: str, timeout_s: float = 60.0) -> None:
        """Wait until every replica of the topic is in sync."""

        def is_in_sync() -> bool:
            try:
                partitions = layout.read(self.kafka).topics[topic].partitions
            # KeyError: not every broker's metadata has a topic that was just created
            except (errors.InstepError, KeyError):
                return False
            return all(
                part.leader is not None and set(part.in_sync) == set(part.replicas)
                for part in partitions
            )

        if not wait_until(is_in_sync, timeout_s, interval_s=0.05):
            raise errors.InstepError(
                f"the replicas of topic {topic!r} are not in sync after {timeout_s:.0f} s"
            )

    def close(self) -> None:
        if self._java_host is not None:
            self._java_host.close()
        self.kafka.close()
        for proxy in self.proxies.values():
            proxy.close()
        if self.own:
            self.own.close()


class ClusterPool:
    """The clusters of one run."""

    def __init__(
        self,
        given: tuple[settings.Kafka, str] | None,
        say: Callable[[str], None],
        *,
        short_lived: bool = True,
    ) -> None:
        self._say, self._short_lived = say, short_lived
        self._clusters: dict[int, LabCluster] = {}
        self._given = LabCluster(*given) if given else None

    def of(self, brokers: int) -> LabCluster | None:
        """Return the user's cluster, or start one with this many brokers.

        Return None for an experiment that needs no brokers.
        """
        if self._given:
            return self._given
        if brokers == 0:
            return None
        if brokers not in self._clusters:
            self._say(f"starting {counted(brokers, 'Kafka broker')} on this machine")
            self._clusters[brokers] = _start_cluster(brokers, short_lived=self._short_lived)
        return self._clusters[brokers]

    def drop(self, brokers: int) -> None:
        """Discard a cluster that did not recover; the next call of `of` starts a new one."""
        if cluster := self._clusters.pop(brokers, None):
            cluster.close()

    def close(self) -> None:
        for cluster in (*self._clusters.values(), *((self._given,) if self._given else ())):
            cluster.close()
        self._clusters.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_cluster(brokers: int, *, short_lived: bool) -> LabCluster:
    own = broker.LocalCluster(brokers, properties=PROPERTIES, short_lived=short_lived)
    proxies: dict[int, Proxy] = {}
    try:
        for node in own.nodes:
            port, target_port = ports.free(2)
            node.proxied = broker.ProxiedListener(port, target_port)
            proxies[node.node] = Proxy(port, target_port)
            proxies[node.node].start()
        own.start()
        return LabCluster(settings.Kafka(), own.bootstrap, own, proxies)
    except BaseException:
        for proxy in proxies.values():
            proxy.close()
        own.close()
        raise
