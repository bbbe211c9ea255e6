"""`instep bench sink`: measure the Spark sink."""

from __future__ import annotations

from typing import Annotated

import typer

from instep import extras
from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("sink")
def measure_sink(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="sqlite, postgres or mariadb (started for you). Default: postgres.",
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of the large batches. Default: 400000.")
    ] = None,
    batches: Annotated[
        int | None, typer.Option(min=1, help="Number of large batches. Default: 4.")
    ] = None,
    small_batches: Annotated[
        int | None, typer.Option(min=1, help="Number of small batches. Default: 20.")
    ] = None,
    documents: Annotated[int | None, bench_options.documents(100_000)] = None,
    rounds: bench_options.Rounds = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure the Spark sink: throughput and cost per micro-batch."""
    extras.require_spark()
    from instep_bench import sink

    given = bench_options.without_omitted(
        target=target,
        rows=rows,
        batches=batches,
        small_batches=small_batches,
        documents=documents,
        rounds=rounds,
    )
    measuring.measure(sink.run, sink.SinkOptions(**given), context, as_json=as_json, html=html)
