"""What was set aside: dead letters and parked events, read, removed and decided on.

Everything here runs on a pipeline's sink. Whoever changes something holds the transaction and all ledger rows, so that
people and tasks take turns.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from instep.document.decoding import Record
from instep.document.guard import Document
from instep.document.reasons import Reason
from instep.sinks.sink import Sink, chunks, kept_text, moment, read_headers

PLACE = "topic, {partition}, {offset}"
RECORD = PLACE + ", timestamp_ms, {key}, {value}, headers, reason, detail, {at}"
SELECT_DEAD = f"SELECT {RECORD} FROM instep_dead_letters WHERE pipeline = ?"
GROUP_DEAD = (
    "SELECT reason, count(*), min({at}), max({at}) FROM instep_dead_letters WHERE pipeline = ?"
)
SELECT_PARKED = f"SELECT {RECORD}, document FROM instep_parked WHERE pipeline = ?"
SELECT_RETRIED = (
    f"SELECT document, {PLACE} FROM instep_parked WHERE pipeline = ? AND reason = ? AND {{at}} >= ?"
)
# the event that holds each document, and how many wait in all
SELECT_HEADS = (
    "SELECT document, waiting, reason, detail, {at}, topic, {partition}, {offset} FROM ("
    " SELECT firsts.*, row_number() OVER (PARTITION BY document ORDER BY {at}, {partition}) AS place FROM ("
    " SELECT document, reason, detail, {at}, topic, {partition}, {offset}, count(*) OVER (PARTITION BY document) AS waiting,"
    " row_number() OVER (PARTITION BY document, topic, {partition} ORDER BY {offset}) AS turn"
    " FROM instep_parked WHERE pipeline = ?) AS firsts WHERE turn = 1) AS heads WHERE place = 1"
)
AT_PLACE = " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND {offset} = ?"
SELECT_HISTORY = (
    f"SELECT {PLACE}, status, order_value, event_time, verdict, committed_at, ledger_offset"
    " FROM instep_history WHERE pipeline = ? AND document = ?"
)
SELECT_WROTE = (
    f"SELECT document, {PLACE}, order_value, committed_at, ledger_offset FROM instep_history"
    " WHERE pipeline = ? AND verdict IN ('applied', 'released') AND document IN {{documents}}"
)
SELECT_DECISIONS = f"SELECT {PLACE}, {{at}}, document, action, outcome, reason, actor FROM instep_decisions WHERE pipeline = ?"
# places that are not applied: open dead letters, what people passed over, and what was too late when it was replayed
LEFT_OUT = (
    "SELECT {partition}, {offset} FROM instep_dead_letters WHERE pipeline = ? AND topic = ?"
    " UNION SELECT {partition}, {offset} FROM instep_decisions WHERE pipeline = ? AND topic = ?"
    " AND (action IN ('skipped', 'dropped') OR (action = 'replayed' AND outcome IN ('stale', 'repeated', 'ignored')))"
)
WITHIN = " WHERE pipeline = ? AND topic = ? AND {partition} = ? AND {offset} >= ? AND {offset} < ?"
SELECT_PASSED_OVER_WITHIN = (
    f"SELECT {{offset}} FROM instep_dead_letters{WITHIN}"
    f" UNION SELECT {{offset}} FROM instep_parked{WITHIN}"
    f" UNION SELECT {{offset}} FROM instep_decisions{WITHIN} AND action IN ('skipped', 'dropped')"
)
SELECT_APPLIED = "SELECT {partition}, start_offset, end_offset FROM instep_applied WHERE pipeline = ? AND topic = ?"
DELETE_APPLIED = "DELETE FROM instep_applied WHERE pipeline = ? AND topic = ?"
INSERT_APPLIED = "INSERT INTO instep_applied (pipeline, topic, {partition}, start_offset, end_offset) VALUES (?, ?, ?, ?, ?)"


Applied = dict[int, list[tuple[int, int]]]  # per partition, ranges of offsets


class Action(StrEnum):
    """What a person did; kept in `instep_decisions`."""

    REPLAYED = "replayed"
    DROPPED = "dropped"
    RELEASED = "released"
    SKIPPED = "skipped"
    REWOUND = "rewound"
    REPAIRED = "repaired"


class RecordPosition(msgspec.Struct, frozen=True, order=True):
    """Where in a log a record lies."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class QuarantinedRecord(msgspec.Struct, frozen=True):
    """A record that was set aside, whole, with the reason. A dead letter has no document, as nobody could tell it."""

    place: RecordPosition
    record: Record
    reason: str
    detail: str
    at: datetime
    document: str | None = None


