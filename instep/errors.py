"""Every error a user can meet, by type.

    InstepError                   what happened, to what, and what to do next
    ├── SettingsError             wrong usage or settings                         exit 2
    │   ├── TargetUnfit           the table does not fit the mapping
    │   ├── NoSuchDocument        the table cannot have a document with this id
    │   ├── NotParked             the document is not parked, or no longer
    │   ├── NotBlocking           another event than the named one blocks the document
    │   ├── TopicMissing          the topic does not exist
    │   └── PortTaken             another program listens on the port
    │       └── PortLost          it took the port while the server was starting
    ├── MissingPart               Java, a package or a fetched file is missing    exit 2
    ├── SparkGone                 Spark's JVM was killed or ran out of memory     exit 1
    ├── Unreachable               a server does not answer; a run waits for it    exit 2
    │   ├── BrokerUnreachable
    │   ├── DatabaseUnreachable
    │   │   └── DatabaseMissing   the server has no database with that name
    │   ├── DatabaseFull          no space left
    │   ├── ArchiveUnusable       the table of an archive cannot be read or written
    │   └── SourceUnreachable     the source's query service does not answer
    ├── NotAuthorised             wrong password or certificate, no permission    exit 2
    ├── BridgeBusy                another process uses the bridge's state file    exit 2
    ├── StateUnusable             a bridge's state file cannot be used            exit 2
    ├── Undelivered               the broker did not accept a record              exit 1
    ├── NotReached                the pipeline has not reached a record in time   exit 1
    ├── Transient                 deadlock, lock timeout: a retry may succeed
    │   ├── Outrun                another writer changed the same documents
    │   └── TooMuchAtOnce         a timeout or a limit: use smaller transactions
    ├── StartAgain                nothing is wrong, but the flow must restart
    │   ├── LedgerMoved           the ledger is not where this run left it
    │   ├── TableConstrained      the table got a constraint or a trigger
    │   └── SessionEnded          a relay or a stream starts a new session
    │       └── LeaseLost         another relay process has taken over
    ├── RowRefused                the target table refuses a row
    │   ├── ParentMissing         a foreign key does: the parent row does not exist
    │   └── TransactionUndone     and the database rolled back the transaction
    └── NamedStop                 ends a job, relay or sink before harm is done         exit 3
        ├── Fenced                FENCED
        ├── TopicGone             TOPIC_GONE
        ├── TopicReplaced         TOPIC_REPLACED
        ├── LogDiverged           LOG_DIVERGED
        ├── OffsetsExpired        OFFSETS_EXPIRED
        ├── TargetChanged         TARGET_CHANGED
        ├── TargetReadOnly        TARGET_READ_ONLY
        ├── PermissionLost        PERMISSION_LOST
        ├── AccessLost            ACCESS_LOST
        ├── SourceRestored        SOURCE_RESTORED
        ├── PositionMissing       POSITION_MISSING
        ├── ForeignTransactions   FOREIGN_TRANSACTIONS
        ├── OutboxRowTooLarge     OUTBOX_ROW_TOO_LARGE
        ├── OutboxRowInvalid      OUTBOX_ROW_INVALID
        ├── OutputTopicChanged    OUTPUT_TOPIC_CHANGED
        ├── PositionForeign       POSITION_FOREIGN
        ├── OutputKeyMissing      OUTPUT_KEY_MISSING
        ├── OutputTooLarge        OUTPUT_TOO_LARGE
        ├── RecordNotTransformed  RECORD_NOT_TRANSFORMED
        ├── CheckpointReplaced    CHECKPOINT_REPLACED
        ├── BatchDiffers          BATCH_DIFFERS
        ├── BatchesMissing        BATCHES_MISSING
        ├── StagingLost           STAGING_LOST
        ├── KeyNotUnique          KEY_NOT_UNIQUE
        ├── SinkCalledTwice       SINK_CALLED_TWICE
        ├── KpiChanged            KPI_CHANGED
        ├── ArchiveGone           ARCHIVE_GONE
        ├── ArchiveReplaced       ARCHIVE_REPLACED
        ├── ArchiveRestored       ARCHIVE_RESTORED
        └── ArchiveChanged        ARCHIVE_CHANGED

Callers retry by type, never by text. Each driver's errors are translated in one place, beside the
driver. Each type has a usual remedy, for errors that are raised without one of their own.
"""

