"""Facts about a target database: how durable commits are, and what may stop a pipeline."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec
import psutil
import sqlalchemy as sa

from instep import errors, settings
from instep.sinks import connecting, inspection, table_reader, tables, target
from instep.sinks.target import TableName

POSTGRES_SETTINGS = (
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "transaction_read_only",
    "statement_timeout",
    "transaction_timeout",
    "idle_in_transaction_session_timeout",
    "max_connections",
    "superuser_reserved_connections",
    "reserved_connections",
    "idle_session_timeout",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "session_replication_role",
    "synchronous_standby_names",
    "log_statement",
    "TimeZone",
)
MYSQL_SETTINGS = (
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "binlog_format",
    "log_bin",
    "read_only",
    "super_read_only",
    "max_allowed_packet",
    "max_connections",
    "max_user_connections",
    "max_statement_time",
    "tx_read_only",
    "transaction_read_only",
    "max_execution_time",
    "wait_timeout",
    "idle_transaction_timeout",
    "idle_write_transaction_timeout",
    "sync_binlog",
    "general_log",
    "time_zone",
    "system_time_zone",
    "foreign_key_checks",
    "unique_checks",
    "wsrep_on",
)
DELETE_RULES = {
    "a": "NO ACTION",
    "r": "RESTRICT",
    "c": "CASCADE",
    "n": "SET NULL",
    "d": "SET DEFAULT",
}
ALL_GRANTED = re.compile(r"^GRANT (?P<rights>.*?) ON \*\.\* TO ", re.DOTALL)
ACCOUNT_LIMIT = re.compile(
    r"\b(MAX_(?:QUERIES|UPDATES|CONNECTIONS)_PER_HOUR|MAX_USER_CONNECTIONS|MAX_STATEMENT_TIME)"
    r" ([0-9.]+)"
)
NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE")


class Reference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A foreign key: its table and columns, the table it refers to, and its ON DELETE action."""

    table: str
    columns: list[str]
    refers_to: str
    on_delete: str = "NO ACTION"


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about the target of one pipeline. Unknown facts are None or empty."""

    kind: str  # sqlite, postgresql, mariadb or mysql
    host: str | None
    unreachable: str | None = None
    unfit: tuple[str, str] | None = None  # the problem, and its remedy
    version: tuple[int, ...] | None = None
    encrypted: bool | None = None
    settings: dict[str, str] | None = None
    # of the target's and instep's own tables: InnoDB …; on PostgreSQL logged or unlogged
    engines: dict[str, str] = {}
    key: list[str] = []
    unique_keys: list[list[str]] = []
    other_columns: list[str] = []  # columns that the pipeline does not write
    triggers: list[str] = []
    row_security: bool = False
    superuser: bool | None = None
    lacking_rights: list[str] | None = None  # "INSERT on contract_document"
    filesystem: str | None = None
    clock_ahead_s: float | None = None  # of this machine's clock
    user: str = ""  # the user as a statement names it: "app", 'app'@'%'
    database: str = ""
    # where a setting comes from: pg_settings.source; on MariaDB and MySQL server or account
    sources: dict[str, str] = {}
    # of the account and the database: ROLE_CONNECTIONS, MAX_UPDATES_PER_HOUR …
    limits: dict[str, float] = {}
    password_valid_s: float | None = None  # until the role's password expires
    references: list[Reference] = []  # foreign keys on columns that the pipeline writes
    referenced_by: list[Reference] = []  # foreign keys of other tables to the target's
    times_without_zone: list[str] = []  # columns that the pipeline writes
    sslmode: str | None = None
    checks: dict[str, str] = {}  # CHECK constraints on columns that the pipeline writes, by name
    # the column of the order value, if it is small: name, type and highest value
    order_column: tuple[str, str, int] | None = None

    @property
    def granting(self) -> str:
        """Return the statements or the command that grant the missing rights."""
        lacking = self.lacking_rights or []
        if self.kind == "sqlite":
            return f"chmod u+w {' '.join(right.removeprefix('WRITE on ') for right in lacking)}"
        by_table: dict[str, str] = {}
        for right in lacking:
            what, _, table = right.partition(" on ")
            by_table[table] = f"{by_table[table]}, {what}" if table in by_table else what
        user = self.user or "the user of the pipeline"
        return "; ".join(
            f"GRANT {self._grant(f'{what} on {table}')} TO {user}"
            for table, what in by_table.items()
        )

    def _grant(self, right: str) -> str:
        """Return `INSERT on a.b` as a GRANT statement has it."""
        what, _, where = right.partition(" on ")
        if where == "the database":
            database = self.quoted(self.database)
            if self.kind == "postgresql":
                return f"{what} ON DATABASE {database}"
            return f"{what} ON {database}.*"
        return f"{what} ON {self.quoted(*where.split('.'))}"

    def quoted(self, *parts: str) -> str:
        """Return a name as this database quotes it."""
        mark = "`" if self.kind in ("mariadb", "mysql") else '"'
        return ".".join(f"{mark}{part.replace(mark, mark * 2)}{mark}" for part in parts)


def read(name: str, pipeline: settings.Pipeline) -> Facts:
    """Read the facts about a pipeline's target. If it is unreachable, they say so."""
    url = target.database_url(pipeline.target)
    blank = msgspec.structs.replace(blank_facts(url), key=sorted(pipeline.keys))
    try:
        with connecting.connection(url) as opened:
            facts = _read(opened, msgspec.structs.replace(blank, kind=_kind(opened)), pipeline)
    except errors.InstepError as error:
        return msgspec.structs.replace(blank, unreachable=str(error))
    try:
        inspection.inspect(name, pipeline)
    except errors.InstepError as error:
        return msgspec.structs.replace(facts, unfit=(error.what, error.remedy))
    return facts


