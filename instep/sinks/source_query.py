"""Read the source's own database: a query or a table; each row has the form of an event's value."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa

from instep import errors, settings
from instep.sinks import connecting, target

PAGE_ROWS = 5_000
SOURCE = "source_rows"  # the name of the query within the statement
QUERY = re.compile(r"\s*\(*\s*(select|with|values|table)\b", re.IGNORECASE)
# How a value of the key is kept as text, by its type.
KEPT: dict[type, str] = {
    str: "text",
    int: "integer",
    Decimal: "decimal",
    UUID: "uuid",
    datetime: "time",
    date: "date",
}
RESTORED: dict[str, Any] = {
    "text": str,
    "integer": int,
    "decimal": Decimal,
    "uuid": UUID,
    "time": datetime.fromisoformat,
    "date": date.fromisoformat,
}

Row = dict[str, Any]


class SourceTable(msgspec.Struct, frozen=True):
    """Where the rows are: behind a URL, the result of a query or a whole table."""

    url: str
    query: str | None = None
    table: str | None = None

    def clause(self, fields: Sequence[str]) -> sa.FromClause:
        """Return what stands behind FROM, with these columns."""
        columns: list[sa.ColumnClause[Any]] = [sa.column(field) for field in fields]
        if self.table is not None:
            name = target.table_name(self.table)
            return sa.table(name.name, *columns, schema=name.schema)
        return _text(self.query or "").columns(*columns).subquery(SOURCE)


class RowMark(msgspec.Struct, frozen=True):
    """A place among sorted rows: the key of the last row that was read, and a digest of the row."""

    key: tuple[tuple[str, str], ...]  # for each column the type and the value
    digest: str


def is_query(text: str) -> bool:
    """Return whether a text is a query and not the name of a table."""
    return QUERY.match(text) is not None


def rows(url: str, query: str) -> Generator[Row]:
    """Return the rows of a query as dictionaries. Changes that the query makes are rolled back."""
    with _connection(url) as opened:
        result = opened.execute(_text(query).execution_options(yield_per=PAGE_ROWS))
        try:
            names = _names(result)
            for row in result:
                yield dict(zip(names, row, strict=True))
        finally:
            result.close()  # before its connection, from which the remaining rows are read


def table_rows(source: SourceTable) -> Generator[Row]:
    """Return the rows of a query or of a table in one snapshot, in any order."""
    if source.table is None:
        return rows(source.url, source.query or "")
    name = target.table_name(source.table)
    quote = target.database_url(source.url).get_dialect()().identifier_preparer.quote_identifier
    quoted = ".".join(quote(part) for part in (name.schema, name.name) if part)
    return rows(source.url, f"SELECT * FROM {quoted}")


def sorted_rows(
    source: SourceTable, fields: Sequence[str], after: RowMark | None = None
) -> Generator[tuple[Row, bytes, RowMark | None]]:
    """Return each row, its encoded value and its mark, sorted by these fields, in pages.

    Each page is a short transaction, and a mark is where to continue later. A page begins with
    the key at which the one before it ended, because several rows may have keys that the database
    treats as equal. Rows that the page before it had are left out. Rows without a key come last,
    and have no mark.
    """
    with _connection(source.url) as opened:
        _page(opened, sa.select(sa.text("*")).select_from(source.clause(())).limit(0), fields)
        clause = source.clause(fields)
        columns = [clause.c[field] for field in fields]
        # the text of a query cannot name its columns beforehand
        everything = sa.select(sa.text("*")).select_from(clause)
        keyed = everything.where(*(column.is_not(None) for column in columns)).order_by(*columns)
        last = None if after is None else _restored(after)
        seen = set() if after is None else {after.digest}
        size = PAGE_ROWS
        while True:
            page = keyed if last is None else keyed.where(_not_before(columns, last))
            found = _page(opened, page.limit(size), fields)
            in_page: set[str] = set()
            is_new = False
            for row in found:
                encoded = value(row)
                digest = hashlib.blake2b(encoded, digest_size=16).hexdigest()
                in_page.add(digest)
                if digest not in seen:
                    is_new = True
                    yield row, encoded, _mark([row[field] for field in fields], fields, digest)
            if len(found) < size:
                break
            if is_new:
                last = [found[-1][field] for field in fields]
                seen, size = in_page, PAGE_ROWS
            else:  # more rows with one key than fit into a page
                size *= 2
        without_key = everything.where(sa.or_(*(column.is_(None) for column in columns)))
        for row in _page(opened, without_key, fields):
            yield row, value(row), None


def count(source: SourceTable) -> int:
    """Return the number of rows."""
    with _connection(source.url) as opened:
        statement = sa.select(sa.func.count()).select_from(source.clause(()))
        return int(opened.execute(statement).scalar() or 0)


def check_columns(names: Sequence[str] | Row, fields: Sequence[str]) -> None:
    """Raise if the source has no column for one of the key's fields."""
    for field in fields:
        if field not in names:
            raise errors.SettingsError(
                f"the query returns no column {field!r}{settings.nearest(field, names)}",
                "name the columns like the event's fields, with AS;"
                " --key names the one that holds the document's id",
            )


