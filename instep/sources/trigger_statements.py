"""The statements that create the triggers of a table, for each kind of database.

A trigger fails in the application's transaction, so it must not depend on what a value is. Values
are compared by their bytes: not every type can be compared, and a collation may ignore a change.

A table may have triggers for several outboxes, and tables of the same name may be in several
schemas. So the names of triggers contain a digest of table and outbox. Those to replace are found
by what they do, not by their names: see `triggers.plan`.
"""

from __future__ import annotations

import hashlib

import msgspec
import sqlalchemy as sa

from instep.sinks.stored_values import chunks
from instep.sinks.target import TableName
from instep.sources import tables

DOC_ID = "doc_id"  # field of the document's id
KEY_SEPARATOR = "/"
PREFIX = "instep_"  # of the names of all triggers
NAME_BYTES_MAX = 63  # PostgreSQL cuts what is longer, and MySQL refuses more than 64
LONGEST_KIND = "truncate"
# PostgreSQL: what the text of a value depends on, and where names are looked up.
POSTGRES_SETTINGS = {
    "search_path": "pg_catalog, pg_temp",
    "datestyle": "'ISO, YMD'",
    "intervalstyle": "'postgres'",
    "timezone": "'UTC'",
    "bytea_output": "'hex'",
    "extra_float_digits": "1",
    "lc_monetary": "'C'",
}
MYSQL_DEPTH_MAX = 100  # of JSON
SQLITE_FIELDS = 20  # of one call: its functions take at least 100 values


class TriggerPlan(msgspec.Struct, frozen=True):
    """The table to watch: the columns of its key, and those whose changes are recorded."""

    dialect: sa.Dialect  # of the server: a URL of MySQL may lead to a MariaDB
    table: TableName
    outbox: TableName
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    texts: frozenset[str]  # columns of a type that has a collation
    binaries: frozenset[str]  # columns of bytes
    documents: frozenset[str]  # columns of JSON
    instants: frozenset[str]  # MySQL: columns of TIMESTAMP, whose text is in the session's zone
    widens: bool = False  # the outbox's column is too narrow for the longest key
    notes: tuple[str, ...] = ()  # what the triggers cannot record
    replaced: tuple[str, ...] = ()  # the table's triggers that write to this outbox
    unused: tuple[TableName, ...] = ()  # PostgreSQL: functions of only these triggers


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


def insertion(dialect: sa.Dialect, outbox: TableName) -> str:
    """Return the beginning of the statement by which a trigger adds to an outbox."""
    return f"INSERT INTO {tables.quoted(dialect, outbox)} ("


def function_name(wanted: TriggerPlan) -> TableName:
    """Return the name of PostgreSQL's function, which all triggers of the table call."""
    return TableName(wanted.outbox.schema, _base(wanted))


def is_mariadb(dialect: sa.Dialect) -> bool:
    return bool(getattr(dialect, "is_mariadb", False))


# --- names --------------------------------------------------------------------------------------


def _base(wanted: TriggerPlan) -> str:
    """Return how the names begin: readable, and different for each table and outbox."""
    identity = "\0".join(
        part or "" for name in (wanted.table, wanted.outbox) for part in (name.schema, name.name)
    )
    digest = hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()
    room = NAME_BYTES_MAX - len(f"{PREFIX}_{digest}_{LONGEST_KIND}")
    readable = wanted.table.name.encode()[:room].decode(errors="ignore")
    return f"{PREFIX}{readable}_{digest}"


def _trigger(wanted: TriggerPlan, kind: str) -> str:
    return f"{_base(wanted)}_{kind}"


def _drops(wanted: TriggerPlan, created: list[str], suffix: str = "") -> list[str]:
    """Return the statements that drop those to replace, and those of the same names."""
    names = dict.fromkeys((*wanted.replaced, *created))
    return [f"DROP TRIGGER IF EXISTS {_qualified(wanted, name)}{suffix}" for name in names]


def _qualified(wanted: TriggerPlan, name: str) -> str:
    """Return a trigger's name, quoted. On PostgreSQL it belongs to its table."""
    if wanted.dialect.name == "postgresql":
        return wanted.dialect.identifier_preparer.quote_identifier(name)
    return tables.quoted(wanted.dialect, TableName(wanted.table.schema, name))


# --- databases ----------------------------------------------------------------------------------


