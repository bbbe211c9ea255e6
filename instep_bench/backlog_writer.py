"""Fills the target with millions of rows before a measurement; the database generates them."""

from __future__ import annotations

from collections.abc import Callable

from instep import errors
from instep.sinks.sink import Sink

ROWS_PER_INSERT = 100_000  # ten to the power of the digits below
# MySQL has no generator of numbers; sequence tables exist only in MariaDB.
DIGITS = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))


def fill(sink: Sink, status: str, version: str, count: int, start: int = 0) -> None:
    """Insert the documents with numbers from `start` up to `count`, none of which has had an event.

    The documents have the names that the workload uses.
    """
    numbers, name = GENERATORS[sink.connection.dialect.name]
    quoted = sink.connection.quoted
    columns = f"{sink.table.key}, {quoted(status)}, {quoted(version)}"
    into = f"INSERT INTO {sink.table.name} ({columns})"
    for first in range(start, count, ROWS_PER_INSERT):
        with sink.transaction():
            end = min(first + ROWS_PER_INSERT, count)
            rows = f"SELECT {name}, 'NEW', 0 FROM {numbers(first, end)}"  # noqa: S608 - our names
            sink.connection.execute(f"{into} {rows}")
    # Until it has statistics, PostgreSQL plans as if the table were small.
    if sink.connection.dialect.name == "postgresql":
        with sink.translated():
            sink.connection.execute(f"ANALYZE {sink.table.name}")


def total(sink: Sink, version: str) -> tuple[int, int]:
    """Return the number of documents and the sum of their versions; an event adds 1 to the sum."""
    column, table = sink.connection.quoted(version), sink.table.name
    found = sink.connection.select(f"SELECT count(*), sum({column}) FROM {table}")  # noqa: S608
    return int(found[0][0]), int(found[0][1] or 0)


def refuse_difference(sink: Sink, version: str, documents: int, events: int) -> None:
    """Raise unless every event was applied exactly once, to a document that existed."""
    found = total(sink, version)
    if found != (documents, events):
        raise errors.InstepError(
            f"the table is not in step: {documents:,} documents and {events:,} events were"
            f" expected, {found[0]:,} and {found[1]:,} were found"
        )


def _postgres(first: int, end: int) -> str:
    return f"generate_series({first}, {end - 1}) AS numbers (n)"


def _sqlite(first: int, end: int) -> str:
    steps = f"SELECT {first} UNION ALL SELECT n + 1 FROM counted WHERE n < {end - 1}"  # noqa: S608
    return f"(WITH RECURSIVE counted (n) AS ({steps}) SELECT n FROM counted)"  # noqa: S608


def _mysql(first: int, end: int) -> str:
    tables = ", ".join(f"({DIGITS}) AS d{place}" for place in range(5))
    number = " + ".join(f"{10**place} * d{place}.d" for place in range(5))
    numbers = f"(SELECT {first} + {number} AS n FROM {tables}) AS numbers"  # noqa: S608
    return f"{numbers} WHERE n < {end} ORDER BY n"


Numbers = Callable[[int, int], str]
PADDED_IN_MYSQL = "concat('doc-', lpad(n, greatest(7, length(n)), '0'))"
GENERATORS: dict[str, tuple[Numbers, str]] = {
    "postgresql": (_postgres, "'doc-' || lpad(n::text, greatest(7, length(n::text)), '0')"),
    "sqlite": (_sqlite, "printf('doc-%07d', n)"),
    "mysql": (_mysql, PADDED_IN_MYSQL),
    "mariadb": (_mysql, PADDED_IN_MYSQL),
}
