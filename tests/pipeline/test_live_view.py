"""Test the live view of a run: its rows, at any width, with any text."""

from __future__ import annotations

import io
import time

import msgspec
import pytest
from rich.console import Console

from instep import terminal
from instep.pipeline import live_view
from instep.pipeline.live_view import CatchUp, ViewRow
from instep.pipeline.runner import RunnerState

STEADY = ViewRow("contracts", RunnerState.RUNNING, 1203.6, 12, 0.15, 1.0, 0, 0)
BACKLOG = ViewRow(
    "invoices",
    RunnerState.RUNNING,
    25_000.0,
    1_234_567,
    5.0,
    float("inf"),
    3,
    1,
    caught_up=0.42,
    eta_s=83.0,
)
WAITING = ViewRow("letters", RunnerState.WAITING, 0.0, None, None, None, 0, 0, waiting_s=12.4)


def drawn(*rows: ViewRow, width: int = 120, height: int = 30) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, record=True, markup=False)
    console.print(live_view.render(rows, width, height))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_each_pipeline_has_a_row_with_state_rate_lag_freshness_and_quarantine() -> None:
    head, steady, backlog, waiting, foot = drawn(STEADY, BACKLOG, WAITING)
    assert head.split() == [
        "PIPELINE",
        "STATE",
        "RATE/S",
        "LAG",
        "CAUGHT",
        "UP",
        "P50",
        "P99",
        "DEAD",
        "PARKED",
    ]
    assert steady.split()[:4] == ["contracts", "running", "1,204", "12"]
    assert steady.split()[-6:] == ["≤150", "ms", "≤1", "s", "0", "0"]
    assert "━" * 20 in steady
    assert backlog.split()[:4] == ["invoices", "running", "25,000", "1,234,567"]
    assert "─ 42 % 1:23 left" in backlog
    assert backlog.endswith(">300 s     3       1")
    assert waiting.split() == ["letters", "waiting", "0", "?", "for", "0:12", "-", "-", "0", "0"]
    assert foot == "Ctrl-C to stop"


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_every_row_fits_the_width_and_shows_complete_figures(width: int) -> None:
    head, steady, backlog, *_ = drawn(STEADY, BACKLOG, WAITING, width=width)
    assert max(map(len, (head, steady, backlog))) <= width
    for line, figures in (
        (steady, ("contracts", "1,204", "≤1 s")),
        (backlog, ("1,234,567", "42 % 1:23 left", ">300 s", "3", "1")),
    ):
        for figure in figures:
            assert figure in line
    assert ("P50" in head) is (width >= 100)


def test_long_names_are_shortened_before_figures() -> None:
    long = msgspec.structs.replace(BACKLOG, pipeline="a-pipeline-with-a-name-that-is-much-too-long")
    _, shown, _ = drawn(long, width=80)
    assert len(shown) <= 80
    assert shown.startswith("a-pipeline-wit… ")
    assert "1,234,567" in shown


def test_a_small_terminal_shows_urgent_pipelines_first() -> None:
    many = [
        ViewRow(f"p{number}", RunnerState.RUNNING, 0.0, number, None, None, 0, 0)
        for number in range(20)
    ]
    lines = drawn(*many, WAITING, height=8)
    assert [line.split()[0] for line in lines[1:-1]] == ["letters", "p19", "p18", "p17"]
    assert lines[-1] == "and 17 more · Ctrl-C to stop"


def test_names_are_shown_as_text_and_cannot_control_the_terminal() -> None:
    shown = drawn(
        ViewRow("[red]a[/red]\x1b[2J", RunnerState.RUNNING, 0.0, 0, None, None, 0, 0), width=160
    )[1]
    assert shown.startswith(r"[red]a[/red]\x1b[2J")


