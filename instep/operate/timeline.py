"""`instep show`: the events of one document, the decisions about it, and its rows.

The events come from the history. If the pipeline has none, the topic is read instead, and the
guard works out the verdicts again. The table's own constraints and earlier decisions are then
visible only for events that are still in quarantine or were skipped or dropped.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from instep.document import guard, kinds
from instep.document.decoding import Event, record_of
from instep.document.guard import DocumentId, Verdict
from instep.document.partition import partition_of
from instep.document.reasons import Unfit
from instep.kafka import offsets, reading, topics
from instep.kafka.connection import Cluster
from instep.operate import dead_letters
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks.journal_entries import (
    DecisionRecord,
    RecordBeginning,
    RecordPosition,
    Selection,
    position_of,
)
from instep.sinks.target import Position

CHUNK_RECORDS = 1_000
OFFSETS_MAX = 200_000  # of the whole topic, if only the newest events are wanted
# behind the ledger, in which events that wait are looked for: in the partition where they should
# be, and in all others together
PENDING_OFFSETS_MAX = 50_000
NOT_APPLIED_YET = "not applied yet"

OpenCluster = Callable[[], contextlib.AbstractContextManager[Cluster]]


class TimelineEntry(msgspec.Struct, frozen=True):
    """One event of the document."""

    position: RecordPosition
    status: str | None
    order: int | None
    event_time: datetime | None
    committed_at: datetime | None
    verdict: str
    reason: str | None = None
    detail: str | None = None

    @property
    def freshness_s(self) -> float | None:
        """Return the time from the event's own time to its commit."""
        if self.event_time is None or self.committed_at is None:
            return None
        return (self.committed_at - self.event_time).total_seconds()


class InQuarantine(msgspec.Struct, frozen=True):
    """What quarantine has of a document: its waiting events, and dead letters with its key."""

    waiting: list[RecordBeginning]
    letters: list[RecordBeginning]


class Timeline(msgspec.Struct, frozen=True):
    """The events of a document, the decisions about it, and its rows.

    `further` has the rows of each further table, by its name. `unread` offsets of the topic are
    left out: the verdicts of the first events may depend on them.
    """

    pipeline: str
    document: str
    source: Literal["history", "topic"]
    events: list[TimelineEntry]
    decisions: list[DecisionRecord]
    row: dict[str, Any] | None
    waiting: int
    further: dict[str, list[dict[str, Any]]] = {}
    unread: int = 0

    def __bool__(self) -> bool:
        has_rows = self.row is not None or any(self.further.values())
        return bool(self.events or self.decisions or has_rows)


def in_quarantine(
    session: MaintenanceSession, text: str, newest: int | None = None
) -> InQuarantine:
    """Return what quarantine has of the document with the id `text`."""
    document = str(session.decoder.document(text))
    with session.read() as sink:
        return InQuarantine(
            sink.journal.waiting_beginnings(document, newest)[:newest],
            sink.journal.dead_letter_beginnings(Selection(document=text), newest),
        )


class PendingEvents(msgspec.Struct, frozen=True):
    """Events of a document behind the ledger; `unread` offsets there were not looked at."""

    events: list[TimelineEntry]
    unread: int


def read(
    session: MaintenanceSession,
    text: str,
    cluster: OpenCluster,
    newest: int | None = None,
    kept: InQuarantine | None = None,
) -> Timeline:
    """Return the timeline of the document with the id `text`.

    With `newest`, at most this many events, decisions and dead letters, and of a topic that is read
    only the newest OFFSETS_MAX offsets. `kept` is what quarantine has, if it was read already.
    """
    unread = 0
    document = session.decoder.document(text)
    kept = kept or in_quarantine(session, text, newest)
    waiting, letters = kept.waiting, kept.letters
    with session.read() as sink:
        count = sink.journal.waiting_count(str(document))
        decisions = sink.journal.decisions(document=str(document), newest=newest)
        row = sink.table.look_up([document]).get(document)
        further = {str(one.target.table): one.look_up(document) for one in sink.further}
        if sink.target.history:
            events = _from_history(session, str(document), waiting, newest)
        else:
            waiting_at = {record.position: record for record in waiting}
            about = str(document) if newest else None
            removed = {
                decision.position: decision.action
                for decision in sink.journal.decisions(document=about)
                if decision.action in ("skipped", "dropped")
            }
            with cluster() as opened:
                ranges, unread = _ranges(opened, sink.target.topic, OFFSETS_MAX if newest else None)
                found = _events_of(session, document, opened, ranges)
                events = _judged(session, found, sink.ledger.positions(), waiting_at, removed)
            events = events[-newest:] if newest else events
    source: Literal["history", "topic"] = "history" if session.sink.target.history else "topic"
    events = _with_dead(events, list(map(_dead, letters)), session.sink.target.topic, source)
    return Timeline(session.name, text, source, events, decisions, row, count, further, unread)


