"""Column kinds: what a column can hold, and how a JSON value becomes its value.

A sink reads its table and finds the kind of each column. `converter` returns, for a kind, a
function from a JSON value to the column's value, which raises `Unfit` with a reason. Times become
aware datetimes in UTC; sinks bind them as their database needs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec

from instep.document.event import utc
from instep.document.reasons import Reason, Unfit

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
EXPONENT_MAX = 1_000
# keeps every digit; Python's default context has 28
WIDE = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)

Converter = Callable[[Any], Any]


class ColumnKind(msgspec.Struct, frozen=True, tag=True):
    """What a column can hold."""


# Character sets of MariaDB and MySQL that lack characters, and the codecs that know which.
CODECS = {
    "ascii": "ascii",
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
}
UNICODE_BMP = ("utf8", "utf8mb3", "ucs2")
UNICODE = ("utf8mb4", "utf16", "utf16le", "utf32")


class Text(ColumnKind, frozen=True):
    """Text with limits in characters and in bytes of UTF-8, in a character set (None: Unicode)."""

    characters: int | None = None
    size: int | None = None
    charset: str | None = None
    padded: bool = False  # CHAR(n): trailing spaces are not stored


class Enumeration(ColumnKind, frozen=True):
    """One of an enumeration's labels."""

    labels: tuple[str, ...]


class Integer(ColumnKind, frozen=True):
    """An integer between two bounds."""

    low: int = -(2**63)
    high: int = 2**63 - 1
    is_boolean: bool = False  # TINYINT(1), which stands for true and false


class Float(ColumnKind, frozen=True):
    """A binary floating-point number."""


class Numeric(ColumnKind, frozen=True):
    """A decimal number of `digits` digits, `scale` of them after the point.

    `binary` marks a column of SQLite, which stores a 64-bit integer or a double, whatever its
    declared type is.
    """

    digits: int | None = None
    scale: int | None = None
    binary: bool = False


class Boolean(ColumnKind, frozen=True):
    """True or false."""


class Timestamp(ColumnKind, frozen=True):
    """A time, stored with `precision` digits of a second."""

    low: datetime = datetime.min.replace(tzinfo=UTC)
    high: datetime = datetime.max.replace(tzinfo=UTC)
    precision: int = 6


class Date(ColumnKind, frozen=True):
    """A calendar day."""


class Json(ColumnKind, frozen=True):
    """Any JSON value, stored as its text; nested at most `depth` deep.

    `doubles` says which numbers the database turns into doubles: all (MySQL), or one that is the
    whole value (SQLite, which reads the text of a number as a number). With `from_text`, a text is
    JSON itself, not a string in JSON.
    """

    depth: int | None = None
    doubles: Literal["none", "all", "whole"] = "none"
    from_text: bool = False


class Uuid(ColumnKind, frozen=True):
    """A UUID."""


AnyKind = Text | Enumeration | Integer | Float | Numeric | Boolean | Timestamp | Date | Json | Uuid


def converter(kind: ColumnKind) -> Converter:
    """Return the function that converts a JSON value to this kind, or raises Unfit."""
    match kind:
        case Text():
            return _text(kind)
        case Enumeration():
            return _enumeration(kind)
        case Integer():
            return _integer(kind)
        case Timestamp():
            return _timestamp(kind)
        case Numeric():
            return _numeric(kind)
        case Float():
            return _float
        case Boolean():
            return _boolean
        case Date():
            return _date
        case Uuid():
            return _uuid
        case Json():
            return _json(kind)
        case _:
            raise TypeError(f"no converter for {kind}")


