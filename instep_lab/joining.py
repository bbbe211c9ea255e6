"""A second broker that joins a running cluster of one, for experiments that need exactly that.

The clusters of the lab have one broker or three, which are all controllers as well. Such an
experiment starts its own cluster and ends it afterwards: a broker that has left would stay
registered in the metadata of a shared one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from instep import settings
from instep.local import broker, ports
from instep_lab.cluster_pool import PROPERTIES, LabCluster


class JoiningBroker(broker.Broker):
    """A node that is only a broker and registers with the controller of a running node."""

    def __init__(
        self,
        first: broker.Broker,
        *,
        root: Path | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(node=2, root=root, properties=properties, short_lived=True)
        self.peers, self.cluster_id = first.peers, first.cluster_id

    @property
    def controller_port(self) -> int:
        return self.peers[0].controller_port

    def choose_ports(self) -> None:
        if not self._port_is_fixed:
            self._port = ports.free()[0]

    def all_properties(self) -> dict[str, str]:
        return {
            **super().all_properties(),
            "process.roles": "broker",
            "listeners": f"CLIENT://{ports.HOST}:{self.port}",
            **self.properties,
        }


class TwoBrokers:
    """A cluster of one broker, and a second one that joins when it is started."""

    def __init__(
        self,
        *,
        second_root: Path | None = None,
        properties: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        """Start the first broker. `properties` are additional ones, by broker."""
        given = properties or {}
        self._own = broker.LocalCluster(
            1, properties={**PROPERTIES, **given.get(1, {})}, short_lived=True
        )
        self._own.start()
        self.first = self._own.nodes[0]
        self.second = JoiningBroker(
            self.first, root=second_root, properties={**PROPERTIES, **given.get(2, {})}
        )
        self.cluster = LabCluster(settings.Kafka(), self._own.bootstrap, self._own)

    def close(self) -> None:
        self.second.kill()
        self.second.close()
        self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
