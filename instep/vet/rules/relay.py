"""Rules about relays: the source database and the outbox. See output.py for what they publish."""

from __future__ import annotations

from collections.abc import Iterator

from instep.document.showing import counted
from instep.vet import remedies
from instep.vet.rule import RelayContext, Risk, Severity, Violation, rule
from instep.vet.rules.cluster import is_loopback
from instep.vet.rules.database import NETWORK_FILESYSTEMS
from instep.vet.rules.pipeline import table_identity

OFF = ("off", "0", "false")
SQLITE_FULL = 2  # PRAGMA synchronous
READ_ONLY = ("in_recovery", "read_only", "super_read_only", "default_transaction_read_only")


def _subject(case: RelayContext) -> str:
    return f"the source of {case.label}"


def _setting(case: RelayContext, name: str, value: str) -> str:
    """Return the statement that changes a setting of the source."""
    return remedies.setting(case.source.database, name, value, f"relays.{case.name}.source")


# --- the source database --------------------------------------------------------------------------


@rule(
    "RELAY_SOURCE_UNREACHABLE",
    Risk.STANDSTILL,
    when="now",
    what="The source database of a relay does not answer or refuses the login.",
    consequence="Nothing is published until it answers. The rows wait in the outbox.",
    remedy="Start it, or correct source in the settings.",
    acceptable_when="If it is down on purpose.",
)
def source_unreachable(case: RelayContext) -> Iterator[Violation]:
    unreachable = case.relay.source_facts.database.unreachable
    if unreachable:
        problem, _, remedy = unreachable.partition("\n")
        yield Violation(
            Severity.ERROR,
            _subject(case),
            (problem,),
            remedy or f"correct relays.{case.name}.source",
        )


@rule(
    "RELAY_NOT_INITIALISED",
    Risk.STANDSTILL,
    when="now: the relay cannot start",
    what="The outbox, the relay's own tables or its position topic do not exist.",
    consequence="The relay refuses to start. If only the position topic is missing although "
    "something was published, it stops with POSITION_MISSING: instep explain POSITION_MISSING.",
    remedy="Run instep relay init.",
    acceptable_when="Before instep relay init has been run.",
)
def not_initialised(case: RelayContext) -> Iterator[Violation]:
    missing = list(case.source.missing)
    if case.snapshot.topics.get(case.relay.position_topic) is None:
        missing.append(f"topic {case.relay.position_topic}")
    if missing:
        yield Violation(
            Severity.ERROR,
            case.label,
            tuple(f"{what} does not exist" for what in missing),
            f"instep relay init {case.name}",
        )


@rule(
    "RELAY_SOURCE_READ_ONLY",
    Risk.STANDSTILL,
    when="now: the relay waits",
    what="The source database accepts no writes: it is a standby or set to read-only.",
    consequence="The relay cannot renew its lease or remove published rows, so it publishes "
    "nothing and waits.",
    remedy="Point source to the server that accepts writes.",
    acceptable_when="During a planned switchover.",
)
def source_read_only(case: RelayContext) -> Iterator[Violation]:
    values = case.source.database.settings or {}
    found = [name for name in READ_ONLY if values.get(name, "off").lower() in ("on", "1")]
    if not found:
        return
    fix = f"change the host in relays.{case.name}.source to that of the primary server"
    if found == ["default_transaction_read_only"]:
        fix = _setting(case, found[0], "off")
    yield Violation(
        Severity.ERROR, _subject(case), tuple(f"{name}={values[name]}" for name in found), fix
    )


@rule(
    "RELAY_SOURCE_SEVERAL_WRITABLE_NODES",
    Risk.DISORDER,
    when="two nodes change the same document",
    what="Several nodes of the source's cluster accept writes.",
    consequence="Each node gives out its own ids, so a document's later change may have a lower id "
    "than its earlier one, and is published first. A node that has not applied the other's rows "
    "yet shows an outbox without them.",
    remedy="Write to one node: group_replication_switch_to_single_primary_mode(), or a proxy that "
    "sends all writes to one node of a Galera cluster.",
    acceptable_when="If the application and the relay always use the same node, for example "
    "through a proxy.",
)
def several_writable_nodes(case: RelayContext) -> Iterator[Violation]:
    if case.source.database.kind not in ("mariadb", "mysql"):
        return
    nodes = case.known(case.source.writable_nodes, f"writable nodes of the source of {case.name}")
    if nodes <= 1:
        return
    values = case.source.database.settings or {}
    if values.get("wsrep_on", "OFF").upper() in ("ON", "1"):
        kind = "Galera cluster (wsrep_on=ON)"
        fix = (
            f"send all writes to one node through a proxy, and put its address into"
            f" relays.{case.name}.source"
        )
    else:
        kind = "replication group in multi-primary mode"
        fix = "SELECT group_replication_switch_to_single_primary_mode()"
    yield Violation(Severity.WARNING, _subject(case), (f"{nodes} writable nodes in a {kind}",), fix)


