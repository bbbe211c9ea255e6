"""`instep replay`: apply a range of the log again, under the guard."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from instep import errors, settings, terminal
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Execute, Partitions, PipelineName

if TYPE_CHECKING:
    from instep.pipeline.apply.maintenance import Change

app = typer.Typer()


@app.command()
def replay(
    document: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Only this document. Can be repeated."),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PLACE", help="Where to start. Default: the start of the log."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Where to end. Default: the ledger's position."),
    ] = None,
    partition: Partitions = None,
    pipeline: PipelineName = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Apply a range of the log again, under the guard, to repair a damaged table.

    This is safe while the pipeline runs. For dead letters, use `instep dead replay`.
    """
    from instep.kafka import places
    from instep.operate import log_replay

    if not document and from_ is None and to is None:
        raise errors.SettingsError(
            "no range and no document is selected",
            "give --document ID, --from PLACE, or --from start for the whole log",
        )
    first = places.parse_place(from_) if from_ is not None else None
    last = places.parse_place(to) if to is not None else None
    declared = settings.load(GLOBAL.config)
    changes: list[Change] = []
    with (
        resources.maintenance_session(
            declared, options.select_pipeline(declared, pipeline)
        ) as session,
        resources.cluster(declared) as cluster,
        terminal.ProgressLine(sys.stderr) as line,
    ):
        selected = log_replay.resolve_range(
            session,
            cluster,
            documents=document or (),
            first=first,
            last=last,
            partitions=options.parse_partitions(partition),
        )
        output.say(
            f"reading {selected.records:,} offsets of topic {session.sink.target.topic}"
            f" in {len(selected.ranges)} partitions"
        )
        records = itertools.count(1)

        def progress() -> None:
            line.update("replaying", next(records), selected.records, "records")

        # `replay` is a generator: consume it while session and cluster are open.
        changes += log_replay.replay(session, cluster, selected, execute=execute, progress=progress)
    output.print_changes(changes, execute, as_json, nothing="no row changes")
    if any(change.verdict == log_replay.REFUSED for change in changes):
        raise typer.Exit(1)
