"""A function that runs streams in the tests' Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from instep import settings
from instep.kafka.connection import Cluster
from instep.streams.runner import StreamRunner
from tests.support.streams import Copy, OwnStreamRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def copy(spark: SparkSession, cluster: Cluster) -> Iterator[Copy]:
    """Return a function that starts streams. Stop them at the end."""
    started: list[StreamRunner] = []

    def make(name: str, stream: settings.Stream, *, once: bool = False) -> StreamRunner:
        one = OwnStreamRunner(name, stream, cluster, spark, once=once)
        started.append(one)
        one.start()
        return one

    yield make
    for one in started:
        one.stop(patience_s=60)
