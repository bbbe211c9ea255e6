"""A source other than the topic: a file, or a query or a table of the source's own database.

Each row is decoded like an event's value.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from instep import errors, extras
from instep.document import kinds, lines
from instep.document.mapping import Mapping
from instep.sinks import source_query, target
from instep.sinks.source_query import RowMark, SourceTable

NO_TIMESTAMP = -1
PARTITION = 0  # the rows look like records of this partition
DEFAULT_KEY = "doc_id"
PARQUET = (".parquet", ".pq")
PARQUET_BATCH_ROWS = 5_000
DIGEST_BYTES = 16

Row = tuple[Any, ...]


class RowSource(msgspec.Struct, frozen=True):
    """Where the rows are: in a file, or behind a database URL, in a table or a query's result."""

    file: str | None = None
    url: str | None = None
    query: str | None = None
    # The field that holds the document's id; the fields of a composite key, separated by commas.
    key: str | None = None
    table: str | None = None

    @property
    def named(self) -> str:
        """Return the name for messages, without a password."""
        if self.file:
            return f"file {self.file}"
        what = f"table {self.table}" if self.table else "a query"
        return f"{what} of {target.shown(target.database_url(self.url or ''))}"

    @property
    def relation(self) -> SourceTable:
        """Return the query or the table."""
        return SourceTable(self.url or "", self.query, self.table)


class SourceRow(msgspec.Struct, frozen=True, gc=False):
    """One row of a source, with the form of a record. `problem` says why it cannot be read."""

    number: int
    document: bytes | None
    value: bytes | None
    problem: str | None = None
    mark: RowMark | None = None


def records(source: RowSource, mapping: Mapping, *, skip_unloaded: bool = False) -> Iterator[Row]:
    """Return the source's rows as records, numbered from 1. Raise at a row that cannot be read.

    With `skip_unloaded`, leave out what `instep load` does not apply: rows that cannot be read,
    and deletes.
    """
    key = key_of(source, mapping)
    if source.file:
        found = _file_rows(source.file, key, raise_wrong=not skip_unloaded)
    else:
        found = _query_rows(source.relation, key)
    for row in found:
        if skip_unloaded and (row.problem is not None or row.value is None):
            continue
        yield (PARTITION, row.number, NO_TIMESTAMP, row.document, row.value)


def sorted_rows(
    source: RowSource, mapping: Mapping, *, next_row: int = 1, after: RowMark | None = None
) -> Iterator[SourceRow]:
    """Return the source's rows from `next_row` on, so that reading can continue at any of them.

    The rows of a file have the numbers of their lines. Those of a database are sorted by the
    document's id and counted; they begin behind the mark `after`.
    """
    key = key_of(source, mapping)
    if source.file:
        rows = _file_rows(source.file, key, raise_wrong=False)
        yield from (row for row in rows if row.number >= next_row)
        return
    with contextlib.closing(source_query.sorted_rows(source.relation, key.fields, after)) as found:
        for number, (row, value, mark) in enumerate(found, start=next_row):
            yield SourceRow(number, _document(row, key), value, mark=mark)


def key_of(source: RowSource, mapping: Mapping) -> lines.Key:
    """Return the fields of the document's id in the source."""
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
    return lines.Key(fields, mapping.separator, integers)


class Fingerprint(msgspec.Struct, frozen=True):
    """A digest by which a later run recognises a source, and about how many rows it has."""

    digest: str
    rows: int


def fingerprint(
    source: RowSource, progress: Callable[[int, int], None] = lambda *_: None
) -> Fingerprint:
    """Return the fingerprint of a source.

    A file is read as a whole. A query or a table is recognised by its text and its database.
    """
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    state.update(f"{source.key or ''}\0".encode())
    if not source.file:
        shown = target.shown(target.database_url(source.url or ""))
        state.update("\0".join((shown, source.table or "", source.query or "")).encode())
        return Fingerprint(state.hexdigest(), source_query.count(source.relation))
    with _opened(source.file) as stream:
        size, done, line_ends = os.fstat(stream.fileno()).st_size, 0, 0
        while block := stream.read(1 << 20):
            state.update(block)
            done += len(block)
            line_ends += block.count(b"\n")
            progress(done, size)
    if is_parquet(source.file):
        line_ends = _parquet_count(source.file)
    return Fingerprint(state.hexdigest(), line_ends)


def is_parquet(file: str) -> bool:
    """Return whether a file's name says that it is a Parquet file."""
    return file.lower().endswith(PARQUET)


def _file_rows(file: str, key: lines.Key, *, raise_wrong: bool) -> Iterator[SourceRow]:
    if is_parquet(file):
        yield from _parquet_rows(file, key)
        return
    file_format = lines.format_of(file)
    with _opened(file) as stream:
        for line in lines.read_each(stream, file_format, key=key, name=file):
            if isinstance(line, lines.WrongLine):
                if raise_wrong:
                    raise line.error
                yield SourceRow(line.number, None, line.text, line.error.what)
            else:
                document = line.document.encode(errors="surrogatepass")
                yield SourceRow(line.number, document, line.value)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[Any]:
    try:
        with Path(file).open("rb") as stream:
            yield stream
    except OSError as error:
        raise errors.SettingsError(
            f"{file} cannot be read: {error.strerror}", "name a file that this user can read"
        ) from error


@contextlib.contextmanager
def _opened_parquet(file: str) -> Iterator[tuple[Any, Any]]:
    """Yield the file, and the library that reads it."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise extras.missing("pyarrow, which reads Parquet files,", "spark") from None
    with _opened(file) as stream:
        try:
            opened = pq.ParquetFile(stream)
        except pa.ArrowInvalid as error:
            raise errors.SettingsError(
                f"{file} is not a Parquet file: {error}", "write it again, or name another file"
            ) from error
        yield opened, pa


def _parquet_count(file: str) -> int:
    with _opened_parquet(file) as (opened, _):
        return int(opened.metadata.num_rows)


def _parquet_rows(file: str, key: lines.Key) -> Iterator[SourceRow]:
    with _opened_parquet(file) as (opened, pa):
        source_query.check_columns(opened.schema_arrow.names, key.fields)
        number = 0
        for batch in opened.iter_batches(PARQUET_BATCH_ROWS):
            try:
                rows = _in_microseconds(batch, pa).to_pylist()
            except pa.ArrowInvalid as error:
                raise errors.SettingsError(
                    f"{file} has a time that is finer than a microsecond: {error}",
                    "round the times when the file is written",
                ) from error
            for row in rows:
                number += 1
                yield SourceRow(number, _document(row, key), source_query.value(row))


def _in_microseconds(batch: Any, pa: Any) -> Any:
    """Return a batch whose times have at most microseconds, as times in Python have."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns"
        else field
        for field in batch.schema
    ]
    return pa.Table.from_batches([batch]).cast(pa.schema(fields))


def _query_rows(source: SourceTable, key: lines.Key) -> Iterator[SourceRow]:
    with contextlib.closing(source_query.table_rows(source)) as rows:
        for number, row in enumerate(rows, start=1):
            source_query.check_columns(row, key.fields)
            yield SourceRow(number, _document(row, key), source_query.value(row))


def _document(row: dict[str, Any], key: lines.Key) -> bytes | None:
    """Return the document's id as a record's key has it; None if a part of it is missing."""
    parts = [row.get(field) for field in key.fields]
    return None if None in parts else key.separator.join(map(str, parts)).encode()