def blank_facts(url: sa.URL) -> Facts:
    """Return what the URL alone says."""
    host = url.query.get("host")  # libpq accepts it there too
    sslmode = url.query.get("sslmode")
    return Facts(
        kind=url.get_backend_name(),
        host=url.host or (host if isinstance(host, str) else None),
        sslmode=sslmode if isinstance(sslmode, str) else None,
    )


def read_server(opened: sa.Connection, blank: Facts, existing: Collection[TableName]) -> Facts:
    """Read the facts about a database that is no target, with these tables."""
    version = tuple(
        part for part in opened.dialect.server_version_info or () if isinstance(part, int)
    )
    facts = msgspec.structs.replace(blank, kind=_kind(opened), version=version)
    match facts.kind:
        case "sqlite":
            file = Path(str(opened.engine.url.database).removeprefix("file:"))
            return msgspec.structs.replace(facts, filesystem=file_system(file))
        case "postgresql":
            return _read_postgres(opened, facts, existing, {})
        case _:
            engines = {str(table): _engine(opened, table) for table in existing}
            return msgspec.structs.replace(
                _read_mysql(opened, facts, [], {}),
                engines={name: engine for name, engine in engines.items() if engine},
            )


def refuse_own_without_rights(name: str, pipeline: settings.Pipeline) -> None:
    """Raise NotAuthorised if the pipeline's user lacks permissions on instep's tables.

    Another user may have created them.
    """
    facts = read(name, pipeline)
    lacking = [
        right
        for right in facts.lacking_rights or []
        if right.partition(" on ")[2] in tables.metadata.tables
    ]
    if lacking:
        shown = list(dict.fromkeys(right.partition(" on ")[2] for right in lacking))
        own = msgspec.structs.replace(facts, lacking_rights=lacking)
        raise errors.NotAuthorised(
            f"{facts.user or 'the user of the pipeline'} lacks permissions on {', '.join(shown)},"
            " which another user created",
            f"have the owner run: {own.granting}",
        )


def integer_fields(pipeline: settings.Pipeline) -> frozenset[str]:
    """Return the fields of the document's id whose key columns in the table are integers."""
    table = target.table_name(pipeline.table)
    with connecting.connection(target.database_url(pipeline.target)) as opened:
        view = sa.inspect(opened)
        if not view.has_table(table.name, schema=table.schema):
            raise errors.TargetUnfit(
                f"the table {pipeline.table} does not exist", "run: instep init"
            )
        columns = {
            column["name"]: column["type"]
            for column in view.get_columns(table.name, schema=table.schema)
        }
    if len(pipeline.event.documents) < len(pipeline.keys):  # one text for all parts of the key
        return frozenset()
    fields = zip(pipeline.keys, pipeline.event.documents, strict=True)
    return frozenset(field for name, field in fields if isinstance(columns.get(name), sa.Integer))


