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

from instep import errors
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

CHUNK_LETTERS = 500  # of one transaction
DEAD = "dead"
LEFT_OUT = "the transformation yields no event of it"

# Returns the offsets of those events whose documents have had a later event. Needed only if the
# pipeline has no order; see `log_replay.OvertakenInLog`. It is asked before the ledger is locked,
# and again under the lock.
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

    Dead letters that were not read from the pipeline's topic stay as they are.
    """
    for changes in replay_chunks(session, selection, overtaken, execute=execute, reason=reason):
        yield from changes


def replay_chunks(
    session: MaintenanceSession,
    selection: Selection,
    overtaken: FindOvertaken,
    *,
    execute: bool,
    reason: str | None = None,
    letters_max: int = CHUNK_LETTERS,
) -> Iterator[list[Change]]:
    """Replay dead letters; yield the changes of each transaction, of this many letters at most."""
    by_partition: dict[int, list[RecordPosition]] = {}
    for position in _positions(session, selection):
        if is_replayed(session, position):
            by_partition.setdefault(position.partition, []).append(position)
    for _, positions in sorted(by_partition.items()):
        for chunk in chunks(positions, letters_max):
            yield session.retry(
                functools.partial(_replay, session, chunk, overtaken, execute=execute, why=reason)
            )


def is_replayed(session: MaintenanceSession, position: RecordPosition) -> bool:
    """Return whether a dead letter is of the topic that the pipeline reads now."""
    return position.log == session.sink.target.topic


def drop(
    session: MaintenanceSession, selection: Selection, reason: str, *, execute: bool
) -> list[Change]:
    """Remove dead letters for good. A decision keeps their positions, the actor and the reason."""
    return [
        change
        for changes in drop_chunks(session, selection, reason, execute=execute)
        for change in changes
    ]


def drop_chunks(
    session: MaintenanceSession, selection: Selection, reason: str, *, execute: bool
) -> Iterator[list[Change]]:
    """Remove dead letters for good; yield the changes of each transaction."""
    for chunk in chunks(_positions(session, selection), CHUNK_LETTERS):
        if execute:
            yield session.retry(functools.partial(_drop, session, chunk, reason))
        else:
            with session.read():
                yield _dropped(session, chunk)


def missing(session: MaintenanceSession, selection: Selection) -> list[RecordPosition]:
    """Return the positions that were named one by one and hold no dead letter."""
    if not selection.positions:
        return []
    existing = set(_positions(session, Selection(positions=selection.positions)))
    return [position for position in selection.positions if position not in existing]


def document_of(key: bytes | None) -> str | None:
    """Return a dead letter's key if it can be the id of a document."""
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
    """Replay dead letters of one partition in one transaction.

    What takes long comes before it: decoding, and reading the log. The flow waits for the rest.
    """
    sink, at, partition = session.sink, maintenance.now(), positions[0].partition
    with session.read():
        letters = {
            letter.record.offset: letter
            for letter in sink.journal.dead_letters(Selection(positions=tuple(positions)))
        }
    events, dead = _decoded(session, letters)

    def read_log(ledger: dict[int, Position]) -> None:
        if events and partition in ledger:
            overtaken(ledger[partition], events)

    session.approach_ledger(read_log)
    with session.transaction(execute=execute) as ledger:
        _require_unchanged(session, positions, letters)
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
                    stored.position,
                    document_of(stored.record.key),
                    DEAD,
                    letter.reason.value,
                    letter.detail,
                )
            )
        session.record(Action.REPLAYED, changes, at, why)
    return sorted(changes, key=lambda change: change.position)


def _decoded(
    session: MaintenanceSession, letters: Mapping[int, QuarantinedRecord]
) -> tuple[list[Event], list[DeadLetter]]:
    """Return events and dead letters of dead letters, by the current settings."""
    whole = [one for one in letters.values() if one.reason != Reason.RECORD_TOO_LARGE]
    events, dead = session.decode_quarantined(whole)
    # Of a record that was too large, only the beginning is kept: it stays a dead letter.
    dead += [
        DeadLetter(letter.record, Reason.RECORD_TOO_LARGE, letter.detail)
        for letter in letters.values()
        if letter.reason == Reason.RECORD_TOO_LARGE
    ]
    return events, dead


def _require_unchanged(
    session: MaintenanceSession,
    positions: Sequence[RecordPosition],
    letters: Mapping[int, QuarantinedRecord],
) -> None:
    """Raise Transient if somebody else has changed the dead letters since they were read."""
    read = {letter.position: letter.reason for letter in letters.values()}
    if session.sink.journal.dead_letter_reasons_at(positions) != read:
        raise errors.Transient("somebody else works on the same dead letters")


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
        Change(
            letter.position, document_of(letter.record.key), Verdict.IGNORED.value, detail=LEFT_OUT
        )
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
    session: MaintenanceSession, positions: Sequence[RecordPosition], reason: str
) -> list[Change]:
    at = maintenance.now()
    with session.transaction(execute=True):
        changes = _dropped(session, positions)
        session.sink.journal.remove_dead_letters([change.position for change in changes])
        session.record(Action.DROPPED, changes, at, reason)
    return changes


def _dropped(session: MaintenanceSession, positions: Sequence[RecordPosition]) -> list[Change]:
    """Return what becomes of dead letters that are dropped."""
    letters = session.sink.journal.dead_letter_beginnings(Selection(positions=tuple(positions)))
    dropped = Action.DROPPED.value
    return [
        Change(letter.position, document_of(letter.key), dropped, letter.reason, letter.detail)
        for letter in letters
    ]
