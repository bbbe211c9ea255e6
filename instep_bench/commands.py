"""The `instep bench` commands: run benchmarks, and list, compare and show their results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import msgspec
import typer

from instep import errors, extras, settings, terminal
from instep.cli import completion, output, pages
from instep.cli import help as help_pages
from instep.cli.options import AsJson, Debug
from instep.document.showing import counted

if TYPE_CHECKING:
    from instep_bench.compare import Comparison, FigureComparison, FigureRange
    from instep_bench.result import BenchResult

REPORT_FILE = Path("bench-report.html")
LATEST = "latest"
NONE = "none"
# Options that do not affect the measurement; they are not part of the recorded command.
NOT_REPEATED = ("as_json", "html", "_debug")
COMMAND_SHOWN = 100

Options = TypeVar("Options")
Number = TypeVar("Number", int, float)

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    cls=help_pages.GroupedCommands,
    rich_markup_mode=None,
    help="Measure speed and freshness on this machine and your servers.",
)


def _complete_results(_context: typer.Context, incomplete: str) -> list[str]:
    from instep_bench import store

    return completion.matching(
        incomplete, lambda: [store.LATEST, *(file.stem for file in store.results(store.folder()))]
    )


def _target(default: str, repeatable: str = "") -> Any:
    known = "sqlite, postgres or mariadb (started for you), or the URL of your database"
    return typer.Option(metavar="TARGET", help=f"{known}{repeatable}. Default: {default}.")


def _list(help_: str) -> Any:
    return typer.Option(metavar="LIST", help=help_)


def _documents(default: int) -> Any:
    return typer.Option(min=1, help=f"Number of documents. Default: {default}.")


Bootstrap = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESSES",
        help="Your brokers; a new topic is used. Default: start a local broker.",
    ),
]
Partitions = Annotated[int | None, typer.Option(min=1, help="Number of partitions. Default: 4.")]
Share = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="SHARE", help="Share of such events, 0 to 1. Default: 0."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the random workload. Default: 1.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Number of measurements each. Default: 3.")]
Engine = Annotated[
    settings.EngineName | None, typer.Option(help="Engine of the pipeline. Default: resident.")
]
History = Annotated[
    bool | None,
    typer.Option("--history/--no-history", help="Keep every event in instep_history. Default: no."),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write the result as an HTML page."),
]


@app.command("polling")
def measure_polling(
    context: typer.Context,
    documents: Annotated[int | None, _documents(9_000)] = None,
    call: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Duration of a call. Default: 0.3.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Calls in the sample of one connection. Default: 60.")
    ] = None,
    connections: Annotated[
        str | None, _list("Numbers of parallel connections to measure. Default: 1,10,50.")
    ] = None,
    rounds: Rounds = None,
    target: Annotated[str | None, _target("sqlite")] = None,
    bootstrap: Bootstrap = None,
    seed: Seed = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Compare polling every document with events: seconds per round, age of a status."""
    from instep_bench import polling

    given = _without_omitted(
        documents=documents,
        call_s=call,
        sample=sample,
        connections=_numbers("--connections", connections, int),
        rounds=rounds,
        target=target,
        bootstrap=bootstrap,
        seed=seed,
    )
    _measure(polling.run, polling.PollingOptions(**given), context, as_json=as_json, html=html)


