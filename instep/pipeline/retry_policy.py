"""Which parked documents are tried again, when, and how often. Pure: the caller has the time.

There are two policies. `retry_parked_s` is for documents whose row, or parent row, is only late:
soon, with growing delays, for a limited time. `[pipelines.NAME.redrive]` is for other reasons that
pass by themselves: a limited number of times at an interval. The number of attempts is kept with
the parked event, so it survives a restart.
"""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta

import msgspec

from instep import settings
from instep.document.reasons import RETRIED, Reason
from instep.document.showing import counted
from instep.sinks.journal_entries import ParkedAttempts

LATE_ROWS_ACTOR = "instep"  # in instep_decisions
REDRIVE_ACTOR = "redrive"
DELAY_FIRST_S = 1.0
DELAY_MAX_S = 60.0
LATE_ROWS_PER_S = 100
NOT_RETRIED = "-"


class RetryPolicy(msgspec.Struct, frozen=True):
    """How the parked documents of some reasons are tried again."""

    actor: str
    reasons: frozenset[Reason]
    delay_first_s: float  # doubled after each attempt
    delay_max_s: float
    rate: int  # documents per second, at most
    within: timedelta | None = None  # since the document was parked; None: for ever
    attempts_max: int | None = None  # None: attempts are not counted
    late_rows_s: int = 0  # for so long, the other policy retries late rows

    @property
    def is_counted(self) -> bool:
        """Return whether attempts are counted and kept."""
        return self.attempts_max is not None

    def first_due(self, reason: Reason, parked: ParkedAttempts, now: datetime) -> datetime:
        """Return when to try a document next that was just found."""
        if not self.is_counted:
            return now
        due = (parked.tried_at or parked.at) + timedelta(seconds=self.delay_first_s)
        if reason in RETRIED:
            due = max(due, parked.at + timedelta(seconds=self.late_rows_s))
        return due

    def is_over(self, parked: ParkedAttempts, now: datetime) -> bool:
        """Return whether a document is not tried any more."""
        if self.within is not None and parked.at + self.within < now:
            return True
        return self.attempts_max is not None and parked.attempts >= self.attempts_max


class RetryOutlook(msgspec.Struct, frozen=True):
    """What a running pipeline still does for a parked document, for people."""

    retried_until: datetime | None = None
    next_attempt_at: datetime | None = None
    attempts_max: int | None = None
    gave_up: bool = False

    def describe(self) -> str:
        """Return it as a cell of a table."""
        if self.gave_up:
            return gave_up_after(self.attempts_max or 0)
        if self.retried_until is not None:
            return f"until {self.retried_until:%Y-%m-%dT%H:%M:%SZ}"
        if self.next_attempt_at is not None:
            return (
                f"up to {self.attempts_max} times, next {self.next_attempt_at:%Y-%m-%dT%H:%M:%SZ}"
            )
        return NOT_RETRIED


def of_pipeline(pipeline: settings.Pipeline) -> list[RetryPolicy]:
    """Return the policies that the settings declare."""
    policies = [late_rows(pipeline)] if pipeline.retry_parked_s else []
    if pipeline.redrive is not None:
        policies.append(redrive(pipeline, pipeline.redrive))
    return policies


def late_rows(pipeline: settings.Pipeline) -> RetryPolicy:
    """Return the policy of `retry_parked_s`."""
    return RetryPolicy(
        actor=LATE_ROWS_ACTOR,
        reasons=RETRIED,
        delay_first_s=DELAY_FIRST_S,
        delay_max_s=DELAY_MAX_S,
        rate=LATE_ROWS_PER_S,
        within=timedelta(seconds=pipeline.retry_parked_s),
    )


def redrive(pipeline: settings.Pipeline, declared: settings.Redrive) -> RetryPolicy:
    """Return the policy of `[pipelines.NAME.redrive]`."""
    every_s = declared.interval.total_seconds()
    return RetryPolicy(
        actor=REDRIVE_ACTOR,
        reasons=frozenset(map(Reason, declared.reason)),
        delay_first_s=every_s,
        delay_max_s=every_s,
        rate=declared.rate,
        attempts_max=declared.attempts,
        late_rows_s=pipeline.retry_parked_s,
    )


def outlook(
    pipeline: settings.Pipeline, reason: str, parked: ParkedAttempts, now: datetime
) -> RetryOutlook:
    """Return what a running pipeline still does for a document parked for this reason."""
    late = late_rows(pipeline)
    if reason in late.reasons and pipeline.retry_parked_s and not late.is_over(parked, now):
        return RetryOutlook(parked.at + timedelta(seconds=pipeline.retry_parked_s))
    if pipeline.redrive is None:
        return RetryOutlook()
    policy = redrive(pipeline, pipeline.redrive)
    if reason not in policy.reasons:
        return RetryOutlook()
    if policy.is_over(parked, now):
        return RetryOutlook(attempts_max=policy.attempts_max, gave_up=True)
    due = policy.first_due(Reason(reason), parked, now)
    return RetryOutlook(next_attempt_at=due, attempts_max=policy.attempts_max)


def gave_up_after(attempts: int) -> str:
    """Return why a document is not redriven any more."""
    return f"gave up after {counted(attempts, 'attempt')}"


def given_up(count: int, attempts: int, pipeline: str) -> str:
    """Return the sentence about parked documents that are not redriven any more."""
    return (
        f"gave up {counted(count, 'parked document')} after {counted(attempts, 'attempt')};"
        f" list them: instep parked list {shlex.quote(pipeline)}"
    )
