"""Triggers that record changes of a table in the outbox, for programs that cannot be changed.

A change of one of the given columns adds an event with all of them; a deleted row adds a delete.
The trigger runs after the row was changed, so it is locked, and the events of a document are in
commit order. The relay adds the version (`version` in its settings).
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from instep import errors, settings
from instep.sinks import connecting, target
from instep.sinks.target import TableName
from instep.sources import tables, trigger_statements
from instep.sources.connection import SourceConnection, source_errors, source_url
from instep.sources.trigger_statements import DOC_ID, TriggerPlan

PROBE_TABLE, PROBE_OUTBOX = "instep_probe", "instep_probe_outbox"
PROBE_KEY, PROBE_COUNT = "instep_key", "instep_count"  # columns of the probe's own
PROBES = 200
MYSQL = ("mysql", "mariadb")
NUMBER_CHARACTERS_MAX = 70  # DECIMAL has 65 digits
GEOMETRIES = [
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
]
LOCK_WAIT_S = 10  # for other transactions; meanwhile, new ones wait for the trigger's statement
# What ends the statements that replace triggers, if one of them fails.
UNDO = {"mysql": "UNLOCK TABLES", "mariadb": "UNLOCK TABLES"}
# The triggers of a table, with the text of what they run.
SQLITE_TRIGGERS = (
    "SELECT name, sql FROM sqlite_master"
    " WHERE type = 'trigger' AND tbl_name = :table COLLATE NOCASE"
)
MYSQL_TRIGGERS = (
    "SELECT trigger_name, action_statement FROM information_schema.triggers"
    " WHERE event_object_schema = :schema AND event_object_table = :table"
)
POSTGRES_TRIGGERS = (
    "SELECT t.tgname AS name, p.prosrc AS text,"
    " n.nspname AS schema, p.proname AS function,"
    " (SELECT count(*) FROM pg_trigger u WHERE u.tgfoid = t.tgfoid) AS uses"
    " FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n"
    " ON n.oid = p.pronamespace WHERE t.tgrelid = CAST(:table AS regclass) AND NOT t.tgisinternal"
)


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
        if not keys:
            raise errors.SettingsError(
                f"table {table!r} has no primary key, so its documents have no id",
                "add a primary key, or add the events in the application: instep.Outbox",
            )
        recorded = list(columns or [column for column in types if column not in keys])
        _check_columns(table, recorded, list(types), relay.version)
        if DOC_ID in recorded and keys != [DOC_ID]:
            raise _taken(table, DOC_ID, "document's id", "name the other columns: --columns A,B")
        wanted = TriggerPlan(
            opened.dialect,
            _in_schema(view, name),
            _in_schema(view, target.table_name(relay.outbox)),
            tuple(keys),
            tuple(recorded),
            texts=frozenset(one for one, type_ in types.items() if isinstance(type_, sa.String)),
            binaries=frozenset(one for one, type_ in types.items() if _is_binary(type_))
            | _without_text(opened, name),
            documents=frozenset(one for one, type_ in types.items() if isinstance(type_, sa.JSON)),
            instants=frozenset(one for one, type_ in types.items() if _is_instant(type_)),
        )
        _check_outbox(view, relay, wanted)
        wanted = msgspec.structs.replace(
            wanted,
            widens=_is_narrow(view, wanted, types),
            notes=_notes(view, name) if opened.dialect.name == "sqlite" else (),
        )
        return _existing(opened, wanted)


def _in_schema(view: sa.Inspector, name: TableName) -> TableName:
    """Return the name with its schema. A trigger of SQLite must not name the only one there is."""
    if view.dialect.name == "sqlite":
        return TableName(None, name.name)
    return TableName(name.schema or view.default_schema_name, name.name)


def _check_columns(table: str, columns: Sequence[str], known: Sequence[str], version: str) -> None:
    for column in columns:
        if column not in known:
            raise errors.SettingsError(
                f"table {table!r} has no column {column!r}{settings.nearest(column, known)}",
                f"its columns: {', '.join(known)}",
            )
    if version in columns:
        raise _taken(
            table,
            version,
            "version that the relay adds",
            "name the other columns (--columns A,B), or give the relay's version another name:"
            ' version = "outbox_id"',
        )


def _taken(table: str, column: str, field: str, remedy: str) -> errors.SettingsError:
    return errors.SettingsError(
        f"column {column!r} of table {table!r} has the name of the {field}, so it would take its"
        " place",
        remedy,
    )


def _is_binary(type_: Any) -> bool:
    return isinstance(type_, sa.types._Binary | mysql.BIT)


def _without_text(opened: sa.Connection, name: TableName) -> frozenset[str]:
    """Return the columns of which JSON_OBJECT would make broken text."""
    if opened.dialect.name not in MYSQL:
        return frozenset()
    types = ["vector"]
    if trigger_statements.is_mariadb(opened.dialect):  # MySQL makes GeoJSON
        types += GEOMETRIES
    query = sa.text(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table"
        " AND LOWER(data_type) IN :types"
    ).bindparams(sa.bindparam("types", expanding=True))
    found = opened.execute(query, {"schema": name.schema, "table": name.name, "types": types})
    return frozenset(found.scalars())


def _is_instant(type_: Any) -> bool:
    return isinstance(type_, mysql.TIMESTAMP)


def _check_outbox(view: sa.Inspector, relay: settings.Relay, wanted: TriggerPlan) -> None:
    """Refuse an outbox into which a trigger could not write every row."""
    outbox, names = wanted.outbox, relay.columns
    problem = None
    if (names.document, names.value) != ("document", "value"):
        problem = f"has the columns {names.document} and {names.value}"
    elif view.has_table(outbox.name, outbox.schema):
        for column in view.get_columns(outbox.name, outbox.schema):
            problem = problem or _column_problem(wanted.dialect, column, names.id)
    if problem is not None:
        raise errors.SettingsError(
            f"outbox {relay.outbox!r} {problem}, so a trigger that writes to it would fail in the"
            " application's transaction",
            "let triggers write to an outbox of their own, which instep relay init creates:"
            f' another relay with outbox = "{outbox.name}_triggers"',
        )


def _column_problem(dialect: sa.Dialect, column: Any, id_name: str) -> str | None:
    """Return why a trigger could not write to a column, or without it."""
    name, type_ = column["name"].lower(), column["type"]
    has_own = column.get("default") is not None or "identity" in column or "computed" in column
    if name not in (id_name.lower(), "document") and not column["nullable"] and not has_own:
        return f"has a column {name} without a default that must not be NULL"
    if name not in ("document", "value") or dialect.name == "sqlite":
        return None
    if dialect.name == "postgresql":
        fits = isinstance(type_, sa.LargeBinary if name == "value" else sa.String)
        fits = fits and getattr(type_, "length", None) is None
    else:
        fits = name == "document" or isinstance(type_, mysql.LONGBLOB | mysql.LONGTEXT | sa.JSON)
    return None if fits else f"has a column {name} of the type {type_}"


def _is_narrow(view: sa.Inspector, wanted: TriggerPlan, types: dict[str, Any]) -> bool:
    """Return whether the outbox exists and has less room for an id than the table's key needs."""
    outbox = wanted.outbox
    if wanted.dialect.name not in MYSQL or not view.has_table(outbox.name, outbox.schema):
        return False
    columns = {
        one["name"].lower(): one["type"] for one in view.get_columns(outbox.name, outbox.schema)
    }
    room = getattr(columns.get("document"), "length", None)
    widths = [_width(types[name], is_binary=name in wanted.binaries) for name in wanted.keys]
    needed = sum(width or math.inf for width in widths) + len(widths) - 1
    return room is not None and room < needed


