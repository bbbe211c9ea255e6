"""Test what is read from a source's own database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from instep.sinks import source_query, target
from instep.sinks.stored_values import utc_time
from tests.support.database_servers import UnsyncedMariaDB
from tests.support.databases import run_sql


class TokyoMariaDB(UnsyncedMariaDB):
    """MariaDB whose sessions are in another zone."""

    def command(self) -> list[str]:
        return [*super().command(), "--default-time-zone=+09:00"]


@contextmanager
def database_in_tokyo(kind: str, new_database: Callable[[str], str]) -> Iterator[str]:
    """Yield the URL of a database whose sessions are in another zone."""
    if kind == "mariadb":
        with TokyoMariaDB() as server:
            yield server.url
    else:
        url = new_database(kind)
        name = target.database_url(url).database
        run_sql(url, f"ALTER DATABASE {name} SET TimeZone = 'Asia/Tokyo'")
        yield url


@pytest.mark.parametrize(
    ("kind", "column"), [("postgres", "timestamptz"), ("mariadb", "TIMESTAMP")]
)
def test_times_of_a_source_do_not_depend_on_the_zone_of_its_sessions(
    kind: str, column: str, new_database: Callable[[str], str]
) -> None:
    """Read a type that knows its zone: as a value, and as text in the query."""
    with database_in_tokyo(kind, new_database) as url:
        noon = "2026-09-21 12:00:00+00" if kind == "postgres" else "2026-09-21 21:00:00"
        run_sql(
            url,
            f"CREATE TABLE prints (doc_id VARCHAR(20), at {column})",
            f"INSERT INTO prints VALUES ('d1', '{noon}')",
        )
        query = "SELECT doc_id, at, CAST(at AS CHAR(19)) AS shown FROM prints"
        [row] = source_query.rows(url, query)
        source = source_query.SourceTable(url, query=query)
        [(paged, _, _)] = source_query.sorted_rows(source, ["doc_id"])
    assert paged == row
    assert utc_time(row["at"]) == datetime(2026, 9, 21, 12, tzinfo=UTC)
    assert row["shown"] == "2026-09-21 12:00:00"
