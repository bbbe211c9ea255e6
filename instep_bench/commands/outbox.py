"""`instep bench outbox`: measure from an outbox to the target."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("outbox")
def measure_outbox(
    context: typer.Context,
    source: Annotated[str | None, bench_options.target("postgres")] = None,
    target: Annotated[str | None, bench_options.target("postgres")] = None,
    rate: Annotated[
        int | None,
        bench_options.rate(1_000),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Duration of each measurement. Default: 60.")
    ] = None,
    warm_up: Annotated[float | None, bench_options.warm_up(10)] = None,
    hold: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long a snapshot is held; 0 leaves this part out. Default: 600.",
        ),
    ] = None,
    backlog: Annotated[
        int | None,
        typer.Option(min=1, metavar="ROWS", help="Size of the backlog. Default: 200000."),
    ] = None,
    rounds: bench_options.Rounds = None,
    documents: Annotated[int | None, bench_options.documents(100_000)] = None,
    partitions: bench_options.Partitions = None,
    bootstrap: bench_options.Bootstrap = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure from the commit in an outbox's database to the commit in the target."""
    from instep_bench import outbox

    given = bench_options.without_omitted(
        source=source,
        target=target,
        rate=rate,
        seconds=seconds,
        warm_up_s=warm_up,
        hold_s=hold,
        backlog=backlog,
        rounds=rounds,
        documents=documents,
        partitions=partitions,
        bootstrap=bootstrap,
    )
    measuring.measure(
        outbox.run, outbox.OutboxOptions(**given), context, as_json=as_json, html=html
    )
