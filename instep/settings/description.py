"""Describe the settings that exist, and show the values in effect without secrets."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from instep.masking import STARS, masked_url
from instep.settings.file import Settings
from instep.settings.tree import is_table, plain
from instep.settings.values import IN_URL, SECRET, SettingsTable


def describe(table: type[SettingsTable] = Settings) -> list[tuple[str, str, str, str]]:
    """Return (key, type, default, help) of every setting, for the reference page."""
    rows: list[tuple[str, str, str, str]] = []
    hints = get_type_hints(table, include_extras=True)
    for field in msgspec.structs.fields(table):
        meta = next(
            (part for part in get_args(hints[field.name]) if isinstance(part, Meta)), Meta()
        )
        name, kind = field.encode_name, plain(hints[field.name])
        if get_origin(kind) is list and is_table(get_args(kind)[0]):
            name, kind = f"{name}[]", get_args(kind)[0]
        children = describe(kind) if is_table(kind) else []
        if get_origin(kind) is dict and is_table(plain(get_args(kind)[1])):
            short = not is_table(get_args(kind)[1])
            below = "COLUMN" if short else "NAME"
            inner = describe(plain(get_args(kind)[1]))
            children = [(f"{below}.{key}", *rest) for key, *rest in inner]  # type: ignore[misc]
            if short:
                rows.append((name, _type_name(kind), _default(field), meta.description or ""))
        if children:
            rows += [(f"{name}.{key}", *rest) for key, *rest in children]  # type: ignore[misc]
        else:
            rows.append((name, _type_name(kind), _default(field), meta.description or ""))
    return rows


def effective(
    table: SettingsTable, where: str = "", *, hidden: Mapping[str, Any] | None = None
) -> list[tuple[str, Any]]:
    """Return (key, value) of every setting, with secrets and passwords in URLs masked.

    `hidden` has, by key, what to show in place of values from the environment.
    """
    hidden = hidden or {}
    rows: list[tuple[str, Any]] = []
    hints = get_type_hints(type(table), include_extras=True)
    for field in msgspec.structs.fields(table):
        value, key = getattr(table, field.name), f"{where}{field.encode_name}"
        extra = next(
            (part.extra or {} for part in get_args(hints[field.name]) if isinstance(part, Meta)), {}
        )
        if isinstance(value, SettingsTable):
            rows += effective(value, f"{key}.", hidden=hidden)
        elif isinstance(value, dict) and any(
            isinstance(child, SettingsTable) for child in value.values()
        ):
            for name, child in value.items():
                if isinstance(child, SettingsTable):
                    rows += effective(child, f"{key}.{name}.", hidden=hidden)
                else:
                    rows.append((f"{key}.{name}", hidden.get(f"{key}.{name}", child)))
        elif isinstance(value, list) and value and isinstance(value[0], SettingsTable):
            for number, child in enumerate(value):
                rows += effective(child, f"{key}[{number}].", hidden=hidden)
        elif isinstance(value, dict):
            shown = {name: hidden.get(f"{key}.{name}", child) for name, child in value.items()}
            for name in shown:
                if extra.get("secret") or SECRET.search(name):
                    shown[name] = STARS
            rows.append((key, shown))
        else:
            rows.append((key, _masked(hidden.get(key, value), extra.get("secret"))))
    return rows


def _masked(value: Any, secret: object) -> Any:
    """Return a value without its secret: stars, or a URL with stars."""
    if not secret or not value:
        return value
    return masked_url(value) if secret == IN_URL else STARS


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) is dict:
        return "table"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is list:
        return "list"
    return {str: "text", int: "integer", float: "number", bool: "true or false"}.get(
        kind, str(kind)
    )


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else {}
    return "" if value in (None, {}) else msgspec.json.encode(value).decode()
