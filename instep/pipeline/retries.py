"""Try parked documents again while a pipeline runs, as the settings say.

Each policy (`retry_policy.py`) has a thread with its own connection, so the pipeline is never
delayed. The thread works in rounds of three steps:

1. If attempts are counted, claim the attempt of each due document, and commit. Another run cannot
   claim it too, and after a crash it counts.
2. Apply the due events without a lock on the ledger, and roll back. Most documents are refused
   again here.
3. Release the others exactly as `instep parked release` does: one transaction per document, with
   the ledger locked. If a task holds the ledger at that moment, the release is postponed, so that
   no other task waits behind it.

What an operator does meanwhile wins: a document that was released, or whose event was skipped, is
not found any more.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from instep import errors, settings
from instep.document.guard import Verdict
from instep.document.reasons import Reason
from instep.document.results import Transform
from instep.pipeline import retry_policy
from instep.pipeline.apply import maintenance, release, rows
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.pipeline.progress import Progress
from instep.pipeline.retry_policy import RetryPolicy
from instep.sinks.journal_entries import Action, QuarantinedRecord, RecordPosition
from instep.sinks.sink import Sink

GAVE_UP_ALARM = "documents that redrive gave up"  # among the alarms of the progress
INTERVAL_S = 1.0
START_PAUSE_S = 5.0  # a run that has just started applies its backlog first
FAILURE_PAUSE_S = 5.0
END_PATIENCE_S = 2.0
POSTPONED_S = 1.0
ROUND_WORK_S = 1.0  # a round starts no further release after this time
KNOWN_MAX = 100_000
SCAN_INTERVAL = timedelta(seconds=60)  # between reads of all parked documents, not only new ones
ATTEMPT_LONGEST = timedelta(minutes=5)
UNDECIDED_MAX = 1_000  # decisions of one round; the rest follows a minute later
OVERLAP = timedelta(seconds=10)  # a transaction commits later than the time that it writes
EVER = datetime(1970, 1, 2, tzinfo=UTC)


class RetriedDocument(msgspec.Struct):
    """A parked document: the event that blocks it, and when it is tried next."""

    position: RecordPosition
    due: datetime
    delay_s: float
    is_claimed: bool = False  # the next attempt is counted already


class Schedule:
    """When each parked document is tried next. It is pure: the caller provides the time."""

    def __init__(self, delay_first_s: float, delay_max_s: float) -> None:
        """Take the delay after a document's first attempt, and the longest one."""
        self._delay_first_s, self._delay_max_s = delay_first_s, delay_max_s
        self._waiting: dict[str, RetriedDocument] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, document: str, position: RecordPosition, due: datetime) -> None:
        """Schedule a document, unless it is scheduled already."""
        self._waiting.setdefault(document, RetriedDocument(position, due, self._delay_first_s))

    def due(self, now: datetime, limit: int) -> dict[str, RecordPosition]:
        """Return the documents to try now, longest overdue first."""
        due = (item for item in self._waiting.items() if item[1].due <= now)
        first = heapq.nsmallest(limit, due, key=lambda item: item[1].due)
        return {document: retried.position for document, retried in first}

    def refused(self, document: str, position: RecordPosition, now: datetime) -> None:
        """Try a document again later, after twice the delay each time."""
        retried = self._waiting[document]
        retried.position, retried.due = position, now + timedelta(seconds=retried.delay_s)
        retried.delay_s = min(retried.delay_s * 2, self._delay_max_s)
        retried.is_claimed = False

    def postpone(self, document: str, now: datetime) -> None:
        """Try a document again soon, because it could not be tried now."""
        self._waiting[document].due = now + timedelta(seconds=POSTPONED_S)

    def is_claimed(self, document: str) -> bool:
        """Return whether the next attempt of a document is counted already."""
        return self._waiting[document].is_claimed

    def claimed(self, document: str) -> None:
        """Remember that the next attempt of a document is counted."""
        self._waiting[document].is_claimed = True

    def forget(self, document: str) -> None:
        """Stop retrying a document."""
        self._waiting.pop(document, None)


