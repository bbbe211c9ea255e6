"""Dead letters sent through the pipeline's own code again, or dropped with a reason.

After the settings or the table were mended, a dead letter may be understood. It is then applied under the guard, as if it
had come just now: what is newer stays, a parked document keeps it waiting, and one that is refused parks its document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from instep.document.decoding import DeadLetter, Event
from instep.document.guard import Document, Parked, Verdict
from instep.document.reasons import Reason
from instep.pipeline.apply import maintenance, rows
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.sinks.journal_entries import Action, QuarantinedRecord, RecordPosition, Selection
from instep.sinks.stored_values import chunks
from instep.sinks.target import Position

CHUNK_LETTERS = 500
DEAD = "dead"

# of these events of a partition, the offsets whose documents have had a later event, where no order value tells
Overtaken = Callable[[Position, Sequence[Event]], set[int]]


def replay(
    session: MaintenanceSession, chosen: Selection, overtaken: Overtaken, *, execute: bool
) -> Iterator[Change]:
    """What becomes, or would become, of each letter, in log order. Letters of a topic that was replaced stay where they are."""
    places = [
        place for place in _places(session, chosen) if place.topic == session.sink.target.topic
    ]
    for partition in sorted({place.partition for place in places}):
        for some in chunks(
            [place for place in places if place.partition == partition], CHUNK_LETTERS
        ):
            yield from session.retry(lambda some=some: _replay(session, some, overtaken, execute))  # type: ignore[misc]


def drop(
    session: MaintenanceSession, chosen: Selection, why: str, *, execute: bool
) -> list[Change]:
    """Take letters out for good; what is kept is that, why, and by whom."""
    lines: list[Change] = []
    for some in chunks(_places(session, chosen), CHUNK_LETTERS):
        lines += session.retry(lambda some=some: _drop(session, some, why, execute))  # type: ignore[misc]
    return lines


def missing(session: MaintenanceSession, chosen: Selection) -> list[RecordPosition]:
    """Places that were named one by one and where no dead letter lies."""
    there = set(_places(session, Selection(places=chosen.places))) if chosen.places else set()
    return [place for place in chosen.places if place not in there]


def document_of(letter: QuarantinedRecord) -> str | None:
    """What is known of a dead letter's document: its key, if that is text that an id could be."""
    key = letter.record.key
    try:
        return (
            key.decode("utf-8")
            if key is not None and len(key) <= 255 and b"\0" not in key
            else None
        )
    except UnicodeDecodeError:
        return None


def _places(session: MaintenanceSession, chosen: Selection) -> list[RecordPosition]:
    with session.read() as sink:
        return sink.journal.dead_letter_positions(chosen)


def _replay(
    session: MaintenanceSession,
    places: Sequence[RecordPosition],
    overtaken: Overtaken,
    execute: bool,
) -> list[Change]:
    sink, at, partition = session.sink, maintenance.now(), places[0].partition
    with session.transaction(execute=execute) as ledger:
        letters = {
            letter.record.offset: letter
            for letter in sink.journal.dead_letters(Selection(places=tuple(places)))
        }
        cut = [letter for letter in letters.values() if letter.reason == Reason.RECORD_TOO_LARGE]
        events, dead = session.decoder.decode_all(
            [letter.record for letter in letters.values() if letter not in cut]
        )
        dead += [
            DeadLetter(letter.record, Reason.RECORD_TOO_LARGE, letter.detail) for letter in cut
        ]
        late = overtaken(ledger[partition], events) if events and partition in ledger else set()
        live = [event for event in events if event.offset not in late]
        before = sink.table.look_up(event.document for event in live)
        verdicts, parked = rows.write(sink, live, isolate_failures=True)
        after = sink.table.look_up(event.document for event in live)
        lines = [
            Change(letters[e.offset].place, str(e.document), Verdict.STALE.value)
            for e in events
            if e.offset in late
        ]
        lines += _lines(live, verdicts, parked, letters, before, after)
        if sink.target.history and lines:
            outcome = {line.place.offset: Verdict(line.verdict) for line in lines}
            stood = ledger[partition].next_offset if partition in ledger else None
            became = [outcome[event.offset] for event in events]
            sink.journal.add_history(
                partition, events, became, at, skip_existing=True, ledger_offset=stood
            )
        if parked:
            sink.journal.add_parked(
                partition, [(one, letters[one.event.offset].record) for one in parked], at
            )
        sink.journal.remove_dead_letters([line.place for line in lines])
        for letter in dead:
            place = letters[letter.record.offset].place
            sink.journal.update_dead_letter(place, letter.reason, letter.detail)
            document = document_of(letters[letter.record.offset])
            lines.append(Change(place, document, DEAD, letter.reason.value, letter.detail))
        session.record(Action.REPLAYED, lines, at)
    return sorted(lines, key=lambda line: line.place)


def _lines(
    events: Sequence[Event],
    verdicts: Sequence[Verdict],
    parked: Sequence[Parked],
    letters: Mapping[int, QuarantinedRecord],
    before: dict[Document, Any],
    after: dict[Document, Any],
) -> Iterator[Change]:
    """A line for each event; the last that was applied to a document shows what the row becomes by all of them."""
    waits = {one.event.offset: one.refusal for one in parked}
    last = {
        e.document: e.offset
        for e, verdict in zip(events, verdicts, strict=True)
        if verdict is Verdict.APPLIED
    }
    for event, verdict in zip(events, verdicts, strict=True):
        refusal = waits.get(event.offset)
        change = (
            maintenance.row_change(event.document, before, after)
            if last.get(event.document) == event.offset
            else {}
        )
        reason, detail = (refusal.reason.value, refusal.detail) if refusal else (None, None)
        yield Change(
            letters[event.offset].place,
            str(event.document),
            verdict.value,
            reason,
            detail,
            **change,
        )


def _drop(
    session: MaintenanceSession, places: Sequence[RecordPosition], why: str, execute: bool
) -> list[Change]:
    at = maintenance.now()
    with session.transaction(execute=execute):
        letters = session.sink.journal.dead_letters(Selection(places=tuple(places)))
        lines = [
            Change(one.place, document_of(one), Action.DROPPED.value, one.reason, one.detail)
            for one in letters
        ]
        session.sink.journal.remove_dead_letters([line.place for line in lines])
        session.record(Action.DROPPED, lines, at, why)
    return lines
