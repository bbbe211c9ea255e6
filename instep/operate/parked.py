"""Parked documents: skip the event that blocks one. `pipeline/apply/release.py` releases them."""

from __future__ import annotations

from instep import errors
from instep.pipeline.apply import maintenance, release
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.sinks.journal_entries import Action, QuarantinedRecord, RecordPosition


def skip(
    session: MaintenanceSession,
    document: str,
    reason: str,
    *,
    execute: bool,
    planned: RecordPosition | None = None,
) -> tuple[QuarantinedRecord, int]:
    """Skip the event that blocks a document; return it, and how many events still wait.

    Raise NotBlocking if it is not the planned one.
    """
    return session.retry(lambda: _skip(session, document, reason, execute, planned))


def blocking(session: MaintenanceSession, document: str) -> QuarantinedRecord:
    """Return the event that blocks a document, or raise NotParked. Locks nothing."""
    with session.read():
        return release.waiting_events(session, document, 1)[0]


def _skip(
    session: MaintenanceSession,
    document: str,
    reason: str,
    execute: bool,
    planned: RecordPosition | None,
) -> tuple[QuarantinedRecord, int]:
    at = maintenance.now()
    with session.transaction(execute=execute) as ledger:
        waiting = release.waiting_events(session, document)
        first = waiting[0]
        if planned not in (None, first.position):
            raise errors.NotBlocking(
                f"document {document!r} of pipeline {session.name!r} is not blocked by the event"
                f" at {planned}: it waits for the one at {first.position}",
                "look at the event that blocks it now",
            )
        session.sink.journal.remove_parked([first.position])
        position = release.ledger_offset(session, ledger, first.position)
        session.sink.journal.update_verdict(
            document, first.position, Action.SKIPPED.value, at, position
        )
        change = Change(first.position, document, Action.SKIPPED.value, first.reason)
        session.record(Action.SKIPPED, [change], at, reason)
    return first, len(waiting) - 1
