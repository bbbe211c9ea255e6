"""Fixtures of the tests of source databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from instep import settings
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster


@pytest.fixture
def cluster(broker: LocalCluster) -> Iterator[Cluster]:
    with Cluster(settings.Kafka(), broker.bootstrap) as opened:
        yield opened
