"""`instep show`: the life of one document, event by event, and its row as it stands.

From the history. Where none is kept the topic is read instead, and the verdicts are worked out from the log by the guard: what
the table's own constraints or an earlier decision did to an event only shows where it was set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from instep.document import guard, kinds
from instep.document.decoding import Event, record_of
from instep.document.guard import Document, Stored, Verdict
from instep.document.reasons import Unfit
from instep.kafka import offsets, reading, topics
from instep.kafka.connection import Cluster
from instep.operate import dead_letters
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks.journal_entries import (
    DecisionRecord,
    QuarantinedRecord,
    RecordPosition,
    Selection,
)
from instep.sinks.target import Position

IN_THE_LOG = "not applied yet"


class TimelineEntry(msgspec.Struct, frozen=True):
    """One event of the document. Freshness is the time from its happening to its commit."""

    place: RecordPosition
    status: str | None
    order: int | None
    event_time: datetime | None
    committed_at: datetime | None
    verdict: str
    reason: str | None = None
    detail: str | None = None

    @property
    def freshness_s(self) -> float | None:
        if self.event_time is None or self.committed_at is None:
            return None
        return (self.committed_at - self.event_time).total_seconds()


class Timeline(msgspec.Struct, frozen=True):
    """A document's events, what people decided about it, and its row."""

    pipeline: str
    document: str
    source: Literal["history", "topic"]
    events: list[TimelineEntry]
    decisions: list[DecisionRecord]
    row: dict[str, Any] | None
    waiting: int

    def __bool__(self) -> bool:
        return bool(self.events or self.decisions or self.row is not None)


def read(session: MaintenanceSession, text: str, cluster: Callable[[], Cluster]) -> Timeline:
    """The timeline of the document that `text` names."""
    document = session.decoder.document(text)
    with session.read() as sink:
        waiting = sink.journal.waiting_events(str(document))
        letters = sink.journal.dead_letters(Selection(document=text))
        decided = sink.journal.decisions(document=str(document))
        row = sink.table.look_up([document]).get(document)
        if sink.target.history:
            events = _from_history(session, str(document), waiting)
        else:
            with cluster() as opened:
                events = _from_topic(
                    session,
                    document,
                    opened,
                    sink.ledger.positions(),
                    {one.place: one for one in waiting},
                )
    source: Literal["history", "topic"] = "history" if session.sink.target.history else "topic"
    return Timeline(
        session.name, text, source, [*events, *map(_dead, letters)], decided, row, len(waiting)
    )


def _from_history(
    session: MaintenanceSession, document: str, waiting: list[QuarantinedRecord]
) -> list[TimelineEntry]:
    reasons = {one.place: (one.reason, one.detail) for one in waiting}
    return [
        TimelineEntry(
            one.place,
            one.status,
            one.order,
            one.event_time,
            one.committed_at,
            one.verdict,
            *reasons.get(one.place, ()),
        )
        for one in session.sink.journal.history(document)
    ]


def _dead(letter: QuarantinedRecord) -> TimelineEntry:
    try:
        happened = (
            kinds.instant(letter.record.timestamp_ms) if letter.record.timestamp_ms >= 0 else None
        )
    except Unfit:  # beyond the year 9999: the letter may be one for just that
        happened = None
    return TimelineEntry(
        letter.place,
        None,
        None,
        happened,
        letter.at,
        dead_letters.DEAD,
        letter.reason,
        letter.detail,
    )


def _from_topic(
    session: MaintenanceSession,
    document: Document,
    cluster: Cluster,
    ledger: dict[int, Position],
    waiting: dict[RecordPosition, QuarantinedRecord],
) -> list[TimelineEntry]:
    """Every record of the document that the log holds, with the verdict that the guard gives them one after the other."""
    name, rules = session.sink.target.topic, session.sink.target.rules
    over = {
        one.place: one.action
        for one in session.sink.journal.decisions()
        if one.action in ("skipped", "dropped")
    }
    known = Stored(False, None)
    found: list[TimelineEntry] = []
    for partition, event in _events_of(session, document, cluster):
        place = RecordPosition(name, partition, event.offset)
        happened = kinds.from_micros(event.at_us) if event.at_us is not None else None
        shown = TimelineEntry(place, event.status, event.order, happened, None, IN_THE_LOG)
        position = ledger.get(partition)
        if position is None or event.offset >= position.next_offset:
            found.append(shown)
        elif place in waiting:
            one = waiting[place]
            found.append(
                msgspec.structs.replace(
                    shown, verdict=Verdict.PARKED.value, reason=one.reason, detail=one.detail
                )
            )
        elif place in over:
            found.append(msgspec.structs.replace(shown, verdict=over[place]))
        else:
            verdict = (
                guard.judge(event.order, known.order, rules.order_is_time)
                if rules.ordered
                else Verdict.APPLIED
            )
            if verdict is Verdict.APPLIED:
                known = Stored(
                    event.values is not None, known.order if event.order is None else event.order
                )
            found.append(msgspec.structs.replace(shown, verdict=verdict.value))
    return found


def _events_of(
    session: MaintenanceSession, document: Document, cluster: Cluster
) -> Iterator[tuple[int, Event]]:
    """The document's events, partition by partition, in log order."""
    topic = topics.describe(cluster, session.sink.target.topic)
    first = offsets.earliest(cluster, topic.name, topic.partitions)
    end = offsets.latest(cluster, topic.name, topic.partitions)
    by_key = session.sink.target.mapping.is_keyed
    key = str(document).encode()
    for partition in topic.partitions:
        for record in reading.read(
            cluster, topic.name, {partition: (first[partition], end[partition])}
        ):
            if by_key and record.key != key:
                continue
            events, _ = session.decoder.decode_all([record_of(record)])
            if events and events[0].document == document:
                yield partition, events[0]
