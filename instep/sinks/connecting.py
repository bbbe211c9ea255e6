"""Connect to a database through SQLAlchemy, and translate its errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from instep import errors, extras
from instep.sinks import sqlite, target, timeouts, tls

# What every transaction of a connection `in_utc` begins with. Behind a pooler, a setting of the
# session would be that of other clients, too.
UTC = {
    "postgresql": "SET LOCAL TimeZone = 'UTC'",
    "mysql": "SET time_zone = '+00:00'",
    "mariadb": "SET time_zone = '+00:00'",
}


@contextmanager
def connection(
    url: sa.URL,
    *,
    create: bool = False,
    read_only: bool = False,
    in_utc: bool = False,
    on_open: Callable[[Any, object], None] | None = None,
    statement_s: float | None = None,
) -> Iterator[sa.Connection]:
    """Open a connection to inspect and create tables; errors are raised as ours.

    `create` creates a missing SQLite file. `read_only` only needs the right to read, also for a
    SQLite file and its folder. `in_utc` reads times in UTC, whatever the zone of the server.
    `on_open` gets the driver's connection before anything is asked there. A server ends statements
    that take longer than `statement_s`.
    """
    given_url, started_s = url, time.monotonic()
    if url.get_backend_name() == "sqlite" and not create:
        mode = sqlite.reading_mode(Path(str(url.database))) if read_only else {"mode": "rw"}
        url = url.set(
            database=f"file:{quote(str(url.database))}", query={**url.query, **mode, "uri": "true"}
        )
    try:
        # Closing rolls back. To roll back before that, as SQLAlchemy does by default, would write a
        # traceback to the log if the connection is lost.
        engine = create_engine(url, poolclass=sa.pool.NullPool, pool_reset_on_return=None)
    except ModuleNotFoundError:
        name = url.get_backend_name()
        raise extras.missing(f"the driver for {name}", target.EXTRAS[name]) from None
    if in_utc and url.get_backend_name() in UTC:
        sa.event.listen(engine, "begin", _use_utc)
    if on_open is not None:
        sa.event.listen(engine, "connect", on_open, insert=True)
    try:
        with engine.connect() as opened:
            _refuse_raw_bytes(opened, given_url)
            if statement_s is not None:
                _limit_statements(opened, statement_s)
            yield opened
    except sa.exc.DBAPIError as error:
        ours = translate(given_url, error.orig) if isinstance(error.orig, Exception) else None
        if ours is None:
            raise
        if isinstance(ours, errors.RowRefused):  # no row was written here
            ours = errors.TargetUnfit(
                ours.what,
                "have an administrator run the statements that `instep init --sql` prints",
            )
        if isinstance(ours, errors.Unreachable):
            ours = type(ours)(
                f"{ours.what} (tried for {time.monotonic() - started_s:.0f} s)", ours.remedy
            )
        raise ours from error
    finally:
        engine.dispose()


def _use_utc(opened: sa.Connection) -> None:
    opened.exec_driver_sql(UTC[opened.dialect.name])


def _refuse_raw_bytes(opened: sa.Connection, url: sa.URL) -> None:
    """Refuse PostgreSQL's SQL_ASCII, which stores bytes of any encoding instead of text."""
    driver: Any = opened.connection.driver_connection
    if (
        opened.dialect.name != "postgresql"
        or driver.info.parameter_status("server_encoding") != "SQL_ASCII"
    ):
        return
    raise errors.TargetUnfit(
        f"{target.shown(url)} has the encoding SQL_ASCII,"
        " which stores bytes of any encoding instead of text",
        "move the tables to a database created with:"
        " CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
    )


def _limit_statements(opened: sa.Connection, seconds: float) -> None:
    """Let the server end statements that take longer. A pooler may give the session to others."""
    if opened.dialect.name == "postgresql":
        opened.exec_driver_sql(f"SET LOCAL statement_timeout = '{round(seconds * 1000)}ms'")
    elif opened.dialect.name in ("mysql", "mariadb"):
        from instep.sinks import mysql

        [version] = opened.exec_driver_sql("SELECT VERSION()").scalars()
        opened.exec_driver_sql(mysql.statement_limit(seconds, version))


def create_engine(url: sa.URL, **options: Any) -> sa.Engine:
    """Return SQLAlchemy's engine for a URL with our TLS options."""
    engine = sa.create_engine(tls.without_mysql(url), connect_args=_arguments(url), **options)
    if url.get_backend_name() in ("mysql", "mariadb"):
        from instep.sinks import mysql

        @sa.event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, _arguments: Any, named: dict[str, Any]) -> Any:
            return mysql.DriverConnection(**named)

    return engine


def _arguments(url: sa.URL) -> dict[str, Any]:
    """Return the driver's arguments beside the URL."""
    match url.get_backend_name():
        case "sqlite":
            return {}
        case "postgresql":
            tls.check(url)
            # Behind a pooler each statement may run in another session, which does not know the
            # prepared statement.
            own = {"prepare_threshold": None, "client_encoding": "utf8"}
            return {**_missing(url, timeouts.POSTGRES), **own}
        case _:
            # The server's default mode may change the meaning of quotes.
            return {
                **_missing(url, {"connect_timeout": timeouts.CONNECT_S}),
                "sql_mode": "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION",
                **tls.mysql_arguments(url),
            }


def _missing(url: sa.URL, defaults: Mapping[str, int]) -> dict[str, int]:
    """Return the defaults of options that the URL does not have."""
    return {name: value for name, value in defaults.items() if name not in url.query}


def translate(url: sa.URL, error: Exception) -> errors.InstepError | None:
    """Return a driver's error as ours, by the table in its module."""
    match url.get_backend_name():
        case "sqlite":
            return sqlite.translate(error, url)
        case "postgresql":
            from instep.sinks import postgres

            return postgres.translate(error, url)
        case _:
            from instep.sinks import mysql as mysql_sink

            return mysql_sink.translate(error, url)
