"""`instep bench relay`: measure a relay."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("relay")
def measure_relay(
    context: typer.Context,
    source: Annotated[
        list[str] | None, bench_options.target("postgres,mariadb,sqlite", ". Can be repeated")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows waiting in the outbox. Default: 300000.")
    ] = None,
    size: Annotated[
        int | None,
        bench_options.size(200),
    ] = None,
    rate: Annotated[int | None, bench_options.rate(1_000)] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Duration of the steady load. Default: 20.")
    ] = None,
    documents: Annotated[int | None, bench_options.documents(10_000)] = None,
    partitions: bench_options.Partitions = None,
    rounds: bench_options.Rounds = None,
    bootstrap: bench_options.Bootstrap = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure a relay: how fast it publishes a backlog, and how late a steady load is."""
    from instep_bench import relay

    given = bench_options.without_omitted(
        sources=tuple(source) if source else None,
        rows=rows,
        size=size,
        rate=rate,
        seconds=seconds,
        documents=documents,
        partitions=partitions,
        rounds=rounds,
        bootstrap=bootstrap,
    )
    measuring.measure(relay.run, relay.RelayOptions(**given), context, as_json=as_json, html=html)
