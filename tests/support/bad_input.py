"""Bad input, one case per class: the record to send, and its expected outcome.

The classes are those of faults 49 and 50. Each case gets its own document, so that none waits
behind another.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from instep.document.reasons import Reason

AT = 1_790_000_000_000
BATCH_HEAD_BYTES = 61
MESSAGE_BYTES_MAX = 1_048_588  # the broker's default of max.message.bytes
SQL = "'; DROP TABLE contract_document; --"
HTML = "<script>alert('x')</script><img src=x onerror=alert(1)>"
ANSI = "\x1b[2J\x1b[31mred\x1b]0;title\x07\r\nnew line\u202eedisrever"
TRANSITIONS = {
    "CREATED": ["QUEUED", "FAILED", SQL],
    "QUEUED": ["PRINTING", "FAILED"],
    "PRINTING": ["PRINTED", "FAILED"],
}
COLUMNS = {
    "print_status": "status",
    "print_version": "version",
    "printed_at": "updated_at",
    "pages": "job.pages",
    "note": "note",
    "place": "place",
    "price": "price",
    "weight": "weight",
    "urgent": "urgent",
    "due": "due",
    "extra": "extra",
}


class Fate(StrEnum):
    """The possible outcomes of a record."""

    APPLIED = "applied"
    STALE = "stale"
    REPEATED = "repeated"
    IGNORED = "ignored"
    DELETED = "deleted"
    PARKED = "parked"
    DEAD = "dead"
    ACCOUNTED = "accounted"  # for mutations: any of the others, and exactly one


@dataclass(frozen=True)
class Sent:
    """A record as it is given to a producer."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0  # the producer's clock
    codec: str = "none"


Build = Callable[[str], Sent]


@dataclass(frozen=True)
class Case:
    """One class of bad input.

    Its last record is the odd one. Good events of the same document may come before it.
    """

    name: str
    fate: Fate
    odd: Build
    reason: Reason | None = None
    before: tuple[Mapping[str, Any], ...] = ()
    kept: Mapping[str, Any] | None = None  # the row's values in the end; None: no row
    alike: str | None = None  # the document's id, where the case is about it
    # by kind of database
    elsewhere: Mapping[str, tuple[Fate, Reason | None]] = field(default_factory=dict)

    def document(self, phase: str) -> str:
        return f"{self.name}, {phase}" if self.alike is None else self.alike.replace("PHASE", phase)

    def records(self, phase: str) -> list[Sent]:
        document = self.document(phase)
        return [*(good(document, **changes) for changes in self.before), self.odd(document)]

    def expected(self, kind: str) -> tuple[Fate, Reason | None]:
        return self.elsewhere.get(kind, (self.fate, self.reason))


def body(document: str, **changes: Any) -> dict[str, Any]:
    """Return a good event; a change to `...` omits the field."""
    found = {"doc_id": document, "status": "CREATED", "version": 5, "updated_at": AT, **changes}
    return {name: value for name, value in found.items() if value is not ...}


def good(document: str, **changes: Any) -> Sent:
    return Sent(
        document.encode(), json.dumps(body(document, **changes), ensure_ascii=False).encode()
    )


def raw(text: bytes) -> Build:
    """Return a builder of a value that contains the document's id."""
    return lambda document: Sent(document.encode(), text.replace(b"DOCUMENT", document.encode()))


def changed(**changes: Any) -> Build:
    return lambda document: good(document, **changes)


def sent(**changes: Any) -> Build:
    """Return a builder of a good event in an odd record."""

    def build(document: str) -> Sent:
        return replace(good(document), **changes)

    return build


ROW = {"print_status": "CREATED", "print_version": 5}


def dead(name: str, reason: Reason, odd: Build, **more: Any) -> Case:
    return Case(name, Fate.DEAD, odd, reason, **more)


def parked(name: str, reason: Reason, odd: Build, **more: Any) -> Case:
    return Case(name, Fate.PARKED, odd, reason, **more)


