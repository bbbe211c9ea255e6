"""The command line, one module per command.

A command reads the settings, calls one part of instep and prints the result. Each command imports
what it needs when it runs, so that a quick command starts quickly.
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
from instep.cli import exit_status
from instep.cli import help as help_pages
from instep.cli.options import Config, Debug

# command -> module of this package
COMMANDS: Mapping[str, str] = {
    "demo": "demo",
    "init": "init",
    "up": "up",
    "down": "down",
    "status": "status",
    "console": "console",
    "emit": "emit",
    "poll": "poll",
    "run": "run",
    "relay": "relay",
    "load": "load",
    "sink": "sink",
    "archive": "archive",
    "stream": "stream",
    "show": "show",
    "await": "await_command",
    "settings": "settings_command",
    "history": "history",
    "dead": "dead",
    "parked": "parked",
    "overdue": "overdue",
    "rewind": "rewind",
    "replay": "replay",
    "reconcile": "reconcile",
    "vet": "vet",
    "doctor": "doctor",
    "explain": "explain",
    "topics": "topics",
    "groups": "groups",
    "offsets": "offsets",
    "peek": "peek",
}
ENTRY_POINTS = "instep.commands"  # commands of other packages: lab and bench


def build_app(wanted: Iterable[str] | None = None) -> typer.Typer:
    """Build the command line with these commands, or with all of them."""
    app = typer.Typer(
        name="instep",
        cls=help_pages.GroupedCommands,
        no_args_is_help=True,
        # With rich markup, Typer would never call GroupedCommands.format_commands.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,  # exit_status prints errors
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": help_pages.WIDTH_MAX,
        },
    )
    app.callback()(_global_options)
    names = None if wanted is None else set(wanted)
    for command, module in COMMANDS.items():
        if names is None or command in names:
            app.add_typer(importlib.import_module(f"instep.cli.{module}").app)
    for name, entry_point in _entry_points(names).items():
        app.add_typer(entry_point.load(), name=name)
    return app


def command_names() -> set[str]:
    """Return the names of all installed commands."""
    return set(COMMANDS) | set(_entry_points(None))


def _entry_points(names: set[str] | None) -> dict[str, metadata.EntryPoint]:
    """Return the commands of other packages. Search for them only if needed: it takes a while."""
    if names is not None and names <= COMMANDS.keys():
        return {}
    installed = {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
    return {name: point for name, point in installed.items() if names is None or name in names}


def _needed_commands(arguments: list[str]) -> list[str] | None:
    """Return the command of these arguments.

    Return None, which means all, for help, leading options and unknown commands.
    """
    if not arguments:
        return None
    name = arguments[0]
    if name in COMMANDS or _entry_points({name}):
        return [name]
    return None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"instep {__version__}")
        raise typer.Exit


def _global_options(
    _config: Config = None,
    _debug: Debug = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Stream status changes from Kafka into your database table with PySpark.

    Changes are applied in order per document and exactly once, usually within a second.
    """


def main() -> NoReturn:
    """Run a command. Errors become a message on stderr and the exit status of their type."""
    exit_status.prepare_process()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit_on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, _exit_on_signal)
    # Build the app inside: an error while a command is imported needs a message too.
    sys.exit(exit_status.status_of(lambda: build_app(_needed_commands(sys.argv[1:]))()))


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit through every `finally` block, so that whatever a command started is stopped."""
    raise SystemExit(128 + number)  # the status that a shell shows for a signal