@rule(
    "RELAY_SOURCE_CRASH_SAFETY_OFF",
    Risk.LOSS,
    when="the server of the source loses power",
    what="The source database does not ensure that pages reach the disk complete and in order.",
    consequence="After a power failure its files may be damaged in any way: rows of the outbox may "
    "be missing or published again.",
    remedy="Turn the setting on again.",
    acceptable_when="In tests, and for databases that can be thrown away.",
)
def source_crash_safety_off(case: RelayContext) -> Iterator[Violation]:
    kind = case.source.database.kind
    if kind == "sqlite":
        return
    wanted = ("fsync", "full_page_writes") if kind == "postgresql" else ("innodb_doublewrite",)
    for name in wanted:
        value = case.source_setting(name)
        if value.lower() in OFF:
            fix = f"set {name} = ON in the server's my.cnf, then restart the server"
            if kind == "postgresql":
                fix = _setting(case, name, "on")
            yield Violation(Severity.ERROR, _subject(case), (f"{name}={value}",), fix)


@rule(
    "RELAY_SOURCE_COMMITS_NOT_DURABLE",
    Risk.LOSS,
    when="the source database or its machine crashes",
    what="The source confirms a commit before it is on disk.",
    consequence="A crash undoes the last transactions. Some of them may have been published by "
    "then: the target shows changes that the source no longer has, and the relay stops with "
    "SOURCE_RESTORED. On PostgreSQL, MariaDB and MySQL 8.0.30 or later the relay waits until a "
    "transaction is on disk before it publishes it, so source and target stay equal, and both lose "
    "the change.",
    remedy="Turn the setting on again: synchronous_commit = on, "
    "innodb_flush_log_at_trx_commit = 1, sync_binlog = 1, PRAGMA synchronous = FULL.",
    acceptable_when="On PostgreSQL, if the application accepts the loss of its last transactions.",
)
def source_commits_not_durable(case: RelayContext) -> Iterator[Violation]:
    database = case.source.database
    match database.kind:
        case "postgresql":
            value = case.source_setting("synchronous_commit")
            if value.lower() == "off":
                yield Violation(
                    Severity.NOTE,
                    _subject(case),
                    (f"synchronous_commit={value}",),
                    _setting(case, "synchronous_commit", "on"),
                )
        case "sqlite":
            value = case.source_setting("synchronous")
            if int(value) < SQLITE_FULL:
                yield Violation(
                    Severity.WARNING,
                    _subject(case),
                    (f"synchronous={value} (default of the SQLite library on this machine)",),
                    "run PRAGMA synchronous = FULL on every connection of the application: SQLite"
                    " does not store this setting",
                )
        case _:
            yield from _mysql_commits_not_durable(case)


def _mysql_commits_not_durable(case: RelayContext) -> Iterator[Violation]:
    value = case.source_setting("innodb_flush_log_at_trx_commit")
    if value != "1":
        yield Violation(
            Severity.ERROR,
            _subject(case),
            (f"innodb_flush_log_at_trx_commit={value}",),
            _setting(case, "innodb_flush_log_at_trx_commit", "1"),
        )
    values = case.source.database.settings or {}
    # After a crash, InnoDB rolls a transaction back that the binary log does not have.
    if values.get("log_bin", "OFF").upper() in ("ON", "1"):
        synced = case.source_setting("sync_binlog")
        if synced != "1":
            yield Violation(
                Severity.WARNING,
                _subject(case),
                ("log_bin=ON", f"sync_binlog={synced}"),
                _setting(case, "sync_binlog", "1"),
                when="the machine of the source database loses power",
            )


@rule(
    "RELAY_SQLITE_NOT_WAL",
    Risk.STANDSTILL,
    when="the application writes a lot",
    what="The SQLite database of the outbox is not in WAL mode.",
    consequence="Readers and writers exclude each other: the relay and the application wait for "
    "each other, and the application may get SQLITE_BUSY.",
    remedy="PRAGMA journal_mode = WAL. instep relay init sets it.",
    acceptable_when="If the application needs another mode and writes rarely.",
)
def sqlite_not_wal(case: RelayContext) -> Iterator[Violation]:
    if case.source.database.kind == "sqlite":
        mode = case.source_setting("journal_mode")
        if mode.lower() != "wal":
            yield Violation(
                Severity.WARNING,
                _subject(case),
                (f"journal_mode={mode}",),
                "PRAGMA journal_mode = WAL",
            )


