"""Facts about the source of a relay: how durable its commits are, and who gives out ids."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from instep import errors, settings
from instep.sinks import connecting, facts, target
from instep.sinks.facts import Facts
from instep.sinks.target import TableName
from instep.sources import outbox_shape, tables
from instep.sources.connection import source_errors, source_url

# The sequence of an identity column, or the one that its default calls.
SEQUENCE = (
    "SELECT CAST(CAST(s.seqrelid AS regclass) AS text), s.seqcache FROM pg_sequence s"
    " WHERE s.seqrelid = CAST(pg_get_serial_sequence(:table, :column) AS regclass)"
    " OR s.seqrelid IN (SELECT x.refobjid FROM pg_attrdef d"
    " JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum"
    " JOIN pg_depend x ON x.classid = CAST('pg_attrdef' AS regclass) AND x.objid = d.oid"
    " AND x.refclassid = CAST('pg_class' AS regclass)"
    " WHERE d.adrelid = CAST(:table AS regclass) AND a.attname = :column)"
)


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about a relay's source. Unknown facts are None or empty."""

    database: Facts
    missing: list[str] = []  # what `instep relay init` has to create
    id_column: str = "id"
    is_id_generated: bool | None = None  # by the database, and never twice
    sequence: str | None = None  # PostgreSQL: the sequence that gives out the ids
    sequence_cache: int | None = None
    writable_nodes: int | None = None  # of a Galera cluster or a replication group
    source_id: str | None = None
    dead_rows: int | None = None


def read(name: str, relay: settings.Relay) -> SourceFacts:
    """Read the facts about a relay's source. If it is unreachable, they say so."""
    blank = Facts(kind="", host=None)
    try:
        url = source_url(relay.source)
        blank = facts.blank_facts(url)
        with source_errors(), connecting.connection(url) as opened:
            return _read(opened, blank, name, relay)
    except errors.InstepError as error:
        return SourceFacts(database=msgspec.structs.replace(blank, unreachable=str(error)))


def _read(opened: sa.Connection, blank: Facts, name: str, relay: settings.Relay) -> SourceFacts:
    outbox = target.table_name(relay.outbox)
    lease, dead = tables.own_tables(relay)
    wanted = [outbox, *(TableName(table.schema, table.name) for table in (lease, dead))]
    view = sa.inspect(opened)
    existing = [table for table in wanted if view.has_table(table.name, schema=table.schema)]
    missing = [f"table {table}" for table in wanted if table not in existing]
    # A partition of PostgreSQL's outbox may differ from the whole.
    partitions = [
        part
        for part in tables.partition_names(outbox)
        if opened.dialect.name == "postgresql" and view.has_table(part.name, schema=part.schema)
    ]
    database = facts.read_server(opened, blank, [*existing, *partitions])
    source_id = dead_rows = None
    if wanted[1] in existing:
        source_id = opened.execute(
            sa.select(lease.c.source_id).where(lease.c.relay == name)
        ).scalar()
        if source_id is None:
            missing.append(f"the row of relay {name} in {wanted[1]}")
    if wanted[2] in existing:
        query = sa.select(sa.func.count()).select_from(dead).where(dead.c.relay == name)
        dead_rows = int(opened.execute(query).scalar_one())
    found = SourceFacts(
        database=database,
        missing=missing,
        id_column=relay.columns.id,
        source_id=source_id,
        dead_rows=dead_rows,
    )
    has_outbox = outbox in existing
    match database.kind:
        case "sqlite":
            return _with_sqlite(opened, found, outbox)
        case "postgresql":
            return _with_sequence(opened, found, outbox) if has_outbox else found
        case _:
            return _with_mysql(opened, found, outbox)


def _with_sqlite(opened: sa.Connection, found: SourceFacts, outbox: TableName) -> SourceFacts:
    values = {
        name: str(opened.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("journal_mode", "synchronous")
    }
    created = opened.execute(
        sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :table"),
        {"table": outbox.name},
    ).scalar()
    return msgspec.structs.replace(
        found,
        database=msgspec.structs.replace(found.database, settings=values),
        is_id_generated=None
        if created is None
        else bool(outbox_shape.AUTOINCREMENT.search(created)),
    )


def _with_sequence(opened: sa.Connection, found: SourceFacts, outbox: TableName) -> SourceFacts:
    quoted = tables.quoted(opened.dialect, outbox)
    row = opened.execute(
        sa.text(SEQUENCE), {"table": quoted, "column": found.id_column}
    ).one_or_none()
    if row is None:
        return msgspec.structs.replace(found, is_id_generated=False)
    return msgspec.structs.replace(
        found, is_id_generated=True, sequence=str(row[0]), sequence_cache=int(row[1])
    )


def _with_mysql(opened: sa.Connection, found: SourceFacts, outbox: TableName) -> SourceFacts:
    extra = opened.execute(
        sa.text(
            "SELECT extra FROM information_schema.columns"
            " WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table"
            " AND column_name = :column"
        ),
        {"schema": outbox.schema, "table": outbox.name, "column": found.id_column},
    ).scalar()
    return msgspec.structs.replace(
        found,
        is_id_generated=None if extra is None else "auto_increment" in str(extra).lower(),
        writable_nodes=_writable_nodes(opened, found.database),
    )


def _writable_nodes(opened: sa.Connection, database: Facts) -> int | None:
    """Return how many nodes accept writes: 1, unless the server belongs to a cluster."""
    if (database.settings or {}).get("wsrep_on", "OFF").upper() in ("ON", "1"):
        size = opened.execute(sa.text("SHOW STATUS LIKE 'wsrep_cluster_size'")).one_or_none()
        return int(size[1]) if size else None
    if database.kind == "mariadb":
        return 1
    try:
        primaries = opened.execute(
            sa.text(
                "SELECT count(*) FROM performance_schema.replication_group_members"
                " WHERE member_state = 'ONLINE' AND member_role = 'PRIMARY'"
            )
        ).scalar_one()
    except sa.exc.DBAPIError:
        return None  # the user may not read it
    return max(1, int(primaries))
