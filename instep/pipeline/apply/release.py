"""Apply the waiting events of a parked document, in order.

They are applied one after the other, as the flow would have done, up to the first that is refused
again. What came before it is applied; the rest keeps waiting.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import msgspec

from instep import errors
from instep.document.decoding import Event
from instep.document.guard import Verdict
from instep.document.reasons import Reason, Refusal
from instep.pipeline.apply import maintenance, rows
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.sinks.journal_entries import Action, QuarantinedRecord, RecordPosition
from instep.sinks.target import Position

NO_RESULT = Refusal(
    Reason.TRANSFORMATION_FAILED, "the transformation does not yield this event any more"
)
WAITS_SINCE_PLAN = "it arrived after the plan"


def release(
    session: MaintenanceSession,
    document: str,
    *,
    execute: bool,
    reason: str | None = None,
    up_to: Collection[RecordPosition] = (),
    most: int | None = None,
) -> list[Change]:
    """Apply a document's waiting events in one transaction, and return what became of each.

    `up_to` has the last event to apply of each log: later events, and those of other logs, keep
    waiting. Raise NotBlocking if the document waits for none of these events any more. With `most`,
    no more events than that are looked at: enough for a plan, which the flow waits for.
    """
    return session.retry(lambda: _release(session, document, execute, reason, up_to, most))


def waiting_events(
    session: MaintenanceSession, document: str, most: int | None = None
) -> list[QuarantinedRecord]:
    """Return the waiting events of a document in log order, or raise NotParked."""
    waiting = session.sink.journal.waiting_events(document, most)[:most]
    if not waiting:
        raise errors.NotParked(
            f"document {document!r} of pipeline {session.name!r} is not parked",
            "run: instep parked list",
        )
    return waiting


def ledger_offset(
    session: MaintenanceSession, ledger: dict[int, Position], place: RecordPosition
) -> int | None:
    """Return the ledger's next offset for an event's partition.

    None for an event of a topic that was replaced since.
    """
    position = ledger.get(place.partition)
    if position is None or place.log != session.sink.target.topic:
        return None
    return position.next_offset


def _release(
    session: MaintenanceSession,
    document: str,
    execute: bool,
    reason: str | None,
    up_to: Collection[RecordPosition],
    most: int | None,
) -> list[Change]:
    sink, at = session.sink, maintenance.now()
    lines: list[Change] = []
    with session.transaction(execute=execute) as ledger:
        waiting, later = _divide(waiting_events(session, document, most), up_to)
        if not waiting:
            raise errors.NotBlocking(
                f"document {document!r} of pipeline {session.name!r} waits only for events that"
                f" arrived after the plan, the first at {later[0].position}",
                "look at what would happen now",
            )
        decoded = _decode(session, waiting)
        for number, one in enumerate(waiting):
            line = _apply(session, one, decoded[number])
            lines.append(line)
            if line.verdict == Verdict.PARKED.value:
                sink.journal.update_parked(
                    one.position, Reason(line.reason or ""), line.detail or ""
                )
                lines += [_behind(rest) for rest in waiting[number + 1 :]]
                break
            stood = ledger_offset(session, ledger, one.position)
            sink.journal.update_verdict(document, one.position, _history_verdict(line), at, stood)
        lines += [_behind(rest, WAITS_SINCE_PLAN) for rest in later]
        gone = [line for line in lines if line.verdict != Verdict.PARKED.value]
        sink.journal.remove_parked([line.position for line in gone])
        session.record(Action.RELEASED, gone, at, reason)
    return lines


def _divide(
    waiting: Sequence[QuarantinedRecord], up_to: Collection[RecordPosition]
) -> tuple[Sequence[QuarantinedRecord], Sequence[QuarantinedRecord]]:
    """Return the events up to these places, and from the first behind them on the others."""
    last = {(place.log, place.partition): (place.offset, place.result) for place in up_to}
    for number, one in enumerate(waiting if up_to else ()):
        place = one.position
        end = last.get((place.log, place.partition))
        if end is None or (place.offset, place.result) > end:
            return waiting[:number], waiting[number:]
    return waiting, []


def _behind(one: QuarantinedRecord, detail: str | None = None) -> Change:
    """Return the line of an event that keeps waiting."""
    reason = Reason.WAITS_BEHIND.value
    return Change(one.position, one.document, Verdict.PARKED.value, reason, detail)


def _apply(session: MaintenanceSession, one: QuarantinedRecord, event: Event | Refusal) -> Change:
    sink = session.sink
    if isinstance(event, Refusal):
        return Change(
            one.position, one.document, Verdict.PARKED.value, event.reason.value, event.detail
        )
    before = sink.table.look_up([event.document])
    [verdict], parked = rows.write(sink, [event], isolate_failures=True, parked=set())
    line = Change(
        one.position,
        one.document,
        verdict.value,
        **maintenance.row_change(event.document, before, sink.table.look_up([event.document])),
    )
    if parked:
        refusal = parked[0].refusal
        return msgspec.structs.replace(line, reason=refusal.reason.value, detail=refusal.detail)
    return line


def _decode(
    session: MaintenanceSession, waiting: Sequence[QuarantinedRecord]
) -> list[Event | Refusal]:
    """Decode the events by the current settings and table, which may have changed since."""
    found: dict[RecordPosition, Event | Refusal] = {}
    for _, some in itertools.groupby(waiting, key=lambda one: one.position.log):
        same = list(some)
        events, dead = session.decode_quarantined(same)
        numbers: dict[int, Event | Refusal] = {event.offset: event for event in events}
        numbers |= {one.record.offset: Refusal(one.reason, one.detail) for one in dead}
        found |= {
            one.position: numbers[one.record.offset] for one in same if one.record.offset in numbers
        }
    return [found.get(one.position, NO_RESULT) for one in waiting]


def _history_verdict(line: Change) -> str:
    """Return the verdict that the history keeps: it distinguishes a release from the flow."""
    if line.verdict == Verdict.APPLIED.value:
        return Action.RELEASED.value
    return line.verdict
