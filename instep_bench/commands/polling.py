"""`instep bench polling`: compare polling with events."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("polling")
def measure_polling(
    context: typer.Context,
    documents: Annotated[int | None, bench_options.documents(9_000)] = None,
    call: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Duration of a call. Default: 0.3.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Calls in the sample of one connection. Default: 60.")
    ] = None,
    connections: Annotated[
        str | None,
        bench_options.comma_list("Numbers of parallel connections to measure. Default: 1,10,50."),
    ] = None,
    rounds: bench_options.Rounds = None,
    target: Annotated[str | None, bench_options.target("sqlite")] = None,
    bootstrap: bench_options.Bootstrap = None,
    seed: bench_options.Seed = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Compare polling every document with events: seconds per round, age of a status."""
    from instep_bench import polling

    given = bench_options.without_omitted(
        documents=documents,
        call_s=call,
        sample=sample,
        connections=bench_options.numbers("--connections", connections, int),
        rounds=rounds,
        target=target,
        bootstrap=bootstrap,
        seed=seed,
    )
    measuring.measure(
        polling.run, polling.PollingOptions(**given), context, as_json=as_json, html=html
    )
