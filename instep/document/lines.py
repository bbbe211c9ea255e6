"""Read the events of a file, JSON lines or CSV, as a stream.

`read` raises at the first wrong line; `read_each` returns wrong lines like the others.

JSON lines: one object per line, published as it is. The document's id is the field `doc_id`, or
another one that is named: text or an integer; dots descend into objects (`order.id`). The id of a
composite key is in several fields, whose values are joined. `{"doc_id": "x", "$delete": true}`,
without further fields, deletes the document. Blank lines are skipped.

CSV: a header names the fields; dots descend into objects. A cell that is an integer as JSON writes
it (12, -3; not 012 or +3) becomes an integer, an empty cell omits its field, everything else is
text. The column of the id is text unless ids are declared as integers. CSV cannot delete.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from instep import errors, settings

Format = Literal["jsonl", "csv"]

FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
}
DELETE = "$delete"
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
WHOLE = re.compile(r"0|-?[1-9][0-9]*")
LONE_RETURN = re.compile(r"(?<=\r)(?!\n)")


class Key(msgspec.Struct, frozen=True):
    """The fields of a line's document id: one, or several whose values are joined."""

    fields: tuple[str, ...] = ("doc_id",)
    separator: str = "/"
    integers: frozenset[str] = frozenset()  # fields that are integers; CSV has no types


USUAL_KEY = Key()


class EventLine(msgspec.Struct, frozen=True, gc=False):
    """One event of a file: its document, and its value in the wire format; None is a delete."""

    number: int
    document: str
    value: bytes | None


class WrongLine(msgspec.Struct, frozen=True, gc=False):
    """A line that holds no event: its text as far as it is known, and what is wrong with it."""

    number: int
    text: bytes
    error: errors.SettingsError


def format_of(path: str) -> Format:
    """Return the format by the file's suffix; `-`, the standard input, is JSON lines."""
    if path == "-":
        return "jsonl"
    name = path.rpartition("/")[2]
    suffix = ""
    if "." in name.lstrip("."):
        suffix = f".{name.rpartition('.')[2]}".lower()
    if suffix not in FORMATS:
        raise errors.SettingsError(
            f"{path}: unknown format, by the suffix {suffix!r}",
            f"use one of: {', '.join(FORMATS)}",
        )
    return FORMATS[suffix]


def read(
    stream: Iterable[bytes], file_format: Format, *, key: Key = USUAL_KEY, name: str = "-"
) -> Iterator[EventLine]:
    """Return the events one by one; raise at a wrong line, with file name and line number."""
    for line in read_each(stream, file_format, key=key, name=name):
        if isinstance(line, WrongLine):
            raise line.error
        yield line


def read_each(
    stream: Iterable[bytes], file_format: Format, *, key: Key = USUAL_KEY, name: str = "-"
) -> Iterator[EventLine | WrongLine]:
    """Return the events and the wrong lines one by one.

    Raise if the file cannot be read as a whole: a wrong header, or a text that is not UTF-8.
    """
    read_lines = _read_csv if file_format == "csv" else _read_json_lines
    return read_lines(stream, key, name)


def wrong(name: str, number: int, what: str, remedy: str = "") -> errors.SettingsError:
    """Return the error for a wrong line."""
    return errors.SettingsError(f"{name}, line {number}: {what}", remedy)


def _read_json_lines(
    stream: Iterable[bytes], key: Key, name: str
) -> Iterator[EventLine | WrongLine]:
    for number, line in enumerate(stream, start=1):
        text = line.strip()
        if number == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        if not text:
            continue
        try:
            yield _json_event(text, key, name, number)
        except errors.SettingsError as error:
            yield WrongLine(number, text, error)


def _json_event(text: bytes, key: Key, name: str, number: int) -> EventLine:
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.ValidationError as failure:
        raise wrong(
            name,
            number,
            "not a JSON object",
            "write one object per line; jq -c '.[]' splits an array into lines",
        ) from failure
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        raise wrong(
            name, number, f"not valid JSON: {failure}", "write one object per line"
        ) from failure
    document = _document(fields, key, name, number)
    if DELETE in fields and (fields[DELETE] is not True or not _has_nothing_but(fields, key)):
        example = ", ".join(f'"{field}": "C-1"' for field in key.fields)
        raise wrong(
            name,
            number,
            f"{DELETE} allows no other fields than the key",
            f'{{{example}, "{DELETE}": true}} deletes a document',
        )
    return EventLine(number, document, None if DELETE in fields else text)


