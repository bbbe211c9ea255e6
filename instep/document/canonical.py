"""Canonical texts: make the value of an event and the value in a table comparable.

Every database changes values when it stores them: times lose digits beyond the column's precision,
CHAR is padded, a four-byte float loses digits, SQLite stores a boolean as 0 or 1. `former` returns,
for a column of a database, the function that makes both sides the same text; `restorer` returns
the way back from the text to the value. A stored value of another kind than its column (SQLite
stores anything in any column) is compared by its own text.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from instep.document import kinds
from instep.document.event import utc
from instep.document.mapping import TargetColumn
from instep.document.reasons import Unfit

Former = Callable[[Any], str]
Restorer = Callable[[str], Any]

PADDED = re.compile(r"(char|character|bpchar|nchar)(\(\d+\))?( .*)?$")
NUMBER_SCALE = re.compile(r"(?:float|double|real)\(\d+,(\d+)\)")
SINGLE = re.compile(r"(real|float4|float(?!8)(\(\d+,\d+\))?)( .*)?$")
POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01: PostgreSQL counts and rounds from there


def former(column: TargetColumn, database: str) -> Former:
    """Return the function from a value of this column, not null, to its canonical text.

    `database` is SQLAlchemy's name of the dialect.
    """
    plain = _former(column, database)

    def form(value: Any) -> str:
        try:
            return plain(value)
        except (
            Unfit,
            ValueError,
            TypeError,
            ArithmeticError,
            KeyError,
            RecursionError,
            msgspec.MsgspecError,
        ):
            return _shown(value)

    return form


def restorer(kind: kinds.ColumnKind) -> Restorer:
    """Return the function from a canonical text back to the value that a sink writes."""
    match kind:
        case kinds.Integer():
            return int
        case kinds.Float():
            return float
        case kinds.Numeric():
            return Decimal
        case kinds.Boolean():
            return BOOLEANS.__getitem__
        case kinds.Timestamp():
            return kinds.instant
        case kinds.Date():
            return date.fromisoformat
        case kinds.Uuid():
            return UUID
        case kinds.Json(doubles="whole"):
            convert, decode = kinds.converter(kind), msgspec.json.Decoder(float_hook=Decimal).decode
            return lambda text: convert(decode(text))
        case _:
            return str


def _former(column: TargetColumn, database: str) -> Former:
    declared = column.declared.lower()
    is_sqlite = database == "sqlite"
    match column.kind:
        case kinds.Text() if (
            not is_sqlite and PADDED.fullmatch(declared) and "varying" not in declared
        ):
            # CHAR is padded with spaces, which do not count in a comparison.
            return lambda value: _text(value).rstrip(" ")
        case kinds.Text() if declared.startswith("set("):
            # MySQL returns the members of a SET in the order of their declaration.
            return lambda value: ",".join(sorted(_text(value).split(",")))
        case kinds.Integer():
            return lambda value: str(value if type(value) is int else _integer(value))
        case kinds.Float():
            scale = NUMBER_SCALE.match(declared) if not is_sqlite else None
            return _float(
                not is_sqlite and bool(SINGLE.fullmatch(declared)), int(scale[1]) if scale else None
            )
        case kinds.Numeric():
            return number_text
        case kinds.Boolean():
            return lambda value: "true" if BOOLEANS[str(value).lower()] else "false"
        case kinds.Timestamp():
            return _time(column.kind.precision, database)
        case kinds.Date():
            return lambda value: (
                value if type(value) is date else date.fromisoformat(value)
            ).isoformat()
        case kinds.Uuid():
            return lambda value: str(value if isinstance(value, UUID) else UUID(_text(value)))
        case kinds.Json():
            return _json
        case _:
            return _text


BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def _text(value: Any) -> str:
    return value if type(value) is str else _shown(value)


def _integer(value: Any) -> int:
    number = int(value)
    exact = Decimal(value) if isinstance(value, str) else value
    if number != exact:  # int() drops a fraction
        raise ValueError(value)
    return number


def _float(single: bool, scale: int | None) -> Former:
    def form(value: Any) -> str:
        number = float(value)
        if scale is not None:
            number = round(number, scale)
        if single:
            # Lose the digits that a column of four bytes loses. A number beyond its range stays:
            # no such column can contain it, so it differs.
            with contextlib.suppress(OverflowError):
                number = struct.unpack("f", struct.pack("f", number))[0]
        return repr(number + 0.0)  # -0.0 becomes 0.0

    return form


def number_text(value: Any) -> str:
    """Return a decimal number without the zeros that do not count."""
    # SQLite stores decimals as floats: repr has the digits that were written, Decimal(float)
    # would have those of the binary fraction.
    number = Decimal(repr(value) if type(value) is float else value)
    if not number.is_finite():
        return str(number)
    text = format(number, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _time(precision: int, database: str) -> Former:
    step = 10 ** (6 - precision)

    def form(value: Any) -> str:
        if type(value) is not datetime:
            value = kinds.instant(value)
        at = utc(value)
        if step > 1:
            at = kinds.from_micros(_rounded(kinds.micros(at), step, database))
        return at.isoformat()

    return form


def _rounded(micros: int, step: int, database: str) -> int:
    """Round like MariaDB (truncate), MySQL (half up) or PostgreSQL (away from its epoch)."""
    if database == "postgresql":
        since = micros - POSTGRES_EPOCH_US
        away = (abs(since) + step // 2) // step * step
        return POSTGRES_EPOCH_US + (away if since >= 0 else -away)
    return (micros + (step // 2 if database == "mysql" else 0)) // step * step


def _number(text: str | int) -> int | Decimal:
    """Return the exact value of a number in JSON: 1.0, 1e0 and 1 are the same."""
    number = kinds.WIDE.create_decimal(text).normalize(kinds.WIDE)
    return int(number) if abs(number) < 2**63 and number == number.to_integral_value() else number


JSON_DECODER = msgspec.json.Decoder(float_hook=_number)
JSON_ENCODER = msgspec.json.Encoder(order="sorted", decimal_format="number")
# An integer that may have more than 64 bits. Without one, the walk through the content is skipped.
HUGE_INTEGER = re.compile(r"(?<![\d.eE+-])-?\d{19,}(?![\d.eE])")


def _json(value: Any) -> str:
    """Return JSON in canonical form: sorted names, and numbers by their exact value."""
    if isinstance(value, (str, bytes)):
        content = JSON_DECODER.decode(value)
        if HUGE_INTEGER.search(value if isinstance(value, str) else value.decode()):
            content = _with_long_integers(content)
    else:
        content = _with_long_integers(_number(repr(value)) if type(value) is float else value)
    return JSON_ENCODER.encode(content).decode()


def _with_long_integers(content: Any) -> Any:
    """Return the content with integers of more than 64 bits as decimals, like the other side."""
    match content:
        case dict():
            return {name: _with_long_integers(value) for name, value in content.items()}
        case list():
            return [_with_long_integers(value) for value in content]
        case bool():
            return content
        case int() if abs(content) >= 2**63:
            return _number(content)
        case _:
            return content


def _shown(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value if isinstance(value, str) else str(value)
