"""Prepared statements without a cursor give the same values as with one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.document.guard import Verdict
from instep.local.postgres import Postgres
from instep.sinks.postgres_prepared import PreparedStatements, UnknownType

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXT,
    "int8": st.integers(-(2**63), 2**63 - 1),
    "float8": st.floats(allow_nan=False, allow_infinity=False),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False, places=9),
    "bool": st.booleans(),
    "timestamptz": st.datetimes(timezones=st.just(UTC)),
    "date": st.dates(),
    "uuid": st.uuids(),
}


@pytest.fixture(scope="module")
def connection(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as opened:
        opened.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
        yield opened


@pytest.fixture(scope="module")
def prepared(connection: psycopg.Connection[Any]) -> PreparedStatements:
    return PreparedStatements(connection)


@pytest.mark.parametrize("kind", VALUES)
def test_arrays_come_back_as_they_are(prepared: PreparedStatements, kind: str) -> None:
    statement = f"SELECT value FROM unnest(%s::{kind}[]) AS rows (value)"

    @given(st.lists(st.none() | VALUES[kind]))
    def check(values: list[Any]) -> None:
        assert [row[0] for row in prepared.select(statement, [values])] == values

    check()


@given(TEXT, st.integers(-(2**63), 2**63 - 1), st.datetimes(timezones=st.just(UTC)))
def test_single_values_come_back_as_they_are(
    prepared: PreparedStatements, text: str, number: int, at: datetime
) -> None:
    values = (text, number, at, None)
    statement = "SELECT %s::text, %s::int8, %s::timestamptz, %s::text"
    assert prepared.select(statement, values) == [values]


def test_an_enumeration_of_texts_is_its_text(prepared: PreparedStatements) -> None:
    statement = "SELECT * FROM unnest(%s::text[])"
    assert prepared.select(statement, [[Verdict.APPLIED]]) == [("applied",)]


def test_percent_signs_are_doubled_as_for_a_cursor(prepared: PreparedStatements) -> None:
    [(remainder, text)] = prepared.select("SELECT %s::int8 %% 7, '%%s' || %s", (16, "x"))
    assert (remainder, text) == (2, "%sx")


def test_the_number_of_changed_rows_is_returned(
    connection: psycopg.Connection[Any], prepared: PreparedStatements
) -> None:
    connection.execute("CREATE TEMPORARY TABLE numbers (n int8)")
    insert = "INSERT INTO numbers SELECT * FROM unnest(%s::int8[])"
    assert prepared.execute(insert, [[1, 2, 3]]) == 3
    assert prepared.execute("UPDATE numbers SET n = n WHERE n > %s", [5]) == 0


def test_several_statements_run_in_one_round_trip(prepared: PreparedStatements) -> None:
    rows = prepared.begin_and_select(
        [b"BEGIN", b"SET LOCAL lock_timeout = '7s'"],
        [("SELECT current_setting('lock_timeout') || %s", ["!"]), ("SELECT %s::int8", [5])],
    )
    assert rows == [[("7s!",)], [(5,)]]
    prepared.run(b"CREATE TEMPORARY TABLE counters (n int8) ON COMMIT DROP")
    insert = "INSERT INTO counters SELECT * FROM unnest(%s::int8[])"
    assert prepared.execute_together([(insert, [[1, 2]]), (insert, [[3]])]) == [2, 1]
    with pytest.raises(psycopg.errors.DivisionByZero):
        prepared.execute_together([(insert, [[4]]), ("SELECT 1 / %s::int8", [0]), (insert, [[5]])])
    prepared.run(b"ROLLBACK")
    assert prepared.select("SELECT %s::int8", [6]) == [(6,)]


def test_other_types_are_left_to_a_cursor(prepared: PreparedStatements) -> None:
    others = (b"bytes", Decimal(1), UUID(int=1), date(2026, 1, 1), [b"bytes"], "a\0b", ["a\0b"])
    for value in others:
        with pytest.raises(UnknownType):
            prepared.select("SELECT %s", [value])


def test_an_error_has_its_code_and_the_statement_can_be_run_again(
    prepared: PreparedStatements,
) -> None:
    statement = "SELECT 10 / %s::int8"
    with pytest.raises(psycopg.errors.DivisionByZero):
        prepared.select(statement, [0])
    assert prepared.select(statement, [5]) == [(2,)]
    with pytest.raises(psycopg.errors.SyntaxError):
        prepared.run(b"BEGIN WORK NOW")


def test_the_servers_last_error_is_reported_before_the_lost_connection(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as opened:
        lost = PreparedStatements(opened)
        pid = opened.info.backend_pid
        with psycopg.connect(postgres.url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(psycopg.errors.AdminShutdown):
            lost.run(b"SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            lost.select("SELECT %s", ["x"])
