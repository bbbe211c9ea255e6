"""The commits of a group in the order in which the broker stored them, from its offsets topic."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from instep import errors
from instep_lab.clients.consuming import DEFAULTS

TOPIC = "__consumer_offsets"
COMMIT_KEYS = (0, 1)  # versions of the key of a commit; 2 is the metadata of a group
PATIENCE_S = 60.0
OFFSET_COMMIT, WITH_RETENTION = 8, 2  # the request's key, and its last version with a retention


def commits(connection: Mapping[str, Any], group: str, topic: str, partition: int) -> list[int]:
    """Return the offsets committed for a partition that compaction has left, oldest first."""
    consumer = Consumer({**DEFAULTS, **connection, "group.id": group, "enable.partition.eof": True})
    try:
        parts = consumer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in parts])
        found, ended = [], set[int]()
        deadline = time.monotonic() + PATIENCE_S
        while len(ended) < len(parts):
            if time.monotonic() > deadline:
                raise errors.InstepError(
                    f"could not read topic {TOPIC} to its end within {PATIENCE_S:.0f} s"
                )
            for message in consumer.consume(1_000, 1.0):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
                elif error is not None:
                    raise errors.InstepError(f"cannot read topic {TOPIC}: {error.str()}")
                elif (value := message.value()) and decode_key(message.key() or b"") == (
                    group,
                    topic,
                    partition,
                ):
                    # The value begins with its version and the offset. An expired commit has none.
                    found.append(int(struct.unpack_from(">hq", value)[1]))
        return found
    finally:
        consumer.close()


def position(connection: Mapping[str, Any], group: str, topic: str, partition: int) -> int | None:
    """Return the committed offset of a partition; None without one or without a coordinator yet.

    This uses a consumer, because librdkafka's admin client crashes when a coordinator moves.
    """
    consumer = Consumer({**DEFAULTS, **connection, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, partition)], timeout=10)[0].offset
    except KafkaException:
        return None
    else:
        if found < 0:
            return None
        return found
    finally:
        consumer.close()


def decode_key(key: bytes) -> tuple[str, str, int] | None:
    """Return group, topic and partition of a commit's key; None for other keys."""
    if len(key) < 2 or struct.unpack_from(">h", key)[0] not in COMMIT_KEYS:
        return None
    # Behind the version: group and topic, each with its length, and the partition.
    at, texts = 2, []
    for _ in range(2):
        (length,) = struct.unpack_from(">h", key, at)
        texts.append(key[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return texts[0], texts[1], int(struct.unpack_from(">i", key, at)[0])


def commit_with_retention(
    bootstrap: str, group: str, topic: str, places: Mapping[int, int], retention_ms: int
) -> None:
    """Commit offsets that the broker removes after this time, as clients before 2.1 could.

    No client of today can, so the request is written by hand, to a broker without encryption.
    """
    body = struct.pack(">hhi", OFFSET_COMMIT, WITH_RETENTION, 1) + _text("instep-lab")
    # the group, no generation, no member, the retention, and one topic
    body += _text(group) + struct.pack(">i", -1) + _text("") + struct.pack(">q", retention_ms)
    body += struct.pack(">i", 1) + _text(topic) + struct.pack(">i", len(places))
    for partition, offset in places.items():
        body += struct.pack(">iq", partition, offset) + _text("")
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", stream.read(4))
        answer = stream.read(size)
    # the answer ends with the error code of the last partition
    (error,) = struct.unpack(">h", answer[-2:])
    if error:
        raise errors.InstepError(f"the broker refused a commit of group {group!r}: error {error}")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded
