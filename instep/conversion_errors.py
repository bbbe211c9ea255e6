"""Explain why a value does not fit its setting, in the terms of a TOML file and with an example.

msgspec says "Expected `str | null`, got `array` - at `$.a.b`". A reader of the settings file needs
"a.b must be text in quotes, not a list", and a line to write instead.
"""

from __future__ import annotations

import difflib
import json
import re
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

# msgspec's names of types, in the terms of TOML
WORDS = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
    "null": "left out",
    "datetime": "a time",
    "date": "a date",
    "time": "a time of day",
}
EXAMPLES: dict[Any, Any] = {str: "text", int: 1, float: 1.5, bool: True}
_EXPECTED = re.compile(r"Expected `([^`]+)`(?: (>=|<=|>|<) ([\d.]+))?(?:, got `([^`]+)`)?")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_ENUM = re.compile(r"Invalid enum value (?:'(.*)'|(\S+))", re.DOTALL)
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


class Problem(NamedTuple):
    """What is wrong, and what to write instead."""

    what: str
    remedy: str


def explain(message: str, kind: Any, place: str = "") -> Problem:
    """Turn msgspec's message about a value of type `kind` at `place` into problem and remedy."""
    text, _, path = message.partition(" - at `$")
    path = path.rstrip("`")
    within, found = _descend(kind, path)
    name = f"{place}{path.replace('[...]', '.*')}".lstrip(".")
    key = name.rpartition(".")[2] or "value"
    if missing := _MISSING.match(text):
        return _missing(missing[1], within, name)
    if enum := _ENUM.match(text):
        return _not_a_choice(enum[1] or enum[2], within, name, key)
    if expected := _EXPECTED.match(text):
        return _wrong_type(expected, Setting(within, found, name, key))
    shown = text.replace("`", "'")
    return Problem(
        f"{name}: {shown[:1].lower()}{shown[1:]}" if name else shown,
        f"write e.g. {example(key, within, found)}",
    )


def nearest(word: str, known: Iterable[str], *, count: int = 1, cutoff: float = 0.5) -> str:
    """Suggest the most similar known words, as the end of a sentence; empty if none is similar.

    Case does not matter for that.
    """
    folded = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), folded, n=count, cutoff=cutoff)
    close = [folded[name] for name in found]
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def plain(kind: Any) -> Any:
    """Return the type behind Annotated and Optional."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        rest = [part for part in get_args(kind) if part is not type(None)]
        if len(rest) == 1:
            return plain(rest[0])
    return kind


def example(key: str, kind: Any, default: Any = None) -> str:
    """Return a line of TOML that sets this key to a value of this type."""
    kind = plain(kind)
    if get_origin(kind) is dict or _is_struct(kind):
        return f"a table: the line [{key}], and below it a line name = value for each entry"
    if get_origin(kind) is list and _is_struct(get_args(kind)[0]):
        return f"tables: the line [[{key}]], and below it a line name = value for each entry"
    if get_origin(kind) is list:
        return f"{key} = [{_value(get_args(kind)[0], None)}]"
    return f"{key} = {_value(kind, default)}"


class Setting(NamedTuple):
    """A setting by its type, default, full name and own key."""

    kind: Any
    default: Any
    name: str
    key: str


def _value(kind: Any, default: Any) -> str:
    kind = plain(kind)
    if default is None and get_origin(kind) is Literal:
        default = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        kind = get_args(kind)[0]
    return json.dumps(EXAMPLES.get(kind, "text") if default is None else default)


def _missing(field: str, within: Any, name: str) -> Problem:
    kind, description = str, ""
    if _is_struct(within):
        hint = get_type_hints(within, include_extras=True)[field]
        kind = plain(hint)
        description = next(
            (part.description or "" for part in get_args(hint) if isinstance(part, Meta)), ""
        )
    where = f"[{name}]: " if name else ""
    meaning = f" ({description})" if description else ""
    return Problem(f"{where}missing the key '{field}'", f"add {example(field, kind)}{meaning}")


def _not_a_choice(word: str, kind: Any, name: str, key: str) -> Problem:
    choices = [str(one) for one in get_args(plain(kind))]
    return Problem(
        f"{name or 'the value'} is {word!r}, which is not allowed{nearest(word, choices)}",
        f"use one of: {', '.join(f'{key} = {json.dumps(choice)}' for choice in choices)}",
    )


def _wrong_type(expected: re.Match[str], setting: Setting) -> Problem:
    wanted = _worded(expected[1])
    if expected[2]:
        wanted = f"{wanted} of {_BOUNDS[expected[2]]} {expected[3]}"
    instead = f", not {WORDS.get(expected[4], expected[4])}" if expected[4] else ""
    name = f"{setting.name} " if setting.name else "the value "
    return Problem(
        f"{name}must be {wanted}{instead}",
        f"write e.g. {example(setting.key, setting.kind, setting.default)}",
    )


def _worded(names: str) -> str:
    return " or ".join(WORDS.get(name, name) for name in names.split(" | ") if name != "null")


def _descend(kind: Any, path: str) -> tuple[Any, Any]:
    """Return type and default at msgspec's path (`.field`, `[...]`, `[0]`) below a type."""
    default: Any = None
    for field, item in re.findall(r"\.([^.\[]+)|(\[[^\]]*\])", path):
        kind = _table_of(plain(kind))
        default = None
        if item:
            inner = get_args(kind)
            kind = inner[-1] if inner else str
        elif _is_struct(kind):
            known = {one.encode_name: one for one in msgspec.structs.fields(kind)}
            if field not in known:
                return str, None
            kind = get_type_hints(kind, include_extras=True)[known[field].name]
            declared = known[field].default
            default = declared if isinstance(declared, (str, int, float)) else None
        else:
            return str, None
    return plain(kind), default


def _table_of(kind: Any) -> Any:
    """Return the table of a setting that may also be a plain value: only a table has fields."""
    if get_origin(kind) in (Union, types.UnionType):
        return next((part for part in get_args(kind) if _is_struct(part)), kind)
    return kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