@app.command("publish")
def measure_publish(
    context: typer.Context,
    events: Annotated[
        int | None, typer.Option(min=1, help="Number of events. Default: 300000.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Approximate size of an event's value. Default: 200."),
    ] = None,
    documents: Annotated[int | None, _documents(10_000)] = None,
    partitions: Partitions = None,
    rounds: Rounds = None,
    bootstrap: Bootstrap = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how fast the publisher sends, beside a bare loop."""
    from instep_bench import publish

    given = _without_omitted(
        events=events,
        size=size,
        documents=documents,
        partitions=partitions,
        rounds=rounds,
        bootstrap=bootstrap,
    )
    _measure(publish.run, publish.PublishOptions(**given), context, as_json=as_json, html=html)


@app.command("apply")
def measure_apply(
    context: typer.Context,
    target: Annotated[
        list[str] | None, _target("postgres,mariadb,sqlite", ". Can be repeated")
    ] = None,
    events: Annotated[
        int | None, typer.Option(min=1, help="Number of events. Default: 300000.")
    ] = None,
    documents: Annotated[int | None, _documents(100_000)] = None,
    partitions: Partitions = None,
    size: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Approximate size of an event's value. Default: 150."),
    ] = None,
    history: Annotated[
        str | None, _list("Keep every event in instep_history. Default: no,yes.")
    ] = None,
    lines: Annotated[
        str | None,
        _list(
            "Write a line for each event to a second table as well: no, yes or both. Default: no."
        ),
    ] = None,
    engine: Annotated[
        str | None, _list("Engine of the pipeline. Default: resident,micro-batch.")
    ] = None,
    stale: Share = None,
    repeated: Share = None,
    bad: Share = None,
    rounds: Rounds = None,
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
        str | None, _list("Baselines to compare with, or none. Default: loop,spark-jdbc,connect.")
    ] = None,
    bootstrap: Bootstrap = None,
    seed: Seed = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how fast a backlog is applied to each target, beside other programs."""
    from instep_bench import apply

    given = _without_omitted(
        targets=tuple(target) if target else None,
        events=events,
        documents=documents,
        partitions=partitions,
        size=size,
        history=_booleans("--history", history),
        lines=_booleans("--lines", lines),
        engines=_engines(engine),
        stale=stale,
        repeated=repeated,
        bad=bad,
        rounds=rounds,
        batch=batch,
        against=_names(against),
        bootstrap=bootstrap,
        seed=seed,
    )
    _measure(apply.run, apply.ApplyOptions(**given), context, as_json=as_json, html=html)


@app.command("freshness")
def measure_freshness(
    context: typer.Context,
    target: Annotated[str | None, _target("postgres")] = None,
    rates: Annotated[
        str | None, _list("Rates to measure, in events/s. Default: 10,100,1000,5000.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Duration of each rate. Default: 60.")
    ] = None,
    warm_up: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Duration of the warm-up. Default: 20."),
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Pause before one more event; 0 for none. Default: 300.",
        ),
    ] = None,
    faults: Annotated[
        bool | None,
        typer.Option(
            "--faults/--no-faults",
            help="Also measure a kill -9, a restart and a kill of the broker. Default: yes.",
        ),
    ] = None,
    documents: Annotated[int | None, _documents(10_000)] = None,
    partitions: Partitions = None,
    history: History = None,
    engine: Engine = None,
    bootstrap: Bootstrap = None,
    seed: Seed = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure the age of events at commit: at even rates, after a pause, and with faults."""
    from instep_bench import freshness

    given = _without_omitted(
        target=target,
        rates=_numbers("--rates", rates, int),
        seconds=seconds,
        warm_up_s=warm_up,
        idle_s=idle,
        faults=faults,
        documents=documents,
        partitions=partitions,
        history=history,
        engine=engine,
        bootstrap=bootstrap,
        seed=seed,
    )
    _measure(
        freshness.run, freshness.FreshnessOptions(**given), context, as_json=as_json, html=html
    )


@app.command("relay")
def measure_relay(
    context: typer.Context,
    source: Annotated[
        list[str] | None, _target("postgres,mariadb,sqlite", ". Can be repeated")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows waiting in the outbox. Default: 300000.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Approximate size of an event's value. Default: 200."),
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Events per second. Default: 1000.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Duration of the steady load. Default: 20.")
    ] = None,
    documents: Annotated[int | None, _documents(10_000)] = None,
    partitions: Partitions = None,
    rounds: Rounds = None,
    bootstrap: Bootstrap = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure a relay: how fast it publishes a backlog, and how late a steady load is."""
    from instep_bench import relay

    given = _without_omitted(
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
    _measure(relay.run, relay.RelayOptions(**given), context, as_json=as_json, html=html)


@app.command("sharing")
def measure_sharing(
    context: typer.Context,
    target: Annotated[str | None, _target("postgres")] = None,
    backlog: Annotated[
        int | None,
        typer.Option(
            metavar="EVENTS",
            min=1,
            help="Size of the backlog. Default: 10000000.",
        ),
    ] = None,
    others: Annotated[
        int | None,
        typer.Option(min=1, help="Number of pipelines beside it, each at --rate. Default: 3."),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(min=1, help="Events per second. Default: 100."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Duration of their load without the one that catches up. Default: 30."),
    ] = None,
    warm_up: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Duration of the warm-up. Default: 10."),
    ] = None,
    documents: Annotated[int | None, _documents(100_000)] = None,
    partitions: Partitions = None,
    history: History = None,
    engine: Engine = None,
    bootstrap: Bootstrap = None,
    seed: Seed = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how fresh pipelines stay while another one of the same run catches up."""
    from instep_bench import sharing

    given = _without_omitted(
        target=target,
        backlog=backlog,
        others=others,
        rate=rate,
        seconds=seconds,
        warm_up_s=warm_up,
        documents=documents,
        partitions=partitions,
        history=history,
        engine=engine,
        bootstrap=bootstrap,
        seed=seed,
    )
    _measure(sharing.run, sharing.SharingOptions(**given), context, as_json=as_json, html=html)


@app.command("load")
def measure_load(
    context: typer.Context,
    target: Annotated[str | None, _target("postgres")] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Existing documents to load. Default: 1000000.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Events per second. Default: 1000.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Duration of the live events before and after the load. Default: 30."),
    ] = None,
    warm_up: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Duration of the warm-up. Default: 10."),
    ] = None,
    documents: Annotated[int | None, _documents(100_000)] = None,
    partitions: Partitions = None,
    history: History = None,
    engine: Engine = None,
    bootstrap: Bootstrap = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure `instep load`, and how fresh live events stay beside it."""
    from instep_bench import bulk_load

    given = _without_omitted(
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
    _measure(bulk_load.run, options, context, as_json=as_json, html=html)


@app.command("outbox")
def measure_outbox(
    context: typer.Context,
    source: Annotated[str | None, _target("postgres")] = None,
    target: Annotated[str | None, _target("postgres")] = None,
    rate: Annotated[
        int | None,
        typer.Option(min=1, help="Events per second. Default: 1000."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Duration of each measurement. Default: 60.")
    ] = None,
    warm_up: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Duration of the warm-up. Default: 10.")
    ] = None,
    hold: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long a snapshot is held; 0 leaves this part out. Default: 600.",
        ),
    ] = None,
    backlog: Annotated[
        int | None,
        typer.Option(min=1, metavar="ROWS", help="Size of the backlog. Default: 200000."),
    ] = None,
    rounds: Rounds = None,
    documents: Annotated[int | None, _documents(100_000)] = None,
    partitions: Partitions = None,
    bootstrap: Bootstrap = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure from the commit in an outbox's database to the commit in the target."""
    from instep_bench import outbox

    given = _without_omitted(
        source=source,
        target=target,
        rate=rate,
        seconds=seconds,
        warm_up_s=warm_up,
        hold_s=hold,
        backlog=backlog,
        rounds=rounds,
        documents=documents,
        partitions=partitions,
        bootstrap=bootstrap,
    )
    _measure(outbox.run, outbox.OutboxOptions(**given), context, as_json=as_json, html=html)


@app.command("console")
def measure_console(
    context: typer.Context,
    target: Annotated[str | None, _target("postgres")] = None,
    history: Annotated[
        int | None, typer.Option(min=1, help="Rows of history. Default: 10000000.")
    ] = None,
    dead_letters: Annotated[
        int | None, typer.Option(min=1, help="Number of dead letters. Default: 100000.")
    ] = None,
    topics: Annotated[
        int | None, typer.Option(min=0, help="Number of topics. Default: 10000.")
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
            help="A headless Chromium, to measure from click to paint (needs playwright).",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how quickly the web console answers when there is much to show."""
    extras.require_console()
    from instep_bench import console

    given = _without_omitted(
        target=target,
        history=history,
        dead_letters=dead_letters,
        topics=topics,
        requests=requests,
        tabs=tabs,
        seconds=seconds,
        browser=browser,
        bootstrap=bootstrap,
    )
    options = console.ConsoleBenchOptions(**given)
    _measure(console.run, options, context, as_json=as_json, html=html)


@app.command("kpi")
def measure_kpi(
    context: typer.Context,
    target: Annotated[str | None, _target("postgres")] = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Events per second. Default: 1000.")] = (
        None
    ),
    minutes: Annotated[
        int | None, typer.Option(min=1, help="Number of minutes that are measured. Default: 5.")
    ] = None,
    documents: Annotated[int | None, _documents(100_000)] = None,
    partitions: Partitions = None,
    bootstrap: Bootstrap = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how far the rows of a KPI are behind the end of their minute."""
    extras.require_spark()
    from instep_bench import kpi

    given = _without_omitted(
        target=target,
        rate=rate,
        minutes=minutes,
        documents=documents,
        partitions=partitions,
        bootstrap=bootstrap,
    )
    _measure(kpi.run, kpi.KpiOptions(**given), context, as_json=as_json, html=html)


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
    documents: Annotated[int | None, _documents(100_000)] = None,
    rounds: Rounds = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure the Spark sink: throughput and cost per micro-batch."""
    extras.require_spark()
    from instep_bench import sink

    given = _without_omitted(
        target=target,
        rows=rows,
        batches=batches,
        small_batches=small_batches,
        documents=documents,
        rounds=rounds,
    )
    _measure(sink.run, sink.SinkOptions(**given), context, as_json=as_json, html=html)


@app.command("archive")
def measure_archive(
    context: typer.Context,
    events: Annotated[
        int | None, typer.Option(min=1, help="Number of events. Default: 2000000.")
    ] = None,
    documents: Annotated[int | None, _documents(100_000)] = None,
    size: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Approximate size of an event's value. Default: 150."),
    ] = None,
    partitions: Partitions = None,
    rounds: Rounds = None,
    bootstrap: Bootstrap = None,
    seed: Seed = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure an archive beside Spark's own file sink: events per second, and size."""
    extras.require_spark()
    from instep_bench import archive

    given = _without_omitted(
        events=events,
        documents=documents,
        size=size,
        partitions=partitions,
        rounds=rounds,
        bootstrap=bootstrap,
        seed=seed,
    )
    _measure(archive.run, archive.ArchiveOptions(**given), context, as_json=as_json, html=html)


@app.command("scale")
def measure_scale(
    context: typer.Context,
    target: Annotated[str | None, _target("postgres")] = None,
    documents: Annotated[
        str | None,
        _list("Number of documents. Default: 10000,1000000,10000000. Can be none."),
    ] = None,
    events: Annotated[
        str | None,
        _list("Number of events. Default: 100000,1000000,10000000. Can be none."),
    ] = None,
    partitions: Annotated[
        str | None, _list("Number of partitions. Default: 1,4,12,48. Can be none.")
    ] = None,
    delays: Annotated[
        str | None, _list("One-way delay to the target in ms, or none. Default: 0,1,5,20.")
    ] = None,
    masters: Annotated[
        str | None, _list("Spark masters, or none. Default: local[1],local[2],cluster.")
    ] = None,
    rounds: Rounds = None,
    base_events: Annotated[
        int | None,
        typer.Option(min=1, help="Events when their number is not varied. Default: 100000."),
    ] = None,
    engine: Engine = None,
    bootstrap: Bootstrap = None,
    seed: Seed = None,
    html: Html = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure the cost per event as one thing grows: rows, events, partitions, cores."""
    from instep_bench import scale

    given = _without_omitted(
        target=target,
        documents=_numbers("--documents", documents, int),
        events=_numbers("--events", events, int),
        partitions=_numbers("--partitions", partitions, int),
        delays_ms=_numbers("--delays", delays, float),
        masters=_names(masters),
        rounds=rounds,
        base_events=base_events,
        engine=engine,
        bootstrap=bootstrap,
        seed=seed,
    )
    _measure(scale.run, scale.ScaleOptions(**given), context, as_json=as_json, html=html)


@app.command("compare")
def compare_results(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="An id, a file, or latest.", autocompletion=_complete_results
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B", help="The result to compare with A.", autocompletion=_complete_results
        ),
    ],
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Compare two results figure by figure, and say which differences may be noise."""
    from instep_bench import compare

    (id_a, in_a), (id_b, in_b) = _stored_result(a), _stored_result(b)
    found = compare.compare(in_a, in_b)
    if as_json:
        output.print_json(
            {"a": _head(id_a, in_a), "b": _head(id_b, in_b), **msgspec.structs.asdict(found)}
        )
        return
    typer.echo(
        output.table(
            ("", "RESULT", "COMMAND"), [("A", id_a, in_a.command), ("B", id_b, in_b.command)]
        )
    )
    if found.differences:
        typer.echo("\ndifferent conditions:")
        typer.echo(
            output.table(
                ("WHAT", "A", "B"), [(one.what, one.a, one.b) for one in found.differences]
            )
        )
    if found.lines:
        head = ("FIGURE", "UNIT", "A", "A-RANGE", "B", "B-RANGE", "B/A", "B IS")
        typer.echo("\n" + output.table(head, [_compared(line) for line in found.lines]))
    for side, only in (("A", found.only_a), ("B", found.only_b)):
        for figure in only:
            typer.echo(f"only in {side}: {output.cell(figure)}")
    typer.echo("\n" + _noise(found))


@app.command("report")
def write_report(
    results: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RESULT]...",
            help="Ids, files, or latest. Default: latest.",
            autocompletion=_complete_results,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = REPORT_FILE,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not such a report.")
    ] = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Write results as one self-contained HTML page, with spread, plots and machine."""
    from instep_bench import page

    found = dict(_stored_result(named) for named in results or [LATEST])
    pages.write(page.KIND, lambda: page.render(found), out, force=force)
    if as_json:
        output.print_json({"file": str(out.absolute()), "results": list(found)})
    else:
        output.say(f"{out.absolute()}: {', '.join(found)}")


@app.command("list")
def list_results(as_json: AsJson = False, _debug: Debug = False) -> None:
    """List the stored results, oldest first."""
    from instep_bench import store

    kept, found = store.folder(), []
    for file in store.results(kept):
        try:
            found.append(_head(file.stem, store.read(file)))
        except errors.SettingsError as error:
            output.say(f"instep: {error.what}")
    if as_json:
        output.print_json({"folder": str(kept), "results": found})
        return
    if found:
        head = ("RESULT", "BENCH", "BEGUN", "SECONDS", "FIGURES", "COMMAND")
        rows = [
            [
                *(one[key.lower()] for key in head[:-1]),
                output.shortened(one["command"], COMMAND_SHOWN),
            ]
            for one in found
        ]
        typer.echo(output.table(head, rows))
    output.say(f"{counted(len(found), 'result')} in {kept}")


def _measure(
    run: Callable[[Options, Callable[[str], None], str], BenchResult],
    options: Options,
    context: typer.Context,
    *,
    as_json: bool,
    html: Path | None,
) -> None:
    """Run a benchmark, store its result, and show it."""
    from instep_bench import page, store

    extras.require_spark()
    if html:
        # Now, not after minutes of measuring.
        pages.refuse_file(page.KIND, html, force=False, option="--html")
    into = store.folder()
    steps = 0
    with terminal.ProgressLine(sys.stderr) as line:

        def say(text: str) -> None:
            nonlocal steps
            line.clear()
            output.say(text)
            line.update("measuring", steps := steps + 1, None, "steps")

        file = store.keep(run(options, say, _command(context)), into)
    output.say(f"stored as {file.stem}: {file}")
    # Show what was stored: without passwords, and without values that are not finite.
    result = store.read(file)
    if as_json:
        output.print_json({"result": file.stem, "file": str(file), **_all_of(result)})
    else:
        _show(result)
    if html:
        pages.write(
            page.KIND, lambda: page.render({file.stem: result}), html, force=False, option="--html"
        )
        output.say(f"page: {html.absolute()}")


def _command(context: typer.Context) -> str:
    """Return the command that repeats the benchmark, with its options."""
    parts = ["instep", "bench", str(context.info_name)]
    for option in context.command.params:
        source, value = (
            context.get_parameter_source(str(option.name)),
            context.params.get(str(option.name)),
        )
        if option.name in NOT_REPEATED or source is None or source.name != "COMMANDLINE":
            continue
        if isinstance(value, bool):
            parts.append((option.opts if value else option.secondary_opts)[0])
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            parts += [option.opts[0], str(one)]
    return shlex.join(parts)


def _without_omitted(**options: Any) -> dict[str, Any]:
    """Return the options of the command line without those that were omitted."""
    return {name: value for name, value in options.items() if value is not None}


def _names(text: str | None) -> tuple[str, ...] | None:
    """Parse a comma-separated list; `none` is the empty list."""
    if text is None:
        return None
    return tuple(name for name in text.replace(" ", "").split(",") if name and name != NONE)


def _numbers(
    option: str, text: str | None, kind: Callable[[str], Number]
) -> tuple[Number, ...] | None:
    try:
        return None if text is None else tuple(map(kind, _names(text) or ()))
    except ValueError:
        raise errors.SettingsError(
            f"{option} {text!r} is not a list of numbers",
            f"write for example {option} 1,10,50",
        ) from None


def _booleans(option: str, text: str | None) -> tuple[bool, ...] | None:
    words = {"no": False, "yes": True}
    if text is None:
        return None
    if unknown := [name for name in _names(text) or () if name not in words]:
        raise errors.SettingsError(
            f"{option} {unknown[0]!r} is neither yes nor no", f"write {option} no, yes or no,yes"
        )
    return tuple(words[name] for name in _names(text) or ())


def _engines(text: str | None) -> tuple[settings.EngineName, ...] | None:
    known: tuple[settings.EngineName, ...] = get_args(settings.EngineName)
    given = _names(text)
    if given is None:
        return None
    if unknown := [name for name in given if name not in known]:
        raise errors.SettingsError(
            f"there is no engine {unknown[0]!r}{settings.nearest(unknown[0], known)}",
            f"known engines: {', '.join(known)}",
        )
    return tuple(name for name in known if name in given)


def _stored_result(named: str) -> tuple[str, BenchResult]:
    """Return a stored result with its id."""
    from instep_bench import store

    file = store.find(store.folder(), named)
    return file.stem, store.read(file)


def _head(id_: str, result: BenchResult) -> dict[str, Any]:
    return {
        "result": id_,
        "bench": result.bench,
        "begun": result.begun_at,
        "seconds": result.seconds,
        "figures": len(result.figures),
        "command": result.command,
    }


def _all_of(result: BenchResult) -> dict[str, Any]:
    """Return the result with a summary of the rounds of each figure."""
    figures = [
        {**msgspec.structs.asdict(one), "median": one.median, "low": one.low, "high": one.high}
        for one in result.figures
    ]
    return {**msgspec.structs.asdict(result), "figures": figures}


def _show(result: BenchResult) -> None:
    from instep_bench import page

    typer.echo(
        "\n\n".join(
            output.titled_table(table) for table in [*result.tables, *page.figures(result.figures)]
        )
    )
    typer.echo("\n" + "\n".join(output.cell(note) for note in result.notes))


def _compared(line: FigureComparison) -> Sequence[Any]:
    from instep.report.markup import figure
    from instep_bench.compare import described

    def ranged(one: FigureRange) -> str:
        return f"{figure(one.low)} – {figure(one.high)}" if one.rounds > 1 else "one round"

    ratio = "-" if line.ratio is None else f"{line.ratio:.2f}"
    word = (
        line.word if line.noise_known or line.word == "the same" else f"{line.word} (noise unknown)"
    )
    return (
        described(line),
        line.unit,
        figure(line.a.median),
        ranged(line.a),
        figure(line.b.median),
        ranged(line.b),
        ratio,
        word,
    )


def _noise(found: Comparison) -> str:
    widest = [
        f"not known in {side}" if share is None else f"{share:.0%} of its median in {side}"
        for side, share in (("A", found.widest_a), ("B", found.widest_b))
    ]
    return (
        f"noise: the widest range of a figure's rounds is {' and '.join(widest)};"
        " if both ranges of a figure overlap, the difference may be noise"
    )
