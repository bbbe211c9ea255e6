"""`instep sink`: see and adopt the sinks of Spark streams in a database."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from instep import errors, settings
from instep.cli import help as help_pages
from instep.cli import output
from instep.cli.options import AsJson, Config, Debug, Execute, RequiredSinkUrl

app = help_pages.command_group("sink", "See and adopt the sinks of Spark streams.")


@app.command("list")
def list_command(url: RequiredSinkUrl, as_json: AsJson = False, _debug: Debug = False) -> None:
    """List the sinks of a database, with the last batch of each."""
    from instep.sinks import batches

    found = batches.stored_sinks(settings.expanded(url, "--url", os.environ))
    if as_json:
        output.print_json(found)
        return
    rows = [
        (
            name,
            "any" if sink.query_id is None else sink.query_id,
            "" if sink.batch_id is None else sink.batch_id,
            sink.epoch,
            sink.next_row,
            sink.committed_at or "",
        )
        for name, sink in found.items()
    ]
    typer.echo(output.table(("SINK", "QUERY", "BATCH", "EPOCH", "ROWS", "COMMITTED"), rows))


@app.command()
def adopt(
    name: Annotated[str, typer.Argument(help="The sink, as `instep sink list` shows it.")],
    url: RequiredSinkUrl,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Let a sink accept the next batch of any query, after a named stop.

    The sink forgets which batches it has applied. End the query first, and start it afterwards.
    """
    from instep.sinks import batches

    where = settings.expanded(url, "--url", os.environ)
    found = batches.stored_sinks(where)
    if name not in found:
        raise errors.SettingsError(
            f"the database has no sink {name!r}{settings.nearest(name, found)}",
            "see its sinks: instep sink list --url URL",
        )
    if execute:
        batches.adopt(where, name)
    if as_json:
        output.print_json({"sink": name, "stored": found[name], "executed": execute})
    else:
        sink = found[name]
        typer.echo(
            f"{name} has applied batch {sink.batch_id} of query {sink.query_id};"
            " it accepts the next batch of any query"
        )
    if execute:
        output.say("done; start the query again")
    else:
        output.say_dry_run()
