"""Output for terminals: one colour per meaning, bars, remaining time, consoles without markup.

rich is only imported to draw something, so that a command that prints two lines starts quickly.
"""

from __future__ import annotations

import enum
import os
import shutil
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from instep.document.showing import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ETA_WINDOW_S = 20.0
BAR_DONE, BAR_LEFT = "━", "─"
BAR_WIDTH = 24
REDRAW_S = 0.1


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
    """Colour a text for this stream. The text must not contain escapes of its own."""
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
    """One line that a terminal redraws: a bar, the amount done, and the time left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_live = is_live(stream)
        self._what = ""
        self._eta = Eta()
        self._drawn_at = 0.0
        self._is_drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def update(
        self, what: str, done: float, total: float | None, unit: str = "", now: float | None = None
    ) -> None:
        """Redraw the line, at most ten times a second. The bar and the time left need a total."""
        now = time.monotonic() if now is None else now
        if what != self._what:
            self._what = what
            self._eta.clear()
        if total is not None:
            self._eta.add(now, total - done)
        if self._is_live and now - self._drawn_at >= REDRAW_S:
            self._drawn_at, self._is_drawn = now, True
            columns = shutil.get_terminal_size().columns
            self._stream.write("\r\x1b[K" + self._line(done, total, unit, now, columns))
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line: the next output starts in its place."""
        if self._is_drawn:
            self._is_drawn, self._drawn_at = False, 0.0
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _line(self, done: float, total: float | None, unit: str, now: float, columns: int) -> str:
        what = plain(self._what)
        if not total:
            return f"{what}: {amount(done, unit)}"[: columns - 1]
        left_s = self._eta.seconds(now)
        figures = f" {amount(done)} of {amount(total, unit)}"
        if left_s is not None:
            figures += f", {duration(left_s)} left"
        width = min(BAR_WIDTH, columns - 1 - len(what) - len(figures) - 2)
        if width < 1:
            return f"{what}:{figures}"[: columns - 1]
        filled, empty = bar_parts(done / total, width)
        filled = paint(filled, Tone.GOOD, self._stream)
        empty = paint(empty, Tone.FAINT, self._stream)
        return f"{what}: {filled}{empty}{figures}"


def amount(value: float, unit: str = "") -> str:
    """Return a number as text: a count without, a measure with one decimal digit."""
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return f"{text} {unit}" if unit else text
