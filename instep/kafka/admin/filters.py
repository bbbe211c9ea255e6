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
from instep.kafka.admin.tail import Condition, TailRecord

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
Search = Callable[[str], bool]


def compiled(pattern: str) -> Search:
    """Return a function that tells whether a text has a match of a regular expression."""
    search = re.compile(pattern).search
    return lambda text: search(text) is not None


def parse(texts: Iterable[str], regex: Callable[[str], Search] = compiled) -> Condition:
    """Return a function that tells whether a record meets all of the conditions.

    `regex` compiles regular expressions; it raises re.error for a wrong one.
    """
    conditions = [_condition(text, regex) for text in texts]
    return lambda record: all(matches(record) for matches in conditions)


def _condition(text: str, regex: Callable[[str], Search]) -> Condition:
    parsed = _CONDITION.fullmatch(text)
    if parsed is None:
        raise errors.SettingsError(f"{text!r} is not a condition", GRAMMAR)
    name, sign, value = parsed[1].removeprefix("@"), parsed[2], parsed[3]
    field = _field(name)
    if sign in ("~", "!~"):
        return _regex_condition(field, value, regex, expected=sign == "~")
    if name == "timestamp" and not value.lstrip("-").isdigit():
        value = str(
            int(places.moment(places.parse_place(f"@{value.removeprefix('@')}")).timestamp() * 1000)
        )
    compare = COMPARISONS[sign]
    number = _number(value)

    def matches(record: TailRecord) -> bool:
        actual = field(record)
        if actual is ABSENT:
            return sign == "!="
        if isinstance(actual, (int, float)) and number is not None:
            return compare(actual, number)
        if (
            isinstance(actual, str)
            and number is not None
            and (actual_number := _number(actual)) is not None
            and sign not in ("=", "!=")
        ):
            return compare(actual_number, number)
        return compare(_text(actual), value)

    return matches


def _regex_condition(
    field: Field, value: str, regex: Callable[[str], Search], *, expected: bool
) -> Condition:
    try:
        search = regex(value)
    except re.error as failure:
        raise errors.SettingsError(
            f"{value!r} is not a regular expression: {failure}", "write e.g. key~^C-1"
        ) from None

    def matches(record: TailRecord) -> bool:
        actual = field(record)
        return (actual is not ABSENT and search(_text(actual))) is expected

    return matches


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
    return lambda record: _lookup(record.value, path)


def _lookup(value: bytes | None, path: list[str]) -> Any:
    try:
        actual = msgspec.json.decode(value) if value is not None else ABSENT
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ABSENT
    for step in path:
        if isinstance(actual, dict) and step in actual:
            actual = actual[step]
        elif (
            isinstance(actual, list)
            and step.isascii()
            and step.isdigit()
            and int(step) < len(actual)
        ):
            actual = actual[int(step)]
        else:
            return ABSENT
    # A Python bool is an int. Here, true and false compare as texts.
    return _text(actual) if isinstance(actual, bool) else actual


def _decoded(value: bytes | None) -> Any:
    if value is None:
        return ABSENT
    return value.decode("utf-8", "replace")


def _text(actual: Any) -> str:
    if isinstance(actual, str):
        return actual
    return msgspec.json.encode(actual).decode()


def _number(text: str) -> float | int | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None
