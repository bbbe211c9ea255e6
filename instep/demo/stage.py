"""Output of the demo: progress messages and, on a terminal, bars for polling and for events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self, TextIO

import msgspec

from instep import terminal
from instep.document.showing import plain
from instep.terminal import Tone

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

BAR_MIN, BAR_MAX = 10, 60


class ProgressSample(msgspec.Struct, frozen=True):
    """The progress of polling and of events at one moment."""

    at_s: float
    documents: int
    polled: int
    round_s: float
    records: int
    applied: int
    ledger: dict[int, int] = {}

    @property
    def polled_share(self) -> float:
        return self.polled / self.documents

    @property
    def applied_share(self) -> float:
        return min(1.0, self.applied / self.records)


class DemoTerminal:
    """Writes to a stream; restores the terminal however the demo ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None
        self._is_live = terminal.is_live(stream)

    def __enter__(self) -> Self:
        if self._is_live:
            from rich.live import Live

            self._live = Live(
                console=terminal.console(self._stream),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def say(self, text: str, tone: Tone = Tone.NONE) -> None:
        """Print a line, above the bars if they are shown."""
        if self._live is not None:
            self._live.console.print(terminal.text(text, tone), soft_wrap=True)
        else:
            self._stream.write(terminal.paint(plain(text), tone, self._stream) + "\n")
            self._stream.flush()

    def show(self, sample: ProgressSample) -> None:
        """Redraw the bars."""
        if self._live is not None:
            self._live.update(render(sample, self._live.console.width), refresh=True)


def render(sample: ProgressSample, width: int) -> RenderableType:
    """Return the bars: polling above, events below, then the position of the ledger."""
    from rich.table import Table

    left = max(0.0, sample.round_s * (1 - sample.polled_share))
    rows = (
        (
            "polling",
            sample.polled_share,
            f"{sample.polled:,} of {sample.documents:,} documents, {terminal.duration(left)} left",
        ),
        (
            "events",
            sample.applied_share,
            f"{sample.applied:,} of {sample.records:,} records applied",
        ),
    )
    room = width - len("polling  ") - 2 - max(len(text) for _, _, text in rows)
    bar_width = min(BAR_MAX, max(BAR_MIN, room))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    for (name, share, text), tone in zip(rows, (Tone.WARNING, Tone.GOOD), strict=True):
        table.add_row(
            terminal.text(name, Tone.STRONG),
            terminal.bar(share, bar_width, tone),
            terminal.text(text),
        )
    table.add_row(
        terminal.text(terminal.duration(sample.at_s), Tone.FAINT),
        terminal.text(f"ledger {positions(sample.ledger)}", Tone.FAINT),
        terminal.text(""),
    )
    return table


def positions(ledger: Mapping[int, int]) -> str:
    """Return the next offset of each partition."""
    return (
        " ".join(f"{partition}:{offset}" for partition, offset in sorted(ledger.items()))
        or "is empty"
    )
