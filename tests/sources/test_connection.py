"""Test the connection to a source database."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from instep import errors, settings
from instep.sources import tables
from instep.sources.connection import SourceConnection
from tests.support.databases import run_sql
from tests.support.waiting import wait_until

KILLS = {
    "postgres": ("pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mariadb": ("CONNECTION_ID()", "KILL CONNECTION {}"),
    "mysql": ("CONNECTION_ID()", "KILL CONNECTION {}"),
}


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("nonsense", "the source is not a database URL"),
        ("sqlite://", "a SQLite source must be a file"),
        ("oracle://db/x", "instep does not support the source's database 'oracle'"),
        ("postgresql://u@127.0.0.1:1/d", "correct host and port in `source`"),
    ],
)
def test_a_wrong_source_is_named_as_such(source: str, what: str) -> None:
    with pytest.raises(errors.InstepError) as caught:
        tables.prepare(settings.Relay(source=source, topic="t"), "r")
    assert what in str(caught.value)
    assert "target" not in str(caught.value)


@pytest.mark.parametrize("kind", list(KILLS))
def test_a_lost_connection_is_closed_without_a_traceback(
    kind: str, new_database: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    url = new_database(kind)
    own_number, kill = KILLS[kind]
    with SourceConnection(url) as lost, SourceConnection(url) as other:
        number = lost.value(f"SELECT {own_number}")
        other.run(kill.format(number))
        wait_until(lambda: _is_lost(lost), "the end of the connection")
    assert not caplog.records


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_user_who_may_create_nothing_is_sent_to_an_administrator(
    kind: str, new_database: Callable[[str], str]
) -> None:
    """Let `relay init` create its tables, and a trigger."""
    url = new_database(kind)
    reader = f"reader_{uuid.uuid4().hex[:8]}"
    name = sa.make_url(url).database
    run_sql(url, "CREATE TABLE print_job (id varchar(50) PRIMARY KEY)")
    if kind == "postgres":
        run_sql(
            url,
            f"CREATE ROLE {reader} LOGIN",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            f"GRANT SELECT ON print_job TO {reader}",
        )
        create = "CREATE TABLE probe (n integer)"
    else:
        run_sql(url, f"CREATE USER {reader}@'%'", f"GRANT SELECT ON {name}.* TO {reader}@'%'")
        create = "CREATE TRIGGER t AFTER UPDATE ON print_job FOR EACH ROW SET @a = 1"
    source = sa.make_url(url).set(username=reader).render_as_string(hide_password=False)
    try:
        with pytest.raises(errors.NotAuthorised, match=r"have an administrator run .* --sql"):
            tables.prepare(settings.Relay(source=source, topic="t"), "r")
        with (
            SourceConnection(source) as opened,
            pytest.raises(errors.NotAuthorised, match=r"have an administrator run .* --sql"),
        ):
            opened.run(create)
    finally:
        if kind == "postgres":
            run_sql(url, "DROP TABLE print_job", f"DROP ROLE {reader}")
        else:
            run_sql(url, f"DROP USER {reader}@'%'")


def test_a_statement_that_the_source_refuses_is_not_parked_by_a_pipeline(
    new_database: Callable[[str], str],
) -> None:
    """Call a function with more arguments than PostgreSQL allows (SQLSTATE 54023)."""
    with (
        SourceConnection(new_database("postgres")) as opened,
        pytest.raises(errors.SettingsError) as caught,
    ):
        opened.run(f"SELECT jsonb_build_object({', '.join(['1'] * 200)})")
    assert "54023" in caught.value.what
    assert "parks" not in str(caught.value)


def _is_lost(opened: SourceConnection) -> bool:
    try:
        opened.value("SELECT 1")
    except errors.DatabaseUnreachable:
        return True
    return False