def _postgres(dialect: sa.Dialect, wanted: TriggerPlan) -> list[str]:
    quote = dialect.identifier_preparer.quote_identifier
    table, insert = tables.quoted(dialect, wanted.table), insertion(dialect, wanted.outbox)
    function = tables.quoted(dialect, function_name(wanted))
    row_trigger, truncate_trigger = _trigger(wanted, "row"), _trigger(wanted, "truncate")

    def key(row: str) -> str:
        parts = [f"{row}.{quote(name)}::text" for name in wanted.keys]
        return f" || '{KEY_SEPARATOR}' || ".join(parts)

    # A function takes 100 values, a row has up to 1,600 columns.
    fields = [f"{key('NEW')} AS doc_id"]
    fields += [f"NEW.{quote(name)} AS {quote(name)}" for name in wanted.columns if name != DOC_ID]
    value = f"(SELECT row_to_json(instep_row) FROM (SELECT {', '.join(fields)}) instep_row)"
    fixed = "".join(f"SET {name} = {text}\n" for name, text in POSTGRES_SETTINGS.items())
    new, old = (
        ", ".join(f"{row}.{quote(name)}" for name in wanted.columns) for row in ("NEW", "OLD")
    )
    moved = f'({key("OLD")}) COLLATE "C" <> ({key("NEW")})'
    # The operator *<> compares the bytes of two records: some types have no equality.
    changed = f"ROW({new})::record *<> ROW({old})::record"
    return [
        "BEGIN",
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql\n"
        f"SECURITY DEFINER\n{fixed}AS $instep$\n"
        "BEGIN\n"
        "    IF TG_OP = 'TRUNCATE' THEN\n"
        f"        {insert}document) SELECT {key('gone')} FROM {table} gone;\n"
        "        RETURN NULL;\n"
        "    END IF;\n"
        f"    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND {moved}) THEN\n"
        f"        {insert}document) VALUES ({key('OLD')});\n"
        "    END IF;\n"
        f"    IF TG_OP = 'INSERT' OR (TG_OP = 'UPDATE' AND ({moved}\n"
        f"            OR {changed})) THEN\n"
        f"        {insert}document, value)\n"
        f"        VALUES ({key('NEW')}, convert_to({value}::text, 'UTF8'));\n"
        "    END IF;\n"
        "    RETURN NULL;\n"
        "END $instep$",
        *_drops(wanted, [row_trigger, truncate_trigger], f" ON {table}"),
        *(f"DROP FUNCTION {tables.quoted(dialect, name)}()" for name in wanted.unused),
        f"CREATE TRIGGER {quote(row_trigger)} AFTER INSERT OR UPDATE OR DELETE ON {table}"
        f" FOR EACH ROW EXECUTE FUNCTION {function}()",
        f"CREATE TRIGGER {quote(truncate_trigger)} BEFORE TRUNCATE ON {table}"
        f" FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
        "COMMIT",
    ]


def _sqlite(dialect: sa.Dialect, wanted: TriggerPlan) -> list[str]:
    quote = dialect.identifier_preparer.quote_identifier
    insert = insertion(dialect, wanted.outbox)

    def key(row: str) -> str:
        # A key of SQLite may have NULL. The relay keeps a row without an id as a dead row.
        parts = [
            f"COALESCE(CAST({_without_bytes(row, quote(name))} AS TEXT), '')"
            for name in wanted.keys
        ]
        return f" || '{KEY_SEPARATOR}' || ".join(parts)

    value = f"CAST({_sqlite_object(_json_fields(dialect, wanted, key('NEW')))} AS BLOB)"
    changed = " OR ".join(
        f"NEW.{quote(name)} COLLATE BINARY IS NOT OLD.{quote(name)}" for name in wanted.columns
    )
    moved = f"({key('OLD')}) COLLATE BINARY <> {key('NEW')}"
    added = f"{insert}document, value) VALUES ({key('NEW')}, {value});"
    removed = f"{insert}document) VALUES ({key('OLD')});"
    table = tables.quoted(dialect, wanted.table)
    bodies = {
        "insert": f"AFTER INSERT ON {table} BEGIN {added} END",
        "move": f"AFTER UPDATE ON {table} WHEN {moved} BEGIN {removed} {added} END",
        "update": f"AFTER UPDATE ON {table} WHEN NOT ({moved}) AND ({changed}) BEGIN {added} END",
        "delete": f"AFTER DELETE ON {table} BEGIN {removed} END",
    }
    return ["BEGIN IMMEDIATE", *_dropped_and_created(wanted, bodies), "COMMIT"]


def _sqlite_object(fields: list[str]) -> str:
    """Return an expression for a JSON object, made of several, as a function takes few values.

    No value is an object or a list, so no braces but an object's own are trimmed.
    """
    parts = [f"json_object({', '.join(chunk)})" for chunk in chunks(fields, SQLITE_FIELDS)]
    if len(parts) == 1:
        return parts[0]
    first, *between, last = parts
    texts = [f"rtrim({first}, '}}')"]
    texts += [f"rtrim(ltrim({part}, '{{'), '}}')" for part in between]
    texts.append(f"ltrim({last}, '{{')")
    return " || ',' || ".join(texts)


def _without_bytes(row: str, column: str) -> str:
    """Return an expression of SQLite, where any column may hold bytes, which JSON cannot."""
    value = f"{row}.{column}"
    return f"CASE typeof({value}) WHEN 'blob' THEN hex({value}) ELSE {value} END"


