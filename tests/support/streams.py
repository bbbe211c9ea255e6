"""Streams for tests: declared between two new topics, and run in the tests' Spark session."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from instep import settings
from instep.kafka import offsets, reading, topics
from instep.kafka.connection import Cluster
from instep.kafka.offsets import LogRecord
from instep.streams import output
from instep.streams.resident import ResidentStreams
from instep.streams.runner import StreamEngine, StreamRunner
from instep.streams.transforming import TransformingStreams
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 2

Copy = Callable[..., StreamRunner]


class OwnStreamRunner(StreamRunner):
    """A runner whose engine is its own and ends with it."""

    def __init__(
        self,
        name: str,
        stream: settings.Stream,
        cluster: Cluster,
        spark: SparkSession,
        *,
        once: bool,
    ) -> None:
        self._closing = contextlib.ExitStack()
        engine: StreamEngine
        if stream.is_transformed:
            folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory()))
            engine = TransformingStreams(spark, cluster, folder)
        else:
            engine = self._closing.enter_context(
                contextlib.closing(ResidentStreams(spark.sparkContext, cluster, tasks=TASKS))
            )
        super().__init__(name, stream, cluster, engine, once=once)

    def run(self) -> None:
        with self._closing:
            super().run()


def declare(
    cluster: Cluster,
    *,
    partitions: tuple[int, int] = (3, 2),
    source: str | None = None,
    **changes: Any,
) -> tuple[str, settings.Stream]:
    """Create two topics, and return the name and the settings of a stream between them."""
    name = f"stream-{uuid.uuid4().hex[:8]}"
    for topic, count in zip((f"{name}-etl", f"{name}-analyze"), partitions, strict=True):
        topics.create(cluster, topic, count)
    table = {"from": source or f"{name}-etl", "to": f"{name}-analyze", **changes}
    return name, msgspec.convert(table, settings.Stream)


def log(cluster: Cluster, topic: str, *, committed: bool = True) -> list[LogRecord]:
    """Return the records of a topic, in order per partition."""
    parts = topics.describe(cluster, topic).partitions
    ends = offsets.latest(cluster, topic, parts, committed)
    return [
        offsets.record(message, partition)
        for partition, message in reading.messages(
            cluster, topic, {part: (0, ends[part]) for part in parts}, committed=committed
        )
    ]


def own_id(record: LogRecord) -> str:
    """Return the id that the stream gave a record."""
    (value,) = [value for name, value in record.headers if name == output.ID]
    assert value is not None
    return value.decode()


def contents(records: Iterable[LogRecord]) -> Counter[tuple[Any, ...]]:
    """Return what was sent by whoever sent it: key, value and headers, without the stream's id."""
    return Counter(
        (one.key, one.value, tuple(pair for pair in one.headers if pair[0] != output.ID))
        for one in records
    )


def by_key(records: Iterable[LogRecord]) -> dict[bytes | None, list[bytes | None]]:
    """Return the values of each key, in order."""
    values: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for record in records:
        values[record.key].append(record.value)
    return dict(values)


def same(cluster: Cluster, stream: settings.Stream) -> bool:
    """Return whether the output has each record of the input once, in the order of its key.

    Producers spread records with an empty key over the partitions, so they have no order.
    """
    sent, published = log(cluster, stream.source), log(cluster, stream.target)
    in_order = [
        {key: one for key, one in by_key(all_).items() if key} for all_ in (sent, published)
    ]
    return contents(sent) == contents(published) and in_order[0] == in_order[1]


def wait_same(cluster: Cluster, stream: settings.Stream, patience_s: float = 60.0) -> None:
    """Wait until the output has what the input has."""
    wait_until(lambda: same(cluster, stream), "the records in the output", patience_s=patience_s)
