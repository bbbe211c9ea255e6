"""Test what the newest records show about a pipeline's events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from instep.document import kinds
from instep.document.mapping import TargetColumn, compile_mapping
from instep.kafka.offsets import LogRecord
from instep.vet import sampling
from instep.vet.snapshot import MappedSample
from tests.support.databases import declare

NOW_S = 1_794_000_000.0
COLUMNS = {
    "doc_no": TargetColumn("doc_no", kinds.Text()),
    "print_status": TargetColumn("print_status", kinds.Text()),
    "print_version": TargetColumn("print_version", kinds.Integer()),
    "printed_at": TargetColumn("printed_at", kinds.Timestamp()),
}


def sample(
    *events: dict[str, Any] | bytes | None,
    keys: list[bytes] | None = None,
    order: str | None = "version",
) -> MappedSample:
    named = {
        "document": "doc_id",
        "status": "status",
        "at": "updated_at",
        **({"order": order} if order else {}),
    }
    mapping = compile_mapping(declare("sqlite://", event=named), COLUMNS)
    records = []
    for offset, given in enumerate(events):
        value = json.dumps(event(**given)).encode() if isinstance(given, dict) else given
        records.append(
            LogRecord(0, offset, int(NOW_S * 1000), keys[offset] if keys else b"C-1", value)
        )
    return sampling.read_sample(mapping, records, NOW_S)


def event(**changes: Any) -> dict[str, Any]:
    return {
        "doc_id": "C-1",
        "status": "QUEUED",
        "version": 1,
        "updated_at": "2026-11-01T08:00:00.5Z",
        **changes,
    }


def test_good_events_raise_no_flags() -> None:
    found = sample({}, {"version": 2, "status": "PRINTED"}, {"version": 3, "status": "PRINTED"})
    assert found == MappedSample(events=3, statuses={"PRINTED": 2, "QUEUED": 1})


def test_deletes_and_undecodable_records_are_not_counted() -> None:
    assert sample(None, b"no JSON", {}) == MappedSample(events=1, statuses={"QUEUED": 1})


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"status": "PRINTED"}, {"same_order": 1}),
        ({}, {}),
        ({"version": 0}, {"backwards": 1}),
        ({"version": 2, "updated_at": 1_793_000_000}, {"before_2000": 1}),
        ({"version": 2, "updated_at": 1_794_000_000_000 + 3 * 86_400_000}, {"ahead": 1}),
    ],
)
def test_order_and_time_problems_are_counted(
    second: dict[str, Any], expected: dict[str, int]
) -> None:
    found = sample({}, second)
    assert {
        name: getattr(found, name) for name in ("same_order", "backwards", "before_2000", "ahead")
    } == {
        "same_order": 0,
        "backwards": 0,
        "before_2000": 0,
        "ahead": 0,
        **expected,
    }


def test_late_events_are_counted_by_time_without_an_order() -> None:
    assert sample({}, {"updated_at": "2026-10-01T08:00:00Z"}, order=None).backwards == 1


def test_whole_second_times_are_counted() -> None:
    times = [{"updated_at": f"2026-11-01T08:00:0{n}Z"} for n in range(3)]
    assert sample(*times, order="updated_at").whole_seconds == 3
    assert sample(*times, {}, order="updated_at").whole_seconds == 3
    assert sample(*times).whole_seconds is None


def test_repeated_events_and_times_without_a_zone_are_counted() -> None:
    found = sample({}, {}, {"version": 2, "updated_at": "2026-11-01T08:00:00"})
    assert (found.repeated, found.without_zone) == (1, 1)
    assert (
        sample(
            {"updated_at": 1_793_000_000_000},
            {"version": 2, "updated_at": "2026-11-01T08:00:00+0100"},
        ).without_zone
        == 0
    )


def test_a_field_that_no_event_has_is_reported() -> None:
    events = [event(version=number) for number in range(5)]
    misspelt = [
        json.dumps({name.removesuffix("_at"): value for name, value in one.items()}).encode()
        for one in events
    ]
    assert sample(*misspelt).absent == {"printed_at": "updated_at; did you mean 'updated'?"}
    assert sample(*misspelt[:4]).absent == {}, "too few to tell"
    assert sample(*misspelt, {}).absent == {}


def test_keys_that_differ_from_the_document_id_are_counted() -> None:
    found = sample({}, {"version": 2}, keys=[b"x", b"C-1"])
    assert (found.key_differs, found.two_keys) == (1, 1)