def applied(name: str, odd: Build, *, kept: Mapping[str, Any] | None = None, **more: Any) -> Case:
    return Case(name, Fate.APPLIED, odd, kept={**ROW, **(kept or {})}, **more)


# --- bytes ----------------------------------------------------------------------------------------


def _bytes() -> Iterator[Case]:
    text = b'{"doc_id":"DOCUMENT","status":"CREATED","version":5'
    not_json = {
        "empty value": b"",
        "blank value": b" \r\n\t",
        "byte order mark": b"\xef\xbb\xbf" + text + b"}",
        "raw NUL": text + b',"note":"a\x00b"}',
        "lone surrogate, escaped": text + b',"note":"\\ud800"}',
        "truncated": text + b',"no',
        "trailing garbage": text + b"} x",
        "two documents": text + b"}" + text + b"}",
        "NaN": text + b',"price":NaN}',
        "Infinity": text + b',"price":-Infinity}',
        "single quotes": b"{'doc_id':'DOCUMENT'}",
        "comment": text + b"/* */}",
        "trailing comma": text + b",}",
        "leading zero": b'{"doc_id":"DOCUMENT","status":"CREATED","version":05}',
        "raw line feed in a text": text + b',"note":"a\nb"}',
        "XML": b'<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaa">]><b>&a;</b>',
        "YAML": b"doc_id: DOCUMENT\nstatus: CREATED\n",
        "Avro, with a schema registry's head": b"\x00\x00\x00\x00\x07\x10DOCUMENT\x0eCREATED",
        "Avro file": b"Obj\x01\x04\x16avro.schema\x02{}",
        "Protobuf": b"\x0a\x08DOCUMENT\x12\x07CREATED\x18\x05",
        "base 64": base64.b64encode(text),
    }
    for name, value in not_json.items():
        yield dead(name, Reason.NOT_JSON, raw(value))
    yield dead("2 MB of NUL in gzip", Reason.NOT_JSON, sent(value=bytes(2_000_000), codec="gzip"))
    not_utf8 = {
        "not UTF-8": text + b',"note":"\xff"}',
        "lone surrogate, in bytes": text + b',"note":"\xed\xa0\x80"}',
        "overlong UTF-8": text + b',"note":"\xc0\xaf"}',
        "Latin-1": text + ',"note":"Gruß"}'.encode("latin-1"),
        "UTF-16": (text + b"}").decode().encode("utf-16"),
        "gzip in the value": gzip.compress(text + b"}", mtime=0),
        "MessagePack": b"\x83\xa6doc_id\xa1a\xa6status\xa7CREATED\xa7version\x05",
    }
    for name, value in not_utf8.items():
        yield dead(name, Reason.NOT_UTF8, raw(value))
    for name, value in {
        "list": b'["DOCUMENT"]',
        "text": b'"DOCUMENT"',
        "number": b"5",
        "null": b"null",
        "true": b"true",
    }.items():
        yield dead(f"{name} for an object", Reason.NOT_AN_OBJECT, raw(value))


def _seeded() -> Iterator[Case]:
    """Yield random bytes, and good events with some bytes changed. The seed is the name."""
    for seed in range(12):
        dice = random.Random(seed)
        value = dice.randbytes(dice.choice((9, 40, 400, 5_000)))
        yield dead(
            f"random bytes {seed}",
            Reason.NOT_JSON if _is_utf8(value) else Reason.NOT_UTF8,
            raw(value),
        )
    for seed in range(24):
        yield Case(f"mutation {seed}", Fate.ACCOUNTED, lambda d, s=seed: _mutated(d, s))  # type: ignore[misc]


def _mutated(document: str, seed: int) -> Sent:
    dice = random.Random(f"{document} {seed}")
    found = good(document, note="ok", job={"pages": 7})
    value = bytearray(found.value or b"")
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(value))
        match dice.randrange(3):
            case 0:
                value[place] = dice.randrange(256)
            case 1:
                del value[place]
            case _:
                value[place:place] = value[place : place + dice.randint(1, 9)]
    return Sent(found.key, bytes(value))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- keys and ids ---------------------------------------------------------------------------------


