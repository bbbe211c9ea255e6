"""Test that the in-memory double behaves as the publisher does."""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from datetime import UTC, datetime

import pytest

import instep.emit
from instep import errors, testing
from instep.document import partition
from instep.emit import AsyncPublisher, Delivery, MemoryPublisher, Publisher, StatusEvent
from instep.testing import AsyncMemoryPublisher

EVENT = StatusEvent(
    document="d-1", status="PRINTED", version=4, at=datetime(2026, 11, 1, 8, tzinfo=UTC)
)


def test_the_public_names() -> None:
    names = ["AsyncPublisher", "Delivery", "MemoryPublisher", "Publisher", "StatusEvent"]
    assert instep.emit.__all__ == names
    assert all(hasattr(instep.emit, name) for name in names)
    assert testing.MemoryPublisher is MemoryPublisher is instep.MemoryPublisher
    assert all(getattr(testing, name).__doc__ for name in testing.__all__)


METHODS = ["send", "delete", "send_raw", "flush", "metrics", "close"]
ENQUEUING = ["enqueue", "enqueue_delete", "enqueue_raw"]


@pytest.mark.parametrize(
    ("double", "real", "methods"),
    [
        (MemoryPublisher, Publisher, METHODS),
        (AsyncMemoryPublisher, AsyncPublisher, ["start", *METHODS, *ENQUEUING]),
    ],
)
def test_a_double_has_the_methods_and_parameters_of_the_publisher(
    double: type, real: type, methods: list[str]
) -> None:
    names = {name for name in vars(real) if not name.startswith("_")}
    assert names == set(methods)
    block = ("__aenter__", "__aexit__") if real is AsyncPublisher else ("__enter__", "__exit__")
    for name in (*names, *block):
        assert inspect.signature(getattr(double, name)) == inspect.signature(getattr(real, name))
    parameters = inspect.signature(double).parameters
    for name, parameter in inspect.signature(real).parameters.items():
        assert parameters[name].kind == parameter.kind
        assert name in ("bootstrap", "topic") or parameters[name].default == parameter.default


def test_the_publisher_for_asyncio_has_the_parameters_of_the_other() -> None:
    assert inspect.signature(AsyncPublisher) == inspect.signature(Publisher)


def test_it_keeps_the_records_that_were_sent() -> None:
    reported: list[tuple[errors.Undelivered | None, Delivery | None]] = []
    with MemoryPublisher("broker:9092", "print-status", source="print", partitions=12) as publisher:
        place = publisher.send(EVENT).result()
        publisher.send(
            EVENT, on_delivery=lambda error, delivery: reported.append((error, delivery))
        )
        publisher.delete("d-1")
        publisher.send_raw(b"d-2", b"{}", [("x", b"y")])
        publisher.flush()
    first, second, deletion, raw = publisher.records
    assert place == Delivery(
        "print-status", partition.partition_of(b"d-1", 12), 0, first.timestamp_ms
    )
    assert json.loads(first.value or b"") == {
        "doc_id": "d-1",
        "status": "PRINTED",
        "version": 4,
        "updated_at": "2026-11-01T08:00:00Z",
    }
    assert dict(first.headers)["ce_source"] == b"print"
    assert (second.offset, deletion.offset, deletion.value) == (1, 2, None)
    assert reported == [(None, Delivery("print-status", second.partition, 1, second.timestamp_ms))]
    assert raw.headers == [("x", b"y")]


@pytest.mark.parametrize(
    "event",
    [
        StatusEvent(document="", status="A"),
        StatusEvent(document="x" * 256, status="A"),
        StatusEvent(document="a\0b", status="A"),
        StatusEvent(document="\ud800", status="A"),
        StatusEvent(document="d", status="A", fields={"status": "B"}),
        StatusEvent(document="d", status="A", fields={"x": object()}),
    ],
)
def test_an_event_that_no_pipeline_could_decode_is_refused(event: StatusEvent) -> None:
    publisher = MemoryPublisher()
    with pytest.raises(errors.SettingsError, match="cannot be sent"):
        publisher.send(event)
    assert publisher.records == []


