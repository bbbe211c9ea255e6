"""Run a query on the source's own database; each row has the form of an event's value."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import sqlalchemy as sa

from instep import errors
from instep.sinks import inspection, target

PAGE_ROWS = 5_000


def rows(url: str, query: str) -> Generator[dict[str, Any]]:
    """Return the rows of a query as dictionaries. Changes that the query makes are rolled back."""
    with inspection.connection(target.database_url(url)) as opened:
        # a colon in the query is not a parameter
        statement = sa.text(query.replace(":", "\\:"))
        result = opened.execution_options(yield_per=PAGE_ROWS).execute(statement)
        try:
            names = _names(result)
            for row in result:
                yield dict(zip(names, row, strict=True))
        finally:
            result.close()  # before its connection, from which the remaining rows are read


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
            "give each column a name of its own, with AS",
        )
    return names


def value(row: dict[str, Any]) -> bytes:
    """Encode a row as an event's value."""
    return ENCODER.encode(row)


ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