def test_a_backlog_is_followed_from_its_highest_lag_and_ends_in_a_steady_flow() -> None:
    catch_up = CatchUp()
    for now, lag in ((0.0, None), (1.0, 80_000), (2.0, 100_000), (6.0, 60_000), (10.0, 20_000)):
        catch_up.add(now, lag, rate=9_000.0)
    assert catch_up.share() == pytest.approx(0.8)
    assert catch_up.eta_s(10.0) == pytest.approx(20_000 / (60_000 / 9))
    assert catch_up.eta_s(12.0) == pytest.approx(20_000 / (60_000 / 9) - 2)
    catch_up.add(11.0, 17_000, rate=9_000.0)  # less than two seconds' worth
    assert (catch_up.share(), catch_up.eta_s(11.0)) == (None, None)


def test_no_time_is_estimated_while_the_lag_does_not_shrink() -> None:
    catch_up = CatchUp()
    for now, lag in ((0.0, 50_000), (1.0, 50_000), (2.0, 60_000)):
        catch_up.add(now, lag, rate=0.0)
    assert (catch_up.share(), catch_up.eta_s(2.0)) == (0.0, None)


def test_a_bar_is_full_only_at_the_end_and_empty_only_at_the_start() -> None:
    filled = [
        terminal.bar(share, 10).plain.count(terminal.BAR_DONE)
        for share in (0.0, 0.001, 0.5, 0.999, 1.0)
    ]
    assert filled == [0, 1, 5, 9, 10]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (11_045, "3:04:05")]
)
def test_durations_are_formatted(seconds: float, shown: str) -> None:
    assert terminal.duration(seconds) == shown


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "live", "colour"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_the_environment_decides_about_colour(
    environment: dict[str, str], live: bool, colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Tty()
    assert (terminal.is_live(stream), terminal.has_colour(stream)) == (live, colour)
    assert ("\x1b" in terminal.paint("dead", terminal.tone_of("DEAD"), stream)) is colour
    console = terminal.console(stream)
    console.print(terminal.text("[bold]dead", terminal.Tone.BAD))
    assert ("\x1b[31m" in stream.getvalue()) is colour
    assert "[bold]dead" in stream.getvalue()


def test_a_file_gets_no_colour_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    terminal.console(stream).print(terminal.text("dead", terminal.Tone.BAD))
    assert stream.getvalue() == "dead\n"
    assert terminal.paint("dead", terminal.Tone.BAD, stream) == "dead"


def test_progress_is_shown_as_a_bar_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Tty()
    with terminal.ProgressLine(stream, after_s=0.0) as line:
        line.update("fetching\x1b[31m", 1.25, None, "MB")
        line.clear()
        line.update("fetching\x1b[31m", 10.0, 40.0, "MB")
        line.clear()
        line.update("comparing [bold]", 3, 1_000)
    drawn = stream.getvalue()
    assert "fetching\\x1b[31m" in drawn
    assert "1.2 MB" in drawn
    assert "10.0 of 40.0 MB" in drawn
    assert "comparing [bold]" in drawn
    assert "3 of 1,000" in drawn
    assert drawn.endswith("\x1b[2K")


def test_quick_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Tty()
    with terminal.ProgressLine(stream, after_s=60.0) as line:
        line.update("comparing", 1, 2)
    assert stream.getvalue() == ""


def test_progress_is_shown_only_on_terminals() -> None:
    stream = io.StringIO()
    with terminal.ProgressLine(stream) as line:
        line.update("comparing", 1, 2)
    assert stream.getvalue() == ""


def test_work_without_figures_is_shown_if_it_takes_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(terminal, "PROGRESS_AFTER_S", 0.01)
    stream, file = Tty(), io.StringIO()
    with terminal.busy(stream, "removing [bold]"), terminal.busy(file, "removing"):
        deadline = time.monotonic() + 30
        while "removing [bold]" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "removing [bold]" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")
    assert file.getvalue() == ""
    monkeypatch.setattr(terminal, "PROGRESS_AFTER_S", 60.0)
    quick = Tty()
    with terminal.busy(quick, "removing"):
        pass
    assert quick.getvalue() == ""