def _kind(opened: sa.Connection) -> str:
    """Return the kind of database; a URL with mysql:// may lead to MariaDB."""
    if getattr(opened.dialect, "is_mariadb", False):
        return "mariadb"
    return opened.dialect.name


def _read(opened: sa.Connection, blank: Facts, pipeline: settings.Pipeline) -> Facts:
    table = target.table_name(pipeline.table)
    view = sa.inspect(opened)
    existing = [TableName(None, name) for name in inspection.own_tables(view)]
    version = tuple(
        part for part in opened.dialect.server_version_info or () if isinstance(part, int)
    )
    facts = msgspec.structs.replace(blank, version=version)
    written = {
        str(name): one
        for one in (pipeline, *settings.further_views(pipeline))
        if view.has_table((name := target.table_name(one.table)).name, schema=name.schema)
    }
    if str(table) in written:
        facts = _with_table(opened, facts, table, pipeline)
    existing = [*map(target.table_name, written), *existing]
    match blank.kind:
        case "sqlite":
            file = Path(str(opened.engine.url.database).removeprefix("file:"))
            read_only = [path for path in (file, file.parent) if not os.access(path, os.W_OK)]
            return msgspec.structs.replace(
                facts,
                filesystem=file_system(file),
                lacking_rights=[f"WRITE on {path}" for path in read_only],
            )
        case "postgresql":
            return _read_postgres(opened, facts, existing, written)
        case _:
            return _read_mysql(opened, facts, existing, written)


def _with_table(
    opened: sa.Connection, facts: Facts, table: TableName, pipeline: settings.Pipeline
) -> Facts:
    """Add the facts about the target's table."""
    reader = table_reader.TableReader(opened, table)
    written = (*pipeline.keys, *pipeline.columns)
    return msgspec.structs.replace(
        facts,
        unique_keys=sorted(sorted(key) for key in reader.unique_keys()),
        other_columns=[name for name in reader.columns if name not in written],
        triggers=reader.triggers(),
        references=_references(reader, pipeline),
        referenced_by=_referenced_by_others(opened, table, pipeline),
        times_without_zone=_times_without_zone(reader, pipeline),
        checks=_checks(reader, pipeline),
        order_column=_order_column(reader, pipeline),
    )


def _references(reader: table_reader.TableReader, pipeline: settings.Pipeline) -> list[Reference]:
    """Return the foreign keys of the target's table that an event can violate."""
    keys = reader.view.get_foreign_keys(reader.table.name, schema=reader.table.schema)
    return [
        Reference(
            table=str(reader.table),
            columns=list(key["constrained_columns"]),
            refers_to=str(key["referred_table"]),
        )
        for key in keys
        if set(key["constrained_columns"]) & set(pipeline.columns)
    ]


def _referenced_by_others(
    opened: sa.Connection, table: TableName, pipeline: settings.Pipeline
) -> list[Reference]:
    """Return the foreign keys to the target's table that a delete affects.

    Rows of further tables are deleted before the row that they refer to.
    """
    deleted = {
        target.table_name(one.table).name
        for one in settings.further_views(pipeline)
        if one.deletes == "row"
    }
    return [
        reference
        for reference in _referenced_by(opened, table)
        if target.table_name(reference.table.replace('"', "")).name not in deleted
    ]


