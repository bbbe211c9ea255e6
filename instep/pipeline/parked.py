"""Parked documents: released in order, or the event that holds one passed over, with a reason.

A release applies the waiting events one after the other, as the flow would have, and stops at the first that is refused
again: what came before it is applied, the rest goes on waiting.
"""

from __future__ import annotations

import msgspec

from instep import errors
from instep.document.decoding import Event
from instep.document.guard import Verdict
from instep.document.reasons import Reason, Refusal
from instep.pipeline import documents, turns
from instep.pipeline.turns import Desk, Line
from instep.sinks import setaside
from instep.sinks.setaside import Deed, Place, SetAside
from instep.sinks.target import Position


class NotParked(errors.SettingsError):
    """A document was named that is not parked, or is not any more."""


def release(desk: Desk, document: str, *, execute: bool) -> list[Line]:
    """Apply a document's waiting events in order, in one transaction; each event's outcome."""
    return desk.insist(lambda: _release(desk, document, execute))


def skip(desk: Desk, document: str, why: str) -> tuple[SetAside, int]:
    """Pass over the event that holds a document; that event, and how many still wait."""
    return desk.insist(lambda: _skip(desk, document, why))


def _release(desk: Desk, document: str, execute: bool) -> list[Line]:
    sink, at = desk.sink, turns.now()
    lines: list[Line] = []
    with desk.turn(execute=execute) as ledger:
        waiting = _waiting(desk, document)
        for number, one in enumerate(waiting):
            line = _apply(desk, one)
            lines.append(line)
            if line.verdict == Verdict.PARKED.value:
                setaside.judge_parked_again(sink, one.place, Reason(line.reason or ""), line.detail or "")
                lines += [
                    Line(rest.place, document, Verdict.PARKED.value, Reason.WAITS_BEHIND.value) for rest in waiting[number + 1 :]
                ]
                break
            setaside.relive(sink, document, one.place, _lived(line), at, _ledger_offset(desk, ledger, one.place))
        gone = [line for line in lines if line.verdict != Verdict.PARKED.value]
        setaside.remove_parked(sink, [line.place for line in gone])
        desk.record(Deed.RELEASED, gone, at)
    return lines


def _apply(desk: Desk, one: SetAside) -> Line:
    sink = desk.sink
    event = _decode(desk, one)
    if isinstance(event, Refusal):
        return Line(one.place, one.document, Verdict.PARKED.value, event.reason.value, event.detail)
    before = sink.look_up([event.document])
    [verdict], parked = documents.write(sink, [event], careful=True, held=set())
    line = Line(
        one.place, one.document, verdict.value, **turns.row_change(event.document, before, sink.look_up([event.document]))
    )
    if parked:
        refusal = parked[0].refusal
        return msgspec.structs.replace(line, reason=refusal.reason.value, detail=refusal.detail)
    return line


def _decode(desk: Desk, one: SetAside) -> Event | Refusal:
    """The event, or why it is none any more: the settings or the table changed since it was parked."""
    events, dead = desk.decoder.decode_all([one.record])
    return Refusal(dead[0].reason, dead[0].detail) if dead else events[0]


def _lived(line: Line) -> str:
    """The history tells an event that was applied late from one that was applied in the flow."""
    return Deed.RELEASED.value if line.verdict == Verdict.APPLIED.value else line.verdict


def _skip(desk: Desk, document: str, why: str) -> tuple[SetAside, int]:
    at = turns.now()
    with desk.turn(execute=True) as ledger:
        waiting = _waiting(desk, document)
        first = waiting[0]
        setaside.remove_parked(desk.sink, [first.place])
        setaside.relive(desk.sink, document, first.place, Deed.SKIPPED.value, at, _ledger_offset(desk, ledger, first.place))
        line = Line(first.place, document, Deed.SKIPPED.value, first.reason)
        desk.record(Deed.SKIPPED, [line], at, why)
    return first, len(waiting) - 1


def _ledger_offset(desk: Desk, ledger: dict[int, Position], place: Place) -> int | None:
    """Where the ledger of an event's partition stands; None for an event of a topic that was replaced."""
    position = ledger.get(place.partition) if place.topic == desk.sink.to.topic else None
    return None if position is None else position.next_offset


def _waiting(desk: Desk, document: str) -> list[SetAside]:
    waiting = setaside.waiting_events(desk.sink, document)
    if not waiting:
        raise NotParked(f"document {document!r} of pipeline {desk.name!r} is not parked", "run: instep parked list")
    return waiting
