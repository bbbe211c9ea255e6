"""The status event as a source publishes it, and its wire format.

Key: the document's id in UTF-8. Value: a JSON object in UTF-8; a null value deletes the document.
Headers: CloudEvents 1.0, binary mode. instep's publisher writes them; they are optional.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

ID_CHARACTERS_MAX = 255
EVENT_TYPE = "instep.status"
DELETE_TYPE = "instep.delete"

Headers = list[tuple[str, bytes]]


class StatusEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One fact: this document reached this status, at this time, with this version."""

    document: str
    status: str
    version: int | None = None
    at: datetime | None = None
    fields: Mapping[str, Any] = {}


def key(document: str) -> bytes:
    """Return the record's key; raise ValueError for an id that no pipeline would accept."""
    if not document:
        raise ValueError("a document's id must not be empty")
    if len(document) > ID_CHARACTERS_MAX:
        raise ValueError(
            f"a document's id has at most {ID_CHARACTERS_MAX} characters,"
            f" but this one has {len(document)}"
        )
    if "\0" in document:
        raise ValueError("a document's id must not contain a NUL character")
    return document.encode("utf-8")


def value(event: StatusEvent) -> bytes:
    """Return the record's value, with the field names that the guides use."""
    body: dict[str, Any] = {"doc_id": event.document, "status": event.status}
    if event.version is not None:
        body["version"] = event.version
    if event.at is not None:
        body["updated_at"] = utc(event.at)
    clash = body.keys() & event.fields.keys()
    if clash:
        raise ValueError(
            f"`fields` must not repeat fields of the event itself: {', '.join(sorted(clash))}"
        )
    return msgspec.json.encode({**body, **event.fields})


def headers(source: str, kind: str, at: datetime | None, event_id: str | None = None) -> Headers:
    """Return CloudEvents attributes as record headers."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", (event_id or str(uuid.uuid4())).encode()),
        ("ce_source", source.encode()),
        ("ce_type", kind.encode()),
        ("ce_time", utc(at or datetime.now(UTC)).isoformat().encode()),
        ("content-type", b"application/json"),
    ]


def utc(at: datetime) -> datetime:
    """Return a time in UTC; a time without a zone is in UTC already."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