def _keys() -> Iterator[Case]:
    yield dead("null key", Reason.KEY_MISSING, sent(key=None))
    yield dead("null key and value", Reason.KEY_MISSING, sent(key=None, value=None))
    yield dead("key not UTF-8", Reason.KEY_NOT_UTF8, sent(key=b"\xff\xfe"))
    yield dead("delete by a key not UTF-8", Reason.KEY_NOT_UTF8, sent(key=b"\xff\xfe", value=None))
    yield dead("delete by an empty key", Reason.ID_EMPTY, sent(key=b"", value=None))
    yield dead(
        "delete by a key of 256 characters", Reason.ID_TOO_LONG, sent(key=b"k" * 256, value=None)
    )
    yield dead("delete by a key with NUL", Reason.NUL_IN_TEXT, sent(key=b"a\0b", value=None))
    yield applied("empty key beside an id", sent(key=b""))
    yield applied("key with NUL beside an id", sent(key=b"a\0b"))
    yield applied("key of 100 kB beside an id", sent(key=b"k" * 100_000))
    yield applied("key that is another id", sent(key=b"somebody else"))
    yield Case("null value", Fate.DELETED, sent(value=None), before=({},))
    yield Case("null value of a document nobody knows", Fate.IGNORED, sent(value=None))
    yield dead("id of 0 characters", Reason.ID_EMPTY, changed(doc_id=""))
    yield dead("id of 256 characters", Reason.ID_TOO_LONG, changed(doc_id="i" * 256))
    yield dead("id of 10,000 characters", Reason.ID_TOO_LONG, changed(doc_id="i" * 10_000))
    yield applied("id of 255 characters", changed(), alike="PHASE" + "i" * 250)
    yield applied("id of 255 emoji", changed(), alike="PHASE" + "😀" * 250)
    yield dead("NUL in the id", Reason.NUL_IN_TEXT, changed(doc_id="a\0b"))
    alike = {
        "lower case": "alike PHASE é",
        "upper case": "ALIKE PHASE É",
        "without accent": "alike PHASE e",
        "decomposed": "alike PHASE e\u0301",
        "trailing space": "alike PHASE é ",
        "leading space": " alike PHASE é",
        "no-break space": "alike\u00a0PHASE é",
        "zero-width": "alike PHASE \u200bé",
        "full width": "alike PHASE ｅ",
        "sharp s": "alike PHASE ß",
        "double s": "alike PHASE ss",
        "dotless i": "alike PHASE ı",
        "emoji": "alike PHASE 😀",
        "other emoji": "alike PHASE 😁",
        "byte order mark": "alike PHASE \ufeffé",
        "noncharacter": "alike PHASE \uffff",
    }
    for name, document in alike.items():
        yield applied(f"id like others: {name}", changed(), alike=document)


# --- fields ---------------------------------------------------------------------------------------


