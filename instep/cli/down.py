"""`instep down`: stop the local servers, and with --purge remove their data."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli import output
from instep.cli.options import AsJson, Debug, Execute

app = typer.Typer()


@app.command()
def down(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove their data. Needs --execute.")
    ] = False,
    execute: Execute = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Stop the servers that `instep up` started."""
    from instep.local import local_servers, registry

    # Without --purge no data is lost, so stopping needs no --execute.
    if purge and not execute:
        servers, folders = registry.known(), local_servers.data_folders()
        output.print_servers(servers, as_json)
        for folder in folders:
            output.say(f"would remove {folder}")
        if servers or folders:
            output.say_dry_run()
        else:
            output.say("no local server is running and there is no data to remove")
        return
    stopped = local_servers.down(purge=purge)
    output.say(f"{len(stopped)} stopped" if stopped else "no local server was running")
    output.print_servers(stopped, as_json)
