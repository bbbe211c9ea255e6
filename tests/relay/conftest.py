"""Fixtures of the relay's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from instep import settings
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster
from tests.support.print_shop import PrintShop
from tests.support.relays import declare


@pytest.fixture
def cluster(broker: LocalCluster) -> Iterator[Cluster]:
    with Cluster(settings.Kafka(), broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def open_shop(new_database: Callable[[str], str], cluster: Cluster) -> Callable[..., PrintShop]:
    """Return a function that opens a print shop on a new database of a kind, with a relay."""

    def make(kind: str, **changes: Any) -> PrintShop:
        name, relay = declare(new_database(kind), cluster, **changes)
        return PrintShop(relay, name)

    return make
