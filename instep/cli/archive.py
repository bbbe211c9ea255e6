"""`instep archive`: tidy the table of an archive, and continue after lost records."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from instep import errors, settings, terminal
from instep.cli import completion, output, resources
from instep.cli import help as help_pages
from instep.cli.exit_status import HELD_BACK_STATUS
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Execute
from instep.document.showing import counted
from instep.terminal import Tone

if TYPE_CHECKING:
    from instep.archive.comparison import ArchiveReport
    from instep.archive.table import ArchiveTable

app = help_pages.command_group("archive", "Tidy the tables of archives.")

DIFFERENT_STATUS = 1
COMPARED_COLUMNS = (
    "ARCHIVE",
    "COMPARED",
    "MISSING",
    "REPEATED",
    "DIFFERENT",
    "EXTRA",
    "ONLY-ARCHIVED",
    "LOST",
    "BEHIND",
)

Name = Annotated[
    str,
    typer.Argument(metavar="ARCHIVE", help="Archive.", autocompletion=completion.archives),
]


@app.command()
def skip(
    archive: Name,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Continue behind records that Kafka lost before they were archived (OFFSETS_EXPIRED).

    The table notes the ranges, and `instep reconcile --archive` shows them.
    """
    from instep.archive import checks

    declared = settings.load(GLOBAL.config)
    one, table = settings.archive(declared, archive), _table(declared, archive)
    with resources.cluster(declared) as cluster:
        topic = checks.describe(cluster, archive, one.topic, table)
        checks.refuse_replaced(archive, topic, table)
        lost = checks.expired(cluster, topic, checks.positions(table, topic))
    if lost and execute:
        table.skip(lost)
    if as_json:
        output.print_json({"archive": archive, "skipped": lost, "executed": execute})
    elif lost:
        rows = [(part, start, end - 1, end - start) for part, (start, end) in lost.items()]
        typer.echo(output.table(("PARTITION", "FIRST", "LAST", "OFFSETS"), rows))
    else:
        output.say(f"{archive}: nothing is lost: the topic has everything that comes next")
    if lost and not execute:
        output.say_dry_run()


@app.command()
def compact(
    archive: Name,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Join all small files now. A running archive does it by itself, and need not be stopped."""
    from instep.archive import compaction, compaction_thread

    declared = settings.load(GLOBAL.config)
    one, table = settings.archive(declared, archive), _table(declared, archive)
    files = table.files()
    planned = compaction.plan(files, one.file_mb * 1_000_000, current=None)
    joined = sum(map(len, planned))
    if execute:
        joined = compaction_thread.tidy(table, one, table.epoch())
    if as_json:
        report = {"archive": archive, "files": len(files), "joined": joined, "executed": execute}
        output.print_json(report)
    else:
        verb = "joined" if execute else "to join"
        output.say(f"{archive}: {counted(len(files), 'file')}, {joined:,} of them {verb}")
    if joined and not execute:
        output.say_dry_run()


@app.command()
def vacuum(
    archive: Name,
    hours: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="HOURS",
            help="Keep what the table needed in these hours; 0 fences a running archive."
            " Default: `vacuum_after_hours`.",
        ),
    ] = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Remove files that the table no longer needs, also those of interrupted writers.

    Before you use --hours 0, stop the archive and all its readers: a run of it ends as FENCED.
    """
    declared = settings.load(GLOBAL.config)
    one, table = settings.archive(declared, archive), _table(declared, archive)
    kept = _kept_hours(archive, one, hours)
    with terminal.busy(sys.stderr, f"{archive}: looking for files that no version needs"):
        files = table.vacuum(kept, execute=execute)
    if as_json:
        output.print_json({"archive": archive, "files": files, "executed": execute})
    else:
        verb = "removed" if execute else "to remove"
        output.say(f"{archive}: {counted(len(files), 'file')} {verb}")
    if files and not execute:
        output.say_dry_run()


def _kept_hours(name: str, archive: settings.Archive, hours: int | None) -> int:
    """Return for how many hours files are kept; refuse the setting that means `never`."""
    if hours is None and not archive.vacuum_after_hours:
        raise errors.SettingsError(
            f"archives.{name}.vacuum_after_hours is 0: files are never removed",
            "say what to keep: --hours 168",
        )
    return archive.vacuum_after_hours if hours is None else hours


def reconcile(declared: settings.Settings, archive: str, *, as_json: bool) -> None:
    """Compare an archive with its topic, print the report and exit with its status."""
    from instep.archive import comparison
    from instep.archive.comparison import ArchiveVerdict

    with resources.cluster(declared) as cluster, terminal.ProgressLine(sys.stderr) as line:
        report = comparison.compare(
            cluster,
            archive,
            settings.archive(declared, archive),
            lambda done, total: line.update("comparing", done, total, "offsets"),
        )
    if as_json:
        output.print_json({"archives": [report]})
    else:
        _print(report)
    if report.verdict is ArchiveVerdict.DIFFERENT:
        raise typer.Exit(DIFFERENT_STATUS)
    if report.verdict is ArchiveVerdict.HELD_BACK:
        raise typer.Exit(HELD_BACK_STATUS)


def _print(report: ArchiveReport) -> None:
    from instep.archive import checks

    counts = (
        report.compared,
        report.missing,
        report.repeated,
        report.different,
        report.extra,
        report.only_archived,
        report.lost,
        report.behind,
    )
    row = (report.archive, *(f"{count:,}" for count in counts))
    typer.echo(output.table(COMPARED_COLUMNS, [row]))
    for found in report.examples[: output.SHOWN_MAX]:
        output.say(f"{found.kind}: partition {found.partition}, offset {found.offset}", Tone.BAD)
    for partition, ranges in report.skipped.items():
        for start, end in ranges:
            output.say(f"skipped: partition {partition}, offsets {start} to {end - 1}")
    if report.lost:
        lost = checks.shown_ranges(report.lost_ranges)
        output.say(f"lost before they were archived: {lost}", Tone.BAD)
    if report.late_ranges:
        late = checks.shown_ranges(report.late_ranges)
        output.say(f"not archived, although `start` includes them: {late}", Tone.BAD)
    for partition, count in report.removed.items():
        rows = counted(count, "row")
        output.say(f"no longer in the archive: partition {partition}, {rows}", Tone.BAD)
    if report.held_back:
        output.say(f"{counted(report.held_back, 'offset')} behind an open transaction")
    tone = Tone.GOOD if report.verdict == "in step" else Tone.BAD
    output.say(f"{report.archive}: {report.verdict} with topic {report.topic}", tone)


def _table(declared: settings.Settings, archive: str) -> ArchiveTable:
    from instep.archive import table
    from instep.archive.files import locate

    return table.require(archive, locate(settings.archive(declared, archive).path))
