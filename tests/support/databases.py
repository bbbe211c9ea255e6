"""Target databases: with a table made by `instep init`, or by the test itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from instep import settings, sinks
from instep.sinks import connecting, inspection, preparation, target
from instep.sinks.sink import Sink

BASE: dict[str, Any] = {
    "topic": "print-status",
    "table": "contract_document",
    "key": "doc_no",
    "event": {"document": "doc_id", "status": "status", "order": "version", "at": "updated_at"},
    "columns": {"print_status": "status", "print_version": "version", "printed_at": "updated_at"},
}

# Databases for tests with the same statements on each: two in short runs, all in long runs.
KINDS = [
    "sqlite",
    "postgres",
    pytest.param("mariadb", marks=pytest.mark.long),
    pytest.param("mysql", marks=pytest.mark.long),
]

ENGINES: dict[str, sa.Engine] = {}  # of the servers used last
ENGINES_MAX = 4


def declare(url: str, **changes: Any) -> settings.Pipeline:
    """Return a pipeline's settings, with some of them changed."""
    return msgspec.convert({**BASE, "target": url, **changes}, settings.Pipeline)


def _connection(url: str) -> AbstractContextManager[sa.Connection]:
    """Open a connection.

    Connections to a file, which may be replaced by another, and with TLS are new; those to a server
    are pooled.
    """
    if url.startswith("sqlite") or "?" in url:
        return connecting.connection(target.database_url(url), create=True)
    engine = ENGINES.pop(url, None) or connecting.create_engine(
        target.database_url(url), pool_pre_ping=True
    )
    ENGINES[url] = engine
    if len(ENGINES) > ENGINES_MAX:
        ENGINES.pop(next(iter(ENGINES))).dispose()
    return engine.connect()


def run_sql(url: str, *statements: str) -> list[Any]:
    """Run statements as the target's own team would, and return the rows of the last one."""
    with _connection(url) as opened:
        for statement in statements:
            result = opened.execute(sa.text(statement.replace(":", "\\:")))
        rows = [tuple(row) for row in result] if result.returns_rows else []
        opened.commit()
    return rows


def has_uuid_type(url: str) -> bool:
    """Return whether a PostgreSQL or MariaDB has the type UUID. MariaDB has it since 10.7."""
    if url.startswith("postgres"):
        return True
    with connecting.connection(target.database_url(url)) as opened:
        return (opened.dialect.server_version_info or ()) >= (10, 7)


@pytest.fixture
def open_sink() -> Iterator[Callable[[settings.Pipeline], Sink]]:
    """Return a function that opens sinks. Close them at the end."""
    opened: list[Sink] = []

    def make(pipeline: settings.Pipeline, name: str = "contracts") -> Sink:
        preparation.prepare(pipeline, add_columns=True)
        opened.append(sinks.open_sink(inspection.inspect(name, pipeline)))
        return opened[-1]

    yield make
    for sink in opened:
        sink.close()
