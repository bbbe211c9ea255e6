"""One connection to a source database: plain statements, and errors as ours."""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from instep import errors
from instep.sinks import connecting, target

SQLITE_BUSY_MS = 10_000
SQLITE_SHORT_MS = 1_000  # in which a transaction of a busy application ends
# the database's own clock, in seconds since 1970
CLOCKS = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch FROM clock_timestamp())::double precision",
    "mysql": "UNIX_TIMESTAMP(SYSDATE(6))",
    "mariadb": "UNIX_TIMESTAMP(SYSDATE(6))",
}


RIGHTS = (
    "give the user of `source` permission to read the outbox and delete from it, to truncate its"
    " partitions, and to write instep_relays and instep_outbox_dead; a reset after a restore needs"
    " UPDATE on the outbox, too, and ALTER on MariaDB and MySQL"
)
ADMINISTRATOR = (
    "have an administrator run what the same command prints with --sql: instep relay init … --sql"
)
REFUSED = (
    "correct what the database names; if only an administrator may, have them run what the same"
    " command prints with --sql"
)
# that need rights which a relay does not need when it runs
CREATING = re.compile(r"\s*(CREATE|DROP|LOCK TABLES)\b", re.IGNORECASE)


def _settings(*, is_local: bool) -> str:
    """Return a query that makes settings of PostgreSQL, for the session or the transaction.

    A crash of the server must not undo a renewal of the lease that the position knows: it would
    look like a restored source.
    """
    return (
        f"SELECT set_config('lock_timeout', '10s', {is_local}), CASE"
        " current_setting('synchronous_commit') WHEN 'off'"
        f" THEN set_config('synchronous_commit', 'on', {is_local}) END"
    )