from __future__ import annotations

import re
from typing import ClassVar


class InstepError(Exception):
    """A command or a pipeline failed."""

    exit_status: ClassVar[int] = 1
    usual_remedy: ClassVar[str] = (
        "run the same command with --debug to see more;"
        " if it happens again, report it with that output"
    )

    def __init__(self, what: str, remedy: str = "") -> None:
        remedy = remedy or self.usual_remedy
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n{self.remedy}"


class SettingsError(InstepError):
    """The command line or the settings file is wrong."""

    exit_status = 2
    usual_remedy = (
        "correct it; `instep settings` shows every effective value and where it comes from,"
        " --help shows the options of a command"
    )


class TargetUnfit(SettingsError):
    """The target table does not fit the mapping; the remedy is the statement that corrects it."""

    usual_remedy = "see what the table is missing: instep init --sql"

    def __init__(self, what: str, remedy: str = "", sink_remedy: str = "") -> None:
        """Take the remedy, and that for a Spark sink if it needs another: it has no settings."""
        super().__init__(what, remedy)
        self.sink_remedy = sink_remedy or self.remedy


class NoSuchDocument(SettingsError):
    """The given id cannot be a document of the table: its key column has another type."""


class NotParked(SettingsError):
    """The named document is not parked, or no longer."""

    usual_remedy = "list the parked documents: instep parked list"


class NotBlocking(SettingsError):
    """Another event than the named one blocks the document, or blocks it now."""

    usual_remedy = "see which event blocks it: instep parked show"


class TopicMissing(SettingsError):
    """The topic does not exist; the remedy is the command that creates it."""

    usual_remedy = "list the topics: instep topics list"


class PortTaken(SettingsError):
    """Another program listens on the port."""

    usual_remedy = "stop that program, or choose another port"


class PortLost(PortTaken):
    """Another program took the port between the check and the start."""


class MissingPart(InstepError):
    """Something that must be installed or fetched is missing."""

    exit_status = 2
    usual_remedy = "install it, then run the command again; `instep doctor` shows what is missing"


class SparkGone(InstepError):
    """Spark's JVM ended or stopped answering: it was killed, or ran out of memory."""

    usual_remedy = "run the command again; if it happens again, give it more memory: [spark] memory"


class Unreachable(InstepError):
    """A server does not answer. A running pipeline waits for it."""

    exit_status = 2
    usual_remedy = (
        "start the server, or correct its address in the settings;"
        " `instep doctor` tries each address"
    )


class BrokerUnreachable(Unreachable):
    """No Kafka broker answered."""

    usual_remedy = (
        "start the broker, or correct kafka.bootstrap; `instep doctor` tries each address"
    )


class DatabaseUnreachable(Unreachable):
    """The target database does not answer, or the connection to it broke."""

    usual_remedy = (
        "start the database, or correct host and port in `target`;"
        " `instep doctor` tries the connection"
    )


class DatabaseMissing(DatabaseUnreachable):
    """The database server has no database with the name in the target's URL."""

    usual_remedy = (
        "create the database on that server (CREATE DATABASE ...), or correct its name in `target`"
    )


class DatabaseFull(Unreachable):
    """The target database has no space left. A running pipeline waits until it has."""

    usual_remedy = (
        "free space on the disk of the database; a running pipeline then continues by itself"
    )


class ArchiveUnusable(Unreachable):
    """The table of an archive cannot be read or written. A running archive waits."""

    usual_remedy = (
        "check `path`, its permissions and the free space there, and for an object store its"
        " address and credentials; a running archive then continues by itself"
    )


