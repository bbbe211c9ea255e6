"""The tables of a relay in its source database: outbox, lease, dead letters, and their statements.

The outbox of PostgreSQL is a ring of four partitions by ranges of ids, so that published rows are
removed by TRUNCATE, which leaves nothing to vacuum.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from instep import errors, settings
from instep.sinks import connecting, target
from instep.sinks.target import TableName
from instep.sources.connection import ADMINISTRATOR, source_errors, source_url

PARTITIONS = 4
PARTITION_BITS = 17  # ids of one partition before the next one follows: 131,072
LEASE_TABLE = "instep_relays"
DEAD_TABLE = "instep_outbox_dead"

# Text of any length: a trigger must not fail because an id is too long for us.
MYSQL_DOCUMENT = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
_exact = mysql.LONGTEXT(collation="utf8mb4_bin")  # an id that is too long is kept, too
DOCUMENT = sa.Text().with_variant(_exact, "mysql", "mariadb")
CONTENT = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
JSON_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
NAME = sa.String(100).with_variant(mysql.VARCHAR(100, collation="utf8mb4_bin"), "mysql", "mariadb")
_long = mysql.VARCHAR(255, collation="utf8mb4_bin")
OUTBOX = sa.String(255).with_variant(_long, "mysql", "mariadb")


def lease_table(schema: str | None) -> sa.Table:
    """Return the table of leases: one row per relay."""
    return sa.Table(
        LEASE_TABLE,
        sa.MetaData(),
        sa.Column("relay", NAME, primary_key=True),
        sa.Column("source_id", sa.String(36), nullable=False),
        sa.Column("holder", sa.String(255)),
        sa.Column("heartbeat_s", sa.Double, nullable=False),  # by the database's clock
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("started", sa.Integer, nullable=False),  # 1: something may have been published
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("published_rows", sa.BigInteger, nullable=False),
        sa.Column("outbox", OUTBOX),  # without its schema, which is this table's
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def dead_table(schema: str | None) -> sa.Table:
    """Return the table of rows that are not published.

    An id that the database gave out again makes another `occurrence`.
    """
    return sa.Table(
        DEAD_TABLE,
        sa.MetaData(),
        sa.Column("relay", NAME, primary_key=True),
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("occurrence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.Column("value", CONTENT),
        sa.Column("headers", JSON_TEXT),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def own_tables(relay: settings.Relay) -> list[sa.Table]:
    """Return the tables beside the outbox."""
    schema = target.table_name(relay.outbox).schema
    return [lease_table(schema), dead_table(schema)]


def statements(opened: sa.Connection, relay: settings.Relay, name: str) -> list[str]:
    """Return the statements that create what the source database is missing for a relay.

    The last one adds the relay's row.
    """
    outbox = target.table_name(relay.outbox)
    view = sa.inspect(opened)
    found: list[str] = []
    if opened.dialect.name == "sqlite" and _journal_mode(opened) != "wal":
        found.append("PRAGMA journal_mode = WAL")
    if not view.has_table(outbox.name, schema=outbox.schema):
        found += outbox_statements(opened.dialect, outbox)
    lease, dead = own_tables(relay)
    if not view.has_table(lease.name, schema=lease.schema):
        found.append(_created(opened.dialect, lease))
    found += _dead_statements(opened.dialect, view, dead)
    found += _row_statements(opened, view, relay, name)
    return found


def _created(dialect: sa.Dialect, table: sa.Table) -> str:
    return str(sa.schema.CreateTable(table).compile(dialect=dialect)).strip()


def _dead_statements(dialect: sa.Dialect, view: sa.Inspector, table: sa.Table) -> list[str]:
    """Return the statements that create the table of dead rows, or replace an earlier form.

    The earlier table gets another name first: if only a part of the statements is run, the next
    `instep relay init` continues.
    """
    earlier = TableName(table.schema, f"{table.name}_earlier")
    is_renamed = view.has_table(earlier.name, schema=earlier.schema)
    exists = view.has_table(table.name, schema=table.schema)
    names = [one["name"] for one in view.get_columns(table.name, table.schema)] if exists else []
    name = TableName(table.schema, table.name)
    found: list[str] = []
    if exists and "occurrence" not in names:
        # MySQL would move the table to the current database.
        is_mysql = dialect.name in ("mysql", "mariadb")
        to = quoted(dialect, earlier if is_mysql else TableName(None, earlier.name))
        found.append(f"ALTER TABLE {quoted(dialect, name)} RENAME TO {to}")
        exists, is_renamed = False, True
    if not exists:
        found.append(_created(dialect, table))
    if is_renamed:
        copied = "id, document, value, headers, reason, at_s"
        found.append(
            f"INSERT INTO {quoted(dialect, name)} (relay, occurrence, {copied})\n"
            f"SELECT relay, 0, {copied} FROM {quoted(dialect, earlier)} e WHERE NOT EXISTS\n"
            f"    (SELECT 1 FROM {quoted(dialect, name)} k WHERE k.relay = e.relay AND k.id = e.id)"
        )
        found.append(f"DROP TABLE {quoted(dialect, earlier)}")
    return found


def missing(relay: settings.Relay, name: str) -> list[str]:
    """Return what `prepare` would run, and change nothing."""
    url = source_url(relay.source)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        with sa.create_engine("sqlite://").connect() as opened:
            return statements(opened, relay, name)
    with source_errors(), connecting.connection(url) as opened:
        return statements(opened, relay, name)


def prepare(relay: settings.Relay, name: str) -> list[str]:
    """Create what is missing, with the relay's row, and return the statements."""
    url = source_url(relay.source)
    with source_errors(ADMINISTRATOR), connecting.connection(url, create=True) as opened:
        created = statements(opened, relay, name)
        for statement in created:
            if opened.dialect.paramstyle in ("format", "pyformat"):
                statement = statement.replace("%", "%%")
            opened.exec_driver_sql(statement)
        opened.commit()
    return created


