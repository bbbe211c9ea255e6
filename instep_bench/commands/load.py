"""`instep bench load`: measure `instep load`."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("load")
def measure_load(
    context: typer.Context,
    target: Annotated[str | None, bench_options.target("postgres")] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Existing documents to load. Default: 1000000.")
    ] = None,
    rate: Annotated[int | None, bench_options.rate(1_000)] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Duration of the live events before and after the load. Default: 30."),
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
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure `instep load`, and how fresh live events stay beside it."""
    from instep_bench import bulk_load

    given = bench_options.without_omitted(
        target=target,
        rows=rows,
        rate=rate,
        seconds=seconds,
        warm_up_s=warm_up,
        documents=documents,
        partitions=partitions,
        history=history,
        engine=engine,
        bootstrap=bootstrap,
    )
    options = bulk_load.BulkLoadOptions(**given)
    measuring.measure(bulk_load.run, options, context, as_json=as_json, html=html)