def _read_csv(stream: Iterable[bytes], key: Key, name: str) -> Iterator[EventLine | WrongLine]:
    rows = csv.reader(_texts(stream), strict=True)
    try:
        header = next(rows, [])
    except csv.Error as failure:
        raise wrong(name, rows.line_num, f"not valid CSV: {failure}") from failure
    except UnicodeDecodeError as failure:
        raise _not_utf8(name, rows.line_num + 1, failure) from failure
    _check_header(header, key, name)
    while True:
        row: list[str] = []
        try:
            row = next(rows)
            if row:
                yield _csv_event(header, row, key, name, rows.line_num)
        except StopIteration:
            return
        except csv.Error as failure:
            error = wrong(name, rows.line_num, f"not valid CSV: {failure}")
            yield WrongLine(rows.line_num, b"", error)
        except UnicodeDecodeError as failure:
            raise _not_utf8(name, rows.line_num + 1, failure) from failure
        except errors.SettingsError as error:
            yield WrongLine(rows.line_num, ",".join(row).encode(errors="surrogatepass"), error)


def _csv_event(header: list[str], row: list[str], key: Key, name: str, number: int) -> EventLine:
    if len(row) != len(header):
        raise wrong(name, number, f"{len(row)} cells, but the header has {len(header)}")
    fields: dict[str, Any] = {}
    for column, cell in zip(header, row, strict=True):
        if cell and column in key.integers:
            fields[column] = _integer_id(cell, column, name, number)
        elif cell:
            fields[column] = cell if column in key.fields else _cell(cell)
    document = _document(fields, key, name, number)
    return EventLine(number, document, msgspec.json.encode(_nested(header, fields)))


def _not_utf8(name: str, number: int, failure: UnicodeDecodeError) -> errors.SettingsError:
    return wrong(name, number, f"not UTF-8: {failure.reason}", "save the file in UTF-8")


def _texts(stream: Iterable[bytes]) -> Iterator[str]:
    """Return the lines as text, with their line ends of any of the three kinds."""
    for text in codecs.iterdecode(stream, "utf-8-sig"):
        yield from LONE_RETURN.split(text) if "\r" in text else (text,)


def _check_header(header: list[str], key: Key, name: str) -> None:
    repeated = sorted({column for column in header if header.count(column) > 1})
    if repeated or "" in header:
        problem = "a column has no name"
        if repeated:
            problem = f"the header names {', '.join(map(repr, repeated))} twice"
        raise wrong(name, 1, problem)
    for column in header:
        above = [other for other in header if column.startswith(f"{other}.")]
        if above:
            raise wrong(
                name,
                1,
                f"the header has {above[0]!r} and {column!r}, which would be inside it",
                "rename one of them",
            )
    for field in key.fields:
        if field not in header:
            raise wrong(
                name,
                1,
                f"no column {field!r}{settings.nearest(field, header)}",
                "name the key's column with --key",
            )


def _cell(text: str) -> str | int:
    return int(text) if INTEGER.fullmatch(text) else text


def _integer_id(text: str, key: str, name: str, number: int) -> int:
    if not WHOLE.fullmatch(text):
        raise wrong(
            name,
            number,
            f"{key!r} is {text!r}, but ids are integers here",
            "write it as 12 or -3, or pass --key-type text",
        )
    return int(text)


def _nested(header: list[str], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields in the header's order; a name with dots is nested in objects."""
    if not any("." in column for column in header):
        return {column: fields[column] for column in header if column in fields}
    tree: dict[str, Any] = {}
    for column in header:
        if column in fields:
            *above, last = _steps(column)
            branch = tree
            for step in above:
                branch = branch.setdefault(step, {})
            branch[last] = fields[column]
    return tree


def _steps(name: str) -> list[str]:
    steps = name.split(".")
    return steps if all(steps) else [name]


def _found(fields: dict[str, Any], key: str) -> tuple[bool, Any]:
    """Return whether the field exists, and its value: by its full name, or by its dots."""
    if key in fields:
        return True, fields[key]
    value: Any = fields
    for step in _steps(key):
        if not isinstance(value, dict) or step not in value:
            return False, None
        value = value[step]
    return True, value


def _has_nothing_but(fields: dict[str, Any], key: Key) -> bool:
    """Return whether the object has no other fields than the id and the mark of a delete."""
    wanted = {(field,) if field in fields else tuple(_steps(field)) for field in key.fields}
    return {path for path in _leaves(fields) if path != (DELETE,)} == wanted


def _leaves(tree: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(tree, dict) and tree:
        for name, value in tree.items():
            yield from _leaves(value, (*above, name))
    else:
        yield above


def _document(fields: dict[str, Any], key: Key, name: str, number: int) -> str:
    return key.separator.join(_part(fields, field, name, number) for field in key.fields)


def _part(fields: dict[str, Any], field: str, name: str, number: int) -> str:
    is_there, value = _found(fields, field)
    if not is_there:
        raise wrong(
            name,
            number,
            f"no field {field!r}{settings.nearest(field, fields)}",
            "name the key's field with --key",
        )
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise wrong(name, number, f"{field!r} is the record's key and must be text or an integer")
    return str(value)