def _width(type_: Any, *, is_binary: bool) -> int | None:
    """Return how many characters the text of a value has at most; None if it is not known."""
    if isinstance(type_, sa.String | sa.types._Binary) and type_.length is not None:
        return int(type_.length) * (2 if is_binary else 1)
    known = isinstance(type_, sa.Integer | sa.Numeric | sa.Date | sa.Time | sa.DateTime | mysql.BIT)
    return NUMBER_CHARACTERS_MAX if known else None


def _notes(view: sa.Inspector, name: TableName) -> tuple[str, ...]:
    """Return what triggers of SQLite cannot record."""
    unique = [one["column_names"] for one in view.get_unique_constraints(name.name)]
    unique += [
        [column or "…" for column in one["column_names"]]
        for one in view.get_indexes(name.name)
        if one["unique"]
    ]
    if not unique:
        return ()
    keys = ", ".join(sorted({"+".join(columns) for columns in unique}))
    return (
        "INSERT OR REPLACE and UPDATE OR REPLACE can delete another row by a unique key of"
        f" {name.name} ({keys}). SQLite then fires no trigger, so the delete is not recorded,"
        " unless the application's connections set PRAGMA recursive_triggers = ON",
    )


def _existing(opened: sa.Connection, wanted: TriggerPlan) -> TriggerPlan:
    """Return the plan with the table's triggers that write to this outbox, whatever their names."""
    insert = trigger_statements.insertion(wanted.dialect, wanted.outbox)
    match wanted.dialect.name:
        case "postgresql":
            return _existing_of_postgres(opened, wanted, insert)
        case "sqlite":
            rows = opened.execute(sa.text(SQLITE_TRIGGERS), {"table": wanted.table.name})
        case _:
            rows = opened.execute(
                sa.text(MYSQL_TRIGGERS),
                {"schema": wanted.table.schema, "table": wanted.table.name},
            )
    # In a trigger of MySQL, a name without a schema means a table beside the trigger's.
    inserts = [insert]
    if wanted.table.schema == wanted.outbox.schema:
        bare = TableName(None, wanted.outbox.name)
        inserts.append(trigger_statements.insertion(wanted.dialect, bare))
    return msgspec.structs.replace(
        wanted,
        replaced=tuple(
            name
            for name, text in rows
            if name.startswith(trigger_statements.PREFIX) and any(one in text for one in inserts)
        ),
    )


def _existing_of_postgres(opened: sa.Connection, wanted: TriggerPlan, insert: str) -> TriggerPlan:
    table = tables.quoted(wanted.dialect, wanted.table)
    rows = [
        row
        for row in opened.execute(sa.text(POSTGRES_TRIGGERS), {"table": table})
        if row.name.startswith(trigger_statements.PREFIX) and insert in row.text
    ]
    replaced = tuple(row.name for row in rows)
    uses = {TableName(row.schema, row.function): row.uses for row in rows}
    counts = Counter(TableName(row.schema, row.function) for row in rows)
    kept = trigger_statements.function_name(wanted)
    unused = tuple(name for name in uses if uses[name] == counts[name] and name != kept)
    return msgspec.structs.replace(wanted, replaced=replaced, unused=unused)


def create(relay: settings.Relay, wanted: TriggerPlan) -> None:
    """Create the triggers."""
    with SourceConnection(relay.source) as opened:
        _run(opened, wanted)


def _run(opened: SourceConnection, wanted: TriggerPlan) -> None:
    if opened.dialect.name in MYSQL:
        opened.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
    try:
        for statement in trigger_statements.statements(wanted):
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
        widens=False,
        replaced=(),
        unused=(),
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
        function = tables.quoted(opened.dialect, trigger_statements.function_name(probe))
        opened.run(f"DROP FUNCTION IF EXISTS {function}()")
