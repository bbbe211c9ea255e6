"""Why PostgreSQL did not let a user in: libpq reports a refused login as text, without an SQLSTATE.

With the password accepted, the maintenance database `postgres` lets the user in. So a second attempt there tells a wrong
password from a database that does not exist.
"""

from __future__ import annotations

from typing import Any

import psycopg
import sqlalchemy as sa

from instep import errors
from instep.sinks import target

EVERYWHERE = "postgres"  # the database that every server has
TIMEOUT_S = 5


def postgres_refusal(url: sa.URL, text: str) -> errors.InstepError:
    """The error for a login that the server refused after it had asked for a password; `text` is what libpq says."""
    where = target.shown(url)
    if url.database not in (None, EVERYWHERE) and _is_let_in(url.set(database=EVERYWHERE)):
        return errors.DatabaseMissing(
            f"{where}: {text}",
            f"create the database {url.database!r} on that server, let user {url.username!r} connect to it, or correct `target`",
        )
    return errors.NotAuthorised(
        f"{where}: {text}", f"correct the password of user {url.username!r} in `target`, or have the user created on that server"
    )


def _is_let_in(url: sa.URL) -> bool:
    arguments: dict[str, Any] = {**url.translate_connect_args(username="user", database="dbname"), **url.query}
    try:
        psycopg.connect(**{**arguments, "connect_timeout": TIMEOUT_S}).close()
    except psycopg.Error:
        return False
    return True
