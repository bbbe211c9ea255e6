"""The settings as a tree of plain values: overrides, variables, unknown keys, conversion."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin
from urllib.parse import quote

import msgspec

from instep import conversion_errors, errors
from instep.conversion_errors import nearest
from instep.masking import STARS
from instep.settings.pipelines import ColumnMapping
from instep.settings.values import VARIABLE, SettingsTable


def hidden_values(tree: dict[str, Any]) -> dict[str, Any]:
    """Return every value with `${NAME}`, with stars in place of each variable."""

    def masked(value: Any) -> Any:
        if isinstance(value, list):
            return [masked(one) for one in value]
        return VARIABLE.sub(STARS, value) if isinstance(value, str) else value

    return {key: masked(value) for key, value in leaves(tree, "") if masked(value) != value}


def without_values(text: str, tree: dict[str, Any], environ: Mapping[str, str]) -> str:
    """Return an error's text with the names of variables in place of their values."""
    names = {name for _, value in leaves(tree, "") for name in VARIABLE.findall(str(value))}
    for name in sorted(names, key=lambda name: len(environ.get(name, "")), reverse=True):
        if value := environ.get(name):
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", f"${{{name}}}", text)
    return text


def origin_of(file: str, value: Any) -> str:
    """Return the file, and the variables in the value."""
    names = [f"${{{name}}}" for name in VARIABLE.findall(value)] if isinstance(value, str) else []
    return " with ".join([file, *names])


def override(
    tree: dict[str, Any], table: Any, path: list[str], text: str, name: str
) -> tuple[str, Any]:
    """Set the setting that an environment variable names; return its key and the value."""
    kind = plain(table)
    step, rest = path[0], path[1:]
    if is_table(kind):
        known = {
            field.encode_name.upper(): (field.encode_name, field.type)
            for field in msgspec.structs.fields(kind)
        }
        if step.upper() not in known:
            raise errors.SettingsError(
                f"environment variable {name} names no setting{nearest(step.upper(), known)}",
                f"use one of: {', '.join(known)}; two underscores separate the parts of a name",
            )
        key, child = known[step.upper()]
    elif get_origin(kind) is dict:
        key = next((key for key in tree if key.upper() == step.upper()), step.lower())
        child = get_args(kind)[1]
        if rest and isinstance(tree.get(key), str):  # a column's short form becomes its long form
            tree[key] = {"field": tree[key]}
    else:
        raise errors.SettingsError(
            f"environment variable {name} names no setting: {step!r} is below a value",
            f"unset {name}, or correct its name",
        )
    if rest:
        branch = tree.setdefault(key, {})
        if not isinstance(branch, dict):
            raise errors.SettingsError(
                f"environment variable {name} names no setting: {key} is a value, not a table",
                f"unset {name}, or correct its name",
            )
        below, value = override(branch, child, rest, text, name)
        return f"{key}.{below}", value
    is_short = child == str | ColumnMapping and not text.lstrip().startswith("{")
    if _takes_list(child) and text.lstrip().startswith("["):
        child = list[str]
    tree[key] = text if is_short else _from_text(plain(child), text, name)
    return str(key), tree[key]


def _takes_list(kind: Any) -> bool:
    """Return whether a setting can be a list as well as a single value."""
    return list[str] in get_args(conversion_errors.plain(kind))


def _from_text(kind: Any, text: str, name: str) -> Any:
    if is_table(kind) or get_origin(kind) in (dict, list):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise errors.SettingsError(
                f"environment variable {name} must be JSON: {error}",
                f"""write e.g. export {name}='{{"name": "value"}}'""",
            ) from error
    try:
        return msgspec.to_builtins(msgspec.convert(text, kind, strict=False))
    except msgspec.ValidationError as error:
        problem = conversion_errors.explain(str(error), kind, name)
        raise errors.SettingsError(
            f"environment variable {problem.what}", problem.remedy
        ) from error


def join_dotted(tree: dict[str, Any]) -> None:
    """Join the names of other tools' settings.

    They contain dots, which TOML takes for nested tables unless the names are quoted.
    """
    holders = [(tree.get("spark"), "conf")]
    for kind in ("publishers", "readers"):
        clients = tree.get(kind)
        if isinstance(clients, dict):
            holders += [(client, "config") for client in clients.values()]
    for holder, key in holders:
        if isinstance(holder, dict) and isinstance(holder.get(key), dict):
            holder[key] = dict(leaves(holder[key], ""))


def leaves(tree: dict[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{before}{key}.")
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            for number, table in enumerate(value):
                yield from leaves(table, f"{before}{key}[{number}].")
        else:
            yield f"{before}{key}", value


def refuse_unknown(tree: Any, table: Any, where: str) -> None:
    kind = plain(table)
    if isinstance(tree, list) and get_origin(kind) is list:
        for number, one in enumerate(tree):
            refuse_unknown(one, get_args(kind)[0], f"{where.rstrip('.')}[{number}].")
    if not isinstance(tree, dict):
        return
    if get_origin(kind) is dict:
        for key, value in tree.items():
            refuse_unknown(value, get_args(kind)[1], f"{where}{key}.")
    elif is_table(kind):
        known = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for key, value in tree.items():
            if key not in known:
                place = f"[{where.rstrip('.')}]" if where else "the settings file"
                raise errors.SettingsError(
                    f"unknown key {key!r} in {place}{nearest(key, known)}",
                    f"known keys: {', '.join(known)}",
                )
            refuse_unknown(value, known[key], f"{where}{key}.")


def expanded(text: str, where: str, environ: Mapping[str, str]) -> str:
    """Return a text with the values of `${NAME}`, percent-encoded in a URL's login."""
    return str(expand(text, where, environ))


def expand(tree: Any, where: str, environ: Mapping[str, str]) -> Any:
    """Replace `${NAME}` in every string; percent-encode the value in a URL's login."""
    if isinstance(tree, dict):
        return {
            key: expand(value, f"{where}.{key}" if where else key, environ)
            for key, value in tree.items()
        }
    if isinstance(tree, list):
        return [expand(value, where, environ) for value in tree]
    if not isinstance(tree, str):
        return tree
    login_ends = tree.rfind("@") if "://" in tree else -1

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environ:
            raise errors.SettingsError(
                f"{where} needs ${{{name}}}, which is not in the environment", f"export {name}=…"
            )
        return quote(environ[name], safe="") if match.start() < login_ends else environ[name]

    return VARIABLE.sub(value_of, tree)


def convert(tree: Any, table: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(tree, table)
    except msgspec.ValidationError as error:
        raise errors.SettingsError(*conversion_errors.explain(str(error), table, where)) from error


def plain(kind: Any) -> Any:
    """Return the type behind Annotated and Optional; a table if it also has a short form."""
    found = conversion_errors.plain(kind)
    if get_origin(found) in (Union, types.UnionType):
        return next((part for part in get_args(found) if is_table(part)), found)
    return found


def is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, SettingsTable)
