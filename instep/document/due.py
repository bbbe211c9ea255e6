"""When a document is overdue: it has had its status for longer than the settings allow.

Pure: the caller reads table and history, and provides the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from instep import durations
from instep.document.showing import counted, plain

LATEST = datetime.max.replace(tzinfo=UTC)


class AppliedStatus(msgspec.Struct, frozen=True):
    """What an event that was applied says about a document's status.

    `at` is the event's time, or the time of its commit if that is earlier: nothing happens after
    it was applied, so a source's clock that is ahead does no harm.
    """

    status: str | None  # None: the event does not contain one
    at: datetime
    is_delete: bool = False


class StatusAge(msgspec.Struct, frozen=True):
    """A document's status, and since when it has it; None: that is not known."""

    document: str
    status: str
    since: datetime | None


class OverdueCount(msgspec.Struct, frozen=True):
    """The overdue documents with one status: how many, and since when the first one has it."""

    documents: int
    oldest: datetime


class OverdueSummary(msgspec.Struct, frozen=True):
    """The overdue documents of a pipeline by status, at a time of the database's clock.

    `unknown` are documents with a status that has a limit, of which no time is known.
    """

    at: datetime
    statuses: dict[str, OverdueCount] = {}
    unknown: int = 0

    @property
    def total(self) -> int:
        """Return the number of overdue documents."""
        return sum(count.documents for count in self.statuses.values())


def status_since(events: Sequence[AppliedStatus], status: str) -> datetime | None:
    """Return since when a document has its status, by its events in the order of application.

    An event that repeats the status does not change it. None if the last change was not an event:
    then another program has written the row.
    """
    since = None
    for event in reversed(events):
        if event.is_delete:
            break
        if event.status is None:
            continue
        if event.status != status:
            break
        since = event.at
    return since


def due_at(age: StatusAge, limits: Mapping[str, timedelta]) -> datetime | None:
    """Return when a document is overdue unless its status changes; None if that is not known."""
    if age.since is None:
        return None
    try:
        return age.since + limits[age.status]
    except OverflowError:  # a time at the end of the calendar
        return LATEST


class OverdueCounter:
    """Counts overdue documents, and keeps those that will be overdue next.

    It takes all documents of a scan, and between two scans those that are confirmed overdue.
    """

    def __init__(
        self, limits: Mapping[str, timedelta], now: datetime, horizon: timedelta, kept_max: int
    ) -> None:
        """Count what is overdue at `now`; keep what will be before `covered_until`."""
        self._limits, self._kept_max = limits, kept_max
        self.covered_until = now + horizon
        self._counts: dict[str, OverdueCount] = {}
        self._unknown = 0
        self._next: list[tuple[datetime, str]] = []  # a heap of due time and document

    def add(self, ages: Iterable[StatusAge], now: datetime) -> None:
        """Take documents as they are at a time."""
        for age in ages:
            due = due_at(age, self._limits)
            if age.since is None or due is None:
                self._unknown += 1
            elif due <= now:
                count = self._counts.get(age.status, OverdueCount(0, age.since))
                self._counts[age.status] = OverdueCount(
                    count.documents + 1, min(count.oldest, age.since)
                )
            elif due < self.covered_until:
                heapq.heappush(self._next, (due, age.document))
        if len(self._next) > 2 * self._kept_max:
            self._next = heapq.nsmallest(self._kept_max, self._next)  # sorted, so still a heap
            self.covered_until = self._next[-1][0]

    def take_due(self, now: datetime) -> list[str]:
        """Return the documents that are due by now, unless their status has changed."""
        taken = []
        while self._next and self._next[0][0] <= now:
            taken.append(heapq.heappop(self._next)[1])
        return taken

    def summary(self, now: datetime) -> OverdueSummary:
        """Return the counts."""
        return OverdueSummary(now, dict(self._counts), self._unknown)


def describe(summary: OverdueSummary, due: Mapping[str, str]) -> str | None:
    """Return a sentence about overdue documents; None if there are none.

    `due` has the limits as they are in the settings.
    """
    if not summary.statuses:
        return None
    parts = [
        f"{count.documents:,} {plain(status)} (longer than {due[status]},"
        f" the first for {durations.shown(summary.at - count.oldest)})"
        for status, count in sorted(summary.statuses.items())
        if status in due
    ]
    return f"{counted(summary.total, 'document')} overdue: {', '.join(parts)}"
