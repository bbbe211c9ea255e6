"""`instep bench archive`: measure an archive."""

from __future__ import annotations

from typing import Annotated

import typer

from instep import extras
from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("archive")
def measure_archive(
    context: typer.Context,
    events: Annotated[int | None, bench_options.events(2_000_000)] = None,
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
    """Measure an archive beside Spark's own file sink: events per second, and size."""
    extras.require_spark()
    from instep_bench import archive

    given = bench_options.without_omitted(
        events=events,
        documents=documents,
        size=size,
        partitions=partitions,
        rounds=rounds,
        bootstrap=bootstrap,
        seed=seed,
    )
    measuring.measure(
        archive.run, archive.ArchiveOptions(**given), context, as_json=as_json, html=html
    )
