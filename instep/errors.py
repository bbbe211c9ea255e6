"""Every error a user can meet, by type.

    InstepError                   what happened, to what, and what to do next
    ├── SettingsError             wrong usage or settings                         exit 2
    │   ├── TargetUnfit           the table cannot hold what the mapping says
    │   └── TopicMissing          the topic is not there
    ├── MissingPart               Java, a package or a fetched file is missing    exit 2
    ├── Unreachable               no answer from a server; waited for             exit 2
    │   ├── BrokerUnreachable
    │   ├── DatabaseUnreachable
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

Callers retry by type, never by text. Each driver's errors are translated in one place, beside the driver.
"""

from __future__ import annotations

import re
from typing import ClassVar


class InstepError(Exception):
    """Something instep was asked for could not be done."""

    exit_status: ClassVar[int] = 1
    usual_remedy: ClassVar[str] = ""

    def __init__(self, what: str, remedy: str = "") -> None:
        remedy = remedy or self.usual_remedy
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n{self.remedy}" if self.remedy else self.what


class SettingsError(InstepError):
    """The command line or the settings file asks for something that cannot be."""

    exit_status = 2


class TargetUnfit(SettingsError):
    """The target table cannot hold what the mapping says; the remedy is the statement that mends it."""


class TopicMissing(SettingsError):
    """The topic is not on the cluster; the remedy is the command that creates it."""


class MissingPart(InstepError):
    """Something that must be installed or fetched is not there."""

    exit_status = 2


class Unreachable(InstepError):
    """A server gave no answer. A running pipeline waits for it."""

    exit_status = 2


class BrokerUnreachable(Unreachable):
    """No Kafka broker answered."""


class DatabaseUnreachable(Unreachable):
    """The target database gave no answer, or the connection to it broke."""


class DatabaseFull(Unreachable):
    """The target database has no room left. A running pipeline waits until there is."""


class NotAuthorised(InstepError):
    """The server answered and refused: a wrong password or a missing right."""

    exit_status = 2


class Undelivered(InstepError):
    """The broker did not take a record, so the source must not count it as published."""


class Transient(InstepError):
    """The database gave this transaction up (deadlock, lock time-out); the same again may work."""


class Outrun(Transient):
    """Documents were not as they had just been read: another writer came between, or the table passes rows over."""


class TooMuchAtOnce(Transient):
    """The transaction reached a time-out or a limit of the database. The batch is applied in smaller transactions."""


class StartAgain(InstepError):
    """What a query was started with holds no longer. It is started again, by itself."""


class TableConstrained(StartAgain):
    """The table has got a constraint or a trigger since the query was started, and must be let judge every event from now on."""


class LedgerMoved(StartAgain):
    """The ledger is not where this run left it: it was rewound, or a backup was put back. The query starts from it again."""


class RowRefused(InstepError):
    """The target table refuses a row: a constraint, a trigger or a value that does not fit."""


class TransactionUndone(RowRefused):
    """The target table refused a row, and the database has rolled back the whole transaction rather than one statement."""


class NamedStop(InstepError):
    """A pipeline ended on purpose, before anything wrong was written. Each has a page of its own."""

    exit_status = 3
    code: ClassVar[str] = "STOPPED"

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()} (docs/stops/{self.code}.md)"


class Fenced(NamedStop):
    """A newer run of the same pipeline took over; this one must not write any more."""

    code = "FENCED"


class TopicGone(NamedStop):
    """The topic that the ledger knows was deleted."""

    code = "TOPIC_GONE"


class TopicReplaced(NamedStop):
    """The topic was deleted and made again, or belongs to another cluster: the ledger's offsets mean nothing there."""

    code = "TOPIC_REPLACED"


class LogDiverged(NamedStop):
    """The log no longer holds what was applied: it was truncated or lost its newest records."""

    code = "LOG_DIVERGED"


class OffsetsExpired(NamedStop):
    """Records that were not applied yet are no longer in the log."""

    code = "OFFSETS_EXPIRED"


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
    usual_remedy = (
        "have the pipeline's user granted SELECT, INSERT, UPDATE and DELETE on that table again; then start it: instep run"
    )


class AccessLost(NamedStop):
    """A server that the pipeline worked with does not accept it any more: a password, a certificate or a right on the topic."""

    code = "ACCESS_LOST"


# What a statement that writes rows may raise because of a single row. A trigger can fail with any code, also with one that
# usually means a missing table or right, so the last two are believed only after a look at the table.
MAY_BE_A_ROW = (RowRefused, TargetChanged, PermissionLost)


def code_of(error: InstepError) -> str:
    """A short name for an error: the code of a named stop, else its type in the same spelling."""
    if isinstance(error, NamedStop):
        return error.code
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).upper()
