"""Infer column types from a sample of records, for a table that `instep init` creates.

A type fits every sampled value and leaves room for others: text stays text of any length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    pipeline: settings.Pipeline,
    values: Iterable[bytes | None],
    columns: Collection[str],
    further: Sequence[Collection[str]] = (),
) -> settings.Pipeline:
    """Return the pipeline with inferred types for these columns, which may include its key.

    `further` has the columns of each further table.
    """
    bodies = [body for value in values if isinstance(body := _body(value), dict)]
    return msgspec.structs.replace(
        pipeline,
        columns=_typed_columns(pipeline, bodies, columns),
        key_type=_key_type(pipeline, bodies, columns),
        tables=[
            msgspec.structs.replace(table, columns=_typed_columns(table, bodies, names))
            for table, names in zip(pipeline.tables, further, strict=bool(further))
        ],
    )


def _typed_columns(
    table: settings.Pipeline | settings.FurtherTable,
    bodies: list[dict[str, Any]],
    columns: Collection[str],
) -> dict[str, str | settings.ColumnMapping]:
    mapped = dict(table.columns)
    for name, column in table.mapped.items():
        inferred = _sampled_type(bodies, column) if name in columns else None
        if inferred:
            mapped[name] = msgspec.structs.replace(column, type=inferred)
    return mapped


def typed_as(
    pipeline: settings.Pipeline, types: Mapping[str, str], columns: Collection[str]
) -> settings.Pipeline:
    """Return the pipeline with the types that its fields have, for those of `columns` without."""
    mapped = {
        name: msgspec.structs.replace(column, type=types.get(column.field or ""))
        for name, column in pipeline.mapped.items()
        if name in columns and name not in pipeline.keys and column.type is None
    }
    keys = pipeline.key_types
    if len(pipeline.event.documents) == len(pipeline.keys):
        for name, field in zip(pipeline.keys, pipeline.event.documents, strict=True):
            if name in columns and types.get(field) in ("integer", "bigint"):
                keys[name] = keys[name] or "bigint"
    key_type: str | list[str] | None = pipeline.key_type
    if any(keys.values()):
        key_type = _as_declared(pipeline, keys.values())
    return msgspec.structs.replace(
        pipeline, columns={**pipeline.columns, **mapped}, key_type=key_type
    )


def _key_type(
    pipeline: settings.Pipeline, bodies: list[dict[str, Any]], columns: Collection[str]
) -> Any:
    """Return the key's type: bigint for those of `columns` with integers, else as declared."""
    documents = pipeline.event.documents
    if len(documents) < len(pipeline.keys):  # one text for all parts of the key
        return pipeline.key_type
    types = pipeline.key_types
    for name, field in zip(pipeline.keys, documents, strict=True):
        if name in columns and not field.startswith("@"):
            ids = [_at(body, field) for body in bodies]
            if ids and all(type(one) is int and -(2**63) <= one < 2**63 for one in ids):
                types[name] = "bigint"
    if not any(types.values()):
        return pipeline.key_type
    return _as_declared(pipeline, types.values())


def _as_declared(pipeline: settings.Pipeline, kinds: Iterable[str | None]) -> str | list[str]:
    """Return the types of the key's columns as settings have them: a list for a composite key."""
    found = [kind or "text" for kind in kinds]
    if isinstance(pipeline.key, str):
        return found[0]
    return found


def type_of(values: Iterable[Any]) -> str | None:
    """Return the type that fits all of these values of a field; None if all are null."""
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
    if scale > SCALE_MOST or digits + scale > DIGITS:
        return "double"
    return f"decimal({DIGITS},{scale})"


def _sampled_type(bodies: list[dict[str, Any]], column: settings.ColumnMapping) -> str | None:
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
