"""The journal: history, dead letters, parked events, decisions, and deleted documents.

Every transaction that applies a batch adds to it; `instep parked`, `instep dead`,
`instep replay` and others read and change it. A caller that changes quarantine holds the
transaction and locks all ledger rows, so that people and tasks take turns.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from instep.document import kinds, results
from instep.document.decoding import DeadLetter, Event, Record
from instep.document.due import AppliedStatus
from instep.document.guard import DocumentId, Parked, Verdict
from instep.document.reasons import Reason
from instep.sinks.connection import Connection, Rows
from instep.sinks.journal_entries import (
    LOAD_PREFIX,
    RESULT_MARK,
    Action,
    DecisionRecord,
    HistoryEntry,
    ParkedAttempts,
    ParkedHead,
    PartitionRange,
    QuarantinedRecord,
    ReasonCount,
    RecordBeginning,
    RecordPosition,
    RowOrigins,
    SelectedLog,
    Selection,
    SpecialDocuments,
    number_of,
    position_of,
)
from instep.sinks.stored_values import chunks, decode_headers, encode_headers, kept_text, utc_time
from instep.sinks.target import Decision

HISTORY_COLUMNS = (
    "pipeline",
    "topic",
    "partition",
    "offset",
    "document",
    "status",
    "order_value",
    "event_time",
    "verdict",
    "committed_at",
    "ledger_offset",
)
DECISION_COLUMNS = (
    "pipeline",
    "topic",
    "partition",
    "offset",
    "at",
    "document",
    "action",
    "outcome",
    "reason",
    "actor",
)
DEAD_LETTER_COLUMNS = (
    "pipeline",
    "topic",
    "partition",
    "offset",
    "timestamp_ms",
    "key",
    "value",
    "headers",
    "reason",
    "detail",
    "at",
)
PARKED_COLUMNS = ("document", *DEAD_LETTER_COLUMNS)
DELETED_COLUMNS = ("pipeline", "document", "order_value")

# the tables that every batch may add rows to, and those whose rows name a position in the log
WRITTEN_TABLES = ("instep_history", "instep_dead_letters", "instep_parked")
POSITION_TABLES = (*WRITTEN_TABLES, "instep_decisions")

POSITION = "topic, {partition}, {offset}"
RECORD = POSITION + ", timestamp_ms, {key}, {value}, headers, reason, detail, {at}"
# As lists show records: they may be large, and there may be many.
BEGINNING_SHOWN_BYTES = 1_024
BEGINNING = (
    f"{POSITION}, timestamp_ms, substr({{key}}, 1, {BEGINNING_SHOWN_BYTES}), length({{key}}),"
    f" substr({{value}}, 1, {BEGINNING_SHOWN_BYTES}), length({{value}}), reason, detail, {{at}}"
)
IN_LOG_ORDER = " ORDER BY topic, {partition}, {offset}"
AT_POSITION = " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND {offset} = ?"
NEWEST_COMMITTED = " ORDER BY committed_at DESC, topic DESC, {partition} DESC, {offset} DESC"
AFTER_POSITION = (
    " AND (topic > ? OR (topic = ? AND ({partition} > ? OR ({partition} = ? AND {offset} > ?))))"
)
IN_RANGE = (
    " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND {offset} >= ? AND {offset} < ?"
)

COUNT_DEAD_LETTERS = (
    "SELECT count(*) FROM instep_dead_letters"
    " WHERE pipeline = ? AND (topic = ? OR topic LIKE ? OR topic LIKE ?)"
)
SELECT_DEAD_LETTERS = f"SELECT {RECORD} FROM instep_dead_letters WHERE pipeline = ?"
SELECT_DEAD_LETTER_BEGINNINGS = f"SELECT {BEGINNING} FROM instep_dead_letters WHERE pipeline = ?"
SELECT_DEAD_LETTER_POSITIONS = f"SELECT {POSITION} FROM instep_dead_letters WHERE pipeline = ?"
SELECT_DEAD_LETTER_REASONS_AT = (
    f"SELECT {POSITION}, reason FROM instep_dead_letters WHERE pipeline = ?"
)
SELECT_DEAD_LETTER_ENDS = (
    "SELECT topic, {partition}, max({offset}), count(*), max({at}) FROM instep_dead_letters"
    " WHERE pipeline = ?"
)
SELECT_DEAD_LETTER_REASONS = (
    "SELECT reason, count(*), min({at}), max({at}) FROM instep_dead_letters WHERE pipeline = ?"
)

ANY_PARKED = "SELECT 1 FROM instep_parked WHERE pipeline = ? LIMIT 1"
ANY_PARKED_OR_DELETED = (
    "SELECT EXISTS (SELECT 1 FROM instep_parked WHERE pipeline = ?),"
    " EXISTS (SELECT 1 FROM instep_deleted WHERE pipeline = ?)"
)
COUNT_PARKED = "SELECT count(DISTINCT document) FROM instep_parked WHERE pipeline = ?"
SELECT_PARKED = (
    f"SELECT {RECORD}, document, attempts, tried_at FROM instep_parked WHERE pipeline = ?"
)
COUNT_WAITING = "SELECT count(*) FROM instep_parked WHERE pipeline = ? AND document = ?"
SELECT_WAITING_ENDS = (
    "SELECT topic, {partition}, max({offset}) FROM instep_parked"
    " WHERE pipeline = ? AND document = ? GROUP BY topic, {partition}"
)
IN_TURN = (
    " FROM (SELECT parked.*,"
    " row_number() OVER (PARTITION BY topic, {partition} ORDER BY {offset}) AS turn"
    " FROM instep_parked AS parked WHERE pipeline = ? AND document = ?) AS waiting"
    " WHERE turn <= ?"
)
SELECT_WAITING = f"SELECT {RECORD}, document, attempts, tried_at{IN_TURN}"
SELECT_WAITING_BEGINNINGS = f"SELECT {BEGINNING}{IN_TURN}"
SELECT_PARKED_DOCUMENTS = "SELECT DISTINCT document FROM instep_parked WHERE pipeline = ?"
SELECT_PARKED_AMONG = SELECT_PARKED_DOCUMENTS + " AND document IN {{documents}}"
SELECT_PARKED_SINCE = (
    f"SELECT document, {POSITION}, {{at}}, attempts, tried_at FROM instep_parked"
    " WHERE pipeline = ? AND reason = ? AND {at} >= ? AND COALESCE(attempts, 0) < ?"
)
COUNT_GIVEN_UP = (
    "SELECT count(*) FROM instep_parked WHERE pipeline = ? AND reason = ? AND attempts >= ?"
)
# Redrive counts an attempt first, and decides after it: a crash between them leaves no decision.
SELECT_GIVEN_UP_UNDECIDED = (
    f"SELECT {RECORD}, document, attempts, tried_at FROM instep_parked AS parked"
    " WHERE pipeline = ? AND reason = ? AND attempts >= ? AND tried_at < ? AND NOT EXISTS ("
    "SELECT 1 FROM instep_decisions AS decided WHERE decided.pipeline = parked.pipeline"
    " AND decided.topic = parked.topic AND decided.{partition} = parked.{partition}"
    " AND decided.{offset} = parked.{offset} AND decided.action = ?"
    " AND decided.{at} >= parked.tried_at)"
)
CLAIM_ATTEMPT = (
    "UPDATE instep_parked SET attempts = ?, tried_at = ?"
    " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND {offset} = ?"
    " AND COALESCE(attempts, 0) = ?"
)
SELECT_PARKED_POSITIONS = (
    f"SELECT {POSITION} FROM instep_parked WHERE pipeline = ? AND topic = ?[range]"
)
# Per document the event that blocks it, and the number of its waiting events. The inner query
# numbers the events of each partition; the outer one picks the oldest of the first events.
PARKED_HEADS = (
    "SELECT document, waiting, reason, detail, {at}, topic, {partition}, {offset}, attempts,"
    " tried_at FROM ("
    " SELECT firsts.*,"
    " row_number() OVER (PARTITION BY document ORDER BY {at}, {partition}) AS place FROM ("
    " SELECT document, reason, detail, {at}, topic, {partition}, {offset}, attempts, tried_at,"
    " count(*) OVER (PARTITION BY document) AS waiting,"
    " row_number() OVER (PARTITION BY document, topic, {partition} ORDER BY {offset}) AS turn"
    " FROM instep_parked WHERE pipeline = ?[among]) AS firsts WHERE turn = 1) AS heads"
    " WHERE place = 1"
)

SELECT_PARKED_HEADS_AMONG = PARKED_HEADS.replace("[among]", " AND document IN {{documents}}")
SELECT_PARKED_HEADS = PARKED_HEADS.replace("[among]", "")

SELECT_PARKED_REASONS = (
    "SELECT reason, count(*), min({at}), max({at}) FROM"
    f" ({SELECT_PARKED_HEADS}) AS blocking GROUP BY reason ORDER BY 2 DESC, 1"
)

SELECT_HISTORY = (
    f"SELECT {POSITION}, status, order_value, event_time, verdict, committed_at, ledger_offset"
    " FROM instep_history WHERE pipeline = ? AND document = ?"
)
SELECT_ROW_ORIGINS = (
    f"SELECT document, {POSITION}, order_value, committed_at, ledger_offset FROM instep_history"
    " WHERE pipeline = ? AND verdict IN ('applied', 'released') AND document IN {{documents}}"
)
SELECT_APPLIED_STATUSES = (
    f"SELECT document, {POSITION}, status, order_value, event_time, committed_at, ledger_offset"
    " FROM instep_history"
    " WHERE pipeline = ? AND verdict IN ('applied', 'released') AND document IN {{documents}}"
)
UPDATE_VERDICT = (
    "UPDATE instep_history SET verdict = ?, committed_at = ?, ledger_offset = ?"
    f"{AT_POSITION} AND document = ?"
)

SELECT_DECISIONS = (
    f"SELECT {POSITION}, {{at}}, document, action, outcome, reason, actor FROM instep_decisions"
    " WHERE pipeline = ?"
)
# Records that are not applied: dead letters, records that were skipped or dropped, and records
# that were stale when they were replayed. `[range]` is empty, or IN_OFFSETS.
IN_OFFSETS = " AND {partition} = ? AND {offset} >= ? AND {offset} < ?"
SELECT_EXCLUDED = (
    f"SELECT {POSITION} FROM instep_dead_letters WHERE pipeline = ? AND topic = ?[range]"
    f" UNION SELECT {POSITION} FROM instep_decisions WHERE pipeline = ? AND topic = ?[range]"
    " AND (action IN ('skipped', 'dropped')"
    " OR (action = 'replayed' AND outcome IN ('stale', 'repeated', 'ignored')))"
)
SELECT_UNAPPLIED_IN_RANGE = (
    f"SELECT {POSITION} FROM instep_dead_letters{IN_RANGE}"
    f" UNION SELECT {POSITION} FROM instep_parked{IN_RANGE}"
    f" UNION SELECT {POSITION} FROM instep_decisions{IN_RANGE}"
    " AND action IN ('skipped', 'dropped')"
)

# Documents of which the pipeline has read an event. Rows of loads do not count.
SELECT_READ_DOCUMENTS = (
    "SELECT DISTINCT document FROM instep_history"
    f" WHERE pipeline = ? AND substr(topic, 1, {len(LOAD_PREFIX)}) <> '{LOAD_PREFIX}'"
    " AND document IN {{documents}}"
)
# With an order, only a delete may have no order value. Loads wait for the answer while they hold
# the ledger: the database returns only these documents, of which there are few or none.
SELECT_READ_DELETES = SELECT_READ_DOCUMENTS + " AND order_value IS NULL"

RENAME_TOPIC = (
    "UPDATE {{table}} SET topic = ?"
    " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND {offset} >= ?"
)
# The same for the numbered results of records; an archived name contains the topic's too.
RENAME_RESULTS = (
    "UPDATE {{table}} SET topic = replace(topic, ?, ?)"
    " WHERE pipeline = ? AND topic LIKE ? AND {partition} = ? AND {offset} >= ?"
)
ANY_DELETED = "SELECT 1 FROM instep_deleted WHERE pipeline = ? LIMIT 1"
STAGED_DELETED = (
    "SELECT 1 FROM {{stage}} AS s JOIN instep_deleted AS d ON d.document = {{key}}"
    " WHERE d.pipeline = ? LIMIT 1"
)
SELECT_DELETED = (
    "SELECT document, order_value FROM instep_deleted"
    " WHERE pipeline = ? AND document IN {{documents}}"
)

WAITING_MAX = 2**31 - 1  # of one document: none has more
ATTEMPTS_MAX = 2**31 - 1  # of the column's type
LOOKUP_MAX = 1_000  # above this number of documents, all parked documents are read instead
BEGINNING_BYTES = 64 * 1024  # what is kept of a record that is too large to be kept whole
DELETE_CHUNK = 500
UTF8_BYTES_MAX = 4  # of a character

Waiting = TypeVar("Waiting", QuarantinedRecord, RecordBeginning)


class Journal:
    """The journal of one pipeline."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pipeline, self.topic = connection.target.pipeline, connection.target.topic
        # at-least-once commits the rows before the ledger, so a batch may come again
        target = connection.target
        self._topics: tuple[str, ...] = (target.topic,)
        if target.slots > 1:
            self._topics += (f"{target.topic}{RESULT_MARK}%",)
        self._may_repeat = connection.target.guarantee == "at-least-once"

    # --- what a batch adds ---------------------------------------------------------------------

    def add_history(
        self,
        partition: int,
        events: Sequence[Event],
        verdicts: Sequence[Verdict],
        at: datetime,
        *,
        skip_existing: bool = False,
        ledger_offset: int | None = None,
    ) -> None:
        """Add a row for every event, with its verdict. With `skip_existing` existing rows stay.

        `ledger_offset` is the partition's next offset if the events are applied later than the
        flow read them.
        """
        if skip_existing or self._may_repeat:
            rows = self._history_rows(partition, events, verdicts, at, ledger_offset)
            self.connection.append("instep_history", HISTORY_COLUMNS, rows, skip_existing=True)
        else:
            self.append_history(partition, events, verdicts, at)

    def append_history(
        self, partition: int, events: Sequence[Event], verdicts: Sequence[Verdict], at: datetime
    ) -> None:
        """Add rows for new events. A database may override this with a faster way."""
        rows = self._history_rows(partition, events, verdicts, at)
        self.connection.append("instep_history", HISTORY_COLUMNS, rows, skip_existing=False)

    def add_dead_letters(
        self,
        partition: int,
        dead: Sequence[DeadLetter],
        at: datetime,
        *,
        skip_existing: bool = False,
    ) -> None:
        """Add a row for every dead letter: the whole record, and the reason."""
        rows = [
            self._quarantine_row(partition, letter.record, letter.reason, letter.detail, at)
            for letter in dead
        ]
        skip_existing = skip_existing or self._may_repeat
        self.connection.append(
            "instep_dead_letters", DEAD_LETTER_COLUMNS, rows, skip_existing=skip_existing
        )

    def add_parked(
        self,
        partition: int,
        parked: Sequence[tuple[Parked, Record]],
        at: datetime,
        *,
        skip_existing: bool = False,
    ) -> None:
        """Add a row for every event that has to wait: the record, its document, the reason."""
        rows = [
            (
                str(one.event.document),
                *self._quarantine_row(
                    partition, record, one.refusal.reason, one.refusal.detail, at
                ),
            )
            for one, record in parked
        ]
        skip_existing = skip_existing or self._may_repeat
        self.connection.append("instep_parked", PARKED_COLUMNS, rows, skip_existing=skip_existing)

    def add_decisions(self, decisions: Iterable[Decision], at: datetime) -> None:
        """Add a row for every decision."""
        rows = [
            (
                self.pipeline,
                decision.topic or self.topic,
                decision.partition,
                decision.offset,
                self.connection.bind_time(at),
                decision.document,
                decision.action,
                decision.outcome,
                None if decision.reason is None else kept_text(decision.reason),
                decision.actor,
            )
            for decision in decisions
        ]
        self.connection.append("instep_decisions", DECISION_COLUMNS, rows, skip_existing=False)

    # --- deleted documents ---------------------------------------------------------------------

    def special_documents_query(self) -> tuple[str, Sequence[Any]]:
        """Return the query whether any document is parked, and whether any deleted one is kept."""
        return self.connection.sql(ANY_PARKED_OR_DELETED), (self.pipeline, self.pipeline)

    def special_documents(self) -> SpecialDocuments:
        """Return whether any documents need more than the guard."""
        rows = self.connection.select_often(*self.special_documents_query())
        return SpecialDocuments.of_rows(rows)

    def any_deleted(self) -> bool:
        """Return whether the order value of any deleted document is kept."""
        return bool(self._select(ANY_DELETED))

    def deleted_orders(self, documents: Iterable[DocumentId]) -> dict[DocumentId, int]:
        """Return the order values of those of these documents that were deleted."""
        by_name = {str(document): document for document in documents}
        rows = self.connection.select_many(
            self.connection.sql(SELECT_DELETED), (self.pipeline,), sorted(by_name)
        )
        return {by_name[name]: order for name, order in rows}

    def any_deleted_in_stage(self, staged_key: str | None, documents: Iterable[DocumentId]) -> bool:
        """Return whether one of the staged documents was deleted before.

        `staged_key` is the key in the stage as text, the form in which deleted ids are kept; None
        if the key is composite: then the documents are looked up.
        """
        if staged_key is None:
            return bool(self.deleted_orders(documents))
        statement = self.connection.sql(STAGED_DELETED).replace("{key}", staged_key)
        statement = statement.replace("{stage}", self.connection.stage)
        return bool(self.connection.select(statement, (self.pipeline,)))

    def keep_deleted_orders(self, orders: Mapping[DocumentId, int]) -> None:
        """Keep the order values of documents that were deleted."""
        if not orders:
            return
        names = [str(document) for document in orders]
        for chunk in chunks(names, DELETE_CHUNK):
            listed, values = self.connection.in_list(chunk)
            self.connection.execute(
                "DELETE FROM instep_deleted"
                f" WHERE pipeline = {self.connection.placeholder} AND document IN {listed}",
                (self.pipeline, *values),
            )
        rows = [(self.pipeline, str(document), order) for document, order in orders.items()]
        self.connection.append("instep_deleted", DELETED_COLUMNS, rows, skip_existing=False)

    # --- dead letters --------------------------------------------------------------------------

    def dead_letter_count(self) -> int:
        """Return the number of dead letters: of the topic, of results, and of loads."""
        logs = (self.topic, f"{self.topic}{RESULT_MARK}%", f"{LOAD_PREFIX}%")
        return int(self._select(COUNT_DEAD_LETTERS, *logs)[0][0])

    def dead_letter_reasons(self, selection: Selection) -> list[ReasonCount]:
        """Count the dead letters of each reason, most frequent first."""
        where, values = self._where(selection, by_key=True)
        rows = self._select(
            f"{SELECT_DEAD_LETTER_REASONS}{where} GROUP BY reason ORDER BY 2 DESC, 1", *values
        )
        return [
            ReasonCount(reason, count, _time(first), _time(last))
            for reason, count, first, last in rows
        ]

    def dead_letters(
        self, selection: Selection, limit: int | None = None, after: RecordPosition | None = None
    ) -> list[QuarantinedRecord]:
        """Return dead letters in log order, from behind a position if one is given."""
        rows = self._dead_letters(SELECT_DEAD_LETTERS, selection, limit, after)
        return [self._quarantined(row) for row in rows]

    def dead_letter_beginnings(
        self, selection: Selection, limit: int | None = None, after: RecordPosition | None = None
    ) -> list[RecordBeginning]:
        """Return dead letters as lists show them, as `dead_letters` does."""
        rows = self._dead_letters(SELECT_DEAD_LETTER_BEGINNINGS, selection, limit, after)
        return list(map(_beginning, rows))

    def dead_letter_positions(
        self, selection: Selection, limit: int | None = None
    ) -> list[RecordPosition]:
        """Return the positions of dead letters in log order."""
        where, values = self._where(selection, by_key=True)
        statement = SELECT_DEAD_LETTER_POSITIONS + where + IN_LOG_ORDER + _limit(limit)
        rows = self._select(statement, *values)
        return [RecordPosition(*row) for row in rows]

    def dead_letter_reasons_at(
        self, positions: Sequence[RecordPosition]
    ) -> dict[RecordPosition, str]:
        """Return which of these positions hold dead letters, and their reasons."""
        where, values = self._where(Selection(positions=tuple(positions)), by_key=True)
        rows = self._select(SELECT_DEAD_LETTER_REASONS_AT + where, *values)
        return {RecordPosition(*row[:3]): row[3] for row in rows}

    def dead_letter_ends(self, selection: Selection) -> list[SelectedLog]:
        """Return how far the selected dead letters of each log reach."""
        where, values = self._where(selection, by_key=True)
        rows = self._select(
            f"{SELECT_DEAD_LETTER_ENDS}{where} GROUP BY topic, {{partition}} ORDER BY 1, 2", *values
        )
        return [SelectedLog(RecordPosition(*row[:3]), row[3], _time(row[4])) for row in rows]

    def failed_transformations(self) -> set[RecordPosition]:
        """Return the records on which the transformation failed: all their results are missing."""
        if self.connection.target.slots == 1:
            return set()
        return set(self.dead_letter_positions(Selection(reason=Reason.TRANSFORMATION_FAILED.value)))

    def remove_dead_letters(self, positions: Iterable[RecordPosition]) -> int:
        """Remove dead letters and return their number."""
        return self._remove("instep_dead_letters", positions)

    def update_dead_letter(self, position: RecordPosition, reason: Reason, detail: str) -> None:
        """Give a dead letter another reason and detail."""
        self._update_reason("instep_dead_letters", position, reason, detail)

    # --- parked documents ----------------------------------------------------------------------

    def parked_count(self, selection: Selection | None = None) -> int:
        """Return the number of parked documents, or of those that `parked_heads` would return."""
        if selection is None:
            return int(self._select(COUNT_PARKED)[0][0])
        where, values = self._where(selection, by_key=False)
        counted = f"SELECT count(*) FROM ({SELECT_PARKED_HEADS}{where}) AS selected"
        return int(self._select(counted, *values)[0][0])

    def parked_among(self, documents: Iterable[DocumentId]) -> set[DocumentId]:
        """Return those of these documents that are parked."""
        if not self._select(ANY_PARKED):
            return set()
        by_name = {str(document): document for document in documents}
        if len(by_name) > LOOKUP_MAX:
            # Usually few documents are parked: reading them all is faster than many lookups.
            rows = self._select(f"{SELECT_PARKED_DOCUMENTS} LIMIT {len(by_name)}")
            if len(rows) < len(by_name):
                return {by_name[row[0]] for row in rows if row[0] in by_name}
        found = self.connection.select_many(
            self.connection.sql(SELECT_PARKED_AMONG), (self.pipeline,), sorted(by_name)
        )
        return {by_name[row[0]] for row in found}

    def parked_reasons(self) -> list[ReasonCount]:
        """Count the parked documents by the reason of the event that blocks each."""
        rows = self._select(SELECT_PARKED_REASONS)
        return [
            ReasonCount(reason, count, _time(first), _time(last))
            for reason, count, first, last in rows
        ]

    def parked_heads(
        self, selection: Selection, limit: int | None = None, skip: int = 0
    ) -> list[ParkedHead]:
        """Return the parked documents with the events that block them, longest waiting first."""
        where, values = self._where(selection, by_key=False)
        order = " ORDER BY {at}, document" + _limit(limit)
        if limit and skip:
            order += f" OFFSET {int(skip)}"
        return list(map(_head, self._select(SELECT_PARKED_HEADS + where + order, *values)))

    def parked_heads_of(self, documents: Iterable[str]) -> list[ParkedHead]:
        """Return those of these documents that are parked, with the events that block them."""
        statement = self.connection.sql(SELECT_PARKED_HEADS_AMONG)
        return list(
            map(_head, self.connection.select_many(statement, (self.pipeline,), list(documents)))
        )

    def parked_since(
        self, reason: Reason, since: datetime, limit: int, attempts_max: int | None = None
    ) -> list[tuple[str, RecordPosition, ParkedAttempts]]:
        """Return document, position and attempts of events parked for a reason since a time.

        Oldest first; only those with fewer attempts than `attempts_max`. The retries call this
        every second; an index answers it.
        """
        statement = SELECT_PARKED_SINCE + " ORDER BY {at}" + _limit(limit)
        below = ATTEMPTS_MAX if attempts_max is None else attempts_max
        rows = self._select(statement, reason.value, self.connection.bind(since), below)
        return [
            (
                row[0],
                RecordPosition(*row[1:4]),
                ParkedAttempts(_time(row[4]), row[5] or 0, utc_time(row[6])),
            )
            for row in rows
        ]

    def claim_attempt(self, position: RecordPosition, attempt: int, at: datetime) -> bool:
        """Keep that a parked event is tried now, for this time.

        Return False if it is no longer parked, or if another run has claimed this attempt.
        """
        claimed = self._execute(
            CLAIM_ATTEMPT,
            attempt,
            self.connection.bind(at),
            self.pipeline,
            *_fields(position),
            attempt - 1,
        )
        return bool(claimed)

    def given_up_count(self, reasons: Iterable[Reason], attempts_max: int) -> int:
        """Return the number of documents with this many attempts, parked for these reasons."""
        return sum(
            int(self._select(COUNT_GIVEN_UP, reason.value, attempts_max)[0][0])
            for reason in reasons
        )

    def given_up_undecided(
        self, reasons: Iterable[Reason], attempts_max: int, before: datetime, limit: int
    ) -> list[QuarantinedRecord]:
        """Return events whose last attempt was before this time, and was never decided about."""
        statement = SELECT_GIVEN_UP_UNDECIDED + _limit(limit)
        at, action = self.connection.bind(before), Action.GAVE_UP.value
        found: list[QuarantinedRecord] = []
        for reason in reasons:
            rows = self._select(statement, reason.value, attempts_max, at, action)
            found += [self._parked(row) for row in rows]
        return found

    def parked_at(self, positions: Sequence[RecordPosition]) -> list[QuarantinedRecord]:
        """Return the parked events at these positions, in log order."""
        if not positions:
            return []
        where, values = self._where(Selection(positions=tuple(positions)), by_key=False)
        rows = self._select(SELECT_PARKED + where + IN_LOG_ORDER, *values)
        return [self._parked(row) for row in rows]

    def waiting_count(self, document: str) -> int:
        """Return the number of a parked document's events."""
        return int(self._select(COUNT_WAITING, document)[0][0])

    def waiting_ends(self, document: str) -> list[RecordPosition]:
        """Return the last waiting event of a parked document in each partition of each log."""
        last: dict[tuple[str, int], RecordPosition] = {}
        for row in self._select(SELECT_WAITING_ENDS, document):
            place = RecordPosition(*row)
            log = place.log, place.partition
            last[log] = max(last.get(log, place), place, key=lambda one: (one.offset, one.result))
        return list(last.values())

    def waiting_events(self, document: str, limit: int | None = None) -> list[QuarantinedRecord]:
        """Return a parked document's events in log order; between partitions by time.

        With a limit, only the first ones of each partition.
        """
        rows = self._select(SELECT_WAITING, document, limit or WAITING_MAX)
        return _in_turn(map(self._parked, rows))

    def waiting_beginnings(self, document: str, limit: int | None = None) -> list[RecordBeginning]:
        """Return a parked document's events as lists show them, as `waiting_events` does."""
        rows = self._select(SELECT_WAITING_BEGINNINGS, document, limit or WAITING_MAX)
        return _in_turn(map(_beginning, rows))

    def remove_parked(self, positions: Iterable[RecordPosition]) -> int:
        """Remove parked events and return their number."""
        return self._remove("instep_parked", positions)

    def update_parked(self, position: RecordPosition, reason: Reason, detail: str) -> None:
        """Give a parked event another reason and detail."""
        self._update_reason("instep_parked", position, reason, detail)

    # --- history -------------------------------------------------------------------------------

    def history(self, document: str, newest: int | None = None) -> list[HistoryEntry]:
        """Return the history of a document in the order in which its events were applied.

        With `newest`, at most this many events, those that were committed last.
        """
        latest = f"{NEWEST_COMMITTED}{_limit(newest)}" if newest else ""
        rows = _in_applied_order(
            self._select(SELECT_HISTORY + latest, document),
            lambda row: (RecordPosition(*row[:3]), _time(row[7]), row[8]),
        )
        return [
            HistoryEntry(
                RecordPosition(*row[:3]), row[3], row[4], utc_time(row[5]), row[6], _time(row[7])
            )
            for row in rows
        ]

    def row_origins(self, documents: Iterable[DocumentId]) -> RowOrigins:
        """Return which events wrote the rows of these documents."""
        names = sorted({str(document) for document in documents})
        found = self.connection.select_many(
            self.connection.sql(SELECT_ROW_ORIGINS), (self.pipeline,), names
        )
        rows = _in_applied_order(
            found, lambda row: (RecordPosition(*row[1:4]), _time(row[5]), row[6])
        )
        return RowOrigins((row[0], RecordPosition(*row[1:4]), row[4]) for row in rows)

    def applied_statuses(
        self, documents: Iterable[DocumentId]
    ) -> dict[DocumentId, list[AppliedStatus]]:
        """Return what the applied events of these documents say about their status, in order."""
        by_name = {str(document): document for document in documents}
        found = self.connection.select_many(
            self.connection.sql(SELECT_APPLIED_STATUSES), (self.pipeline,), sorted(by_name)
        )
        rows = _in_applied_order(
            found, lambda row: (RecordPosition(*row[1:4]), _time(row[7]), row[8])
        )
        ordered = self.connection.target.rules.ordered
        events: dict[DocumentId, list[AppliedStatus]] = {}
        for name, _, _, _, status, order, event_time, committed_at, _ in rows:
            at = committed = _time(committed_at)
            if event_time is not None:
                at = min(_time(event_time), committed)
            # with an order, only a delete may have no order value
            is_delete = ordered and status is None and order is None
            events.setdefault(by_name[name], []).append(AppliedStatus(status, at, is_delete))
        return events

    def read_documents(
        self, documents: Iterable[DocumentId], *, deletes: bool = False
    ) -> set[DocumentId]:
        """Return those of these documents of which the pipeline has read an event.

        With `deletes`, an event without an order value. Rows of loads do not count.
        """
        by_name = {str(document): document for document in documents}
        statement = SELECT_READ_DELETES if deletes else SELECT_READ_DOCUMENTS
        found = self.connection.select_many(
            self.connection.sql(statement), (self.pipeline,), sorted(by_name)
        )
        return {by_name[row[0]] for row in found}

    def update_verdict(
        self,
        document: str,
        position: RecordPosition,
        verdict: str,
        at: datetime,
        ledger_offset: int | None,
    ) -> None:
        """Set the verdict of an event that was applied later, and the ledger's offset then."""
        self._execute(
            UPDATE_VERDICT,
            verdict,
            self.connection.bind(at),
            ledger_offset,
            self.pipeline,
            *_fields(position),
            document,
        )

    def history_chunk_end(self, after: str | None, rows: int) -> str | None:
        """Return the document `rows` rows further on in the history; None beyond its end."""
        where, values = self._between(after, None)
        found = self.connection.select(
            f"SELECT document FROM instep_history{where}"
            f" ORDER BY document LIMIT 1 OFFSET {int(rows)}",
            values,
        )
        return found[0][0] if found else None

    def remove_history(self, after: str | None, until: str | None, before: datetime) -> int:
        """Remove rows committed before a time, of the documents after one and until another.

        Returns the number of removed rows.
        """
        where, values = self._between(after, until)
        return self.connection.execute(
            f"DELETE FROM instep_history{where} AND committed_at < {self.connection.placeholder}",
            (*values, self.connection.bind(before)),
        )

    # --- decisions, and what is not applied ----------------------------------------------------

    def decisions(
        self,
        *,
        document: str | None = None,
        position: RecordPosition | None = None,
        newest: int | None = None,
    ) -> list[DecisionRecord]:
        """Return the decisions about a document or a record, in order of time."""
        where = ""
        values: list[Any] = []
        if document is not None:
            where += " AND document = ?"
            values.append(document)
        if position is not None:
            where += " AND topic = ? AND {partition} = ? AND {offset} = ?"
            values += _fields(position)
        order = " ORDER BY {at}"
        if newest:
            order += " DESC" + _limit(newest)
        rows = self._select(SELECT_DECISIONS + where + order, *values)
        if newest:
            rows = rows[::-1]
        return [DecisionRecord(RecordPosition(*row[:3]), _time(row[3]), *row[4:]) for row in rows]

    def recent_decisions(
        self,
        limit: int,
        before: datetime | None = None,
        after: RecordPosition | None = None,
    ) -> list[DecisionRecord]:
        """Return the latest decisions, newest first, and those of one time in log order.

        With `before`, those before a time. With `after` too, and those at that time behind a
        position: all decisions of a transaction have the same time.
        """
        where = ""
        values: list[Any] = []
        if before is not None:
            where, values = " AND {at} < ?", [self.connection.bind(before)]
        if before is not None and after is not None:
            at = self.connection.bind(before)
            where = f" AND {{at}} <= ? AND ({{at}} < ? OR {AFTER_POSITION.removeprefix(' AND ')})"
            values = [at, at, after.topic, after.topic, after.partition, after.partition]
            values.append(after.offset)
        order = " ORDER BY {at} DESC, topic, {partition}, {offset}" + _limit(limit)
        rows = self._select(SELECT_DECISIONS + where + order, *values)
        return [DecisionRecord(RecordPosition(*row[:3]), _time(row[3]), *row[4:]) for row in rows]

    def excluded(self, bounds: PartitionRange | None = None) -> set[RecordPosition]:
        """Return the positions of the records that were not applied and do not wait."""
        where = (*self._topics, *(astuple(bounds) if bounds else ()))
        statement = self._in_range(SELECT_EXCLUDED, bounds)
        rows = self._select(statement, *where, self.pipeline, *where)
        return {RecordPosition(*row) for row in rows}

    def unapplied(self, bounds: PartitionRange | None = None) -> set[RecordPosition]:
        """Return the positions whose events are not in the table: excluded, or parked."""
        where = (*self._topics, *(astuple(bounds) if bounds else ()))
        parked = self._select(self._in_range(SELECT_PARKED_POSITIONS, bounds), *where)
        return self.excluded(bounds) | {RecordPosition(*row) for row in parked}

    def unapplied_in_range(self, partition: int, start: int, end: int) -> set[int]:
        """Return the numbers of a range of events that are dead, parked, skipped or dropped.

        A dead letter of a transformation that failed has no results yet, so it counts as a whole.
        """
        target = self.connection.target
        first, last = start // target.slots, (end - 1) // target.slots
        # the statement asks three tables for the same range
        parameters = (self.pipeline, *self._topics, partition, first, last + 1) * 3
        statement = self.connection.sql(self._in_topic(SELECT_UNAPPLIED_IN_RANGE))
        rows = self.connection.select(statement, parameters)
        return {number_of(target, RecordPosition(*row)) for row in rows}

    def archive_positions(self, archive_topic: str, partition: int, start: int) -> None:
        """Move everything about a partition's records from an offset on to another topic name.

        The log has other records at these offsets now.
        """
        for table in POSITION_TABLES:
            self.connection.execute(
                self.connection.sql(RENAME_TOPIC).format(table=table),
                (archive_topic, self.pipeline, self.topic, partition, start),
            )
            if len(self._topics) > 1:
                self.connection.execute(
                    self.connection.sql(RENAME_RESULTS).format(table=table),
                    (self.topic, archive_topic, self.pipeline, self._topics[1], partition, start),
                )

    # --- parts ---------------------------------------------------------------------------------

    def _dead_letters(
        self,
        statement: str,
        selection: Selection,
        limit: int | None,
        after: RecordPosition | None,
    ) -> list[tuple[Any, ...]]:
        where, values = self._where(selection, by_key=True)
        if after is not None:
            where += AFTER_POSITION
            values += (after.topic, after.topic, after.partition, after.partition, after.offset)
        return self._select(statement + where + IN_LOG_ORDER + _limit(limit), *values)

    def _execute(self, statement: str, *parameters: Any) -> int:
        return self.connection.execute(self.connection.sql(statement), parameters)

    def _select(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a query whose first parameter is the pipeline."""
        return self.connection.select(self.connection.sql(statement), (self.pipeline, *parameters))

    def _history_rows(
        self,
        partition: int,
        events: Sequence[Event],
        verdicts: Sequence[Verdict],
        at: datetime,
        ledger_offset: int | None = None,
    ) -> Rows:
        pipeline, topic, bind_time = self.pipeline, self.topic, self.connection.bind_time
        committed, target = bind_time(at), self.connection.target
        # No list: PostgreSQL stores the first rows while the others are made. A list of all rows
        # is a third slower.
        for event, verdict in zip(events, verdicts, strict=True):
            offset = event.offset
            if target.slots > 1:
                topic, _, offset = astuple(position_of(target, partition, offset))
            yield (
                pipeline,
                topic,
                partition,
                offset,
                str(event.document),
                event.status,
                event.order,
                None if event.at_us is None else bind_time(kinds.from_micros(event.at_us)),
                verdict.value,
                committed,
                ledger_offset,
            )

    def _quarantine_row(
        self, partition: int, record: Record, reason: Reason, detail: str, at: datetime
    ) -> tuple[Any, ...]:
        key, value = results.in_log(record)
        headers = encode_headers(record.headers)
        position = position_of(self.connection.target, partition, record.offset)
        if reason is Reason.RECORD_TOO_LARGE:
            key = None if key is None else key[:BEGINNING_BYTES]
            value = None if value is None else value[:BEGINNING_BYTES]
            headers = None
        return (
            self.pipeline,
            *astuple(position),
            record.timestamp_ms,
            key,
            value,
            headers,
            reason.value,
            kept_text(detail),
            self.connection.bind_time(at),
        )

    def _between(self, after: str | None, until: str | None) -> tuple[str, list[str]]:
        """Return the condition for the history of a range of documents, and its parameters."""
        where = " WHERE pipeline = ?"
        values = [self.pipeline]
        for operator, document in ((">", after), ("<=", until)):
            if document is not None:
                where += f" AND document {operator} ?"
                values.append(document)
        return self.connection.sql(where), values

    def _quarantined(self, row: tuple[Any, ...]) -> QuarantinedRecord:
        topic, partition, offset, timestamp_ms, key, value, headers, reason, detail, at = row
        position = RecordPosition(topic, partition, offset)
        record = Record(
            number_of(self.connection.target, position),
            -1 if timestamp_ms is None else timestamp_ms,
            _bytes(key),
            _bytes(value),
            -1 if position.is_loaded else partition,  # a row of a load has no partition
            decode_headers(_bytes(headers)),
        )
        return QuarantinedRecord(position, record, reason, detail or "", _time(at))

    def _parked(self, row: tuple[Any, ...]) -> QuarantinedRecord:
        *record, document, attempts, tried_at = row
        return msgspec.structs.replace(
            self._quarantined(tuple(record)),
            document=document,
            attempts=attempts or 0,
            tried_at=utc_time(tried_at),
        )

    def _in_range(self, statement: str, bounds: PartitionRange | None) -> str:
        """Let a statement about the topic be about a range of offsets only."""
        return self._in_topic(statement).replace("[range]", IN_OFFSETS if bounds else "")

    def _in_topic(self, statement: str) -> str:
        """Let a statement about the topic include the numbered results of its records."""
        if len(self._topics) == 1:
            return statement
        return statement.replace("topic = ?", "(topic = ? OR topic LIKE ?)")

    def _where(self, selection: Selection, *, by_key: bool) -> tuple[str, list[Any]]:
        """Return the conditions of a selection, and their parameters.

        A dead letter is selected by its key: its document is not known, as nothing else of it
        could be decoded.
        """
        parts: list[str] = []
        values: list[Any] = []
        if selection.reason is not None:
            parts.append("reason = ?")
            values.append(selection.reason)
        if selection.since is not None:
            parts.append("{at} >= ?")
            values.append(self.connection.bind(selection.since))
        if selection.until is not None:
            parts.append("{at} < ?")
            values.append(self.connection.bind(selection.until))
        if selection.document is not None:
            parts.append("{key} = ?" if by_key else "document = ?")
            values.append(selection.document.encode() if by_key else selection.document)
        if selection.up_to:
            bound = "topic = ? AND {partition} = ? AND {offset} <= ?"
            parts.append("(" + " OR ".join([bound] * len(selection.up_to)) + ")")
            for position in selection.up_to:
                values += _fields(position)
        if selection.positions:
            alternatives = []
            for (topic, partition), offsets in _by_partition(selection.positions).items():
                marks = ", ".join("?" * len(offsets))
                alternatives.append(f"topic = ? AND {{partition}} = ? AND {{offset}} IN ({marks})")
                values += (topic, partition, *offsets)
            parts.append("(" + " OR ".join(alternatives) + ")")
        return "".join(f" AND {part}" for part in parts), values

    def _remove(self, table: str, positions: Iterable[RecordPosition]) -> int:
        removed = 0
        for (topic, partition), offsets in _by_partition(positions).items():
            for chunk in chunks(offsets, DELETE_CHUNK):
                marks = ", ".join("?" * len(chunk))
                removed += self._execute(
                    f"DELETE FROM {table} WHERE pipeline = ? AND topic = ?"
                    f" AND {{partition}} = ? AND {{offset}} IN ({marks})",
                    self.pipeline,
                    topic,
                    partition,
                    *chunk,
                )
        return removed

    def _update_reason(
        self, table: str, position: RecordPosition, reason: Reason, detail: str
    ) -> None:
        self._execute(
            f"UPDATE {table} SET reason = ?, detail = ?{AT_POSITION}",
            reason.value,
            kept_text(detail),
            self.pipeline,
            *_fields(position),
        )


def _by_partition(positions: Iterable[RecordPosition]) -> dict[tuple[str, int], list[int]]:
    offsets: dict[tuple[str, int], list[int]] = {}
    for position in positions:
        offsets.setdefault((position.topic, position.partition), []).append(position.offset)
    return offsets


def _head(row: tuple[Any, ...]) -> ParkedHead:
    document, waiting, reason, detail, at, topic, partition, offset, attempts, tried_at = row
    place = RecordPosition(topic, partition, offset)
    since, tried = _time(at), utc_time(tried_at)
    return ParkedHead(document, waiting, reason, detail or "", since, place, attempts or 0, tried)


def _beginning(row: tuple[Any, ...]) -> RecordBeginning:
    topic, partition, offset, timestamp_ms, key, key_bytes, value, value_bytes, *rest = row
    reason, detail, at = rest
    return RecordBeginning(
        RecordPosition(topic, partition, offset),
        -1 if timestamp_ms is None else timestamp_ms,
        _whole_characters(_bytes(key), key_bytes),
        key_bytes,
        _whole_characters(_bytes(value), value_bytes),
        value_bytes,
        reason,
        detail or "",
        _time(at),
    )


def _whole_characters(value: bytes | None, size: int | None) -> bytes | None:
    """Return the beginning of a text without a part of a character at its end."""
    if value is None or len(value) == size:
        return value
    for end in range(len(value), len(value) - UTF8_BYTES_MAX, -1):
        try:
            value[:end].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return value[:end]
    return value


def _in_turn(events: Iterable[Waiting]) -> list[Waiting]:
    """Sort waiting events: in log order, and between partitions by time."""

    def log_of(event: Waiting) -> tuple[str, int]:
        return event.position.log, event.position.partition

    def in_log(event: Waiting) -> tuple[str, int, int, int]:
        return *log_of(event), event.position.offset, event.position.result

    logs = itertools.groupby(sorted(events, key=in_log), key=log_of)
    return list(heapq.merge(*(list(log) for _, log in logs), key=lambda event: event.at))


def _in_applied_order(
    rows: Iterable[tuple[Any, ...]],
    sequence: Callable[[tuple[Any, ...]], tuple[RecordPosition, datetime, int | None]],
) -> list[tuple[Any, ...]]:
    """Sort rows of the history by the order in which their events were applied.

    `sequence` returns position, commit time and ledger offset of a row. Within a partition the
    offset decides, and for an event that was applied later, the ledger's offset at that time:
    clocks of different machines differ. The commit time only decides between partitions.
    """

    def in_partition(row: tuple[Any, ...]) -> tuple[int, bool, int, datetime]:
        position, at, ledger_offset = sequence(row)
        reached = position.offset if ledger_offset is None else ledger_offset - 1
        return reached, ledger_offset is not None, position.offset, at

    logs: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for row in rows:
        position = sequence(row)[0]
        logs.setdefault((position.topic, position.partition), []).append(row)
    for log in logs.values():
        log.sort(key=in_partition)
    return list(heapq.merge(*logs.values(), key=lambda row: sequence(row)[1]))


def _limit(limit: int | None) -> str:
    return f" LIMIT {int(limit)}" if limit else ""


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _fields(position: RecordPosition) -> tuple[str, int, int]:
    return position.topic, position.partition, position.offset


def _time(value: Any) -> datetime:
    at = utc_time(value)
    assert at is not None
    return at
