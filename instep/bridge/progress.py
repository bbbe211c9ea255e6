"""What a bridge has done: counts, and the output of `instep poll`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from instep import masking, terminal
from instep.bridge.failures import FailureCode, PollFailed
from instep.document.showing import plain
from instep.terminal import Tone

if TYPE_CHECKING:
    from rich.live import Live

LIVE_INTERVAL_S = 0.5
LOG_INTERVAL_S = 10.0
REPORTED_MAX = 20  # failures that are printed per interval; the others are counted
EXAMPLES_MAX = 50
RATE_WINDOW_S = 10.0


class FailedDocument(msgspec.Struct, frozen=True):
    """A document that could not be polled, with the code and the text of its failure."""

    document: str
    code: FailureCode
    detail: str


class PollCounts(msgspec.Struct):
    """The counts of a bridge since its start."""

    documents: int = 0  # that it knows
    final: int = 0  # of them, with a final status
    requests: int = 0  # to the source, with repetitions and pages of lists
    polled: int = 0  # documents that were polled, and answered or given up
    changed: int = 0
    unchanged: int = 0
    missing: int = 0
    stale: int = 0  # answers with a lower version than the published one
    failed: int = 0
    retried: int = 0
    published: int = 0
    deleted: int = 0  # of the published ones
    ids_refused: int = 0


class PollSummary(msgspec.Struct, frozen=True):
    """The result of `instep poll`, for --json."""

    bridge: str
    counts: PollCounts
    failures: dict[str, int]
    examples: list[FailedDocument]
    seconds: float


class PollReporter:
    """Writes to stderr: one live line on a terminal, else a line at intervals; every failure."""

    def __init__(self, name: str, counts: PollCounts, stream: TextIO | None = None) -> None:
        self._name, self._counts, self._stream = name, counts, stream or sys.stderr
        self._is_live = terminal.is_live(self._stream)
        self._live: Live | None = None
        self._began = time.monotonic()
        self._next = self._began + (LIVE_INTERVAL_S if self._is_live else LOG_INTERVAL_S)
        self._until = self._began + LOG_INTERVAL_S
        self._reported = 0
        self._samples = [(self._began, 0)]
        self.failures: Counter[str] = Counter()
        self.examples: list[FailedDocument] = []
        self.left: int | None = None
        self.waits_for = ""

    def tick(self) -> None:
        """Print what is due."""
        now = time.monotonic()
        if now >= self._until:
            if self._reported > REPORTED_MAX:
                self.say(f"{self._reported - REPORTED_MAX:,} more failures were not printed")
            self._reported, self._until = 0, now + LOG_INTERVAL_S
        if now < self._next:
            return
        self._samples = [one for one in self._samples if one[0] > now - RATE_WINDOW_S][-100:] or [
            self._samples[-1]
        ]
        line = self.line(now)
        self._samples.append((now, self._counts.requests))
        if self._is_live:
            self._next = now + LIVE_INTERVAL_S
            self._draw(line)
        else:
            self._next = now + LOG_INTERVAL_S
            self.say(line)

    def line(self, now: float) -> str:
        """Return rate and counts as one line."""
        counts, (since, before) = self._counts, self._samples[0]
        rate = (counts.requests - before) / max(now - since, 0.001)
        left = "" if self.left is None else f", {self.left:,} left"
        waiting = f"; waiting: {self.waits_for}" if self.waits_for else ""
        return (
            f"{self._name}: {rate:,.1f} requests/s, {counts.documents:,} documents"
            f" ({counts.final:,} final){left}, {summary(counts)}{waiting}"
        )

    def failed(self, document: str, failure: PollFailed) -> None:
        """Count a failure of a document and print it, unless there are too many."""
        self.failures[failure.code.value] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(FailedDocument(document, failure.code, failure.detail))
        self.warn(f"document {document!r}: {failure}")

    def warn(self, text: str) -> None:
        """Print a warning, unless there are too many."""
        self._reported += 1
        if self._reported <= REPORTED_MAX:
            self.say(f"{self._name}: {text}", Tone.WARNING)

    def say(self, text: str, tone: Tone = Tone.NONE) -> None:
        """Print a line with the time."""
        shown = plain(masking.masked_text(text))  # an error may quote a URL, or an answer
        dated = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {shown}"
        if self._live is not None:
            line = terminal.text(dated, tone)
            line.no_wrap = False
            self._live.console.print(line, soft_wrap=True)
        else:
            self._stream.write(terminal.paint(dated, tone, self._stream) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Remove the live line."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def summary(self) -> PollSummary:
        """Return the result so far."""
        return PollSummary(
            self._name,
            self._counts,
            dict(self.failures),
            self.examples,
            round(time.monotonic() - self._began, 3),
        )

    def _draw(self, line: str) -> None:
        from rich.live import Live

        if self._live is None:
            # No refresh thread: only this thread may write to the terminal.
            self._live = Live(
                console=terminal.console(self._stream),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(terminal.text(line), refresh=True)


def summary(counts: PollCounts) -> str:
    """Return the counts of documents as text."""
    parts = [
        f"{counts.polled:,} polled",
        f"{counts.changed:,} changed",
        f"{counts.unchanged:,} unchanged",
        f"{counts.failed:,} failed",
        f"{counts.published:,} published",
    ]
    rare = {
        "deleted": counts.deleted,
        "missing": counts.missing,
        "stale": counts.stale,
        "retried": counts.retried,
        "ids refused": counts.ids_refused,
    }
    parts += [f"{count:,} {name}" for name, count in rare.items() if count]
    return ", ".join(parts)


def as_json(result: PollSummary) -> dict[str, Any]:
    """Return a summary as one flat object."""
    tree: dict[str, Any] = msgspec.to_builtins(result)
    return {"bridge": tree.pop("bridge"), **tree.pop("counts"), **tree}