def _fields() -> Iterator[Case]:
    wrong: dict[str, list[Any]] = {
        "doc_id": [None, True, 1.5, [], {}],
        "status": [None, True, 7, 1.5, [], {}],
        "version": [None, True, "5", 5.0, [], {}],
        "updated_at": [True, [], {}],
        "note": [True, 7, 1.5, ["a"], {"a": 1}],
        "price": [True, "1", [], {}],
        "weight": [True, "1", [], {}],
        "urgent": ["yes", 1.5, []],
        "due": [True, []],
    }
    for name, values in wrong.items():
        for value in values:
            yield dead(
                f"{name} is {json.dumps(value)}", Reason.WRONG_TYPE, changed(**{name: value})
            )
    yield dead("pages is text", Reason.WRONG_TYPE, changed(job={"pages": "7"}))
    yield applied("job is no object", changed(job=5), kept={"pages": None})
    for name in ("doc_id", "status", "version"):
        yield dead(f"{name} is missing", Reason.FIELD_MISSING, changed(**{name: ...}))
    yield applied("updated_at is missing", changed(updated_at=...), kept={"printed_at": None})
    yield applied(
        "a field is missing and its column stays",
        changed(version=6),
        before=({"note": "n"},),
        kept={"note": "n", "print_version": 6},
    )
    yield applied(
        "null clears a column",
        changed(version=6, note=None),
        before=({"note": "n"},),
        kept={"note": None, "print_version": 6},
    )
    yield parked("null where the column takes none", Reason.NULL_NOT_ALLOWED, changed(place=None))
    head = b'{"doc_id":"DOCUMENT","status":"CREATED","version":5,'
    yield dead("id twice", Reason.FIELD_REPEATED, raw(head + b'"doc_id":"other"}'))
    yield dead(
        "id twice, once escaped", Reason.FIELD_REPEATED, raw(head + b'"doc\\u005fid":"other"}')
    )
    yield dead("status twice", Reason.FIELD_REPEATED, raw(head + b'"status":"QUEUED"}'))
    yield dead("version twice", Reason.FIELD_REPEATED, raw(head + b'"version":6}'))
    yield dead(
        "nested field twice", Reason.FIELD_REPEATED, raw(head + b'"job":{"pages":1,"pages":2}}')
    )
    yield applied("unmapped field twice", raw(head + b'"x":1,"x":2}'))
    yield applied(
        "name of a field within another", raw(head + b'"x":{"doc_id":"other","status":[]}}')
    )
    yield applied(
        "__proto__ and constructor",
        changed(__proto__={"admin": True}, constructor={"prototype": {"a": 1}}),
    )
    yield applied("dunder fields", changed(__class__="x", __init__="y", self="z"))
    yield applied("50,000 unmapped fields", changed(**{f"f{n}": n for n in range(50_000)}))


def _nested() -> Iterator[Case]:
    head = b'{"doc_id":"DOCUMENT","status":"CREATED","version":5,'
    deep = {depth: b"[" * depth + b"]" * depth for depth in (10, 1_000, 100_000)}
    yield applied("nested 10 deep", raw(head + b'"x":' + deep[10] + b"}"))
    yield applied(
        "nested 10 deep in a JSON column",
        raw(head + b'"extra":' + deep[10] + b"}"),
        kept={"extra": json.loads(deep[10])},
    )
    yield dead(
        "nested 1,000 deep", Reason.NESTED_TOO_DEEP, raw(head + b'"x":' + deep[1_000] + b"}")
    )
    yield dead(
        "nested 1,000 deep in a JSON column",
        Reason.NESTED_TOO_DEEP,
        raw(head + b'"extra":' + deep[1_000] + b"}"),
    )
    yield dead(
        "nested 100,000 deep", Reason.NESTED_TOO_DEEP, raw(head + b'"x":' + deep[100_000] + b"}")
    )
    yield dead(
        "objects nested 1,000 deep",
        Reason.NESTED_TOO_DEEP,
        raw(head + b'"x":' + b'{"x":' * 1_000 + b"1" + b"}" * 1_000 + b"}"),
    )
    yield applied("2,000 brackets in a text", changed(note="[" * 2_000), kept={"note": "[" * 2_000})
    middling = b"[" * 200 + b"]" * 200
    yield applied(
        "nested 200 deep in a JSON column",
        raw(head + b'"extra":' + middling + b"}"),
        kept={"extra": json.loads(middling)},
        elsewhere=dict.fromkeys(("mariadb", "mysql"), (Fate.DEAD, Reason.NESTED_TOO_DEEP)),
    )
    yield dead("NUL in a JSON column", Reason.NUL_IN_TEXT, changed(extra={"a": ["\0"]}))
    odd = {
        "big": 2**90,
        "small": 0.1,
        "text": "\\u0000 \U0001f600 \u2028",
        "": None,
        "a": {"a": [True, False]},
    }
    # MySQL would store the big number as a double
    double = {"mysql": (Fate.PARKED, Reason.NUMBER_OUT_OF_RANGE)}
    yield applied(
        "odd values in a JSON column", changed(extra=odd), kept={"extra": odd}, elsewhere=double
    )