class SourceUnreachable(Unreachable):
    """The source's query service does not answer. A running bridge waits for it."""

    usual_remedy = (
        "check that the service is running and that `url` is correct;"
        " `instep poll` then continues where it stopped"
    )


class BridgeBusy(InstepError):
    """Another process polls with the same state file."""

    exit_status = 2
    usual_remedy = "end the other process, or give this bridge a state file of its own: `state`"


class StateUnusable(InstepError):
    """A bridge cannot read or write its state file."""

    exit_status = 2
    usual_remedy = (
        "free space and make the file and its folder writable for this user; without the file,"
        " the bridge publishes every document again, which does no harm"
    )


class NotAuthorised(InstepError):
    """The server answered and refused: a wrong password or a missing permission."""

    exit_status = 2
    usual_remedy = (
        "check the user and the password in the settings, and the user's permissions on the server"
    )


class Undelivered(InstepError):
    """The broker did not accept a record, so the source must not count it as published."""

    usual_remedy = (
        "send the record again when the broker accepts it;"
        " `instep doctor` checks the broker and the topic"
    )


class NotReached(InstepError):
    """The pipeline has not reached a record in the time that the caller was ready to wait."""

    usual_remedy = "check that the pipeline is running, and its lag: instep status"


class Transient(InstepError):
    """The database aborted this transaction (deadlock, lock timeout); a retry may succeed."""

    usual_remedy = "run the command again; a running pipeline retries by itself"


class Outrun(Transient):
    """Documents changed since they were read: by another writer, or the table drops rows."""


class TooMuchAtOnce(Transient):
    """The transaction reached a timeout or a limit of the database.

    The batch is applied in smaller transactions.
    """


class StartAgain(InstepError):
    """Something that the flow was started with has changed. The pipeline restarts it."""

    usual_remedy = "nothing to do: the pipeline restarts from the ledger by itself"


class OutputsTooLarge(InstepError):
    """A batch of records yields more than the driver should hold at once."""

    usual_remedy = "nothing to do: the stream reads the records again, in smaller batches"


class TableConstrained(StartAgain):
    """A constraint or trigger was added while the flow was running.

    The flow restarts so that every event is checked against it.
    """


class LedgerMoved(StartAgain):
    """The ledger is not where this run left it: it was rewound, or a backup was restored.

    The flow restarts from the ledger.
    """


class RowRefused(InstepError):
    """The target table refuses a row: a constraint, a trigger or a value that does not fit."""

    usual_remedy = (
        "compare the row with the table's constraints and triggers;"
        " a running pipeline parks it: instep parked list"
    )


class ParentMissing(RowRefused):
    """A foreign key refuses a row.

    The row that it refers to does not exist, or a row to delete is still referred to.
    """


class TransactionUndone(RowRefused):
    """The target table refused a row, and the database rolled back the whole transaction."""


class SessionEnded(StartAgain):
    """Nobody knows what became of the last Kafka transaction. A new session finds out."""

    usual_remedy = "nothing to do: a new session starts by itself"


class LeaseLost(SessionEnded):
    """Another process of the same relay has taken over."""


class NamedStop(InstepError):
    """A pipeline ended on purpose, before it wrote anything wrong. Each code has its own page."""

    exit_status = 3
    usual_remedy = "read what happened and what to do: instep explain CODE"
    code: ClassVar[str] = "STOPPED"

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()} (instep explain {self.code})"


class Fenced(NamedStop):
    """A newer run of the same pipeline has taken over; this one must not write any more."""

    code = "FENCED"
    usual_remedy = "end the other run first if this one should continue; then: instep run"


class TopicGone(NamedStop):
    """The topic that the ledger knows was deleted."""

    code = "TOPIC_GONE"
    usual_remedy = (
        "create the topic again and decide where to start: instep rewind; then: instep run"
    )


