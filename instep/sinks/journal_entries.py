"""What the journal returns: positions in the log, dead letters, parked documents, decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from instep.document.decoding import Record
from instep.document.guard import DocumentId
from instep.sinks.target import Target

# between a topic and the number of a result, of all results of a record but the first; Kafka
# allows no hash in the name of a topic
RESULT_MARK = "#"
LOAD_PREFIX = "load:"  # of a load's name in place of a topic; Kafka allows no colon there


class Action(StrEnum):
    """What a person or a policy did; kept in `instep_decisions`."""

    REPLAYED = "replayed"
    DROPPED = "dropped"
    RELEASED = "released"
    SKIPPED = "skipped"
    REWOUND = "rewound"
    REPAIRED = "repaired"
    GAVE_UP = "gave up"


class SpecialDocuments(msgspec.Struct, frozen=True):
    """Whether any document is parked, and whether the order value of any deleted one is kept."""

    any_parked: bool
    any_deleted: bool

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, ...]]) -> SpecialDocuments:
        """Return the answer of the database, which may have numbers for truth values."""
        [(any_parked, any_deleted)] = rows
        return cls(bool(any_parked), bool(any_deleted))


class RecordPosition(msgspec.Struct, frozen=True, order=True):
    """Where in a log a record is; or a row of a load, whose name is in place of the topic."""

    topic: str
    partition: int
    offset: int

    @property
    def is_loaded(self) -> bool:
        """Return whether this is a row that `instep load` read."""
        return self.topic.startswith(LOAD_PREFIX)

    @property
    def log(self) -> str:
        """Return the topic's name, without the number of a result."""
        return self.topic if self.is_loaded else self.topic.partition(RESULT_MARK)[0]

    @property
    def result(self) -> int:
        """Return the number of the result, if the record has several."""
        return 0 if self.is_loaded else int(self.topic.partition(RESULT_MARK)[2] or 0)

    def __str__(self) -> str:
        result = f"{RESULT_MARK}{self.result}" if self.result else ""
        return f"{self.topic if self.is_loaded else self.partition}:{self.offset}{result}"


def position_of(target: Target, partition: int, number: int) -> RecordPosition:
    """Return where an event is, by its number in the write path; see `document/results.py`."""
    offset, result = divmod(number, target.slots)
    topic = f"{target.topic}{RESULT_MARK}{result}" if result else target.topic
    return RecordPosition(topic, partition, offset)


def number_of(target: Target, position: RecordPosition) -> int:
    """Return the number of an event in the write path, from where it is."""
    if target.slots == 1 or position.log != target.topic:
        return position.offset
    return position.offset * target.slots + position.result


class ParkedAttempts(msgspec.Struct, frozen=True):
    """Since when an event is parked, how often it was redriven, and when the last time."""

    at: datetime
    attempts: int = 0
    tried_at: datetime | None = None


class QuarantinedRecord(msgspec.Struct, frozen=True):
    """A whole record in quarantine, and the reason. A dead letter has no document."""

    position: RecordPosition
    record: Record
    reason: str
    detail: str
    at: datetime
    document: str | None = None
    attempts: int = 0
    tried_at: datetime | None = None

    @property
    def parked(self) -> ParkedAttempts:
        """Return since when it is parked, and the attempts."""
        return ParkedAttempts(self.at, self.attempts, self.tried_at)


class RecordBeginning(msgspec.Struct, frozen=True):
    """A record in quarantine as lists show it: of key and value only the beginnings, and sizes."""

    position: RecordPosition
    timestamp_ms: int
    key: bytes | None
    key_bytes: int | None
    value: bytes | None
    value_bytes: int | None
    reason: str
    detail: str
    at: datetime


class ReasonCount(msgspec.Struct, frozen=True):
    """The dead letters of one reason: how many, and when the first and the last came."""

    reason: str
    count: int
    first: datetime
    last: datetime


class ParkedHead(msgspec.Struct, frozen=True):
    """A parked document: the event that blocks it, and the number of its waiting events."""

    document: str
    waiting: int
    reason: str
    detail: str
    since: datetime
    position: RecordPosition
    attempts: int = 0
    tried_at: datetime | None = None

    @property
    def parked(self) -> ParkedAttempts:
        """Return since when it is parked, and the attempts."""
        return ParkedAttempts(self.since, self.attempts, self.tried_at)


class HistoryEntry(msgspec.Struct, frozen=True):
    """One event of a document in the history."""

    position: RecordPosition
    status: str | None
    order: int | None
    event_time: datetime | None
    verdict: str
    committed_at: datetime


class DecisionRecord(msgspec.Struct, frozen=True):
    """What a person decided about a record: action, outcome, reason and actor."""

    position: RecordPosition
    at: datetime
    document: str | None
    action: str
    outcome: str
    reason: str | None
    actor: str


class Selection(msgspec.Struct, frozen=True):
    """Which records in quarantine a command is about. A field that is not set selects all."""

    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    document: str | None = None
    positions: tuple[RecordPosition, ...] = ()
    up_to: tuple[RecordPosition, ...] = ()  # of each log, the last one; none of other logs

    def __bool__(self) -> bool:
        return self != Selection()


class PartitionRange(msgspec.Struct, frozen=True):
    """A half-open range of offsets of a partition."""

    partition: int
    start: int
    end: int


class SelectedLog(msgspec.Struct, frozen=True):
    """How far a selection reaches in one log: its last position, its size, its latest time."""

    end: RecordPosition
    count: int
    last: datetime


class RowOrigins:
    """Which events wrote the rows of some documents, according to the history."""

    def __init__(self, applied: Iterable[tuple[str, RecordPosition, int | None]]) -> None:
        """Take document, position and order value of applied events, in order of application."""
        self._last: dict[str, RecordPosition] = {}
        self._by_order: dict[tuple[str, int | None], RecordPosition] = {}
        for document, position, order in applied:
            self._last[document] = self._by_order[document, order] = position

    def last(self, document: DocumentId) -> RecordPosition | None:
        """Return the last event that was applied to a document."""
        return self._last.get(str(document))

    def by_order(self, document: DocumentId, order: int | None) -> RecordPosition | None:
        """Return the last event with this order value that was applied to a document."""
        return self._by_order.get((str(document), order))
