"""`instep stream`: decide where a stream continues."""

from __future__ import annotations

from typing import Annotated

import typer

from instep import settings
from instep.cli import completion, options, output, resources
from instep.cli import help as help_pages
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Execute, Partitions

app = help_pages.command_group("stream", "Decide where a stream continues.")


@app.command()
def reset(
    stream: Annotated[
        str, typer.Argument(help="The stream to reset.", autocompletion=completion.streams)
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help=f"{options.PLACES}; or current: continue where the stream is, and accept the"
            " output topic as it is now.",
        ),
    ],
    partition: Partitions = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Decide where a stream continues, e.g. after a named stop. A run of it ends."""
    from instep.streams import reset as resetting

    declared = settings.load(GLOBAL.config)
    chosen = settings.stream(declared, stream)
    with resources.cluster(declared) as cluster:
        planned = resetting.plan(cluster, stream, chosen, to, options.parse_partitions(partition))
        if not as_json:
            rows = [
                (one.partition, "none" if one.now is None else one.now, one.then)
                for one in planned.partitions
            ]
            typer.echo(output.table(("PARTITION", "NOW", "THEN"), rows))
            output.say(
                f"{stream}: records of {chosen.source!r} from THEN on are published to"
                f" {chosen.target!r}, also those that were published before"
            )
        if execute:
            resetting.execute(cluster, stream, chosen, planned)
    if as_json:
        output.print_json({"plan": planned, "executed": execute})
    if execute:
        output.say(f"done; start it: instep run {stream}")
    else:
        output.say_dry_run()