@rule(
    "RELAY_SQLITE_ON_NETWORK_DISK",
    Risk.LOSS,
    when="two processes open the file",
    what="The SQLite file of the outbox is on a network file system.",
    consequence="SQLite needs locks that network file systems do not keep reliably. The file can "
    "be damaged.",
    remedy="Put the file on a local disk.",
    acceptable_when="Never.",
)
def sqlite_on_network_disk(case: RelayContext) -> Iterator[Violation]:
    database = case.source.database
    if database.kind == "sqlite" and database.filesystem in NETWORK_FILESYSTEMS:
        yield Violation(
            Severity.ERROR,
            _subject(case),
            (f"file system {database.filesystem}",),
            f"move the file to a local disk and correct relays.{case.name}.source",
        )


# --- the outbox -----------------------------------------------------------------------------------


@rule(
    "RELAY_SEQUENCE_CACHED",
    Risk.DISORDER,
    when="two connections change the same document one after the other",
    what="Connections reserve ids of the outbox in advance.",
    consequence="A connection that reserved ids earlier gives a lower id to a later change. If the "
    "relay reads both changes at once, it publishes them in the wrong order.",
    remedy="ALTER SEQUENCE … CACHE 1.",
    acceptable_when="If every document is changed by one connection only.",
)
def sequence_cached(case: RelayContext) -> Iterator[Violation]:
    cache = case.source.sequence_cache
    if cache is not None and cache > 1:
        yield Violation(
            Severity.ERROR,
            f"table {case.relay.outbox}",
            (f"{case.source.sequence} has CACHE {cache}",),
            f"ALTER SEQUENCE {case.source.sequence} CACHE 1",
        )


@rule(
    "RELAY_ID_NOT_AUTOINCREMENT",
    Risk.LOSS,
    when="the outbox becomes empty and the next row gets an id that was used before",
    what="The database does not give out the ids of the outbox, or gives out some of them twice.",
    consequence="The relay knows by the id what it has published. A repeated id looks like a "
    "source that was restored from a backup: the relay stops with SOURCE_RESTORED. On SQLite, only "
    "AUTOINCREMENT prevents that ids of deleted rows are used again. If the relay adds ids as "
    "versions (version = …), a repeated id is also an old version, and pipelines drop the event.",
    remedy="Create the outbox with instep relay init, which uses AUTOINCREMENT and AUTO_INCREMENT. "
    "Then let ids continue above those that were published: instep relay reset NAME --to end.",
    acceptable_when="If the application ensures that every id is higher than all before it.",
)
def id_not_autoincrement(case: RelayContext) -> Iterator[Violation]:
    if case.source.is_id_generated is not False:
        return
    outbox = case.relay.outbox
    quoted = case.source.database.quoted(*outbox.split("."))
    column = case.source.database.quoted(case.source.id_column)
    match case.source.database.kind:
        case "sqlite":
            missing = "AUTOINCREMENT"
            # SQLite cannot change a column.
            fix = f"DROP TABLE {quoted}; instep relay init {case.name}"
        case "postgresql":
            missing = "an identity column, nor from a sequence"
            fix = (
                f"ALTER TABLE {quoted} ALTER COLUMN {column} ADD GENERATED BY DEFAULT AS IDENTITY"
                " (CACHE 1)"
            )
        case _:
            missing = "AUTO_INCREMENT"
            fix = f"ALTER TABLE {quoted} MODIFY {column} BIGINT NOT NULL AUTO_INCREMENT"
    # The new counter begins at 1, also if the relay has published higher ids.
    fix = (
        f"stop the application; once the relay has published every row, stop it, too; {fix};"
        f" instep relay reset {case.name} --to end --execute"
    )
    yield Violation(
        Severity.ERROR,
        f"table {outbox}",
        (f"{outbox}.{case.source.id_column} is not {missing}",),
        fix,
    )


@rule(
    "RELAY_TABLE_WITHOUT_TRANSACTIONS",
    Risk.LOSS,
    when="the application rolls back or the source database crashes",
    what="A table of the relay uses a storage engine without transactions, or is unlogged.",
    consequence="Rows of the outbox do not share the fate of the business transaction: changes "
    "that were rolled back are published, and committed ones can be missing after a crash.",
    remedy="ALTER TABLE … ENGINE = InnoDB, or ALTER TABLE … SET LOGGED.",
    acceptable_when="Never.",
)
def table_without_transactions(case: RelayContext) -> Iterator[Violation]:
    database = case.source.database
    for table, engine in database.engines.items():
        quoted = database.quoted(*table.split("."))
        if database.kind == "postgresql":
            is_safe, change = engine == "logged", "SET LOGGED"
        else:
            is_safe, change = engine.lower() == "innodb", "ENGINE = InnoDB"
        if not is_safe:
            yield Violation(
                Severity.ERROR, f"table {table}", (engine,), f"ALTER TABLE {quoted} {change}"
            )