def test_a_key_is_required() -> None:
    publisher = MemoryPublisher()
    with pytest.raises(errors.SettingsError, match="must not be empty"):
        publisher.send_raw(b"", b"{}")
    with pytest.raises(errors.SettingsError, match="must not be empty"):
        publisher.delete("")
    with pytest.raises(errors.SettingsError, match="not UTF-8"):
        publisher.send_raw(b"\xff", b"{}")
    with pytest.raises(errors.SettingsError, match="must be bytes"):
        publisher.send_raw("text", b"{}")  # type: ignore[arg-type]
    assert publisher.records == []


def test_it_refuses_what_the_publisher_refuses() -> None:
    with pytest.raises(errors.SettingsError, match="acks"):
        MemoryPublisher(acks=0)
    publisher = MemoryPublisher()
    publisher.close()
    with pytest.raises(errors.Undelivered, match="closed"):
        publisher.send(EVENT)


def test_failing_deliveries_are_reported_as_those_of_a_broker() -> None:
    reported: list[tuple[errors.Undelivered | None, Delivery | None]] = []
    publisher = MemoryPublisher(topic="print-status")
    with publisher.failing_deliveries("disk full"):
        receipt = publisher.send(EVENT)
        publisher.send(EVENT, on_delivery=lambda error, place: reported.append((error, place)))
        publisher.send(EVENT)
    publisher.send(EVENT)
    with pytest.raises(errors.Undelivered, match="document 'd-1' was not accepted: disk full"):
        receipt.result()
    assert isinstance(reported[0][0], errors.Undelivered)
    assert reported[0][1] is None
    with pytest.raises(errors.Undelivered, match="1 record was not delivered to topic 'print-st"):
        publisher.flush()
    publisher.close()
    assert len(publisher.records) == 1
    found = publisher.metrics()
    assert (found.sent, found.delivered, found.failed, found.open) == (4, 1, 3, 0)
    assert found.last_error == "the record of document 'd-1' was not accepted: disk full"


def send_one(publisher: MemoryPublisher, error: Exception | None = None) -> None:
    """Let a delivery fail in the publisher's block, which then ends, perhaps with an error."""
    with publisher, publisher.failing_deliveries():
        publisher.send(EVENT)
        if error is not None:
            raise error


def test_an_ignored_failure_is_raised_when_the_block_ends() -> None:
    with pytest.raises(errors.Undelivered, match="1 record was not delivered"):
        send_one(MemoryPublisher())


def test_an_exception_in_the_block_is_not_hidden() -> None:
    with pytest.raises(KeyError) as caught:
        send_one(MemoryPublisher(), KeyError("mine"))
    assert "1 record was not delivered" in caught.value.__notes__[0]


def test_a_full_queue_raises_at_once() -> None:
    publisher = MemoryPublisher(block_timeout_s=5)
    with publisher.full_queue(), pytest.raises(errors.Undelivered, match=r"no space in .* 5 s"):
        publisher.send(EVENT)
    publisher.send(EVENT)
    assert len(publisher.records) == publisher.metrics().sent == 1


def test_the_double_for_asyncio_keeps_records_and_fails_on_demand() -> None:
    async def publish() -> AsyncMemoryPublisher:
        async with AsyncMemoryPublisher(topic="print-status", partitions=1) as publisher:
            assert (await publisher.send(EVENT)).offset == 0
            assert (await (await publisher.enqueue_delete("d-2"))).offset == 1
            assert (await publisher.send_raw(b"d-3", b"{}")).offset == 2
            with publisher.failing_deliveries(), pytest.raises(errors.Undelivered):
                await publisher.send(EVENT)
            with publisher.full_queue(), pytest.raises(errors.Undelivered, match="no space"):
                await publisher.enqueue(EVENT)
            await publisher.flush()
            with publisher.failing_deliveries():
                await publisher.enqueue(EVENT)
            with pytest.raises(errors.Undelivered, match="1 record was not delivered"):
                await publisher.flush()
        return publisher

    publisher = asyncio.run(publish())
    assert [record.key for record in publisher.records] == [b"d-1", b"d-2", b"d-3"]
    assert publisher.metrics().delivered == 3


def test_every_event_has_an_id_of_its_own() -> None:
    publisher = MemoryPublisher()
    for _ in range(1000):
        publisher.send(EVENT)
    ids = {dict(record.headers)["ce_id"] for record in publisher.records}
    assert len(ids) == 1000
    assert {uuid.UUID(one.decode()).version for one in ids} == {4}