class ReasonCount(msgspec.Struct, frozen=True):
    """Dead letters of one reason."""

    reason: str
    count: int
    first: datetime
    last: datetime


class ParkedHead(msgspec.Struct, frozen=True):
    """A parked document: the event that holds it, and how many wait in all."""

    document: str
    waiting: int
    reason: str
    detail: str
    since: datetime
    place: RecordPosition


class HistoryEntry(msgspec.Struct, frozen=True):
    """One event of a document, as the history has it."""

    place: RecordPosition
    status: str | None
    order: int | None
    event_time: datetime | None
    verdict: str
    committed_at: datetime


class DecisionRecord(msgspec.Struct, frozen=True):
    """What somebody decided, about which place, why, and what came of it."""

    place: RecordPosition
    at: datetime
    document: str | None
    action: str
    outcome: str
    reason: str | None
    actor: str


class Selection(msgspec.Struct, frozen=True):
    """Which of the things set aside are meant; what is left out does not narrow the choice."""

    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    document: str | None = None
    places: tuple[RecordPosition, ...] = ()

    def __bool__(self) -> bool:
        return self != Selection()


# --- dead letters -------------------------------------------------------------------------------------


def dead_groups(sink: Sink, chosen: Selection) -> list[ReasonCount]:
    """How many dead letters there are of each reason, first and last seen."""
    where, values = _where(sink, chosen, by_key=True)
    rows = sink.select(
        sink.sql(GROUP_DEAD) + where + " GROUP BY reason ORDER BY 2 DESC, 1",
        (sink.target.pipeline, *values),
    )
    return [
        ReasonCount(reason, count, _sure(first), _sure(last)) for reason, count, first, last in rows
    ]


def dead_letters(
    sink: Sink, chosen: Selection, limit: int | None = None
) -> list[QuarantinedRecord]:
    """Dead letters in log order, whole."""
    where, values = _where(sink, chosen, by_key=True)
    order = sink.sql(" ORDER BY topic, {partition}, {offset}") + (
        f" LIMIT {int(limit)}" if limit else ""
    )
    return [
        _set_aside(row)
        for row in sink.select(
            sink.sql(SELECT_DEAD) + where + order, (sink.target.pipeline, *values)
        )
    ]


def dead_places(sink: Sink, chosen: Selection) -> list[RecordPosition]:
    """Where the dead letters lie, in log order."""
    where, values = _where(sink, chosen, by_key=True)
    statement = sink.sql(f"SELECT {PLACE} FROM instep_dead_letters WHERE pipeline = ?")
    order = sink.sql(" ORDER BY topic, {partition}, {offset}")
    return [
        RecordPosition(*row)
        for row in sink.select(statement + where + order, (sink.target.pipeline, *values))
    ]


def remove_dead(sink: Sink, places: Iterable[RecordPosition]) -> int:
    """Take dead letters out; how many were there."""
    return _remove(sink, "instep_dead_letters", places)


def judge_dead_again(sink: Sink, place: RecordPosition, reason: Reason, detail: str) -> None:
    """A dead letter that is still one, perhaps for another reason."""
    _judge_again(sink, "instep_dead_letters", place, reason, detail)


# --- parked documents ---------------------------------------------------------------------------------


def parked_heads(sink: Sink, chosen: Selection, limit: int | None = None) -> list[ParkedHead]:
    """Every parked document with the event that holds it, longest waiting first."""
    where, values = _where(sink, chosen, by_key=False)
    order = sink.sql(" ORDER BY {at}, document") + (f" LIMIT {int(limit)}" if limit else "")
    rows = sink.select(sink.sql(SELECT_HEADS) + where + order, (sink.target.pipeline, *values))
    return [
        ParkedHead(
            document,
            waiting,
            reason,
            detail or "",
            _sure(at),
            RecordPosition(topic, partition, offset),
        )
        for document, waiting, reason, detail, at, topic, partition, offset in rows
    ]


