"""Commands that put right what a pipeline cannot put right by itself. Each shows its plan, and does it with --execute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from instep import errors, settings
from instep.cli import completing, shared
from instep.cli.shared import GIVEN, AsJson, Config, Debug, Execute, Named

app = typer.Typer()

Why = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; kept in instep_decisions.")]


@app.command()
def rewind(
    pipeline: Annotated[
        str, typer.Argument(help="The pipeline to move.", autocompletion=completing.pipelines)
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="PLACE", help="start, end, 1234, +5, -10, @2026-11-01T08:00 (UTC) or @-1h."
        ),
    ],
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this partition; may be given again.")
    ] = None,
    accept_new_topic: Annotated[
        bool,
        typer.Option(
            "--accept-new-topic", help="Follow a topic that was made again under the same name."
        ),
    ] = False,
    why: Why = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Move a pipeline to another place in the log, for example after a named stop. A running pipeline follows."""
    from instep.kafka import places
    from instep.operate import rewind as moving

    place = places.parse_place(to)
    declared = settings.load(GIVEN.config)
    target = settings.pipeline(declared, pipeline)
    with shared.cluster(declared) as cluster:
        prepared = moving.prepare(
            cluster, pipeline, target, place, partition or (), accept_new_topic=accept_new_topic
        )
    plan = prepared.plan
    if not as_json:
        typer.echo(
            shared.table(("PIPELINE", "TOPIC", "PARTITION", "CURRENT", "NEW", "DELTA"), _rows(plan))
        )
        for words in plan.words:
            typer.echo(words)
    if execute:
        moving.execute(pipeline, target, prepared, who=shared.who(), why=why)
    if as_json:
        shared.print_json({"plan": plan, "needs_why": plan.needs_why, "executed": execute})
    if execute:
        shared.say(
            f"done; a running pipeline goes on from there within seconds, another when started: instep run {pipeline}"
        )
    else:
        shared.say(
            f"nothing was changed; with {'--why TEXT ' if plan.needs_why and not why else ''}--execute it is"
        )


@app.command()
def replay(
    document: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this document; may be given again.")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="Where to begin; left out: the log's start."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Where to end; left out: the ledger.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this partition; may be given again.")
    ] = None,
    pipeline: Named = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Apply a range of the log again, under the guard, to repair a damaged table. Safe while the pipeline runs."""
    from instep.kafka import places
    from instep.operate import replay as applying

    if not document and from_ is None and to is None:
        raise errors.SettingsError(
            "nothing is chosen",
            "say --document ID, --from PLACE, or --from start for the whole log",
        )
    first = places.parse_place(from_) if from_ is not None else None
    last = places.parse_place(to) if to is not None else None
    declared = settings.load(GIVEN.config)
    with (
        shared.session(declared, shared.named(declared, pipeline)) as session,
        shared.cluster(declared) as cluster,
    ):
        part = applying.stretch(
            session,
            cluster,
            documents=document or (),
            first=first,
            last=last,
            partitions=partition or (),
        )
        shared.say(
            f"reading {part.records:,} offsets of topic {session.sink.target.topic} in {len(part.ranges)} partitions"
        )
        lines = list(applying.replay(session, cluster, part, execute=execute))
    shared.print_lines(lines, execute, as_json, nothing="no row changes")
    if any(line.verdict == applying.REFUSED for line in lines):
        raise typer.Exit(1)


def _rows(plan: Any) -> list[Sequence[Any]]:
    return [
        (
            plan.pipeline,
            plan.topic,
            move.partition,
            "none" if move.current is None else move.current,
            "none"
            if move.new is None
            else f"{move.new} (clamped: {move.asked} asked)"
            if move.asked is not None
            else move.new,
            "" if move.delta is None else f"{move.delta:+d}",
        )
        for move in plan.moves
    ]