def creates_own(created: Iterable[str]) -> bool:
    """Return whether statements of `prepare` create the tables beside the outbox."""
    return any(text.startswith("CREATE TABLE") and LEASE_TABLE in text for text in created)


def remove(relay: settings.Relay, name: str, *, with_own: bool) -> None:
    """Remove the outbox and the relay's row; with `with_own` also the tables beside it."""
    outbox = target.table_name(relay.outbox)
    beside = lease_table(outbox.schema)
    with source_errors(), connecting.connection(source_url(relay.source)) as opened:
        opened.exec_driver_sql(f"DROP TABLE IF EXISTS {quoted(opened.dialect, outbox)}")
        opened.execute(sa.delete(beside).where(beside.c.relay == name))
        for table in own_tables(relay) if with_own else ():
            table.drop(opened)
        opened.commit()


def _row_statements(
    opened: sa.Connection, view: sa.Inspector, relay: settings.Relay, name: str
) -> list[str]:
    """Return the statements that add the relay's row, or the outbox to the row."""
    outbox = target.table_name(relay.outbox)
    table = lease_table(outbox.schema)
    if not view.has_table(table.name, schema=table.schema):
        return [_lease_insert(opened.dialect, relay, name)]
    columns = {one["name"] for one in view.get_columns(table.name, table.schema)}
    has_column = "outbox" in columns
    owners: dict[str, str | None] = {}
    for row in opened.execute(
        sa.select(table.c.outbox if has_column else sa.null(), table.c.relay)
    ):
        owners[row[1]] = row[0]
    others = [one for one, owned in owners.items() if one != name and owned == outbox.name]
    if others:
        raise outbox_taken(relay, name, others[0])
    quoted_table = quoted(opened.dialect, TableName(outbox.schema, LEASE_TABLE))
    found: list[str] = []
    if not has_column:
        type_ = OUTBOX.compile(dialect=opened.dialect)
        found.append(f"ALTER TABLE {quoted_table} ADD COLUMN outbox {type_}")
    if name not in owners:
        found.append(_lease_insert(opened.dialect, relay, name))
    elif owners[name] != outbox.name:
        literal = _literal(opened.dialect, outbox.name)
        found.append(f"UPDATE {quoted_table} SET outbox = {literal} WHERE relay = '{name}'")
    return found


