"""Replay dead letters, or drop them with a reason.

After the settings or the table were corrected, instep may be able to decode a dead letter. It then
applies the event under the guard, as if it had just arrived: newer values stay, an event of a
parked document waits, and an event that the table refuses parks its document.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from instep.document.decoding import DeadLetter, Event, Record
from instep.document.guard import DocumentId, Parked, Verdict
from instep.document.reasons import Reason
from instep.pipeline.apply import maintenance, rows
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.sinks.journal_entries import (
    Action,
    QuarantinedRecord,
    RecordPosition,
    Selection,
    number_of,
    position_of,
)
from instep.sinks.stored_values import chunks
from instep.sinks.target import Position, Target

CHUNK_LETTERS = 500
DEAD = "dead"
LEFT_OUT = "the transformation yields no event of it"

# Returns the offsets of those events whose documents have had a later event. Needed only if the
# pipeline has no order; see `log_replay.OvertakenInLog`.
FindOvertaken = Callable[[Position, Sequence[Event]], set[int]]


def replay(
    session: MaintenanceSession,
    selection: Selection,
    overtaken: FindOvertaken,
    *,
    execute: bool,
    reason: str | None = None,
) -> Iterator[Change]:
    """Replay dead letters; yield what becomes, or would become, of each, in log order.

    Dead letters of a topic that was replaced stay as they are.
    """
    by_partition: dict[int, list[RecordPosition]] = {}
    for position in _positions(session, selection):
        if position.log == session.sink.target.topic:
            by_partition.setdefault(position.partition, []).append(position)
    for _, positions in sorted(by_partition.items()):
        for chunk in chunks(positions, CHUNK_LETTERS):
            yield from session.retry(
                functools.partial(_replay, session, chunk, overtaken, execute=execute, why=reason)
            )


def drop(
    session: MaintenanceSession, selection: Selection, reason: str, *, execute: bool
) -> list[Change]:
    """Remove dead letters for good. A decision keeps their positions, the actor and the reason."""
    changes: list[Change] = []
    for chunk in chunks(_positions(session, selection), CHUNK_LETTERS):
        changes += session.retry(functools.partial(_drop, session, chunk, reason, execute=execute))
    return changes


def missing(session: MaintenanceSession, selection: Selection) -> list[RecordPosition]:
    """Return the positions that were named one by one and hold no dead letter."""
    if not selection.positions:
        return []
    existing = set(_positions(session, Selection(positions=selection.positions)))
    return [position for position in selection.positions if position not in existing]


def document_of(letter: QuarantinedRecord) -> str | None:
    """Return a dead letter's key if it can be the id of a document."""
    key = letter.record.key
    if key is None or len(key) > 255 or b"\0" in key:
        return None
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _positions(session: MaintenanceSession, selection: Selection) -> list[RecordPosition]:
    with session.read() as sink:
        return sink.journal.dead_letter_positions(selection)


