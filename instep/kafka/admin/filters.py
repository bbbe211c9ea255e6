"""Conditions on records for `peek --filter`: a field, an operator and a value. Never run as code.

    key  value  partition  offset  timestamp  header.NAME     fields of the record itself
    status  address.city  .key                                fields of its JSON value; dots descend
    = != < <= > >=                                            as numbers if both are, else as texts
    ~ !~                                                      contains a match of a regex, or not

A dot in front, as in .key, means the field of the value. A field that a record does not have only
meets != and !~.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from instep import errors
from instep.kafka import places
from instep.kafka.admin.tail import TailRecord, Wanted

GRAMMAR = (
    "write FIELD=VALUE (or != < <= > >= ~ !~), where FIELD is key, value, header.NAME"
    " or a field of the JSON: status=FAILED"
)
_CONDITION = re.compile(r"\s*(@?[^\s=!<>~]+)\s*(!=|!~|<=|>=|=|<|>|~)\s?(.*)", re.DOTALL)
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NUMBERS: Mapping[str, Callable[[TailRecord], int]] = {
    "partition": lambda record: record.partition,
    "offset": lambda record: record.offset,
    "timestamp": lambda record: record.timestamp_ms,
}
ABSENT = object()

Field = Callable[[TailRecord], Any]


def parse(texts: Iterable[str]) -> Wanted:
    """Return a function that tells whether a record meets all of the conditions."""
    conditions = [_condition(text) for text in texts]
    return lambda record: all(met(record) for met in conditions)


def _condition(text: str) -> Wanted:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise errors.SettingsError(f"{text!r} is no condition", GRAMMAR)
    name, sign, value = found[1].removeprefix("@"), found[2], found[3]
    field = _field(name)
    if sign in ("~", "!~"):
        return _searched(field, value, wanted=sign == "~")
    if name == "timestamp" and not value.lstrip("-").isdigit():
        value = str(
            int(places.moment(places.parse_place(f"@{value.removeprefix('@')}")).timestamp() * 1000)
        )
    compare = COMPARISONS[sign]
    number = _number(value)

    def met(record: TailRecord) -> bool:
        held = field(record)
        if held is ABSENT:
            return sign == "!="
        if isinstance(held, (int, float)) and number is not None:
            return compare(held, number)
        if (
            isinstance(held, str)
            and number is not None
            and (own := _number(held)) is not None
            and sign not in ("=", "!=")
        ):
            return compare(own, number)
        return compare(_text(held), value)

    return met


def _searched(field: Field, value: str, *, wanted: bool) -> Wanted:
    try:
        pattern = re.compile(value)
    except re.error as failure:
        raise errors.SettingsError(
            f"{value!r} is not a regular expression: {failure}", "write e.g. key~^C-1"
        ) from None

    def met(record: TailRecord) -> bool:
        held = field(record)
        return (held is not ABSENT and pattern.search(_text(held)) is not None) is wanted

    return met


def _field(name: str) -> Field:
    if name in NUMBERS:
        return NUMBERS[name]
    if name == "key":
        return lambda record: _decoded(record.key)
    if name == "value":
        return lambda record: _decoded(record.value)
    if name.startswith("header."):
        header = name.removeprefix("header.")
        return lambda record: next(
            (_decoded(value) for one, value in record.headers if one == header), ABSENT
        )
    path = name.removeprefix(".").split(".")
    return lambda record: _descended(record.value, path)


def _descended(value: bytes | None, path: list[str]) -> Any:
    try:
        held = msgspec.json.decode(value) if value is not None else ABSENT
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ABSENT
    for step in path:
        if isinstance(held, dict) and step in held:
            held = held[step]
        elif isinstance(held, list) and step.isascii() and step.isdigit() and int(step) < len(held):
            held = held[int(step)]
        else:
            return ABSENT
    # true and false are words here; in Python they are numbers
    return _text(held) if isinstance(held, bool) else held


def _decoded(value: bytes | None) -> Any:
    return ABSENT if value is None else value.decode("utf-8", "replace")


def _text(held: Any) -> str:
    return held if isinstance(held, str) else msgspec.json.encode(held).decode()


def _number(text: str) -> float | int | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None
