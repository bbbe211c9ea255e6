"""Why PostgreSQL did not let a user in: libpq reports a refused login as text, without an SQLSTATE.

So the server is asked again, through the database `postgres` that every server has: whether the target's database exists.
"""

from __future__ import annotations

import socket
from typing import Any

import psycopg
import sqlalchemy as sa

from instep import errors
from instep.sinks import target

EVERYWHERE = "postgres"
PORT = 5432
TIMEOUT_S = 3


def refusal(error: psycopg.Error, url: sa.URL, text: str) -> errors.InstepError | None:
    """The error for a login that the server refused; None where no login failed. `text` is what libpq says."""
    if error.pgconn is None or not _listens(url):
        return None
    where = target.shown(url)
    asked_for_password = bool(error.pgconn.needs_password or error.pgconn.used_password)
    match _has_database(url):
        case False:
            return errors.DatabaseMissing(
                f"{where}: {text}",
                f"create the database {url.database!r} on that server, or correct its name in `target`",
            )
        case True if asked_for_password:
            return errors.NotAuthorised(
                f"{where}: {text}",
                f"have user {url.username!r} granted CONNECT on the database {url.database!r}",
            )
        case None if asked_for_password:
            return errors.NotAuthorised(
                f"{where}: {text}",
                f"correct the password of user {url.username!r} in `target`, or have the user created on that server",
            )
    return None


def _listens(url: sa.URL) -> bool:
    """Whether anybody answers there at all; a socket in a folder is tried anyway."""
    if not url.host or url.host.startswith("/") or "host" in url.query:
        return True
    try:
        socket.create_connection((url.host, url.port or PORT), timeout=TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _has_database(url: sa.URL) -> bool | None:
    """Whether the server has the target's database; None when it does not let the user in anywhere."""
    name = url.database or url.username
    arguments: dict[str, Any] = {
        **url.translate_connect_args(username="user", database="dbname"),
        **url.query,
    }
    try:
        with psycopg.connect(
            **{**arguments, "dbname": EVERYWHERE, "connect_timeout": TIMEOUT_S}
        ) as opened:
            return bool(
                opened.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchall()
            )
    except psycopg.Error:
        return None