@rule(
    "RELAY_OUTBOX_SHARED",
    Risk.LOSS,
    when="both relays run",
    what="Two relays read the same outbox.",
    consequence="A relay removes what it has published. The other one never sees those rows.",
    remedy="Give each relay its own outbox.",
    acceptable_when="Never.",
)
def outbox_shared(case: RelayContext) -> Iterator[Violation]:
    mine = case.snapshot.declared_relays.get(case.name)
    if mine is None:
        return
    identity = table_identity(mine.source, mine.outbox)
    others = [
        name
        for name, other in case.snapshot.declared_relays.items()
        if name != case.name and table_identity(other.source, other.outbox) == identity
    ]
    if others:
        shared = ", ".join(sorted((case.name, *others)))
        yield Violation(
            Severity.ERROR,
            f"table {mine.outbox}",
            (f"relays {shared} read it",),
            f'[relays.{case.name}]\noutbox = "{mine.outbox}_{case.name}"',
        )


@rule(
    "RELAY_HAS_DEAD_ROWS",
    Risk.LOSS,
    when="now: those changes are not published",
    what="The relay could not publish some rows.",
    consequence="They are kept in instep_outbox_dead. Later changes of these documents were "
    "published without them.",
    remedy="See the reasons: instep relay dead. Make the records smaller or raise the topic's "
    "max.message.bytes, or correct ids and headers; add the rows to the outbox again, and delete "
    "them from instep_outbox_dead.",
    acceptable_when="If someone has looked at them and decided to leave them.",
)
def has_dead_rows(case: RelayContext) -> Iterator[Violation]:
    dead = case.source.dead_rows
    if dead:
        yield Violation(
            Severity.WARNING,
            case.label,
            (f"{counted(dead, 'row')} in instep_outbox_dead",),
            f"instep relay dead {case.name}",
        )


# --- the position --------------------------------------------------------------------------------


@rule(
    "RELAY_SOURCE_CHANGED",
    Risk.STANDSTILL,
    when="now: the relay stops with SOURCE_RESTORED",
    what="The relay's position belongs to another source database.",
    consequence="Which rows are published is not known there. The relay stops before it publishes "
    "anything.",
    remedy="Correct source, or decide what is published: instep explain SOURCE_RESTORED.",
    acceptable_when="Never.",
)
def source_changed(case: RelayContext) -> Iterator[Violation]:
    position, source_id = case.relay.position, case.source.source_id
    if position is not None and source_id is not None and position.source_id != source_id:
        yield Violation(
            Severity.ERROR,
            _subject(case),
            ("its tables were created again, or it is another database",),
            f"correct relays.{case.name}.source, or see what to decide: instep explain"
            " SOURCE_RESTORED",
        )


# --- exposure -------------------------------------------------------------------------------------


@rule(
    "RELAY_SOURCE_NOT_ENCRYPTED",
    Risk.EXPOSURE,
    when="someone listens on the network",
    what="The connection to the source database is not encrypted.",
    consequence="The password's exchange and every change of the outbox can be read on the way.",
    remedy="Require TLS in the URL: sslmode=verify-full, or ssl_ca for MariaDB and MySQL.",
    acceptable_when="On this machine, and in a network that is encrypted itself.",
)
def source_not_encrypted(case: RelayContext) -> Iterator[Violation]:
    database = case.source.database
    if database.encrypted is False and database.host and not is_loopback(database.host):
        option = "sslmode=verify-full" if database.kind == "postgresql" else "ssl_ca=/path/ca.pem"
        yield Violation(
            Severity.WARNING,
            _subject(case),
            (f"the connection to {database.host} is not encrypted",),
            f"add ?{option} to relays.{case.name}.source",
        )


@rule(
    "RELAY_PASSWORD_IN_FILE",
    Risk.EXPOSURE,
    when="someone reads the settings file, or it is committed to a repository",
    what="The password of the source database is in the settings file.",
    consequence="Settings are copied, shown and kept in version control, and the password with "
    "them.",
    remedy="Write ${SOURCE_PASSWORD} instead, and set the variable where the relay runs.",
    acceptable_when="On a laptop and in tests.",
)
def password_in_file(case: RelayContext) -> Iterator[Violation]:
    if case.relay.password_written:
        yield Violation(
            Severity.NOTE,
            case.label,
            (f"relays.{case.name}.source contains a password",),
            f"write ${{SOURCE_PASSWORD}} instead of the password in relays.{case.name}.source,"
            " and export SOURCE_PASSWORD",
        )
