"""Lines of a file as events: JSON lines or CSV, read as a stream, refused at the first line that is wrong.

JSON lines: one object a line, taken as it stands. The document's id is the field `doc_id`, or another that is named: text
or an integer; dots descend (`order.id`). The id of a composite key is in several fields, whose values are joined.
`{"doc_id": "x", "$delete": true}`, with no further field, deletes the document. Blank lines are skipped.

CSV: a header names the fields; dots descend. A cell that is an integer as JSON writes it (12, -3; not 012 or +3) becomes an
integer, an empty cell leaves its field out, all else is text. The id's column is text, unless ids are said to be integers.
CSV cannot delete.
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
    """Where a line's document id is: in one field, or in several whose values are joined."""

    fields: tuple[str, ...] = ("doc_id",)
    separator: str = "/"
    integers: frozenset[str] = (
        frozenset()
    )  # those of the fields that are integers; a CSV file does not say so itself


USUAL_KEY = Key()


class EventLine(msgspec.Struct, frozen=True, gc=False):
    """One event of a file: whose, and its value in the wire format; None deletes."""

    number: int
    document: str
    value: bytes | None


def format_of(path: str) -> Format:
    """By the file's suffix; `-`, the standard input, is JSON lines."""
    if path == "-":
        return "jsonl"
    name = path.rpartition("/")[2]
    suffix = f".{name.rpartition('.')[2]}".lower() if "." in name.lstrip(".") else ""
    if suffix not in FORMATS:
        raise errors.SettingsError(
            f"{path}: the format is not known by the suffix {suffix!r}",
            f"known: {', '.join(FORMATS)}",
        )
    return FORMATS[suffix]


def read(
    stream: Iterable[bytes], file_format: Format, *, key: Key = USUAL_KEY, name: str = "-"
) -> Iterator[EventLine]:
    """The stream's events one by one. A wrong line raises, naming file and line; what came before it was handed out."""
    return (
        _read_csv(stream, key, name)
        if file_format == "csv"
        else _read_json_lines(stream, key, name)
    )


def wrong(name: str, number: int, what: str, remedy: str = "") -> errors.SettingsError:
    """The error for a line that cannot be taken."""
    return errors.SettingsError(f"{name}, line {number}: {what}", remedy)


def _read_json_lines(stream: Iterable[bytes], key: Key, name: str) -> Iterator[EventLine]:
    for number, line in enumerate(stream, start=1):
        text = line.strip()
        if number == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        if not text:
            continue
        try:
            fields = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.ValidationError as failure:
            raise wrong(
                name,
                number,
                "not a JSON object",
                "write one object a line; an array becomes that by jq -c '.[]'",
            ) from failure
        except (msgspec.DecodeError, UnicodeDecodeError) as failure:
            raise wrong(
                name, number, f"not valid JSON: {failure}", "write one object a line"
            ) from failure
        document = _document(fields, key, name, number)
        if DELETE in fields and (fields[DELETE] is not True or not _has_nothing_but(fields, key)):
            example = ", ".join(f'"{field}": "C-1"' for field in key.fields)
            raise wrong(
                name,
                number,
                f"{DELETE} goes with the key alone",
                f'{{{example}, "{DELETE}": true}} deletes a document',
            )
        yield EventLine(number, document, None if DELETE in fields else text)


def _read_csv(stream: Iterable[bytes], key: Key, name: str) -> Iterator[EventLine]:
    rows = csv.reader(_texts(stream), strict=True)
    try:
        header = next(rows, [])
        _check_header(header, key, name)
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise wrong(
                    name, rows.line_num, f"{len(row)} cells under a header of {len(header)}"
                )
            fields: dict[str, Any] = {}
            for column, cell in zip(header, row, strict=True):
                if cell and column in key.integers:
                    fields[column] = _integer_id(cell, column, name, rows.line_num)
                elif cell:
                    fields[column] = cell if column in key.fields else _cell(cell)
            document = _document(fields, key, name, rows.line_num)
            yield EventLine(rows.line_num, document, msgspec.json.encode(_nested(header, fields)))
    except csv.Error as failure:
        raise wrong(name, rows.line_num, f"not valid CSV: {failure}") from failure
    except UnicodeDecodeError as failure:
        raise wrong(
            name, rows.line_num + 1, f"not UTF-8: {failure.reason}", "save the file in UTF-8"
        ) from failure


def _texts(stream: Iterable[bytes]) -> Iterator[str]:
    """The lines as text, with their ends, whichever of the three kinds these are."""
    for text in codecs.iterdecode(stream, "utf-8-sig"):
        yield from LONE_RETURN.split(text) if "\r" in text else (text,)


def _check_header(header: list[str], key: Key, name: str) -> None:
    repeated = sorted({column for column in header if header.count(column) > 1})
    if repeated or "" in header:
        raise wrong(
            name,
            1,
            f"the header names {', '.join(map(repr, repeated))} twice"
            if repeated
            else "a column has no name",
        )
    for column in header:
        above = [other for other in header if column.startswith(f"{other}.")]
        if above:
            raise wrong(
                name,
                1,
                f"the header has {above[0]!r} and {column!r}, which would lie within it",
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
            f"{key!r} is {text!r}, and ids are integers here",
            "write it as 12 or -3, or say --key-type text",
        )
    return int(text)


def _nested(header: list[str], fields: dict[str, Any]) -> dict[str, Any]:
    """The fields in the header's order; a name with dots lies within the objects that it names."""
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
    """Whether the field is there, and its value: under that very name, or by descending at its dots."""
    if key in fields:
        return True, fields[key]
    value: Any = fields
    for step in _steps(key):
        if not isinstance(value, dict) or step not in value:
            return False, None
        value = value[step]
    return True, value


def _has_nothing_but(fields: dict[str, Any], key: Key) -> bool:
    """Whether the id and the mark of a deletion are all that the object holds."""
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
        raise wrong(name, number, f"{field!r} must be text or an integer, to be the record's key")
    return str(value)
