"""Copies of a database, made and restored as an administrator does it."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from urllib.parse import urlparse, urlunparse

import psycopg

from tests.support.databases import run_sql


class Backup:
    """A copy of a database as it is now."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = urlparse(url).path[1:]
        self._copy = f"copy_{uuid.uuid4().hex[:12]}"
        if url.startswith("sqlite"):
            self._file = Path(self._name)
            self._kept = self._file.with_name(self._copy)
            self._kept.mkdir()
            for file in self._files():
                shutil.copy(file, self._kept)
        elif url.startswith("postgres"):
            self._replace(self._copy, self._name)
        else:
            run_sql(url, f"CREATE DATABASE {self._copy}")
            self._copy_tables(self._name, self._copy)

    def restore(self) -> None:
        """Replace the database by the copy. Connections to it end."""
        if self._url.startswith("postgres"):
            self._replace(self._name, self._copy)
            return
        if not self._url.startswith("sqlite"):
            self._copy_tables(self._copy, self._name)
            return
        for file in self._files():
            file.unlink()
        for file in self._kept.iterdir():
            shutil.copy(file, self._file.parent)

    def remove(self) -> None:
        """Remove the copy from the server."""
        if self._url.startswith("postgres"):
            with self._server() as server:
                server.execute(f"DROP DATABASE IF EXISTS {self._copy}")
        elif not self._url.startswith("sqlite"):
            run_sql(self._url, f"DROP DATABASE IF EXISTS {self._copy}")

    def _files(self) -> list[Path]:
        """Return the database's files: SQLite keeps a log beside the main one."""
        return [file for file in self._file.parent.glob(f"{self._file.name}*") if file.is_file()]

    def _replace(self, name: str, template: str) -> None:
        with self._server() as server:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                (template,),
            )
            server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")

    def _copy_tables(self, source: str, target: str) -> None:
        """Copy the tables of MariaDB or MySQL, without their counters."""
        names = run_sql(
            self._url,
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{source}'",
        )
        for (name,) in names:
            run_sql(
                self._url,
                f"DROP TABLE IF EXISTS {target}.{name}",
                f"CREATE TABLE {target}.{name} LIKE {source}.{name}",
                f"INSERT INTO {target}.{name} SELECT * FROM {source}.{name}",
            )

    def _server(self) -> psycopg.Connection[tuple[object, ...]]:
        admin = urlunparse(urlparse(self._url)._replace(path="/postgres"))
        return psycopg.connect(admin, autocommit=True)
