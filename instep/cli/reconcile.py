"""`instep reconcile`: compare the target table with the topic or with the source, and repair it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from instep import errors, settings, terminal
from instep.cli import archive, completion, kpi_reconciliation, options, output, resources
from instep.cli.exit_status import HELD_BACK_STATUS
from instep.cli.options import (
    GLOBAL,
    AsJson,
    Config,
    Debug,
    Execute,
    Master,
    PipelineNames,
    Why,
)
from instep.terminal import Tone

if TYPE_CHECKING:
    from instep.reconcile.job import Request
    from instep.reconcile.report import ReconcileReport
    from instep.spark_options import SparkFiles

app = typer.Typer()

CELL_CHARACTERS_MAX = 60
ROW_KEYS = ("kind", "document", "column", "expected", "found", "place")
COUNT_COLUMNS = (
    "PIPELINE",
    "TABLE",
    "DOCUMENTS",
    "IN-STEP",
    "MISSING",
    "EXTRA",
    "DIFFERENT",
    "PARKED",
    "BEHIND",
    "NOT-IN-LOG",
    "UNREADABLE",
)


SourceFile = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="FILE",
        help="Compare with this file (JSON lines, CSV or Parquet) instead of the topic.",
    ),
]
Query = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Compare with this query on --source-url, with columns named like event fields.",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="Where the pipeline started, e.g. start, 1234 or @TIME. Default: its `start`.",
    ),
]
Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How long to wait for a running pipeline."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File for rows that differ. Default: reconcile-PIPELINE-TIME.jsonl.",
    ),
]
Fix = Annotated[bool, typer.Option("--fix", help="Plan the repair of rows that differ.")]
DeleteExtra = Annotated[
    bool,
    typer.Option(
        "--delete-extra",
        help="With --fix: also delete rows that the pipeline wrote but the log does not have.",
    ),
]
Planned = Annotated[
    list[Path] | None,
    typer.Option(
        "--planned",
        metavar="FILE",
        help="With --fix --execute: repair only what the file of a plan has. Can be repeated.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Count every row that the topic does not explain as extra, whoever wrote it.",
    ),
]
KpiNames = Annotated[
    list[str] | None,
    typer.Option(
        "--kpi",
        metavar="NAME",
        help="Compare the rows of this KPI with a recomputation, and count again with --fix."
        " Can be repeated.",
        autocompletion=completion.kpis,
    ),
]
ArchiveName = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="NAME",
        help="Compare this archive with what its topic still holds, instead of tables.",
        autocompletion=completion.archives,
    ),
]


@app.command()
def reconcile(
    pipelines: PipelineNames = None,
    source: SourceFile = None,
    source_url: options.SourceUrl = None,
    query: Query = None,
    key: options.SourceKey = None,
    from_: From = None,
    wait: Wait = 10.0,
    out: Out = None,
    fix: Fix = False,
    execute: Execute = False,
    delete_extra: DeleteExtra = False,
    planned: Planned = None,
    why: Why = None,
    strict: Strict = False,
    kpi: KpiNames = None,
    archive_name: ArchiveName = None,
    master: Master = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Compare the table with the topic; exit status 0 only if they are in step.

    Status 1: not in step. Status 4: nothing differs, but records wait behind an open Kafka
    transaction.
    """
    if (execute or delete_extra) and not fix:
        raise errors.SettingsError("--execute and --delete-extra require --fix", "add --fix")
    for option, value in (("--planned", planned), ("--why", why)):
        if value and not execute:
            raise errors.SettingsError(f"{option} requires --execute", "add --fix --execute")
    declared = options.with_master(settings.load(GLOBAL.config), master)
    if kpi:
        others = (pipelines, source, source_url, query, key, from_, out, delete_extra, strict)
        if any((*others, planned)):
            raise errors.SettingsError(
                "--kpi can only be combined with --wait, --fix, --execute, --master and --json",
                "leave out the others, and the names of pipelines",
            )
        kpi_reconciliation.run(
            declared, kpi, wait_s=wait, fix=fix, execute=execute, as_json=as_json
        )
        return
    if archive_name is not None:
        if any((pipelines, source, source_url, from_, fix, strict)):
            raise errors.SettingsError(
                "--archive compares an archive, and no table", "use it only with --json"
            )
        archive.reconcile(declared, archive_name, as_json=as_json)
        return
    names = options.select_pipelines(declared, pipelines)
    _check_source(names, source, source_url, query, from_)
    with resources.spark_files(queries=True) as files:
        # Only now: these import pyspark, and spark_files has checked that it is installed.
        from instep.operate.row_source import RowSource
        from instep.reconcile import job, repair

        row_source, repair_request = None, None
        if source or source_url:
            row_source = RowSource(source, source_url, query, key)
        if fix:
            repair_request = repair.RepairRequest(
                execute=execute,
                delete_extra=delete_extra,
                actor=resources.current_user(),
                reason=why,
                planned=repair.planned_marks(planned) if planned else None,
            )
        request = job.Request(
            begin=from_,
            wait_s=wait,
            source=row_source,
            out=_emptied(out),
            fix=repair_request,
            strict=strict,
        )
        reports = _compare(declared, names, files, request, as_json=as_json)
    if as_json:
        executed = {"executed": execute} if fix else {}
        output.print_json({**executed, "pipelines": reports})
    if fix and not execute and any(report.rows_file for report in reports):
        output.say_dry_run()
    _exit(reports)


