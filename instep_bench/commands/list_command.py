"""`instep bench list`: list the stored results."""

from __future__ import annotations

import typer

from instep import errors
from instep.cli import output
from instep.cli.options import AsJson, Debug
from instep.document.showing import counted
from instep_bench.commands import stored

COMMAND_SHOWN = 100

app = typer.Typer()


@app.command("list")
def list_results(as_json: AsJson = False, _debug: Debug = False) -> None:
    """List the stored results, oldest first."""
    from instep_bench import store

    kept, found = store.folder(), []
    for file in store.results(kept):
        try:
            found.append(stored.head(file.stem, store.read(file)))
        except errors.SettingsError as error:
            output.say(f"instep: {error.what}")
    if as_json:
        output.print_json({"folder": str(kept), "results": found})
        return
    if found:
        head = ("RESULT", "BENCH", "BEGUN", "SECONDS", "FIGURES", "COMMAND")
        rows = [
            [
                *(one[key.lower()] for key in head[:-1]),
                output.shortened(one["command"], COMMAND_SHOWN),
            ]
            for one in found
        ]
        typer.echo(output.table(head, rows))
    output.say(f"{counted(len(found), 'result')} in {kept}")