def _numbers() -> Iterator[Case]:
    head = b'{"doc_id":"DOCUMENT","status":"CREATED",'
    many = b"9" * 1_000_000
    yield dead(
        "version of a million digits",
        Reason.NUMBER_OUT_OF_RANGE,
        raw(head + b'"version":' + many + b"}"),
    )
    yield dead(
        "price of a million digits",
        Reason.NUMBER_OUT_OF_RANGE,
        raw(head + b'"version":5,"price":' + many + b"}"),
    )
    yield dead("version 1e400", Reason.WRONG_TYPE, raw(head + b'"version":1e400}'))
    yield dead("version of 64 bits and one", Reason.NUMBER_OUT_OF_RANGE, changed(version=2**63))
    yield dead("version with an exponent", Reason.WRONG_TYPE, raw(head + b'"version":5e0}'))
    yield applied("lowest version", changed(version=-(2**63)), kept={"print_version": -(2**63)})
    yield applied("highest version", changed(version=2**63 - 1), kept={"print_version": 2**63 - 1})
    yield applied(
        "-0", raw(head + b'"version":-0,"price":-0.0}'), kept={"print_version": 0, "price": 0}
    )
    yield parked(
        "pages of 32 bits and one",
        Reason.NUMBER_OUT_OF_RANGE,
        changed(job={"pages": 2**31}),
        elsewhere={"sqlite": (Fate.APPLIED, None)},
        kept={**ROW, "pages": 2**31},
    )
    yield parked("price of too many digits", Reason.NUMBER_OUT_OF_RANGE, changed(price=123_456_789))
    yield parked("price too fine", Reason.NUMBER_OUT_OF_RANGE, changed(price=1.005))
    yield applied("price at the limit", changed(price=99_999_999.99), kept={"price": 99_999_999.99})
    yield applied("weight at the limit", changed(weight=1.7e308), kept={"weight": 1.7e308})
    yield parked(
        "weight 1e400", Reason.NUMBER_OUT_OF_RANGE, raw(head + b'"version":5,"weight":1e400}')
    )
    yield dead(
        "weight 1e1001", Reason.NUMBER_OUT_OF_RANGE, raw(head + b'"version":5,"weight":1e1001}')
    )


def _times() -> Iterator[Case]:
    for text in (
        "yesterday",
        "2026-13-45T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "24:00",
        "",
        "12/31/2026",
    ):
        yield dead(f"updated_at {text!r}", Reason.NOT_A_TIME, changed(updated_at=text))
    for value in (
        10**18,
        -(10**15),
        1e300,
        "9999-12-31T23:59:59-05:00",
        "0001-01-01T00:00:00+05:00",
    ):
        yield dead(f"updated_at {value!r}", Reason.TIME_OUT_OF_RANGE, changed(updated_at=value))
    early = dict.fromkeys(("mariadb", "mysql"), (Fate.PARKED, Reason.TIME_OUT_OF_RANGE))
    yield applied("the year 1", changed(updated_at="0001-01-01T00:00:00Z"), elsewhere=early)
    yield applied("the last instant", changed(updated_at="9999-12-31T23:59:59.999999Z"))
    yield applied("before 1970", changed(updated_at=-1))
    yield applied("in nanoseconds", changed(updated_at="2026-11-01T08:00:00.123456789Z"))
    yield applied("the first day", changed(due="0001-01-01"), kept={"due": "0001-01-01"})
    yield dead("a day that is none", Reason.NOT_A_TIME, changed(due="0000-00-00"))