def _compare(
    declared: settings.Settings,
    names: Sequence[str],
    files: SparkFiles,
    request: Request,
    *,
    as_json: bool,
) -> list[ReconcileReport]:
    """Compare one pipeline after the other, and show each report when it is there."""
    from instep.reconcile import job

    reports: list[ReconcileReport] = []
    with resources.cluster(declared) as cluster, terminal.ProgressLine(sys.stderr) as line:

        def say(text: str) -> None:
            line.clear()  # messages and the progress line share stderr
            output.say(text)

        for report in job.run(
            declared,
            names,
            cluster,
            files,
            request,
            say=say,
            progress=line.update,
            verbose=GLOBAL.debug,
        ):
            reports.append(report)
            line.clear()
            if not as_json:
                _print(report, request)
    return reports


def _exit(reports: Sequence[ReconcileReport]) -> None:
    """Exit with the status of the reports, unless all tables are in step."""
    from instep.reconcile.report import ReconcileVerdict

    verdicts = {report.verdict for report in reports}
    if ReconcileVerdict.NOT_IN_STEP in verdicts:
        raise typer.Exit(1)
    if ReconcileVerdict.HELD_BACK in verdicts:
        raise typer.Exit(HELD_BACK_STATUS)


def _check_source(
    names: Sequence[str],
    source: str | None,
    source_url: str | None,
    query: str | None,
    from_: str | None,
) -> None:
    if source and source_url:
        raise errors.SettingsError(
            "--source and --source-url cannot be used together", "give one of them"
        )
    if bool(source_url) != bool(query):
        raise errors.SettingsError(
            "--source-url and --query must be used together", "give both of them"
        )
    if (source or source_url) and len(names) > 1:
        raise errors.SettingsError(
            "a source can only be compared with one pipeline",
            f"name one of {', '.join(names)}",
        )
    if (source or source_url) and from_:
        raise errors.SettingsError(
            "--from is a place in the log, but another source is given", "give one of them"
        )


def _emptied(out: Path | None) -> Path | None:
    """Empty the output file, so that it will hold the rows of this run only."""
    if out is not None:
        try:
            out.write_bytes(b"")
        except OSError as error:
            raise errors.SettingsError(
                f"{out} cannot be written: {error.strerror}", "name another file with --out"
            ) from error
    return out


def _print(report: ReconcileReport, request: Request) -> None:
    counts = (
        report.pipeline,
        report.table,
        report.documents,
        report.documents_in_step,
        report.missing,
        report.extra,
        report.different,
        report.parked,
        report.behind.documents,
        report.not_in_log,
        report.unreadable,
    )
    typer.echo(output.table(COUNT_COLUMNS, [tuple(map(_cell, counts))]))
    if report.columns:
        differing = [(_cell(name), count) for name, count in report.columns.items()]
        typer.echo("\n" + output.table(("COLUMN", "DIFFERENT"), differing))
    if report.first_rows:
        keys = (*ROW_KEYS, "repair") if request.fix else ROW_KEYS
        head = [key.upper() for key in keys]
        rows = [[_cell(row.get(key, "")) for key in keys] for row in report.first_rows]
        typer.echo("\n" + output.table(head, rows))
    for note in report.notes:
        output.say(f"{report.name}: {note}")
    if report.behind.records:
        output.say(f"{report.name}: {report.behind.records:,} records wait in the log")
    if report.repaired is not None:
        repaired = report.repaired
        output.say(
            f"{report.name}: {repaired.inserted:,} inserted, {repaired.written:,} written,"
            f" {repaired.deleted:,} deleted, {repaired.left_alone:,} left alone"
        )
        for document, reason in repaired.first_left_alone:
            output.say(f"  {_cell(document)}: {_cell(reason)}")
    output.say(f"{report.name}: {report.verdict}", Tone.GOOD if report.in_step else Tone.BAD)


def _cell(value: Any) -> str:
    """Return a value for the terminal, on one line."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return output.shortened(text, CELL_CHARACTERS_MAX)
