"""The workload of a benchmark: status events from a seed, the expected rows, and publishing.

M documents take turns: fresh event k is version k // M + 1 of document k % M. Some records are
older events sent again after a later one (stale), the latest event of a document sent twice
(repeated), or malformed values (bad). The last events are fresh, so that the last record of each
partition, the sentinel, shows that everything before it was applied.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from confluent_kafka import KafkaError, Message, Producer

from instep import errors, settings
from instep.document import partition
from instep.emit import guarantees
from instep.kafka import connection, faults

STATUSES = ("CREATED", "QUEUED", "PRINTING", "PRINTED")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SIZE_LEAST = 120  # the fields alone take nearly as much
TAIL = 1_000  # fresh events at the end, enough to reach every partition
SENT_AT_ONCE = 10_000
# Large batches: the time to fill the topic is not measured.
FAST: Mapping[str, Any] = {
    "linger.ms": 20,
    "batch.size": 500_000,
    "queue.buffering.max.messages": 200_000,
}
MALFORMED = (
    b"",
    b"{",
    b'{"status": "PRINTED"}',
    b"\xff\xfe\x00",
    b"[1, 2, 3]",
    b'{"doc_id": "", "status": "", "version": "x"}',
)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The number of records and the shares of each kind among all records."""

    events: int
    documents: int
    size: int = 150
    stale: float = 0.0
    repeated: float = 0.0
    bad: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("stale", "repeated", "bad"):
            if not 0 <= getattr(self, name) <= 1:
                raise errors.SettingsError(
                    f"the share of {name} events is {getattr(self, name)}",
                    "give a share from 0 to 1",
                )
        if self.stale + self.repeated + self.bad > 0.9:
            raise errors.SettingsError(
                "more than nine of ten events are stale, repeated or bad",
                "leave room for fresh events",
            )
        if self.documents < 1 or self.events < self.documents:
            raise errors.SettingsError(
                f"{self.events:,} events are too few for {self.documents:,} documents",
                "give at least one event per document",
            )
        if self.size < SIZE_LEAST:
            raise errors.SettingsError(
                f"an event of {self.size} bytes is too small", f"give at least {SIZE_LEAST} bytes"
            )


class ExpectedRow(msgspec.Struct, frozen=True):
    """What the table must hold for a document."""

    status: str
    version: int


class ExpectedState(msgspec.Struct, frozen=True):
    """The expected result of a load: the rows by document, and the number of records per kind."""

    rows: dict[str, ExpectedRow]
    records: int
    applied: int
    stale: int
    repeated: int
    bad: int
    sentinels: dict[str, ExpectedRow]  # the last event of each partition


class LoadRecord(msgspec.Struct, frozen=True):
    """A record of the load; the number is that of the fresh event, -1 for a bad record."""

    kind: str
    number: int
    key: bytes
    value: bytes


def document(number: int) -> str:
    return f"doc-{number:07}"


def status(version: int) -> str:
    return STATUSES[(version - 1) % len(STATUSES)]


def value(name: str, version: int, at: datetime, size: int) -> bytes:
    """Return a status event as JSON, padded to about this size."""
    time_text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    head = (
        f'{{"doc_id": "{name}", "status": "{status(version)}", "version": {version},'
        f' "updated_at": "{time_text}", "note": "'
    )
    return f'{head}{"." * max(0, size - len(head) - 2)}"}}'.encode()


def fresh(load: Load, number: int, kind: str = "fresh") -> LoadRecord:
    """Return the fresh event with this number."""
    version, which = divmod(number, load.documents)
    name = document(which)
    return LoadRecord(
        kind,
        number,
        name.encode(),
        value(name, version + 1, BEGIN + timedelta(milliseconds=number), load.size),
    )


