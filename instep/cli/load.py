"""`instep load`: bring existing documents into the table while events keep flowing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from instep import errors, extras, settings, terminal
from instep.cli import completion, options, output, resources
from instep.cli.exit_status import HELD_BACK_STATUS
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Execute, Master
from instep.document.showing import counted
from instep.terminal import Tone

if TYPE_CHECKING:
    from instep.operate.load import LoadReport
    from instep.operate.row_source import RowSource
    from instep.reconcile.report import ReconcileReport

app = typer.Typer()

TOTALS = ("records", "applied", "stale", "repeated", "ignored", "parked", "dead")
COLUMNS = ("PIPELINE", "LOAD", "ROWS", *(name.upper() for name in TOTALS[1:]))
CHECK_COLUMNS = ("DOCUMENTS", "IN-STEP", "NEWER", "MISSING", "DIFFERENT", "PARKED", "UNREADABLE")
DETAIL_CHARACTERS_MAX = 100
BATCH_ROWS = 5_000
ARCHIVE = "archive:"  # before the name of an archive


@app.command()
def load(
    pipeline: Annotated[
        str,
        typer.Argument(metavar="PIPELINE", help="Pipeline.", autocompletion=completion.pipelines),
    ],
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FILE|QUERY|TABLE|archive:NAME",
            help="File (JSON lines, CSV or Parquet), with --source-url a query or a table,"
            " or an archive of the pipeline's topic.",
        ),
    ],
    source_url: options.SourceUrl = None,
    key: options.SourceKey = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the load, by which it continues after an interruption."
            " Default: the file's or the table's, or `query`.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="ROWS", help="Maximum number of rows per second."),
    ] = None,
    batch_rows: Annotated[
        int,
        typer.Option(min=1, metavar="ROWS", help="Maximum number of rows in a transaction."),
    ] = BATCH_ROWS,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin at the first row again.")
    ] = False,
    no_reconcile: Annotated[
        bool,
        typer.Option("--no-reconcile", help="Do not compare the table with the source at the end."),
    ] = False,
    skip_lost: options.SkipLost = False,
    execute: Execute = False,
    master: Master = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Load existing documents from a file, a query or a table while events keep flowing.

    Every row passes the guard, so it never overwrites something newer. A load that was interrupted
    continues where it stopped. At the end the table is compared with the source. Exit status 0:
    they agree; 1: they do not, or rows cannot be understood.

    An archive is loaded in the order of the log, deletes included, up to where the pipeline is. The
    same command continues an interrupted load of it, and the guard drops what is applied already.
    No comparison follows: `instep reconcile` compares the table with the log.
    """
    from instep.operate import load as operation

    declared = options.with_master(settings.load(GLOBAL.config), master)
    options.select_pipelines(declared, [pipeline])
    if from_.startswith(ARCHIVE):
        if source_url or key or name or rate or restart or batch_rows != BATCH_ROWS:
            raise errors.SettingsError(
                "an archive has its own order, keys and batches",
                "leave out --source-url, --key, --name, --rate, --batch-rows and --restart",
            )
        if no_reconcile:
            raise errors.SettingsError(
                "a load from an archive makes no comparison", "leave out --no-reconcile"
            )
        _load_archive(
            declared,
            pipeline,
            from_.removeprefix(ARCHIVE),
            skip_lost=skip_lost,
            execute=execute,
            as_json=as_json,
        )
        return
    if skip_lost:
        raise errors.SettingsError("--skip-lost is for --from archive:NAME", "leave it out")
    if source_url is None:
        _refuse_archive(declared, pipeline, from_)
    source = _source(from_, source_url, key)
    if execute and not no_reconcile:
        extras.require_spark()  # before hours of work, not after them
    request = operation.LoadRequest(
        source, name, batch_rows, rate, restart, resources.current_user()
    )
    try:
        with terminal.ProgressLine(sys.stderr) as line:
            report = operation.run(
                pipeline,
                settings.pipeline(declared, pipeline),
                request,
                execute=execute,
                progress=line.update,
            )
    except SystemExit:  # a signal
        if execute:
            output.say(f"{pipeline}: interrupted; the same command continues the load")
        raise
    if not as_json:
        _print(report)
    compared = None
    if execute and not no_reconcile:
        compared = _compare(declared, pipeline, source, quiet=as_json)
    if as_json:
        output.print_json({"load": report, "reconcile": compared})
    if not execute:
        output.say_dry_run()
        return
    _exit(report, compared)