def _mysql(dialect: sa.Dialect, wanted: TriggerPlan) -> list[str]:
    quote = dialect.identifier_preparer.quote_identifier
    insert = insertion(dialect, wanted.outbox)

    def value_of(row: str, name: str) -> str:
        """Return an expression that can be compared by its bytes."""
        value = f"{row}.{quote(name)}"
        if name in wanted.instants:
            return f"UNIX_TIMESTAMP({value})"
        return f"CAST({value} AS BINARY)" if name in wanted.texts else value

    def key(row: str) -> str:
        parts = [_mysql_key_part(wanted, name, f"{row}.{quote(name)}") for name in wanted.keys]
        return parts[0] if len(parts) == 1 else f"CONCAT_WS('{KEY_SEPARATOR}', {', '.join(parts)})"

    fields = ", ".join(_json_fields(dialect, wanted, key("NEW")))
    value = f"CONVERT(JSON_OBJECT({fields}) USING utf8mb4)"
    same = " AND ".join(
        f"{value_of('NEW', name)} <=> {value_of('OLD', name)}" for name in wanted.columns
    )
    moved = f"CAST({key('OLD')} AS BINARY) <> CAST({key('NEW')} AS BINARY)"
    added = f"{insert}document, value) VALUES ({key('NEW')}, {value});"
    removed = f"{insert}document) VALUES ({key('OLD')});"
    table = tables.quoted(dialect, wanted.table)
    bodies = {
        "insert": f"AFTER INSERT ON {table} FOR EACH ROW BEGIN {added} END",
        "update": f"AFTER UPDATE ON {table} FOR EACH ROW BEGIN IF {moved} THEN {removed}"
        f" END IF; IF {moved} OR NOT ({same}) THEN {added} END IF; END",
        "delete": f"AFTER DELETE ON {table} FOR EACH ROW BEGIN {removed} END",
    }
    outbox = tables.quoted(dialect, wanted.outbox)
    widened = [f"ALTER TABLE {outbox} MODIFY document {tables.MYSQL_DOCUMENT}"]
    widened = widened if wanted.widens else []
    names = {_trigger(wanted, kind) for kind in bodies}
    if is_mariadb(dialect) and names.issuperset(wanted.replaced):
        return widened + [
            f"CREATE OR REPLACE TRIGGER {_qualified(wanted, _trigger(wanted, kind))} {body}"
            for kind, body in bodies.items()
        ]
    found = _dropped_and_created(wanted, bodies)
    if wanted.replaced:
        found = [f"LOCK TABLES {table} WRITE", *found, "UNLOCK TABLES"]
    return widened + found


def _mysql_key_part(wanted: TriggerPlan, name: str, value: str) -> str:
    if name in wanted.binaries:
        return f"HEX({value})"
    if name in wanted.instants:
        return _mysql_instant(f"UNIX_TIMESTAMP({value})")
    return f"CAST({value} AS CHAR CHARACTER SET utf8mb4)"


def _mysql_document(value: str) -> str:
    """Return an expression for JSON; as text if another level would be too deep for MySQL."""
    text = f"CAST(JSON_QUOTE(CAST({value} AS CHAR CHARACTER SET utf8mb4)) AS JSON)"
    return f"IF(JSON_DEPTH({value}) < {MYSQL_DEPTH_MAX}, {value}, {text})"


def _mysql_instant(seconds: str) -> str:
    """Return an expression for a TIMESTAMP as text in UTC, whatever the session's time zone."""
    utc = f"TIMESTAMP'1970-01-01 00:00:00' + INTERVAL {seconds} SECOND"
    return f"CONCAT(REPLACE(CAST({utc} AS CHAR CHARACTER SET utf8mb4), ' ', 'T'), '+00:00')"


def _dropped_and_created(wanted: TriggerPlan, bodies: dict[str, str]) -> list[str]:
    """Return the statements that replace the triggers of the given kinds."""
    created = {_trigger(wanted, kind): body for kind, body in bodies.items()}
    return [
        *_drops(wanted, list(created)),
        *(f"CREATE TRIGGER {_qualified(wanted, name)} {body}" for name, body in created.items()),
    ]


def _json_fields(dialect: sa.Dialect, wanted: TriggerPlan, key: str) -> list[str]:
    """Return names and values for the database's function that makes a JSON object."""
    quote = dialect.identifier_preparer.quote_identifier
    escape = "\\" if dialect.name == "sqlite" else "\\\\"
    fields = [f"'{DOC_ID}', {key}"]
    for name in wanted.columns:
        if name != DOC_ID:
            literal = name.replace("\\", escape).replace("'", "''")
            fields.append(f"'{literal}', {_json_value(wanted, name, quote(name))}")
    return fields


def _json_value(wanted: TriggerPlan, name: str, quoted: str) -> str:
    """Return a new value as JSON takes it: bytes as hexadecimal text."""
    if wanted.dialect.name == "sqlite":
        return _without_bytes("NEW", quoted)
    if name in wanted.binaries:
        return f"HEX(NEW.{quoted})"
    if name in wanted.documents and wanted.dialect.name != "postgresql":
        return _mysql_document(f"NEW.{quoted}")
    if name in wanted.instants:  # 0 is the date of zeros, which is no time
        return _mysql_instant(f"NULLIF(UNIX_TIMESTAMP(NEW.{quoted}), 0)")
    return f"NEW.{quoted}"