def _texts() -> Iterator[Case]:
    yield applied("1 MB text", changed(note="x" * 1_000_000), kept={"note": "x" * 1_000_000})
    yield applied("900 kB list", changed(x=[0] * 300_000))
    yield parked(
        "900 kB list where 20 characters fit", Reason.TEXT_TOO_LONG, changed(place="x" * 900_000)
    )
    yield parked("text too long", Reason.TEXT_TOO_LONG, changed(place="x" * 21))
    yield applied("text of just the length", changed(place="😀" * 20), kept={"place": "😀" * 20})
    yield parked("status of 41 characters", Reason.TEXT_TOO_LONG, changed(status="S" * 41))
    yield parked("status of 256 characters", Reason.TEXT_TOO_LONG, changed(status="S" * 256))
    yield dead("NUL in the status", Reason.NUL_IN_TEXT, changed(status="a\0b"))
    yield dead("NUL in a text", Reason.NUL_IN_TEXT, changed(note="a\0b"))
    hostile = {
        "SQL": SQL,
        "SQL with backslashes": "\\'; DELETE FROM instep_ledger; -- \\",
        "SQL union": "1' UNION SELECT 1,2,3 FROM instep_ledger -- ",
        "HTML and JavaScript": HTML,
        "ANSI and CRLF": ANSI,
        "format strings": "%s%n%x {0} {doc_id} ${HOME} $(id) `id` %(x)s :name ?",
        "a path": "../../../../etc/passwd\\..\\C:\\x",
        "a URL": "jdbc:mysql://x/?autoDeserialize=true file:///etc/passwd ${jndi:ldap://x/a}",
        "a spreadsheet's formula": "=cmd|' /C calc'!A0",
        "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x80\x9b\u2028\u2029",
        "right to left": "\u202eabc\u2066\u2069\u200f",
        "zalgo": "Z\u0351\u036b\u0343\u036a\u0302\u036b" * 40,
        "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 5,
        "private use": "\ue000\U000f0000\U0010ffff",
    }
    for name, text in hostile.items():
        yield applied(f"{name} in a text", changed(note=text), kept={"note": text})
        yield applied(f"{name} in the id", changed(), alike=f"PHASE {text}"[:255])
        unknown = f"{text}?"
        too_long = len(unknown) > 40
        reason = Reason.TEXT_TOO_LONG if too_long else Reason.STATUS_UNKNOWN
        yield parked(f"{name} in the status", reason, changed(status=unknown))
        yield dead(f"{name} in the version", Reason.WRONG_TYPE, changed(version=text))
        yield dead(f"{name} in the time", Reason.NOT_A_TIME, changed(updated_at=text))
    yield applied("SQL in a declared status", changed(status=SQL), kept={"print_status": SQL})
    yield applied("SQL in a field's name", changed(**{SQL: 1, "print_status = 'X'": 2}))


# --- order and status -----------------------------------------------------------------------------


def _business() -> Iterator[Case]:
    yield parked("unknown status", Reason.STATUS_UNKNOWN, changed(status="LOST"))
    yield parked("empty status", Reason.STATUS_UNKNOWN, changed(status=""))
    yield parked("status in another case", Reason.STATUS_UNKNOWN, changed(status="created"))
    yield parked(
        "illegal transition",
        Reason.TRANSITION_NOT_ALLOWED,
        changed(status="PRINTED", version=6),
        before=({},),
        kept=ROW,
    )
    yield parked(
        "illegal transition back",
        Reason.TRANSITION_NOT_ALLOWED,
        changed(version=6),
        before=({"status": "FAILED"},),
        kept={**ROW, "print_status": "FAILED"},
    )
    yield Case(
        "version going back",
        Fate.STALE,
        changed(version=4, status="QUEUED"),
        before=({},),
        kept=ROW,
    )
    yield Case(
        "same version with another body",
        Fate.REPEATED,
        changed(note="other"),
        before=({"note": "n"},),
        kept={**ROW, "note": "n"},
    )
    yield Case("the same again", Fate.REPEATED, changed(), before=({},), kept=ROW)
    yield Case(
        "illegal and stale", Fate.STALE, changed(version=4, status="LOST"), before=({},), kept=ROW
    )
    yield applied(
        "a new version of the same status",
        changed(version=6),
        before=({},),
        kept={"print_version": 6},
    )


