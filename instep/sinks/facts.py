"""What a target database says of itself: how it keeps what was committed, and what may get in a pipeline's way."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import sqlalchemy as sa

from instep import errors, settings
from instep.sinks import inspection, tables, target
from instep.sinks.target import TableName

POSTGRES_SETTINGS = (
    "fsync", "full_page_writes", "synchronous_commit", "transaction_read_only",
    "statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout", "max_connections",
    "superuser_reserved_connections", "reserved_connections",
)  # fmt: skip
MYSQL_SETTINGS = (
    "innodb_flush_log_at_trx_commit", "innodb_doublewrite", "binlog_format", "log_bin", "read_only", "super_read_only",
    "max_allowed_packet", "max_connections", "max_user_connections", "max_statement_time", "tx_read_only",
    "transaction_read_only",
)  # fmt: skip
NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE")
MOUNTS = Path("/proc/self/mounts")


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The target of one pipeline. What is not known, or has no meaning for this kind of database, is None or empty."""

    kind: str  # sqlite, postgresql, mariadb or mysql
    host: str | None
    unreachable: str | None = None
    unfit: tuple[str, str] | None = None  # what does not fit, and what mends it
    version: tuple[int, ...] | None = None
    encrypted: bool | None = None
    settings: dict[str, str] | None = None
    engines: dict[str, str] = {}  # of the target's and instep's own tables: InnoDB …; on PostgreSQL logged or unlogged
    key: str = ""
    unique_keys: list[list[str]] = []
    triggers: list[str] = []
    row_security: bool = False
    superuser: bool | None = None
    lacking_rights: list[str] | None = None  # "INSERT on contract_document"
    filesystem: str | None = None
    clock_ahead_s: float | None = None  # of ours

    @property
    def granting(self) -> str:
        """What gives us the rights that we lack."""
        lacking = self.lacking_rights or []
        if self.kind == "sqlite":
            return f"chmod u+w {' '.join(right.removeprefix('WRITE on ') for right in lacking)}"
        return "; ".join(f"GRANT {right} TO …" for right in lacking)


def read(name: str, pipeline: settings.Pipeline) -> Facts:
    """The facts of a pipeline's target. A database that gives no answer says so in them."""
    url = target.database_url(pipeline.target)
    named = url.query.get("host")  # libpq takes it there too
    blank = Facts(kind=url.get_backend_name(), host=url.host or (named if isinstance(named, str) else None), key=pipeline.key)
    try:
        with inspection.connection(url) as opened:
            found = _read(opened, msgspec.structs.replace(blank, kind=_kind(opened)), pipeline)
    except errors.InstepError as error:
        return msgspec.structs.replace(blank, unreachable=str(error))
    try:
        inspection.inspect(name, pipeline)
    except errors.InstepError as error:
        return msgspec.structs.replace(found, unfit=(error.what, error.remedy))
    return found


def _kind(opened: sa.Connection) -> str:
    """MariaDB answers to mysql:// too."""
    return "mariadb" if getattr(opened.dialect, "is_mariadb", False) else opened.dialect.name


def _read(opened: sa.Connection, blank: Facts, pipeline: settings.Pipeline) -> Facts:
    table = target.table_name(pipeline.table)
    view = sa.inspect(opened)
    own = [TableName(None, name) for name in inspection.own_tables(view)]
    there = [table] if view.has_table(table.name, schema=table.schema) else []
    reader = inspection.Reader(opened, table) if there else None
    found = msgspec.structs.replace(
        blank,
        version=tuple(part for part in opened.dialect.server_version_info or () if isinstance(part, int)),
        unique_keys=sorted([sorted(key) for key in reader.unique_keys()]) if reader else [],
        triggers=reader.triggers() if reader else [],
    )
    match blank.kind:
        case "sqlite":
            file = Path(str(opened.engine.url.database).removeprefix("file:"))
            closed = [str(place) for place in (file, file.parent) if not os.access(place, os.W_OK)]
            return msgspec.structs.replace(
                found, filesystem=_filesystem(file), lacking_rights=[f"WRITE on {place}" for place in closed]
            )
        case "postgresql":
            return _read_postgres(opened, found, [*there, *own])
        case _:
            return _read_mysql(opened, found, [*there, *own], pipeline.key if there else None)