def parked_for(
    sink: Sink, reason: Reason, since: datetime, limit: int
) -> list[tuple[str, RecordPosition]]:
    """Document and place of events that were parked for a reason since a time, longest waiting first. Answered by an index."""
    statement = sink.sql(SELECT_RETRIED + " ORDER BY {at}") + f" LIMIT {int(limit)}"
    return [
        (row[0], RecordPosition(*row[1:]))
        for row in sink.select(statement, (sink.target.pipeline, reason.value, sink.bind(since)))
    ]


def parked_at(sink: Sink, places: Sequence[RecordPosition]) -> list[QuarantinedRecord]:
    """The parked events at these places, in log order."""
    where, values = _where(sink, Selection(places=tuple(places)), by_key=False)
    order = sink.sql(" ORDER BY topic, {partition}, {offset}")
    rows = (
        sink.select(sink.sql(SELECT_PARKED) + where + order, (sink.target.pipeline, *values))
        if places
        else []
    )
    return [_set_aside(row[:-1], row[-1]) for row in rows]


def waiting_events(sink: Sink, document: str) -> list[QuarantinedRecord]:
    """A parked document's events in the order in which they came: by the log, and between partitions by time."""
    order = sink.sql(" AND document = ? ORDER BY topic, {partition}, {offset}")
    rows = sink.select(sink.sql(SELECT_PARKED) + order, (sink.target.pipeline, document))
    found = [_set_aside(row[:-1], row[-1]) for row in rows]
    logs = [
        list(of)
        for _, of in itertools.groupby(
            found, key=lambda one: (one.place.topic, one.place.partition)
        )
    ]
    return list(heapq.merge(*logs, key=lambda one: one.at))


def remove_parked(sink: Sink, places: Iterable[RecordPosition]) -> int:
    """Let events go that waited; how many were there."""
    return _remove(sink, "instep_parked", places)


def judge_parked_again(sink: Sink, place: RecordPosition, reason: Reason, detail: str) -> None:
    """An event that still has to wait, perhaps for another reason."""
    _judge_again(sink, "instep_parked", place, reason, detail)


# --- the history and decisions ------------------------------------------------------------------------


def lived(sink: Sink, document: str) -> list[HistoryEntry]:
    """What the history has of a document, in the order in which it was applied."""
    rows = sink.select(sink.sql(SELECT_HISTORY), (sink.target.pipeline, document))
    return [
        HistoryEntry(
            RecordPosition(*row[:3]), row[3], row[4], moment(row[5]), row[6], _sure(row[7])
        )
        for row in _as_applied(rows, lambda row: (RecordPosition(*row[:3]), _sure(row[7]), row[8]))
    ]


def _as_applied(
    rows: Iterable[tuple[Any, ...]],
    sequence: Callable[[tuple[Any, ...]], tuple[RecordPosition, datetime, int | None]],
) -> list[tuple[Any, ...]]:
    """Rows of the history in the order in which their events were applied.

    Within a partition the offset decides, and for an event that was applied later, where the ledger stood then: clocks of
    different machines differ. Only between partitions does the time of the commit.
    """

    def in_partition(row: tuple[Any, ...]) -> tuple[int, bool, int, datetime]:
        place, at, ledger_offset = sequence(row)
        reached = place.offset if ledger_offset is None else ledger_offset - 1
        return reached, ledger_offset is not None, place.offset, at

    logs: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for row in rows:
        place = sequence(row)[0]
        logs.setdefault((place.topic, place.partition), []).append(row)
    return list(
        heapq.merge(
            *(sorted(of, key=in_partition) for of in logs.values()),
            key=lambda row: sequence(row)[1],
        )
    )


class WrittenDocument:
    """Which events wrote the rows of some documents, by the history."""

    def __init__(self, rows: Iterable[tuple[str, RecordPosition, int | None]]) -> None:
        self._last: dict[str, RecordPosition] = {}
        self._by_order: dict[tuple[str, int | None], RecordPosition] = {}
        for document, place, order in rows:
            self._last[document] = self._by_order[document, order] = place

    def last(self, document: Document) -> RecordPosition | None:
        """The last event that was applied to a document."""
        return self._last.get(str(document))

    def by_order(self, document: Document, order: int | None) -> RecordPosition | None:
        """The last event with this order value that was applied to a document."""
        return self._by_order.get((str(document), order))