class TopicReplaced(NamedStop):
    """The topic was deleted and created again, or belongs to another cluster.

    The ledger's offsets mean nothing there.
    """

    code = "TOPIC_REPLACED"
    usual_remedy = "decide where to start in the new topic: instep rewind; then: instep run"


class LogDiverged(NamedStop):
    """The log no longer has what was applied: it was truncated or lost its newest records."""

    code = "LOG_DIVERGED"
    usual_remedy = (
        "compare the table with the log: instep reconcile;"
        " then decide where to continue: instep rewind"
    )


class OffsetsExpired(NamedStop):
    """Records that were not applied yet are no longer in the log."""

    code = "OFFSETS_EXPIRED"
    usual_remedy = (
        "decide where to continue: instep rewind; then see what is missing: instep reconcile"
    )


class TargetChanged(NamedStop):
    """The target table, or one of instep's own tables, has changed since the pipeline started."""

    code = "TARGET_CHANGED"
    usual_remedy = (
        "undo the change, or see what the table is missing: instep init --sql;"
        " then start the pipeline: instep run"
    )


class TargetReadOnly(NamedStop):
    """The target database is read-only."""

    code = "TARGET_READ_ONLY"
    usual_remedy = (
        "make the database writable again, or set `target` to the writable one;"
        " then start the pipeline: instep run"
    )


class PermissionLost(NamedStop):
    """The target database refuses a statement that the pipeline needs."""

    code = "PERMISSION_LOST"
    usual_remedy = (
        "grant SELECT, INSERT, UPDATE and DELETE on that table to the pipeline's user again;"
        " then start the pipeline: instep run"
    )


class AccessLost(NamedStop):
    """A server no longer accepts the pipeline.

    Its password, its certificate or a permission on the topic has changed.
    """

    code = "ACCESS_LOST"
    usual_remedy = "grant the access again, or correct the settings; then: instep run"


class SourceRestored(NamedStop):
    """The source database is older than what the relay has published from it, or another one."""

    code = "SOURCE_RESTORED"
    usual_remedy = "decide which rows to publish: instep relay reset; then: instep relay run"
    fades = False  # whether a source that goes on being used will no longer show it


class PositionMissing(NamedStop):
    """A relay or a stream has published before, but its position is no longer in Kafka."""

    code = "POSITION_MISSING"
    usual_remedy = (
        "decide where to continue: instep relay reset, or, for a stream, instep stream reset;"
        " then start it again"
    )


class ForeignTransactions(NamedStop):
    """Rows of the outbox carry transaction ids of another PostgreSQL cluster."""

    code = "FOREIGN_TRANSACTIONS"
    usual_remedy = "decide which rows to publish: instep relay reset; then: instep relay run"


class OutboxRowTooLarge(NamedStop):
    """The topic does not accept a record of this size, and the settings say to stop."""

    code = "OUTBOX_ROW_TOO_LARGE"
    usual_remedy = (
        'raise max.message.bytes of the topic, or set too_large = "dead-letter";'
        " then: instep relay run"
    )


class OutboxRowInvalid(NamedStop):
    """No record can be made of a row of the outbox, and the settings say to stop."""

    code = "OUTBOX_ROW_INVALID"
    usual_remedy = (
        'correct or delete the row, or set invalid = "dead-letter"; then: instep relay run'
    )


class OutputTopicChanged(NamedStop):
    """The topic that a relay or a stream publishes to was replaced, or has grown."""

    code = "OUTPUT_TOPIC_CHANGED"
    usual_remedy = (
        "accept the topic as it is now: instep relay reset --to current, or, for a stream,"
        " instep stream reset --to current; then start it again"
    )


class PositionForeign(NamedStop):
    """The position of a stream is that of a stream between other topics."""

    code = "POSITION_FOREIGN"
    usual_remedy = "decide where to continue: instep stream reset; then: instep run"


class OutputKeyMissing(NamedStop):
    """A stream made a record without a key, and the settings name no topic for dead letters."""

    code = "OUTPUT_KEY_MISSING"
    usual_remedy = (
        "let the transformation give every record a key, or set dead_letters of the stream;"
        " then: instep run"
    )


