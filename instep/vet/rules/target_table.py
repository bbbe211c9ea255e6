"""Rules about the target table: keys, constraints, triggers, types and rights to its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from instep.vet.rule import Risk, RuleContext, Severity, Violation, error_if, rule, warning_if
from instep.vet.rules.database import is_mysql

LITERAL = re.compile(r"'((?:[^']|'')*)'")


@rule(
    "DATABASE_TABLE_DOES_NOT_MATCH",
    Risk.STANDSTILL,
    when="the pipeline is started",
    what="The target table does not match the mapping, or instep's own tables do not exist.",
    consequence="The pipeline refuses to start, before anything wrong is written.",
    remedy="Run the statement that the finding names, or instep init.",
    acceptable_when="Before instep init has been run.",
)
def table_does_not_match(case: RuleContext) -> Iterator[Violation]:
    if case.database.unfit:
        what, remedy = case.database.unfit
        yield Violation(
            Severity.ERROR,
            f"table {case.pipeline.table}",
            (what,),
            remedy or f"instep init {case.name}",
        )


@rule(
    "DATABASE_NO_TRANSACTIONS",
    Risk.LOSS,
    when="the pipeline dies between two statements",
    what="A table uses a storage engine without transactions.",
    consequence="Rows and ledger cannot be written atomically: if the pipeline dies in between, "
    "records are lost or repeated.",
    remedy="ALTER TABLE … ENGINE = InnoDB.",
    acceptable_when="Never.",
)
def no_transactions(case: RuleContext) -> Iterator[Violation]:
    if is_mysql(case):
        for table, engine in case.database.engines.items():
            if engine.lower() != "innodb":
                quoted = case.database.quoted(*table.split("."))
                yield Violation(
                    Severity.ERROR,
                    f"table {table}",
                    (f"engine {engine}",),
                    f"ALTER TABLE {quoted} ENGINE = InnoDB",
                )


@rule(
    "DATABASE_TABLE_UNLOGGED",
    Risk.LOSS,
    when="the database crashes",
    what="A table is unlogged: PostgreSQL empties it after a crash.",
    consequence="If the target table is emptied and the ledger is not, nothing restores the rows. "
    "If the ledger is emptied, the pipeline starts again from its `start`.",
    remedy="ALTER TABLE … SET LOGGED.",
    acceptable_when="In tests.",
)
def table_unlogged(case: RuleContext) -> Iterator[Violation]:
    for table, kept in case.database.engines.items():
        if kept == "unlogged":
            yield Violation(
                error_if(case.must_not_lose),
                f"table {table}",
                ("unlogged",),
                f"ALTER TABLE {case.database.quoted(*table.split('.'))} SET LOGGED",
            )


@rule(
    "DATABASE_SECOND_UNIQUE_KEY",
    Risk.STANDSTILL,
    when="two documents have the same value for it",
    what="The table has a unique key in addition to the document's id.",
    consequence="A row that violates it is refused, and its document is parked until someone "
    "releases it.",
    remedy="Make sure that the source never gives the same value to two documents, or drop the "
    "unique key.",
    acceptable_when="If the pipeline does not write its columns.",
)
def second_unique_key(case: RuleContext) -> Iterator[Violation]:
    others = [key for key in case.database.unique_keys if key != case.database.key]
    touching = [key for key in others if set(key) & set(case.written)]
    if touching:
        yield Violation(
            Severity.WARNING,
            f"table {case.pipeline.table}",
            tuple(f"unique ({', '.join(key)})" for key in touching),
            f"drop the unique key on ({', '.join(touching[0])}) of {case.pipeline.table}",
        )


@rule(
    "DATABASE_TABLE_HAS_TRIGGERS",
    Risk.STANDSTILL,
    when="a trigger refuses a row or is slow",
    what="The target table has triggers.",
    consequence="They run for every row that is written, in the pipeline's transaction. If a "
    "trigger refuses a row, the document is parked. Batches are written in rounds, so that a "
    "trigger sees every event.",
    remedy="Nothing, if they are intended.",
    acceptable_when="If they are fast and refuse nothing without a reason.",
)
def table_has_triggers(case: RuleContext) -> Iterator[Violation]:
    if case.database.triggers:
        yield Violation(
            Severity.NOTE,
            f"table {case.pipeline.table}",
            tuple(f"trigger {name}" for name in case.database.triggers),
            "check that they work with the pipeline's user",
        )


@rule(
    "DATABASE_DELETE_AFFECTS_OTHER_TABLES",
    Risk.STANDSTILL,
    when="the source deletes a document that rows of another table reference",
    what="Other tables have foreign keys to the target table, and the source may delete documents.",
    consequence="With NO ACTION or RESTRICT, the database refuses to delete the row, and the "
    "document is parked. With CASCADE, the rows of the other table are deleted too; with SET NULL, "
    "they lose their document.",
    remedy="Decide what a delete means: keep the rows, or let the foreign key cascade.",
    acceptable_when="If the source never deletes documents, or the foreign key does what you want.",
)
def delete_affects_other_tables(case: RuleContext) -> Iterator[Violation]:
    if not case.deletes_rows:
        return
    for reference in case.database.referenced_by:
        when, alternative = None, "CASCADE"
        if reference.on_delete not in ("NO ACTION", "RESTRICT"):
            when = f"the source deletes a document: rows of {reference.table} change with it"
            alternative = "RESTRICT"
        yield Violation(
            Severity.WARNING,
            f"table {case.pipeline.table}",
            (
                f"{reference.table} ({', '.join(reference.columns)}) references it, ON DELETE"
                f" {reference.on_delete}",
            ),
            f"let the source send no deletes for {case.pipeline.table}, or declare ON DELETE"
            f" {alternative} in {reference.table}",
            when,
        )


@rule(
    "DATABASE_PARENT_ROW_MAY_BE_MISSING",
    Risk.STANDSTILL,
    when="an event arrives before the row that it references",
    what="A column that the pipeline writes has a foreign key to another table.",
    consequence="The database refuses a row whose parent does not exist, and the document is "
    "parked until the parent exists.",
    remedy="Fill the parent table first, or drop the foreign key.",
    acceptable_when="If parents always exist before their documents.",
)
def parent_row_may_be_missing(case: RuleContext) -> Iterator[Violation]:
    for reference in case.database.references:
        yield Violation(
            Severity.NOTE,
            f"table {case.pipeline.table}",
            (f"({', '.join(reference.columns)}) references {reference.refers_to}",),
            f"fill {reference.refers_to} before the pipeline is started; later: instep parked list"
            f" {case.name}",
        )


@rule(
    "DATABASE_TIMESTAMPS_WITHOUT_TIME_ZONE",
    Risk.DISORDER,
    when="another program reads or writes the same column in the server's time zone",
    what="The pipeline writes a column of times without a time zone, and the server's time zone is "
    "not UTC.",
    consequence="The pipeline writes UTC. A program that interprets the column as local time is "
    "wrong by the difference, and its own writes look earlier or later to the guard.",
    remedy="Use a type with a time zone (timestamptz), or let every program read and write that "
    "column as UTC.",
    acceptable_when="If all programs interpret the column as UTC.",
)
def timestamps_without_time_zone(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    zone = values.get("TimeZone") or values.get("time_zone") or "UTC"
    if zone.upper() == "SYSTEM":  # MySQL and MariaDB: the zone of the operating system
        zone = values.get("system_time_zone", "UTC")
    columns = case.database.times_without_zone
    if not columns or zone.upper() in (
        "UTC",
        "ETC/UTC",
        "GMT",
        "ETC/GMT",
        "+00:00",
        "UCT",
        "ZULU",
        "UNIVERSAL",
    ):
        return
    table = case.database.quoted(*case.pipeline.table.split("."))
    changes = ", ".join(
        f"ALTER {case.database.quoted(name)} TYPE timestamptz USING"
        f" {case.database.quoted(name)} AT TIME ZONE 'UTC'"
        for name in columns
    )
    fix = f"ALTER TABLE {table} {changes}"
    if case.database.kind != "postgresql":
        fix = f"run SET time_zone = '+00:00' first in every program that uses {', '.join(columns)}"
    yield Violation(
        Severity.NOTE,
        f"table {case.pipeline.table}",
        (f"{', '.join(columns)} without a time zone", f"the server's time zone is {zone}"),
        fix,
    )


@rule(
    "DATABASE_ROW_SECURITY_HIDES_ROWS",
    Risk.STANDSTILL,
    when="a document's row is hidden from the pipeline's user",
    what="Row security hides rows of a table from the pipeline's user.",
    consequence="A row that exists but is hidden looks like a missing document: its insert is "
    "refused, and the document is parked.",
    remedy="Give the user BYPASSRLS, or a policy that shows every row.",
    acceptable_when="If the policy shows all rows to this user.",
)
def row_security_hides_rows(case: RuleContext) -> Iterator[Violation]:
    if case.database.row_security:
        yield Violation(
            Severity.WARNING,
            f"table {case.pipeline.table}",
            ("row security is active for the pipeline's user",),
            f"ALTER ROLE {case.database.user} BYPASSRLS",
        )


@rule(
    "DATABASE_CHECK_CONSTRAINTS",
    Risk.STANDSTILL,
    when="an event has a value that the constraint refuses",
    what="The table has a CHECK constraint on a column that the pipeline writes.",
    consequence="A row that it refuses parks its document, with all later events of that document.",
    remedy="Let the constraint allow every status that the source sends.",
    acceptable_when="If the constraint allows everything that is ever sent.",
)
def check_constraints(case: RuleContext) -> Iterator[Violation]:
    sample = case.topic.sample if case.topic_exists else None
    statuses: set[str] = set()
    if sample and case.name in sample.seen:
        statuses = set(sample.seen[case.name].statuses)
    status_column = case.pipeline.status_column
    table = case.database.quoted(*case.pipeline.table.split("."))
    for name, condition in case.database.checks.items():
        # The texts in a condition on the status column are probably the allowed statuses.
        allowed: set[str] = set()
        if status_column is not None and status_column in condition:
            allowed = {text.replace("''", "'") for text in LITERAL.findall(condition)}
        refused = sorted(statuses - allowed) if allowed else []
        fix = f"compare it with what the source sends: instep peek {case.pipeline.topic} -n 20"
        if refused:
            fix = (
                f"ALTER TABLE {table} DROP CONSTRAINT {case.database.quoted(name)};"
                " and add it again with every status that the source sends"
            )
        yield Violation(
            warning_if(refused),
            f"table {case.pipeline.table}",
            (
                f"{name}: CHECK ({condition})",
                *(f"the newest events have the status {status!r}" for status in refused),
            ),
            fix,
        )


@rule(
    "DATABASE_ORDER_COLUMN_SMALL",
    Risk.STANDSTILL,
    when="the version exceeds the column's range",
    what="The column of the order value holds only small integers.",
    consequence="A higher version is refused and its document is parked, from then on for every "
    "event.",
    remedy="Change the column's type to BIGINT.",
    acceptable_when="If versions never get that high.",
)
def order_column_small(case: RuleContext) -> Iterator[Violation]:
    if case.database.order_column is not None:
        name, kind, highest = case.database.order_column
        table = case.database.quoted(*case.pipeline.table.split("."))
        column = case.database.quoted(name)
        fix = f"ALTER TABLE {table} MODIFY {column} BIGINT"
        if case.database.kind == "postgresql":
            fix = f"ALTER TABLE {table} ALTER COLUMN {column} TYPE bigint"
        yield Violation(
            Severity.WARNING,
            f"table {case.pipeline.table}",
            (f"{name} is {kind}: at most {highest:,}",),
            fix,
        )
