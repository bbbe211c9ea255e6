"""Test databases that refuse a login or the creation of tables: each has its error and remedy."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse, urlunparse

import psycopg
import pytest

from instep import errors
from instep.local.mariadb import MariaDB
from instep.local.ports import free
from instep.local.postgres import Postgres
from instep.sinks import inspection, preparation
from tests.support.databases import declare, run_sql

SERVERS = ["postgres", "mariadb"]


def another(
    url: str, *, user: str | None = None, port: int | None = None, database: str | None = None
) -> str:
    parts = urlparse(url)
    login = f"{user or parts.username}@{parts.hostname}:{port or parts.port}"
    return urlunparse(parts._replace(netloc=login, path=f"/{database}" if database else parts.path))


def refused(url: str, kind: type[errors.InstepError], **changes: str) -> errors.InstepError:
    """Return the error of `init`. Check its type, its remedy, and that no driver is named."""
    with pytest.raises(kind) as caught:
        preparation.prepare(declare(url, **changes))
    assert type(caught.value) is kind
    assert caught.value.remedy
    assert "+p" not in caught.value.what
    return caught.value


@pytest.mark.parametrize("kind", SERVERS)
def test_a_database_that_does_not_exist(kind: str, new_database: Callable[[str], str]) -> None:
    url = another(new_database(kind), database="nowhere")
    error = refused(url, errors.DatabaseMissing)
    assert "nowhere" in error.what
    assert "create the database" in error.remedy


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_does_not_answer(kind: str, new_database: Callable[[str], str]) -> None:
    port = free()[0]
    error = refused(another(new_database(kind), port=port), errors.DatabaseUnreachable)
    assert str(port) in error.what
    assert "start the database" in error.remedy


@pytest.mark.parametrize("kind", SERVERS)
def test_a_schema_that_does_not_exist(kind: str, new_database: Callable[[str], str]) -> None:
    error = refused(new_database(kind), errors.TargetUnfit, table="nowhere.contract_document")
    assert "nowhere" in error.what
    assert error.remedy.startswith("CREATE ")


def test_a_postgresql_user_who_may_not_create_tables(new_database: Callable[[str], str]) -> None:
    url = new_database("postgres")
    run_sql(
        url,
        "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    )
    # before PostgreSQL 15, everybody may in the schema public
    run_sql(url, "CREATE SCHEMA theirs", "GRANT USAGE ON SCHEMA theirs TO reader")
    error = refused(
        another(url, user="reader"), errors.NotAuthorised, table="theirs.contract_document"
    )
    assert "instep init --sql" in error.remedy


def test_a_mariadb_user_who_may_not_create_tables(
    mariadb: MariaDB, new_database: Callable[[str], str]
) -> None:
    url = new_database("mariadb")
    name = urlparse(url).path[1:]
    run_sql(url, "CREATE USER IF NOT EXISTS reader@'%'", f"GRANT SELECT ON {name}.* TO reader@'%'")
    error = refused(another(url, user="reader"), errors.NotAuthorised)
    assert "instep init --sql" in error.remedy
    assert refused(another(url, user="nobody"), errors.NotAuthorised).remedy


def test_sql_ascii_databases_are_refused(postgres: Postgres) -> None:
    url = another(postgres.url, database="raw")
    with psycopg.connect(postgres.url, autocommit=True) as opened:
        provider = " LOCALE_PROVIDER libc" if opened.info.server_version >= 150000 else ""
        opened.execute(
            "CREATE DATABASE raw ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C'"
            f" LC_CTYPE 'C'{provider}"
        )
        try:
            assert "ENCODING 'UTF8'" in refused(url, errors.TargetUnfit).remedy
            with pytest.raises(errors.TargetUnfit, match="SQL_ASCII"):
                inspection.inspect("contracts", declare(url))
        finally:
            opened.execute("DROP DATABASE raw")


AS_NOBODY = """
import os, sys
from instep import errors
from instep.sinks import preparation, target
from tests.support.databases import declare
pipeline = declare(f"sqlite:///{sys.argv[1]}/contracts.db")
target.database_url(pipeline.target).get_dialect()()
if os.geteuid() == 0:  # whom no folder refuses
    os.setuid(65534)
try:
    preparation.prepare(pipeline)
except errors.SettingsError as error:
    sys.exit(str(error))
"""


def test_a_folder_that_cannot_be_written() -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(folder)], capture_output=True, text=True, check=False
    )
    folder.rmdir()
    assert f"this user cannot write to the folder {folder}" in done.stderr
    assert "another folder" in done.stderr
