"""`instep history`: keep the history of events small."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from instep import settings, terminal
from instep.cli import help as help_pages
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Execute, PipelineNames

app = help_pages.command_group("history", "Prune the history of events.")


@app.command("prune")
def prune(
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE|TIME", help="Remove rows committed earlier than this: 90d, 12h or a time."
        ),
    ],
    pipelines: PipelineNames = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Remove old rows of instep_history, in chunks, while the pipeline runs.

    The target tables are not touched.
    """
    from instep.operate import history

    declared = settings.load(GLOBAL.config)
    # For an option that means an age, 90d reads better than -90d; both work.
    age = older_than.removeprefix("@").removeprefix("-")
    is_age = age[-1:] in "smhd" and age[:-1].isdigit()
    before = options.parse_time(f"-{age}" if is_age else older_than)
    assert before is not None
    counts: dict[str, int] = {}
    verb = "removed" if execute else "would be removed"
    for name in options.select_pipelines(declared, pipelines):
        with (
            resources.maintenance_session(declared, name) as session,
            terminal.ProgressLine(sys.stderr) as line,
        ):
            counts[name] = history.prune(
                session,
                before,
                execute=execute,
                progress=lambda rows, name=name: line.update(
                    f"{name}: pruning", rows, None, "rows"
                ),  # type: ignore[misc]
            )
        if not as_json:
            typer.echo(
                f"{name}: {counts[name]} rows {verb}, committed before {output.cell(before)}"
            )
    if as_json:
        pruned = [{"pipeline": name, "rows": rows} for name, rows in counts.items()]
        output.print_json({"executed": execute, "before": before, "pipelines": pruned})
    if not execute and any(counts.values()):
        output.say_dry_run()