def time_converter(kind: ColumnKind, unit: str = "ms") -> Converter:
    """Return the converter for a field that holds a time.

    Integer columns get units since 1970, text columns ISO 8601.
    """
    convert = converter(kind)
    match kind:
        case Integer():
            step = UNIT_US[unit]
            return lambda value: convert(micros(instant(value)) // step)
        case Text():
            return lambda value: convert(
                value if isinstance(value, str) and instant(value) else iso(instant(value))
            )
        case _:
            return convert


def instant(value: Any) -> datetime:
    """Return a time from epoch milliseconds or ISO 8601 text; text without a zone is UTC."""
    if isinstance(value, str):
        try:
            at = msgspec.convert(value, datetime)
        except msgspec.ValidationError:
            at = _lenient(value)
        try:
            return utc(at)
        except OverflowError:
            raise Unfit(
                Reason.TIME_OUT_OF_RANGE, f"{shown(value)} is outside the years 1 to 9999"
            ) from None
    if type(value) is int or type(value) is float or isinstance(value, Decimal):
        try:
            return EPOCH + timedelta(milliseconds=value if type(value) is int else float(value))
        except (OverflowError, ValueError):
            raise Unfit(
                Reason.TIME_OUT_OF_RANGE, "epoch milliseconds outside the years 1 to 9999"
            ) from None
    raise Unfit(
        Reason.WRONG_TYPE, f"a time is epoch milliseconds or ISO 8601 text, not {_name(value)}"
    )


def micros(at: datetime) -> int:
    """Return microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def from_micros(value: int) -> datetime:
    """Return the time that is this many microseconds after 1970."""
    return EPOCH + timedelta(microseconds=value)


def iso(at: datetime) -> str:
    """Return ISO 8601 in UTC, as instep's publisher writes it."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


# --- one function per kind ----------------------------------------------------------------------


def _text(kind: Text) -> Converter:
    characters = kind.characters if kind.characters is not None else 2**62
    size = kind.size if kind.size is not None else 2**62
    charset = kind.charset

    def convert(value: Any) -> str:
        if type(value) is not str:
            raise Unfit(Reason.WRONG_TYPE, f"text expected, not {_name(value)}")
        if len(value) > characters:
            raise Unfit(
                Reason.TEXT_TOO_LONG, f"{len(value)} characters, but the column holds {characters}"
            )
        if len(value) * 4 > size and len(value.encode()) > size:
            raise Unfit(
                Reason.TEXT_TOO_LONG, f"{len(value.encode())} bytes, but the column holds {size}"
            )
        if "\0" in value:
            raise Unfit(Reason.NUL_IN_TEXT, "the text contains the character NUL")
        if charset is not None and not is_in_charset(value, charset):
            raise Unfit(
                Reason.NOT_IN_CHARACTER_SET,
                f"the column stores text as {charset}, which lacks a character of this text",
            )
        return value

    return convert


def is_in_charset(text: str, charset: str) -> bool:
    """Return whether a character set has all characters of a text."""
    if charset in UNICODE or text.isascii():
        return True
    if charset in UNICODE_BMP:
        return max(text) <= "\uffff"
    try:
        text.encode(CODECS[charset])
    except UnicodeEncodeError:
        return False
    return True


def _enumeration(kind: Enumeration) -> Converter:
    labels = frozenset(kind.labels)

    def convert(value: Any) -> str:
        if type(value) is not str:
            raise Unfit(Reason.WRONG_TYPE, f"text expected, not {_name(value)}")
        if value not in labels:
            raise Unfit(
                Reason.NOT_A_CHOICE, f"{shown(value)} is not one of {', '.join(kind.labels)}"
            )
        return value

    return convert


def _integer(kind: Integer) -> Converter:
    low, high = kind.low, kind.high

    def convert(value: Any) -> int:
        if type(value) is not int and not (kind.is_boolean and type(value) is bool):
            raise Unfit(Reason.WRONG_TYPE, f"integer expected, not {_name(value)}")
        if not low <= value <= high:
            raise Unfit(Reason.NUMBER_OUT_OF_RANGE, f"the column holds {low} to {high}")
        return int(value)

    return convert


def _timestamp(kind: Timestamp) -> Converter:
    low, high = kind.low, kind.high

    def convert(value: Any) -> datetime:
        at = instant(value)
        if not low <= at <= high:
            raise Unfit(
                Reason.TIME_OUT_OF_RANGE, f"the column holds {low:%Y-%m-%d} to {high:%Y-%m-%d}"
            )
        return at

    return convert


def _numeric(kind: Numeric) -> Converter:
    def convert(value: Any) -> Decimal:
        if type(value) not in (int, float, Decimal):
            raise Unfit(Reason.WRONG_TYPE, f"number expected, not {_name(value)}")
        number = Decimal(value) if type(value) is not float else Decimal(repr(value))
        if kind.digits is not None:
            whole = kind.digits - (kind.scale or 0)
            if number and number.adjusted() >= whole:
                raise Unfit(
                    Reason.NUMBER_OUT_OF_RANGE, f"the column holds {whole} digits before the point"
                )
            scale = kind.scale or 0
            exponent = number.as_tuple().exponent
            if isinstance(exponent, int) and -exponent > scale:
                shorter = number.quantize(Decimal((0, (1,), -scale)), context=WIDE)
                if shorter != number:
                    raise Unfit(
                        Reason.NUMBER_OUT_OF_RANGE,
                        f"the column holds {scale} digits after the point",
                    )
                number = shorter
        if kind.binary and not _is_kept_by_sqlite(number):
            raise Unfit(
                Reason.NUMBER_OUT_OF_RANGE,
                "SQLite stores this number as a double,"
                f" which cannot represent {_shown_number(number)}",
            )
        return number

    return convert


def _float(value: Any) -> float:
    if type(value) not in (int, float, Decimal):
        raise Unfit(Reason.WRONG_TYPE, f"number expected, not {_name(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if number in (float("inf"), float("-inf")):
        raise Unfit(Reason.NUMBER_OUT_OF_RANGE, "too large for a floating-point column")
    return number


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Unfit(Reason.WRONG_TYPE, f"true or false expected, not {_name(value)}")
    return value


def _date(value: Any) -> date:
    if type(value) is str:
        try:
            return date.fromisoformat(value)
        except ValueError:
            return instant(value).date()
    return instant(value).date()


def _uuid(value: Any) -> UUID:
    if type(value) is not str:
        raise Unfit(Reason.WRONG_TYPE, f"text expected, not {_name(value)}")
    try:
        return UUID(value)
    except ValueError:
        raise Unfit(Reason.WRONG_TYPE, f"{shown(value)} is not a UUID") from None


def _json(kind: Json) -> Converter:
    encode = msgspec.json.Encoder(decimal_format="number").encode
    find_changed = {
        "none": lambda _: None,
        "all": _changed_by_mysql,
        "whole": _changed_by_sqlite,
    }[kind.doubles]

    def convert(value: Any) -> str | int | float:
        if kind.from_text and type(value) is str:
            value = _parsed(value)
        try:
            text = encode(value)
        except RecursionError:
            raise Unfit(Reason.NESTED_TOO_DEEP, "the value is nested too deep") from None
        if kind.depth is not None and is_deeper(text, kind.depth):
            raise Unfit(Reason.NESTED_TOO_DEEP, f"nested deeper than the column's {kind.depth}")
        if NUL_ESCAPED.search(text):
            raise Unfit(Reason.NUL_IN_TEXT, "the value contains the character NUL")
        if (changed := find_changed(value)) is not None:
            raise Unfit(
                Reason.NUMBER_OUT_OF_RANGE,
                "the database stores this number as a double,"
                f" which cannot represent {_shown_number(changed)}",
            )
        if kind.doubles == "whole" and type(value) in (int, float, Decimal):
            return sqlite_number(Decimal(text.decode()))
        return text.decode()

    return convert


def _parsed(text: str) -> Any:
    """Return what a JSON text says, with every digit of its numbers."""
    try:
        return JSON_DECODER.decode(text)
    except RecursionError:
        raise Unfit(Reason.NESTED_TOO_DEEP, "the value is nested too deep") from None
    except msgspec.DecodeError:
        raise Unfit(Reason.WRONG_TYPE, f"{shown(text)} is text that is not JSON") from None


def exact_number(text: str) -> Decimal:
    """Return a decimal with every digit of its text.

    One that no column could hold is refused before it is expanded.
    """
    try:
        number = Decimal(text)
    except ArithmeticError:
        number = Decimal("Infinity")
    if not number.is_finite() or abs(number.adjusted()) > EXPONENT_MAX:
        raise beyond_range()
    return number


JSON_DECODER = msgspec.json.Decoder(float_hook=exact_number)


def beyond_range() -> Unfit:
    """Return the error for a number that no column could hold."""
    return Unfit(Reason.NUMBER_OUT_OF_RANGE, "a number in the value is beyond any range")


def is_double(number: int | Decimal) -> bool:
    """Return whether a double, written with the fewest digits, has exactly this value."""
    try:
        return Decimal(repr(float(number))) == number
    except OverflowError:
        return False


def sqlite_number(number: Decimal) -> int | float:
    """Return a number as SQLite stores it: a 64-bit integer, else a double.

    SQLite's own conversion of text is not exact to the last digit.
    """
    is_integer = abs(number) < 2**63 and number == number.to_integral_value()
    return int(number) if is_integer else float(number)


def _is_kept_by_sqlite(number: Decimal) -> bool:
    return is_double(number) or type(sqlite_number(number)) is int


def _changed_by_sqlite(value: Any) -> int | Decimal | None:
    """Return the value itself if it is a number that SQLite would change."""
    is_number = type(value) in (int, Decimal)
    return value if is_number and not _is_kept_by_sqlite(Decimal(value)) else None


def _changed_by_mysql(value: Any) -> int | Decimal | None:
    """Return the first number in a JSON value that MySQL would change.

    MySQL stores integers of 64 bits, and doubles.
    """
    if isinstance(value, (dict, list)):
        parts = value.values() if isinstance(value, dict) else value
        return next(
            (found for part in parts if (found := _changed_by_mysql(part)) is not None), None
        )
    if type(value) is int:
        return None if -(2**63) <= value < 2**64 or is_double(value) else value
    return value if isinstance(value, Decimal) and not is_double(value) else None


NUL_ESCAPED = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
TEXT_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"|([\[{])|[\]}]')


def is_deeper(text: bytes, depth: int) -> bool:
    """Return whether a JSON text is nested more than `depth` deep."""
    if text.count(b"[") + text.count(b"{") <= depth:
        return False
    level = 0
    for part in TEXT_OR_BRACKET.finditer(text):
        if part[1]:
            level += 1
            if level > depth:
                return True
        elif not part[0].startswith(b'"'):
            level -= 1
    return False


def _lenient(value: str) -> datetime:
    """Parse ISO 8601 beyond RFC 3339: a space for the T, no seconds, a date, compact, a comma."""
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise Unfit(Reason.NOT_A_TIME, f"{shown(value)} is not ISO 8601") from None


FINER_THAN_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")


def is_finer(value: Any) -> bool:
    """Return whether a time, as text or as milliseconds, is finer than a microsecond."""
    if isinstance(value, str):
        return FINER_THAN_MICROSECONDS.search(value) is not None
    if type(value) not in (float, Decimal):
        return False
    number = Decimal(repr(value)) if type(value) is float else value
    exponent = number.normalize(WIDE).as_tuple().exponent
    return isinstance(exponent, int) and exponent < -3


def _name(value: Any) -> str:
    names = {
        str: "text",
        bool: "true or false",
        int: "an integer",
        list: "a list",
        dict: "an object",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def _shown_number(number: int | Decimal) -> str:
    text = str(number)
    return text if len(text) <= 40 else f"{text[:40]}…"


def shown(value: str) -> str:
    """Return a text for a message, shortened if it is long."""
    return repr(value) if len(value) <= 40 else repr(value[:40]) + "…"