def wrote(sink: Sink, documents: Iterable[Document]) -> WrittenDocument:
    """What the history says of who wrote these documents' rows."""
    names = sorted({str(document) for document in documents})
    found = sink.select_many(sink.sql(SELECT_WROTE), (sink.target.pipeline,), names)
    rows = _as_applied(found, lambda row: (RecordPosition(*row[1:4]), _sure(row[5]), row[6]))
    return WrittenDocument((row[0], RecordPosition(*row[1:4]), row[4]) for row in rows)


def relive(
    sink: Sink,
    document: str,
    place: RecordPosition,
    verdict: str,
    at: datetime,
    ledger_offset: int | None,
) -> None:
    """The history's row of a document's event gets the verdict that was reached later, and where the ledger stood then."""
    change = "UPDATE instep_history SET verdict = ?, committed_at = ?, ledger_offset = ?"
    statement = sink.sql(change + AT_PLACE + " AND document = ?")
    sink.execute(
        statement,
        (verdict, sink.bind(at), ledger_offset, sink.target.pipeline, *_values(place), document),
    )


def decisions(
    sink: Sink, *, document: str | None = None, place: RecordPosition | None = None
) -> list[DecisionRecord]:
    """What was decided about a document or a place, in order of time."""
    where = ""
    values: list[Any] = []
    if document is not None:
        where, values = where + " AND document = ?", [*values, document]
    if place is not None:
        where, values = (
            where + " AND topic = ? AND {partition} = ? AND {offset} = ?",
            [*values, *_values(place)],
        )
    rows = sink.select(
        sink.sql(SELECT_DECISIONS + where + " ORDER BY {at}"), (sink.target.pipeline, *values)
    )
    return [DecisionRecord(RecordPosition(*row[:3]), _sure(row[3]), *row[4:]) for row in rows]


def history_end(sink: Sink, after: str | None, rows: int) -> str | None:
    """The document that is so many rows further on in the history, in order of the documents; None beyond its end."""
    where, values = _between(sink, after, None)
    found = sink.select(
        f"SELECT document FROM instep_history{where} ORDER BY document LIMIT 1 OFFSET {int(rows)}",
        values,
    )
    return found[0][0] if found else None


def remove_history(sink: Sink, after: str | None, until: str | None, before: datetime) -> int:
    """Forget what was committed before a time of the documents after one and until another; how many rows that were."""
    where, values = _between(sink, after, until)
    statement = f"DELETE FROM instep_history{where} AND committed_at < {sink.placeholder}"
    return sink.execute(statement, (*values, sink.bind(before)))


def left_out(sink: Sink) -> list[tuple[int, int]]:
    """Partition and offset of the records that were not applied, and that nobody has had applied since."""
    mine = (sink.target.pipeline, sink.target.topic)
    return [(row[0], row[1]) for row in sink.select(sink.sql(LEFT_OUT), (*mine, *mine))]


def passed_over(sink: Sink) -> set[RecordPosition]:
    """Places whose events are not in the table on purpose: those that are left out, and those that wait."""
    topic = sink.target.topic
    waiting = sink.select(
        sink.sql(
            "SELECT {partition}, {offset} FROM instep_parked WHERE pipeline = ? AND topic = ?"
        ),
        (sink.target.pipeline, topic),
    )
    return {
        RecordPosition(topic, partition, offset)
        for partition, offset in [*left_out(sink), *waiting]
    }


def passed_over_within(sink: Sink, partition: int, start: int, end: int) -> set[int]:
    """The same of one partition, from an offset up to another."""
    stretch = (sink.target.pipeline, sink.target.topic, partition, start, end)
    return {row[0] for row in sink.select(sink.sql(SELECT_PASSED_OVER_WITHIN), stretch * 3)}


def applied_before(sink: Sink) -> Applied:
    """The stretches of each partition that were applied before the ledger was moved: their records may come again."""
    found: Applied = {}
    for partition, start, end in sorted(
        sink.select(sink.sql(SELECT_APPLIED), (sink.target.pipeline, sink.target.topic))
    ):
        found.setdefault(partition, []).append((start, end))
    return found