def _referenced_by(opened: sa.Connection, table: TableName) -> list[Reference]:
    """Return the foreign keys, of any table, that refer to the target's table."""
    match opened.dialect.name:
        case "sqlite":
            return _referenced_by_sqlite(opened, table)
        case "postgresql":
            query = (
                "SELECT CAST(CAST(c.conrelid AS regclass) AS text),"
                " array_to_json(array(SELECT attname FROM pg_attribute"
                " WHERE attrelid = c.conrelid AND attnum = ANY(c.conkey))), c.confdeltype"
                " FROM pg_constraint c WHERE c.contype = 'f' AND c.conparentid = 0"
                " AND c.confrelid = CAST(:table AS regclass)"
            )
            rows = opened.execute(sa.text(query), {"table": _quoted(opened, table)})
            references = [
                (row[0], list(row[1]), DELETE_RULES.get(_text(row[2]), "NO ACTION")) for row in rows
            ]
        case _:
            query = (
                "SELECT k.table_name, GROUP_CONCAT(k.column_name ORDER BY k.ordinal_position),"
                " r.delete_rule FROM information_schema.key_column_usage k"
                " JOIN information_schema.referential_constraints r"
                " ON r.constraint_schema = k.constraint_schema"
                " AND r.constraint_name = k.constraint_name AND r.table_name = k.table_name"
                " WHERE k.referenced_table_schema = COALESCE(:schema, DATABASE())"
                " AND k.referenced_table_name = :table"
                " GROUP BY k.table_schema, k.table_name, k.constraint_name, r.delete_rule"
            )
            rows = opened.execute(sa.text(query), {"schema": table.schema, "table": table.name})
            references = [(str(row[0]), str(row[1]).split(","), str(row[2])) for row in rows]
    return [
        Reference(table=name, columns=columns, refers_to=str(table), on_delete=rule)
        for name, columns, rule in sorted(references)
    ]


def _referenced_by_sqlite(opened: sa.Connection, table: TableName) -> list[Reference]:
    view = sa.inspect(opened)
    return [
        Reference(
            table=name,
            columns=list(key["constrained_columns"]),
            refers_to=str(table),
            on_delete=str(key["options"].get("ondelete") or "NO ACTION").upper(),
        )
        for name in sorted(view.get_table_names())
        for key in view.get_foreign_keys(name)
        if key["referred_table"].lower() == table.name.lower()
    ]


def _checks(reader: table_reader.TableReader, pipeline: settings.Pipeline) -> dict[str, str]:
    """Return the CHECK constraints on mapped columns, without those that MariaDB uses for JSON."""
    constraints = reader.view.get_check_constraints(reader.table.name, schema=reader.table.schema)
    return {
        str(check["name"] or "check"): str(check["sqltext"])
        for check in constraints
        if any(
            re.search(rf"(?<!\w){re.escape(name)}(?!\w)", check["sqltext"])
            for name in pipeline.columns
        )
        and not table_reader.JSON_CHECK.fullmatch(check["sqltext"])
    }


def _order_column(
    reader: table_reader.TableReader, pipeline: settings.Pipeline
) -> tuple[str, str, int] | None:
    """Return the column of the order value if it has fewer than 32 bits."""
    if reader.dialect.name == "sqlite" or pipeline.event.order is None:
        return None
    name = next(
        (name for name, column in pipeline.mapped.items() if column.field == pipeline.event.order),
        None,
    )
    kind = reader.columns[name]["type"] if name in reader.columns else None
    bits = table_reader.INTEGER_BITS.get(type(kind).__name__, 64)
    if name is None or bits >= 32:
        return None
    value_bits = bits if getattr(kind, "unsigned", False) else bits - 1
    return name, type(kind).__name__, 2**value_bits - 1


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _times_without_zone(reader: table_reader.TableReader, pipeline: settings.Pipeline) -> list[str]:
    """Return the mapped columns that store a time without its zone."""
    if reader.dialect.name == "sqlite":
        return []
    names = []
    for name in pipeline.columns:
        kind = reader.columns[name]["type"] if name in reader.columns else None
        zoned = getattr(kind, "timezone", False) or (
            type(kind).__name__ == "TIMESTAMP" and reader.is_mysql
        )
        if isinstance(kind, sa.DateTime) and not zoned:
            names.append(name)
    return names