class Retries:
    """Retries the parked documents of one pipeline by one policy, in its own thread."""

    def __init__(
        self,
        name: str,
        pipeline: settings.Pipeline,
        policy: RetryPolicy,
        epoch: Callable[[], int],
        progress: Progress,
        transform: Transform | None = None,
    ) -> None:
        """Create the thread. `epoch` returns the epoch of the running query, 0 if there is none.

        A pipeline with a transformation needs `transform`.
        """
        self._transform = transform
        self._thread = threading.Thread(
            target=self._run, name=f"{name} retries by {policy.actor}", daemon=True
        )
        self._name, self._pipeline, self._epoch = name, pipeline, epoch
        self._policy, self._progress = policy, progress
        self._ended = threading.Event()
        self._session: MaintenanceSession | None = None
        self._session_epoch = 0
        self._reset()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self, *, once_more: bool) -> None:
        """Stop; with `once_more`, try every waiting document a last time without delays.

        Attempts that are counted keep their interval.
        """
        self._ended.set()
        if not self._thread.ident:
            return
        self._thread.join(END_PATIENCE_S)
        if self._thread.is_alive():
            return  # it waits for the database, which rolls back when the connection ends
        if once_more and not self._policy.is_counted:
            self._reset()
            now = maintenance.now()
            with contextlib.suppress(Exception):  # the rest waits for the next run
                while self.round(now):
                    pass
        self._close()

    def round(self, now: datetime) -> int:
        """Try the documents that are due; return how many were tried."""
        session, policy = self._opened(), self._policy
        with session.sink.snapshot():
            self._find(session.sink, now)
            due = self._schedule.due(now, policy.rate)
            parked = session.sink.journal.parked_at(list(due.values()))
            events = {str(event.document): event for event in parked}
        self._decide_given_up(session, now)
        for document in due:
            event = events.get(document)
            if event is None or event.reason not in policy.reasons or self._is_over(event, now):
                self._schedule.forget(document)
                events.pop(document, None)
            elif self._was_tried(event, now):
                del events[document]
        if policy.is_counted:
            events = self._claim(session, events, now)  # 1
        still_refused = refused_again(session, list(events.values()))  # 2
        deadline = time.monotonic() + ROUND_WORK_S
        for document, event in events.items():
            if event.position in still_refused:
                self._refused(session, document, event, now)
            elif time.monotonic() < deadline:
                self._release(session, document, event, now)  # 3
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
        self._schedule = Schedule(self._policy.delay_first_s, self._policy.delay_max_s)
        self._undecided: list[QuarantinedRecord] = []
        self._read_at = self._scanned_at = datetime.min.replace(tzinfo=UTC)

    def _opened(self) -> MaintenanceSession:
        """Return the session; open a new one for a new query, as the table may have changed."""
        epoch = self._epoch()
        if self._session is not None and epoch and epoch != self._session_epoch:
            self._close()
        if self._session is None:
            self._session = MaintenanceSession(
                self._name,
                self._pipeline,
                self._policy.actor,
                waits=False,
                transform=self._transform,
            )
            self._session_epoch = epoch
        return self._session

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.sink.close()

    def _find(self, sink: Sink, now: datetime) -> None:
        """Schedule what was parked since the last round; once a minute, all that may be retried."""
        policy = self._policy
        since = EVER if policy.within is None else now - policy.within
        if now - self._scanned_at >= SCAN_INTERVAL:
            self._scanned_at = now
            self._count_given_up(sink)
            self._undecided = self._given_up_undecided(sink, now)
        else:
            since = max(since, self._read_at - OVERLAP)
        self._read_at = now
        for reason in policy.reasons:
            room = KNOWN_MAX - len(self._schedule)
            if room <= 0:
                return
            found = sink.journal.parked_since(reason, since, room, policy.attempts_max)
            for document, position, parked in found:
                self._schedule.add(document, position, policy.first_due(reason, parked, now))

    def _is_over(self, event: QuarantinedRecord, now: datetime) -> bool:
        if self._schedule.is_claimed(str(event.document)):
            return False  # the attempt that is counted was postponed
        return self._policy.is_over(event.parked, now)

    def _was_tried(self, event: QuarantinedRecord, now: datetime) -> bool:
        """Return whether another run has tried a document since it was scheduled; postpone it."""
        document, parked = str(event.document), event.parked
        due = self._policy.first_due(Reason(event.reason), parked, now)
        if due <= now or self._schedule.is_claimed(document):
            return False
        self._schedule.forget(document)
        self._schedule.add(document, event.position, due)
        return True

    def _claim(
        self, session: MaintenanceSession, events: dict[str, QuarantinedRecord], now: datetime
    ) -> dict[str, QuarantinedRecord]:
        """Count the attempts; return the events that are still parked and not another run's."""
        claimed = {}
        with session.sink.transaction():
            for document, event in events.items():
                attempt = event.attempts + 1
                if self._schedule.is_claimed(document):
                    claimed[document] = event
                elif session.sink.journal.claim_attempt(event.position, attempt, now):
                    claimed[document] = msgspec.structs.replace(event, attempts=attempt)
        for document in events:
            if document in claimed:
                self._schedule.claimed(document)
            else:
                self._schedule.forget(document)
        return claimed

    def _refused(
        self, session: MaintenanceSession, document: str, event: QuarantinedRecord, now: datetime
    ) -> None:
        """Try a document again later, or give up."""
        self._schedule.refused(document, event.position, now)
        if not self._policy.is_counted:
            return
        self._progress.redriven["refused"] += 1
        if self._policy.is_over(event.parked, now):
            self._schedule.forget(document)
            change = Change(event.position, document, Verdict.PARKED.value, event.reason)
            why = retry_policy.gave_up_after(event.attempts)
            with session.sink.transaction():
                session.record(Action.GAVE_UP, [change], now, why)
            with session.sink.translated():
                self._count_given_up(session.sink)

    def _given_up_undecided(self, sink: Sink, now: datetime) -> list[QuarantinedRecord]:
        """Return the events that a run gave up and ended before it kept the decision."""
        policy = self._policy
        if policy.attempts_max is None:
            return []
        before = now - ATTEMPT_LONGEST  # another run may be trying a document just now
        return sink.journal.given_up_undecided(
            policy.reasons, policy.attempts_max, before, UNDECIDED_MAX
        )

    def _decide_given_up(self, session: MaintenanceSession, now: datetime) -> None:
        events, self._undecided = self._undecided, []
        if not events:
            return
        with session.sink.transaction():
            for event in events:
                change = Change(event.position, event.document, Verdict.PARKED.value, event.reason)
                why = retry_policy.gave_up_after(event.attempts)
                session.record(Action.GAVE_UP, [change], now, why)

    def _count_given_up(self, sink: Sink) -> None:
        policy = self._policy
        if policy.attempts_max is None:
            return
        count = sink.journal.given_up_count(policy.reasons, policy.attempts_max)
        sentence = None
        if count:
            sentence = retry_policy.given_up(count, policy.attempts_max, self._name)
        self._progress.given_up = count
        self._progress.set_alarm(GAVE_UP_ALARM, sentence)

    def _release(
        self, session: MaintenanceSession, document: str, event: QuarantinedRecord, now: datetime
    ) -> None:
        try:
            changes = release.release(session, document, execute=True)
        except errors.NotParked:  # an operator was faster
            self._schedule.forget(document)
        except errors.Transient:  # a task holds the ledger
            self._schedule.postpone(document, now)
        except errors.RowRefused:  # at the commit: a deferred foreign key of SQLite
            self._refused(session, document, event, now)
        else:
            blocking = _first_parked(changes)
            if blocking is not None and blocking.position == event.position:
                self._refused(session, document, event, now)
            elif self._policy.is_counted:
                self._progress.redriven["released"] += 1
            if blocking is None or blocking.reason not in self._policy.reasons:
                self._schedule.forget(document)
            elif blocking.position != event.position:
                self._schedule.refused(document, blocking.position, now)


def refused_again(
    session: MaintenanceSession, waiting: Sequence[QuarantinedRecord]
) -> set[RecordPosition]:
    """Return the places of the events that are still refused for the same reason.

    Nothing is changed: the transaction is rolled back.
    """
    still_refused: set[RecordPosition] = set()
    by_partition = itertools.groupby(
        waiting, key=lambda event: (event.position.log, event.position.partition)
    )
    partitions = [{event.record.offset: event for event in group} for _, group in by_partition]
    try:
        with session.sink.transaction(keep=False):
            for parked in partitions:
                events, _ = session.decode_quarantined(list(parked.values()))
                _, refused = rows.write(session.sink, events, isolate_failures=True, parked=set())
                for refusal in refused:
                    event = parked[refusal.event.offset]
                    if event.reason == refusal.refusal.reason.value:
                        still_refused.add(event.position)
    except (errors.RowRefused, errors.Outrun):
        # The whole transaction failed, not one row: each document has to be tried alone.
        return set()
    return still_refused


def _first_parked(changes: Sequence[Change]) -> Change | None:
    """Return the first event that stays parked."""
    return next((change for change in changes if change.verdict == Verdict.PARKED.value), None)
