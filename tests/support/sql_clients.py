"""Run printed statements as the database's own client does."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from instep.sinks import target
from tests.support.databases import run_sql


def run_script(url: str, script: str) -> None:
    """Run a script of statements, as sqlite3, psql or mysql would read it."""
    if url.startswith("sqlite"):
        file = Path(str(target.database_url(url).database))
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript(script)
    elif url.startswith("postgres"):
        with psycopg.connect(url) as connection:
            connection.execute(script.encode())
    else:
        run_sql(url, *_mysql_statements(script))


def _mysql_statements(script: str) -> list[str]:
    """Return the statements of a script, which may change the delimiter."""
    found: list[str] = []
    delimiter, collected = ";", ""
    for line in script.splitlines():
        if changed := re.fullmatch(r"DELIMITER (\S+)", line):
            delimiter = changed.group(1)
            continue
        collected += f"{line}\n"
        if collected.rstrip().endswith(delimiter):
            found.append(collected.rstrip().removesuffix(delimiter))
            collected = ""
    assert not collected.strip(), collected
    return found
