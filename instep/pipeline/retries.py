"""Retry parked documents whose row, or the parent row of a foreign key, does not exist yet.

While a pipeline runs, such documents are tried again after 1, 2, 4 … 60 seconds, until `retry_parked_s` seconds have passed
since they were parked. After that they wait for an operator.

The flow is never held up. The work is done by a thread with a connection of its own, and a round is two steps:

1. The due events are applied without a lock on the ledger, and rolled back. Most documents are refused again here.
2. The others are released exactly as `instep parked release` does: one transaction per document, with the ledger locked. If a
   task holds the ledger at that moment, the release is tried again later, so no other task waits behind it.
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

WHO = "instep"  # in instep_decisions
INTERVAL_S = 1.0
START_PAUSE_S = 5.0  # a run that has just started has a backlog to apply first
FAILURE_PAUSE_S = 5.0
END_PATIENCE_S = 2.0
DELAY_FIRST_S = 1.0
DELAY_MAX_S = 60.0
ROUND_DOCUMENTS_MAX = 100
ROUND_WORK_S = 1.0  # a round starts no further release after this time
KNOWN_MAX = 100_000
SCAN_INTERVAL = timedelta(
    seconds=60
)  # how often all parked documents are read, not only the latest
OVERLAP = timedelta(seconds=10)  # a transaction commits later than the time that it writes


class RetriedDocument(msgspec.Struct):
    """A parked document, the event that holds it, and when it is tried next."""

    place: RecordPosition
    due: datetime
    delay_s: float = DELAY_FIRST_S


class Schedule:
    """When each parked document is tried next. Pure: the caller has the clock."""

    def __init__(self) -> None:
        self._waiting: dict[str, RetriedDocument] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, document: str, place: RecordPosition, now: datetime) -> None:
        """Try a document at once, unless it is scheduled already."""
        self._waiting.setdefault(document, RetriedDocument(place, now))

    def due(self, now: datetime, limit: int) -> dict[str, RecordPosition]:
        """The documents to try now, longest overdue first."""
        due = ((name, one) for name, one in self._waiting.items() if one.due <= now)
        return {
            name: one.place
            for name, one in heapq.nsmallest(limit, due, key=lambda item: item[1].due)
        }

    def refused(self, document: str, place: RecordPosition, now: datetime) -> None:
        """Try again later, and each time after twice the time."""
        one = self._waiting[document]
        one.place, one.due = place, now + timedelta(seconds=one.delay_s)
        one.delay_s = min(one.delay_s * 2, DELAY_MAX_S)

    def postpone(self, document: str, now: datetime) -> None:
        """Try again soon: it was not judged."""
        self._waiting[document].due = now + timedelta(seconds=DELAY_FIRST_S)

    def forget(self, document: str) -> None:
        """Try no more."""
        self._waiting.pop(document, None)


class Retries:
    """Retries the parked documents of one pipeline, in a thread of its own."""

    def __init__(self, name: str, pipeline: settings.Pipeline, epoch: Callable[[], int]) -> None:
        """`epoch` gives the epoch of the query that runs, 0 when none does; a new query may find a changed table."""
        self._thread = threading.Thread(target=self._run, name=f"{name} retries", daemon=True)
        self._name, self._pipeline, self._epoch = name, pipeline, epoch
        self._over = threading.Event()
        self._desk: MaintenanceSession | None = None
        self._desk_epoch = 0
        self._begin_anew()

    def start(self) -> None:
        if self._pipeline.retry_parked_s:
            self._thread.start()

    def end(self, *, once_more: bool) -> None:
        """Stop; with `once_more` every document that still waits is tried a last time, without waiting for any."""
        self._over.set()
        if not self._thread.ident:
            return
        self._thread.join(END_PATIENCE_S)
        if self._thread.is_alive():
            return  # it waits for the database, and is undone with its connection
        if once_more:
            self._begin_anew()
            now = maintenance.now()
            with contextlib.suppress(Exception):  # what is still parked waits for the next run
                while self.round(now):
                    pass
        self._close()

    def round(self, now: datetime) -> int:
        """Try the documents that are due; return how many were tried."""
        session = self._opened()
        with session.sink.snapshot():
            self._find(session.sink, now)
            due = self._schedule.due(now, ROUND_DOCUMENTS_MAX)
            events = {
                str(one.document): one for one in session.sink.journal.parked_at(list(due.values()))
            }
        for document in due:
            one = events.get(document)
            if one is None or one.reason not in RETRIED or self._is_over(one, now):
                self._schedule.forget(document)
                events.pop(document, None)
        still = refused_again(session, list(events.values()))
        deadline = time.monotonic() + ROUND_WORK_S
        for document, one in events.items():
            if one.place in still:
                self._schedule.refused(document, one.place, now)
            elif time.monotonic() < deadline:
                self._release(session, document, one.place, now)
        return len(events)

    # --- parts -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = START_PAUSE_S
        while not self._over.wait(pause_s):
            pause_s = INTERVAL_S
            if self._epoch():
                try:
                    self.round(maintenance.now())
                except Exception:  # noqa: BLE001 - the pipeline itself reports what is wrong with its database
                    pause_s = FAILURE_PAUSE_S
                    self._close()

    def _begin_anew(self) -> None:
        self._schedule = Schedule()
        self._looked = self._scanned = datetime.min.replace(tzinfo=maintenance.now().tzinfo)

    def _opened(self) -> MaintenanceSession:
        epoch = self._epoch()
        if self._desk is not None and epoch and epoch != self._desk_epoch:
            self._close()
        if self._desk is None:
            self._desk, self._desk_epoch = (
                MaintenanceSession(self._name, self._pipeline, WHO, waits=False),
                epoch,
            )
        return self._desk

    def _close(self) -> None:
        session, self._desk = self._desk, None
        if session is not None:
            session.sink.close()

    def _find(self, sink: Sink, now: datetime) -> None:
        """Schedule what was parked since the last look; once a minute, everything that is young enough."""
        since = now - timedelta(seconds=self._pipeline.retry_parked_s)
        if now - self._scanned >= SCAN_INTERVAL:
            self._scanned = now
        else:
            since = max(since, self._looked - OVERLAP)
        self._looked = now
        for reason in RETRIED:
            room = KNOWN_MAX - len(self._schedule)
            for document, place in (
                sink.journal.parked_since(reason, since, room) if room > 0 else ()
            ):
                self._schedule.add(document, place, now)

    def _is_over(self, one: QuarantinedRecord, now: datetime) -> bool:
        return one.at + timedelta(seconds=self._pipeline.retry_parked_s) < now

    def _release(
        self, session: MaintenanceSession, document: str, place: RecordPosition, now: datetime
    ) -> None:
        try:
            lines = release.release(session, document, execute=True)
        except release.NotParked:  # an operator was quicker
            self._schedule.forget(document)
        except errors.Transient:  # a task has the ledger
            self._schedule.postpone(document, now)
        except errors.RowRefused:  # at the commit: a deferred foreign key of SQLite
            self._schedule.refused(document, place, now)
        else:
            stuck = _stuck(lines)
            if stuck is None or stuck.reason not in RETRIED:
                self._schedule.forget(document)
            else:
                self._schedule.refused(document, stuck.place, now)


def refused_again(
    session: MaintenanceSession, waiting: Sequence[QuarantinedRecord]
) -> set[RecordPosition]:
    """Return the places of those events that are still refused for the reason that is recorded. Changes nothing."""
    found: set[RecordPosition] = set()
    by_log = itertools.groupby(waiting, key=lambda one: (one.place.topic, one.place.partition))
    logs = [{one.record.offset: one for one in some} for _, some in by_log]
    try:
        with session.sink.transaction(keep=False):
            for log in logs:
                events, _ = session.decoder.decode_all([one.record for one in log.values()])
                _, refused = rows.write(session.sink, events, isolate_failures=True, parked=set())
                for one in refused:
                    known = log[one.event.offset]
                    if known.reason == one.refusal.reason.value:
                        found.add(known.place)
    except (errors.RowRefused, errors.Outrun):
        return (
            set()
        )  # not one row but the transaction was undone: each document has to be tried alone
    return found


def retried_until(
    pipeline: settings.Pipeline, reason: str, since: datetime, now: datetime
) -> datetime | None:
    """Return until when a running pipeline retries a document that was parked for this reason; None when it does not."""
    until = since + timedelta(seconds=pipeline.retry_parked_s)
    return until if reason in RETRIED and until > now else None


def _stuck(lines: Sequence[Change]) -> Change | None:
    """The first event that has to go on waiting."""
    return next((line for line in lines if line.verdict == Verdict.PARKED.value), None)
