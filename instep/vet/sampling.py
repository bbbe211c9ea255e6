"""What a pipeline's mapping reads from a topic's newest records: order, times and keys. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from instep import errors, settings
from instep.document import kinds
from instep.document.decoding import Decoder, Event, record_of
from instep.document.mapping import KEY, TIMESTAMP, Mapping, Path
from instep.document.reasons import Unfit
from instep.kafka import offsets
from instep.vet import snapshot

YEAR_2000_S = 946_684_800  # an earlier time is probably in seconds, read as milliseconds
DAY_S = 86_400
MICROS = 1_000_000
EVENTS_MIN = 5  # in fewer events, a field that is always absent may just be rare
ZONE = re.compile(r"(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)$")


def read_sample(
    mapping: Mapping, records: Iterable[offsets.LogRecord], now_s: float
) -> snapshot.MappedSample:
    """Return what the events of these records show. Records without an event are left out."""
    decoder = Decoder(mapping)
    events = [
        (record, event)
        # Partitions are read together, so their records arrive mixed.
        for record in sorted(records, key=_log_position)
        if (event := _event(decoder, record)) is not None
    ]
    bodies = [msgspec.json.decode(record.value or b"{}") for record, _ in events]
    keys: dict[object, set[bytes]] = {}
    differing = 0
    for record, event in events:
        keys.setdefault(event.document, set()).add(record.key or b"")
        differing += not mapping.is_keyed and not _is_key_of(decoder, record, event)
    times = [event.at_us / MICROS for _, event in events if event.at_us is not None]
    order = _OrderCounts.of(mapping, events)
    return snapshot.MappedSample(
        events=len(events),
        key_differs=differing,
        two_keys=sum(len(several) > 1 for several in keys.values()),
        same_order=order.same,
        repeated=order.repeated,
        backwards=order.backwards,
        whole_seconds=_whole_seconds(mapping, events, bodies) if mapping.order_is_time else None,
        without_zone=sum(_lacks_zone(_raw(body, mapping.at)) for body in bodies),
        before_2000=sum(when < YEAR_2000_S for when in times),
        ahead=sum(when > now_s + DAY_S for when in times),
        statuses=dict(
            sorted(Counter(event.status for _, event in events if event.status is not None).items())
        ),
        absent=_absent(mapping, events, bodies) if len(events) >= EVENTS_MIN else {},
    )


def _raw(body: Any, path: Path) -> Any:
    for step in path:
        body = body.get(step) if isinstance(body, dict) else None
    return body


def _whole_seconds(
    mapping: Mapping, events: list[tuple[offsets.LogRecord, Event]], bodies: list[Any]
) -> int:
    """Count events whose order value has no fraction of a second."""
    if mapping.order == (TIMESTAMP,):
        return sum(record.timestamp_ms % 1000 == 0 for record, _ in events)
    return sum(kinds.instant(_raw(body, mapping.order or ())).microsecond == 0 for body in bodies)


def _lacks_zone(value: Any) -> bool:
    return isinstance(value, str) and not ZONE.search(value)


def _absent(
    mapping: Mapping, events: list[tuple[offsets.LogRecord, Event]], bodies: list[Any]
) -> dict[str, str]:
    """Return the columns for which no event has a value, with their fields."""
    names = sorted({name for body in bodies for name in _names(body)})
    missing = {}
    for number, field in enumerate(mapping.fields):
        if field.path not in ((KEY,), (TIMESTAMP,)) and all(
            event.values is not None and event.values[number] is UNSET and event.refusal is None
            for _, event in events
        ):
            name = ".".join(field.path)
            missing[field.column.name] = f"{name}{settings.nearest(name, names)}"
    return missing


def _names(body: Any, prefix: str = "") -> Iterator[str]:
    """Return the fields of an event. Nested fields are joined with dots."""
    if isinstance(body, dict):
        for name, value in body.items():
            yield f"{prefix}{name}"
            yield from _names(value, f"{prefix}{name}.")


def _log_position(record: offsets.LogRecord) -> tuple[int, int]:
    return record.partition, record.offset


def _event(decoder: Decoder, record: offsets.LogRecord) -> Event | None:
    """Return the event of a record, or None for a delete or a record without an event."""
    try:
        event = decoder.decode(record_of(record))
    except Unfit:
        return None
    return event if event.values is not None else None


def _is_key_of(decoder: Decoder, record: offsets.LogRecord, event: Event) -> bool:
    try:
        return decoder.document((record.key or b"").decode("utf-8")) == event.document
    except (errors.SettingsError, UnicodeDecodeError):
        return False


class _OrderCounts(msgspec.Struct, frozen=True):
    """Count events that are repeated, reuse an order value, or are older than the one before."""

    repeated: int
    same: int
    backwards: int

    @classmethod
    def of(cls, mapping: Mapping, events: list[tuple[offsets.LogRecord, Event]]) -> _OrderCounts:
        repeated, same, backwards = 0, 0, 0
        last_events: dict[tuple[int, object], Event] = {}
        statuses: dict[tuple[object, int], str | None] = {}
        for record, event in events:
            if event.order is not None:
                is_known = (event.document, event.order) in statuses
                status = statuses.setdefault((event.document, event.order), event.status)
                repeated += is_known and status == event.status
                # Two events may happen at the same time, but two versions must differ.
                same += is_known and status != event.status and not mapping.order_is_time
            last = last_events.get((record.partition, event.document))
            if last is not None:
                # Without an order value, the event's time is the best evidence.
                current, previous = event.at_us, last.at_us
                if mapping.order:
                    current, previous = event.order, last.order
                if current is not None and previous is not None:
                    backwards += current < previous
            last_events[record.partition, event.document] = event
        return cls(repeated, same, backwards)
