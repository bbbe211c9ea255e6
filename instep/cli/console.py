"""`instep console`: the pipelines, their documents and the cluster in a browser."""

from __future__ import annotations

import logging
import os
import sys
import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from instep import errors, extras, settings
from instep.cli import help as help_pages
from instep.cli import output, resources
from instep.cli.options import GLOBAL, Config, Debug

if TYPE_CHECKING:
    from instep.console.server import ConsoleServer

DESKTOPS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")  # variables of the environment

app = typer.Typer(name="console", cls=help_pages.GroupedCommands, rich_markup_mode=None)


class UserRole(StrEnum):
    """What a user of the console may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@app.callback(invoke_without_command=True)
def console(
    context: typer.Context,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, metavar="PORT", help="Port to listen on; 0 takes a free one."
        ),
    ] = 8080,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to listen on; any other than the default needs --auth."
        ),
    ] = "127.0.0.1",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Serve no page that changes anything.")
    ] = False,
    hide_values: Annotated[
        bool, typer.Option("--hide-values", help="Hide the contents of records and rows.")
    ] = False,
    auth: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Let the users of this file sign in. Default: a token."),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the console in your browser.")
    ] = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Serve a web console: look at pipelines, documents and Kafka, and act on quarantine.

    Stop it with Ctrl-C. It runs beside `instep run` or alone.
    """
    # Typer also calls this function before a subcommand.
    if context.invoked_subcommand is not None:
        return
    serve(
        GLOBAL.config,
        host=host,
        port=port,
        read_only=read_only,
        hide_values=hide_values,
        auth=auth,
        open_browser=open_browser,
    )


@app.command("user")
def user(
    name: Annotated[str, typer.Argument(help="The user's name.")],
    role: Annotated[UserRole, typer.Option(help="What the user may do.")] = UserRole.VIEWER,
    _debug: Debug = False,
) -> None:
    """Print the entry of a user for the file of --auth. The password is read from the terminal."""
    extras.require_console()
    from instep.console import access

    password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if len(password) < access.PASSWORD_CHARACTERS_MIN:
        raise errors.SettingsError(
            f"the password has fewer than {access.PASSWORD_CHARACTERS_MIN} characters",
            "choose a longer one",
        )
    typer.echo(access.user_entry(name, role.value, password), nl=False)


def serve(
    config: Path | None,
    *,
    host: str = "127.0.0.1",
    port: int,
    read_only: bool = False,
    hide_values: bool = False,
    auth: Path | None = None,
    open_browser: bool,
) -> None:
    """Serve the console until a signal ends the command."""
    extras.require_console()
    from instep.console.server import ConsoleServer, ServerOptions
    from instep.console.workspace import ConsoleOptions

    server = ConsoleServer(
        settings.load_with_origins(config),
        ConsoleOptions(config, read_only=read_only, hide_values=hide_values),
        ServerOptions(resources.current_user(), host, port, auth),
    )
    _print_audit()
    server.run(lambda: _announce(server, open_browser=open_browser))


def _print_audit() -> None:
    """Print what nothing else keeps: who signs in, fails to, or resets a group."""
    log = logging.getLogger("instep.console.audit")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _announce(server: ConsoleServer, *, open_browser: bool) -> None:
    typer.echo(server.start_url)
    output.say("open this URL in a browser; Ctrl-C stops the console")
    if not open_browser:
        return
    # without a desktop, a browser for terminals would take over this one
    if sys.platform != "darwin" and not any(map(os.environ.get, DESKTOPS)):
        output.say("no desktop here: the URL was not opened")
    else:
        webbrowser.open(server.one_time_url())
