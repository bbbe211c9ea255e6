"""`instep bench apply`: measure how fast a backlog is applied."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("apply")
def measure_apply(
    context: typer.Context,
    target: Annotated[
        list[str] | None, bench_options.target("postgres,mariadb,sqlite", ". Can be repeated")
    ] = None,
    events: Annotated[int | None, bench_options.events(300_000)] = None,
    documents: Annotated[int | None, bench_options.documents(100_000)] = None,
    partitions: bench_options.Partitions = None,
    size: Annotated[
        int | None,
        bench_options.size(150),
    ] = None,
    history: Annotated[
        str | None, bench_options.comma_list("Keep every event in instep_history. Default: no,yes.")
    ] = None,
    lines: Annotated[
        str | None,
        bench_options.comma_list(
            "Write a line for each event to a second table as well: no, yes or both. Default: no."
        ),
    ] = None,
    transform: Annotated[
        str | None,
        bench_options.comma_list("Transform records with SQL: no, yes or both. Default: no."),
    ] = None,
    engine: Annotated[
        str | None,
        bench_options.comma_list("Engine of the pipeline. Default: resident,micro-batch."),
    ] = None,
    stale: bench_options.Share = None,
    repeated: bench_options.Share = None,
    bad: bench_options.Share = None,
    rounds: bench_options.Rounds = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="EVENTS",
            min=1,
            help="Batch size of instep, the loop and Spark's JDBC writer."
            " Default: 400000, 20000 and 100000.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        bench_options.comma_list(
            "Baselines to compare with, or none. Default: loop,spark-jdbc,connect."
        ),
    ] = None,
    bootstrap: bench_options.Bootstrap = None,
    seed: bench_options.Seed = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how fast a backlog is applied to each target, beside other programs."""
    from instep_bench import apply

    given = bench_options.without_omitted(
        targets=tuple(target) if target else None,
        events=events,
        documents=documents,
        partitions=partitions,
        size=size,
        history=bench_options.booleans("--history", history),
        lines=bench_options.booleans("--lines", lines),
        transform=bench_options.booleans("--transform", transform),
        engines=bench_options.engines(engine),
        stale=stale,
        repeated=repeated,
        bad=bad,
        rounds=rounds,
        batch=batch,
        against=bench_options.names(against),
        bootstrap=bootstrap,
        seed=seed,
    )
    measuring.measure(apply.run, apply.ApplyOptions(**given), context, as_json=as_json, html=html)