def keep_applied(sink: Sink, stretches: Applied) -> None:
    """Keep these, in place of what was kept before; neighbours and overlaps become one."""
    sink.execute(sink.sql(DELETE_APPLIED), (sink.target.pipeline, sink.target.topic))
    for partition, ranges in stretches.items():
        for start, end in joined(ranges):
            sink.execute(
                sink.sql(INSERT_APPLIED),
                (sink.target.pipeline, sink.target.topic, partition, start, end),
            )


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets in as few ranges as there can be."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(one for one in ranges if one[0] < one[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


# --- parts --------------------------------------------------------------------------------------------


def _between(sink: Sink, after: str | None, until: str | None) -> tuple[str, list[str]]:
    """The pipeline's rows of a stretch of documents, in SQL."""
    where, values = " WHERE pipeline = ?", [sink.target.pipeline]
    for side, document in ((">", after), ("<=", until)):
        if document is not None:
            where, values = f"{where} AND document {side} ?", [*values, document]
    return sink.sql(where), values


def _where(sink: Sink, chosen: Selection, *, by_key: bool) -> tuple[str, list[Any]]:
    """The choice in SQL. A dead letter belongs to a document if that is its key: nothing else of it was understood."""
    parts: list[str] = []
    values: list[Any] = []
    if chosen.reason is not None:
        parts, values = [*parts, "reason = ?"], [*values, chosen.reason]
    if chosen.since is not None:
        parts, values = [*parts, "{at} >= ?"], [*values, sink.bind(chosen.since)]
    if chosen.until is not None:
        parts, values = [*parts, "{at} < ?"], [*values, sink.bind(chosen.until)]
    if chosen.document is not None:
        parts.append("{key} = ?" if by_key else "document = ?")
        values.append(chosen.document.encode() if by_key else chosen.document)
    if chosen.places:
        logs: dict[tuple[str, int], list[int]] = {}
        for place in chosen.places:
            logs.setdefault((place.topic, place.partition), []).append(place.offset)
        some = [
            f"topic = ? AND {{partition}} = ? AND {{offset}} IN ({', '.join('?' * len(of))})"
            for of in logs.values()
        ]
        parts.append("(" + " OR ".join(some) + ")")
        values += [
            value for (topic, partition), of in logs.items() for value in (topic, partition, *of)
        ]
    return "".join(f" AND {part}" for part in map(sink.sql, parts)), values


def _remove(sink: Sink, table: str, places: Iterable[RecordPosition]) -> int:
    by_log: dict[tuple[str, int], list[int]] = {}
    for place in places:
        by_log.setdefault((place.topic, place.partition), []).append(place.offset)
    removed = 0
    for (topic, partition), offsets in by_log.items():
        for some in chunks(offsets, 500):
            marks = ", ".join("?" * len(some))
            where = f" WHERE pipeline = ? AND topic = ? AND {{partition}} = ? AND {{offset}} IN ({marks})"
            removed += sink.execute(
                sink.sql(f"DELETE FROM {table}{where}"),
                (sink.target.pipeline, topic, partition, *some),
            )
    return removed


def _judge_again(
    sink: Sink, table: str, place: RecordPosition, reason: Reason, detail: str
) -> None:
    statement = sink.sql(f"UPDATE {table} SET reason = ?, detail = ?{AT_PLACE}")
    sink.execute(
        statement, (reason.value, kept_text(detail), sink.target.pipeline, *_values(place))
    )


def _set_aside(row: tuple[Any, ...], document: str | None = None) -> QuarantinedRecord:
    topic, partition, offset, timestamp_ms, key, value, headers, reason, detail, at = row
    record = Record(
        offset,
        -1 if timestamp_ms is None else timestamp_ms,
        _bytes(key),
        _bytes(value),
        partition,
        read_headers(_bytes(headers)),
    )
    return QuarantinedRecord(
        RecordPosition(topic, partition, offset), record, reason, detail or "", _sure(at), document
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _values(place: RecordPosition) -> tuple[str, int, int]:
    return place.topic, place.partition, place.offset


def _sure(value: Any) -> datetime:
    at = moment(value)
    assert at is not None
    return at
