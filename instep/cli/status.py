"""`instep status`: state, lag, last commit and quarantine of every pipeline."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from instep import settings
from instep.cli import options, output, resources, watch
from instep.cli.options import GLOBAL, AsJson, Config, Debug, PipelineNames
from instep.cli.watch import Watch

if TYPE_CHECKING:
    from instep.operate.status import PipelineStatus

PIPELINE_COLUMNS = ("PIPELINE", "LAG", "LAG-SECONDS", "LAST-COMMIT", "DEAD", "PARKED", "STATE")
PARTITION_COLUMNS = (
    "PIPELINE",
    "TOPIC",
    "PARTITION",
    "NEXT-OFFSET",
    "END-OFFSET",
    "LAG",
    "LAG-SECONDS",
    "LAST-COMMIT",
)

app = typer.Typer()


@app.command(cls=watch.WatchCommand)
def status(
    pipelines: PipelineNames = None,
    interval: Watch = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show state, lag, last commit and quarantine of every pipeline. Starts nothing."""
    from instep.operate import status as pipeline_status

    declared = settings.load(GLOBAL.config)
    names = options.select_pipelines(declared, pipelines)
    with resources.running_cluster(declared) as cluster:

        def read() -> list[PipelineStatus]:
            return [
                pipeline_status.read(cluster, name, settings.pipeline(declared, name))
                for name in names
            ]

        if interval is not None:
            watch.repeat(lambda: _block(read(), as_json), interval)  # does not return
        statuses = read()
    if as_json:
        output.print_json({"pipelines": statuses})
    else:
        if tables := _tables(statuses):
            typer.echo(tables)
        for line in _notes(statuses):
            output.say(line)
    if any(one.error for one in statuses):
        raise typer.Exit(1)


def _block(statuses: Sequence[PipelineStatus], as_json: bool) -> str:
    """Return one block of `--watch`, errors included."""
    if as_json:
        return output.as_json({"pipelines": statuses})
    return "\n".join(filter(None, [_tables(statuses), *_notes(statuses)]))


def _tables(statuses: Sequence[PipelineStatus]) -> str:
    """Return a row per pipeline, then a row per partition. Leave out pipelines with an error."""
    readable = [one for one in statuses if one.run is not None]
    tables = []
    if readable:
        tables.append(output.table(PIPELINE_COLUMNS, [_pipeline_row(one) for one in readable]))
    rows: list[Sequence[Any]] = [
        (
            one.pipeline,
            one.topic,
            part.partition,
            part.next_offset,
            part.end_offset,
            part.lag_records,
            part.lag_seconds,
            part.committed_at,
        )
        for one in readable
        for part in one.partitions
    ]
    if rows:
        tables.append(output.table(PARTITION_COLUMNS, rows))
    return "\n\n".join(tables)


def _pipeline_row(one: PipelineStatus) -> Sequence[Any]:
    return (
        one.pipeline,
        one.lag_records,
        one.lag_seconds,
        one.committed_at,
        one.dead_letters,
        one.parked_documents,
        one.run.description if one.run else None,
    )


def _notes(statuses: Sequence[PipelineStatus]) -> list[str]:
    """Return what holds pipelines back, then the errors of those that could not be read."""
    notes = [f"{one.pipeline}: {note}" for one in statuses for note in one.notes]
    failures = [f"{one.pipeline}: {one.error}" for one in statuses if one.error]
    return notes + [output.error_line(failure, sys.stdout) for failure in failures]
