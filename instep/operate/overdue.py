"""Overdue documents: those that have had a status for longer than `[pipelines.NAME.due]` allows.

The table is read as it is now, whether the pipeline runs or not; read permission is enough for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from instep import errors, settings
from instep.document import due
from instep.document.due import OverdueCount, OverdueCounter, StatusAge
from instep.operate.status import RunStatus, run_status
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import ledger_reader, status_ages
from instep.sinks.sink import Sink


class OverdueDocument(msgspec.Struct, frozen=True):
    """An overdue document, and why it waits if it is parked."""

    document: str
    status: str
    since: datetime
    due_at: datetime
    age_s: float
    parked_reason: str | None = None
    waiting: int = 0  # events


class OverdueList(msgspec.Struct, frozen=True):
    """The overdue documents of a pipeline, longest overdue first.

    `documents` may be fewer than `total`. `unknown` documents have a status with a limit, but
    nobody knows since when.
    """

    pipeline: str
    at: datetime
    due: dict[str, str]
    total: int
    unknown: int
    statuses: dict[str, OverdueCount]
    documents: list[OverdueDocument]
    run: RunStatus


def read(
    session: MaintenanceSession,
    pipeline: settings.Pipeline,
    *,
    status: str | None = None,
    older_than: timedelta = timedelta(0),
    limit: int | None = None,
) -> OverdueList:
    """Return what is overdue now.

    Only documents with this status, and that have had it for longer than `older_than`.
    """
    limits = _limits(session.name, pipeline, status)
    with session.read() as sink:
        now = status_ages.clock(sink)
        counter = OverdueCounter(limits, now, timedelta(0), 0)
        found = _overdue(sink, limits, now, older_than, counter)
        documents = [_document(age, at, now) for at, age in _first(found, limit)]
        documents = _with_parked(sink, documents)
    summary = counter.summary(now)
    run, clock = ledger_reader.latest_run(session.name, pipeline)
    return OverdueList(
        session.name,
        now,
        {name: pipeline.due[name] for name in limits},
        summary.total,
        summary.unknown,
        summary.statuses,
        documents,
        run_status(run, clock),
    )


def _limits(name: str, pipeline: settings.Pipeline, status: str | None) -> dict[str, timedelta]:
    if not pipeline.due:
        raise errors.SettingsError(
            f"pipeline {name!r} has no limits: its settings lack the section due",
            f'add to the settings: [pipelines.{name}.due] QUEUED = "2h"',
        )
    if status is None:
        return pipeline.due_after
    if status not in pipeline.due:
        raise errors.SettingsError(
            f"status {status!r} of pipeline {name!r} has no limit"
            f"{settings.nearest(status, pipeline.due)}",
            f"[pipelines.{name}.due] names: {', '.join(map(repr, pipeline.due))}",
        )
    return {status: pipeline.due_after[status]}


def _overdue(
    sink: Sink,
    limits: dict[str, timedelta],
    now: datetime,
    older_than: timedelta,
    counter: OverdueCounter,
) -> Iterator[tuple[datetime, StatusAge]]:
    """Yield the overdue documents with the time at which each was due, and count them."""
    for page in status_ages.pages(sink, limits):
        ages = [age for age in page if age.since is None or now - age.since >= older_than]
        counter.add(ages, now)
        for age in ages:
            at = due.due_at(age, limits)
            if at is not None and at <= now:
                yield at, age


def _first(
    found: Iterator[tuple[datetime, StatusAge]], limit: int | None
) -> list[tuple[datetime, StatusAge]]:
    def place(one: tuple[datetime, StatusAge]) -> tuple[datetime, str]:
        return one[0], one[1].document

    return sorted(found, key=place) if limit is None else heapq.nsmallest(limit, found, key=place)


def _document(age: StatusAge, due_at: datetime, now: datetime) -> OverdueDocument:
    assert age.since is not None
    age_s = (now - age.since).total_seconds()
    return OverdueDocument(age.document, age.status, age.since, due_at, age_s)


def _with_parked(sink: Sink, documents: list[OverdueDocument]) -> list[OverdueDocument]:
    """Add the reasons of those that are parked: an event that changes them may be waiting."""
    heads = {
        head.document: head
        for head in sink.journal.parked_heads_of([one.document for one in documents])
    }
    with_reasons = []
    for one in documents:
        if head := heads.get(one.document):
            one = msgspec.structs.replace(one, parked_reason=head.reason, waiting=head.waiting)
        with_reasons.append(one)
    return with_reasons
