"""Rules about the target database: whether it keeps what it committed, and lets the pipeline work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from instep.vet import remedies
from instep.vet.rule import Risk, RuleContext, Severity, Violation, rule
from instep.vet.rules.cluster import is_loopback

VERSIONS_MIN = {"postgresql": (13,), "mariadb": (10, 6), "mysql": (8, 0, 19), "sqlite": (3, 35)}
STATEMENT_S_MIN = 30.0
IDLE_S_MIN = 60.0
PASSWORD_DAYS_MIN = 30
CLOCK_S_MAX = 5.0
LITERAL = re.compile(r"'((?:[^']|'')*)'")
CONNECTIONS_SPARE = 5
RESERVED = ("reserved_connections", "superuser_reserved_connections")
PACKET_SHARE = 2  # a byte may become two in a statement
NETWORK_FILESYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb",
    "smb3",
    "smbfs",
    "fuse.sshfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
)


def _is_mysql(case: RuleContext) -> bool:
    return case.database.kind in ("mariadb", "mysql")


def _subject(case: RuleContext) -> str:
    return f"the database of {case.name}"


@rule(
    "DATABASE_UNREACHABLE",
    Risk.STANDSTILL,
    when="now",
    what="The target database does not answer, or does not let us in.",
    consequence="Nothing can be applied until it does. A running pipeline waits, and the log keeps what comes meanwhile.",
    remedy="Start it, or correct target in the settings.",
    acceptable_when="When it is down on purpose, for less than the log's retention.",
)
def unreachable(case: RuleContext) -> Iterator[Violation]:
    found = case.known(case.snapshot.databases.get(case.name), f"database of {case.name}")
    if found.unreachable:
        said, _, remedy = found.unreachable.partition("\n")
        yield Violation(
            Severity.ERROR,
            _subject(case),
            (said,),
            remedy or f"correct pipelines.{case.name}.target",
        )


@rule(
    "DATABASE_TABLE_UNFIT",
    Risk.STANDSTILL,
    when="the pipeline is started",
    what="The target table cannot hold what the mapping says, or instep's own tables are not there.",
    consequence="The pipeline refuses to start, before anything wrong is written.",
    remedy="Run the statement that is named, or instep init.",
    acceptable_when="Before instep init was run.",
)
def table_unfit(case: RuleContext) -> Iterator[Violation]:
    if case.database.unfit:
        what, remedy = case.database.unfit
        yield Violation(
            Severity.ERROR,
            f"table {case.pipeline.table}",
            (what,),
            remedy or f"instep init {case.name}",
        )


@rule(
    "DATABASE_READ_ONLY",
    Risk.STANDSTILL,
    when="the pipeline is started",
    what="The database takes no writes: a standby, or a server set to read only.",
    consequence="The pipeline stops with TARGET_READ_ONLY.",
    remedy="Point target to the server that takes writes.",
    acceptable_when="During a planned switch-over.",
)
def read_only(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    named = ("in_recovery", "transaction_read_only", "read_only", "super_read_only", "tx_read_only")
    on = [name for name in named if values.get(name, "off").lower() in ("on", "1")]
    if on:
        yield Violation(
            Severity.ERROR,
            _subject(case),
            tuple(f"{name}={values[name]}" for name in on),
            remedies.setting(case.database, "default_transaction_read_only", "off", case.name)
            if values.get("default_transaction_read_only", "off") == "on"
            and values.get("in_recovery", "off") == "off"
            else f"change the host in pipelines.{case.name}.target to that of the primary server",
        )


@rule(
    "DATABASE_MAY_CORRUPT",
    Risk.LOSS,
    when="the database's machine loses power",
    what="The database does not make sure that pages reach the disk whole and in order.",
    consequence="After a power failure its files may be damaged in any way: rows and ledger may disagree, and no guarantee holds.",
    remedy="Switch the setting on again.",
    acceptable_when="In tests, and on databases that are thrown away.",
)
def may_corrupt(case: RuleContext) -> Iterator[Violation]:
    wanted = {"postgresql": ("fsync", "full_page_writes")}.get(
        case.database.kind, ("innodb_doublewrite",)
    )
    if case.database.kind == "sqlite":
        return
    for name in wanted:
        if case.database_setting(name).lower() in ("off", "0", "false"):
            fix = (
                remedies.setting(case.database, name, "on", case.name)
                if case.database.kind == "postgresql"
                else f"{name} = ON in the server's my.cnf, then restart the server"
            )
            yield Violation(
                Severity.ERROR if case.must_not_lose else Severity.WARNING,
                _subject(case),
                (f"{name}={case.database_setting(name)}",),
                fix,
            )


@rule(
    "DATABASE_COMMITS_LATER",
    Risk.REPETITION,
    when="the database crashes",
    what="A commit is answered before it is on the disk.",
    consequence="After a crash the last transactions are missing. Nothing is lost: the ledger is in the same database and goes back with "
    "the rows, or further, and the pipeline applies those records again.",
    remedy="Switch the setting on again.",
    acceptable_when="For speed, as long as the log still has the records.",
)
def commits_later(case: RuleContext) -> Iterator[Violation]:
    lazy = {"postgresql": ("synchronous_commit", ("off",), "on")}
    name, weak, strong = lazy.get(
        case.database.kind, ("innodb_flush_log_at_trx_commit", ("0", "2"), "1")
    )
    if case.database.kind != "sqlite" and case.database_setting(name).lower() in weak:
        yield Violation(
            Severity.NOTE,
            _subject(case),
            (f"{name}={case.database_setting(name)}",),
            remedies.setting(case.database, name, strong, case.name),
        )


@rule(
    "DATABASE_NO_TRANSACTIONS",
    Risk.LOSS,
    when="the pipeline dies between two statements",
    what="A table is kept by an engine without transactions.",
    consequence="Rows and ledger cannot be written together: after a death in between, records are lost or repeated.",
    remedy="ALTER TABLE … ENGINE = InnoDB.",
    acceptable_when="Never.",
)
def no_transactions(case: RuleContext) -> Iterator[Violation]:
    if _is_mysql(case):
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
    consequence="If the target's table is emptied and the ledger is not, nothing brings the rows back. If the ledger is emptied, the "
    "pipeline begins again at its start.",
    remedy="ALTER TABLE … SET LOGGED.",
    acceptable_when="In tests.",
)
def table_unlogged(case: RuleContext) -> Iterator[Violation]:
    for table, kept in case.database.engines.items():
        if kept == "unlogged":
            yield Violation(
                Severity.ERROR if case.must_not_lose else Severity.WARNING,
                f"table {table}",
                ("unlogged",),
                f"ALTER TABLE {case.database.quoted(*table.split('.'))} SET LOGGED",
            )


@rule(
    "DATABASE_SECOND_UNIQUE_KEY",
    Risk.STANDSTILL,
    when="two documents bring the same value for it",
    what="The table has a unique key beside that of the document's id.",
    consequence="A row that breaks the other key is refused, and its document is parked until somebody releases it.",
    remedy="Make sure that the source never gives one value to two documents, or drop the unique key.",
    acceptable_when="When its columns are not among those that the pipeline writes.",
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
    "DATABASE_TRIGGERS",
    Risk.STANDSTILL,
    when="a trigger refuses a row or is slow",
    what="The target table has triggers.",
    consequence="They run with every row that is written, in the pipeline's transaction. What they refuse parks its document, and "
    "batches are written in rounds, so that a trigger sees every event.",
    remedy="Nothing, if they are meant.",
    acceptable_when="When they are quick and refuse nothing without a reason.",
)
def triggers(case: RuleContext) -> Iterator[Violation]:
    if case.database.triggers:
        yield Violation(
            Severity.NOTE,
            f"table {case.pipeline.table}",
            tuple(f"trigger {name}" for name in case.database.triggers),
            "look whether they do what the pipeline's user expects",
        )


# seconds of a unit, and the fewest seconds that leave a pipeline in peace
TIMEOUTS = {
    "statement_timeout": (0.001, STATEMENT_S_MIN),
    "transaction_timeout": (0.001, STATEMENT_S_MIN),
    "idle_in_transaction_session_timeout": (0.001, STATEMENT_S_MIN),
    "idle_session_timeout": (0.001, IDLE_S_MIN),
    "max_statement_time": (1.0, STATEMENT_S_MIN),
    "max_execution_time": (0.001, STATEMENT_S_MIN),
    "idle_transaction_timeout": (1.0, STATEMENT_S_MIN),
    "idle_write_transaction_timeout": (1.0, STATEMENT_S_MIN),
    "wait_timeout": (1.0, IDLE_S_MIN),
}


@rule(
    "DATABASE_TIMEOUT_SHORT",
    Risk.STANDSTILL,
    when="a batch takes longer than the database allows, or no event comes for a while",
    what="The database ends statements, transactions or idle connections after a short time.",
    consequence="A full batch in catch-up takes seconds. One that is cut off is rolled back and tried again, and again. An idle "
    "connection that is closed has to be opened again for the next event.",
    remedy="Raise the time-out for the pipeline's user.",
    acceptable_when="When batches are small: lower batch_rows_max.",
)
def timeout_short(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    for name, (unit_s, least_s) in TIMEOUTS.items():
        seconds = float(values.get(name, 0)) * unit_s
        if 0 < seconds < least_s:
            wanted = "28800" if name == "wait_timeout" else "0"
            yield Violation(
                Severity.WARNING,
                _subject(case),
                (f"{name}={values[name]}: {seconds:g} s{_source(case, name)}",),
                remedies.setting(case.database, name, wanted, case.name),
            )


def _source(case: RuleContext, name: str) -> str:
    source = case.database.sources.get(name)
    return f" (set by: {source})" if source else ""


@rule(
    "DATABASE_FEW_CONNECTIONS",
    Risk.STANDSTILL,
    when="other programs take the connections",
    what="The server, the database or the pipeline's user is allowed hardly more connections than the pipeline's tasks need.",
    consequence="Each task that runs at a time holds one, and so do instep's own commands.",
    remedy="Raise the limit that is named: max_connections, or the role's, the account's or the database's own.",
    acceptable_when="When nothing else uses the server.",
)
def few_connections(case: RuleContext) -> Iterator[Violation]:
    if case.database.kind == "sqlite":
        return
    values = case.database.settings or {}
    reserved = sum(int(values.get(name, "0")) for name in RESERVED)
    allowed = {"max_connections": int(case.database_setting("max_connections")) - reserved}
    if int(values.get("max_user_connections", "0")):
        allowed["max_user_connections"] = int(values["max_user_connections"])
    kinds = ("ROLE_CONNECTIONS", "DATABASE_CONNECTIONS", "MAX_USER_CONNECTIONS")
    allowed |= {name: int(limit) for name, limit in case.database.limits.items() if name in kinds}
    tasks = _tasks(case)
    needed = tasks + CONNECTIONS_SPARE
    for name, limit in allowed.items():
        # an account's own limit shows as the session's variable too
        if limit < needed and not (
            name == "max_user_connections" and "MAX_USER_CONNECTIONS" in allowed
        ):
            wanted = 4 * needed + (reserved if name == "max_connections" else 0)
            yield Violation(
                Severity.WARNING if limit > tasks else Severity.ERROR,
                _subject(case),
                (
                    f"{_words(name)}: {limit}",
                    f"{tasks} tasks at a time and {CONNECTIONS_SPARE} to spare",
                ),
                remedies.connection_limit(case.database, name, wanted, case.name),
            )


def _words(limit: str) -> str:
    named = {
        "ROLE_CONNECTIONS": "connection limit of the role",
        "DATABASE_CONNECTIONS": "connection limit of the database",
    }
    return named.get(limit, f"{limit} of the account" if limit.isupper() else limit)


def _tasks(case: RuleContext) -> int:
    """How many tasks may run at a time: one a partition, and no more than a local master has threads."""
    threads = re.match(r"local\[(\d+)", case.snapshot.spark.master)
    return (
        min(len(case.topic.partitions), int(threads[1])) if threads else len(case.topic.partitions)
    )


@rule(
    "DATABASE_ACCOUNT_LIMITED",
    Risk.STANDSTILL,
    when="the account has used up its statements or connections of the hour",
    what="The database limits how many statements, changes or connections per hour the pipeline's account may use.",
    consequence="MariaDB and MySQL refuse everything beyond that, and the pipeline waits until the hour is over.",
    remedy="Set the account's limits to 0, which means none.",
    acceptable_when="Never for a pipeline.",
)
def account_limited(case: RuleContext) -> Iterator[Violation]:
    hourly = {
        name: limit for name, limit in case.database.limits.items() if name.endswith("_PER_HOUR")
    }
    if hourly:
        yield Violation(
            Severity.WARNING,
            _subject(case),
            tuple(f"{name} {limit:g}" for name, limit in hourly.items()),
            f"ALTER USER {case.database.user} WITH {' '.join(f'{name} 0' for name in hourly)}",
        )


@rule(
    "DATABASE_PASSWORD_EXPIRES",
    Risk.STANDSTILL,
    when="the password expires and the pipeline connects again",
    what="The password of the pipeline's role expires soon.",
    consequence="Connections that are open stay so. The next one is refused, and nothing is applied until the password is changed.",
    remedy="Set a new password with a later VALID UNTIL.",
    acceptable_when="When somebody changes the password before.",
)
def password_expires(case: RuleContext) -> Iterator[Violation]:
    left_s = case.database.password_valid_s
    if left_s is not None and left_s < PASSWORD_DAYS_MIN * 86_400:
        yield Violation(
            Severity.ERROR if left_s < 86_400 else Severity.WARNING,
            _subject(case),
            (
                f"the password of {case.database.user} "
                + (f"expires in {left_s / 86_400:.0f} days" if left_s > 0 else "expired"),
            ),
            f"ALTER ROLE {case.database.user} VALID UNTIL 'infinity'",
        )


@rule(
    "DATABASE_DELETES_REFERENCED",
    Risk.STANDSTILL,
    when="the source deletes a document that rows of another table point to",
    what="Foreign keys of other tables point to the target's table, and the source may delete documents.",
    consequence="Without a rule for deletes, or with RESTRICT, the database refuses to delete the row, and the document is parked. With "
    "CASCADE the rows of the other table are deleted with it; with SET NULL they lose their document.",
    remedy="Decide what a delete means: keep the rows, or let the foreign key cascade.",
    acceptable_when="When the source never deletes documents, or the foreign key's rule is what you want.",
)
def deletes_referenced(case: RuleContext) -> Iterator[Violation]:
    if not case.deletes_rows:
        return
    for one in case.database.referenced_by:
        refused = one.on_delete in ("NO ACTION", "RESTRICT")
        yield Violation(
            Severity.WARNING,
            f"table {case.pipeline.table}",
            (f"{one.table} ({', '.join(one.columns)}) points to it, ON DELETE {one.on_delete}",),
            f"let the source send no deletes for {case.pipeline.table}, or declare ON DELETE CASCADE in {one.table}"
            if refused
            else f"let the source send no deletes for {case.pipeline.table}, or declare ON DELETE RESTRICT in {one.table}",
            when=None
            if refused
            else f"the source deletes a document: rows of {one.table} change with it",
        )


@rule(
    "DATABASE_PARENT_MAY_BE_MISSING",
    Risk.STANDSTILL,
    when="an event arrives before the row that it points to",
    what="A column that the pipeline writes has a foreign key to another table.",
    consequence="The database refuses a row whose parent is not there, and its document is parked until the parent appears.",
    remedy="Fill the parent's table first, or drop the foreign key.",
    acceptable_when="When parents are always there before their documents.",
)
def parent_may_be_missing(case: RuleContext) -> Iterator[Violation]:
    for one in case.database.references:
        yield Violation(
            Severity.NOTE,
            f"table {case.pipeline.table}",
            (f"({', '.join(one.columns)}) points to {one.refers_to}",),
            f"fill {one.refers_to} before the pipeline is started; later: instep parked list {case.name}",
        )


@rule(
    "DATABASE_CHECKS_OFF",
    Risk.DISORDER,
    when="an event brings a value that the table would refuse",
    what="The pipeline's sessions do not check foreign keys or unique keys, or run no triggers.",
    consequence="Rows that break the table's own rules are written without a word, and triggers that other programs rely on stay silent.",
    remedy="Switch the checks on for the pipeline's user.",
    acceptable_when="While a copy of the database is being filled.",
)
def checks_off(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    if values.get("session_replication_role", "origin") == "replica":
        fix = remedies.setting(case.database, "session_replication_role", "origin", case.name)
        yield Violation(
            Severity.WARNING, _subject(case), ("session_replication_role=replica",), fix
        )
    for name in ("foreign_key_checks", "unique_checks"):
        if values.get(name, "ON").upper() in ("OFF", "0"):
            yield Violation(
                Severity.WARNING,
                _subject(case),
                (f"{name}={values[name]}",),
                remedies.setting(case.database, name, "ON", case.name),
            )


@rule(
    "DATABASE_ISOLATION_STRICT",
    Risk.STANDSTILL,
    when="another program changes the same rows at the same time",
    what="Transactions of the pipeline's user are REPEATABLE READ or SERIALIZABLE by default.",
    consequence="PostgreSQL then refuses a transaction that meets another one's change, and the whole batch is written again. The "
    "pipeline locks what it needs and is right at READ COMMITTED.",
    remedy="Set default_transaction_isolation to read committed for the pipeline's user.",
    acceptable_when="When no other program writes to the table.",
)
def isolation_strict(case: RuleContext) -> Iterator[Violation]:
    name = "default_transaction_isolation"
    value = (case.database.settings or {}).get(name, "read committed")
    if value in ("repeatable read", "serializable"):
        yield Violation(
            Severity.WARNING,
            _subject(case),
            (f"{name}={value}{_source(case, name)}",),
            remedies.setting(case.database, name, "'read committed'", case.name),
        )


@rule(
    "DATABASE_WAITS_FOR_STANDBY",
    Risk.STANDSTILL,
    when="the standby that must confirm every commit is down",
    what="Every commit waits for a standby server.",
    consequence="When too few of the named standbys are connected, a commit waits for ever, and the pipeline with it.",
    remedy="Keep one standby more than synchronous_standby_names needs.",
    acceptable_when="When no loss with the primary's disk is acceptable, and a standstill is.",
)
def waits_for_standby(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    names = values.get("synchronous_standby_names", "")
    if names and values.get("synchronous_commit") not in ("off", "local"):
        yield Violation(
            Severity.NOTE,
            _subject(case),
            (f"synchronous_standby_names={names}",),
            "SELECT application_name, sync_state FROM pg_stat_replication shows whether enough of them are connected",
        )


@rule(
    "DATABASE_LOGS_STATEMENTS",
    Risk.EXPOSURE,
    when="somebody reads the server's log",
    what="The server writes every statement to its log.",
    consequence="The log then holds documents' values, takes disk space as fast as the pipeline writes, and slows it.",
    remedy="Switch the log of statements off.",
    acceptable_when="For a while, to find a fault.",
)
def logs_statements(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    if values.get("log_statement") in ("mod", "all"):
        fix = remedies.setting(case.database, "log_statement", "ddl", case.name)
        yield Violation(
            Severity.NOTE, _subject(case), (f"log_statement={values['log_statement']}",), fix
        )
    if values.get("general_log", "OFF").upper() in ("ON", "1"):
        fix = remedies.setting(case.database, "general_log", "OFF", case.name)
        yield Violation(Severity.NOTE, _subject(case), ("general_log=ON",), fix)


@rule(
    "DATABASE_BINLOG_NOT_SYNCED",
    Risk.LOSS,
    when="the database's machine loses power and a replica takes over",
    what="The server does not write its binary log to the disk at each commit.",
    consequence="After a power failure the binary log may lack committed transactions, or have ones that were rolled back: replicas and "
    "the primary no longer hold the same rows.",
    remedy="Set sync_binlog to 1.",
    acceptable_when="When no replica is fed by this server.",
)
def binlog_not_synced(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    if (
        values.get("log_bin", "OFF").upper() in ("ON", "1")
        and values.get("sync_binlog", "1") != "1"
    ):
        yield Violation(
            Severity.NOTE,
            _subject(case),
            (f"sync_binlog={values['sync_binlog']}", "log_bin=ON"),
            remedies.setting(case.database, "sync_binlog", "1", case.name),
        )


@rule(
    "DATABASE_TIMES_WITHOUT_ZONE",
    Risk.DISORDER,
    when="another program reads or writes the same column in the server's own time zone",
    what="A column that the pipeline writes keeps times without a zone, and the server's time zone is not UTC.",
    consequence="The pipeline writes UTC. A program that takes the column for local time is wrong by the difference, and its own writes "
    "look earlier or later to the guard.",
    remedy="Keep times with a zone (timestamptz), or let every program read and write that column as UTC.",
    acceptable_when="When all programs take the column for UTC.",
)
def times_without_zone(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    zone = values.get("TimeZone") or values.get("time_zone") or "UTC"
    zone = values.get("system_time_zone", "UTC") if zone.upper() == "SYSTEM" else zone
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
        f"ALTER {case.database.quoted(name)} TYPE timestamptz USING {case.database.quoted(name)} AT TIME ZONE 'UTC'"
        for name in columns
    )
    yield Violation(
        Severity.NOTE,
        f"table {case.pipeline.table}",
        (f"{', '.join(columns)} without a time zone", f"the server's time zone is {zone}"),
        f"ALTER TABLE {table} {changes}"
        if case.database.kind == "postgresql"
        else f"let every program that uses {', '.join(columns)} begin with SET time_zone = '+00:00'",
    )


@rule(
    "DATABASE_PACKET_SMALL",
    Risk.LOSS,
    when="a record is larger than the database can keep",
    what="The topic takes larger records than a statement to the database may be.",
    consequence="A record too large to be set aside whole cannot be kept; it becomes a dead letter with its beginning only.",
    remedy="Raise max_allowed_packet.",
    acceptable_when="When records are known to be small.",
)
def packet_small(case: RuleContext) -> Iterator[Violation]:
    if _is_mysql(case):
        packet, record = (
            int(case.database_setting("max_allowed_packet")),
            case.number("max.message.bytes"),
        )
        if packet < PACKET_SHARE * record:
            yield Violation(
                Severity.WARNING,
                _subject(case),
                (f"max_allowed_packet={packet}", case.found("max.message.bytes")),
                remedies.setting(
                    case.database, "max_allowed_packet", str(_packet(4 * record)), case.name
                ),
            )


def _packet(wanted: int) -> int:
    """A size that the server takes as it is: a multiple of 1024, at most 1 GiB."""
    return min(2**30, -(-wanted // 1024) * 1024)


@rule(
    "DATABASE_BINLOG_BY_STATEMENT",
    Risk.STANDSTILL,
    when="the pipeline writes",
    what="The server logs statements, not rows, for its replicas.",
    consequence="InnoDB refuses writes at the pipeline's isolation level, READ COMMITTED, when they are logged as statements.",
    remedy="Set binlog_format to ROW or MIXED.",
    acceptable_when="Never.",
)
def binlog_by_statement(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    if (
        values.get("log_bin", "OFF").upper() in ("ON", "1")
        and values.get("binlog_format", "ROW").upper() == "STATEMENT"
    ):
        yield Violation(
            Severity.ERROR,
            _subject(case),
            ("log_bin=ON", "binlog_format=STATEMENT"),
            remedies.setting(case.database, "binlog_format", "ROW", case.name),
        )


@rule(
    "DATABASE_RIGHTS_MISSING",
    Risk.STANDSTILL,
    when="the pipeline writes",
    what="The pipeline's user lacks a right on a table it needs.",
    consequence="The pipeline stops with PERMISSION_LOST.",
    remedy="Grant SELECT, INSERT, UPDATE and DELETE on the target's table and on instep's own, and the right to make temporary "
    "tables.",
    acceptable_when="DELETE on the target's table, when the source never deletes documents.",
)
def rights_missing(case: RuleContext) -> Iterator[Violation]:
    lacking = case.database.lacking_rights or []
    if lacking:
        needed = [right for right in lacking if right != f"DELETE on {case.pipeline.table}"]
        yield Violation(
            Severity.ERROR if needed else Severity.WARNING,
            _subject(case),
            tuple(f"lacks {right}" for right in lacking),
            case.database.granting,
        )


@rule(
    "DATABASE_ROWS_HIDDEN",
    Risk.STANDSTILL,
    when="a document's row is hidden from the pipeline's user",
    what="Row security hides rows of a table from the pipeline's user.",
    consequence="A row that is there and not seen looks like a missing document: its insert is refused, and the document parked.",
    remedy="Give the user BYPASSRLS, or a policy that shows every row.",
    acceptable_when="When the policy shows all rows to this user.",
)
def rows_hidden(case: RuleContext) -> Iterator[Violation]:
    if case.database.row_security:
        yield Violation(
            Severity.WARNING,
            f"table {case.pipeline.table}",
            ("row security is active for the pipeline's user",),
            f"ALTER ROLE {case.database.user} BYPASSRLS",
        )


@rule(
    "DATABASE_SUPERUSER",
    Risk.EXPOSURE,
    when="the settings or the pipeline's machine fall into wrong hands",
    what="The pipeline works as a superuser or an administrator: root, or an account with all rights.",
    consequence="It needs four rights on a few tables, and has all of them on everything. Limits, row security and time-outs that guard "
    "other users may not hold for it.",
    remedy="Make a user of its own for the pipeline.",
    acceptable_when="On a laptop and in tests.",
)
def superuser(case: RuleContext) -> Iterator[Violation]:
    if case.database.superuser:
        yield Violation(
            Severity.NOTE if is_loopback(case.database.host) else Severity.WARNING,
            _subject(case),
            (f"{case.database.user or 'the user'} has every right on the server",),
            remedies.own_account(case.database, case.name, [*case.database.engines]),
        )


@rule(
    "DATABASE_IN_CLEAR",
    Risk.EXPOSURE,
    when="somebody listens on the network",
    what="A database on another machine is spoken to without encryption.",
    consequence="Rows can be read and changed on the way, and the login may be.",
    remedy="Add sslmode=verify-full and sslrootcert to the target's URL.",
    acceptable_when="Within a network that is encrypted itself.",
)
def in_clear(case: RuleContext) -> Iterator[Violation]:
    if case.database.encrypted is False and not is_loopback(case.database.host):
        yield Violation(
            Severity.WARNING,
            _subject(case),
            (f"{case.database.host} without encryption",),
            f"add ?sslmode=verify-full&sslrootcert=ca.pem to the end of pipelines.{case.name}.target",
        )


@rule(
    "DATABASE_NOT_VERIFIED",
    Risk.EXPOSURE,
    when="somebody on the way answers in the server's place",
    what="The connection to a database on another machine is encrypted, and nobody checks who answers.",
    consequence="Without sslmode=verify-full the server's certificate, or its name, is not checked: whoever is on the way can read "
    "everything, the password included.",
    remedy="Use sslmode=verify-full with the authority's certificate in sslrootcert.",
    acceptable_when="Within a network where nobody can step in between.",
)
def not_verified(case: RuleContext) -> Iterator[Violation]:
    facts = case.database
    if facts.encrypted and not is_loopback(facts.host) and facts.sslmode != "verify-full":
        yield Violation(
            Severity.NOTE if facts.sslmode == "verify-ca" else Severity.WARNING,
            _subject(case),
            (f"sslmode={facts.sslmode or 'not set'} to {facts.host}",),
            f"sslmode=verify-full&sslrootcert=ca.pem among the options of pipelines.{case.name}.target",
        )


@rule(
    "DATABASE_OLD",
    Risk.STANDSTILL,
    when="a statement that it does not know is needed",
    what="The database is older than the versions instep is made for.",
    consequence="It may lack statements that instep uses, and gets no more repairs from its makers.",
    remedy="Upgrade the server.",
    acceptable_when="When the pipeline was tried on it.",
)
def old(case: RuleContext) -> Iterator[Violation]:
    version, least = (
        case.known(case.database.version, f"version of the database of {case.name}"),
        VERSIONS_MIN,
    )
    wanted = least[case.database.kind]
    if version[: len(wanted)] < wanted:
        yield Violation(
            Severity.WARNING,
            _subject(case),
            (f"{case.database.kind} {'.'.join(map(str, version))}",),
            f"{case.database.kind} {'.'.join(map(str, wanted))} or newer",
        )


@rule(
    "DATABASE_ON_NETWORK_DISK",
    Risk.LOSS,
    when="two machines or a lost connection break the file's locks",
    what="The SQLite file lies on a network file system.",
    consequence="SQLite's write-ahead log needs memory that is shared by all who open the file, and locks that hold. Network file "
    "systems have neither: the file may be damaged.",
    remedy="Put the file on a local disk, or use a database server.",
    acceptable_when="Never.",
)
def on_network_disk(case: RuleContext) -> Iterator[Violation]:
    if case.database.filesystem in NETWORK_FILESYSTEMS:
        yield Violation(
            Severity.ERROR,
            _subject(case),
            (f"file system {case.database.filesystem}",),
            f"move the file of pipelines.{case.name}.target to a local disk",
        )


@rule(
    "DATABASE_CLOCK_DIFFERS",
    Risk.DISORDER,
    when="times from the database and from here are compared",
    what="The database's clock and ours do not agree.",
    consequence="What triggers, defaults and other programs stamp with the database's clock does not fit the pipeline's own times.",
    remedy="Keep all clocks in step by NTP.",
    acceptable_when="Never for long.",
)
def clock_differs(case: RuleContext) -> Iterator[Violation]:
    ahead_s = case.database.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) > CLOCK_S_MAX:
        word = "ahead of" if ahead_s > 0 else "behind"
        evidence = f"its clock is {abs(ahead_s):.1f} s {word} ours"
        yield Violation(
            Severity.WARNING, _subject(case), (evidence,), "set the clocks, best by NTP"
        )


@rule(
    "DATABASE_CHECK_CONSTRAINTS",
    Risk.STANDSTILL,
    when="an event brings a value that the constraint refuses",
    what="The table has a CHECK constraint on a column that the pipeline writes.",
    consequence="A row that it refuses parks its document, with all later events of that document.",
    remedy="Let the constraint allow every status that the source sends.",
    acceptable_when="When the constraint allows all that is ever sent.",
)
def check_constraints(case: RuleContext) -> Iterator[Violation]:
    sample = case.topic.sample if case.is_there else None
    seen = sample.seen[case.name].statuses if sample and case.name in sample.seen else {}
    for name, condition in case.database.checks.items():
        of_status = (
            case.pipeline.status_column is not None and case.pipeline.status_column in condition
        )
        allowed = (
            {text.replace("''", "'") for text in LITERAL.findall(condition)} if of_status else set()
        )
        strange = sorted(set(seen) - allowed) if allowed else []
        yield Violation(
            Severity.WARNING if strange else Severity.NOTE,
            f"table {case.pipeline.table}",
            (
                f"{name}: CHECK ({condition})",
                *(f"the newest events have the status {status!r}" for status in strange),
            ),
            f"ALTER TABLE {case.database.quoted(*case.pipeline.table.split('.'))} DROP CONSTRAINT {case.database.quoted(name)};"
            " and add it again with every status that the source sends"
            if strange
            else f"compare it with what the source sends: instep peek {case.pipeline.topic} -n 20",
        )


@rule(
    "DATABASE_ORDER_COLUMN_SMALL",
    Risk.STANDSTILL,
    when="the version outgrows the column",
    what="The column that keeps the order holds small integers only.",
    consequence="A version beyond it is refused, and its document parked, from then on for every event.",
    remedy="Make the column a BIGINT.",
    acceptable_when="When versions never get that high.",
)
def order_column_small(case: RuleContext) -> Iterator[Violation]:
    if case.database.order_column is not None:
        name, kind, highest = case.database.order_column
        table, column = (
            case.database.quoted(*case.pipeline.table.split(".")),
            case.database.quoted(name),
        )
        yield Violation(
            Severity.WARNING,
            f"table {case.pipeline.table}",
            (f"{name} is {kind}: at most {highest:,}",),
            f"ALTER TABLE {table} ALTER COLUMN {column} TYPE bigint"
            if case.database.kind == "postgresql"
            else f"ALTER TABLE {table} MODIFY {column} BIGINT",
        )
