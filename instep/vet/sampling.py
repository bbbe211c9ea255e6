"""What a pipeline's mapping reads from a topic's newest records: the order of each document, its times and its keys. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from instep import errors
from instep.document.decoding import Decoder, Event, Record
from instep.document.mapping import KEY, Mapping
from instep.document.reasons import Unfit
from instep.kafka import offsets
from instep.vet import snapshot as found

YEAR_2000_S = 946_684_800
DAY_S = 86_400
MICROS = 1_000_000


def record(one: offsets.Record) -> Record:
    return Record(one.offset, one.timestamp_ms, one.key, one.value)


def seen(mapping: Mapping, records: Iterable[offsets.Record], now_s: float) -> found.Seen:
    """What the events among these records show; records that hold no event are left out."""
    decoder = Decoder(mapping)
    events = [(one, event) for one in sorted(records, key=_place) if (event := _event(decoder, one)) is not None]
    keys: dict[object, set[bytes]] = {}
    differing = 0
    for one, event in events:
        keys.setdefault(event.document, set()).add(one.key or b"")
        differing += mapping.document != (KEY,) and not _is_key_of(decoder, one, event)
    times = [event.at_us / MICROS for _, event in events if event.at_us is not None]
    same_order, backwards = _disorder(mapping, events)
    return found.Seen(
        events=len(events),
        key_differs=differing,
        two_keys=sum(len(several) > 1 for several in keys.values()),
        same_order=same_order,
        backwards=backwards,
        whole_seconds=sum((event.order or 0) % MICROS == 0 for _, event in events) if mapping.order_is_time else None,
        before_2000=sum(when < YEAR_2000_S for when in times),
        ahead=sum(when > now_s + DAY_S for when in times),
        statuses=dict(sorted(Counter(event.status for _, event in events if event.status is not None).items())),
    )


def _place(one: offsets.Record) -> tuple[int, int]:
    return one.partition, one.offset


def _event(decoder: Decoder, one: offsets.Record) -> Event | None:
    """The event of a record; None for one that holds none, and for a delete."""
    try:
        event = decoder.decode(record(one))
    except Unfit:
        return None
    return event if event.values is not None else None


def _is_key_of(decoder: Decoder, one: offsets.Record, event: Event) -> bool:
    try:
        return decoder.document((one.key or b"").decode("utf-8")) == event.document
    except (errors.SettingsError, UnicodeDecodeError):
        return False


def _disorder(mapping: Mapping, events: list[tuple[offsets.Record, Event]]) -> tuple[int, int]:
    """How many events repeat the order of another one with another status, and how many go back behind the one before."""
    same, backwards = 0, 0
    before: dict[tuple[int, object], Event] = {}
    statuses: dict[tuple[object, int], str | None] = {}
    for one, event in events:
        if event.order is not None and not mapping.order_is_time:
            same += statuses.setdefault((event.document, event.order), event.status) != event.status
        last = before.get((one.partition, event.document))
        if last is not None:
            now, then = (event.order, last.order) if mapping.order else (event.at_us, last.at_us)
            backwards += now is not None and then is not None and now < then
        before[one.partition, event.document] = event
    return same, backwards
