"""The outbox for source systems: an event becomes a row in the application's own transaction.

    outbox = Outbox()
    with connection.transaction():
        connection.execute("UPDATE print_job SET status = 'PRINTED' WHERE id = %s", (job,))
        outbox.add(connection, StatusEvent(document=job, status="PRINTED", version=2))

Both are committed, or neither. A relay publishes the row (`instep relay`). The document's own row
must be changed or locked before the event is added: this keeps the events of a document in order.
A session of SQLAlchemy is flushed first, so that its pending changes are.

Any connection will do: of a DB-API driver, of SQLAlchemy (also a session), of Django. Those of
asyncio drivers need `add_async`. No driver is imported here; the connection's own module says how
it writes parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from instep import errors, settings
from instep.document import event
from instep.emit import outgoing

# drivers and dialects that quote names with backticks
MYSQL_NAMES = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb", "aiomysql", "asyncmy"})
KNOWN = MYSQL_NAMES | {
    "sqlalchemy",
    "django",
    "sqlite3",
    "aiosqlite",
    "psycopg",
    "psycopg2",
    "asyncpg",
}
MYSQL_IN_TRANSACTION = 1  # a bit of the server's status
MYSQL_NO_SAVEPOINT = 1305
POSTGRES_IDLE = 0  # libpq: no transaction is open


class Outbox:
    """Adds events to an outbox table. Thread-safe: it keeps no state."""

    def __init__(
        self,
        table: str = "instep_outbox",
        columns: settings.OutboxColumns | None = None,
        *,
        as_text: bool = False,
    ) -> None:
        """Take the name of the table, or schema.table, as in `[relays.NAME]`.

        With `as_text`, the column for the value is one of text or JSON, and not one of bytes.
        """
        self._as_text = as_text
        self._table = table
        self._columns = columns or settings.OutboxColumns()

    def add(
        self,
        connection: Any,
        status_event: event.StatusEvent,
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Add an event in the transaction of the connection. Headers replace instep's own."""
        record = outgoing.from_event(status_event, "outbox")
        self._insert(connection, record.key.decode(), record.value, headers)

    def delete(
        self, connection: Any, document: str, *, headers: dict[str, str] | None = None
    ) -> None:
        """Add a delete in the transaction of the connection."""
        self._insert(connection, outgoing.document_key(document).decode(), None, headers)

    async def add_async(
        self,
        connection: Any,
        status_event: event.StatusEvent,
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Add an event with a connection of an asyncio driver, or SQLAlchemy's asyncio."""
        record = outgoing.from_event(status_event, "outbox")
        await self._insert_async(connection, record.key.decode(), record.value, headers)

    async def delete_async(
        self, connection: Any, document: str, *, headers: dict[str, str] | None = None
    ) -> None:
        """Add a delete with a connection of an asyncio driver, or SQLAlchemy's asyncio."""
        key = outgoing.document_key(document).decode()
        await self._insert_async(connection, key, None, headers)

    # --- statements ----------------------------------------------------------------------------

    def _insert(
        self, connection: Any, document: str, value: bytes | None, headers: dict[str, str] | None
    ) -> None:
        names, values = self._row(document, value, headers)
        connection = _unpooled(connection)
        root = _root(connection)
        if root == "sqlalchemy":
            opened = connection
            if hasattr(connection, "get_bind"):  # a session: its changes come before their event
                connection.flush()
                opened = connection.connection()
            _refuse_sqlalchemy(opened)
            statement = self._statement(names, opened.dialect.paramstyle, opened.dialect.name)
            opened.exec_driver_sql(statement, values)
            return
        _refuse_autocommit(connection, root)
        if root == "django":
            statement = self._statement(names, "format", connection.vendor)
        else:
            statement = self._statement(names, _paramstyle(root), root)
        cursor = connection.cursor()
        try:
            cursor.execute(statement, values)
        finally:
            cursor.close()

    async def _insert_async(
        self, connection: Any, document: str, value: bytes | None, headers: dict[str, str] | None
    ) -> None:
        names, values = self._row(document, value, headers)
        connection = _unpooled(connection)
        root = _root(connection)
        if root == "sqlalchemy":
            opened = connection
            if hasattr(connection, "get_bind"):
                await connection.flush()
                opened = await connection.connection()
            await opened.run_sync(_refuse_sqlalchemy)
            statement = self._statement(names, opened.dialect.paramstyle, opened.dialect.name)
            await opened.exec_driver_sql(statement, values)
            return
        _refuse_autocommit(connection, root)
        if root == "asyncpg":
            await connection.execute(self._statement(names, "numeric_dollar", root), *values)
        elif root in ("aiosqlite", "psycopg"):
            style = "qmark" if root == "aiosqlite" else "format"
            await connection.execute(self._statement(names, style, root), values)
        else:
            async with connection.cursor() as cursor:
                await cursor.execute(self._statement(names, "format", root), values)

    def _row(
        self, document: str, value: bytes | None, headers: dict[str, str] | None
    ) -> tuple[tuple[str, ...], tuple[str | bytes | None, ...]]:
        """Return the columns and values of a row."""
        stored = value.decode() if self._as_text and value is not None else value
        names, values = (self._columns.document, self._columns.value), (document, stored)
        if headers is None:
            return names, values
        if self._columns.headers is None:
            raise errors.SettingsError(
                "this outbox has no column for headers",
                "name the column in `columns`, or add the event without headers",
            )
        return (*names, self._columns.headers), (*values, msgspec.json.encode(headers).decode())

    def _statement(self, names: Sequence[str], paramstyle: str, database: str) -> str:
        quote = _backticks if database in MYSQL_NAMES else _double_quotes
        table = ".".join(map(quote, self._table.split(".", 1)))
        match paramstyle:
            case "qmark":
                marks = ["?"] * len(names)
            case "numeric_dollar":
                marks = [f"${number}" for number in range(1, len(names) + 1)]
            case "numeric":
                marks = [f":{number}" for number in range(1, len(names) + 1)]
            case _:
                marks = ["%s"] * len(names)
        columns = ", ".join(map(quote, names))
        # Names are quoted, and come from the settings, never from an event.
        return f"INSERT INTO {table} ({columns}) VALUES ({', '.join(marks)})"  # noqa: S608


def _root(connection: Any) -> str:
    """Return the package of a connection's class, or of the known one that it is derived from."""
    roots = [base.__module__.partition(".")[0] for base in type(connection).__mro__]
    return next((root for root in roots if root in KNOWN), roots[0])


def _paramstyle(root: str) -> str:
    """Return how a DB-API driver writes parameters, as its module says."""
    return str(getattr(sys.modules.get(root), "paramstyle", "format"))


def _double_quotes(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _backticks(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _unpooled(connection: Any) -> Any:
    """Return the driver's connection of one that was taken from SQLAlchemy's pool."""
    is_pooled = hasattr(connection, "dbapi_connection") and hasattr(connection, "driver_connection")
    return connection.driver_connection if is_pooled else connection


def _refuse_sqlalchemy(opened: Any) -> None:
    """Refuse a connection of SQLAlchemy with the isolation level AUTOCOMMIT.

    Its transaction is begun here, as a statement would: some drivers do it only then.
    """
    begun = None if opened.in_transaction() else opened.begin()
    pooled = opened.connection
    driver = pooled.driver_connection
    try:
        if (root := _root(driver)) != "asyncpg":
            _refuse_autocommit(driver, root)
        elif pooled.dbapi_connection.isolation_level == "autocommit":  # else the next one begins it
            raise _has_no_transaction()
    except errors.SettingsError:
        if begun is not None:
            begun.rollback()
        raise


def _refuse_autocommit(connection: Any, root: str) -> None:
    """Refuse a connection without a transaction, as far as its driver tells.

    The event would be committed by itself, even if the change that it reports is rolled back.
    """
    match root:
        case "sqlite3" | "aiosqlite":
            # Since Python 3.12, `autocommit` is True or False, or neither.
            is_autocommit = getattr(connection, "autocommit", None) is True
            is_alone = is_autocommit or connection.isolation_level is None
            is_alone = is_alone and not connection.in_transaction
        case "psycopg" | "psycopg2":
            is_idle = connection.info.transaction_status == POSTGRES_IDLE
            is_alone = bool(connection.autocommit) and is_idle
        case "pymysql" | "aiomysql" | "asyncmy":
            status = getattr(connection, "server_status", 0)
            is_alone = connection.get_autocommit() and not status & MYSQL_IN_TRANSACTION
        case "mariadb":
            is_idle = not connection.server_status & MYSQL_IN_TRANSACTION
            is_alone = bool(connection.autocommit) and is_idle
        case "mysql":  # it asks the server for `autocommit`
            is_alone = not connection.in_transaction and connection.autocommit
        case "MySQLdb":
            is_alone = connection.get_autocommit() and not _has_transaction(connection)
        case "asyncpg":
            is_alone = not connection.is_in_transaction()
        case "django":
            is_alone = not connection.in_atomic_block and connection.get_autocommit()
        case _:  # most have this attribute
            is_autocommit = getattr(connection, "autocommit", None) is True
            is_alone = is_autocommit and not getattr(connection, "in_transaction", False)
    if is_alone:
        raise _has_no_transaction()


def _has_transaction(connection: Any) -> bool:
    """Ask MySQL: outside of a transaction, a savepoint is gone at once."""
    cursor = connection.cursor()
    try:
        cursor.execute("SAVEPOINT instep_outbox")
        cursor.execute("RELEASE SAVEPOINT instep_outbox")
    except Exception as error:
        if error.args[:1] != (MYSQL_NO_SAVEPOINT,):
            raise
        return False
    finally:
        cursor.close()
    return True


def _has_no_transaction() -> errors.SettingsError:
    return errors.SettingsError(
        "the connection has no transaction, so the event would not be committed together with"
        " the change that it reports",
        "begin a transaction, change the document's row, then add the event",
    )