def outbox_taken(relay: settings.Relay, name: str, other: str) -> errors.SettingsError:
    """Return why a relay must not read an outbox."""
    return errors.SettingsError(
        f"relay {name!r} and relay {other!r} have the same outbox {relay.outbox!r}: each removes"
        " what it has published, and the other one never sees those rows",
        f'give it an outbox of its own: [relays.{name}] outbox = "…"; or, if relay {other!r} does'
        f" not run any more: DELETE FROM {LEASE_TABLE} WHERE relay = '{other}'",
    )


def _literal(dialect: sa.Dialect, text: str) -> str:
    escaped = text if dialect.name in ("sqlite", "postgresql") else text.replace("\\", "\\\\")
    return "'" + escaped.replace("'", "''") + "'"


def _lease_insert(dialect: sa.Dialect, relay: settings.Relay, name: str) -> str:
    """Return the statement that adds the row of a relay, with a new id of this source.

    The id is not made by the database: with statement-based replication, a replica would make
    another one.
    """
    table = quoted(dialect, TableName(target.table_name(relay.outbox).schema, LEASE_TABLE))
    # The name of a relay is part of a topic's name, so it needs no escapes.
    return (
        f"INSERT INTO {table} (relay, source_id, heartbeat_s, beat, started, sequence,"
        f" published_rows, outbox)\nVALUES ('{name}', '{uuid.uuid4()}', 0, 0, 0, 0, 0,"
        f" {_literal(dialect, target.table_name(relay.outbox).name)})"
    )


def _journal_mode(opened: sa.Connection) -> str:
    return str(opened.exec_driver_sql("PRAGMA journal_mode").scalar_one())


def quoted(dialect: sa.Dialect, name: TableName) -> str:
    """Return a table's name as the database quotes it."""
    quote = dialect.identifier_preparer.quote_identifier
    return ".".join(quote(part) for part in (name.schema, name.name) if part is not None)


def partition_names(name: TableName) -> list[TableName]:
    """Return the names of the partitions of PostgreSQL's outbox."""
    return [TableName(name.schema, f"{name.name}_{number}") for number in range(PARTITIONS)]


def outbox_statements(dialect: sa.Dialect, name: TableName) -> list[str]:
    """Return the statements that create an outbox."""
    table = quoted(dialect, name)
    match dialect.name:
        case "postgresql":
            index = dialect.identifier_preparer.quote_identifier(f"{name.name}_xid")
            return [
                f"CREATE TABLE {table} (\n"
                "    id bigint GENERATED BY DEFAULT AS IDENTITY (CACHE 1),\n"
                "    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),\n"
                "    document text NOT NULL,\n"
                "    value bytea,\n"
                "    headers text\n"
                f") PARTITION BY LIST (((id >> {PARTITION_BITS}) & {PARTITIONS - 1}))",
                *(
                    f"CREATE TABLE {quoted(dialect, part)} PARTITION OF {table}"
                    f" FOR VALUES IN ({number})"
                    for number, part in enumerate(partition_names(name))
                ),
                f"CREATE INDEX {index} ON {table} (xid)",
            ]
        case "sqlite":
            return [
                f"CREATE TABLE {table} (\n"
                "    id INTEGER PRIMARY KEY AUTOINCREMENT,\n"
                "    document TEXT NOT NULL,\n"
                "    value BLOB,\n"
                "    headers TEXT\n)"
            ]
        case _:
            return [
                f"CREATE TABLE {table} (\n"
                "    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,\n"
                f"    document {MYSQL_DOCUMENT},\n"
                "    value LONGBLOB,\n"
                "    headers LONGTEXT CHARACTER SET utf8mb4\n"
                ") ENGINE=InnoDB"
            ]
