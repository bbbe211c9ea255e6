"""Test that the in-memory double behaves as the publisher does."""

from __future__ import annotations

import inspect
import json
from datetime import UTC, datetime

import pytest

import instep.emit
from instep import errors
from instep.document import partition
from instep.emit import Delivery, MemoryPublisher, Publisher, StatusEvent

EVENT = StatusEvent(
    document="d-1", status="PRINTED", version=4, at=datetime(2026, 11, 1, 8, tzinfo=UTC)
)


def test_the_public_names() -> None:
    assert instep.emit.__all__ == ["Delivery", "MemoryPublisher", "Publisher", "StatusEvent"]
    assert all(hasattr(instep.emit, name) for name in instep.emit.__all__)


def test_it_has_the_methods_and_parameters_of_the_publisher() -> None:
    names = [name for name in vars(Publisher) if not name.startswith("_")]
    assert names == ["send", "delete", "send_raw", "flush", "close"]
    for name in [*names, "__enter__", "__exit__"]:
        assert inspect.signature(getattr(MemoryPublisher, name)) == inspect.signature(
            getattr(Publisher, name)
        )
    double = inspect.signature(MemoryPublisher).parameters
    for name, parameter in inspect.signature(Publisher).parameters.items():
        assert double[name].kind == parameter.kind
        assert name in ("bootstrap", "topic") or double[name].default == parameter.default


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
