"""The output of a run: a live view on a terminal, else a line at intervals; every state change."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO

from instep import terminal
from instep.document.showing import plain
from instep.pipeline import live_view, progress_text
from instep.pipeline.job import Job, RunnerState
from instep.terminal import Tone

LIVE_INTERVAL_S = 0.5
LOG_INTERVAL_S = 10.0
ALARM_INTERVAL_S = 60.0  # an alarm whose numbers change is not repeated more often


class Reporter:
    """Writes to stderr. A terminal gets a live view, unless Spark's log is shown there."""

    def __init__(
        self, jobs: Sequence[Job], stream: TextIO = sys.stderr, *, verbose: bool = False
    ) -> None:
        self._jobs, self._stream = jobs, stream
        self._view = live_view.View(stream) if terminal.is_live(stream) and not verbose else None
        self._catch_ups = {job.name: live_view.CatchUp() for job in jobs}
        self._next = 0.0
        self._states: dict[str, tuple[RunnerState, str]] = {}
        self._held_by: dict[str, list[str]] = {}
        self._alarms: dict[tuple[str, str], tuple[str, float]] = {}

    def tick(self) -> None:
        """Print what is due."""
        self._say_changes()
        now = time.monotonic()
        if now < self._next:
            return
        if self._view:
            self._next = now + LIVE_INTERVAL_S
            rows = [live_view.row(one, self._catch_ups[one.name], now) for one in self._jobs]
            self._view.draw(rows)
        else:
            self._next = now + LOG_INTERVAL_S
            for job in self._jobs:
                if job.state is RunnerState.RUNNING:
                    self.say(line(job))

    def say(self, text: str, tone: Tone = Tone.NONE) -> None:
        """Print a line with the time."""
        # `plain`, because an error may quote a row.
        dated = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {plain(text)}"
        if self._view:
            self._view.print(terminal.text(dated, tone))
        else:
            self._stream.write(terminal.paint(dated, tone, self._stream) + "\n")
            self._stream.flush()

    def stop(self) -> None:
        """Remove the live view and show the cursor again.

        Call this before anything that could end the process.
        """
        if self._view:
            self._view.close()

    def end(self) -> None:
        """Print the totals."""
        self.stop()
        self._say_changes()
        for job in self._jobs:
            self.say(f"{job.name}: {job.totals_text()}")
        for job in self._jobs:
            if warning := job.warning():
                self.say(warning)

    def _say_changes(self) -> None:
        for job in self._jobs:
            state = (job.state, "")
            if job.state is RunnerState.WAITING:
                state = (job.state, job.waiting_for)
            if self._states.get(job.name) != state:
                self._states[job.name] = state
                self.say(describe(job), tone(job))
            if self._held_by.get(job.name, []) != job.progress.held_by:
                self._held_by[job.name] = list(job.progress.held_by)
                released = ["nothing waits behind an open transaction any more"]
                for text in job.progress.held_by or released:
                    self.say(f"{job.name}: {text}")
            self._say_alarms(job)

    def _say_alarms(self, job: Job) -> None:
        """Print new alarms at once, changed ones from time to time, and the end of each."""
        now, alarms = time.monotonic(), dict(job.progress.alarms)
        for subject, sentence in alarms.items():
            before, said_at = self._alarms.get((job.name, subject), ("", -ALARM_INTERVAL_S))
            if sentence != before and now - said_at >= ALARM_INTERVAL_S:
                self._alarms[job.name, subject] = (sentence, now)
                self.say(f"{job.name}: {sentence}", Tone.WARNING)
        for name, subject in list(self._alarms):
            if name == job.name and subject not in alarms:
                del self._alarms[name, subject]
                self.say(f"{job.name}: no more {subject}")


def tone(job: Job) -> Tone:
    """Return the tone of a state change."""
    match job.state:
        case RunnerState.ENDED if job.error:
            return Tone.BAD
        case RunnerState.WAITING:
            return Tone.WARNING
        case _:
            return Tone.NONE


def describe(job: Job) -> str:
    """Describe a state change."""
    match job.state:
        case RunnerState.WAITING:
            return f"{job.name}: waiting, will continue by itself: {job.waiting_for}"
        case RunnerState.ENDED if job.error:
            return f"{job.name}: ended: {'; '.join(str(job.error).splitlines())}"
        case _:
            return f"{job.name}: {job.state.value}"


def line(job: Job) -> str:
    """Return rate, lag, freshness and totals as one line."""
    if job.state is RunnerState.WAITING:
        return f"{job.name}: waiting {job.waiting_s():.0f} s"
    if job.state is RunnerState.STARTING:
        return f"{job.name}: starting, lag {progress_text.lag(job.progress)}"
    return f"{job.name}: {job.progress_text()}"