def _read_postgres(opened: sa.Connection, found: Facts, known: Iterable[TableName]) -> Facts:
    asked = sa.text("SELECT name, setting FROM pg_settings WHERE name = ANY(:names)")
    values = {row[0]: row[1] for row in opened.execute(asked, {"names": list(POSTGRES_SETTINGS)})}
    values["in_recovery"] = "on" if opened.execute(sa.text("SELECT pg_is_in_recovery()")).scalar() else "off"
    engines, lacking, hidden = {}, [], False
    for table in known:
        quoted = _quoted(opened, table)
        row = opened.execute(
            sa.text("SELECT relpersistence, row_security_active(oid) FROM pg_class WHERE oid = CAST(:table AS regclass)"),
            {"table": quoted},
        ).one()
        engines[str(table)] = {"u": "unlogged", "t": "temporary"}.get(row[0], "logged")
        hidden = hidden or bool(row[1])
        for right in NEEDED:
            may = opened.execute(
                sa.text("SELECT has_table_privilege(:table, :right)"), {"table": quoted, "right": right}
            ).scalar()
            if not may and not _may_some_columns(opened, quoted, right):
                lacking.append(f"{right} on {table}")
    if not opened.execute(sa.text("SELECT has_database_privilege(current_database(), 'TEMP')")).scalar():
        lacking.append("TEMPORARY on the database")
    return msgspec.structs.replace(
        found,
        settings=values,
        engines=engines,
        row_security=hidden,
        lacking_rights=lacking,
        clock_ahead_s=_clock_ahead_s(opened, "SELECT extract(epoch FROM clock_timestamp())"),
        superuser=bool(opened.execute(sa.text("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")).scalar()),
        encrypted=bool(opened.execute(sa.text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")).scalar()),
    )


def _may_some_columns(opened: sa.Connection, quoted: str, right: str) -> bool:
    """Rights may be granted on the columns that a pipeline writes, and on no others."""
    if right == "DELETE":
        return False
    asked = sa.text("SELECT has_any_column_privilege(:table, :right)")
    return bool(opened.execute(asked, {"table": quoted, "right": right}).scalar())


def _read_mysql(opened: sa.Connection, found: Facts, known: list[TableName], key: str | None) -> Facts:
    values = {}
    for row in opened.execute(sa.text("SHOW VARIABLES")):
        if row[0] in MYSQL_SETTINGS:
            values[str(row[0])] = str(row[1])
    cipher = opened.execute(sa.text("SHOW STATUS LIKE 'Ssl_cipher'")).one_or_none()
    engines = {str(table): _engine(opened, table) for table in known}
    return msgspec.structs.replace(
        found,
        settings=values,
        engines={name: engine for name, engine in engines.items() if engine},
        encrypted=bool(cipher and cipher[1]),
        clock_ahead_s=_clock_ahead_s(opened, "SELECT UNIX_TIMESTAMP(NOW(6))"),
        lacking_rights=[
            *(f"{right} on {table}" for table in known for right in _refused(opened, table, key)),
            *(["CREATE TEMPORARY TABLES on the database"] if _no_temporary(opened) else []),
        ],
    )


def _no_temporary(opened: sa.Connection) -> bool:
    try:
        opened.exec_driver_sql("CREATE TEMPORARY TABLE instep_look (a INT)")
        opened.exec_driver_sql("DROP TEMPORARY TABLE instep_look")
    except sa.exc.DBAPIError as error:
        cause = error.orig
        ours = inspection.translate(opened.engine.url, cause) if isinstance(cause, Exception) else None
        return isinstance(ours, (errors.PermissionLost, errors.NotAuthorised))
    return False


def _clock_ahead_s(opened: sa.Connection, question: str) -> float:
    """How far the server's clock is ahead of ours, give or take the time of the answer."""
    before = time.time()
    told = float(opened.execute(sa.text(question)).scalar_one())
    return told - (before + time.time()) / 2


def _engine(opened: sa.Connection, table: TableName) -> str | None:
    asked = (
        "SELECT engine FROM information_schema.tables WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table"
    )
    found: str | None = opened.execute(sa.text(asked), {"schema": table.schema, "table": table.name}).scalar()
    return found


def _refused(opened: sa.Connection, table: TableName, key: str | None) -> list[str]:
    """The rights that we lack: explaining a statement needs those of the statement, and does nothing."""
    column = opened.dialect.identifier_preparer.quote_identifier("pipeline" if table.name in tables.metadata.tables else str(key))
    quoted, refused = _quoted(opened, table), []
    for right, statement in {
        "SELECT": f"SELECT {column} FROM {quoted} WHERE 1 = 0",
        "INSERT": f"INSERT INTO {quoted} ({column}) VALUES ('')",
        "UPDATE": f"UPDATE {quoted} SET {column} = {column} WHERE 1 = 0",
        "DELETE": f"DELETE FROM {quoted} WHERE 1 = 0",
    }.items():
        try:
            opened.exec_driver_sql(f"EXPLAIN {statement}").all()
        except sa.exc.DBAPIError as error:
            cause = error.orig
            ours = inspection.translate(opened.engine.url, cause) if isinstance(cause, Exception) else None
            # a read-only server may refuse for other reasons, which are told elsewhere
            refused += [right] if isinstance(ours, errors.PermissionLost) else []
    return refused


def _quoted(opened: sa.Connection, table: TableName) -> str:
    quote = opened.dialect.identifier_preparer.quote_identifier
    return ".".join(quote(part) for part in (table.schema, table.name) if part)


def _filesystem(file: Path, mounts: Path = MOUNTS) -> str | None:
    """The kind of file system that a file lies on, where the system tells."""
    try:
        lines = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    real = str(file.resolve())
    above = [line for line in lines if len(line) > 2 and (real + "/").startswith(line[1].rstrip("/") + "/")]
    return max(above, key=lambda line: len(line[1]))[2] if above else None
