"""A query of the source's own table, row by row, each as the event's value would be."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import sqlalchemy as sa

from instep import errors
from instep.sinks import inspection, target

PAGE_ROWS = 5_000


def rows(url: str, query: str) -> Generator[dict[str, Any]]:
    """The rows of a query, by column name. Nothing that it changes is kept."""
    with inspection.connection(target.database_url(url)) as opened:
        # colons are the query's own, and no parameters of ours
        statement = sa.text(query.replace(":", "\\:"))
        result = opened.execution_options(yield_per=PAGE_ROWS).execute(statement)
        try:
            names = _names(result)
            for row in result:
                yield dict(zip(names, row, strict=True))
        finally:
            result.close()  # before its connection: what is left of it is read from there


def _names(result: sa.CursorResult[Any]) -> list[str]:
    if not result.returns_rows:
        raise errors.SettingsError(
            "the query gives no rows",
            "write a SELECT whose columns are named like the event's fields",
        )
    names = list(result.keys())
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise errors.SettingsError(
            f"the query names {', '.join(repeated)} twice", "give each column one name, with AS"
        )
    return names


def value(row: dict[str, Any]) -> bytes:
    """A row in the wire format of an event's value."""
    return ENCODER.encode(row)


ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
