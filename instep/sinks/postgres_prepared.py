"""Prepared statements of PostgreSQL, without psycopg's cursors.

A transaction of one event runs six short statements. A cursor of psycopg spends 60 µs on each, most
of it to find out how to convert parameters and results. These statements are always the same, and
their parameters are of a few types: converted here, they cost a third of that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus

PLACEHOLDER = re.compile("%%|%s")


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# The text of an array's element, by the type of its value.
ELEMENTS: Mapping[type, Callable[[Any], str]] = {
    str: _quoted,
    int: str,
    bool: str,
    float: repr,
    Decimal: str,
    UUID: str,
    datetime: lambda at: f'"{at.isoformat()}"',
    date: date.isoformat,
    type(None): lambda _: "NULL",
}


class UnknownType(Exception):
    """A parameter that these statements cannot take; a cursor can."""


class PreparedStatements:
    """The prepared statements of one connection, each prepared when it is first run."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._server = connection.pgconn
        self._encoding = connection.info.encoding
        self._results = Transformer(connection)
        self._names: dict[str, bytes] = {}

    def run(self, script: bytes) -> None:
        """Run statements without parameters in one round trip."""
        self._server.send_query(script)
        self._result()

    def execute(self, statement: str, parameters: Sequence[Any]) -> int:
        """Run a statement and return the number of rows it changed."""
        return self._execute(statement, parameters).command_tuples or 0

    def select(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""
        return self._rows(self._execute(statement, parameters))

    def begin_and_select(
        self, scripts: Sequence[bytes], queries: Sequence[tuple[str, Sequence[Any]]]
    ) -> list[list[tuple[Any, ...]]]:
        """Run statements without parameters, then queries, in one round trip.

        Return the rows of each query. Each statement sees what was committed before it began.
        """
        return [self._rows(result) for result in self._together(queries, scripts)[len(scripts) :]]

    def execute_together(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[int]:
        """Run statements in one round trip; return the number of rows that each changed."""
        return [result.command_tuples or 0 for result in self._together(statements)]

    def _together(
        self, statements: Sequence[tuple[str, Sequence[Any]]], scripts: Sequence[bytes] = ()
    ) -> list[Any]:
        prepared = [self._ready(*statement) for statement in statements]
        self._server.enter_pipeline_mode()
        try:
            for script in scripts:
                self._server.send_query_params(script, None)
            for one in prepared:
                self._server.send_query_prepared(*one)
            self._server.pipeline_sync()
            results = self._connection.wait(self._answers(len(scripts) + len(prepared)))
        finally:
            # After an error of the connection itself there is nothing to leave.
            with suppress(psycopg.OperationalError):
                self._server.exit_pipeline_mode()
        self._refuse_errors(results)
        return results

    def _answers(self, statements: int) -> Generator[Any, Any, list[Any]]:
        """Send what waits, and return the result of each statement."""
        yield from generators.send(self._server)
        results = []
        for _ in range(statements):
            results += yield from generators.fetch_many(self._server)
        yield from generators.fetch_many(self._server)  # the end of the pipeline
        return results

    def _execute(self, statement: str, parameters: Sequence[Any]) -> Any:
        self._server.send_query_prepared(*self._ready(statement, parameters))
        return self._result()

    def _ready(self, statement: str, parameters: Sequence[Any]) -> tuple[bytes, list[bytes | None]]:
        """Return the name of the prepared statement and its parameters as texts."""
        values = [self._encoded(value) for value in parameters]
        return self._names.get(statement) or self._prepare(statement), values

    def _prepare(self, statement: str) -> bytes:
        numbers = iter(range(1, statement.count("%s") + 1))

        def numbered(found: re.Match[str]) -> str:
            return "%" if found[0] == "%%" else f"${next(numbers)}"

        name = f"instep_{len(self._names)}".encode()
        text = PLACEHOLDER.sub(numbered, statement)
        self._server.send_prepare(name, text.encode(self._encoding))
        self._result()
        self._names[statement] = name
        return name

    def _encoded(self, value: Any) -> bytes | None:
        """Return a parameter as text; the server knows its type from the statement."""
        if value is None:
            return None
        if type(value) is list:
            text = _array(value)
        elif isinstance(value, (str, int)):
            text = str(value)
        elif type(value) is datetime:
            text = value.isoformat()
        else:
            raise UnknownType
        if "\0" in text:  # libpq would end the text here without a word; a cursor refuses it
            raise UnknownType
        return text.encode(self._encoding)

    def _result(self) -> Any:
        """Wait for the last result; raise the first error."""
        results = self._connection.wait(generators.execute(self._server))
        self._refuse_errors(results)
        return results[-1]

    def _refuse_errors(self, results: Iterable[Any]) -> None:
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result, self._encoding)

    def _rows(self, result: Any) -> list[tuple[Any, ...]]:
        self._results.set_pgresult(result)
        return self._results.load_rows(0, result.ntuples, tuple)


def _array(values: Iterable[Any]) -> str:
    return f"{{{','.join([_element(value) for value in values])}}}"


def _element(value: Any) -> str:
    write = ELEMENTS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, str):  # an enumeration of texts
        return _quoted(str(value))
    raise UnknownType
