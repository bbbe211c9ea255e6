"""`instep up`: start local servers, and kill, start, pause or resume one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from instep import errors
from instep.cli import help as help_pages
from instep.cli import output
from instep.cli.options import AsJson, Debug

if TYPE_CHECKING:
    from instep.local.registry import LocalServer

app = typer.Typer(name="up", cls=help_pages.GroupedCommands, rich_markup_mode=None)

ServerName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A broker's number (1, 2, 3), or postgres, mariadb."),
]


@app.callback(invoke_without_command=True)
def up(
    context: typer.Context,
    brokers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of Kafka brokers: 1 or 3.")
    ] = None,
    with_: Annotated[
        str,
        typer.Option(
            "--with", metavar="NAMES", help="Databases to start as well: postgres,mariadb."
        ),
    ] = "",
    port: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PORT", help="Port for kafka, postgres or mariadb."),
    ] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Start real servers on this machine; they run until `instep down`."""
    from instep.local import class_archives, local_servers

    # Typer also calls this function before a subcommand, which has its own options.
    if context.invoked_subcommand:
        if brokers or with_ or port or as_json:
            raise errors.SettingsError(
                f"options of `instep up` do not apply to `up {context.invoked_subcommand}`",
                "leave them out, or give --json after the subcommand",
            )
        return
    names = [name for name in with_.replace(" ", "").split(",") if name]
    started = local_servers.up(
        brokers=brokers, databases=names, given_ports=_ports(port or []), say=output.say
    )
    output.print_servers(started, as_json)
    class_archives.prepare_in_background(class_archives.KAFKA, output.say)


@app.command("status")
def show_status(as_json: AsJson = False, _debug: Debug = False) -> None:
    """Show the state of each local server: running, paused or dead. Starts nothing."""
    from instep.local import registry

    servers = registry.known()
    if not servers:
        output.say("no local server has been started")
    output.print_servers(servers, as_json)


@app.command("kill")
def kill(server: ServerName, as_json: AsJson = False, _debug: Debug = False) -> None:
    """Kill a server with SIGKILL; it stays dead until it is started."""
    from instep.local import local_servers

    _change(local_servers.kill, server, "dead", as_json)


@app.command("start")
def start(server: ServerName, as_json: AsJson = False, _debug: Debug = False) -> None:
    """Start a dead server again, on the same port and data."""
    from instep.local import local_servers

    _change(local_servers.start, server, "running", as_json)


@app.command("pause")
def pause(server: ServerName, as_json: AsJson = False, _debug: Debug = False) -> None:
    """Freeze a server: its connections stay open and nothing answers."""
    from instep.local import local_servers

    _change(local_servers.pause, server, "paused", as_json)


@app.command("resume")
def resume(server: ServerName, as_json: AsJson = False, _debug: Debug = False) -> None:
    """Resume a paused server."""
    from instep.local import local_servers

    _change(local_servers.resume, server, "running", as_json)


def _change(change: Callable[[str], LocalServer], name: str, state: str, as_json: bool) -> None:
    server = change(name)
    output.say(f"{server.name} is {state}")
    if as_json:
        output.print_servers([server], as_json)


def _ports(texts: Iterable[str]) -> dict[str, int]:
    ports = {}
    for text in texts:
        name, _, port = text.partition("=")
        if not port.isdigit():
            raise errors.SettingsError(
                f"--port {text} is not NAME=PORT", "write e.g. --port kafka=9092"
            )
        ports[name] = int(port)
    return ports
