"""`instep bench kpi`: measure how far KPI rows are behind."""

from __future__ import annotations

from typing import Annotated

import typer

from instep import extras
from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("kpi")
def measure_kpi(
    context: typer.Context,
    target: Annotated[str | None, bench_options.target("postgres")] = None,
    rate: Annotated[int | None, bench_options.rate(1_000)] = (None),
    minutes: Annotated[
        int | None, typer.Option(min=1, help="Number of minutes that are measured. Default: 5.")
    ] = None,
    documents: Annotated[int | None, bench_options.documents(100_000)] = None,
    partitions: bench_options.Partitions = None,
    bootstrap: bench_options.Bootstrap = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how far the rows of a KPI are behind the end of their minute."""
    extras.require_spark()
    from instep_bench import kpi

    given = bench_options.without_omitted(
        target=target,
        rate=rate,
        minutes=minutes,
        documents=documents,
        partitions=partitions,
        bootstrap=bootstrap,
    )
    measuring.measure(kpi.run, kpi.KpiOptions(**given), context, as_json=as_json, html=html)