def value(row: Row) -> bytes:
    """Encode a row as an event's value."""
    return ENCODER.encode(row)


ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


@contextmanager
def _connection(url: str) -> Iterator[sa.Connection]:
    """Open a connection to the source; its errors name the source and not the target.

    A column of times without a zone is read as it is, and counts as UTC. MariaDB and MySQL return
    a TIMESTAMP in the zone of the session, without saying so.
    """
    try:
        with connecting.connection(target.database_url(url), in_utc=True) as opened:
            yield opened
    except (errors.TargetChanged, errors.TargetUnfit) as error:
        raise errors.SettingsError(
            f"the source cannot be read: {error.what}", "correct the query or the table's name"
        ) from error
    except errors.PermissionLost as error:
        raise errors.NotAuthorised(
            f"the source cannot be read: {error.what}",
            "grant SELECT on the source's tables to the user of --source-url",
        ) from error
    except errors.DatabaseUnreachable as error:
        raise type(error)(
            error.what, "start the database of the source, or correct --source-url"
        ) from error


def _text(query: str) -> sa.TextClause:
    # a colon in the query is not a parameter
    return sa.text(query.strip().rstrip(";").replace(":", "\\:"))


def _page(opened: sa.Connection, statement: sa.Select[Any], fields: Sequence[str]) -> list[Row]:
    result = opened.execute(statement)
    names = _names(result)
    check_columns(names, fields)
    found = [dict(zip(names, row, strict=True)) for row in result]
    opened.rollback()  # no transaction stays open while the rows are used
    return found


def _names(result: sa.CursorResult[Any]) -> list[str]:
    if not result.returns_rows:
        raise errors.SettingsError(
            "the query returns no rows",
            "write a SELECT whose columns are named like the event's fields",
        )
    names = list(result.keys())
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise errors.SettingsError(
            f"the query names {', '.join(repeated)} twice",
            "give each column another name, with AS",
        )
    return names


def _not_before(
    columns: Sequence[sa.ColumnElement[Any]], last: Sequence[Any]
) -> sa.ColumnElement[bool]:
    """Return the condition that a key is not before another, column by column.

    A comparison of whole rows does not use the index on every database.
    """
    bound = [sa.bindparam(None, part, type_=sa.types.NullType()) for part in last]
    alternatives = []
    for number, column in enumerate(columns):
        equal = [columns[before] == bound[before] for before in range(number)]
        is_last = number == len(columns) - 1
        further = column >= bound[number] if is_last else column > bound[number]
        alternatives.append(sa.and_(*equal, further))
    return sa.and_(columns[0] >= bound[0], sa.or_(*alternatives))


def _mark(key: Sequence[Any], fields: Sequence[str], digest: str) -> RowMark:
    return RowMark(tuple(map(_kept, key, fields)), digest)


def _kept(part: Any, field: str) -> tuple[str, str]:
    kind = KEPT.get(type(part))
    if kind is None:
        raise errors.SettingsError(
            f"the column {field!r} of the source has the type {type(part).__name__},"
            " by which rows cannot be sorted and found again",
            "cast it to text in a query, or name another column with --key",
        )
    return kind, part.isoformat() if isinstance(part, date) else str(part)


def _restored(mark: RowMark) -> list[Any]:
    return [RESTORED[kind](text) for kind, text in mark.key]
