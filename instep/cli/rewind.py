"""`instep rewind`: move a pipeline to another place in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import settings
from instep.cli import completion, options, output, resources
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Execute, Partitions, Why

if TYPE_CHECKING:
    from instep.operate.rewind import LedgerMove

app = typer.Typer()


@app.command()
def rewind(
    pipeline: Annotated[
        str, typer.Argument(help="The pipeline to move.", autocompletion=completion.pipelines)
    ],
    to: Annotated[str, typer.Option(metavar="PLACE", help=f"{options.PLACES}.")],
    partition: Partitions = None,
    accept_new_topic: Annotated[
        bool,
        typer.Option(
            "--accept-new-topic",
            help="Continue with a topic that was deleted and created again under the same name.",
        ),
    ] = False,
    why: Why = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Move a pipeline to another place in the log, for example after a named stop.

    A running pipeline continues from there.
    """
    from instep.kafka import places
    from instep.operate import rewind as rewinding

    place = places.parse_place(to)
    declared = settings.load(GLOBAL.config)
    target = settings.pipeline(declared, pipeline)
    with resources.cluster(declared) as cluster:
        prepared = rewinding.prepare(
            cluster,
            pipeline,
            target,
            place,
            options.parse_partitions(partition),
            accept_new_topic=accept_new_topic,
        )
    # Print the plan before it is executed, so that it can be read even if that fails.
    plan = prepared.plan
    if not as_json:
        head = ("PIPELINE", "TOPIC", "PARTITION", "CURRENT", "NEW", "DELTA")
        rows = [(plan.pipeline, plan.topic, *_move(move)) for move in plan.moves]
        typer.echo(output.table(head, rows))
        for line in plan.notes:
            typer.echo(line)
    if execute:
        rewinding.execute(pipeline, target, prepared, actor=resources.current_user(), reason=why)
    if as_json:
        output.print_json({"plan": plan, "needs_why": plan.needs_reason, "executed": execute})
    if execute:
        output.say(
            "done; a running pipeline continues from there within seconds,"
            f" otherwise start it: instep run {pipeline}"
        )
        return
    if plan.needs_reason and not why:
        output.say("--execute also needs --why TEXT, because records will be skipped")
    output.say_dry_run()


def _move(move: LedgerMove) -> Sequence[Any]:
    new = "none" if move.new is None else str(move.new)
    if move.new is not None and move.clamped_from is not None:
        new = f"{move.new} (requested: {move.clamped_from})"
    return (
        move.partition,
        "none" if move.current is None else move.current,
        new,
        "" if move.delta is None else f"{move.delta:+d}",
    )
