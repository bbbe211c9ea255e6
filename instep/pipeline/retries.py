"""Retry parked documents whose row, or the parent row of a foreign key, does not exist yet.

While a pipeline runs, such documents are retried after 1, 2, 4 … 60 seconds, until
`retry_parked_s` seconds have passed since they were parked. After that they wait for an operator.

The pipeline is never delayed by this. A thread with a connection of its own works in rounds of two
steps:

1. Apply the due events without a lock on the ledger, and roll back. Most documents are refused
   again here.
2. Release the others exactly as `instep parked release` does: one transaction per document, with
   the ledger locked. If a task holds the ledger at that moment, the release is postponed, so that
   no other task waits behind it.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from instep import errors, settings
from instep.document.guard import Verdict
from instep.document.reasons import RETRIED
from instep.pipeline.apply import maintenance, release, rows
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.sinks.journal_entries import QuarantinedRecord, RecordPosition
from instep.sinks.sink import Sink

ACTOR = "instep"  # in instep_decisions
INTERVAL_S = 1.0
START_PAUSE_S = 5.0  # a run that has just started applies its backlog first
FAILURE_PAUSE_S = 5.0
END_PATIENCE_S = 2.0
DELAY_FIRST_S = 1.0
DELAY_MAX_S = 60.0
ROUND_DOCUMENTS_MAX = 100
ROUND_WORK_S = 1.0  # a round starts no further release after this time
KNOWN_MAX = 100_000
SCAN_INTERVAL = timedelta(seconds=60)  # between reads of all parked documents, not only new ones
OVERLAP = timedelta(seconds=10)  # a transaction commits later than the time that it writes


class RetriedDocument(msgspec.Struct):
    """A parked document: the event that blocks it, and when it is tried next."""

    position: RecordPosition
    due: datetime
    delay_s: float = DELAY_FIRST_S


class Schedule:
    """When each parked document is tried next. It is pure: the caller provides the time."""

    def __init__(self) -> None:
        self._waiting: dict[str, RetriedDocument] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, document: str, position: RecordPosition, now: datetime) -> None:
        """Schedule a document for now, unless it is scheduled already."""
        self._waiting.setdefault(document, RetriedDocument(position, now))

    def due(self, now: datetime, limit: int) -> dict[str, RecordPosition]:
        """Return the documents to try now, longest overdue first."""
        due = (item for item in self._waiting.items() if item[1].due <= now)
        first = heapq.nsmallest(limit, due, key=lambda item: item[1].due)
        return {document: retried.position for document, retried in first}

    def refused(self, document: str, position: RecordPosition, now: datetime) -> None:
        """Try a document again later, after twice the delay each time."""
        retried = self._waiting[document]
        retried.position, retried.due = position, now + timedelta(seconds=retried.delay_s)
        retried.delay_s = min(retried.delay_s * 2, DELAY_MAX_S)

    def postpone(self, document: str, now: datetime) -> None:
        """Try a document again soon, because it could not be tried now."""
        self._waiting[document].due = now + timedelta(seconds=DELAY_FIRST_S)

    def forget(self, document: str) -> None:
        """Stop retrying a document."""
        self._waiting.pop(document, None)


class Retries:
    """Retries the parked documents of one pipeline, in a thread of its own."""

    def __init__(self, name: str, pipeline: settings.Pipeline, epoch: Callable[[], int]) -> None:
        """Create the thread. `epoch` returns the epoch of the running query, 0 if there is none."""
        self._thread = threading.Thread(target=self._run, name=f"{name} retries", daemon=True)
        self._name, self._pipeline, self._epoch = name, pipeline, epoch
        self._ended = threading.Event()
        self._session: MaintenanceSession | None = None
        self._session_epoch = 0
        self._reset()

    def start(self) -> None:
        """Start the thread, if the settings ask for retries."""
        if self._pipeline.retry_parked_s:
            self._thread.start()

    def end(self, *, once_more: bool) -> None:
        """Stop; with `once_more`, try every waiting document a last time without delays."""
        self._ended.set()
        if not self._thread.ident:
            return
        self._thread.join(END_PATIENCE_S)
        if self._thread.is_alive():
            return  # it waits for the database, which rolls back when the connection ends
        if once_more:
            self._reset()
            now = maintenance.now()
            with contextlib.suppress(Exception):  # the rest waits for the next run
                while self.round(now):
                    pass
        self._close()

    def round(self, now: datetime) -> int:
        """Try the documents that are due; return how many were tried."""
        session = self._opened()
        with session.sink.snapshot():
            self._find(session.sink, now)
            due = self._schedule.due(now, ROUND_DOCUMENTS_MAX)
            parked = session.sink.journal.parked_at(list(due.values()))
            events = {str(event.document): event for event in parked}
        for document in due:
            event = events.get(document)
            if event is None or event.reason not in RETRIED or self._has_expired(event, now):
                self._schedule.forget(document)
                events.pop(document, None)
        still_refused = refused_again(session, list(events.values()))  # 1
        deadline = time.monotonic() + ROUND_WORK_S
        for document, event in events.items():
            if event.position in still_refused:
                self._schedule.refused(document, event.position, now)
            elif time.monotonic() < deadline:
                self._release(session, document, event.position, now)  # 2
        return len(events)

    # --- parts ------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = START_PAUSE_S
        while not self._ended.wait(pause_s):
            pause_s = INTERVAL_S
            if self._epoch():
                try:
                    self.round(maintenance.now())
                except Exception:  # noqa: BLE001 - the pipeline itself reports database errors
                    pause_s = FAILURE_PAUSE_S
                    self._close()

    def _reset(self) -> None:
        self._schedule = Schedule()
        self._read_at = self._scanned_at = datetime.min.replace(tzinfo=maintenance.now().tzinfo)

    def _opened(self) -> MaintenanceSession:
        """Return the session; open a new one for a new query, as the table may have changed."""
        epoch = self._epoch()
        if self._session is not None and epoch and epoch != self._session_epoch:
            self._close()
        if self._session is None:
            self._session = MaintenanceSession(self._name, self._pipeline, ACTOR, waits=False)
            self._session_epoch = epoch
        return self._session

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.sink.close()

    def _find(self, sink: Sink, now: datetime) -> None:
        """Schedule what was parked since the last round; once a minute, all that may be retried."""
        since = now - timedelta(seconds=self._pipeline.retry_parked_s)
        if now - self._scanned_at >= SCAN_INTERVAL:
            self._scanned_at = now
        else:
            since = max(since, self._read_at - OVERLAP)
        self._read_at = now
        for reason in RETRIED:
            room = KNOWN_MAX - len(self._schedule)
            if room <= 0:
                return
            for document, position in sink.journal.parked_since(reason, since, room):
                self._schedule.add(document, position, now)

    def _has_expired(self, event: QuarantinedRecord, now: datetime) -> bool:
        return event.at + timedelta(seconds=self._pipeline.retry_parked_s) < now

    def _release(
        self, session: MaintenanceSession, document: str, position: RecordPosition, now: datetime
    ) -> None:
        try:
            changes = release.release(session, document, execute=True)
        except errors.NotParked:  # an operator was faster
            self._schedule.forget(document)
        except errors.Transient:  # a task holds the ledger
            self._schedule.postpone(document, now)
        except errors.RowRefused:  # at the commit: a deferred foreign key of SQLite
            self._schedule.refused(document, position, now)
        else:
            blocking = _first_parked(changes)
            if blocking is None or blocking.reason not in RETRIED:
                self._schedule.forget(document)
            else:
                self._schedule.refused(document, blocking.position, now)


def refused_again(
    session: MaintenanceSession, waiting: Sequence[QuarantinedRecord]
) -> set[RecordPosition]:
    """Return the places of the events that are still refused for the same reason.

    Nothing is changed: the transaction is rolled back.
    """
    still_refused: set[RecordPosition] = set()
    by_partition = itertools.groupby(
        waiting, key=lambda event: (event.position.topic, event.position.partition)
    )
    partitions = [{event.record.offset: event for event in group} for _, group in by_partition]
    try:
        with session.sink.transaction(keep=False):
            for parked in partitions:
                events, _ = session.decoder.decode_all([event.record for event in parked.values()])
                _, refused = rows.write(session.sink, events, isolate_failures=True, parked=set())
                for refusal in refused:
                    event = parked[refusal.event.offset]
                    if event.reason == refusal.refusal.reason.value:
                        still_refused.add(event.position)
    except (errors.RowRefused, errors.Outrun):
        # The whole transaction failed, not one row: each document has to be tried alone.
        return set()
    return still_refused


def retried_until(
    pipeline: settings.Pipeline, reason: str, since: datetime, now: datetime
) -> datetime | None:
    """Return until when a running pipeline retries a document parked for this reason, or None."""
    until = since + timedelta(seconds=pipeline.retry_parked_s)
    return until if reason in RETRIED and until > now else None


def _first_parked(changes: Sequence[Change]) -> Change | None:
    """Return the first event that stays parked."""
    return next((change for change in changes if change.verdict == Verdict.PARKED.value), None)
