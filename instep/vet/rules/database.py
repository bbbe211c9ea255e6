"""Rules about the target database: durability, limits, rights, constraints and encryption."""

from __future__ import annotations

import re
from collections.abc import Iterator

from instep.vet import remedies
from instep.vet.rule import Risk, RuleContext, Severity, Violation, error_if, rule, warning_if
from instep.vet.rules.cluster import is_loopback

VERSIONS_MIN = {"postgresql": (13,), "mariadb": (10, 6), "mysql": (8, 0, 19), "sqlite": (3, 35)}
STATEMENT_S_MIN = 30.0
IDLE_S_MIN = 60.0
PASSWORD_DAYS_MIN = 30
CLOCK_S_MAX = 5.0
CONNECTIONS_SPARE = 5  # for instep's own commands
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


def is_mysql(case: RuleContext) -> bool:
    return case.database.kind in ("mariadb", "mysql")


def _url(case: RuleContext) -> str:
    """Return the name of the setting with the database's URL."""
    return f"pipelines.{case.name}.target"


def _subject(case: RuleContext) -> str:
    return f"the database of {case.name}"


@rule(
    "DATABASE_UNREACHABLE",
    Risk.STANDSTILL,
    when="now",
    what="The target database does not answer or refuses the login.",
    consequence="Nothing can be applied until it answers. A running pipeline waits, and the log "
    "keeps new records in the meantime.",
    remedy="Start it, or correct target in the settings.",
    acceptable_when="If it is down on purpose, for less than the log's retention.",
)
def unreachable(case: RuleContext) -> Iterator[Violation]:
    database = case.known(case.snapshot.databases.get(case.name), f"database of {case.name}")
    if database.unreachable:
        problem, _, remedy = database.unreachable.partition("\n")
        yield Violation(
            Severity.ERROR,
            _subject(case),
            (problem,),
            remedy or f"correct pipelines.{case.name}.target",
        )


