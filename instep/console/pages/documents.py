"""One document: its row, its timeline, what waits, and its records."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from instep import errors
from instep.console import log_places
from instep.console.requests import ConsolePage, PageRequest
from instep.console.sampling import StatusSample
from instep.document import due
from instep.document.due import StatusAge
from instep.document.reasons import EXPLANATIONS
from instep.kafka import places
from instep.kafka.admin import tail
from instep.operate import timeline
from instep.operate.timeline import PendingEvents, Timeline
from instep.pipeline import retry_policy
from instep.pipeline.apply import maintenance
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import status_ages
from instep.sinks.journal_entries import RecordBeginning, RecordPosition, Selection

NEWEST_MAX = 500  # events, waiting events, dead letters and decisions of a document
VALUE_CHARACTERS_MAX = 64 * 1024  # of a record on a page


class DocumentDelay(msgspec.Struct, frozen=True):
    """Why a document may lack its latest status: what the pipeline does, and what it has not read.

    `pending_problem` says why nobody knows which events wait in the topic.
    """

    sample: StatusSample | None
    pending: PendingEvents | None
    pending_problem: str | None
    age: StatusAge | None  # since when it has a status with a limit
    limit: str | None
    is_overdue: bool
    retried: str | None  # what a running pipeline does for it while it is parked


class FoundDocument(msgspec.Struct, frozen=True):
    """What one pipeline knows of a document."""

    pipeline: str
    document: str
    timeline: Timeline
    waiting: list[RecordBeginning]
    letters: list[RecordBeginning]
    delay: DocumentDelay

    @property
    def is_known(self) -> bool:
        """Return whether the pipeline knows the document, or will know it."""
        pending = self.delay.pending
        return bool(self.timeline or self.waiting or self.letters or (pending and pending.events))


class ShownRecord(msgspec.Struct, frozen=True):
    """A raw record, and where it was found."""

    position: RecordPosition
    source: str
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def document(view: PageRequest) -> Response:
    """Search a document in the pipeline that the URL names, or in all."""
    text = view.require("id")
    names = [view.pipeline()] if view.text("pipeline") else list(view.workspace.pipelines())
    read, failed = view.workspace.of_each(names, lambda name: _find(view, name, text))
    found = [one for _, one in read if one.is_known]
    return view.render(
        "document.html",
        f"Document {text}",
        http_status=200 if found else 404,
        id=text,
        found=found,
        problems=[(name, view.problem_of(error)) for name, error in failed],
        searched=names,
        newest=NEWEST_MAX,
        commands={
            name: view.workspace.command("show", "--pipeline", name, items=[text]) for name in names
        },
    )


def record(view: PageRequest) -> Response:
    """Show the raw record at a position: from a pipeline's quarantine, or from the topic."""
    kept = _from_quarantine(view, view.pipeline()) if view.text("pipeline") else None
    shown = kept or _from_topic(view)
    return view.render(
        "record.html",
        f"Record {shown.position}",
        record=shown,
        most=VALUE_CHARACTERS_MAX,
        command_line=None if kept else _peek_command(view, shown.position),
    )


def _find(view: PageRequest, name: str, text: str) -> FoundDocument:
    with view.session(name) as session:
        kept = timeline.in_quarantine(session, text, NEWEST_MAX)
        found = timeline.read(session, text, view.workspace.shared_cluster, NEWEST_MAX, kept)
        document_id = str(session.decoder.document(text))
        delay = _delay(view, name, session, text, kept.waiting)
    return FoundDocument(name, document_id, found, kept.waiting, kept.letters, delay)


def _delay(
    view: PageRequest,
    name: str,
    session: MaintenanceSession,
    text: str,
    waiting: list[RecordBeginning],
) -> DocumentDelay:
    declared, sample = view.workspace.declared.pipelines[name], view.workspace.sampler(name).watch()
    pending, problem = _pending(view, name, session, text, sample)
    age, is_overdue = None, False
    if declared.due:
        document = str(session.decoder.document(text))
        with session.read() as sink:
            ages, now = status_ages.among(sink, declared.due, [document]), status_ages.clock(sink)
        age = ages[0] if ages else None
        at = due.due_at(age, declared.due_after) if age else None
        is_overdue = at is not None and at <= now
    retried = None
    if waiting:
        with session.read() as sink:
            heads = sink.journal.waiting_events(str(session.decoder.document(text)), 1)
        for head in heads[:1]:  # there is none if it was released meanwhile
            outlook = retry_policy.outlook(declared, head.reason, head.parked, maintenance.now())
            retried = outlook.describe()
    limit = declared.due[age.status] if age else None
    return DocumentDelay(sample, pending, problem, age, limit, is_overdue, retried)


def _pending(
    view: PageRequest,
    name: str,
    session: MaintenanceSession,
    text: str,
    sample: StatusSample | None,
) -> tuple[PendingEvents | None, str | None]:
    """Return the document's events that wait in the topic, or why they are not known."""
    if not session.sink.target.history:
        return None, None  # the timeline was read from the topic, and has them
    if needs := view.workspace.needs_spark(name):
        return None, needs
    if sample is not None and sample.status.lag_records is None and sample.status.error:
        return None, sample.status.error.partition("\n")[0]
    try:
        return timeline.pending(session, text, view.workspace.shared_cluster), None
    except errors.InstepError as error:
        return None, view.problem_of(error).what


def _position(view: PageRequest) -> RecordPosition:
    return log_places.position(
        view.require("topic"), view.require("partition"), view.require("offset")
    )


def _from_quarantine(view: PageRequest, name: str) -> ShownRecord | None:
    position = _position(view)
    with view.session(name) as session, session.read() as sink:
        letters = sink.journal.dead_letters(Selection(positions=(position,)))
        kept = letters or sink.journal.parked_at([position])
    if not kept:
        return None
    stored = kept[0].record
    source = f"kept in quarantine: {kept[0].reason}"
    return ShownRecord(
        position, source, stored.timestamp_ms, stored.key, stored.value, list(stored.headers or ())
    )


def _from_topic(view: PageRequest) -> ShownRecord:
    position = _position(view)
    if position.is_loaded:
        raise errors.SettingsError(
            f"{position} is a row that was loaded; its source is not kept",
            "see what the timeline shows of it",
        )
    cluster = view.workspace.cluster()
    at = places.PlaceRange(places.Offset(position.offset), places.Offset(position.offset + 1))
    # a later result of a record is at RECORD#RESULT: the record is what the topic holds
    wanted = tail.resolve_range(cluster, position.log, at, [position.partition], committed=False)
    for found in tail.records(cluster, wanted, None, 1):
        if found.offset == position.offset:
            return ShownRecord(
                position,
                "read from the topic",
                found.timestamp_ms,
                found.key,
                found.value,
                list(found.headers),
            )
    raise errors.SettingsError(
        f"topic {position.log!r} holds no record at {position}",
        "it has expired, was compacted, or is the marker of a transaction",
    )


def _peek_command(view: PageRequest, position: RecordPosition) -> str:
    place = ["--partition", str(position.partition), "--offset", str(position.offset)]
    return view.workspace.command("peek", *place, "--limit", "1", items=[position.log])


def document_url(name: str, document_id: str) -> str:
    """Return the URL of a document's page."""
    return f"/document?{urlencode({'pipeline': name, 'id': document_id})}"


def explanation(reason: str | None) -> str:
    """Return what a reason of quarantine means."""
    known: dict[str, Any] = {one.value: text for one, text in EXPLANATIONS.items()}
    return str(known.get(reason or "", ""))


PAGES = (ConsolePage("/document", document), ConsolePage("/record", record))
