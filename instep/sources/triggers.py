"""Triggers that record changes of a table in the outbox, for programs that cannot be changed.

A change of one of the given columns adds an event with all of them; a deleted row adds a delete.
The trigger runs after the row was changed, so it is locked, and the events of a document are in
commit order. The relay adds the version (`version` in its settings).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from instep import errors, settings
from instep.sinks import connecting, target
from instep.sinks.target import TableName
from instep.sources import tables
from instep.sources.connection import SourceConnection, source_errors, source_url

KEY_SEPARATOR = "/"
PROBE_TABLE, PROBE_OUTBOX = "instep_probe", "instep_probe_outbox"
PROBE_KEY, PROBE_COUNT = "instep_key", "instep_count"  # columns of the probe's own
PROBES = 200


class TriggerPlan(msgspec.Struct, frozen=True):
    """The table to watch: the columns of its key, and those whose changes are recorded."""

    table: TableName
    outbox: TableName
    keys: tuple[str, ...]
    columns: tuple[str, ...]


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
    with source_errors(), connecting.connection(url) as opened:
        view = sa.inspect(opened)
        if not view.has_table(name.name, schema=name.schema):
            raise errors.SettingsError(
                f"{target.shown(url)} has no table {table!r}",
                "correct the name: --trigger TABLE, or SCHEMA.TABLE",
            )
        known = [column["name"] for column in view.get_columns(name.name, schema=name.schema)]
        keys = view.get_pk_constraint(name.name, schema=name.schema)["constrained_columns"]
        schema = view.default_schema_name if opened.dialect.name == "postgresql" else None
    if not keys:
        raise errors.SettingsError(
            f"table {table!r} has no primary key, so its documents have no id",
            "add a primary key, or add the events in the application: instep.Outbox",
        )
    for column in columns:
        if column not in known:
            raise errors.SettingsError(
                f"table {table!r} has no column {column!r}{settings.nearest(column, known)}",
                f"its columns: {', '.join(known)}",
            )
    outbox = target.table_name(relay.outbox)
    return TriggerPlan(
        TableName(name.schema or schema, name.name),
        TableName(outbox.schema or schema, outbox.name),
        tuple(keys),
        tuple(columns or [column for column in known if column not in keys]),
    )


def statements(relay: settings.Relay, wanted: TriggerPlan) -> list[str]:
    """Return the statements that create the triggers. Existing ones are replaced."""
    dialect = source_url(relay.source).get_dialect()()
    return _statements(dialect, wanted)


def create(relay: settings.Relay, wanted: TriggerPlan) -> None:
    """Create the triggers."""
    with SourceConnection(relay.source) as opened:
        for statement in _statements(opened.dialect, wanted):
            opened.run(statement)


def measure(relay: settings.Relay, wanted: TriggerPlan) -> TriggerCost:
    """Measure what the triggers add to a transaction, on a copy of one row in tables of its own."""
    probe = TriggerPlan(
        TableName(wanted.table.schema, PROBE_TABLE),
        TableName(wanted.outbox.schema, PROBE_OUTBOX),
        (PROBE_KEY,),
        (*wanted.columns, PROBE_COUNT),
    )
    with SourceConnection(relay.source) as opened:
        _drop_probe(opened, probe)
        try:
            _create_probe(opened, wanted, probe)
            without = _update_times(opened, probe)
            for statement in _statements(opened.dialect, probe):
                opened.run(statement)
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


def _statements(dialect: sa.Dialect, wanted: TriggerPlan) -> list[str]:
    match dialect.name:
        case "postgresql":
            return _postgres(dialect, wanted)
        case "sqlite":
            return _sqlite(dialect, wanted)
        case _:
            return _mysql(dialect, wanted)


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
    return [
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql\n"
        "SECURITY DEFINER SET search_path = pg_catalog AS $instep$\n"
        "BEGIN\n"
        "    IF TG_OP = 'TRUNCATE' THEN\n"
        f"        INSERT INTO {outbox} (document) SELECT {key('gone')} FROM {table} gone;\n"
        "        RETURN NULL;\n"
        "    END IF;\n"
        f"    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND {key('OLD')} <> {key('NEW')}) THEN\n"
        f"        INSERT INTO {outbox} (document) VALUES ({key('OLD')});\n"
        "    END IF;\n"
        f"    IF TG_OP = 'INSERT' OR (TG_OP = 'UPDATE' AND ({key('OLD')} <> {key('NEW')}\n"
        f"            OR ROW({new}) IS DISTINCT FROM ROW({old}))) THEN\n"
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
    ]


def _function(dialect: sa.Dialect, wanted: TriggerPlan) -> str:
    name = TableName(wanted.outbox.schema, f"instep_record_{wanted.table.name}")
    return tables.quoted(dialect, name)


def _sqlite(dialect: sa.Dialect, wanted: TriggerPlan) -> list[str]:
    quote = dialect.identifier_preparer.quote_identifier
    outbox = tables.quoted(dialect, wanted.outbox)

    def key(row: str) -> str:
        parts = [f"CAST({row}.{quote(name)} AS TEXT)" for name in wanted.keys]
        return f" || '{KEY_SEPARATOR}' || ".join(parts)

    value = f"CAST(json_object({_json_fields(dialect, wanted, key('NEW'))}) AS BLOB)"
    changed = " OR ".join(f"NEW.{quote(name)} IS NOT OLD.{quote(name)}" for name in wanted.columns)
    moved = f"{key('OLD')} <> {key('NEW')}"
    added = f"INSERT INTO {outbox} (document, value) VALUES ({key('NEW')}, {value});"
    removed = f"INSERT INTO {outbox} (document) VALUES ({key('OLD')});"
    return _three(
        dialect,
        wanted,
        {
            "insert": f"AFTER INSERT ON {{table}} BEGIN {added} END",
            "move": f"AFTER UPDATE ON {{table}} WHEN {moved} BEGIN {removed} {added} END",
            "update": f"AFTER UPDATE ON {{table}} WHEN NOT ({moved}) AND ({changed})"
            f" BEGIN {added} END",
            "delete": f"AFTER DELETE ON {{table}} BEGIN {removed} END",
        },
    )


def _mysql(dialect: sa.Dialect, wanted: TriggerPlan) -> list[str]:
    quote = dialect.identifier_preparer.quote_identifier
    outbox = tables.quoted(dialect, wanted.outbox)

    def key(row: str) -> str:
        parts = [f"CAST({row}.{quote(name)} AS CHAR)" for name in wanted.keys]
        return parts[0] if len(parts) == 1 else f"CONCAT_WS('{KEY_SEPARATOR}', {', '.join(parts)})"

    value = f"CONVERT(JSON_OBJECT({_json_fields(dialect, wanted, key('NEW'))}) USING utf8mb4)"
    same = " AND ".join(f"NEW.{quote(name)} <=> OLD.{quote(name)}" for name in wanted.columns)
    moved = f"{key('OLD')} <> {key('NEW')}"
    added = f"INSERT INTO {outbox} (document, value) VALUES ({key('NEW')}, {value});"
    removed = f"INSERT INTO {outbox} (document) VALUES ({key('OLD')});"
    return _three(
        dialect,
        wanted,
        {
            "insert": f"AFTER INSERT ON {{table}} FOR EACH ROW BEGIN {added} END",
            "update": f"AFTER UPDATE ON {{table}} FOR EACH ROW BEGIN IF {moved} THEN {removed}"
            f" END IF; IF {moved} OR NOT ({same}) THEN {added} END IF; END",
            "delete": f"AFTER DELETE ON {{table}} FOR EACH ROW BEGIN {removed} END",
        },
    )


def _three(dialect: sa.Dialect, wanted: TriggerPlan, bodies: dict[str, str]) -> list[str]:
    """Return statements that replace a trigger for each kind of change."""
    quote = dialect.identifier_preparer.quote_identifier
    table = tables.quoted(dialect, wanted.table)
    found: list[str] = []
    for kind, body in bodies.items():
        name = quote(f"instep_{wanted.table.name}_{kind}")
        found += [
            f"DROP TRIGGER IF EXISTS {name}",
            f"CREATE TRIGGER {name} {body.replace('{table}', table)}",
        ]
    return found


def _json_fields(dialect: sa.Dialect, wanted: TriggerPlan, key: str) -> str:
    """Return names and values for the database's function that makes a JSON object."""
    quote = dialect.identifier_preparer.quote_identifier
    escape = "\\\\" if dialect.name in ("mysql", "mariadb") else "\\"
    fields = [f"'doc_id', {key}"]
    for name in wanted.columns:
        if name != "doc_id":
            literal = name.replace("\\", escape).replace("'", "''")
            fields.append(f"'{literal}', NEW.{quote(name)}")
    return ", ".join(fields)


# --- measuring ----------------------------------------------------------------------------------


def _create_probe(opened: SourceConnection, wanted: TriggerPlan, probe: TriggerPlan) -> None:
    """Copy one row of the table, without its constraints, and create an outbox beside it."""
    quote = opened.dialect.identifier_preparer.quote_identifier
    names = ", ".join(map(quote, wanted.columns))
    source = tables.quoted(opened.dialect, wanted.table)
    copy = tables.quoted(opened.dialect, probe.table)
    opened.run(f"CREATE TABLE {copy} AS SELECT {names} FROM {source} LIMIT 1")
    opened.run(f"ALTER TABLE {copy} ADD COLUMN {PROBE_KEY} VARCHAR(10) DEFAULT 'probe' NOT NULL")
    opened.run(f"ALTER TABLE {copy} ADD COLUMN {PROBE_COUNT} INTEGER DEFAULT 0 NOT NULL")
    if not opened.value(f"SELECT count(*) FROM {copy}"):
        opened.run(f"INSERT INTO {copy} ({PROBE_COUNT}) VALUES (0)")
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
