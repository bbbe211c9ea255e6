"""Test colours: only on a terminal, where they have a meaning, around escaped text."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
import typer

from instep import terminal
from instep.cli import output
from instep.terminal import Tone

RED, BOLD, OFF = "\x1b[31m", "\x1b[1m", "\x1b[0m"


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Tty:
    """Return a terminal that shows colours, as stdout and stderr."""
    stream = Tty()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    # pytest sets sys.stdout itself
    monkeypatch.setattr(output, "sys", SimpleNamespace(stdout=stream, stderr=stream))
    # rich keeps its own streams
    monkeypatch.setattr(typer, "echo", lambda text, err=False: stream.write(f"{text}\n"))
    return stream


ROWS = [("a", "dead"), ("dead", "running"), ("\x1b[2J", "dead\x1b[31m")]


def test_a_table_colours_only_its_state_columns(screen: Tty) -> None:
    head, first, second, third = output.table(("SERVER", "STATE"), ROWS).split("\n")
    assert head == f"{BOLD}SERVER {OFF}  {BOLD}STATE       {OFF}"
    assert first == f"a        {RED}dead        {OFF}"
    assert second == "dead     \x1b[32mrunning     \x1b[0m"
    assert third == r"\x1b[2J  dead\x1b[31m"


def test_a_table_without_a_terminal_has_no_colours() -> None:
    assert (
        output.table(("SERVER", "STATE"), ROWS[:2])
        == "SERVER  STATE\na       dead\ndead    running"
    )


def test_an_error_is_red_and_its_remedy_is_not(screen: Tty) -> None:
    output.say("instep: the table\x1b is gone\nmake it again")
    output.say("contracts: in step", Tone.GOOD)
    assert screen.getvalue() == (
        f"{RED}instep: the table\\x1b is gone{OFF}\nmake it again\n"
        "\x1b[32mcontracts: in step\x1b[0m\n"
    )


def test_no_color_turns_colours_off(screen: Tty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output.say("instep: gone")
    assert screen.getvalue() == "instep: gone\n"
    assert "\x1b" not in output.table(("SERVER", "STATE"), ROWS)


@pytest.mark.parametrize(
    ("text", "tone"),
    [
        ("running", Tone.GOOD),
        ("running since 08:00 on host-1", Tone.GOOD),
        ("waiting, for the broker", Tone.WARNING),
        ("stopped: TOPIC_GONE", Tone.BAD),
        ("  ERROR ", Tone.BAD),
        ("it is running", Tone.NONE),
        ("", Tone.NONE),
    ],
)
def test_the_first_word_of_a_state_decides_the_colour(text: str, tone: Tone) -> None:
    assert terminal.tone_of(text) is tone
