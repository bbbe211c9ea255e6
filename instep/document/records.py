"""What the log holds, decoded: records, events and dead letters."""

from __future__ import annotations

from typing import Any

import msgspec

from instep.document import plain
from instep.document.identity import Id
from instep.document.reasons import Reason, Refusal


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of the log. Without a timestamp, or without a partition, the field is below 0.

    It has its headers only if the mapping reads one.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    partition: int = -1
    headers: plain.Headers = ()
    timestamp_type: int = 0  # as the client numbers it: 1 of the publisher, 2 of the broker


def record_of(found: plain.PlainRecord) -> Record:
    """Return a record that another client read as the decoder takes it."""
    return Record(
        found.offset, found.timestamp_ms, found.key, found.value, found.partition, found.headers
    )


class Event(msgspec.Struct, frozen=True, gc=False):
    """A decoded event. With a refusal it was understood, but does not fit the table.

    `values` has a value for each mapped column, UNSET if it leaves the column unchanged; None is a
    delete. `further` has for each further table the rows that the event makes there, as events
    whose document is the row's key.
    """

    offset: int
    document: Id
    order: int | None
    at_us: int | None
    status: str | None
    values: tuple[Any, ...] | None
    refusal: Refusal | None = None
    further: tuple[tuple[Event, ...], ...] = ()


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """A whole record that cannot be understood, with the reason."""

    record: Record
    reason: Reason
    detail: str