class OutputTooLarge(NamedStop):
    """A stream made a record that is too large, and there is no topic for dead letters."""

    code = "OUTPUT_TOO_LARGE"
    usual_remedy = (
        "raise max.message.bytes of the output topic, or set dead_letters of the stream;"
        " then: instep run"
    )


class RecordNotTransformed(NamedStop):
    """The transformation of a stream fails on a record; there is no topic for dead letters."""

    code = "RECORD_NOT_TRANSFORMED"
    usual_remedy = (
        "correct the transformation, for example with try_cast, or set dead_letters of the stream;"
        " then: instep run"
    )


class CheckpointReplaced(NamedStop):
    """Another streaming query writes to a sink: the checkpoint was deleted, or is another one.

    Its batch ids begin again, so none of them can be compared with what is applied.
    """

    code = "CHECKPOINT_REPLACED"
    usual_remedy = (
        "give each query's sink a name of its own, or let the sink accept the new query:"
        " instep sink adopt; then start it again"
    )


class BatchDiffers(NamedStop):
    """A batch of a streaming query comes again, with other rows than those that are applied."""

    code = "BATCH_DIFFERS"
    usual_remedy = (
        "end other queries with the same checkpoint; then let the sink accept the batch as a new"
        " one: instep sink adopt"
    )


class BatchesMissing(NamedStop):
    """A streaming query is ahead of its sink: the batches before were never applied here."""

    code = "BATCHES_MISSING"
    usual_remedy = (
        "restore the checkpoint that belongs to this database, or accept the gap: instep sink adopt"
    )


class StagingLost(NamedStop):
    """Rows that a task staged for a sink are no longer in the database."""

    code = "STAGING_LOST"
    usual_remedy = "start the query again: Spark repeats the batch"


class KeyNotUnique(NamedStop):
    """A batch has several rows with the same key, and no order that says which is the latest."""

    code = "KEY_NOT_UNIQUE"
    usual_remedy = "aggregate to one row per key, or name the column that orders them: order"


class SinkCalledTwice(NamedStop):
    """A function for foreachBatch calls the same sink again with other rows of a batch."""

    code = "SINK_CALLED_TWICE"
    usual_remedy = "union the rows and call the sink once, or give each sink its own name"


class KpiChanged(NamedStop):
    """The settings of a KPI were changed after it had counted: its rows mean something else."""

    code = "KPI_CHANGED"
    usual_remedy = (
        "undo the change, or count again: instep reconcile --kpi NAME --fix --execute;"
        " then: instep run"
    )


class ArchiveGone(NamedStop):
    """An archive has a position, but its table is no longer there."""

    code = "ARCHIVE_GONE"
    usual_remedy = "restore the folder, or correct `path`; then: instep run"


class ArchiveReplaced(NamedStop):
    """The table at an archive's path is not the one that belongs to it."""

    code = "ARCHIVE_REPLACED"
    usual_remedy = "give the archive its own folder: `path`; then: instep run"


class ArchiveRestored(NamedStop):
    """The table of an archive lacks rows below its position: it was restored, or rows deleted."""

    code = "ARCHIVE_RESTORED"
    usual_remedy = "restore the newest version of the table; then: instep run"


class ArchiveChanged(NamedStop):
    """The table of an archive was altered, so that an archive can no longer write to it."""

    code = "ARCHIVE_CHANGED"
    usual_remedy = "undo the change, or set `path` to a new folder; then: instep run"


# What a statement that writes rows may raise because of a single row. A trigger can fail with any
# code, even with one that usually means a missing table or permission, so the last two only count
# after the table was checked.
MAY_BE_A_ROW = (RowRefused, TargetChanged, PermissionLost)


def code_of(error: InstepError) -> str:
    """Return a short code for an error: the code of a named stop, else from its type."""
    if isinstance(error, NamedStop):
        return error.code
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).upper()
