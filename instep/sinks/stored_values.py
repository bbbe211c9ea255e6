"""Convert values on their way into instep's own tables and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from instep.document.plain import Headers

DETAIL_CHARACTERS_MAX = 1_000

_decode_headers = msgspec.json.Decoder(Headers).decode
_encode = msgspec.json.Encoder().encode


def chunks(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Return slices of at most `size` values."""
    return (values[start : start + size] for start in range(0, len(values), size))


def kept_text(text: str) -> str:
    """Return a message with the length and the characters that every database accepts."""
    return text.replace("\0", "␀")[:DETAIL_CHARACTERS_MAX]


def encode_headers(headers: Headers) -> bytes | None:
    """Return headers as they are kept with a record in quarantine; None if there are none."""
    return msgspec.json.encode(headers) if headers else None


def decode_headers(kept: bytes | None) -> Headers:
    """Return the headers that `encode_headers` encoded."""
    return _decode_headers(kept) if kept else ()


def utc_time(value: Any) -> datetime | None:
    """Return a time from one of instep's own tables as an aware time in UTC."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    if at is None:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def timestamp_text(at: datetime) -> str:
    """Return a time in UTC as databases write it, to the microsecond.

    The encoder of msgspec is several times faster than `isoformat` and `strftime`.
    """
    text = _encode(at if at.tzinfo is UTC else at.astimezone(UTC)).decode()
    return f"{text[1:11]} {text[12:27]}" if at.microsecond else f"{text[1:11]} {text[12:20]}.000000"