@rule(
    "DATABASE_READ_ONLY",
    Risk.STANDSTILL,
    when="the pipeline is started",
    what="The database accepts no writes: it is a standby or set to read-only.",
    consequence="The pipeline stops with TARGET_READ_ONLY.",
    remedy="Point target to the server that accepts writes.",
    acceptable_when="During a planned switchover.",
)
def read_only(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    named = ("in_recovery", "transaction_read_only", "read_only", "super_read_only", "tx_read_only")
    read_only_settings = [name for name in named if values.get(name, "off").lower() in ("on", "1")]
    if read_only_settings:
        fix = f"change the host in pipelines.{case.name}.target to that of the primary server"
        # A default can be changed. A standby cannot be written to, whatever its settings are.
        is_standby = values.get("in_recovery", "off") != "off"
        if values.get("default_transaction_read_only", "off") == "on" and not is_standby:
            name = "default_transaction_read_only"
            fix = remedies.setting(case.database, name, "off", _url(case))
        yield Violation(
            Severity.ERROR,
            _subject(case),
            tuple(f"{name}={values[name]}" for name in read_only_settings),
            fix,
        )


@rule(
    "DATABASE_CRASH_SAFETY_OFF",
    Risk.LOSS,
    when="the database server loses power",
    what="The database does not ensure that pages reach the disk complete and in order.",
    consequence="After a power failure its files may be damaged in any way: rows and ledger may "
    "disagree, and no guarantee holds.",
    remedy="Turn the setting on again.",
    acceptable_when="In tests, and for databases that can be thrown away.",
)
def crash_safety_off(case: RuleContext) -> Iterator[Violation]:
    wanted = {"postgresql": ("fsync", "full_page_writes")}.get(
        case.database.kind, ("innodb_doublewrite",)
    )
    if case.database.kind == "sqlite":
        return
    for name in wanted:
        if case.database_setting(name).lower() in ("off", "0", "false"):
            fix = f"set {name} = ON in the server's my.cnf, then restart the server"
            if case.database.kind == "postgresql":
                fix = remedies.setting(case.database, name, "on", _url(case))
            yield Violation(
                error_if(case.must_not_lose),
                _subject(case),
                (f"{name}={case.database_setting(name)}",),
                fix,
            )


@rule(
    "DATABASE_COMMITS_ASYNCHRONOUSLY",
    Risk.REPETITION,
    when="the database crashes",
    what="The database confirms a commit before it is on disk.",
    consequence="After a crash the last transactions are missing. Nothing is lost: the ledger is "
    "in the same database and goes back with the rows, or further, and the pipeline applies those "
    "records again.",
    remedy="Turn the setting on again.",
    acceptable_when="For speed, as long as the log still has the records.",
)
def commits_asynchronously(case: RuleContext) -> Iterator[Violation]:
    settings = {"postgresql": ("synchronous_commit", ("off",), "on")}
    name, weak, strong = settings.get(
        case.database.kind, ("innodb_flush_log_at_trx_commit", ("0", "2"), "1")
    )
    if case.database.kind != "sqlite" and case.database_setting(name).lower() in weak:
        yield Violation(
            Severity.NOTE,
            _subject(case),
            (f"{name}={case.database_setting(name)}",),
            remedies.setting(case.database, name, strong, _url(case)),
        )


# For each timeout: its unit in seconds, and the shortest time that does not disturb a pipeline.
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
    when="a batch takes longer than the database allows, or no event arrives for a while",
    what="The database cancels statements, transactions or idle connections after a short time.",
    consequence="A full batch takes seconds while a pipeline catches up. A cancelled batch is "
    "rolled back and retried, again and again. An idle connection that is closed must be opened "
    "again for the next event.",
    remedy="Raise the timeout for the pipeline's user.",
    acceptable_when="If batches are small: lower batch_rows_max.",
)
def timeout_short(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    for name, (unit_s, least_s) in TIMEOUTS.items():
        seconds = float(values.get(name, 0)) * unit_s
        if 0 < seconds < least_s:
            # wait_timeout has no value that means no limit; this is its default.
            wanted = "28800" if name == "wait_timeout" else "0"
            yield Violation(
                Severity.WARNING,
                _subject(case),
                (f"{name}={values[name]}: {seconds:g} s{_source(case, name)}",),
                remedies.setting(case.database, name, wanted, _url(case)),
            )


def _source(case: RuleContext, name: str) -> str:
    source = case.database.sources.get(name)
    return f" (set by: {source})" if source else ""


@rule(
    "DATABASE_CONNECTION_LIMIT_LOW",
    Risk.STANDSTILL,
    when="other programs use up the connections",
    what="The connection limit of the server, the database or the user is hardly higher than the "
    "pipeline needs.",
    consequence="Every running task uses one connection, and so do instep's own commands.",
    remedy="Raise the limit that the finding names: max_connections, or the limit of the role, the "
    "account or the database.",
    acceptable_when="If nothing else uses the server.",
)
def connection_limit_low(case: RuleContext) -> Iterator[Violation]:
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
        # The limit of an account also appears as a session variable: report it once.
        if limit < needed and not (
            name == "max_user_connections" and "MAX_USER_CONNECTIONS" in allowed
        ):
            wanted = 4 * needed + (reserved if name == "max_connections" else 0)
            yield Violation(
                error_if(limit <= tasks),
                _subject(case),
                (
                    f"{_limit_name(name)}: {limit}",
                    f"needed: {tasks} for tasks and {CONNECTIONS_SPARE} to spare",
                ),
                remedies.connection_limit(case.database, name, wanted, _url(case)),
            )


def _limit_name(limit: str) -> str:
    named = {
        "ROLE_CONNECTIONS": "connection limit of the role",
        "DATABASE_CONNECTIONS": "connection limit of the database",
    }
    if limit in named:
        return named[limit]
    return f"{limit} of the account" if limit.isupper() else limit


def _tasks(case: RuleContext) -> int:
    """Return how many tasks may run at once: one per partition, limited by local threads."""
    tasks = len(case.topic.partitions)
    # In local mode, Spark runs no more tasks at once than it has threads.
    threads = re.match(r"local\[(\d+)", case.snapshot.spark.master)
    return min(tasks, int(threads[1])) if threads else tasks


@rule(
    "DATABASE_HOURLY_LIMITS",
    Risk.STANDSTILL,
    when="the account has used up its statements or connections for the hour",
    what="The pipeline's account has a limit of statements, changes or connections per hour.",
    consequence="MariaDB and MySQL refuse everything beyond the limit, and the pipeline waits "
    "until the hour is over.",
    remedy="Set the limits of the account to 0, which means unlimited.",
    acceptable_when="Never for a pipeline.",
)
def hourly_limits(case: RuleContext) -> Iterator[Violation]:
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
    consequence="Open connections stay open. The next one is refused, and nothing is applied until "
    "the password is changed.",
    remedy="Set a new password with a later VALID UNTIL.",
    acceptable_when="If someone changes the password in time.",
)
def password_expires(case: RuleContext) -> Iterator[Violation]:
    left_s = case.database.password_valid_s
    if left_s is not None and left_s < PASSWORD_DAYS_MIN * 86_400:
        expiry = "has expired"
        if left_s > 0:
            expiry = f"expires in {left_s / 86_400:.0f} days"
        yield Violation(
            error_if(left_s < 86_400),
            _subject(case),
            (f"the password of {case.database.user} {expiry}",),
            f"ALTER ROLE {case.database.user} VALID UNTIL 'infinity'",
        )


