"""`instep sink`: list, adopt and forget the sinks of Spark streams in a database."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from instep import errors, settings
from instep.cli import help as help_pages
from instep.cli import output
from instep.cli.options import AsJson, Debug, Execute, RequiredSinkUrl

if TYPE_CHECKING:
    from instep.sinks.batches import StoredSink

app = help_pages.command_group(
    "sink", "List the sinks of Spark streams, let a new query continue one, or forget one."
)


@app.command("list")
def list_command(url: RequiredSinkUrl, as_json: AsJson = False, _debug: Debug = False) -> None:
    """List the sinks of a database, with the last batch of each."""
    from instep.sinks import batches

    found = batches.stored_sinks(settings.expanded(url, "--url", os.environ))
    if as_json:
        output.print_json({"sinks": found})
        return
    rows = [
        (
            name,
            "any" if sink.is_adopted else sink.query_id or "",
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
    _debug: Debug = False,
) -> None:
    """Let a sink accept the next batch of any query, after a named stop.

    The sink forgets which batches it has applied. A sink that this database does not have is
    added, for a query that continues here. End the query first, and start it afterwards.
    """
    from instep.sinks import batches

    where = settings.expanded(url, "--url", os.environ)
    found = batches.stored_sinks(where)
    stored = found.get(name)
    if stored is not None and stored.is_adopted:
        if as_json:
            output.print_json({"sink": name, "stored": stored, "executed": False})
        output.say(f"{name} accepts the next batch of any query already: nothing to do")
        return
    if execute:
        batches.adopt(where, name)
    if as_json:
        output.print_json({"sink": name, "stored": stored, "executed": execute})
    else:
        typer.echo(f"{name} {_so_far(stored)}; it will accept the next batch of any query")
    if stored is None and found:
        output.say(f"the sinks of this database are: {', '.join(sorted(found))}")
    if execute:
        output.say("done; start the query again")
    else:
        output.say_dry_run()


@app.command()
def forget(
    name: Annotated[str, typer.Argument(help="The sink, as `instep sink list` shows it.")],
    url: RequiredSinkUrl,
    execute: Execute = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Remove everything that instep keeps about a sink whose query is gone.

    That is also its quarantine. The rows that the sink has written stay. End the query first: its
    next batch would stop with BATCHES_MISSING.
    """
    from instep.sinks import batches

    where = settings.expanded(url, "--url", os.environ)
    found = batches.stored_sinks(where)
    if name not in found:
        raise errors.SettingsError(
            f"the database has no sink {name!r}{settings.nearest(name, found)}",
            "see its sinks: instep sink list --url URL",
        )
    removed = batches.forget(where, name, execute=execute)
    if as_json:
        output.print_json({"sink": name, "removed": removed, "executed": execute})
    else:
        typer.echo(f"{name} {_so_far(found[name])}")
        typer.echo(output.table(("TABLE", "ROWS"), list(removed.items())))
    if execute:
        output.say(f"done; the sink {name} is forgotten")
    else:
        output.say_dry_run()


def _so_far(stored: StoredSink | None) -> str:
    """Return what a sink has applied, as a plan says it."""
    if stored is None or stored.query_id is None:
        return "has applied no batch in this database"
    return f"has applied batch {stored.batch_id} of query {stored.query_id}"
