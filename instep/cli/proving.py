"""Commands that prove: the table against the topic or the source."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from instep import errors, settings, terminal
from instep.cli import shared
from instep.cli.shared import GIVEN, AsJson, Config, Debug, Execute, Master, Pipelines
from instep.terminal import Tone

if TYPE_CHECKING:
    from instep.reconcile.comparison_job import ReconcileReport, Request

app = typer.Typer()

CELL_CHARACTERS_MAX = 60
HELD_BACK_STATUS = 4


@app.command()
def reconcile(
    pipelines: Pipelines = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Compare with this file (JSON lines or CSV) instead of the topic."
        ),
    ] = None,
    source_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Compare with a query of this database instead of the topic."
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="The query, its columns named like the event's fields."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="The source's field that holds the document's id; for a composite key: tenant,number. Left out: the event's."
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where the pipeline began, e.g. start, 1234 or @TIME; left out: its start.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long to wait for a running pipeline."),
    ] = 10.0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file for the rows; left out: reconcile-PIPELINE-TIME.jsonl, if there are any."
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Plan the mending of what differs.")] = False,
    execute: Execute = False,
    delete_extra: Annotated[
        bool,
        typer.Option(
            "--delete-extra",
            help="With --fix: also delete rows that the pipeline wrote and the log does not know.",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Count every row that the topic does not explain as extra, whoever wrote it.",
        ),
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Compare the table with what the topic says that it should be. Exit status 0 only when they are in step.

    Status 1: not in step. Status 4: nothing differs, but records wait behind an open Kafka transaction.
    """
    if (execute or delete_extra) and not fix:
        raise errors.SettingsError("--execute and --delete-extra go with --fix", "add --fix")
    declared = shared.on_master(settings.load(GIVEN.config), master)
    names = shared.chosen(declared, pipelines)
    _refuse_unclear_source(names, source, source_url, query, from_)
    with shared.spark_jars() as jars:
        from instep.reconcile import comparison_job as proof
        from instep.reconcile import repair
        from instep.reconcile import source as elsewhere

        request = proof.Request(
            begin=from_,
            wait_s=wait,
            source=elsewhere.RowSource(source, source_url, query, key)
            if source or source_url
            else None,
            out=_emptied(out),
            fix=repair.RepairRequest(execute=execute, delete_extra=delete_extra, who=shared.who())
            if fix
            else None,
            strict=strict,
        )
        with shared.cluster(declared) as cluster, terminal.ProgressLine(sys.stderr) as line:

            def say(text: str) -> None:
                line.clear()
                shared.say(text)

            reports = proof.run(
                declared,
                names,
                cluster,
                jars,
                request,
                say=say,
                progress=line.update,
                verbose=GIVEN.debug,
            )
            found = []
            for report in reports:
                found.append(report)
                line.clear()
                if not as_json:
                    _print(report, request)
    if as_json:
        shared.print_json({"pipelines": found})
    verdicts = {report.verdict for report in found}
    if proof.ReconcileVerdict.NOT_IN_STEP in verdicts:
        raise typer.Exit(1)
    if proof.ReconcileVerdict.HELD_BACK in verdicts:
        raise typer.Exit(HELD_BACK_STATUS)


def _refuse_unclear_source(
    names: Sequence[str],
    source: str | None,
    source_url: str | None,
    query: str | None,
    from_: str | None,
) -> None:
    if source and source_url:
        raise errors.SettingsError("--source and --source-url are two sources", "name one")
    if bool(source_url) != bool(query):
        raise errors.SettingsError("--source-url and --query go together", "give both")
    if (source or source_url) and len(names) > 1:
        raise errors.SettingsError(
            "one source cannot be compared with several pipelines",
            f"name one of {', '.join(names)}",
        )
    if (source or source_url) and from_:
        raise errors.SettingsError(
            "--from is a place in the log, and another source was named", "leave one of them out"
        )


def _emptied(out: Path | None) -> Path | None:
    """The file that was named, empty: it holds this run's rows only."""
    if out is not None:
        try:
            out.write_bytes(b"")
        except OSError as error:
            raise errors.SettingsError(
                f"{out} cannot be written: {error.strerror}", "name another file with --out"
            ) from error
    return out


def _print(report: ReconcileReport, request: Request) -> None:
    head = (
        "PIPELINE",
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
    counts = (
        report.pipeline,
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
    typer.echo(shared.table(head, [tuple(map(_cell, counts))]))
    if report.columns:
        typer.echo(
            "\n"
            + shared.table(
                ("COLUMN", "DIFFERENT"),
                [(_cell(name), count) for name, count in report.columns.items()],
            )
        )
    if report.first_rows:
        mend = ("MEND",) if request.fix else ()
        rows = [
            (*(_cell(row[name]) for name in ROW), *((_cell(row.get("mend", "")),) if mend else ()))
            for row in report.first_rows
        ]
        typer.echo("\n" + shared.table((*(name.upper() for name in ROW), *mend), rows))
    for note in report.notes:
        shared.say(f"{report.pipeline}: {note}")
    if report.behind.records:
        shared.say(f"{report.pipeline}: {report.behind.records:,} records wait in the log")
    if report.repaired is not None:
        done = report.repaired
        shared.say(
            f"{report.pipeline}: {done.inserted:,} inserted, {done.written:,} written, {done.deleted:,} deleted,"
            f" {done.left_alone:,} left alone"
        )
        for document, why in done.first_left_alone:
            shared.say(f"  {_cell(document)}: {_cell(why)}")
    elif request.fix and report.rows_file:
        shared.say(f"{report.pipeline}: nothing was changed; --execute carries the plan out")
    shared.say(f"{report.pipeline}: {report.verdict}", Tone.GOOD if report.in_step else Tone.BAD)


ROW = ("kind", "document", "column", "expected", "found", "place")


def _cell(value: Any) -> str:
    """A value for the terminal, on one line."""
    if value is None:
        return "-"
    return shared.shortened(
        value if isinstance(value, str) else msgspec.json.encode(value).decode(),
        CELL_CHARACTERS_MAX,
    )
