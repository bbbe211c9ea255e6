"""The scenarios of one database: their settings, their tables, and what is read back from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from instep.sinks import connecting, tables, target
from tests.support import model
from tests.support.databases import run_sql

COLUMNS = {**model.COLUMNS, "uid": "uid"}
BATCH_ROWS = 2_000
# the statement for a trigger that adds one row to the audit table
ROW_TRIGGERS = {
    "sqlite": "CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {insert}; END",
    "postgres": (
        "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
    ),
    "mariadb": "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {insert}",
    "mysql": "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {insert}",
}
FUNCTION = (
    "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
    " 'BEGIN {insert}; RETURN NULL; END'"
)


@dataclass(frozen=True)
class FinalState:
    """What a database holds of one scenario at the end of the campaign."""

    rows: dict[str, dict[str, Any]]
    history: list[tuple[int, int, str, str]]  # partition, offset, document, verdict
    dead: list[tuple[int, int, str]]  # partition, offset, reason
    parked: list[tuple[int, int, str, str]]  # partition, offset, document, reason
    # document and uid of every write, in order; a delete has no uid
    audit: list[tuple[str, str | None]]
    rewinds: int = 0


@dataclass(frozen=True)
class Scenario:
    """One pipeline into one table.

    A constrained table refuses rows, and a trigger records every write of a row.
    """

    database: str
    url: str
    topic: str
    ordered: bool
    constrained: bool
    guarantee: str

    @property
    def name(self) -> str:
        order = "ordered" if self.ordered else "unordered"
        table = "constrained" if self.constrained else "plain"
        return f"{order}_{table}"

    @property
    def table(self) -> str:
        return f"document_{self.name}"

    @property
    def audit_table(self) -> str:
        return f"audit_{self.name}"

    def settings(self) -> dict[str, Any]:
        """Return this pipeline's part of the settings file."""
        event = {"document": "doc_id", "status": "status"}
        if self.ordered:
            event["order"] = "version"
        return {
            "topic": self.topic,
            "target": self.url,
            "table": self.table,
            "key": "doc_no",
            "batch_rows_max": BATCH_ROWS,
            "guarantee": self.guarantee,
            "event": event,
            "columns": COLUMNS,
        }

    def make_tables(self) -> None:
        """Create the target table; if it is constrained, also its audit table and triggers."""
        metadata = sa.MetaData()
        engine: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
        checks: tuple[sa.CheckConstraint, ...] = (
            sa.CheckConstraint(f"pages <> {model.UNLUCKY_PAGES}"),
            sa.CheckConstraint(f"print_status <> 'QUEUED' OR pages <= {model.QUEUED_PAGES_MAX}"),
        )
        sa.Table(
            self.table,
            metadata,
            sa.Column("doc_no", tables.name_type(40), primary_key=True),
            sa.Column("print_status", tables.name_type(40)),
            sa.Column("print_version", sa.BigInteger),
            sa.Column("pages", sa.Integer),
            sa.Column("place", tables.name_type(model.PLACE_CHARACTERS)),
            sa.Column("note", tables.long_text()),
            sa.Column("slot", sa.Integer, unique=self.constrained),
            sa.Column("uid", tables.name_type(40)),
            *(checks if self.constrained else ()),
            **engine,
        )
        if self.constrained:
            sa.Table(
                self.audit_table,
                metadata,
                sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
                sa.Column("document", tables.name_type(40), nullable=False),
                sa.Column("uid", tables.name_type(40)),
                **engine,
            )
        with connecting.connection(target.database_url(self.url), create=True) as opened:
            metadata.create_all(opened)
            opened.commit()
        if self.constrained:
            run_sql(self.url, *self._triggers())

    def _triggers(self) -> list[str]:
        statements = []
        for event, row, uid in (
            ("INSERT", "NEW", "NEW.uid"),
            ("UPDATE", "NEW", "NEW.uid"),
            ("DELETE", "OLD", "NULL"),
        ):
            insert = f"INSERT INTO {self.audit_table} (document, uid) VALUES ({row}.doc_no, {uid})"
            parts = {
                "name": f"{self.audit_table}_{event.lower()}",
                "event": event,
                "table": self.table,
                "insert": insert,
            }
            if self.database == "postgres":
                statements.append(FUNCTION.format(**parts))
            statements.append(ROW_TRIGGERS[self.database].format(**parts))
        return statements

    def positions(self) -> dict[int, int]:
        """Return the next offset of every partition."""
        return dict(self._own(f"{self._quoted('partition')}, next_offset", "instep_ledger"))

    def read(self, rewinds: int) -> FinalState:
        """Read everything that the judgement needs."""
        columns = ", ".join(COLUMNS)
        rows = run_sql(self.url, f"SELECT doc_no, {columns} FROM {self.table}")
        place = f"{self._quoted('partition')}, {self._quoted('offset')}"
        return FinalState(
            rows={row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in rows},
            history=self._own(f"{place}, document, verdict", "instep_history"),
            dead=self._own(f"{place}, reason", "instep_dead_letters"),
            parked=self._own(f"{place}, document, reason", "instep_parked"),
            audit=run_sql(self.url, f"SELECT document, uid FROM {self.audit_table} ORDER BY seq")
            if self.constrained
            else [],
            rewinds=rewinds,
        )

    def decisions(self) -> list[Any]:
        """Return the rewinds, to help explain a difference."""
        place = f"{self._quoted('partition')}, {self._quoted('offset')}, {self._quoted('at')}"
        return self._own(f"{place}, action, outcome", "instep_decisions")

    def _own(self, columns: str, table: str) -> list[Any]:
        return run_sql(self.url, f"SELECT {columns} FROM {table} WHERE pipeline = '{self.name}'")

    def _quoted(self, name: str) -> str:
        mark = "`" if self.database in ("mariadb", "mysql") else '"'
        return f"{mark}{name}{mark}"


def scenarios(
    database: str, urls: dict[str, str], ordered_topic: str, unordered_topic: str, guarantee: str
) -> list[Scenario]:
    """Return the four scenarios of one database.

    On SQLite, `urls` has one URL for each name, since each pipeline gets its own file; otherwise
    one for all.
    """
    made = []
    for ordered in (True, False):
        for constrained in (False, True):
            topic = ordered_topic if ordered else unordered_topic
            one = Scenario(database, "", topic, ordered, constrained, guarantee)
            made.append(replace(one, url=urls.get(one.name) or urls[""]))
    return made
