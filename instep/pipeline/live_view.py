"""The live view of `instep run`: one row per pipeline, redrawn in place.

Rows are plain data and are rendered by pure functions. `View` is the only part that touches the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import msgspec

from instep import terminal
from instep.pipeline.runner import Runner, RunnerState
from instep.terminal import Tone

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

IN_STEP_RECORDS = (
    1_000  # a lag of so few records, or of what is applied in two seconds, is no backlog
)
IN_STEP_S = 2.0
BAR_MIN, BAR_MAX = 5, 30
NAME_MIN, NAME_MAX = 8, 40
BEHIND_BAR = len(" 42 % 1:23 left")  # kept free, so that the columns stay where they are
WIDE = 100
LINES_BESIDE_ROWS = 4  # the head, the line below, and room for the lines above
COLUMNS = ("PIPELINE", "STATE", "RATE/S", "LAG", "CAUGHT UP", "P50", "P99", "DEAD", "PARKED")
NAME, BAR, P50 = (COLUMNS.index(head) for head in ("PIPELINE", "CAUGHT UP", "P50"))
LEFT = frozenset({"PIPELINE", "STATE", "CAUGHT UP"})


class ViewRow(msgspec.Struct, frozen=True):
    """What one pipeline's row shows. `caught_up` is a share, and known only while a backlog is worked off."""

    pipeline: str
    state: RunnerState
    rate: float
    lag: int | None
    fresh_p50_s: float | None
    fresh_p99_s: float | None
    dead: int
    parked: int
    waiting_s: float = 0.0
    caught_up: float | None = None
    eta_s: float | None = None


class CatchUp:
    """Follows one pipeline's lag from its highest value back to nothing."""

    def __init__(self) -> None:
        self._peak = self._lag = 0
        self._eta = terminal.Eta()

    def add(self, now: float, lag: int | None, rate: float) -> None:
        """Record the lag. A small one, as in a steady flow, ends the catch-up."""
        if lag is None:
            return
        self._lag = lag
        if lag <= max(IN_STEP_RECORDS, rate * IN_STEP_S):
            self._peak = 0
            self._eta.clear()
        else:
            self._peak = max(self._peak, lag)
            self._eta.add(now, lag)

    def share(self) -> float | None:
        """Return how much of the backlog is applied; None when there is none."""
        return 1 - self._lag / self._peak if self._peak else None

    def eta_s(self, now: float) -> float | None:
        return self._eta.seconds(now) if self._peak else None


def row(runner: Runner, catch_up: CatchUp, now: float) -> ViewRow:
    """Return what is known of a pipeline now."""
    done = runner.progress
    rate = done.rate()
    catch_up.add(now, done.lag, rate)
    return ViewRow(
        pipeline=runner.name,
        state=runner.state,
        rate=rate,
        lag=done.lag,
        fresh_p50_s=done.freshness_s(0.5),
        fresh_p99_s=done.freshness_s(0.99),
        dead=done.totals["dead"],
        parked=done.totals["parked"],
        waiting_s=runner.waiting_s(),
        caught_up=catch_up.share(),
        eta_s=catch_up.eta_s(now),
    )


def render(rows: Sequence[ViewRow], width: int, height: int) -> RenderableType:
    """Return the table. Where the terminal is too low, pipelines that need attention come first."""
    from rich.console import Group

    room = max(1, height - LINES_BESIDE_ROWS)
    shown = list(rows) if len(rows) <= room else sorted(rows, key=_urgency)[:room]
    more = f"and {len(rows) - len(shown)} more · " if len(shown) < len(rows) else ""
    return Group(_table(shown, width), terminal.text(f"{more}Ctrl-C to stop", Tone.FAINT))