def _read_postgres(
    opened: sa.Connection,
    facts: Facts,
    existing: Iterable[TableName],
    written: Mapping[str, settings.Pipeline],
) -> Facts:
    """Add the facts about PostgreSQL; `written` are the pipeline's tables by name."""
    query = sa.text("SELECT name, setting, source FROM pg_settings WHERE name = ANY(:names)")
    rows = opened.execute(query, {"names": list(POSTGRES_SETTINGS)}).all()
    values, sources = {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}
    role = opened.execute(
        sa.text(
            "SELECT rolname, rolsuper, rolconnlimit,"
            " extract(epoch FROM NULLIF(rolvaliduntil, 'infinity') - clock_timestamp()),"
            " datname, datconnlimit FROM pg_roles, pg_database"
            " WHERE rolname = current_user AND datname = current_database()"
        )
    ).one()
    limits = {"ROLE_CONNECTIONS": float(role[2]), "DATABASE_CONNECTIONS": float(role[5])}
    in_recovery = opened.execute(sa.text("SELECT pg_is_in_recovery()")).scalar()
    values["in_recovery"] = "on" if in_recovery else "off"
    engines, lacking, hidden = {}, [], False
    for table in existing:
        quoted = _quoted(opened, table)
        row = opened.execute(
            sa.text(
                "SELECT relpersistence, row_security_active(oid) FROM pg_class"
                " WHERE oid = CAST(:table AS regclass)"
            ),
            {"table": quoted},
        ).one()
        engines[str(table)] = {"u": "unlogged", "t": "temporary"}.get(row[0], "logged")
        hidden = hidden or bool(row[1])
        for right in NEEDED:
            on_table = opened.execute(
                sa.text("SELECT has_table_privilege(:table, :right)"),
                {"table": quoted, "right": right},
            ).scalar()
            columns = _columns_for(right, written.get(str(table)))
            if not on_table and not _may_columns(opened, quoted, right, columns):
                lacking.append(f"{right} on {table}")
    if not opened.execute(
        sa.text("SELECT has_database_privilege(current_database(), 'TEMP')")
    ).scalar():
        lacking.append("TEMPORARY on the database")
    return msgspec.structs.replace(
        facts,
        settings=values,
        engines=engines,
        row_security=hidden,
        lacking_rights=lacking,
        clock_ahead_s=_clock_ahead_s(opened, "SELECT extract(epoch FROM clock_timestamp())"),
        superuser=bool(role[1]),
        user=facts.quoted(str(role[0])),
        database=str(role[4]),
        sources=sources,
        limits={name: limit for name, limit in limits.items() if limit >= 0},
        password_valid_s=float(role[3]) if role[3] is not None else None,
        encrypted=bool(
            opened.execute(
                sa.text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            ).scalar()
        ),
    )


def _columns_for(right: str, pipeline: settings.Pipeline | None) -> list[str]:
    """Return the columns of a written table that need a right; empty for instep's own tables."""
    if pipeline is None:
        return []
    if right == "UPDATE":
        return [*pipeline.columns]
    return [*pipeline.keys, *pipeline.columns]


def _may_columns(opened: sa.Connection, quoted: str, right: str, columns: list[str]) -> bool:
    """Return whether a right that is not granted on the table is granted on the columns."""
    if right == "DELETE":
        return False
    if not columns:
        query = sa.text("SELECT has_any_column_privilege(:table, :right)")
        return bool(opened.execute(query, {"table": quoted, "right": right}).scalar())
    query = sa.text(
        "SELECT bool_and(has_column_privilege(:table, attname, :right)) FROM pg_attribute"
        " WHERE attrelid = CAST(:table AS regclass) AND attname = ANY(:columns)"
    )
    return bool(
        opened.execute(query, {"table": quoted, "right": right, "columns": columns}).scalar()
    )


