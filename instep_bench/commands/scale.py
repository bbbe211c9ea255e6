"""`instep bench scale`: measure the cost per event as one thing grows."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("scale")
def measure_scale(
    context: typer.Context,
    target: Annotated[str | None, bench_options.target("postgres")] = None,
    documents: Annotated[
        str | None,
        bench_options.comma_list(
            "Number of documents. Default: 10000,1000000,10000000. Can be none."
        ),
    ] = None,
    events: Annotated[
        str | None,
        bench_options.comma_list(
            "Number of events. Default: 100000,1000000,10000000. Can be none."
        ),
    ] = None,
    partitions: Annotated[
        str | None,
        bench_options.comma_list("Number of partitions. Default: 1,4,12,48. Can be none."),
    ] = None,
    delays: Annotated[
        str | None,
        bench_options.comma_list("One-way delay to the target in ms, or none. Default: 0,1,5,20."),
    ] = None,
    masters: Annotated[
        str | None,
        bench_options.comma_list("Spark masters, or none. Default: local[1],local[2],cluster."),
    ] = None,
    rounds: bench_options.Rounds = None,
    base_events: Annotated[
        int | None,
        typer.Option(min=1, help="Events when their number is not varied. Default: 100000."),
    ] = None,
    engine: bench_options.Engine = None,
    bootstrap: bench_options.Bootstrap = None,
    seed: bench_options.Seed = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure the cost per event as one thing grows: rows, events, partitions, cores."""
    from instep_bench import scale

    given = bench_options.without_omitted(
        target=target,
        documents=bench_options.numbers("--documents", documents, int),
        events=bench_options.numbers("--events", events, int),
        partitions=bench_options.numbers("--partitions", partitions, int),
        delays_ms=bench_options.numbers("--delays", delays, float),
        masters=bench_options.names(masters),
        rounds=rounds,
        base_events=base_events,
        engine=engine,
        bootstrap=bootstrap,
        seed=seed,
    )
    measuring.measure(scale.run, scale.ScaleOptions(**given), context, as_json=as_json, html=html)
