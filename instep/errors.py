"""Every error a user can meet, by type.

    InstepError                   what happened, to what, and what to do next
    ├── SettingsError             wrong usage or settings                         exit 2
    │   ├── TargetUnfit           the table cannot hold what the mapping says
    │   ├── NoSuchDocument        the table cannot have a document of this id
    │   └── TopicMissing          the topic is not there
    ├── MissingPart               Java, a package or a fetched file is missing    exit 2
    ├── SparkGone                 Spark's JVM was killed or ran out of memory     exit 1
    ├── Unreachable               no answer from a server; waited for             exit 2
    │   ├── BrokerUnreachable
    │   ├── DatabaseUnreachable
    │   │   └── DatabaseMissing   the server has no database of that name
    │   └── DatabaseFull          no room left
    ├── NotAuthorised             a server answered: wrong password, or no right  exit 2
    ├── Undelivered               a record was not taken by the broker            exit 1
    ├── Transient                 deadlock, lock time-out: the same again may work
    │   ├── Outrun                another writer changed the same documents
    │   └── TooMuchAtOnce         a time-out or a limit: smaller transactions may work
    ├── StartAgain                nothing is wrong, but the query must start again
    │   ├── LedgerMoved           the ledger is not where this run left it
    │   └── TableConstrained      the table has got a constraint or a trigger
    ├── RowRefused                the target table refuses a row
    │   ├── ParentMissing         by a foreign key: the row it points to is not there
    │   └── TransactionUndone     and the database has undone the whole transaction
    └── NamedStop                 ends a pipeline; the database is untouched      exit 3
        ├── Fenced                FENCED
        ├── TopicGone             TOPIC_GONE
        ├── TopicReplaced         TOPIC_REPLACED
        ├── LogDiverged           LOG_DIVERGED
        ├── OffsetsExpired        OFFSETS_EXPIRED
        ├── TargetChanged         TARGET_CHANGED
        ├── TargetReadOnly        TARGET_READ_ONLY
        ├── PermissionLost        PERMISSION_LOST
        └── AccessLost            ACCESS_LOST

Callers retry by type, never by text. Each driver's errors are translated in one place, beside the driver. Each type has a
usual remedy, for errors that are raised without one of their own.
"""

from __future__ import annotations

import re
from typing import ClassVar


class InstepError(Exception):
    """Something instep was asked for could not be done."""

    exit_status: ClassVar[int] = 1
    usual_remedy: ClassVar[str] = (
        "run the same command with --debug to see more; if it happens again, report it with that output"
    )

    def __init__(self, what: str, remedy: str = "") -> None:
        remedy = remedy or self.usual_remedy
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n{self.remedy}"


class SettingsError(InstepError):
    """The command line or the settings file asks for something that cannot be."""

    exit_status = 2
    usual_remedy = "correct it; `instep settings` shows every value in force and where it comes from, --help what a command takes"


class TargetUnfit(SettingsError):
    """The target table cannot hold what the mapping says; the remedy is the statement that mends it."""

    usual_remedy = "see what the table lacks: instep init --sql"


class NoSuchDocument(SettingsError):
    """The id that was given cannot be a document of the table: its key column has another type."""


class TopicMissing(SettingsError):
    """The topic is not on the cluster; the remedy is the command that creates it."""

    usual_remedy = "see which topics there are: instep topics list"


class MissingPart(InstepError):
    """Something that must be installed or fetched is not there."""

    exit_status = 2
    usual_remedy = "install it, then run the command again; `instep doctor` shows what is missing"


class SparkGone(InstepError):
    """Spark's JVM ended or stopped answering: it was killed, or ran out of memory."""

    usual_remedy = "run the command again; if it happens again, give it more memory: [spark] memory"


class Unreachable(InstepError):
    """A server gave no answer. A running pipeline waits for it."""

    exit_status = 2
    usual_remedy = "start the server, or correct its address in the settings; `instep doctor` tries each address"


class BrokerUnreachable(Unreachable):
    """No Kafka broker answered."""

    usual_remedy = (
        "start the broker, or correct kafka.bootstrap; `instep doctor` tries each address"
    )


class DatabaseUnreachable(Unreachable):
    """The target database gave no answer, or the connection to it broke."""

    usual_remedy = "start the database, or correct host and port in `target`; `instep doctor` tries the connection"


class DatabaseMissing(DatabaseUnreachable):
    """The database server has no database of the name that the target's URL gives; it may be put back."""

    usual_remedy = (
        "create the database on that server (CREATE DATABASE ...), or correct its name in `target`"
    )


class DatabaseFull(Unreachable):
    """The target database has no room left. A running pipeline waits until there is."""

    usual_remedy = (
        "free space on the disk of the database; a running pipeline then goes on by itself"
    )