def _read_mysql(
    opened: sa.Connection,
    facts: Facts,
    existing: list[TableName],
    written: Mapping[str, settings.Pipeline],
) -> Facts:
    values = _variables(opened, "SHOW VARIABLES")
    server = _variables(opened, "SHOW GLOBAL VARIABLES")
    name, _, host = str(opened.execute(sa.text("SELECT CURRENT_USER()")).scalar()).rpartition("@")
    granted = [str(row[0]) for row in opened.execute(sa.text("SHOW GRANTS"))]
    cipher = opened.execute(sa.text("SHOW STATUS LIKE 'Ssl_cipher'")).one_or_none()
    engines = {str(table): _engine(opened, table) for table in existing}
    lacking = []
    for table in existing:
        key = written[str(table)].keys[0] if str(table) in written else "pipeline"
        lacking += [f"{right} on {table}" for right in _missing_rights(opened, table, key)]
    if _lacks_temporary_tables(opened):
        lacking.append("CREATE TEMPORARY TABLES on the database")
    return msgspec.structs.replace(
        facts,
        settings=values,
        engines={name: engine for name, engine in engines.items() if engine},
        encrypted=bool(cipher and cipher[1]),
        clock_ahead_s=_clock_ahead_s(opened, "SELECT UNIX_TIMESTAMP(NOW(6))"),
        superuser=name == "root" or any(map(_grants_everything, granted)),
        user=f"{_literal(name)}@{_literal(host)}",
        database=str(opened.execute(sa.text("SELECT DATABASE()")).scalar() or ""),
        sources={
            name: "server" if server.get(name, value) == value else "account"
            for name, value in values.items()
        },
        limits=_account_limits(opened),
        lacking_rights=lacking,
    )


def _variables(opened: sa.Connection, statement: str) -> dict[str, str]:
    return {
        str(row[0]): str(row[1])
        for row in opened.execute(sa.text(statement))
        if row[0] in MYSQL_SETTINGS
    }


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _grants_everything(statement: str) -> bool:
    """Return whether a line of SHOW GRANTS makes its account an administrator."""
    granted = ALL_GRANTED.match(statement)
    if granted is None:
        return False
    rights = {right.strip() for right in granted["rights"].split(",")}
    return bool(rights & {"ALL PRIVILEGES", "SUPER", "CREATE USER", "SYSTEM_USER"})


def _account_limits(opened: sa.Connection) -> dict[str, float]:
    """Return the limits of our own account, if the server shows them."""
    try:
        statement = str(opened.execute(sa.text("SHOW CREATE USER CURRENT_USER()")).scalar())
    except sa.exc.DBAPIError:
        return {}
    return {
        name: float(limit) for name, limit in ACCOUNT_LIMIT.findall(statement) if float(limit) > 0
    }


def _lacks_temporary_tables(opened: sa.Connection) -> bool:
    try:
        opened.exec_driver_sql("CREATE TEMPORARY TABLE instep_check (a INT)")
        opened.exec_driver_sql("DROP TEMPORARY TABLE instep_check")
    except sa.exc.DBAPIError as error:
        return isinstance(_translated(opened, error), (errors.PermissionLost, errors.NotAuthorised))
    return False


def _translated(opened: sa.Connection, error: sa.exc.DBAPIError) -> errors.InstepError | None:
    if not isinstance(error.orig, Exception):
        return None
    return connecting.translate(opened.engine.url, error.orig)


def _clock_ahead_s(opened: sa.Connection, question: str) -> float:
    """Return how far the server's clock is ahead of ours, within the round-trip time."""
    before = time.time()
    server_time = float(opened.execute(sa.text(question)).scalar_one())
    return server_time - (before + time.time()) / 2


def _engine(opened: sa.Connection, table: TableName) -> str | None:
    query = (
        "SELECT engine FROM information_schema.tables"
        " WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table"
    )
    engine: str | None = opened.execute(
        sa.text(query), {"schema": table.schema, "table": table.name}
    ).scalar()
    return engine


def _missing_rights(opened: sa.Connection, table: TableName, column: str) -> list[str]:
    """Return the missing rights: EXPLAIN needs the rights of its statement, and changes nothing."""
    column = opened.dialect.identifier_preparer.quote_identifier(column)
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
            # A read-only server refuses for other reasons, which are reported elsewhere.
            if isinstance(_translated(opened, error), errors.PermissionLost):
                refused.append(right)
    return refused


def _quoted(opened: sa.Connection, table: TableName) -> str:
    quote = opened.dialect.identifier_preparer.quote_identifier
    return ".".join(quote(part) for part in (table.schema, table.name) if part)


def file_system(file: Path) -> str | None:
    """Return the type of a file's file system: that of the nearest mount above it."""
    real = file.resolve()
    above = [
        mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)
    ]
    # Of two mounts on one folder the later one hides the earlier one.
    nearest = max(reversed(above), key=lambda mount: len(mount.mountpoint), default=None)
    return nearest.fstype if nearest else None