def records(load: Load) -> Iterator[LoadRecord]:
    """Yield the load in the order of sending."""
    drawn = random.Random(load.seed)  # noqa: S311 - a repeatable workload, nothing secret
    last_disturbed = load.events - min(load.documents, TAIL)
    number = 0
    for index in range(load.events):
        kind = "fresh"
        if index < last_disturbed:
            kind = _draw(load, drawn, number)
        if kind == "stale":
            yield fresh(load, drawn.randrange(number - load.documents), kind)
        elif kind == "repeated":
            yield fresh(load, number - 1 - drawn.randrange(min(number, load.documents)), kind)
        elif kind == "bad":
            key = document(number % load.documents).encode()
            yield LoadRecord(kind, -1, key, MALFORMED[drawn.randrange(len(MALFORMED))])
        else:
            yield fresh(load, number)
            number += 1


def _draw(load: Load, drawn: random.Random, number: int) -> str:
    """Choose the kind of the next record; it is fresh while there is nothing to repeat."""
    if not (load.stale or load.repeated or load.bad):
        return "fresh"
    at = drawn.random()
    if at < load.bad:
        return "bad"
    if at < load.bad + load.repeated:
        if number:
            return "repeated"
    elif at < load.bad + load.repeated + load.stale and number > load.documents:
        return "stale"
    return "fresh"


def expected_state(load: Load, partitions: int) -> ExpectedState:
    """Return the expected outcome: the highest version of each document wins."""
    counts = {"fresh": 0, "stale": 0, "repeated": 0, "bad": 0}
    versions: dict[int, int] = {}
    for sent in records(load):
        counts[sent.kind] += 1
        if sent.kind != "bad":
            version, which = divmod(sent.number, load.documents)
            versions[which] = max(versions.get(which, 0), version + 1)
    rows = {
        document(which): ExpectedRow(status(version), version)
        for which, version in versions.items()
    }
    last = {}
    for number in range(max(0, counts["fresh"] - TAIL), counts["fresh"]):
        name = document(number % load.documents)
        last[partition.partition_of(name.encode(), partitions)] = name
    return ExpectedState(
        rows=rows,
        records=load.events,
        applied=counts["fresh"],
        stale=counts["stale"],
        repeated=counts["repeated"],
        bad=counts["bad"],
        sentinels={name: rows[name] for name in last.values()},
    )


def publish(load: Load, bootstrap: str, topic: str) -> None:
    """Send the whole load, in order per document, and wait for every answer."""
    send_all(records(load), bootstrap, topic)


def send_all(sendings: Iterable[LoadRecord], bootstrap: str, topic: str) -> None:
    """Send records at full speed, in order per document, and wait for every answer."""
    failed: list[KafkaError] = []
    count = 0

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    own = guarantees.producer_config("exactly-once", FAST)
    producer = Producer(
        {**connection.client_config(settings.Kafka(), bootstrap), **own}, logger=faults.log
    )
    try:
        batch: list[dict[str, bytes]] = []
        for sent in sendings:
            count += 1
            batch.append({"key": sent.key, "value": sent.value})
            if len(batch) == SENT_AT_ONCE:
                _send(producer, topic, batch, on_delivery)
                batch = []
        _send(producer, topic, batch, on_delivery)
        left = producer.flush(120)
    finally:
        producer.close()
    if failed or left:
        reason = failed[0].str() if failed else "no answer within two minutes"
        raise errors.Undelivered(
            f"{len(failed) + left:,} of {count:,} records were not delivered to topic {topic!r}:"
            f" {reason}"
        )


def _send(producer: Producer, topic: str, batch: list[dict[str, bytes]], on_delivery: Any) -> None:
    """Send a batch as soon as the client's queue has room for all of it.

    If only a part were accepted, a later event of a document could overtake an earlier one.
    """
    while len(producer) + len(batch) > FAST["queue.buffering.max.messages"]:
        producer.poll(0.02)
    if producer.produce_batch(topic, batch, on_delivery=on_delivery) < len(batch):
        refused = next(one for one in batch if "_error" in one)
        raise errors.Undelivered(
            f"the client did not accept a record for topic {topic!r}: {refused['_error']!r}"
        )
    producer.poll(0)
