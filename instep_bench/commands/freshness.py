"""`instep bench freshness`: measure the age of events at commit."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("freshness")
def measure_freshness(
    context: typer.Context,
    target: Annotated[str | None, bench_options.target("postgres")] = None,
    rates: Annotated[
        str | None,
        bench_options.comma_list("Rates to measure, in events/s. Default: 10,100,1000,5000."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Duration of each rate. Default: 60.")
    ] = None,
    warm_up: Annotated[
        float | None,
        bench_options.warm_up(20),
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Pause before one more event; 0 for none. Default: 300.",
        ),
    ] = None,
    faults: Annotated[
        bool | None,
        typer.Option(
            "--faults/--no-faults",
            help="Also measure a kill -9, a restart and a kill of the broker. Default: yes.",
        ),
    ] = None,
    documents: Annotated[int | None, bench_options.documents(10_000)] = None,
    partitions: bench_options.Partitions = None,
    history: bench_options.History = None,
    engine: bench_options.Engine = None,
    bootstrap: bench_options.Bootstrap = None,
    seed: bench_options.Seed = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure the age of events at commit: at even rates, after a pause, and with faults."""
    from instep_bench import freshness

    given = bench_options.without_omitted(
        target=target,
        rates=bench_options.numbers("--rates", rates, int),
        seconds=seconds,
        warm_up_s=warm_up,
        idle_s=idle,
        faults=faults,
        documents=documents,
        partitions=partitions,
        history=history,
        engine=engine,
        bootstrap=bootstrap,
        seed=seed,
    )
    measuring.measure(
        freshness.run, freshness.FreshnessOptions(**given), context, as_json=as_json, html=html
    )
