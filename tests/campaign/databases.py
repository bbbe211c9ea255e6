"""The databases of a campaign, and their faults: killed, disconnected, locked."""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlparse, urlunparse

import psycopg
import pymysql

from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres
from tests.campaign.scenario import Scenario

MYSQL_URL = os.environ.get("INSTEP_TEST_MYSQL_URL")


class Database(ABC):
    """One database of a campaign. Use it as a context manager: it ends what it started."""

    server: Postgres | MariaDB | None = None  # that we may kill and pause
    has_sessions = True

    @abstractmethod
    def urls(self) -> dict[str, str]:
        """Return the URL of each scenario by name, or one URL for all under the empty name."""

    @abstractmethod
    def lock(self, scenario: Scenario, seconds: float) -> None:
        """Hold a lock on the scenario's tables for this time, as another program would."""

    @abstractmethod
    def disconnect(self) -> None:
        """End every session of this database."""

    def __enter__(self) -> Self:
        if self.server:
            self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.server:
            self.server.close()


class SQLite(Database):
    has_sessions = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def urls(self) -> dict[str, str]:
        names = [
            f"{order}_{table}"
            for order in ("ordered", "unordered")
            for table in ("plain", "constrained")
        ]
        return {name: f"sqlite:///{self._folder}/{name}.db" for name in names}

    def lock(self, scenario: Scenario, seconds: float) -> None:
        opened = sqlite3.connect(
            scenario.url.removeprefix("sqlite:///"), timeout=30, isolation_level=None
        )
        try:
            opened.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            opened.execute("ROLLBACK")
        finally:
            opened.close()

    def disconnect(self) -> None:
        raise AssertionError("a file has no sessions")


class PostgreSQL(Database):
    def __init__(self, _folder: Path) -> None:
        self.server = self._postgres = Postgres()

    def urls(self) -> dict[str, str]:
        return {"": self._postgres.url}

    def lock(self, scenario: Scenario, seconds: float) -> None:
        with psycopg.connect(self._postgres.url) as opened:
            opened.execute(f"LOCK TABLE {scenario.table} IN ACCESS EXCLUSIVE MODE")
            time.sleep(seconds)

    def disconnect(self) -> None:
        with psycopg.connect(self._postgres.url, autocommit=True) as opened:
            opened.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database()"
                " AND usename = current_user AND pid <> pg_backend_pid()"
            )


class MySQL(Database):
    """A separate database on the server at INSTEP_TEST_MYSQL_URL, which we must not kill."""

    def __init__(self, _folder: Path) -> None:
        self._admin = MYSQL_URL or ""
        self._name = f"campaign_{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> Self:
        self._run(f"CREATE DATABASE {self._name}")
        return self

    def __exit__(self, *_: object) -> None:
        self._run(f"DROP DATABASE {self._name}")

    def urls(self) -> dict[str, str]:
        return {"": urlunparse(urlparse(self._admin)._replace(path=f"/{self._name}"))}

    def lock(self, scenario: Scenario, seconds: float) -> None:
        with self._connect(self._name) as opened, opened.cursor() as cursor:
            cursor.execute(f"LOCK TABLES {scenario.table} WRITE")
            time.sleep(seconds)

    def disconnect(self) -> None:
        with self._connect(None) as opened, opened.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE db = %s", (self._name,)
            )
            for (number,) in cursor.fetchall():
                try:
                    cursor.execute(f"KILL {int(number)}")
                except pymysql.MySQLError as error:
                    # the session may have ended by itself meanwhile
                    if error.args[0] != pymysql.constants.ER.NO_SUCH_THREAD:
                        raise

    def _run(self, statement: str) -> None:
        with self._connect(None) as opened, opened.cursor() as cursor:
            cursor.execute(statement)

    def _connect(self, database: str | None) -> Any:
        at = urlparse(self._admin)
        return pymysql.connect(
            host=at.hostname,
            port=at.port or 3306,
            user=at.username,
            password=at.password or "",
            database=database,
        )


class MariaDBServer(MySQL):
    """The same on a server that we started."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = self._mariadb = MariaDB()

    def __enter__(self) -> Self:
        self._mariadb.__enter__()
        self._admin = self._mariadb.url
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._mariadb.close()


KINDS: dict[str, Callable[[Path], Database]] = {
    "sqlite": SQLite,
    "postgres": PostgreSQL,
    "mariadb": MariaDBServer,
    "mysql": MySQL,
}
