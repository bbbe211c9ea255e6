"""`instep bench publish`: measure the publisher."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("publish")
def measure_publish(
    context: typer.Context,
    events: Annotated[int | None, bench_options.events(300_000)] = None,
    size: Annotated[
        int | None,
        bench_options.size(200),
    ] = None,
    documents: Annotated[int | None, bench_options.documents(10_000)] = None,
    partitions: bench_options.Partitions = None,
    rounds: bench_options.Rounds = None,
    bootstrap: bench_options.Bootstrap = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how fast the publisher sends, beside a bare loop."""
    from instep_bench import publish

    given = bench_options.without_omitted(
        events=events,
        size=size,
        documents=documents,
        partitions=partitions,
        rounds=rounds,
        bootstrap=bootstrap,
    )
    measuring.measure(
        publish.run, publish.PublishOptions(**given), context, as_json=as_json, html=html
    )
