"""The status event as a source publishes it, and its wire format.

Key: the document's id in UTF-8. Value: a JSON object in UTF-8; a null value deletes the document.
Headers: CloudEvents 1.0, binary mode. instep's publisher writes them; they are optional.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

ID_CHARACTERS_MAX = 255
EVENT_TYPE = "instep.status"
DELETE_TYPE = "instep.delete"

Header = tuple[str, bytes]
Headers = list[Header]

SPECIFICATION: Header = ("ce_specversion", b"1.0")
CONTENT_TYPE: Header = ("content-type", b"application/json")
OWN_FIELDS = frozenset({"doc_id", "status", "version", "updated_at"})
ENCODER = msgspec.json.Encoder()


class StatusEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One fact: this document reached this status, at this time, with this version."""

    document: str
    status: str
    version: int | None = None
    at: datetime | None = None
    fields: Mapping[str, Any] = {}


def key(document: str) -> bytes:
    """Return the record's key; raise ValueError for an id that no pipeline would accept."""
    if not document or len(document) > ID_CHARACTERS_MAX or "\0" in document:
        check_id(document)
    return document.encode("utf-8")


def check_id(document: str) -> None:
    """Raise ValueError for a document's id that no pipeline would accept."""
    if not document:
        raise ValueError("a document's id must not be empty")
    if len(document) > ID_CHARACTERS_MAX:
        raise ValueError(
            f"a document's id has at most {ID_CHARACTERS_MAX} characters,"
            f" but this one has {len(document)}"
        )
    if "\0" in document:
        raise ValueError("a document's id must not contain a NUL character")


def value(event: StatusEvent) -> bytes:
    """Return the record's value, with the field names that the guides use."""
    body: dict[str, Any] = {"doc_id": event.document, "status": event.status}
    if (version := event.version) is not None:
        body["version"] = version
    if (at := event.at) is not None:
        body["updated_at"] = at if at.tzinfo is UTC else utc(at)
    if fields := event.fields:
        if not OWN_FIELDS.isdisjoint(fields) and not body.keys().isdisjoint(fields):
            clash = ", ".join(sorted(body.keys() & fields.keys()))
            raise ValueError(f"`fields` must not repeat fields of the event itself: {clash}")
        body.update(fields)
    return ENCODER.encode(body)


def headers(source: str, kind: str, at: datetime | None, event_id: bytes) -> Headers:
    """Return CloudEvents attributes as record headers."""
    of_source, of_kind = _fixed_headers(source, kind)
    if at is None:
        at = datetime.now(UTC)
    elif at.tzinfo is not UTC:
        at = utc(at)
    # As `isoformat` writes it, which takes ten times as long: without the quotes and the Z.
    time = ENCODER.encode(at)[1:-2] + b"+00:00"
    return [
        SPECIFICATION,
        ("ce_id", event_id),
        of_source,
        of_kind,
        ("ce_time", time),
        CONTENT_TYPE,
    ]


@functools.lru_cache
def _fixed_headers(source: str, kind: str) -> tuple[Header, Header]:
    """Return the headers that are the same for all records of a source."""
    return ("ce_source", source.encode()), ("ce_type", kind.encode())


def utc(at: datetime) -> datetime:
    """Return a time in UTC; a time without a zone is in UTC already."""
    if at.tzinfo is UTC:
        return at
    if at.tzinfo is None:
        return at.replace(tzinfo=UTC)
    return at.astimezone(UTC)
