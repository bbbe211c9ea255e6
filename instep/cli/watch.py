"""`--watch [SECONDS]`: repeat a command's output, in place on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from instep import terminal

OPTION = "--watch"
INTERVAL_S = 2.0
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 86_400.0


def _check_interval(seconds: float | None) -> float | None:
    # the comparison also refuses nan
    if seconds is not None and not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise typer.BadParameter(
            f"{seconds:g} is not between {INTERVAL_MIN_S:g} and {INTERVAL_MAX_S:,.0f} seconds"
        )
    return seconds


Watch = Annotated[
    float | None,
    typer.Option(
        OPTION,
        metavar="[SECONDS]",
        callback=_check_interval,
        help=f"Repeat every SECONDS (default {INTERVAL_S:g}) until Ctrl-C.",
    ),
]


class WatchCommand(TyperCommand):
    """A command whose `--watch` needs no number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after adding the default interval."""
        return super().parse_args(ctx, with_interval(args))


def with_interval(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the default interval after each `--watch` without a number."""
    complete = []
    for number, argument in enumerate(arguments, start=1):
        complete.append(argument)
        if argument == OPTION and not any(map(_is_number, arguments[number : number + 1])):
            complete.append(str(INTERVAL_S))
    return complete


def repeat(block: Callable[[], str], seconds: float) -> NoReturn:
    """Print the block again and again until interrupted. The last one stays on the terminal."""
    if not terminal.is_live(sys.stdout):
        while True:
            typer.echo(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n{block()}\n")
            time.sleep(seconds)
    from rich.live import Live
    from rich.text import Text

    with Live(
        console=terminal.console(sys.stdout),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        while True:
            # the only escapes in the block are our own colours: values were escaped before
            body = Text.from_ansi(block())
            head = terminal.text(
                f"{datetime.now(UTC):%H:%M:%SZ} · every {seconds:g} s · Ctrl-C to stop\n",
                terminal.Tone.FAINT,
            )
            live.update(head + body, refresh=True)
            time.sleep(seconds)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
