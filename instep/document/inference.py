"""Column types from a sample of records, for a table that `instep init` is about to make.

A type is chosen so that every sampled value fits, and with room: text stays text, as it takes every text that may follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from decimal import Decimal
from typing import Any

import msgspec

from instep import settings
from instep.document import conversion, kinds
from instep.document.reasons import Unfit

DIGITS = 38
SCALE_LEAST = 6  # room for values that have more digits than those of the sample
SCALE_MOST = 12  # more than that is a measurement, not an amount

_parse = msgspec.json.Decoder(float_hook=Decimal).decode
_as_number = conversion.preparer(conversion.Conversion(convert="number"), kinds.Numeric())


def typed(
    pipeline: settings.Pipeline, values: Iterable[bytes | None], columns: Collection[str]
) -> settings.Pipeline:
    """The pipeline with a type for those of these columns, its key among them, that the sampled record values tell one for."""
    bodies = [body for value in values if isinstance(body := _body(value), dict)]
    found = {
        name: _told(bodies, column) for name, column in pipeline.mapped.items() if name in columns
    }
    mapped = {
        name: msgspec.structs.replace(column, type=found[name])
        if found.get(name)
        else pipeline.columns[name]
        for name, column in pipeline.mapped.items()
    }
    return msgspec.structs.replace(
        pipeline, columns=mapped, key_type=_key_type(pipeline, bodies, columns)
    )


def _key_type(
    pipeline: settings.Pipeline, bodies: list[dict[str, Any]], columns: Collection[str]
) -> Any:
    """The type of each key column that is among `columns` and whose field holds integers; otherwise what is declared."""
    documents = pipeline.event.documents
    if len(documents) < len(pipeline.keys):  # one text, joined of all parts
        return pipeline.key_type
    types = pipeline.key_types
    for name, field in zip(pipeline.keys, documents, strict=True):
        if name in columns and not field.startswith("@"):
            ids = [_at(body, field) for body in bodies]
            types[name] = (
                "bigint"
                if ids and all(type(one) is int and -(2**63) <= one < 2**63 for one in ids)
                else types[name]
            )
    if not any(types.values()):
        return pipeline.key_type
    found = [kind or "text" for kind in types.values()]
    return found[0] if isinstance(pipeline.key, str) else found


def type_of(values: Iterable[Any]) -> str | None:
    """The type that holds all of these values of one field; None when there is none to see."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if all(type(value) is bool for value in present):
        return "boolean"
    if all(isinstance(value, str) for value in present):
        return "text"
    if all(type(value) in (int, Decimal) for value in present):
        return _number(
            [Decimal(value) for value in present],
            whole=all(type(value) is int for value in present),
        )
    return "json"


def _number(numbers: list[Decimal], *, whole: bool) -> str:
    if whole and all(-(2**63) <= number < 2**63 for number in numbers):
        return "bigint"
    scale = max(
        max(-int(number.normalize(kinds.WIDE).as_tuple().exponent), 0) for number in numbers
    )
    digits = max(number.adjusted() + 1 for number in numbers)
    scale = 0 if whole else max(scale, SCALE_LEAST)
    return (
        f"decimal({DIGITS},{scale})"
        if scale <= SCALE_MOST and digits + scale <= DIGITS
        else "double"
    )


def _told(bodies: list[dict[str, Any]], column: settings.ColumnMapping) -> str | None:
    if column.field is None or column.field.startswith("@"):
        return None
    values = [_at(body, column.field) for body in bodies]
    if column.convert == "number":
        values = [number for value in values if (number := _converted(value)) is not None]
    return type_of(values)


def _converted(value: Any) -> Any:
    try:
        return _as_number(value)
    except Unfit:
        return None


def _body(value: bytes | None) -> Any:
    try:
        return _parse(value) if value is not None else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ArithmeticError):
        return None


def _at(body: Any, field: str) -> Any:
    for step in field.split("."):
        body = body.get(step) if isinstance(body, dict) else None
    return body