def pending(session: MaintenanceSession, text: str, cluster: OpenCluster) -> PendingEvents:
    """Return the document's events in the topic that the pipeline has not read yet."""
    document = session.decoder.document(text)
    with session.read() as sink:
        ledger = sink.ledger.positions()
    found: list[TimelineEntry] = []
    with cluster() as opened:
        topic = topics.describe(opened, session.sink.target.topic)
        starts = {number: row.next_offset for number, row in ledger.items()}
        if any(row.topic_id != topic.id for row in ledger.values()):
            starts = {}  # offsets of another topic mean nothing here
        first = offsets.earliest(opened, topic.name, topic.partitions)
        end = offsets.latest(opened, topic.name, topic.partitions)
        # where instep's publisher puts it; another one may choose otherwise
        likely = partition_of(str(document).encode(), len(topic.partitions))
        ranges, unread = {}, 0
        for number in topic.partitions:
            most = PENDING_OFFSETS_MAX // (1 if number == likely else len(topic.partitions))
            start = max(first[number], starts.get(number, 0))
            ranges[number] = (start, min(end[number], start + most))
            unread += max(0, end[number] - start - most)
        for partition, event in _events_of(session, document, opened, ranges):
            place = position_of(session.sink.target, partition, event.offset)
            found.append(_entry(place, event, NOT_APPLIED_YET))
    return PendingEvents(found, unread)


def _with_dead(
    events: list[TimelineEntry],
    letters: list[TimelineEntry],
    topic: str,
    source: Literal["history", "topic"],
) -> list[TimelineEntry]:
    """Return events and dead letters by time; by place if times are unknown."""

    def at(one: TimelineEntry) -> Any:
        if source == "history":
            return one.committed_at
        position = one.position
        return position.log != topic, position.partition, position.offset

    return list(heapq.merge(events, sorted(letters, key=at), key=at))


def _from_history(
    session: MaintenanceSession,
    document: str,
    waiting: list[RecordBeginning],
    newest: int | None,
) -> list[TimelineEntry]:
    reasons = {record.position: (record.reason, record.detail) for record in waiting}
    return [
        TimelineEntry(
            event.position,
            event.status,
            event.order,
            event.event_time,
            event.committed_at,
            event.verdict,
            *reasons.get(event.position, ()),
        )
        for event in session.sink.journal.history(document, newest)
    ]


def _dead(letter: RecordBeginning) -> TimelineEntry:
    event_time = None
    if letter.timestamp_ms >= 0:
        # A time after the year 9999 may be the very reason for the dead letter.
        with contextlib.suppress(Unfit):
            event_time = kinds.instant(letter.timestamp_ms)
    return TimelineEntry(
        letter.position,
        None,
        None,
        event_time,
        letter.at,
        dead_letters.DEAD,
        letter.reason,
        letter.detail,
    )


def _judged(
    session: MaintenanceSession,
    events: Iterable[tuple[int, Event]],
    ledger: dict[int, Position],
    waiting: dict[RecordPosition, RecordBeginning],
    removed: dict[RecordPosition, str],
) -> list[TimelineEntry]:
    """Return events of the log with the verdicts of the guard."""
    rules = session.sink.target.rules
    order: int | None = None  # the order value that the events so far leave in the table
    entries: list[TimelineEntry] = []
    for partition, event in events:
        place = position_of(session.sink.target, partition, event.offset)
        position = ledger.get(partition)
        verdict, reason, detail = NOT_APPLIED_YET, None, None
        if position is not None and place.offset < position.next_offset:
            if place in waiting:
                verdict = Verdict.PARKED.value
                reason, detail = waiting[place].reason, waiting[place].detail
            elif place in removed:
                verdict = removed[place]
            else:
                judged = Verdict.APPLIED
                if rules.ordered:
                    judged = guard.judge(event.order, order, rules.order_is_time)
                if judged is Verdict.APPLIED and event.order is not None:
                    order = event.order
                verdict = judged.value
        entries.append(_entry(place, event, verdict, reason, detail))
    return entries


def _entry(
    place: RecordPosition,
    event: Event,
    verdict: str,
    reason: str | None = None,
    detail: str | None = None,
) -> TimelineEntry:
    """Return an event of the log, whose commit time is unknown."""
    event_time = kinds.from_micros(event.at_us) if event.at_us is not None else None
    return TimelineEntry(
        place, event.status, event.order, event_time, None, verdict, reason, detail
    )


def _ranges(
    cluster: Cluster, name: str, most: int | None
) -> tuple[dict[int, tuple[int, int]], int]:
    """Return what to read of each partition, and the number of offsets that are left out."""
    topic = topics.describe(cluster, name)
    first = offsets.earliest(cluster, name, topic.partitions)
    end = offsets.latest(cluster, name, topic.partitions)
    starts = dict(first)
    if most is not None:
        each = most // len(topic.partitions)
        starts = {number: max(start, end[number] - each) for number, start in first.items()}
    unread = sum(start - first[number] for number, start in starts.items())
    return {number: (start, end[number]) for number, start in starts.items()}, unread


def _events_of(
    session: MaintenanceSession,
    document: DocumentId,
    cluster: Cluster,
    ranges: dict[int, tuple[int, int]],
) -> Iterator[tuple[int, Event]]:
    """Yield the document's events, partition by partition, in log order."""
    is_keyed = session.sink.target.mapping.is_keyed
    key = str(document).encode()
    for partition, bounds in sorted(ranges.items()):
        records = (
            record_of(record)
            for record in reading.read(cluster, session.sink.target.topic, {partition: bounds})
            if not is_keyed or record.key == key
        )
        while chunk := list(itertools.islice(records, CHUNK_RECORDS)):
            events, _ = session.decode(chunk)
            for event in events:
                if event.document == document:
                    yield partition, event
