"""Encode records: from an event, a delete or bytes. Raises if no pipeline could accept them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from instep import errors
from instep.document import event
from instep.emit.event_ids import IDS

Headers = Sequence[tuple[str, bytes]]


class OutgoingRecord(msgspec.Struct, frozen=True):
    """Key, value and headers of a record. Without a value it deletes the document."""

    key: bytes
    value: bytes | None
    headers: Headers = ()


def from_event(status_event: event.StatusEvent, source: str) -> OutgoingRecord:
    """Return the record of an event."""
    try:
        key, value = event.key(status_event.document), event.value(status_event)
    except (ValueError, TypeError, OverflowError) as failure:
        raise errors.SettingsError(
            f"the event of document {status_event.document!r} cannot be sent: {failure}",
            "correct the event; nothing was sent",
        ) from failure
    headers = event.headers(source, event.EVENT_TYPE, status_event.at, IDS.next())
    return OutgoingRecord(key, value, headers)


def from_deletion(document: str, source: str, at: datetime | None = None) -> OutgoingRecord:
    """Return the record of a delete."""
    headers = event.headers(source, event.DELETE_TYPE, at, IDS.next())
    return OutgoingRecord(document_key(document), None, headers)


def from_bytes(
    key: bytes, value: bytes | None, headers: Headers | None, source: str
) -> OutgoingRecord:
    """Return a record of encoded bytes; without headers it gets ours."""
    if not isinstance(key, bytes) or not (value is None or isinstance(value, bytes)):
        raise errors.SettingsError("a record's key and value must be bytes", "encode them in UTF-8")
    try:
        document = key.decode("utf-8")
    except UnicodeDecodeError as failure:
        raise errors.SettingsError(
            f"the key {key!r} is not UTF-8", "the key is the document's id in UTF-8"
        ) from failure
    try:
        event.check_id(document)
    except ValueError as failure:
        raise _not_a_key(document, failure) from failure
    if headers is None:
        kind = event.DELETE_TYPE if value is None else event.EVENT_TYPE
        headers = event.headers(source, kind, None, IDS.next())
    return OutgoingRecord(key, value, headers)


def document_key(document: str) -> bytes:
    """Return the key for a document's id; raise SettingsError if it cannot be one."""
    try:
        return event.key(document)
    except ValueError as failure:
        raise _not_a_key(document, failure) from failure


def _not_a_key(document: str, failure: ValueError) -> errors.SettingsError:
    return errors.SettingsError(
        f"{document!r} cannot be a record's key: {failure}",
        "use the document's id: order per document depends on it",
    )
