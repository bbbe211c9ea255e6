"""Find out why PostgreSQL refused a login.

libpq reports a refused login as text, without an SQLSTATE. So a second connection, to the database
`postgres` that every server has, checks whether the target's database exists.
"""

from __future__ import annotations

import socket
from typing import Any

import psycopg
import sqlalchemy as sa

from instep import errors
from instep.sinks import target

DEFAULT_DATABASE = "postgres"
PORT = 5432
TIMEOUT_S = 3


def refusal(error: psycopg.Error, url: sa.URL, text: str) -> errors.InstepError | None:
    """Return the error for a login that the server refused; None if it was not a login.

    `text` is libpq's message.
    """
    if error.pgconn is None or not _listens(url):
        return None
    where = target.shown(url)
    asked_for_password = bool(error.pgconn.needs_password or error.pgconn.used_password)
    match _has_database(url):
        case False:
            return errors.DatabaseMissing(
                f"{where}: {text}",
                f"create the database {url.database!r} on that server,"
                " or correct its name in `target`",
            )
        case True if asked_for_password:
            return errors.NotAuthorised(
                f"{where}: {text}",
                f"grant CONNECT on the database {url.database!r} to user {url.username!r}",
            )
        case None if asked_for_password:
            return errors.NotAuthorised(
                f"{where}: {text}",
                f"correct the password of user {url.username!r} in `target`,"
                " or create the user on that server",
            )
    return None


def _listens(url: sa.URL) -> bool:
    """Return whether a server listens there. A Unix socket is assumed to work."""
    if not url.host or url.host.startswith("/") or "host" in url.query:
        return True
    try:
        socket.create_connection((url.host, url.port or PORT), timeout=TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _has_database(url: sa.URL) -> bool | None:
    """Return whether the server has the target's database; None if it refuses the user anyway."""
    name = url.database or url.username
    arguments: dict[str, Any] = {
        **url.translate_connect_args(username="user", database="dbname"),
        **url.query,
    }
    try:
        with psycopg.connect(
            **{**arguments, "dbname": DEFAULT_DATABASE, "connect_timeout": TIMEOUT_S}
        ) as opened:
            return bool(
                opened.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchall()
            )
    except psycopg.Error:
        return None
