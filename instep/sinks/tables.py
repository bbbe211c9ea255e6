"""instep's own tables in the target database, and the statements that create them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import TypeEngine

# collations that distinguish ids by case, accents and trailing spaces
EXACT_COLLATIONS = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}


def name_type(length: int) -> TypeEngine[str]:
    """Return the type of text that is compared byte by byte."""
    text: TypeEngine[str] = sa.String(length)
    for dialect, collation in EXACT_COLLATIONS.items():
        text = text.with_variant(
            mysql.VARCHAR(length, charset="utf8mb4", collation=collation), dialect
        )
    return text


def topic_type() -> TypeEngine[str]:
    """Return the type of a topic's name: ASCII, which takes little of a key's maximum length."""
    text: TypeEngine[str] = sa.String(249)
    return text.with_variant(
        mysql.VARCHAR(249, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def long_text() -> TypeEngine[str]:
    """Return the type of text of any length, including emoji."""
    return sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")


def time_type() -> TypeEngine[object]:
    """Return the type of a time to the microsecond."""
    kind: TypeEngine[Any] = sa.DateTime(timezone=True)
    return kind.with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def bytes_type() -> TypeEngine[bytes]:
    """Return the type of bytes of any length."""
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


KEY_PREFIX_BYTES = 64  # of a record's key, in an index of MySQL and MariaDB
metadata = sa.MetaData()
TRANSACTIONAL: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}


def _partition() -> list[sa.Column[object]]:
    """Return the columns for pipeline, topic and partition: part of the key of most tables."""
    return [
        sa.Column("pipeline", name_type(100), primary_key=True),
        sa.Column("topic", topic_type(), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    ]


def _offset() -> sa.Column[object]:
    return sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False)


def _quarantined_record() -> list[sa.Column[Any]]:
    """Return the columns of a record in quarantine, with the reason and the time."""
    return [
        sa.Column("timestamp_ms", sa.BigInteger),
        sa.Column("key", bytes_type()),
        sa.Column("value", bytes_type()),
        sa.Column("headers", bytes_type()),
        sa.Column("reason", name_type(64), nullable=False),
        sa.Column("detail", long_text()),
        sa.Column("at", time_type(), nullable=False),
    ]


LEDGER = sa.Table(
    "instep_ledger",
    metadata,
    *_partition(),
    sa.Column("next_offset", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("cluster_id", name_type(64), nullable=False),
    sa.Column("topic_id", name_type(64), nullable=False),
    sa.Column("last_digest", name_type(64)),
    sa.Column("committed_at", time_type()),
    # all records from this offset on were applied: `start`, or where the ledger was moved to
    sa.Column("since_offset", sa.BigInteger),
    sa.Column("totals", name_type(255)),  # JSON; see `Position.totals`
    **TRANSACTIONAL,
)

# Ranges of offsets that were applied before the ledger was moved
APPLIED = sa.Table(
    "instep_applied",
    metadata,
    *_partition(),
    sa.Column("start_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),
    **TRANSACTIONAL,
)

# One row per pipeline: its latest run. Never written together with the data; see `runs.py`.
RUNS = sa.Table(
    "instep_runs",
    metadata,
    sa.Column("pipeline", name_type(100), primary_key=True),
    sa.Column("run", name_type(36), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("host", name_type(255), nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("started_at", time_type(), nullable=False),
    sa.Column("heartbeat_at", time_type(), nullable=False),
    sa.Column("state", name_type(16), nullable=False),
    sa.Column("state_at", time_type(), nullable=False),
    sa.Column("code", name_type(64)),
    sa.Column("detail", long_text()),
    sa.Column("overdue", long_text()),  # JSON; see `OverdueSummary`
    # over the last seconds; null without events
    sa.Column("applied_per_s", sa.Double),
    sa.Column("freshness_p50_s", sa.Double),
    sa.Column("freshness_p99_s", sa.Double),
    sa.Column("trend", long_text()),  # JSON: a list of `MinuteSample`, of the last hour
    **TRANSACTIONAL,
)

DEAD_LETTERS = sa.Table(
    "instep_dead_letters",
    metadata,
    *_partition(),
    _offset(),
    *_quarantined_record(),
    sa.Index("instep_dead_letters_reason", "pipeline", "reason", "at"),
    # by document; a key may be longer than an ordered index takes
    sa.Index(
        "instep_dead_letters_key",
        "key",
        postgresql_using="hash",
        mysql_length=KEY_PREFIX_BYTES,
        mariadb_length=KEY_PREFIX_BYTES,
    ),
    **TRANSACTIONAL,
)

PARKED = sa.Table(
    "instep_parked",
    metadata,
    *_partition(),
    _offset(),
    sa.Column("document", name_type(255), nullable=False),
    *_quarantined_record(),
    # how often a running pipeline has redriven the document, and when the last time
    sa.Column("attempts", sa.Integer),
    sa.Column("tried_at", time_type()),
    sa.Index("instep_parked_document", "pipeline", "document"),
    # for the retries, which run a query every second
    sa.Index("instep_parked_reason", "pipeline", "reason", "at"),
    **TRANSACTIONAL,
)

# One key serves both queries, by document and by position: another index would cost as much as
# the row. The columns that differ most come first, because comparing long equal texts is most of
# that cost.
HISTORY = sa.Table(
    "instep_history",
    metadata,
    sa.Column("document", name_type(255), primary_key=True),
    _offset(),
    *reversed(_partition()),
    sa.Column("status", name_type(255)),
    sa.Column("order_value", sa.BigInteger),
    sa.Column("event_time", time_type()),
    sa.Column("verdict", name_type(16), nullable=False),
    sa.Column("committed_at", time_type(), nullable=False),
    # for an event that was applied after the flow had read it: the ledger's next offset then
    sa.Column("ledger_offset", sa.BigInteger),
    **TRANSACTIONAL,
)

DECISIONS = sa.Table(
    "instep_decisions",
    metadata,
    *_partition(),
    _offset(),
    sa.Column("at", time_type(), primary_key=True),
    sa.Column("document", name_type(255)),
    sa.Column("action", name_type(16), nullable=False),
    sa.Column("outcome", name_type(64), nullable=False),
    sa.Column("reason", long_text()),
    sa.Column("actor", name_type(100), nullable=False),
    sa.Index("instep_decisions_document", "pipeline", "document"),
    sa.Index("instep_decisions_at", "pipeline", "at"),
    **TRANSACTIONAL,
)

DELETED = sa.Table(
    "instep_deleted",
    metadata,
    sa.Column("pipeline", name_type(100), primary_key=True),
    sa.Column("document", name_type(255), primary_key=True),
    sa.Column("order_value", sa.BigInteger, nullable=False),
    **TRANSACTIONAL,
)

# One row per load of existing documents (`instep load`). Its next row is in the ledger, under the
# topic name that `loads.topic_of` returns.
LOADS = sa.Table(
    "instep_loads",
    metadata,
    sa.Column("pipeline", name_type(100), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("name", name_type(255), nullable=False),
    sa.Column("source", long_text(), nullable=False),
    sa.Column("digest", name_type(64), nullable=False),
    sa.Column("state", name_type(16), nullable=False),
    sa.Column("mark", long_text()),  # JSON; see `source_query.RowMark`
    sa.Column("started_at", time_type(), nullable=False),
    sa.Column("ended_at", time_type()),
    sa.Column("actor", name_type(100), nullable=False),
    **TRANSACTIONAL,
)


# The tables of Spark sinks. A pipeline does not need them: a sink creates them when it starts.
sink_metadata = sa.MetaData()

# One row per sink: what it has applied, and the epoch of the run that writes. Locked by every
# batch.
SINKS = sa.Table(
    "instep_sinks",
    sink_metadata,
    sa.Column("sink", name_type(100), primary_key=True),
    sa.Column("query_id", name_type(64)),  # null: no batch was applied; *: adopted
    sa.Column("batch_id", sa.BigInteger),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("next_row", sa.BigInteger, nullable=False),  # the number of rows so far
    sa.Column("committed_at", time_type()),
    **TRANSACTIONAL,
)

# How each table of a sink is written: what quarantine needs to apply a row again
SINK_TABLES = sa.Table(
    "instep_sink_tables",
    sink_metadata,
    sa.Column("pipeline", name_type(100), primary_key=True),  # its name in the journal
    sa.Column("sink", name_type(100), nullable=False),
    sa.Column("definition", long_text(), nullable=False),  # JSON; see `spark_sink/quarantine.py`
    **TRANSACTIONAL,
)

# The runs of a query that have written, and the epoch of each
SINK_RUNS = sa.Table(
    "instep_sink_runs",
    sink_metadata,
    sa.Column("sink", name_type(100), primary_key=True),
    sa.Column("run_id", name_type(64), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    **TRANSACTIONAL,
)

# The latest batches of a sink, so that a batch that comes again is recognised
BATCHES = sa.Table(
    "instep_batches",
    sink_metadata,
    sa.Column("sink", name_type(100), primary_key=True),
    sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("offsets", long_text()),  # as Spark planned them; null if they are not known
    sa.Column("digest", name_type(64), nullable=False),
    **TRANSACTIONAL,
)

# Rows on their way from a task to the driver, if they are too many for a commit message
STAGED_ROWS = sa.Table(
    "instep_staged_rows",
    sink_metadata,
    sa.Column("token", name_type(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sink", name_type(100), nullable=False),
    sa.Column("run_id", name_type(64), nullable=False),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    sa.Column("data", bytes_type(), nullable=False),
    **TRANSACTIONAL,
)


# What KPIs keep beside their rows; only in databases that have a KPI.
kpi_metadata = sa.MetaData()

# One row per KPI: what its rows were counted with, and the time of each partition
KPIS = sa.Table(
    "instep_kpis",
    kpi_metadata,
    sa.Column("kpi", name_type(100), primary_key=True),
    sa.Column("definition", long_text(), nullable=False),  # JSON
    sa.Column("clocks", long_text(), nullable=False),  # JSON: times by partition, in milliseconds
    # where the log began that was counted again; null: the log explains all rows
    sa.Column("known_from_ms", sa.BigInteger),
    **TRANSACTIONAL,
)

# The events of documents that another event can still reach
KPI_DOCUMENTS = sa.Table(
    "instep_kpi_documents",
    kpi_metadata,
    sa.Column("kpi", name_type(100), primary_key=True),
    sa.Column("document", name_type(255), primary_key=True),
    sa.Column("partition", sa.Integer, nullable=False),
    sa.Column("latest_ms", sa.BigInteger, nullable=False),
    sa.Column("events", long_text(), nullable=False),  # JSON
    sa.Index("instep_kpi_documents_latest", "kpi", "partition", "latest_ms"),
    **TRANSACTIONAL,
)

# What each KPI row is computed from
KPI_BUCKETS = sa.Table(
    "instep_kpi_buckets",
    kpi_metadata,
    sa.Column("kpi", name_type(100), primary_key=True),
    sa.Column("minute_ms", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", name_type(16), primary_key=True),
    sa.Column("name", name_type(255), primary_key=True),
    sa.Column("buckets", long_text(), nullable=False),  # JSON: counts by bucket
    **TRANSACTIONAL,
)


# Columns that earlier versions called something else.
RENAMED = {DECISIONS.name: {"deed": "action", "why": "reason", "who": "actor"}}


def create_statements(dialect: sa.Dialect, existing: dict[str, set[str]]) -> list[str]:
    """Return the statements that create instep's missing tables and columns.

    Columns of an earlier version are renamed.
    """
    statements: list[str] = []
    for table in metadata.sorted_tables:
        if table.name not in existing:
            statements += create(table, dialect)
            continue
        columns = set(existing[table.name])
        for old, new in RENAMED.get(table.name, {}).items():
            if old in columns and new not in columns:
                statements.append(f"ALTER TABLE {table.name} RENAME COLUMN {old} TO {new}")
                columns.add(new)
        statements += [
            alter_statement(dialect, column) for column in missing_columns(table, columns)
        ]
    return statements


def index_statements(dialect: sa.Dialect, existing: dict[str, set[str]]) -> list[str]:
    """Return the statements that create missing indexes.

    `existing` has the names of the indexes of each existing table.
    """
    missing = [
        index
        for name in sorted(existing)
        for index in sorted(metadata.tables[name].indexes, key=lambda index: str(index.name))
        if index.name not in existing[name]
    ]
    return [_tidy(str(CreateIndex(index).compile(dialect=dialect))) for index in missing]


def missing_columns(table: sa.Table, columns: set[str]) -> list[sa.Column[Any]]:
    """Return the columns that a table, created by an earlier release, does not have."""
    return [column for column in table.columns if column.name not in columns]


def alter_statement(dialect: sa.Dialect, column: sa.Column[Any]) -> str:
    """Return the statement that adds a column to its table."""
    compiler = dialect.ddl_compiler(dialect, CreateTable(column.table))
    table = dialect.identifier_preparer.format_table(column.table)
    return undoubled(
        f"ALTER TABLE {table} ADD COLUMN {compiler.get_column_specification(column)}", dialect
    )


def create(table: sa.Table, dialect: sa.Dialect) -> list[str]:
    """Return the statements that create a table with its indexes."""
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    parts: list[CreateTable | CreateIndex] = [
        CreateTable(table),
        *(CreateIndex(index) for index in indexes),
    ]
    return [undoubled(_tidy(str(part.compile(dialect=dialect))), dialect) for part in parts]


def undoubled(statement: str, dialect: sa.Dialect) -> str:
    """Return a statement as the database takes it.

    SQLAlchemy doubles percent signs in names for drivers that use them for placeholders.
    """
    if dialect.paramstyle in ("format", "pyformat"):
        return statement.replace("%%", "%")
    return statement


def _tidy(statement: str) -> str:
    return "\n".join(
        line.rstrip()
        for line in statement.strip().replace("\t", "    ").splitlines()
        if line.strip()
    )
