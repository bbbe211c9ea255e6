"""Conversions from the settings, applied to a field's value before the column's own converter.

Without them a value of another type than its column is refused. A conversion never guesses: it
refuses what it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import msgspec

from instep import settings
from instep.document import kinds
from instep.document.reasons import Reason, Unfit

NUMBER = re.compile(r"[+-]?\d{1,1000}(\.\d{1,1000})?([eE][+-]?\d{1,4})?", re.ASCII)
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
NUMBER_KINDS = (kinds.Integer, kinds.Numeric, kinds.Float)
# the column kinds that each conversion can write
WRITES: dict[str, tuple[type[kinds.ColumnKind], ...]] = {
    "number": (*NUMBER_KINDS, kinds.Timestamp, kinds.Json),
    "boolean": (*NUMBER_KINDS, kinds.Boolean, kinds.Text, kinds.Json),
    "text": (kinds.Text, kinds.Enumeration),
}


class Conversion(msgspec.Struct, frozen=True):
    """What is done to a value before it is written, in this order: trim, convert, round."""

    convert: settings.Convert | None = None
    round: bool = False
    trim: bool = False

    def __bool__(self) -> bool:
        return bool(self.convert or self.round or self.trim)


def problem(conversion: Conversion, kind: kinds.ColumnKind) -> str | None:
    """Return why a column of this kind does not allow this conversion; None if it does."""
    if conversion.convert is not None and not isinstance(kind, WRITES[conversion.convert]):
        return f'convert = "{conversion.convert}"'
    if conversion.round and not (
        isinstance(kind, kinds.Integer)
        or (isinstance(kind, kinds.Numeric) and kind.digits is not None)
    ):
        return "round = true, which needs an integer column or a decimal column with a scale"
    return None


def preparer(conversion: Conversion, kind: kinds.ColumnKind) -> kinds.Converter:
    """Return the function from a field's value to what the column's own converter takes."""
    steps: list[Callable[[Any], Any]] = []
    if conversion.trim:
        steps.append(lambda value: value.strip() if isinstance(value, str) else value)
    match conversion.convert:
        case "number":
            steps.append(_number)
        case "boolean":
            steps.append(_boolean(kind))
        case "text":
            steps.append(_text)
    if conversion.round:
        scale = kind.scale if isinstance(kind, kinds.Numeric) else 0
        steps.append(_rounded(scale or 0))
    if isinstance(kind, kinds.Integer) and (conversion.round or conversion.convert == "number"):
        steps.append(_whole)

    def prepare(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return prepare


def _number(value: Any) -> Any:
    """Return the number that a text is; anything but text stays as it is."""
    if not isinstance(value, str):
        return value
    if not NUMBER.fullmatch(value):
        raise Unfit(Reason.WRONG_TYPE, f"{kinds.shown(value)} is not a number")
    return int(value) if value.lstrip("+-").isdigit() else kinds.exact_number(value)


def _boolean(kind: kinds.ColumnKind) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        boolean = None
        if isinstance(value, str):
            boolean = BOOLEANS.get(value.lower())
        elif type(value) is bool or (type(value) is int and value in (0, 1)):
            boolean = bool(value)
        if boolean is None:
            raise Unfit(
                Reason.WRONG_TYPE,
                'not a boolean: true, false, 0, 1, "true", "false", "0" or "1" expected',
            )
        if isinstance(kind, kinds.Text):
            return "true" if boolean else "false"
        return int(boolean) if isinstance(kind, NUMBER_KINDS) else boolean

    return convert


_encode = msgspec.json.Encoder(decimal_format="number").encode


def _text(value: Any) -> Any:
    """Return a number with the digits of the event; a boolean, an object and a list as JSON."""
    return value if isinstance(value, str) else _encode(value).decode()


def _rounded(scale: int) -> Callable[[Any], Any]:
    step = Decimal((0, (1,), -scale))

    def convert(value: Any) -> Any:
        if type(value) not in (float, Decimal):
            return value
        number = value if isinstance(value, Decimal) else Decimal(repr(value))
        return number.quantize(step, rounding=ROUND_HALF_UP, context=kinds.WIDE)

    return convert


def _whole(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    if value != value.to_integral_value():
        raise Unfit(Reason.NUMBER_OUT_OF_RANGE, "the column holds whole numbers")
    return int(value)
