"""The output of a run: a live view on a terminal, else a line at intervals; every state change."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO

from instep import terminal
from instep.document.showing import plain
from instep.pipeline import live_view, quarantine_summary
from instep.pipeline.progress import Progress
from instep.pipeline.runner import Runner, RunnerState
from instep.terminal import Tone

LIVE_INTERVAL_S = 0.5
LOG_INTERVAL_S = 10.0


class Reporter:
    """Writes to stderr. A terminal gets a live view, unless Spark's log is shown there."""

    def __init__(
        self, runners: Sequence[Runner], stream: TextIO = sys.stderr, *, verbose: bool = False
    ) -> None:
        self._runners, self._stream = runners, stream
        self._view = live_view.View(stream) if terminal.is_live(stream) and not verbose else None
        self._catch_ups = {runner.name: live_view.CatchUp() for runner in runners}
        self._next = 0.0
        self._states: dict[str, tuple[RunnerState, str]] = {}
        self._held_by: dict[str, list[str]] = {}

    def tick(self) -> None:
        """Print what is due."""
        self._say_changes()
        now = time.monotonic()
        if now < self._next:
            return
        if self._view:
            self._next = now + LIVE_INTERVAL_S
            rows = [live_view.row(one, self._catch_ups[one.name], now) for one in self._runners]
            self._view.draw(rows)
        else:
            self._next = now + LOG_INTERVAL_S
            for runner in self._runners:
                if runner.state is RunnerState.RUNNING:
                    self.say(line(runner))

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
        for runner in self._runners:
            self.say(f"{runner.name}: {summary(runner)}")
        for runner in self._runners:
            if warning := quarantine_summary.warning(runner):
                self.say(warning)

    def _say_changes(self) -> None:
        for runner in self._runners:
            state = (runner.state, "")
            if runner.state is RunnerState.WAITING:
                state = (runner.state, runner.waiting_for)
            if self._states.get(runner.name) != state:
                self._states[runner.name] = state
                self.say(describe(runner), tone(runner))
            if self._held_by.get(runner.name, []) != runner.progress.held_by:
                self._held_by[runner.name] = list(runner.progress.held_by)
                released = ["nothing waits behind an open transaction any more"]
                for text in runner.progress.held_by or released:
                    self.say(f"{runner.name}: {text}")


def tone(runner: Runner) -> Tone:
    """Return the tone of a state change."""
    match runner.state:
        case RunnerState.ENDED if runner.error:
            return Tone.BAD
        case RunnerState.WAITING:
            return Tone.WARNING
        case _:
            return Tone.NONE


def describe(runner: Runner) -> str:
    """Describe a state change."""
    match runner.state:
        case RunnerState.WAITING:
            return f"{runner.name}: waiting, will continue by itself: {runner.waiting_for}"
        case RunnerState.ENDED if runner.error:
            return f"{runner.name}: ended: {'; '.join(str(runner.error).splitlines())}"
        case _:
            return f"{runner.name}: {runner.state.value}"


def line(runner: Runner) -> str:
    """Return rate, lag, freshness and totals as one line."""
    if runner.state is RunnerState.WAITING:
        return f"{runner.name}: waiting {runner.waiting_s():.0f} s"
    done = runner.progress
    if runner.state is RunnerState.STARTING:
        return f"{runner.name}: starting, lag {lag(done)}"
    middle, tail = done.freshness_s(0.5), done.freshness_s(0.99)
    freshness = _idle(done)
    if middle is not None:
        freshness = f"freshness p50 ≤ {_seconds(middle)}, p99 ≤ {_seconds(tail)}"
    totals = done.totals
    return (
        f"{runner.name}: {done.rate():,.0f} applied/s, lag {lag(done)}, {freshness},"
        f" {totals['applied']:,} applied, {totals['parked']:,} parked, {totals['dead']:,} dead"
    )


def lag(done: Progress) -> str:
    """Return the lag, and how much of it waits behind an open transaction."""
    if done.lag is None:
        return "not known yet"
    if done.held_back:
        return f"{done.lag:,} ({done.held_back:,} behind an open transaction)"
    return f"{done.lag:,}"


def _idle(done: Progress) -> str:
    """Return why there is no freshness to show."""
    if (done.lag or 0) > done.held_back:
        return "no events applied yet"
    return "no recent events"


def summary(runner: Runner) -> str:
    """Return the totals of a run."""
    totals = runner.progress.totals
    return (
        f"{totals['records']:,} records: {totals['applied']:,} applied, {totals['stale']:,} stale,"
        f" {totals['repeated']:,} repeated, {totals['ignored']:,} ignored,"
        f" {totals['parked']:,} parked, {totals['dead']:,} dead letters;"
        f" {runner.restarts} restarts"
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return "?"
    if value == float("inf"):
        return "over 300 s"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:g} s"