def _load_archive(
    declared: settings.Settings,
    pipeline: str,
    archive: str,
    *,
    skip_lost: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Bring the last state of each document of an archive into the table.

    The archived records have places in the log, so this is a replay that ends at the position in
    the pipeline's ledger; the pipeline continues from there.
    """
    from instep.cli import replay
    from instep.kafka import places
    from instep.pipeline.apply.load import no_ledger
    from instep.sinks import ledger_reader

    if not ledger_reader.ledger(pipeline, settings.pipeline(declared, pipeline)):
        raise no_ledger(pipeline)
    changes = replay.apply_log(
        declared,
        pipeline,
        first=places.FromStart(),
        archive=archive,
        skip_lost=skip_lost,
        execute=execute,
    )
    replay.print_replayed(changes, execute, as_json)


def _refuse_archive(declared: settings.Settings, pipeline: str, from_: str) -> None:
    """Raise if the source is a file of an archive, or another Delta table.

    The records of an archive have places in the log. A load would give them numbers instead: the
    order of a document's records, tombstones and `@timestamp` would be lost.
    """
    source = Path(from_)
    named = [
        name
        for name, archive in declared.archives.items()
        if from_ == name or source.resolve() == Path(archive.path).resolve()
    ]
    if named and not source.is_file():
        raise errors.SettingsError(
            f"--from {from_!r} is an archive, whose records have a place in the log",
            f"name it as an archive: instep load {shlex.quote(pipeline)}"
            f" --from {ARCHIVE}{shlex.quote(named[0])}",
        )
    if (source / "_delta_log").is_dir():
        raise errors.SettingsError(
            f"--from {from_!r} is a Delta table, which a load does not read",
            f"if it is an archive, declare it as [archives.NAME] and load --from {ARCHIVE}NAME;"
            " otherwise write its rows to a Parquet file and load that",
        )


def _source(from_: str, source_url: str | None, key: str | None) -> RowSource:
    """Return the source that the options name."""
    from instep.operate.row_source import RowSource
    from instep.sinks import source_query

    if source_url is None:
        if source_query.is_query(from_):
            raise errors.SettingsError(
                "--from is a query, and no database is named", "add --source-url URL"
            )
        return RowSource(file=from_, key=key)
    if source_query.is_query(from_):
        return RowSource(url=source_url, query=from_, key=key)
    return RowSource(url=source_url, table=from_, key=key)


def _compare(
    declared: settings.Settings, pipeline: str, source: RowSource, *, quiet: bool
) -> ReconcileReport:
    """Compare the documents of the source with the table."""
    with resources.spark_files(queries=True) as files:
        # Only now: these import pyspark, and spark_files has checked that it is installed.
        from instep.reconcile import job

        request = job.Request(source=source, loaded=True)
        with resources.cluster(declared) as cluster, terminal.ProgressLine(sys.stderr) as line:

            def say(text: str) -> None:
                line.clear()
                output.say(text)

            [report] = job.run(
                declared,
                [pipeline],
                cluster,
                files,
                request,
                say=say,
                progress=line.update,
                verbose=GLOBAL.debug,
            )
    if not quiet:
        _print_comparison(report)
    return report


def _print(report: LoadReport) -> None:
    output.say(f"{report.pipeline}: {report.source}: {_begun(report)}")
    number = "-" if report.load is None else report.load
    counts = [f"{report.totals.get(name, 0):,}" for name in TOTALS]
    typer.echo(output.table(COLUMNS, [(report.pipeline, number, *counts)]))
    if report.problems:
        rows = [
            (
                problem.row,
                problem.document or "",
                problem.reason,
                output.shortened(problem.detail, DETAIL_CHARACTERS_MAX),
            )
            for problem in report.problems
        ]
        typer.echo("\n" + output.table(("ROW", "DOCUMENT", "REASON", "DETAIL"), rows))
    for note in report.notes:
        output.say(f"{report.pipeline}: {note}")
    if report.executed:
        _say_remedies(report)


def _begun(report: LoadReport) -> str:
    """Return where the load began."""
    from instep.operate.load import LoadStart

    match report.start:
        case LoadStart.NOTHING_LEFT:
            return f"load {report.load} is complete already; --restart loads all rows again"
        case LoadStart.CONTINUED:
            verb = "continued" if report.executed else "continues"
            return f"load {report.load} {verb} at row {report.first_row:,}"
        case LoadStart.RESTARTED:
            return "restarted at the first row" if report.executed else "begins at the first row"
        case _:
            return counted(report.rows, "row")


def _say_remedies(report: LoadReport) -> None:
    if report.dead:
        kept = "was kept as a dead letter" if report.dead == 1 else "were kept as dead letters"
        output.say(
            f"{report.pipeline}: {counted(report.dead, 'row')} cannot be understood and {kept}."
            " Correct the source, then load it with --restart",
            Tone.BAD,
        )
    if report.totals.get("parked"):
        output.say(
            f"{report.pipeline}: parked: {counted(report.totals['parked'], 'row')};"
            f" run: instep parked list --pipeline {report.pipeline}",
            Tone.WARNING,
        )


def _print_comparison(report: ReconcileReport) -> None:
    counts = (
        report.documents,
        report.documents_in_step,
        report.not_in_log,
        report.missing,
        report.different,
        report.parked,
        report.unreadable,
    )
    typer.echo("\n" + output.table(CHECK_COLUMNS, [[f"{count:,}" for count in counts]]))
    tone = Tone.GOOD if report.in_step else Tone.BAD
    output.say(f"{report.pipeline}: {report.verdict} with {report.compared_with}", tone)


def _exit(report: LoadReport, compared: ReconcileReport | None) -> None:
    """Exit with status 1 or 4 if the table does not, or may not, have what the source has."""
    if report.dead:
        raise typer.Exit(1)
    if compared is None or compared.in_step:
        return
    from instep.reconcile.report import ReconcileVerdict

    raise typer.Exit(HELD_BACK_STATUS if compared.verdict is ReconcileVerdict.HELD_BACK else 1)