# --- records --------------------------------------------------------------------------------------


def _records() -> Iterator[Case]:
    yield applied("1,000 headers", sent(headers=tuple((f"h{n}", b"x") for n in range(1_000))))
    yield applied(
        "duplicate headers", sent(headers=(("ce_id", b"1"), ("ce_id", b"2"), ("ce_id", None)))
    )
    yield applied(
        "headers naming another topic",
        sent(
            headers=(
                ("topic", b"other"),
                ("kafka_dlt-original-topic", b"other"),
                ("ce_type", b"instep.delete"),
            )
        ),
    )
    yield applied(
        "headers of odd bytes",
        sent(
            headers=(
                ("", b""),
                ("\u202e\x1b[2J", b"\xff\x00"),
                ("content-type", b"application/avro"),
            )
        ),
    )
    yield applied("a header of 500 kB", sent(headers=(("big", b"\x00" * 500_000),)))
    yield applied("timestamp -1", sent(timestamp_ms=-1))
    yield applied(
        "timestamp -1 and no time in the event",
        lambda d: Sent(d.encode(), good(d, updated_at=...).value, timestamp_ms=-1),
    )
    yield Case(
        "timestamp -1 on a delete", Fate.DELETED, sent(value=None, timestamp_ms=-1), before=({},)
    )
    yield applied("timestamp of 1 ms", sent(timestamp_ms=1))
    yield applied("timestamp of the year 1", sent(timestamp_ms=-62_135_596_800_000))
    yield applied("timestamp in microseconds", sent(timestamp_ms=AT * 1_000))
    yield dead(
        "timestamp in microseconds, and needed",
        Reason.TIME_OUT_OF_RANGE,
        lambda d: Sent(d.encode(), good(d, updated_at=...).value, timestamp_ms=AT * 1_000),
    )
    yield dead(
        "timestamp in microseconds on a delete",
        Reason.TIME_OUT_OF_RANGE,
        sent(value=None, timestamp_ms=AT * 1_000),
        before=({},),
        kept=ROW,
    )
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        yield applied(f"compressed with {codec}", sent(codec=codec))
        yield applied(f"2 MB compressed with {codec}", bomb(codec, 2_000_000))
    too_large = {"mariadb": (Fate.DEAD, Reason.RECORD_TOO_LARGE)}
    yield applied("20 MB compressed with zstd", bomb("zstd", 20_000_000), elsewhere=too_large)
    yield applied("a record at max.message.bytes", lambda d: fitting(d, MESSAGE_BYTES_MAX))


def bomb(codec: str, size: int) -> Build:
    """Return a builder of a good event that is small when compressed and large when unpacked."""
    return lambda document: replace(good(document, x="a" * size), codec=codec)


def fitting(document: str, batch_bytes: int) -> Sent:
    """Return a good event that makes a record batch of exactly that many bytes."""
    size = batch_bytes - 200
    while True:
        found = good(document, x="a" * size)
        missing = batch_bytes - _batch_bytes(found)
        if not missing:
            return found
        size += missing


def _batch_bytes(record: Sent) -> int:
    key, value = record.key or b"", record.value or b""
    inside = 3 + _varint_bytes(len(key)) + len(key) + _varint_bytes(len(value)) + len(value) + 1
    return BATCH_HEAD_BYTES + _varint_bytes(inside) + inside


def _varint_bytes(number: int) -> int:
    """Return the length of Kafka's zigzag varint."""
    return max(1, -(-(number * 2).bit_length() // 7))


CASES = {
    case.name: case
    for part in (
        _bytes,
        _seeded,
        _keys,
        _fields,
        _nested,
        _numbers,
        _times,
        _texts,
        _business,
        _records,
    )
    for case in part()
}
