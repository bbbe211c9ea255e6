"""Generates the reference page of the Python API from the docstrings of a package's public names.

Strict: a public name, method or property without a docstring is an error.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

INTRO = """\
# Python API

Import these names from `instep`, and those that begin with `testing` from `instep.testing`. Other
modules are internal and may change.
"""
COLUMNS_MAX = 90
RETURNED_ONLY = ("Delivery", "Outcome", "Receipt")  # users get these, and do not construct them
MODULES = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])")


class Undocumented(Exception):
    """A public name has no docstring."""


def page(package: types.ModuleType) -> str:
    """Return the page for the names in the package's `__all__`, in that order.

    The names of a module follow those of the package, except names that the package has too.
    """
    parts = [INTRO]
    for name in package.__all__:
        parts += _entry(f"{package.__name__}.{name}", name, getattr(package, name))
    for module_name in package.__all__:
        module = getattr(package, module_name)
        for name in getattr(module, "__all__", ()):
            if name not in package.__all__:
                path = f"{module_name}.{name}"
                parts += _entry(f"{package.__name__}.{path}", path, getattr(module, name))
    return "\n".join(parts)


def _entry(path: str, name: str, value: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if isinstance(value, types.ModuleType):
        yield f"{_docstring(path, value)}\n"
    elif inspect.isclass(value) and issubclass(value, msgspec.Struct):
        yield f"{_docstring(path, value)}\n\n{_fields(value)}\n"
        yield from _members(path, value)
    elif inspect.isclass(value):
        if name not in RETURNED_ONLY:
            yield _signature(name, value)
        yield f"{_docstring(path, value)}\n"
        yield from _members(path, value)
    else:
        yield f"{_signature(name, value)}\n{_docstring(path, value)}\n"


def _fields(struct: type[msgspec.Struct]) -> str:
    """Return a table of the fields of a struct, with the descriptions in their annotations."""
    hints = typing.get_type_hints(struct, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(struct):
        hint, description = hints[field.name], ""
        if typing.get_origin(hint) is typing.Annotated:
            hint, *extras = typing.get_args(hint)
            description = next((meta.description or "" for meta in extras), "")
        kind = MODULES.sub("", _type_name(hint)).replace("|", "\\|")
        is_plain = field.default is None or isinstance(field.default, bool | int | float | str)
        default = f"`{field.default!r}`" if is_plain else ""
        rows.append((f"`{field.name}`", kind, default, description))
    described = any(row[3] for row in rows)
    head = ("field", "type", "default", "meaning") if described else ("field", "type", "default")
    lines = [head, ("---",) * len(head), *(row[: len(head)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _type_name(hint: Any) -> str:
    return hint.__name__ if inspect.isclass(hint) else str(hint)


def _members(path: str, owner: type) -> Iterator[str]:
    """Yield the public methods and properties that the class itself defines, in that order."""
    for name, member in vars(owner).items():
        if name.startswith("_"):
            continue
        shown, full_path = f"{owner.__name__}.{name}", f"{path}.{name}"
        function = getattr(member, "__func__", member)
        if isinstance(member, property):
            yield f"### {shown}\n\n{_docstring(full_path, member)}\n"
        elif inspect.isfunction(function):
            text = _docstring(full_path, member)
            yield f"### {shown}\n\n{_signature(shown, function)}\n{text}\n"


def _signature(name: str, value: Callable[..., object]) -> str:
    """Return a code block with the name, its parameters and what it returns."""
    signature = inspect.signature(value)
    parameters = list(_parameters(signature))
    result = signature.return_annotation
    returns = "" if result in (inspect.Signature.empty, None, "None") else f" -> {_short(result)}"
    shown = f"async {name}" if inspect.iscoroutinefunction(value) else name
    text = f"{shown}({', '.join(parameters)}){returns}"
    if len(text) > COLUMNS_MAX:
        lines = "".join(f"    {one},\n" for one in parameters)
        text = f"{shown}(\n{lines}){returns}"
    return f"```python\n{text}\n```\n"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    """Yield the parameters as they are written in a definition, without `self`."""
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        yield f"{stars}{parameter.name}: {_short(parameter.annotation)}{default}"


def _short(annotation: Any) -> str:
    """Return an annotation without the names of modules."""
    text = annotation if isinstance(annotation, str) else _type_name(annotation)
    return MODULES.sub("", text)


def _docstring(path: str, value: object) -> str:
    """Return the docstring of a value; of one that a method inherits, only the first paragraph."""
    text = inspect.getdoc(value)
    if not text:
        raise Undocumented(f"{path} is public and has no docstring")
    return text if value.__doc__ else text.partition("\n\n")[0]