class OpenConnections:
    """The connections of one process to its source. A stop ends those that wait for an answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()  # of the drivers

    def add(self, driver: Any, _record: object = None) -> None:
        """Remember a connection, unless it is one of SQLite, which never waits long."""
        if hasattr(driver, "fileno") or hasattr(driver, "_sock"):
            with self._lock:
                self._opened.add(driver)

    def cut(self) -> None:
        """End every connection, from any thread: whoever waits there gets DatabaseUnreachable."""
        with self._lock:
            drivers = list(self._opened)
        for driver in drivers:
            with suppress(Exception):  # it is closed meanwhile
                opened = driver if hasattr(driver, "fileno") else driver._sock
                # A copy: closing the socket belongs to the thread that uses it.
                with socket.socket(fileno=os.dup(opened.fileno())) as copy:
                    copy.shutdown(socket.SHUT_RDWR)


class SourceConnection:
    """A connection in autocommit mode. For use by one thread at a time.

    In statements, `?` is a value.
    """

    def __init__(self, source: str, connections: OpenConnections | None = None) -> None:
        self.url = source_url(source)
        self._resources = ExitStack()
        on_open = None if connections is None else connections.add
        with source_errors():
            opened = self._resources.enter_context(connecting.connection(self.url, on_open=on_open))
        self.dialect = opened.dialect
        self.clock = CLOCKS[self.dialect.name]
        self.driver: Any = opened.connection.driver_connection
        self._mark = "?" if self.dialect.name == "sqlite" else "%s"
        self._file: tuple[Path, int] | None = None
        self._ready: dict[str, str] = {}
        self._is_pooled = False
        with self._translated():
            self._prepare(opened)

    def _prepare(self, opened: sa.Connection) -> None:
        match self.dialect.name:
            case "sqlite":
                self.driver.isolation_level = None
                self.driver.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_MS}")
                self.driver.execute("PRAGMA synchronous = FULL")  # of our own commits
                path = Path(str(self.url.database))
                self._file = (path, path.stat().st_ino)
            case "postgresql":
                opened.rollback()
                self.driver.autocommit = True
                [(number,)] = self.driver.execute("SELECT pg_backend_pid()").fetchall()
                # Behind a pooler, settings of the session would be those of other clients.
                self._is_pooled = number != self.driver.info.backend_pid
                if not self._is_pooled:
                    self.driver.execute(_settings(is_local=False))
            case _:
                self.driver.autocommit(True)
                # In another zone, an hour is repeated at the end of summer time.
                self.execute("SET SESSION time_zone = '+00:00'")
                self.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                self.execute("SET SESSION innodb_lock_wait_timeout = 10")

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return the number of rows that it changed."""
        with self._translated(statement), self._with_settings(statement):
            cursor = self.driver.cursor()
            try:
                cursor.execute(self._sql(statement), tuple(parameters))
                return int(cursor.rowcount)
            finally:
                cursor.close()

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        with self._translated():
            cursor = self.driver.cursor()
            try:
                cursor.executemany(self._sql(statement), rows)
            finally:
                cursor.close()

    def run(self, statement: str) -> None:
        """Run a statement without values, in which ? and % have no special meaning."""
        with self._translated(statement):
            cursor = self.driver.cursor()
            try:
                cursor.execute(statement)
            finally:
                cursor.close()

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""
        with self._translated(), self._with_settings(statement):
            cursor = self.driver.cursor()
            try:
                cursor.execute(self._sql(statement), tuple(parameters))
                return list(cursor.fetchall())
            finally:
                cursor.close()

    def select_binary(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a query of PostgreSQL without values, and return its rows.

        They come in the binary format: bytes as they are, instead of as hexadecimal text.
        """
        with self._translated():
            cursor = self.driver.cursor(binary=True)
            try:
                cursor.execute(statement)
                return list(cursor.fetchall())
            finally:
                cursor.close()

    def select_after(self, first: str, query: str) -> list[tuple[Any, ...]]:
        """Run a statement and a query of PostgreSQL in one request, and return the query's rows.

        Neither has values.
        """
        with self._translated():
            cursor = self.driver.cursor()
            try:
                cursor.execute(f"{first}; {query}")
                cursor.nextset()
                return list(cursor.fetchall())
            finally:
                cursor.close()

    @contextmanager
    def _with_settings(self, statement: str) -> Iterator[None]:
        """Behind a pooler, make the settings in each transaction; a statement gets one."""
        is_outside = self._is_pooled and self.driver.info.transaction_status == 0
        if not is_outside or statement.startswith("BEGIN"):
            yield
            if is_outside:
                self.driver.execute(_settings(is_local=True))
            return
        with self.driver.transaction():
            self.driver.execute(_settings(is_local=True))
            yield

    def value(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Run a query with one row, and return its first column."""
        return self.select(statement, parameters)[0][0]

    @contextmanager
    def transaction(self, begin: str = "BEGIN") -> Iterator[None]:
        """Commit everything or nothing."""
        self.execute(begin)
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(errors.InstepError):  # the first error is the one that counts
                self.execute("ROLLBACK")
            raise

    def may_write(self) -> bool:
        """Return whether no long transaction of another connection to a SQLite file is writing."""
        self.execute(f"PRAGMA busy_timeout = {SQLITE_SHORT_MS}")
        try:
            self.execute("BEGIN IMMEDIATE")
            self.execute("ROLLBACK")
        except errors.Transient:
            return False
        finally:
            self.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_MS}")
        return True

    def refuse_replaced(self) -> None:
        """Raise DatabaseUnreachable if the SQLite file was replaced: this one is the old file."""
        if self._file is None:
            return
        path, inode = self._file
        try:
            is_same = path.stat().st_ino == inode
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise errors.DatabaseUnreachable(
                f"the database file {path} was replaced or removed", "restore it"
            )

    def close(self) -> None:
        """Close the connection. Never raises."""
        with suppress(Exception):
            self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sql(self, statement: str) -> str:
        ready = self._ready.get(statement)
        if ready is None:
            ready = self._ready[statement] = statement.replace("?", self._mark)
        return ready

    @contextmanager
    def _translated(self, statement: str = "") -> Iterator[None]:
        try:
            yield
        except errors.InstepError:
            raise
        except Exception as error:
            ours = connecting.translate(self.url, error)
            if ours is None:
                raise
            with source_errors(ADMINISTRATOR if CREATING.match(statement) else RIGHTS):
                raise ours from error


def source_url(source: str) -> sa.URL:
    """Return the URL of a source database."""
    with source_errors():
        return target.database_url(source)


@contextmanager
def source_errors(rights: str = RIGHTS) -> Iterator[None]:
    """Give errors of a database the words and the remedies of a relay's source.

    `rights` is the remedy if one is missing.
    """
    try:
        yield
    except errors.TargetChanged as error:
        raise errors.SettingsError(
            error.what, "create what is missing: instep relay init"
        ) from error
    except errors.TargetReadOnly as error:
        # A relay waits: during a failover the address may lead to a replica for a while.
        raise errors.DatabaseUnreachable(
            error.what, "make the database writable, or set `source` to the writable one"
        ) from error
    except errors.PermissionLost as error:
        raise errors.NotAuthorised(error.what, rights) from error
    except errors.RowRefused as error:  # no pipeline parks it
        raise errors.SettingsError(error.what, REFUSED) from error
    except (errors.SettingsError, errors.Unreachable, errors.NotAuthorised) as error:
        texts = [
            re.sub(r"(the |SQLite |`)target\b", r"\1source", text).replace(
                "instep init", "instep relay init"
            )
            for text in (error.what, error.remedy)
        ]
        raise type(error)(*texts) from error
