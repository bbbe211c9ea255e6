"""`instep bench sharing`: measure pipelines beside one that catches up."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("sharing")
def measure_sharing(
    context: typer.Context,
    target: Annotated[str | None, bench_options.target("postgres")] = None,
    backlog: Annotated[
        int | None,
        typer.Option(
            metavar="EVENTS",
            min=1,
            help="Size of the backlog. Default: 10000000.",
        ),
    ] = None,
    others: Annotated[
        int | None,
        typer.Option(min=1, help="Number of pipelines beside it, each at --rate. Default: 3."),
    ] = None,
    rate: Annotated[
        int | None,
        bench_options.rate(100),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Duration of their load without the one that catches up. Default: 30."),
    ] = None,
    warm_up: Annotated[
        float | None,
        bench_options.warm_up(10),
    ] = None,
    documents: Annotated[int | None, bench_options.documents(100_000)] = None,
    partitions: bench_options.Partitions = None,
    history: bench_options.History = None,
    engine: bench_options.Engine = None,
    bootstrap: bench_options.Bootstrap = None,
    seed: bench_options.Seed = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how fresh pipelines stay while another one of the same run catches up."""
    from instep_bench import sharing

    given = bench_options.without_omitted(
        target=target,
        backlog=backlog,
        others=others,
        rate=rate,
        seconds=seconds,
        warm_up_s=warm_up,
        documents=documents,
        partitions=partitions,
        history=history,
        engine=engine,
        bootstrap=bootstrap,
        seed=seed,
    )
    measuring.measure(
        sharing.run, sharing.SharingOptions(**given), context, as_json=as_json, html=html
    )
