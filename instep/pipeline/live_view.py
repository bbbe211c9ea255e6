"""The live view of `instep run`: one row per job, redrawn in place.

Rows are plain data and are rendered by pure functions. Only `View` writes to the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import msgspec

from instep import terminal
from instep.pipeline.job import Job, RunnerState
from instep.terminal import Tone

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

# A lag of so few records, or of what is applied in this time, is no backlog.
IN_STEP_RECORDS = 1_000
IN_STEP_S = 2.0
BAR_MIN, BAR_MAX = 5, 30
NAME_MIN, NAME_MAX = 8, 40
BAR_TEXT_WIDTH = len(" 42 % 1:23 left")  # reserved, so that the columns do not move
WIDE = 100
LINES_BESIDE_ROWS = 4  # the head, the last line, and some room for the lines above
COLUMNS = ("PIPELINE", "STATE", "RATE/S", "LAG", "CAUGHT UP", "P50", "P99", "DEAD", "PARKED")
NAME, BAR, P50 = (COLUMNS.index(head) for head in ("PIPELINE", "CAUGHT UP", "P50"))
LEFT = frozenset({"PIPELINE", "STATE", "CAUGHT UP"})


class ViewRow(msgspec.Struct, frozen=True):
    """The row of one pipeline. `caught_up` is a share, and None unless there is a backlog."""

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
    """Follows the lag of one pipeline from its highest value back to none."""

    def __init__(self) -> None:
        self._peak = self._lag = 0
        self._eta = terminal.Eta()

    def add(self, now: float, lag: int | None, rate: float) -> None:
        """Record the lag. A small lag, as in a steady flow, ends the catch-up."""
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
        """Return which share of the backlog is applied; None if there is none."""
        if not self._peak:
            return None
        return 1 - self._lag / self._peak

    def eta_s(self, now: float) -> float | None:
        """Return the remaining time; None if unknown or without a backlog."""
        if not self._peak:
            return None
        return self._eta.seconds(now)


def row(job: Job, catch_up: CatchUp, now: float) -> ViewRow:
    """Return the current row of a job."""
    progress = job.progress
    rate = progress.rate()
    catch_up.add(now, progress.lag, rate)
    return ViewRow(
        pipeline=job.name,
        state=job.state,
        rate=rate,
        lag=progress.lag,
        fresh_p50_s=progress.freshness_s(0.5),
        fresh_p99_s=progress.freshness_s(0.99),
        dead=progress.totals["dead"],
        parked=progress.totals["parked"],
        waiting_s=job.waiting_s(),
        caught_up=catch_up.share(),
        eta_s=catch_up.eta_s(now),
    )


def render(rows: Sequence[ViewRow], width: int, height: int) -> RenderableType:
    """Return the table. If not all rows fit, pipelines that need attention come first."""
    from rich.console import Group

    room = max(1, height - LINES_BESIDE_ROWS)
    shown, more = rows, ""
    if len(rows) > room:
        shown = sorted(rows, key=_urgency)[:room]
        more = f"and {len(rows) - room} more · "
    return Group(_table(shown, width), terminal.text(f"{more}Ctrl-C to stop", Tone.FAINT))


def _table(rows: Sequence[ViewRow], width: int) -> Table:
    """Return the table. The bar takes the remaining width; a narrow table has no P50 column."""
    from rich.table import Table

    cells = [_cells(view_row) for view_row in rows]
    widths = []
    for number, head in enumerate(COLUMNS):
        widths.append(max(len(head), *(len(line[number]) for line in cells)))
    widths[NAME] = min(widths[NAME], NAME_MAX)
    widths[BAR] = max(BAR_TEXT_WIDTH, *(len(line[BAR]) for line in cells))
    wide = width >= WIDE
    gap = 2 if wide else 1
    columns = [number for number in range(len(COLUMNS)) if wide or number != P50]
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
    for view_row, line in zip(rows, cells, strict=True):
        line[BAR] = _bar(view_row, bar_width) + line[BAR]
        table.add_row(*(line[number] for number in columns))
    return table


def _cells(view_row: ViewRow) -> list[Text]:
    """Return the texts of a row; in the bar's column, the text after the bar."""
    lag, lag_tone = "?", Tone.NONE
    if view_row.lag is not None:
        lag = f"{view_row.lag:,}"
    if view_row.caught_up is not None:
        lag_tone = Tone.WARNING
    return [
        terminal.text(view_row.pipeline),
        terminal.text(view_row.state.value, terminal.tone_of(view_row.state.value)),
        terminal.text(f"{view_row.rate:,.0f}"),
        terminal.text(lag, lag_tone),
        terminal.text(_bar_text(view_row)),
        terminal.text(seconds(view_row.fresh_p50_s)),
        terminal.text(seconds(view_row.fresh_p99_s)),
        _quarantined(view_row.dead),
        _quarantined(view_row.parked),
    ]


def _quarantined(count: int) -> Text:
    if not count:
        return terminal.text("0")
    return terminal.text(f"{count:,}", Tone.WARNING)


def _bar(view_row: ViewRow, width: int) -> Text:
    if view_row.lag is None or view_row.state is RunnerState.WAITING:
        return terminal.text("")
    if view_row.caught_up is None:
        return terminal.bar(1.0, width, Tone.GOOD)
    return terminal.bar(view_row.caught_up, width, Tone.WARNING)


def _bar_text(view_row: ViewRow) -> str:
    """Return how long the pipeline has been waiting, or the progress of a catch-up."""
    if view_row.state is RunnerState.WAITING:
        return f"for {terminal.duration(view_row.waiting_s)}"
    if view_row.lag is None or view_row.caught_up is None:
        return ""
    left = ""
    if view_row.eta_s is not None:
        left = f" {terminal.duration(view_row.eta_s)} left"
    return f" {min(99, int(view_row.caught_up * 100)):2} %{left}"  # 100 % only when it is done


def _urgency(view_row: ViewRow) -> tuple[bool, int]:
    return view_row.state is RunnerState.RUNNING, -(view_row.lag or 0)


def seconds(value: float | None) -> str:
    """Format a bound of the freshness, short enough for its column."""
    if value is None:
        return "-"
    if value == float("inf"):
        return ">300 s"
    if value < 1:
        return f"≤{value * 1000:.0f} ms"
    return f"≤{value:g} s"


class View:
    """The rows at the bottom of a terminal, with lines printed above them."""

    def __init__(self, stream: TextIO) -> None:
        self._console = terminal.console(stream)
        self._live: Live | None = None

    def draw(self, rows: Sequence[ViewRow]) -> None:
        """Draw the rows, or redraw them in place."""
        from rich.live import Live

        if self._live is None:
            # No refresh thread: only the reporter's own thread may write to the terminal.
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