def _replay(
    session: MaintenanceSession,
    positions: Sequence[RecordPosition],
    overtaken: FindOvertaken,
    *,
    execute: bool,
    why: str | None,
) -> list[Change]:
    """Replay dead letters of one partition in one transaction."""
    sink, at, partition = session.sink, maintenance.now(), positions[0].partition
    with session.transaction(execute=execute) as ledger:
        letters = {
            letter.record.offset: letter
            for letter in sink.journal.dead_letters(Selection(positions=tuple(positions)))
        }
        # Of a record that was too large, only the beginning is kept: it stays a dead letter.
        truncated = [
            letter for letter in letters.values() if letter.reason == Reason.RECORD_TOO_LARGE
        ]
        events, dead = session.decode_quarantined(
            [letter for letter in letters.values() if letter not in truncated]
        )
        dead += [
            DeadLetter(letter.record, Reason.RECORD_TOO_LARGE, letter.detail)
            for letter in truncated
        ]
        overtaken_offsets: set[int] = set()
        if events and partition in ledger:
            overtaken_offsets = overtaken(ledger[partition], events)
        current = [event for event in events if event.offset not in overtaken_offsets]
        before = sink.table.look_up(event.document for event in current)
        verdicts, parked = rows.write(sink, current, isolate_failures=True)
        after = sink.table.look_up(event.document for event in current)
        changes = [
            Change(
                position_of(sink.target, partition, event.offset),
                str(event.document),
                Verdict.STALE.value,
            )
            for event in events
            if event.offset in overtaken_offsets
        ]
        changes += _changes(sink.target, partition, current, verdicts, parked, before, after)
        if sink.target.history and changes:
            verdict_at = {
                number_of(sink.target, change.position): Verdict(change.verdict)
                for change in changes
            }
            final = [verdict_at[event.offset] for event in events]
            position = ledger[partition].next_offset if partition in ledger else None
            sink.journal.add_history(
                partition, events, final, at, skip_existing=True, ledger_offset=position
            )
        if parked:
            records = [(event, _record_of(letters, sink.target, event)) for event in parked]
            sink.journal.add_parked(partition, records, at)
        changes += _without_event(letters, sink.target, events, dead)
        sink.journal.remove_dead_letters([change.position for change in changes])
        for letter in dead:
            if letter.record.offset not in letters:
                # A result of a record on which the transformation failed as a whole before.
                sink.journal.add_dead_letters(partition, [letter], at)
                place = position_of(sink.target, partition, letter.record.offset)
                changes.append(Change(place, None, DEAD, letter.reason.value, letter.detail))
                continue
            stored = letters[letter.record.offset]
            sink.journal.update_dead_letter(stored.position, letter.reason, letter.detail)
            changes.append(
                Change(
                    stored.position, document_of(stored), DEAD, letter.reason.value, letter.detail
                )
            )
        session.record(Action.REPLAYED, changes, at, why)
    return sorted(changes, key=lambda change: change.position)


def _record_of(letters: Mapping[int, QuarantinedRecord], target: Target, parked: Parked) -> Record:
    """Return the record of an event that is parked, numbered as the event."""
    number = parked.event.offset
    letter = letters.get(number) or letters[number // target.slots * target.slots]
    return msgspec.structs.replace(letter.record, offset=number)


def _without_event(
    letters: Mapping[int, QuarantinedRecord],
    target: Target,
    events: Sequence[Event],
    dead: Sequence[DeadLetter],
) -> list[Change]:
    """Return what becomes of dead letters that the transformation leaves out now."""
    numbers = {event.offset for event in events} | {letter.record.offset for letter in dead}
    records = {number // target.slots for number in numbers}
    return [
        Change(letter.position, document_of(letter), Verdict.IGNORED.value, detail=LEFT_OUT)
        for number, letter in letters.items()
        if number not in numbers
        and not (
            letter.reason == Reason.TRANSFORMATION_FAILED and number // target.slots in records
        )
    ]


def _changes(
    target: Target,
    partition: int,
    events: Sequence[Event],
    verdicts: Sequence[Verdict],
    parked: Sequence[Parked],
    before: dict[DocumentId, Any],
    after: dict[DocumentId, Any],
) -> Iterator[Change]:
    """Yield the change of each event.

    The row before and after all events is shown with the last event that was applied to it.
    """
    refusals = {event.event.offset: event.refusal for event in parked}
    last_applied = {}
    for event, verdict in zip(events, verdicts, strict=True):
        if verdict is Verdict.APPLIED:
            last_applied[event.document] = event.offset
    for event, verdict in zip(events, verdicts, strict=True):
        refusal = refusals.get(event.offset)
        row_change = {}
        if last_applied.get(event.document) == event.offset:
            row_change = maintenance.row_change(event.document, before, after)
        yield Change(
            position_of(target, partition, event.offset),
            str(event.document),
            verdict.value,
            refusal.reason.value if refusal else None,
            refusal.detail if refusal else None,
            **row_change,
        )


def _drop(
    session: MaintenanceSession,
    positions: Sequence[RecordPosition],
    reason: str,
    *,
    execute: bool,
) -> list[Change]:
    at = maintenance.now()
    with session.transaction(execute=execute):
        letters = session.sink.journal.dead_letters(Selection(positions=tuple(positions)))
        changes = [
            Change(
                letter.position,
                document_of(letter),
                Action.DROPPED.value,
                letter.reason,
                letter.detail,
            )
            for letter in letters
        ]
        session.sink.journal.remove_dead_letters([change.position for change in changes])
        session.record(Action.DROPPED, changes, at, reason)
    return changes
