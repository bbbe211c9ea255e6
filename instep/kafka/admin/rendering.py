r"""Format records for output: by a format with kcat's letters, or as kcat's JSON.

%s %v  the value       %S  its length (-1: null)     %R  its length in four bytes
%k     the key         %K  its length (-1: null)     %h  headers: NAME=VALUE,…
%t     the topic       %p  the partition             %o  the offset
%T     the timestamp in ms since 1970                %%  a per cent sign
\n \r \t \xHH           a byte
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from instep import errors
from instep.document import showing
from instep.kafka.admin.tail import TailRecord

Render = Callable[[TailRecord], bytes]
ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
# Written by the publisher, so it may contain anything, such as escape sequences of a terminal.
TEXTS: dict[str, Callable[[TailRecord], bytes]] = {
    "s": lambda record: record.value or b"",
    "v": lambda record: record.value or b"",
    "k": lambda record: record.key or b"",
    "h": lambda record: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in record.headers
    ),
}
METADATA: dict[str, Callable[[TailRecord], bytes]] = {
    "S": lambda record: b"%d" % _length(record.value),
    "R": lambda record: struct.pack(">i", _length(record.value)),
    "K": lambda record: b"%d" % _length(record.key),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "%": lambda _record: b"%",
}


def parse(text: str, *, safe: bool) -> Render:
    """Return the format as a function; if `safe`, escape what could affect a terminal."""
    parts: list[Render] = []
    for letter, code, escape, plain, broken in _TOKEN.findall(text):
        if letter in TEXTS and letter:
            parts.append(_escaped(TEXTS[letter]) if safe else TEXTS[letter])
        elif letter in METADATA and letter:
            parts.append(METADATA[letter])
        elif plain:
            parts.append(_constant(plain.encode()))
        elif code:
            parts.append(_constant(bytes.fromhex(code)))
        elif escape in ESCAPES:
            parts.append(_constant(ESCAPES[escape]))
        else:
            wrong = broken
            if letter:
                wrong = f"%{letter}"
            elif escape:
                wrong = f"\\{escape}"
            raise errors.SettingsError(
                f"the format contains {wrong!r}, which has no meaning",
                "write %s (value) %k %t %p %o %T %h %S %K %R %% \\n \\t \\xHH, as in kcat",
            )
    return lambda record: b"".join(part(record) for part in parts)


def envelope(record: TailRecord) -> bytes:
    """Return one line of JSON with kcat's keys; bytes that are not UTF-8 become base 64."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": record.timestamp_kind,
        "ts": record.timestamp_ms,
        "headers": [part for name, value in record.headers for part in (name, _json(value))],
        "key": _json(record.key),
        "payload": _json(record.value),
    }
    return showing.plain_json(msgspec.json.encode(fields).decode()).encode() + b"\n"


def _json(value: bytes | None) -> Any:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value or b"").decode()}


def _escaped(part: Render) -> Render:
    return lambda record: showing.plain(part(record).decode("utf-8", "backslashreplace")).encode()


def _constant(value: bytes) -> Render:
    return lambda _record: value


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)
