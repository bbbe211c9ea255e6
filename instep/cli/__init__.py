"""The command line. Each command reads the settings, calls one part of instep, and prints; it decides nothing itself.

Parts are imported by the command that needs them, so that a quick command starts quickly.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from types import FrameType
from typing import Annotated, NoReturn

import typer

from instep import __version__
from instep.cli import ending, grouping
from instep.cli.shared import Config, Debug

# which module has which commands: one command does not wait for the others to be read
PARTS: Mapping[str, tuple[str, ...]] = {
    "demo": ("demo",),
    "road": ("init", "up", "down", "status", "emit", "run"),
    "looking": ("show", "settings", "history"),
    "setaside": ("dead", "parked"),
    "mending": ("rewind", "replay"),
    "proving": ("reconcile",),
    "judging": ("vet", "doctor"),
    "explaining": ("explain",),
    "topics": ("topics",),
    "groups": ("groups",),
    "log": ("offsets", "peek"),
}
ENTRY_POINTS = "instep.commands"  # of other packages: the lab and the benchmarks


def assembled(wanted: Iterable[str] | None = None) -> typer.Typer:
    """Build the command line with these commands, or with all of them."""
    app = typer.Typer(
        name="instep",
        cls=grouping.GroupedCommands,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": grouping.WIDTH_MAX,
        },
    )
    app.callback()(_before)
    names = None if wanted is None else set(wanted)
    for part, commands in PARTS.items():
        if names is None or names & set(commands):
            app.add_typer(importlib.import_module(f"instep.cli.{part}").app)
    for name, entry_point in _entry_points(names).items():
        app.add_typer(entry_point.load(), name=name)
    return app


def command_names() -> set[str]:
    """Return the names of all installed commands."""
    return {name for own in PARTS.values() for name in own} | set(_entry_points(None))


def _entry_points(names: set[str] | None) -> dict[str, metadata.EntryPoint]:
    """Return the commands of other packages. They are looked for only if one is needed: it takes a while."""
    if names is not None and all(any(name in own for own in PARTS.values()) for name in names):
        return {}
    found = {one.name: one for one in metadata.entry_points(group=ENTRY_POINTS)}
    return {name: one for name, one in found.items() if names is None or name in names}


def _needed(arguments: list[str]) -> list[str] | None:
    """Return the command that was given, or None, for all: help, leading options, and unknown commands."""
    if not arguments:
        return None
    name = arguments[0]
    known = any(name in own for own in PARTS.values()) or _entry_points({name})
    return [name] if known else None


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"instep {__version__}")
        raise typer.Exit


def _before(
    _config: Config = None,
    _debug: Debug = False,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version."),
    ] = False,
) -> None:
    """Keeps a database table in step with another system's records: Kafka to SQL through Spark, in order, exactly once."""


def main() -> NoReturn:
    """Run a command; errors become one or two lines on stderr and the exit status that their type says."""
    ending.prepare_process()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has it ignored
        signal.signal(signal.SIGHUP, _interrupted)
    sys.exit(ending.status_of(lambda: assembled(_needed(sys.argv[1:]))()))


def _interrupted(number: int, _frame: FrameType | None) -> NoReturn:
    """Leave by every `finally` on the way, so that what a command started is stopped."""
    raise SystemExit(128 + number)
