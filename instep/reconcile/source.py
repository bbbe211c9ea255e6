"""A source other than the topic: a file, or a query of the source's own table.

Each row is decoded like an event's value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from instep import errors, settings
from instep.document import kinds, lines
from instep.document.mapping import Mapping
from instep.sinks import source_query, target

NO_TIMESTAMP = -1
PARTITION = 0  # the rows look like records of this partition
DEFAULT_KEY = "doc_id"

Row = tuple[Any, ...]


class RowSource(msgspec.Struct, frozen=True):
    """Where the rows are: in a file, or behind a database URL and a query."""

    file: str | None = None
    url: str | None = None
    query: str | None = None
    # The field that holds the document's id; the fields of a composite key, separated by commas.
    key: str | None = None

    @property
    def named(self) -> str:
        """Return the name for messages, without a password."""
        if self.file:
            return f"file {self.file}"
        return f"a query of {target.shown(target.database_url(self.url or ''))}"


def records(source: RowSource, mapping: Mapping) -> Iterator[Row]:
    """Return the source's rows as records, numbered from 1."""
    named = (
        (DEFAULT_KEY,) if mapping.is_keyed else tuple(".".join(path) for path in mapping.documents)
    )
    fields = tuple(source.key.split(",")) if source.key else named
    columns = zip(fields, mapping.keys, strict=True) if len(fields) == len(mapping.keys) else ()
    integers = frozenset(
        field
        for field, column in columns
        if isinstance(column.kind, kinds.Integer) and not mapping.is_keyed
    )
    key = lines.Key(fields, mapping.separator, integers)
    if source.file:
        return _file_rows(source.file, key)
    return _query_rows(source.url or "", source.query or "", key)


def _file_rows(file: str, key: lines.Key) -> Iterator[Row]:
    file_format = lines.format_of(file)
    try:
        with Path(file).open("rb") as stream:
            for line in lines.read(stream, file_format, key=key, name=file):
                yield (
                    PARTITION,
                    line.number,
                    NO_TIMESTAMP,
                    line.document.encode(errors="surrogatepass"),
                    line.value,
                )
    except OSError as error:
        raise errors.SettingsError(
            f"{file} cannot be read: {error.strerror}", "name a file that this user can read"
        ) from error


def _query_rows(url: str, query: str, key: lines.Key) -> Iterator[Row]:
    with contextlib.closing(source_query.rows(url, query)) as rows:
        for number, row in enumerate(rows, start=1):
            for field in key.fields:
                if field not in row:
                    raise errors.SettingsError(
                        f"the query returns no column {field!r}{settings.nearest(field, row)}",
                        "name the columns like the event's fields, with AS;"
                        " --key names the one that holds the document's id",
                    )
            parts = [row[field] for field in key.fields]
            document = None if None in parts else key.separator.join(map(str, parts)).encode()
            yield (PARTITION, number, NO_TIMESTAMP, document, source_query.value(row))
