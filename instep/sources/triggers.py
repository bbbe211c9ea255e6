"""Triggers that record changes of a table in the outbox, for programs that cannot be changed.

A change of one of the given columns adds an event with all of them; a deleted row adds a delete.
The trigger runs after the row was changed, so it is locked, and the events of a document are in
commit order. The relay adds the version (`version` in its settings).

A trigger fails in the application's transaction, so it must not depend on what a value is. Values
are compared by their bytes: not every type can be compared, and a collation may ignore a change.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from instep import errors, settings
from instep.sinks import connecting, target
from instep.sinks.target import TableName
from instep.sources import tables
from instep.sources.connection import SourceConnection, source_errors, source_url

KEY_SEPARATOR = "/"
PROBE_TABLE, PROBE_OUTBOX = "instep_probe", "instep_probe_outbox"
PROBE_KEY, PROBE_COUNT = "instep_key", "instep_count"  # columns of the probe's own
PROBES = 200
LOCK_WAIT_S = 10  # for other transactions; meanwhile, new ones wait for the trigger's statement
# What ends the statements that replace triggers, if one of them fails.
UNDO = {"postgresql": "ROLLBACK", "sqlite": "ROLLBACK", "mysql": "UNLOCK TABLES"}


class TriggerPlan(msgspec.Struct, frozen=True):
    """The table to watch: the columns of its key, and those whose changes are recorded."""

    dialect: sa.Dialect  # of the server: a URL of MySQL may lead to a MariaDB
    table: TableName
    outbox: TableName
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    texts: frozenset[str]  # columns of a type that has a collation
    binaries: frozenset[str]  # columns of bytes
    replaces: bool  # the table has triggers of ours


class TriggerCost(msgspec.Struct, frozen=True):
    """The time of an update of one row in its own transaction, in milliseconds."""

    without_ms: float
    with_ms: float
    transactions: int


def plan(relay: settings.Relay, table: str, columns: Sequence[str]) -> TriggerPlan:
    """Look at the table, and check the columns; without any, all columns are recorded."""
    if relay.version is None:
        raise errors.SettingsError(
            "events of a trigger have no version, so the relay must add one",
            'add to the relay\'s settings: version = "version"',
        )
    name = target.table_name(table)
    url = source_url(relay.source)
    with source_errors(), connecting.connection(url) as opened, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Did not recognize type", sa.exc.SAWarning)
        view = sa.inspect(opened)
        if not view.has_table(name.name, schema=name.schema):
            raise errors.SettingsError(
                f"{target.shown(url)} has no table {table!r}",
                "correct the name: --trigger TABLE, or SCHEMA.TABLE",
            )
        types = {
            column["name"]: column["type"]
            for column in view.get_columns(name.name, schema=name.schema)
        }
        keys = view.get_pk_constraint(name.name, schema=name.schema)["constrained_columns"]
        schema = view.default_schema_name if opened.dialect.name == "postgresql" else None
        outbox = target.table_name(relay.outbox)
        if not keys:
            raise errors.SettingsError(
                f"table {table!r} has no primary key, so its documents have no id",
                "add a primary key, or add the events in the application: instep.Outbox",
            )
        recorded = list(columns or [column for column in types if column not in keys])
        _check_columns(table, recorded, list(types), relay.version)
        return TriggerPlan(
            opened.dialect,
            TableName(name.schema or schema, name.name),
            TableName(outbox.schema or schema, outbox.name),
            tuple(keys),
            tuple(recorded),
            texts=frozenset(one for one, type_ in types.items() if isinstance(type_, sa.String)),
            binaries=frozenset(one for one, type_ in types.items() if _is_binary(type_)),
            replaces=_has_triggers(opened, name),
        )


def _check_columns(table: str, columns: Sequence[str], known: Sequence[str], version: str) -> None:
    for column in columns:
        if column not in known:
            raise errors.SettingsError(
                f"table {table!r} has no column {column!r}{settings.nearest(column, known)}",
                f"its columns: {', '.join(known)}",
            )
    if version in columns:
        raise errors.SettingsError(
            f"column {version!r} of table {table!r} has the name of the version that the relay"
            " adds, so it would take its place",
            "name the other columns (--columns A,B), or give the relay's version another name:"
            ' version = "outbox_id"',
        )


def _is_binary(type_: Any) -> bool:
    return isinstance(type_, sa.types._Binary | mysql.BIT)


def _has_triggers(opened: sa.Connection, name: TableName) -> bool:
    """Return whether triggers of ours would be replaced. Only MySQL needs to know."""
    if opened.dialect.name != "mysql" or _is_mariadb(opened.dialect):
        return False
    count = opened.execute(
        sa.text(
            "SELECT count(*) FROM information_schema.triggers"
            " WHERE trigger_schema = COALESCE(:schema, DATABASE()) AND event_object_table = :table"
            " AND trigger_name IN (:insert, :update, :delete)"
        ),
        {
            "schema": name.schema,
            "table": name.name,
            **{kind: f"instep_{name.name}_{kind}" for kind in ("insert", "update", "delete")},
        },
    ).scalar_one()
    return bool(count)


def _is_mariadb(dialect: sa.Dialect) -> bool:
    return bool(getattr(dialect, "is_mariadb", False))


def statements(wanted: TriggerPlan) -> list[str]:
    """Return the statements that create the triggers.

    Existing ones are replaced, in such a way that no change is made between the old and the new.
    """
    match wanted.dialect.name:
        case "postgresql":
            return _postgres(wanted.dialect, wanted)
        case "sqlite":
            return _sqlite(wanted.dialect, wanted)
        case _:
            return _mysql(wanted.dialect, wanted)


def create(relay: settings.Relay, wanted: TriggerPlan) -> None:
    """Create the triggers."""
    with SourceConnection(relay.source) as opened:
        _run(opened, wanted)


def _run(opened: SourceConnection, wanted: TriggerPlan) -> None:
    if opened.dialect.name in ("mysql", "mariadb"):
        opened.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
    try:
        for statement in statements(wanted):
            opened.run(statement)
    except BaseException:
        with suppress(errors.InstepError):  # the first error is the one that counts
            opened.run(UNDO.get(opened.dialect.name, "ROLLBACK"))
        raise


def measure(relay: settings.Relay, wanted: TriggerPlan) -> TriggerCost:
    """Measure what the triggers add to a transaction, on a copy of one row in tables of its own."""
    probe = msgspec.structs.replace(
        wanted,
        table=TableName(wanted.table.schema, PROBE_TABLE),
        outbox=TableName(wanted.outbox.schema, PROBE_OUTBOX),
        keys=(PROBE_KEY,),
        columns=(*wanted.columns, PROBE_COUNT),
        texts=wanted.texts | {PROBE_KEY},
        replaces=False,
    )
    with SourceConnection(relay.source) as opened:
        _drop_probe(opened, probe)
        try:
            _create_probe(opened, wanted, probe)
            without = _update_times(opened, probe)
            _run(opened, probe)
            with_triggers = _update_times(opened, probe)
            outbox = tables.quoted(opened.dialect, probe.outbox)
            recorded = opened.value(f"SELECT count(*) FROM {outbox}")
            if recorded != PROBES:
                raise errors.InstepError(
                    f"the triggers recorded {recorded} of {PROBES} changes of the probe",
                    "compare the statements with your table: instep relay init --trigger … --sql",
                )
            return TriggerCost(
                statistics.median(without) * 1_000, statistics.median(with_triggers) * 1_000, PROBES
            )
        finally:
            _drop_probe(opened, probe)


# --- statements ---------------------------------------------------------------------------------


def _postgres(dialect: sa.Dialect, wanted: TriggerPlan) -> list[str]:
    quote = dialect.identifier_preparer.quote_identifier
    table, outbox = tables.quoted(dialect, wanted.table), tables.quoted(dialect, wanted.outbox)
    function = _function(dialect, wanted)
    trigger = quote(f"instep_{wanted.table.name}")

    def key(row: str) -> str:
        parts = [f"{row}.{quote(name)}::text" for name in wanted.keys]
        return f" || '{KEY_SEPARATOR}' || ".join(parts)

    value = f"json_build_object({_json_fields(dialect, wanted, key('NEW'))})"
    new, old = (
        ", ".join(f"{row}.{quote(name)}" for name in wanted.columns) for row in ("NEW", "OLD")
    )
    moved = f'({key("OLD")}) COLLATE "C" <> ({key("NEW")})'
    # The operator *<> compares the bytes of two records: some types have no equality.
    changed = f"ROW({new})::record *<> ROW({old})::record"
    return [
        "BEGIN",
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql\n"
        "SECURITY DEFINER SET search_path = pg_catalog AS $instep$\n"
        "BEGIN\n"
        "    IF TG_OP = 'TRUNCATE' THEN\n"
        f"        INSERT INTO {outbox} (document) SELECT {key('gone')} FROM {table} gone;\n"
        "        RETURN NULL;\n"
        "    END IF;\n"
        f"    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND {moved}) THEN\n"
        f"        INSERT INTO {outbox} (document) VALUES ({key('OLD')});\n"
        "    END IF;\n"
        f"    IF TG_OP = 'INSERT' OR (TG_OP = 'UPDATE' AND ({moved}\n"
        f"            OR {changed})) THEN\n"
        f"        INSERT INTO {outbox} (document, value)\n"
        f"        VALUES ({key('NEW')}, convert_to({value}::text, 'UTF8'));\n"
        "    END IF;\n"
        "    RETURN NULL;\n"
        "END $instep$",
        f"DROP TRIGGER IF EXISTS {trigger} ON {table}",
        f"CREATE TRIGGER {trigger} AFTER INSERT OR UPDATE OR DELETE ON {table}"
        f" FOR EACH ROW EXECUTE FUNCTION {function}()",
        f"DROP TRIGGER IF EXISTS {quote(f'instep_{wanted.table.name}_truncate')} ON {table}",
        f"CREATE TRIGGER {quote(f'instep_{wanted.table.name}_truncate')} BEFORE TRUNCATE ON {table}"
        f" FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
        "COMMIT",
    ]


def _function(dialect: sa.Dialect, wanted: TriggerPlan) -> str:
    name = TableName(wanted.outbox.schema, f"instep_record_{wanted.table.name}")
    return tables.quoted(dialect, name)


def _sqlite(dialect: sa.Dialect, wanted: TriggerPlan) -> list[str]:
    quote = dialect.identifier_preparer.quote_identifier
    outbox = tables.quoted(dialect, wanted.outbox)

    def key(row: str) -> str:
        parts = [f"CAST({_without_bytes(row, quote(name))} AS TEXT)" for name in wanted.keys]
        return f" || '{KEY_SEPARATOR}' || ".join(parts)

    value = f"CAST(json_object({_json_fields(dialect, wanted, key('NEW'))}) AS BLOB)"
    changed = " OR ".join(
        f"NEW.{quote(name)} COLLATE BINARY IS NOT OLD.{quote(name)}" for name in wanted.columns
    )
    moved = f"({key('OLD')}) COLLATE BINARY <> {key('NEW')}"
    added = f"INSERT INTO {outbox} (document, value) VALUES ({key('NEW')}, {value});"
    removed = f"INSERT INTO {outbox} (document) VALUES ({key('OLD')});"
    table = tables.quoted(dialect, wanted.table)
    bodies = {
        "insert": f"AFTER INSERT ON {table} BEGIN {added} END",
        "move": f"AFTER UPDATE ON {table} WHEN {moved} BEGIN {removed} {added} END",
        "update": f"AFTER UPDATE ON {table} WHEN NOT ({moved}) AND ({changed}) BEGIN {added} END",
        "delete": f"AFTER DELETE ON {table} BEGIN {removed} END",
    }
    return ["BEGIN IMMEDIATE", *_dropped_and_created(dialect, wanted, bodies), "COMMIT"]


def _without_bytes(row: str, column: str) -> str:
    """Return an expression of SQLite, where any column may hold bytes, which JSON cannot."""
    value = f"{row}.{column}"
    return f"CASE typeof({value}) WHEN 'blob' THEN hex({value}) ELSE {value} END"


def _mysql(dialect: sa.Dialect, wanted: TriggerPlan) -> list[str]:
    quote = dialect.identifier_preparer.quote_identifier
    outbox = tables.quoted(dialect, wanted.outbox)

    def value_of(row: str, name: str) -> str:
        """Return an expression that can be compared by its bytes."""
        value = f"{row}.{quote(name)}"
        return f"CAST({value} AS BINARY)" if name in wanted.texts else value

    def key(row: str) -> str:
        parts = [
            f"HEX({row}.{quote(name)})"
            if name in wanted.binaries
            else f"CAST({row}.{quote(name)} AS CHAR CHARACTER SET utf8mb4)"
            for name in wanted.keys
        ]
        return parts[0] if len(parts) == 1 else f"CONCAT_WS('{KEY_SEPARATOR}', {', '.join(parts)})"

    value = f"CONVERT(JSON_OBJECT({_json_fields(dialect, wanted, key('NEW'))}) USING utf8mb4)"
    same = " AND ".join(
        f"{value_of('NEW', name)} <=> {value_of('OLD', name)}" for name in wanted.columns
    )
    moved = f"CAST({key('OLD')} AS BINARY) <> CAST({key('NEW')} AS BINARY)"
    added = f"INSERT INTO {outbox} (document, value) VALUES ({key('NEW')}, {value});"
    removed = f"INSERT INTO {outbox} (document) VALUES ({key('OLD')});"
    table = tables.quoted(dialect, wanted.table)
    bodies = {
        "insert": f"AFTER INSERT ON {table} FOR EACH ROW BEGIN {added} END",
        "update": f"AFTER UPDATE ON {table} FOR EACH ROW BEGIN IF {moved} THEN {removed}"
        f" END IF; IF {moved} OR NOT ({same}) THEN {added} END IF; END",
        "delete": f"AFTER DELETE ON {table} FOR EACH ROW BEGIN {removed} END",
    }
    if _is_mariadb(dialect):
        return [
            f"CREATE OR REPLACE TRIGGER {_trigger(dialect, wanted, kind)} {body}"
            for kind, body in bodies.items()
        ]
    found = _dropped_and_created(dialect, wanted, bodies)
    return [f"LOCK TABLES {table} WRITE", *found, "UNLOCK TABLES"] if wanted.replaces else found


def _dropped_and_created(
    dialect: sa.Dialect, wanted: TriggerPlan, bodies: dict[str, str]
) -> list[str]:
    """Return the statements that replace the triggers of the given kinds."""
    found: list[str] = []
    for kind, body in bodies.items():
        name = _trigger(dialect, wanted, kind)
        found += [f"DROP TRIGGER IF EXISTS {name}", f"CREATE TRIGGER {name} {body}"]
    return found


def _trigger(dialect: sa.Dialect, wanted: TriggerPlan, kind: str) -> str:
    return dialect.identifier_preparer.quote_identifier(f"instep_{wanted.table.name}_{kind}")


def _json_fields(dialect: sa.Dialect, wanted: TriggerPlan, key: str) -> str:
    """Return names and values for the database's function that makes a JSON object."""
    quote = dialect.identifier_preparer.quote_identifier
    escape = "\\\\" if dialect.name in ("mysql", "mariadb") else "\\"
    fields = [f"'doc_id', {key}"]
    for name in wanted.columns:
        if name != "doc_id":
            literal = name.replace("\\", escape).replace("'", "''")
            fields.append(f"'{literal}', {_json_value(dialect, wanted, name, quote(name))}")
    return ", ".join(fields)


