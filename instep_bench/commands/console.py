"""`instep bench console`: measure the web console."""

from __future__ import annotations

from typing import Annotated

import typer

from instep import extras
from instep.cli.options import AsJson, Debug
from instep_bench.commands import bench_options, measuring

app = typer.Typer()


@app.command("console")
def measure_console(
    context: typer.Context,
    target: Annotated[str | None, bench_options.target("postgres")] = None,
    history: Annotated[
        int | None, typer.Option(min=1, help="Rows of history. Default: 10000000.")
    ] = None,
    dead_letters: Annotated[
        int | None, typer.Option(min=1, help="Number of dead letters. Default: 100000.")
    ] = None,
    parked: Annotated[
        int | None, typer.Option(min=1, help="Number of parked documents. Default: 1000.")
    ] = None,
    decisions: Annotated[
        int | None, typer.Option(min=1, help="Number of decisions. Default: 100000.")
    ] = None,
    topics: Annotated[
        int | None, typer.Option(min=0, help="Number of topics. Default: 10000.")
    ] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, help="Number of consumer groups. Default: 200.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests of each page. Default: 50.")
    ] = None,
    tabs: Annotated[
        int | None, typer.Option(min=0, help="Tabs that stay open. Default: 50.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="How long the tabs are measured. Default: 30.")
    ] = None,
    browser: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="A headless Chromium, to measure from click to paint (needs playwright);"
            " `cached`: the one that the tests have unpacked.",
        ),
    ] = None,
    costs: Annotated[
        bool,
        typer.Option(
            "--costs",
            help="Also measure how soon overdue documents are found, and what that and the"
            " console's indexes cost.",
        ),
    ] = False,
    bootstrap: bench_options.Bootstrap = None,
    html: bench_options.Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how quickly the web console answers when there is much to show."""
    extras.require_console()
    from instep_bench import console

    given = bench_options.without_omitted(
        target=target,
        history=history,
        dead_letters=dead_letters,
        parked=parked,
        decisions=decisions,
        topics=topics,
        groups=groups,
        requests=requests,
        tabs=tabs,
        seconds=seconds,
        browser=browser,
        costs=costs or None,
        bootstrap=bootstrap,
    )
    options = console.ConsoleBenchOptions(**given)
    measuring.measure(console.run, options, context, as_json=as_json, html=html)