class NotAuthorised(InstepError):
    """The server answered and refused: a wrong password or a missing right."""

    exit_status = 2
    usual_remedy = (
        "check the user and the password in the settings, and what that user may do on the server"
    )


class Undelivered(InstepError):
    """The broker did not take a record, so the source must not count it as published."""

    usual_remedy = "send the record again once the broker takes it; `instep doctor` checks the broker and the topic"


class Transient(InstepError):
    """The database gave this transaction up (deadlock, lock time-out); the same again may work."""

    usual_remedy = "run the command again; a running pipeline tries again by itself"


class Outrun(Transient):
    """Documents were not as they had just been read: another writer came between, or the table passes rows over."""


class TooMuchAtOnce(Transient):
    """The transaction reached a time-out or a limit of the database. The batch is applied in smaller transactions."""


class StartAgain(InstepError):
    """What a query was started with holds no longer. It is started again, by itself."""

    usual_remedy = "nothing needs to be done: the pipeline starts again from the ledger by itself"


class TableConstrained(StartAgain):
    """The table has got a constraint or a trigger since the query was started, and must be let judge every event from now on."""


class LedgerMoved(StartAgain):
    """The ledger is not where this run left it: it was rewound, or a backup was put back. The query starts from it again."""


class RowRefused(InstepError):
    """The target table refuses a row: a constraint, a trigger or a value that does not fit."""

    usual_remedy = "compare the row with the table's constraints and triggers; a running pipeline parks it: instep parked list"


class ParentMissing(RowRefused):
    """A foreign key refuses a row: the row that it refers to does not exist, or a row that is deleted is referred to."""


class TransactionUndone(RowRefused):
    """The target table refused a row, and the database has rolled back the whole transaction rather than one statement."""


class NamedStop(InstepError):
    """A pipeline ended on purpose, before anything wrong was written. Each has a page of its own."""

    exit_status = 3
    usual_remedy = "see what happened and what to run: instep explain CODE"
    code: ClassVar[str] = "STOPPED"

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()} (instep explain {self.code})"


class Fenced(NamedStop):
    """A newer run of the same pipeline took over; this one must not write any more."""

    code = "FENCED"
    usual_remedy = "end the other run first if this one should go on; then: instep run"


class TopicGone(NamedStop):
    """The topic that the ledger knows was deleted."""

    code = "TOPIC_GONE"
    usual_remedy = (
        "create the topic again and decide where to begin: instep rewind; then: instep run"
    )


class TopicReplaced(NamedStop):
    """The topic was deleted and made again, or belongs to another cluster: the ledger's offsets mean nothing there."""

    code = "TOPIC_REPLACED"
    usual_remedy = "decide where to begin in the new topic: instep rewind; then: instep run"


class LogDiverged(NamedStop):
    """The log no longer holds what was applied: it was truncated or lost its newest records."""

    code = "LOG_DIVERGED"
    usual_remedy = "compare the table with the log: instep reconcile; then decide where to go on: instep rewind"


class OffsetsExpired(NamedStop):
    """Records that were not applied yet are no longer in the log."""

    code = "OFFSETS_EXPIRED"
    usual_remedy = (
        "decide where to go on: instep rewind; then see what is missing: instep reconcile"
    )


class TargetChanged(NamedStop):
    """The target table or one of instep's own tables is no longer what the pipeline was started on."""

    code = "TARGET_CHANGED"
    usual_remedy = "put the table back as it was, or see what it lacks: instep init --sql; then start the pipeline: instep run"


class TargetReadOnly(NamedStop):
    """The target database takes no writes."""

    code = "TARGET_READ_ONLY"
    usual_remedy = "make the database writable again, or point `target` to the one that is; then start the pipeline: instep run"


class PermissionLost(NamedStop):
    """The target database refuses a statement that the pipeline needs."""

    code = "PERMISSION_LOST"
    usual_remedy = "have the pipeline's user granted SELECT, INSERT, UPDATE and DELETE on that table again; then start it: instep run"


class AccessLost(NamedStop):
    """A server that the pipeline worked with does not accept it any more: a password, a certificate or a right on the topic."""

    code = "ACCESS_LOST"
    usual_remedy = "have the access granted again, or correct the settings; then: instep run"


# What a statement that writes rows may raise because of a single row. A trigger can fail with any code, also with one that
# usually means a missing table or right, so the last two are believed only after a look at the table.
MAY_BE_A_ROW = (RowRefused, TargetChanged, PermissionLost)


def code_of(error: InstepError) -> str:
    """A short name for an error: the code of a named stop, else its type in the same spelling."""
    if isinstance(error, NamedStop):
        return error.code
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).upper()
