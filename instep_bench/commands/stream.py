"""`instep bench stream`: measure streams, and both stages together."""

from __future__ import annotations

from typing import Annotated

import typer

from instep import extras
from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("stream")
def measure_stream(
    context: typer.Context,
    target: Annotated[str | None, bench_options.target("postgres")] = None,
    events: Annotated[int | None, bench_options.events(500_000)] = None,
    documents: Annotated[int | None, bench_options.documents(100_000)] = None,
    size: Annotated[
        int | None,
        bench_options.size(150),
    ] = None,
    partitions: bench_options.Partitions = None,
    rounds: bench_options.Rounds = None,
    bootstrap: bench_options.Bootstrap = None,
    seed: bench_options.Seed = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure streams from topic to topic, and through both stages into a table."""
    extras.require_spark()
    from instep_bench import stream

    given = bench_options.without_omitted(
        target=target,
        events=events,
        documents=documents,
        size=size,
        partitions=partitions,
        rounds=rounds,
        bootstrap=bootstrap,
        seed=seed,
    )
    measuring.measure(
        stream.run, stream.StreamOptions(**given), context, as_json=as_json, html=html
    )
