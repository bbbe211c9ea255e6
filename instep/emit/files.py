"""Files as records, for `instep emit`: JSON lines or CSV, read as a stream, refused at the first line that is wrong.

JSON lines: one object a line, sent as it stands. The key is the field `doc_id`, or another that is named: text or an
integer. `{"doc_id": "x", "$delete": true}`, with no further field, deletes the document. Blank lines are skipped.

CSV: a header names the fields. A cell that is an integer as JSON writes it (12, -3; not 012 or +3) becomes an integer,
an empty cell leaves its field out, all else is text; so is the key's column, always. CSV cannot delete.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, BinaryIO, Literal

import msgspec

from instep import errors, settings
from instep.emit import outgoing

Format = Literal["jsonl", "csv"]

FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
DELETE = "$delete"
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def format_of(path: str) -> Format:
    """By the file's suffix; `-`, the standard input, is JSON lines."""
    if path == "-":
        return "jsonl"
    suffix = PurePath(path).suffix.lower()
    if suffix not in FORMATS:
        raise errors.SettingsError(f"{path}: the format is not known by the suffix {suffix!r}", f"known: {', '.join(FORMATS)}")
    return FORMATS[suffix]


def read(stream: BinaryIO, file_format: Format, *, key: str = "doc_id", name: str = "-") -> Iterator[outgoing.OutgoingRecord]:
    """The stream's records one by one. A wrong line raises, naming file and line; what came before it was handed out."""
    return _read_csv(stream, key, name) if file_format == "csv" else _read_json_lines(stream, key, name)


def _read_json_lines(stream: BinaryIO, key: str, name: str) -> Iterator[outgoing.OutgoingRecord]:
    for number, line in enumerate(stream, start=1):
        text = line.strip()
        if number == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")
        if not text:
            continue
        try:
            fields = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.ValidationError as failure:
            raise _wrong(
                name, number, "not a JSON object", "write one object a line; an array becomes that by jq -c '.[]'"
            ) from failure
        except (msgspec.DecodeError, UnicodeDecodeError) as failure:
            raise _wrong(name, number, f"not valid JSON: {failure}", "write one object a line") from failure
        document = _document(fields, key, name, number)
        if DELETE in fields and (fields[DELETE] is not True or fields.keys() != {key, DELETE}):
            raise _wrong(
                name, number, f"{DELETE} goes with the key alone", f'{{"{key}": …, "{DELETE}": true}} deletes a document'
            )
        yield _record(document, None if DELETE in fields else text, name, number)


def _read_csv(stream: BinaryIO, key: str, name: str) -> Iterator[outgoing.OutgoingRecord]:
    # Not closed with the wrapper: the stream is the caller's.
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    rows = csv.reader(text, strict=True)
    try:
        header = next(rows, [])
        _check_header(header, key, name)
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise _wrong(name, rows.line_num, f"{len(row)} cells under a header of {len(header)}")
            fields = {column: _cell(cell, column == key) for column, cell in zip(header, row, strict=True) if cell}
            document = _document(fields, key, name, rows.line_num)
            yield _record(document, msgspec.json.encode(fields), name, rows.line_num)
    except csv.Error as failure:
        raise _wrong(name, rows.line_num, f"not valid CSV: {failure}") from failure
    except UnicodeDecodeError as failure:
        raise _wrong(name, rows.line_num + 1, f"not UTF-8: {failure.reason}", "save the file in UTF-8") from failure
    finally:
        text.detach()


def _check_header(header: list[str], key: str, name: str) -> None:
    repeated = sorted({column for column in header if header.count(column) > 1})
    if repeated or "" in header:
        raise _wrong(name, 1, f"the header names {', '.join(map(repr, repeated))} twice" if repeated else "a column has no name")
    if key not in header:
        raise _wrong(name, 1, f"no column {key!r}{settings.nearest(key, header)}", "name the key's column with --key")


def _cell(text: str, is_key: bool) -> str | int:
    return int(text) if INTEGER.fullmatch(text) and not is_key else text


def _document(fields: dict[str, Any], key: str, name: str, number: int) -> str:
    if key not in fields:
        raise _wrong(name, number, f"no field {key!r}{settings.nearest(key, fields)}", "name the key's field with --key")
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _wrong(name, number, f"{key!r} must be text or an integer, to be the record's key")
    return str(value)


def _record(document: str, value: bytes | None, name: str, number: int) -> outgoing.OutgoingRecord:
    try:
        return outgoing.OutgoingRecord(outgoing.document_key(document), value)
    except errors.SettingsError as failure:
        raise _wrong(name, number, failure.what, failure.remedy) from failure


def _wrong(name: str, number: int, what: str, remedy: str = "") -> errors.SettingsError:
    return errors.SettingsError(f"{name}, line {number}: {what}", remedy)