def _json_value(dialect: sa.Dialect, wanted: TriggerPlan, name: str, quoted: str) -> str:
    """Return a new value as JSON takes it: bytes as hexadecimal text."""
    if dialect.name == "sqlite":
        return _without_bytes("NEW", quoted)
    if dialect.name != "postgresql" and name in wanted.binaries:
        return f"HEX(NEW.{quoted})"
    return f"NEW.{quoted}"


# --- measuring ----------------------------------------------------------------------------------


def _create_probe(opened: SourceConnection, wanted: TriggerPlan, probe: TriggerPlan) -> None:
    """Copy one row of the table, without its constraints, and create an outbox beside it."""
    quote = opened.dialect.identifier_preparer.quote_identifier
    names = ", ".join(f"source.{quote(name)}" for name in wanted.columns)
    source = tables.quoted(opened.dialect, wanted.table)
    copy = tables.quoted(opened.dialect, probe.table)
    # The outer join makes a row of an empty table, and columns that may be NULL.
    opened.run(
        f"CREATE TABLE {copy} AS SELECT {names} FROM (SELECT 1) AS one"
        f" LEFT JOIN {source} AS source ON 1 = 1 LIMIT 1"
    )
    opened.run(f"ALTER TABLE {copy} ADD COLUMN {PROBE_KEY} VARCHAR(10) DEFAULT 'probe' NOT NULL")
    opened.run(f"ALTER TABLE {copy} ADD COLUMN {PROBE_COUNT} INTEGER DEFAULT 0 NOT NULL")
    for statement in tables.outbox_statements(opened.dialect, probe.outbox):
        opened.run(statement)


def _update_times(opened: SourceConnection, probe: TriggerPlan) -> list[float]:
    """Update the row in transactions of their own; return how long each took."""
    copy = tables.quoted(opened.dialect, probe.table)
    times: list[float] = []
    for _ in range(PROBES):
        began = time.perf_counter()
        opened.run(f"UPDATE {copy} SET {PROBE_COUNT} = {PROBE_COUNT} + 1")
        times.append(time.perf_counter() - began)
    return times


def _drop_probe(opened: SourceConnection, probe: TriggerPlan) -> None:
    opened.run(f"DROP TABLE IF EXISTS {tables.quoted(opened.dialect, probe.table)}")
    opened.run(f"DROP TABLE IF EXISTS {tables.quoted(opened.dialect, probe.outbox)}")
    if opened.dialect.name == "postgresql":
        opened.run(f"DROP FUNCTION IF EXISTS {_function(opened.dialect, probe)}()")
