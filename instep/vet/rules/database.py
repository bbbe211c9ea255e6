"""Rules about the target database: whether it keeps what it committed, and lets the pipeline work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from instep.vet.rule import Broken, Case, Severity, Threat, rule
from instep.vet.rules.cluster import is_loopback

VERSIONS_MIN = {"postgresql": (13,), "mariadb": (10, 6), "mysql": (8, 0, 19), "sqlite": (3, 35)}
STATEMENT_S_MIN = 30.0
CONNECTIONS_SPARE = 5
RESERVED = ("reserved_connections", "superuser_reserved_connections")
PACKET_SHARE = 2  # a byte may become two in a statement
NETWORK_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "fuse.sshfs", "9p", "afs", "ceph", "glusterfs", "lustre")


def _is_mysql(case: Case) -> bool:
    return case.database.kind in ("mariadb", "mysql")


def _subject(case: Case) -> str:
    return f"the database of {case.name}"


@rule(
    "DATABASE_UNREACHABLE",
    Threat.STANDSTILL,
    when="now",
    what="The target database does not answer, or does not let us in.",
    why="Nothing can be applied until it does. A running pipeline waits, and the log keeps what comes meanwhile.",
    mend="Start it, or correct target in the settings.",
    fine="When it is down on purpose, for less than the log's retention.",
)
def unreachable(case: Case) -> Iterator[Broken]:
    found = case.known(case.snapshot.databases.get(case.name), f"database of {case.name}")
    if found.unreachable:
        said, _, remedy = found.unreachable.partition("\n")
        yield Broken(Severity.ERROR, _subject(case), (said,), remedy or f"correct pipelines.{case.name}.target")


@rule(
    "DATABASE_TABLE_UNFIT",
    Threat.STANDSTILL,
    when="the pipeline is started",
    what="The target table cannot hold what the mapping says, or instep's own tables are not there.",
    why="The pipeline refuses to start, before anything wrong is written.",
    mend="Run the statement that is named, or instep init.",
    fine="Before instep init was run.",
)
def table_unfit(case: Case) -> Iterator[Broken]:
    if case.database.unfit:
        what, remedy = case.database.unfit
        yield Broken(Severity.ERROR, f"table {case.pipeline.table}", (what,), remedy or f"instep init {case.name}")


@rule(
    "DATABASE_READ_ONLY",
    Threat.STANDSTILL,
    when="the pipeline is started",
    what="The database takes no writes: a standby, or a server set to read only.",
    why="The pipeline stops with TARGET_READ_ONLY.",
    mend="Point target to the server that takes writes.",
    fine="During a planned switch-over.",
)
def read_only(case: Case) -> Iterator[Broken]:
    values = case.database.settings or {}
    named = ("in_recovery", "transaction_read_only", "read_only", "super_read_only", "tx_read_only")
    on = [name for name in named if values.get(name, "off").lower() in ("on", "1")]
    if on:
        yield Broken(
            Severity.ERROR,
            _subject(case),
            tuple(f"{name}={values[name]}" for name in on),
            f"point pipelines.{case.name}.target to the primary server",
        )


@rule(
    "DATABASE_MAY_CORRUPT",
    Threat.LOSS,
    when="the database's machine loses power",
    what="The database does not make sure that pages reach the disk whole and in order.",
    why="After a power failure its files may be damaged in any way: rows and ledger may disagree, and no guarantee holds.",
    mend="Switch the setting on again.",
    fine="In tests, and on databases that are thrown away.",
)
def may_corrupt(case: Case) -> Iterator[Broken]:
    wanted = {"postgresql": ("fsync", "full_page_writes")}.get(case.database.kind, ("innodb_doublewrite",))
    if case.database.kind == "sqlite":
        return
    for name in wanted:
        if case.database_setting(name).lower() in ("off", "0", "false"):
            change = (
                f"ALTER SYSTEM SET {name} = on" if case.database.kind == "postgresql" else f"{name} = ON in the server's file"
            )
            yield Broken(
                Severity.ERROR if case.must_not_lose else Severity.WARNING,
                _subject(case),
                (f"{name}={case.database_setting(name)}",),
                f"{change}, and restart it",
            )


@rule(
    "DATABASE_COMMITS_LATER",
    Threat.REPETITION,
    when="the database crashes",
    what="A commit is answered before it is on the disk.",
    why="After a crash the last transactions are missing. Nothing is lost: the ledger is in the same database and goes back with "
    "the rows, or further, and the pipeline applies those records again.",
    mend="Switch the setting on again.",
    fine="For speed, as long as the log still has the records.",
)
def commits_later(case: Case) -> Iterator[Broken]:
    lazy = {"postgresql": ("synchronous_commit", ("off",), "ALTER SYSTEM SET synchronous_commit = on")}
    name, weak, fix = lazy.get(
        case.database.kind, ("innodb_flush_log_at_trx_commit", ("0", "2"), "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    )
    if case.database.kind != "sqlite" and case.database_setting(name).lower() in weak:
        yield Broken(
            Severity.NOTE,
            _subject(case),
            (f"{name}={case.database_setting(name)}",),
            fix,
        )


@rule(
    "DATABASE_NO_TRANSACTIONS",
    Threat.LOSS,
    when="the pipeline dies between two statements",
    what="A table is kept by an engine without transactions.",
    why="Rows and ledger cannot be written together: after a death in between, records are lost or repeated.",
    mend="ALTER TABLE … ENGINE = InnoDB.",
    fine="Never.",
)
def no_transactions(case: Case) -> Iterator[Broken]:
    if _is_mysql(case):
        for table, engine in case.database.engines.items():
            if engine.lower() != "innodb":
                yield Broken(Severity.ERROR, f"table {table}", (f"engine {engine}",), f"ALTER TABLE {table} ENGINE = InnoDB")


@rule(
    "DATABASE_TABLE_UNLOGGED",
    Threat.LOSS,
    when="the database crashes",
    what="A table is unlogged: PostgreSQL empties it after a crash.",
    why="If the target's table is emptied and the ledger is not, nothing brings the rows back. If the ledger is emptied, the "
    "pipeline begins again at its start.",
    mend="ALTER TABLE … SET LOGGED.",
    fine="In tests.",
)
def table_unlogged(case: Case) -> Iterator[Broken]:
    for table, kept in case.database.engines.items():
        if kept == "unlogged":
            yield Broken(
                Severity.ERROR if case.must_not_lose else Severity.WARNING,
                f"table {table}",
                ("unlogged",),
                f"ALTER TABLE {table} SET LOGGED",
            )


@rule(
    "DATABASE_SECOND_UNIQUE_KEY",
    Threat.STANDSTILL,
    when="two documents bring the same value for it",
    what="The table has a unique key beside that of the document's id.",
    why="On MariaDB and MySQL a document could meet another one's row, so such a table is refused. Elsewhere a row that breaks "
    "the other key is refused, and its document parked.",
    mend="Drop the unique key, or keep the documents in a table of their own.",
    fine="On PostgreSQL and SQLite, when its columns are not among those that the pipeline writes.",
)
def second_unique_key(case: Case) -> Iterator[Broken]:
    others = [key for key in case.database.unique_keys if key != [case.database.key]]
    touching = [key for key in others if set(key) & set(case.written)]
    if _is_mysql(case) and others:
        severity = Severity.ERROR
    elif touching:
        severity, others = Severity.WARNING, touching
    else:
        return
    yield Broken(
        severity,
        f"table {case.pipeline.table}",
        tuple(f"unique ({', '.join(key)})" for key in others),
        f"drop the unique key on ({', '.join(others[0])}) of {case.pipeline.table}",
    )


@rule(
    "DATABASE_TRIGGERS",
    Threat.STANDSTILL,
    when="a trigger refuses a row or is slow",
    what="The target table has triggers.",
    why="They run with every row that is written, in the pipeline's transaction. What they refuse parks its document, and "
    "batches are written in rounds, so that a trigger sees every event.",
    mend="Nothing, if they are meant.",
    fine="When they are quick and refuse nothing without a reason.",
)
def triggers(case: Case) -> Iterator[Broken]:
    if case.database.triggers:
        yield Broken(
            Severity.NOTE,
            f"table {case.pipeline.table}",
            tuple(f"trigger {name}" for name in case.database.triggers),
            "look whether they do what the pipeline's user expects",
        )


@rule(
    "DATABASE_TIMEOUT_SHORT",
    Threat.STANDSTILL,
    when="a batch takes longer than the database allows",
    what="The database cuts statements or transactions off after a short time.",
    why="A full batch in catch-up takes seconds. One that is cut off is rolled back and tried again, and again.",
    mend="Raise the time-out for the pipeline's user.",
    fine="When batches are small: lower batch_rows_max.",
)
def timeout_short(case: Case) -> Iterator[Broken]:
    values = case.database.settings or {}
    named = {
        "statement_timeout": 0.001, "transaction_timeout": 0.001, "idle_in_transaction_session_timeout": 0.001,
        "max_statement_time": 1.0,
    }  # fmt: skip
    for name, unit_s in named.items():
        if name in values and 0 < float(values[name]) * unit_s < STATEMENT_S_MIN:
            fix = f"ALTER ROLE … SET {name} = 0" if case.database.kind == "postgresql" else f"SET GLOBAL {name} = 0"
            yield Broken(Severity.WARNING, _subject(case), (f"{name}={values[name]}: {float(values[name]) * unit_s:g} s",), fix)


@rule(
    "DATABASE_FEW_CONNECTIONS",
    Threat.STANDSTILL,
    when="other programs take the connections",
    what="The database allows hardly more connections than the pipeline's tasks need.",
    why="Each task that runs at a time holds one, and so do instep's own commands.",
    mend="Raise max_connections.",
    fine="When nothing else uses the server.",
)
def few_connections(case: Case) -> Iterator[Broken]:
    if case.database.kind == "sqlite":
        return
    allowed = int(case.database_setting("max_connections"))
    user_max = int((case.database.settings or {}).get("max_user_connections", "0"))
    allowed = min(allowed, user_max) if user_max else allowed
    reserved = sum(int((case.database.settings or {}).get(name, "0")) for name in RESERVED)
    allowed -= reserved
    tasks = _tasks(case)
    needed = tasks + CONNECTIONS_SPARE
    if allowed < needed:
        yield Broken(
            Severity.WARNING,
            _subject(case),
            (f"{allowed} connections", f"{tasks} tasks at a time and {CONNECTIONS_SPARE} to spare"),
            f"max_connections = {reserved + 4 * needed}",
        )


def _tasks(case: Case) -> int:
    """How many tasks may run at a time: one a partition, and no more than a local master has threads."""
    threads = re.match(r"local\[(\d+)", case.snapshot.spark.master)
    return min(len(case.topic.partitions), int(threads[1])) if threads else len(case.topic.partitions)


@rule(
    "DATABASE_PACKET_SMALL",
    Threat.LOSS,
    when="a record is larger than the database can keep",
    what="The topic takes larger records than a statement to the database may be.",
    why="A record too large to be set aside whole cannot be kept; it becomes a dead letter with its beginning only.",
    mend="Raise max_allowed_packet.",
    fine="When records are known to be small.",
)
def packet_small(case: Case) -> Iterator[Broken]:
    if _is_mysql(case):
        packet, record = int(case.database_setting("max_allowed_packet")), case.number("max.message.bytes")
        if packet < PACKET_SHARE * record:
            yield Broken(
                Severity.WARNING,
                _subject(case),
                (f"max_allowed_packet={packet}", case.found("max.message.bytes")),
                f"SET GLOBAL max_allowed_packet = {4 * record}",
            )


@rule(
    "DATABASE_BINLOG_BY_STATEMENT",
    Threat.STANDSTILL,
    when="the pipeline writes",
    what="The server logs statements, not rows, for its replicas.",
    why="InnoDB refuses writes at the pipeline's isolation level, READ COMMITTED, when they are logged as statements.",
    mend="Set binlog_format to ROW or MIXED.",
    fine="Never.",
)
def binlog_by_statement(case: Case) -> Iterator[Broken]:
    values = case.database.settings or {}
    if values.get("log_bin", "OFF").upper() in ("ON", "1") and values.get("binlog_format", "ROW").upper() == "STATEMENT":
        yield Broken(
            Severity.ERROR, _subject(case), ("log_bin=ON", "binlog_format=STATEMENT"), "SET GLOBAL binlog_format = 'ROW'"
        )


@rule(
    "DATABASE_RIGHTS_MISSING",
    Threat.STANDSTILL,
    when="the pipeline writes",
    what="The pipeline's user lacks a right on a table it needs.",
    why="The pipeline stops with PERMISSION_LOST.",
    mend="Grant SELECT, INSERT, UPDATE and DELETE on the target's table and on instep's own, and the right to make temporary "
    "tables.",
    fine="DELETE on the target's table, when the source never deletes documents.",
)
def rights_missing(case: Case) -> Iterator[Broken]:
    lacking = case.database.lacking_rights or []
    if lacking:
        needed = [right for right in lacking if right != f"DELETE on {case.pipeline.table}"]
        yield Broken(
            Severity.ERROR if needed else Severity.WARNING,
            _subject(case),
            tuple(f"lacks {right}" for right in lacking),
            case.database.granting,
        )


@rule(
    "DATABASE_ROWS_HIDDEN",
    Threat.STANDSTILL,
    when="a document's row is hidden from the pipeline's user",
    what="Row security hides rows of a table from the pipeline's user.",
    why="A row that is there and not seen looks like a missing document: its insert is refused, and the document parked.",
    mend="Give the user BYPASSRLS, or a policy that shows every row.",
    fine="When the policy shows all rows to this user.",
)
def rows_hidden(case: Case) -> Iterator[Broken]:
    if case.database.row_security:
        yield Broken(
            Severity.WARNING,
            f"table {case.pipeline.table}",
            ("row security is active for the pipeline's user",),
            "ALTER ROLE … BYPASSRLS",
        )


@rule(
    "DATABASE_SUPERUSER",
    Threat.EXPOSURE,
    when="the settings or the pipeline's machine fall into wrong hands",
    what="The pipeline works as a superuser.",
    why="It needs four rights on eight tables, and has all of them on everything.",
    mend="Make a user of its own for the pipeline.",
    fine="On a laptop and in tests.",
)
def superuser(case: Case) -> Iterator[Broken]:
    if case.database.superuser:
        yield Broken(Severity.NOTE, _subject(case), ("the user is a superuser",), f"CREATE ROLE {case.name} LOGIN; GRANT …")


@rule(
    "DATABASE_IN_CLEAR",
    Threat.EXPOSURE,
    when="somebody listens on the network",
    what="A database on another machine is spoken to without encryption.",
    why="Rows can be read and changed on the way, and the login may be.",
    mend="Add sslmode=verify-full and sslrootcert to the target's URL.",
    fine="Within a network that is encrypted itself.",
)
def in_clear(case: Case) -> Iterator[Broken]:
    if case.database.encrypted is False and not is_loopback(case.database.host):
        yield Broken(
            Severity.WARNING,
            _subject(case),
            (f"{case.database.host} without encryption",),
            "target = …?sslmode=verify-full&sslrootcert=ca.pem",
        )


@rule(
    "DATABASE_OLD",
    Threat.STANDSTILL,
    when="a statement that it does not know is needed",
    what="The database is older than the versions instep is made for.",
    why="It may lack statements that instep uses, and gets no more repairs from its makers.",
    mend="Upgrade the server.",
    fine="When the pipeline was tried on it.",
)
def old(case: Case) -> Iterator[Broken]:
    version, least = case.known(case.database.version, f"version of the database of {case.name}"), VERSIONS_MIN
    wanted = least[case.database.kind]
    if version[: len(wanted)] < wanted:
        yield Broken(
            Severity.WARNING,
            _subject(case),
            (f"{case.database.kind} {'.'.join(map(str, version))}",),
            f"{case.database.kind} {'.'.join(map(str, wanted))} or newer",
        )


@rule(
    "DATABASE_ON_NETWORK_DISK",
    Threat.LOSS,
    when="two machines or a lost connection break the file's locks",
    what="The SQLite file lies on a network file system.",
    why="SQLite's write-ahead log needs memory that is shared by all who open the file, and locks that hold. Network file "
    "systems have neither: the file may be damaged.",
    mend="Put the file on a local disk, or use a database server.",
    fine="Never.",
)
def on_network_disk(case: Case) -> Iterator[Broken]:
    if case.database.filesystem in NETWORK_FILESYSTEMS:
        yield Broken(
            Severity.ERROR,
            _subject(case),
            (f"file system {case.database.filesystem}",),
            f"move the file of pipelines.{case.name}.target to a local disk",
        )
