"""Output for terminals: one colour per meaning, bars, remaining time, consoles without markup.

rich is only imported to draw something, so that a command that prints two lines starts quickly.
"""

from __future__ import annotations

import contextlib
import enum
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Self, TextIO

from instep.document.showing import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.text import Text

ETA_WINDOW_S = 20.0
BAR_DONE, BAR_LEFT = "━", "─"
BAR_WIDTH = 24
PROGRESS_AFTER_S = 0.5
UPDATE_S = 0.1


class Tone(enum.StrEnum):
    """What a colour means. The values are rich's names of styles."""

    GOOD = "green"
    WARNING = "yellow"
    BAD = "red"
    STRONG = "bold"
    FAINT = "dim"
    NONE = ""


_ANSI: Mapping[Tone, str] = {
    Tone.GOOD: "32",
    Tone.WARNING: "33",
    Tone.BAD: "31",
    Tone.STRONG: "1",
    Tone.FAINT: "2",
}
_WORDS: Mapping[Tone, frozenset[str]] = {
    Tone.GOOD: frozenset({"running", "applied", "released", "good"}),
    Tone.WARNING: frozenset(
        {"waiting", "starting", "paused", "parked", "stale", "skipped", "warning"}
    ),
    Tone.BAD: frozenset(
        {
            "dead",
            "presumed",
            "ended",
            "stopped",
            "error",
            "wrong",
            "refused",
            "failed",
            "missing",
            "different",
            "extra",
        }
    ),
}
_TONES = {word: tone for tone, words in _WORDS.items() for word in words}


def is_live(stream: TextIO) -> bool:
    """Return whether lines of this stream can be redrawn: it is a terminal, and not a dumb one."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def has_colour(stream: TextIO) -> bool:
    """Return whether this stream shows colours; NO_COLOR turns them off (no-color.org)."""
    return is_live(stream) and not os.environ.get("NO_COLOR")


def tone_of(text: str) -> Tone:
    """Return the tone of a state, verdict or severity by its first word; NONE for other text."""
    first, *_ = *text.lower().split(), ""
    return _TONES.get(first.rstrip(",:;"), Tone.NONE)


def paint(text: str, tone: Tone, stream: TextIO) -> str:
    """Colour a text for this stream. The text must not contain escapes."""
    return f"\x1b[{_ANSI[tone]}m{text}\x1b[0m" if tone and has_colour(stream) else text


def console(stream: TextIO, width: int | None = None) -> Console:
    """Return a console that parses no markup and highlights nothing.

    It ignores FORCE_COLOR if the stream is not a terminal.
    """
    from rich.console import Console

    return Console(
        file=stream,
        width=width,
        force_terminal=stream.isatty(),
        no_color=not has_colour(stream),
        markup=False,
        highlight=False,
        emoji=False,
    )


def text(value: str, tone: Tone = Tone.NONE) -> Text:
    """Return a text for rich, without markup and with what does not print escaped."""
    from rich.text import Text

    return Text(plain(value), style=tone.value, no_wrap=True)


def bar(share: float, width: int, tone: Tone = Tone.GOOD) -> Text:
    """Return a bar of this width. It is full only at 1.0, and not empty above 0."""
    from rich.text import Text

    done, left = bar_parts(share, width)
    return Text.assemble((done, tone.value), (left, Tone.FAINT.value))


def bar_parts(share: float, width: int) -> tuple[str, str]:
    """Return the part of a bar that is done and the part that is left."""
    filled = width
    if share < 1:
        least = 1 if share > 0 else 0
        filled = min(width - 1, max(int(share * width), least))
    return BAR_DONE * filled, BAR_LEFT * (width - filled)


def duration(seconds: float) -> str:
    """Return minutes and seconds, with hours if there are any: 0:07, 12:30, 3:04:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Eta:
    """Estimates the remaining time from the recent speed."""

    def __init__(self, window_s: float = ETA_WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, left: float) -> None:
        """Record how much is left. One older sample is kept, so that rare updates count too."""
        if not self._samples or self._samples[-1][1] != left:
            self._samples.append((now, left))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_s:
            self._samples.popleft()

    def seconds(self, now: float) -> float | None:
        """Return the seconds until nothing is left; None if that is unknown."""
        if len(self._samples) < 2:
            return None
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        if last >= first or last_at <= first_at:
            return None
        return max(0.0, last * (last_at - first_at) / (first - last) - (now - last_at))

    def clear(self) -> None:
        """Forget all samples."""
        self._samples.clear()


class ProgressLine:
    """A progress bar on one line of a terminal: what is done, how much of how much, the time left.

    Streams that are no terminal get nothing. The bar appears only if the work takes a moment.
    """

    def __init__(self, stream: TextIO, after_s: float = PROGRESS_AFTER_S) -> None:
        self._stream = stream
        self._is_live = is_live(stream)
        self._shown_from = time.monotonic() + after_s
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._description = ""
        self._updated_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def update(self, what: str, done: float, total: float | None, unit: str = "") -> None:
        """Show how much is done. Without a total there is no time left."""
        now = time.monotonic()
        if not self._is_live or now < self._shown_from:
            return
        description = plain(what)
        if description == self._description and now - self._updated_at < UPDATE_S:
            return
        self._updated_at = now
        if self._progress is None:
            self._progress = _progress(self._stream)
            self._progress.start()
        figures = f"{amount(done)} of {amount(total, unit)}" if total else amount(done, unit)
        if self._task is not None and description != self._description:
            self._progress.remove_task(self._task)
            self._task = None
        self._description = description
        if self._task is None:
            self._task = self._progress.add_task(description, figures=figures)
        self._progress.update(self._task, completed=done, total=total, figures=figures)

    def clear(self) -> None:
        """Remove the bar. It appears again with the next update."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None
            self._description = ""


@contextlib.contextmanager
def busy(stream: TextIO, what: str) -> Iterator[None]:
    """Show a bar without figures while something works, if that takes a moment."""
    if not is_live(stream):
        yield
        return
    progress = _progress(stream)
    progress.add_task(plain(what), total=None, figures="")
    timer = threading.Timer(PROGRESS_AFTER_S, progress.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        progress.stop()


def _progress(stream: TextIO) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(BAR_WIDTH),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left:", style=Tone.FAINT.value),
        TimeRemainingColumn(),
        console=console(stream),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def amount(value: float, unit: str = "") -> str:
    """Return a number as text: a count without, a measure with one decimal digit."""
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return f"{text} {unit}" if unit else text
