"""Results of a transformation, as the write path takes them.

A record without a transformation is one event. With one it is any number of events, and each has
its own number, in place of the offset: offset * SLOTS + number of the result. So events keep
the order of the log, and each can be named. The ledger counts records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.reasons import Reason

# Returns the results of records of the log, in their order; what fails is a result too.
Transform = Callable[[Sequence[Record]], list["Result"]]

SLOTS = 10_000  # the largest number of results of a record


class Result(Record, frozen=True, gc=False):
    """One result of a record; `value` is the event, None a delete of the document `key`.

    A record without a result is kept too, as an empty one, where the ledger needs it.
    """

    source_key: bytes | None = None  # of the record itself
    source_value: bytes | None = None
    is_empty: bool = False
    failure: str | None = None  # why the transformation failed
    records: int = 0  # how many records this one counts for, in the totals


def number(offset: int, result: int = 0) -> int:
    """Return the number of a result in place of an offset."""
    return offset * SLOTS + result


def in_log(record: Record) -> tuple[bytes | None, bytes | None]:
    """Return key and value that the log has."""
    if isinstance(record, Result):
        return record.source_key, record.source_value
    return record.key, record.value


def records_of(records: Sequence[Record]) -> int:
    """Return how many records of the log these are."""
    if not _are_results(records):
        return len(records)
    return sum([one.records for one in records])


def decode(decoder: Decoder, records: Sequence[Record]) -> tuple[list[Event], list[DeadLetter]]:
    """Return events and dead letters of records, or of results."""
    if not _are_results(records):
        return decoder.decode_all(records)
    failed = [
        DeadLetter(one, Reason.TRANSFORMATION_FAILED, one.failure)
        for one in records
        if one.failure is not None
    ]
    events, dead = decoder.decode_all(
        [one for one in records if one.failure is None and not one.is_empty]
    )
    if failed:
        dead = sorted([*dead, *failed], key=lambda letter: letter.record.offset)
    return events, dead


def _are_results(records: Sequence[Record]) -> TypeGuard[Sequence[Result]]:
    """Return whether these are results: a batch has results only, or records only."""
    return bool(records) and isinstance(records[0], Result)
