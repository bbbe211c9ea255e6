"""Test that the statement that changes a setting changes it where it was set."""

from __future__ import annotations

import pytest

from instep.sinks.facts import Facts
from instep.vet import remedies


@pytest.mark.parametrize(
    ("source", "name", "statement"),
    [
        ("user", "statement_timeout", 'ALTER ROLE "app" SET statement_timeout = 0'),
        ("database", "statement_timeout", 'ALTER DATABASE "docs" SET statement_timeout = 0'),
        (
            "database user",
            "statement_timeout",
            'ALTER ROLE "app" IN DATABASE "docs" SET statement_timeout = 0',
        ),
        ("global", "statement_timeout", "ALTER ROLE ALL SET statement_timeout = 0"),
        (
            "configuration file",
            "statement_timeout",
            "ALTER SYSTEM SET statement_timeout = 0; SELECT pg_reload_conf()",
        ),
        (
            "configuration file",
            "max_connections",
            "ALTER SYSTEM SET max_connections = 0; then restart the server",
        ),
        ("command line", "statement_timeout", 'ALTER ROLE "app" SET statement_timeout = 0'),
        (
            "command line",
            "fsync",
            "remove fsync from the command line that starts the server, then restart the server",
        ),
        (
            "client",
            "statement_timeout",
            "remove statement_timeout from the options in pipelines.contracts.target",
        ),
    ],
)
def test_postgres(source: str, name: str, statement: str) -> None:
    facts = Facts(
        kind="postgresql", host=None, user='"app"', database="docs", sources={name: source}
    )
    assert remedies.setting(facts, name, "0", "pipelines.contracts.target").startswith(statement)


@pytest.mark.parametrize(
    ("kind", "source", "name", "statement"),
    [
        ("mysql", "server", "sync_binlog", "SET PERSIST sync_binlog = 1"),
        (
            "mariadb",
            "server",
            "sync_binlog",
            "SET GLOBAL sync_binlog = 1; and to keep it after a restart",
        ),
        (
            "mariadb",
            "account",
            "max_statement_time",
            "ALTER USER 'app'@'%' WITH MAX_STATEMENT_TIME 1",
        ),
    ],
)
def test_mysql(kind: str, source: str, name: str, statement: str) -> None:
    facts = Facts(kind=kind, host=None, user="'app'@'%'", sources={name: source})
    assert remedies.setting(facts, name, "1", "pipelines.contracts.target").startswith(statement)


def test_rights_are_granted_to_the_user_by_quoted_names() -> None:
    lacking = ["INSERT on sales.contract", "TEMPORARY on the database"]
    facts = Facts(
        kind="postgresql", host=None, user='"app"', database="docs", lacking_rights=lacking
    )
    assert facts.granting == (
        'GRANT INSERT ON "sales"."contract" TO "app"; GRANT TEMPORARY ON DATABASE "docs" TO "app"'
    )
    lacking = ["DELETE on contract", "CREATE TEMPORARY TABLES on the database"]
    facts = Facts(
        kind="mariadb", host=None, user="'app'@'%'", database="docs", lacking_rights=lacking
    )
    assert facts.granting == (
        "GRANT DELETE ON `contract` TO 'app'@'%'; GRANT CREATE TEMPORARY TABLES"
        " ON `docs`.* TO 'app'@'%'"
    )