@rule(
    "DATABASE_CONSTRAINT_CHECKS_OFF",
    Risk.DISORDER,
    when="an event has a value that the table would refuse",
    what="The pipeline's sessions do not check foreign keys or unique keys, or do not run "
    "triggers.",
    consequence="Rows that violate the table's constraints are written silently, and triggers that "
    "other programs rely on do not run.",
    remedy="Turn the checks on for the pipeline's user.",
    acceptable_when="While a copy of the database is being loaded.",
)
def constraint_checks_off(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    if values.get("session_replication_role", "origin") == "replica":
        fix = remedies.setting(case.database, "session_replication_role", "origin", _url(case))
        yield Violation(
            Severity.WARNING, _subject(case), ("session_replication_role=replica",), fix
        )
    for name in ("foreign_key_checks", "unique_checks"):
        if values.get(name, "ON").upper() in ("OFF", "0"):
            yield Violation(
                Severity.WARNING,
                _subject(case),
                (f"{name}={values[name]}",),
                remedies.setting(case.database, name, "ON", _url(case)),
            )


@rule(
    "DATABASE_ISOLATION_TOO_STRICT",
    Risk.STANDSTILL,
    when="another program changes the same rows at the same time",
    what="Transactions of the pipeline's user are REPEATABLE READ or SERIALIZABLE by default.",
    consequence="PostgreSQL then refuses a transaction that conflicts with the change of another "
    "one, and the whole batch is written again. The pipeline locks what it needs and is correct at "
    "READ COMMITTED.",
    remedy="Set default_transaction_isolation to read committed for the pipeline's user.",
    acceptable_when="If no other program writes to the table.",
)
def isolation_too_strict(case: RuleContext) -> Iterator[Violation]:
    name = "default_transaction_isolation"
    value = (case.database.settings or {}).get(name, "read committed")
    if value in ("repeatable read", "serializable"):
        yield Violation(
            Severity.WARNING,
            _subject(case),
            (f"{name}={value}{_source(case, name)}",),
            remedies.setting(case.database, name, "'read committed'", _url(case)),
        )


@rule(
    "DATABASE_SYNCHRONOUS_STANDBY",
    Risk.STANDSTILL,
    when="the standby that must confirm every commit is down",
    what="Every commit waits for a standby server.",
    consequence="If too few of the named standbys are connected, a commit waits forever, and so "
    "does the pipeline.",
    remedy="Run one standby more than synchronous_standby_names requires.",
    acceptable_when="If losing rows with the primary's disk is not acceptable and a standstill is.",
)
def synchronous_standby(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    names = values.get("synchronous_standby_names", "")
    if names and values.get("synchronous_commit") not in ("off", "local"):
        yield Violation(
            Severity.NOTE,
            _subject(case),
            (f"synchronous_standby_names={names}",),
            "SELECT application_name, sync_state FROM pg_stat_replication shows whether enough"
            " of them are connected",
        )


@rule(
    "DATABASE_LOGS_STATEMENTS",
    Risk.EXPOSURE,
    when="someone reads the server's log",
    what="The server writes every statement to its log.",
    consequence="The log then contains the values of documents, uses disk space as fast as the "
    "pipeline writes, and slows it down.",
    remedy="Turn statement logging off.",
    acceptable_when="For a while, to find a problem.",
)
def logs_statements(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    if values.get("log_statement") in ("mod", "all"):
        fix = remedies.setting(case.database, "log_statement", "ddl", _url(case))
        yield Violation(
            Severity.NOTE, _subject(case), (f"log_statement={values['log_statement']}",), fix
        )
    if values.get("general_log", "OFF").upper() in ("ON", "1"):
        fix = remedies.setting(case.database, "general_log", "OFF", _url(case))
        yield Violation(Severity.NOTE, _subject(case), ("general_log=ON",), fix)


@rule(
    "DATABASE_BINLOG_NOT_SYNCED",
    Risk.LOSS,
    when="the database server loses power and a replica takes over",
    what="The server does not sync its binary log to disk at each commit.",
    consequence="After a power failure the binary log may lack committed transactions or contain "
    "rolled back ones: replicas and the primary no longer have the same rows.",
    remedy="Set sync_binlog to 1.",
    acceptable_when="If the server has no replicas.",
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
            remedies.setting(case.database, "sync_binlog", "1", _url(case)),
        )


@rule(
    "DATABASE_MAX_PACKET_SMALL",
    Risk.LOSS,
    when="a record is larger than the database can store",
    what="The topic accepts larger records than a statement to the database can hold.",
    consequence="A record that is too large for the quarantine cannot be kept in full: it becomes "
    "a dead letter with only its beginning.",
    remedy="Raise max_allowed_packet.",
    acceptable_when="If records are known to be small.",
)
def max_packet_small(case: RuleContext) -> Iterator[Violation]:
    if is_mysql(case):
        packet = int(case.database_setting("max_allowed_packet"))
        record = case.number("max.message.bytes")
        if packet < PACKET_SHARE * record:
            yield Violation(
                Severity.WARNING,
                _subject(case),
                (f"max_allowed_packet={packet}", case.evidence("max.message.bytes")),
                remedies.setting(
                    case.database, "max_allowed_packet", str(_packet(4 * record)), _url(case)
                ),
            )


def _packet(wanted: int) -> int:
    """Return a size that the server accepts unchanged: a multiple of 1024, at most 1 GiB."""
    # The server rounds down to a multiple of 1024, and accepts at most 1 GiB.
    return min(2**30, -(-wanted // 1024) * 1024)


@rule(
    "DATABASE_BINLOG_FORMAT_STATEMENT",
    Risk.STANDSTILL,
    when="the pipeline writes",
    what="The server's binary log contains statements, not rows.",
    consequence="InnoDB refuses writes at READ COMMITTED, the pipeline's isolation level, if they "
    "are logged as statements.",
    remedy="Set binlog_format to ROW or MIXED.",
    acceptable_when="Never.",
)
def binlog_format_statement(case: RuleContext) -> Iterator[Violation]:
    values = case.database.settings or {}
    if (
        values.get("log_bin", "OFF").upper() in ("ON", "1")
        and values.get("binlog_format", "ROW").upper() == "STATEMENT"
    ):
        yield Violation(
            Severity.ERROR,
            _subject(case),
            ("log_bin=ON", "binlog_format=STATEMENT"),
            remedies.setting(case.database, "binlog_format", "ROW", _url(case)),
        )


@rule(
    "DATABASE_RIGHTS_MISSING",
    Risk.STANDSTILL,
    when="the pipeline writes",
    what="The pipeline's user lacks a right on a table that it needs.",
    consequence="The pipeline stops with PERMISSION_LOST.",
    remedy="Grant SELECT, INSERT, UPDATE and DELETE on the target table and on instep's own "
    "tables, and the right to create temporary tables.",
    acceptable_when="For DELETE on the target table, if the source never deletes documents.",
)
def rights_missing(case: RuleContext) -> Iterator[Violation]:
    lacking = case.database.lacking_rights or []
    if lacking:
        # Without this right, only deletes fail.
        needed = [right for right in lacking if right != f"DELETE on {case.pipeline.table}"]
        yield Violation(
            error_if(needed),
            _subject(case),
            tuple(f"lacks {right}" for right in lacking),
            case.database.granting,
        )


@rule(
    "DATABASE_USER_IS_SUPERUSER",
    Risk.EXPOSURE,
    when="the settings or the pipeline's machine are compromised",
    what="The pipeline runs as a superuser or administrator: root, or an account with all rights.",
    consequence="It needs four rights on a few tables, but has every right on everything. Limits, "
    "row security and timeouts that protect other users may not apply to it.",
    remedy="Create a separate user for the pipeline.",
    acceptable_when="On a laptop and in tests.",
)
def user_is_superuser(case: RuleContext) -> Iterator[Violation]:
    if case.database.superuser:
        yield Violation(
            warning_if(not is_loopback(case.database.host)),
            _subject(case),
            (f"{case.database.user or 'the user'} has every right on the server",),
            remedies.own_account(case.database, case.name, [*case.database.engines]),
        )


@rule(
    "DATABASE_NOT_ENCRYPTED",
    Risk.EXPOSURE,
    when="someone listens on the network",
    what="The connection to a database on another machine is not encrypted.",
    consequence="Rows can be read and changed in transit, and possibly the login.",
    remedy="Add sslmode=verify-full and sslrootcert to the target's URL.",
    acceptable_when="On a network that is itself encrypted.",
)
def not_encrypted(case: RuleContext) -> Iterator[Violation]:
    if case.database.encrypted is False and not is_loopback(case.database.host):
        yield Violation(
            Severity.WARNING,
            _subject(case),
            (f"{case.database.host} without encryption",),
            "add ?sslmode=verify-full&sslrootcert=ca.pem to the end of"
            f" pipelines.{case.name}.target",
        )


@rule(
    "DATABASE_CERTIFICATE_NOT_VERIFIED",
    Risk.EXPOSURE,
    when="someone on the network impersonates the server",
    what="The connection to a database on another machine is encrypted, but the server is not "
    "verified.",
    consequence="Without sslmode=verify-full, the server's certificate or its host name is not "
    "checked: anyone in between can read everything, including the password.",
    remedy="Use sslmode=verify-full with the CA certificate in sslrootcert.",
    acceptable_when="On a network where no one can intercept connections.",
)
def certificate_not_verified(case: RuleContext) -> Iterator[Violation]:
    facts = case.database
    if facts.encrypted and not is_loopback(facts.host) and facts.sslmode != "verify-full":
        yield Violation(
            # verify-ca checks who signed the certificate, but not for which host.
            warning_if(facts.sslmode != "verify-ca"),
            _subject(case),
            (f"sslmode={facts.sslmode or 'not set'} to {facts.host}",),
            "set sslmode=verify-full&sslrootcert=ca.pem in the options of"
            f" pipelines.{case.name}.target",
        )


@rule(
    "DATABASE_VERSION_OLD",
    Risk.STANDSTILL,
    when="instep needs a statement that this version does not have",
    what="The database is older than the versions that instep supports.",
    consequence="It may lack statements that instep uses, and its vendor no longer fixes it.",
    remedy="Upgrade the server.",
    acceptable_when="If the pipeline has been tested on it.",
)
def version_old(case: RuleContext) -> Iterator[Violation]:
    version = case.known(case.database.version, f"version of the database of {case.name}")
    wanted = VERSIONS_MIN[case.database.kind]
    if version[: len(wanted)] < wanted:
        yield Violation(
            Severity.WARNING,
            _subject(case),
            (f"{case.database.kind} {'.'.join(map(str, version))}",),
            f"upgrade to {case.database.kind} {'.'.join(map(str, wanted))} or newer",
        )


@rule(
    "DATABASE_SQLITE_ON_NETWORK_DISK",
    Risk.LOSS,
    when="two machines or a lost connection break the file's locks",
    what="The SQLite file is on a network file system.",
    consequence="SQLite's write-ahead log needs memory that all processes share, and reliable "
    "locks. Network file systems have neither: the file may be damaged.",
    remedy="Move the file to a local disk, or use a database server.",
    acceptable_when="Never.",
)
def sqlite_on_network_disk(case: RuleContext) -> Iterator[Violation]:
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
    when="times of the database and of this machine are compared",
    what="The clock of the database differs from the clock of this machine.",
    consequence="Times that triggers, defaults and other programs take from the database do not "
    "match the pipeline's own times.",
    remedy="Synchronize all clocks with NTP.",
    acceptable_when="Never for long.",
)
def clock_differs(case: RuleContext) -> Iterator[Violation]:
    ahead_s = case.database.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) > CLOCK_S_MAX:
        word = "ahead of" if ahead_s > 0 else "behind"
        evidence = f"its clock is {abs(ahead_s):.1f} s {word} ours"
        yield Violation(
            Severity.WARNING,
            _subject(case),
            (evidence,),
            "synchronize the clocks, preferably with NTP",
        )