def _table(rows: Sequence[ViewRow], width: int) -> Table:
    """Return the table in this width: the bar takes what the figures leave; a narrow terminal does without the P50."""
    from rich.table import Table

    cells = [_cells(one) for one in rows]
    widths = [
        max(len(head), *(len(line[number]) for line in cells))
        for number, head in enumerate(COLUMNS)
    ]
    widths[NAME] = min(widths[NAME], NAME_MAX)
    widths[BAR] = max(BEHIND_BAR, *(len(line[BAR]) for line in cells))
    wide = width >= WIDE
    gap, columns = (
        (2 if wide else 1),
        [number for number in range(len(COLUMNS)) if wide or number != P50],
    )
    room = width - sum(widths[number] for number in columns) - gap * (len(columns) - 1)
    bar_width = min(BAR_MAX, max(BAR_MIN, room))
    widths[NAME] = max(NAME_MIN, widths[NAME] + min(0, room - bar_width))
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style=Tone.STRONG.value)
    for number in columns:
        head = COLUMNS[number]
        table.add_column(
            head,
            justify="left" if head in LEFT else "right",
            no_wrap=True,
            width=None if number == BAR else widths[number],
        )
    for one, line in zip(rows, cells, strict=True):
        line[BAR] = _bar(one, bar_width) + line[BAR]
        table.add_row(*(line[number] for number in columns))
    return table


def _cells(one: ViewRow) -> list[Text]:
    """Return the texts of a row; that of the bar's column is what stands behind the bar."""
    return [
        terminal.text(one.pipeline),
        terminal.text(one.state.value, terminal.tone_of(one.state.value)),
        terminal.text(f"{one.rate:,.0f}"),
        terminal.text(
            "?" if one.lag is None else f"{one.lag:,}",
            Tone.WARNING if one.caught_up is not None else Tone.NONE,
        ),
        terminal.text(_behind_bar(one)),
        terminal.text(seconds(one.fresh_p50_s)),
        terminal.text(seconds(one.fresh_p99_s)),
        terminal.text(f"{one.dead:,}", Tone.WARNING if one.dead else Tone.NONE),
        terminal.text(f"{one.parked:,}", Tone.WARNING if one.parked else Tone.NONE),
    ]


def _bar(one: ViewRow, width: int) -> Text:
    if one.lag is None or one.state is RunnerState.WAITING:
        return terminal.text("")
    caught_up = one.caught_up is None
    return terminal.bar(
        1.0 if one.caught_up is None else one.caught_up,
        width,
        Tone.GOOD if caught_up else Tone.WARNING,
    )


def _behind_bar(one: ViewRow) -> str:
    """Return for how long the pipeline has been waiting, or how far a catch-up is and how long it still takes."""
    if one.state is RunnerState.WAITING:
        return f"for {terminal.duration(one.waiting_s)}"
    if one.lag is None or one.caught_up is None:
        return ""
    left = "" if one.eta_s is None else f" {terminal.duration(one.eta_s)} left"
    return f" {min(99, int(one.caught_up * 100)):2} %{left}"  # 100 % is said only of what is done


def _urgency(one: ViewRow) -> tuple[bool, int]:
    return one.state is RunnerState.RUNNING, -(one.lag or 0)


def seconds(value: float | None) -> str:
    """Return a bound of the freshness, as short as a column is."""
    if value is None:
        return "-"
    if value == float("inf"):
        return ">300 s"
    return f"≤{value * 1000:.0f} ms" if value < 1 else f"≤{value:g} s"


class View:
    """The rows at the bottom of a terminal, with lines printed above them. Nothing is drawn before the first rows."""

    def __init__(self, stream: TextIO) -> None:
        self._console = terminal.console(stream)
        self._live: Live | None = None

    def draw(self, rows: Sequence[ViewRow]) -> None:
        from rich.live import Live

        if self._live is None:
            # drawn only when told to: no thread writes to the terminal behind the reporter's back
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        self._live.update(render(rows, *self._console.size), refresh=True)

    def print(self, line: Text) -> None:
        """Print a line above the rows."""
        line.no_wrap = False
        self._console.print(line, soft_wrap=True)

    def close(self) -> None:
        """Remove the rows and show the cursor again."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
