"""Test partitions against Java: every publisher of a topic must agree on a key's partition."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from instep.document import partition
from instep.emit import Publisher
from instep.local.broker import LocalCluster


def java_partition(classes: Any, key: bytes, partitions: int) -> int:
    chosen = classes.org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey(
        key, partitions
    )
    assert isinstance(chosen, int)
    return chosen


@hypothesis_settings(max_examples=300)
@example(b"", 1)
@example(b"\xff\xfe\xfd", 7)
@example("Verträge-№ 7 🖨️".encode(), 12)
@example(b"x" * 1_000_003, 6)
@given(st.binary(max_size=300), st.integers(1, 10_000))
def test_the_hash_equals_that_of_the_java_client(
    kafka_classes: Any, key: bytes, partitions: int
) -> None:
    hashed = kafka_classes.org.apache.kafka.common.utils.Utils.murmur2(key)
    assert partition.murmur2(key) == hashed & 0xFFFFFFFF
    assert partition.partition_of(key, partitions) == java_partition(kafka_classes, key, partitions)


def test_the_publisher_chooses_the_partition_that_java_would(
    kafka_classes: Any, broker: LocalCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(12)
    random_keys = random.Random(7)
    keys = [f"doc-{number}".encode() for number in range(100)]
    keys += [
        "".join(
            chr(random_keys.randrange(1, 0xD7FF)) for _ in range(random_keys.randrange(1, 40))
        ).encode()
        for _ in range(100)
    ]
    with Publisher(broker.bootstrap, topic) as publisher:
        sent = [(key, publisher.send_raw(key, b"{}")) for key in keys]
        chosen = {key: future.result(20).partition for key, future in sent}
    assert chosen == {key: java_partition(kafka_classes, key, 12) for key in keys}
    assert chosen == {key: partition.partition_of(key, 12) for key in keys}
    assert len(set(chosen.values())) == 12


@hypothesis_settings(max_examples=100)
@given(st.integers(1, 60), st.integers(1, 60))
def test_the_share_of_keys_that_move_is_counted_right(old: int, more: int) -> None:
    new, hashes = old + more, range(old * (old + more))
    moved = sum(number % old != number % new for number in hashes)
    assert partition.moved_share(old, new) == pytest.approx(moved / len(hashes))
