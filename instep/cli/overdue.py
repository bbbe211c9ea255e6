"""`instep overdue`: documents that have had a status for too long."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import durations, errors, settings
from instep.cli import options, output, resources, watch
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Limit, PipelineNames
from instep.cli.watch import Watch
from instep.document.showing import counted

if TYPE_CHECKING:
    from instep.operate.overdue import OverdueDocument, OverdueList

COLUMNS = ("PIPELINE", "DOCUMENT", "STATUS", "SINCE", "FOR", "LIMIT", "PARKED")

app = typer.Typer()


@app.command(cls=watch.WatchCommand)
def overdue(
    pipelines: PipelineNames = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="NAME", help="Only with this status.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="Only if they have had it for longer: 90m, 12h, 3d."
        ),
    ] = None,
    limit: Limit = output.SHOWN_MAX,
    interval: Watch = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show documents that have had a status for longer than [pipelines.NAME.due] allows.

    The exit status is 1 if there are any.
    """
    declared = settings.load(GLOBAL.config)
    names = _names(declared, pipelines)
    age = _age(older_than)

    def read() -> list[OverdueList]:
        return [_read(declared, name, status, age, limit) for name in names]

    if interval is not None:
        watch.repeat(lambda: _block(read(), as_json), interval)  # does not return
    found = read()
    if as_json:
        output.print_json({"pipelines": found})
    else:
        if table := _table(found):
            typer.echo(table)
        for line in _notes(found):
            output.say(line)
    if any(one.total for one in found):
        raise typer.Exit(1)


def _names(declared: settings.Settings, pipelines: Sequence[str] | None) -> list[str]:
    """Return the named pipelines, or all with limits."""
    names = options.select_pipelines(declared, pipelines)
    if pipelines:
        return names
    return [name for name in names if declared.pipelines[name].due] or names[:1]


def _age(text: str | None) -> timedelta:
    age = timedelta(0) if text is None else durations.parse(text)
    if age is None:
        raise errors.SettingsError(f"{text!r} is not an age", "write e.g. 90m, 12h or 3d")
    return age


def _read(
    declared: settings.Settings, name: str, status: str | None, age: timedelta, limit: int
) -> OverdueList:
    from instep.operate import overdue as documents

    with resources.maintenance_session(declared, name, reads=True) as session:
        return documents.read(
            session, declared.pipelines[name], status=status, older_than=age, limit=limit
        )


def _block(found: Sequence[OverdueList], as_json: bool) -> str:
    """Return one block of `--watch`."""
    if as_json:
        return output.as_json({"pipelines": found})
    return "\n".join(filter(None, [_table(found), *_notes(found)]))


def _table(found: Sequence[OverdueList]) -> str:
    rows = [_row(one, document) for one in found for document in one.documents]
    return output.table(COLUMNS, rows) if rows else ""


def _row(one: OverdueList, document: OverdueDocument) -> Sequence[Any]:
    parked = "-"
    if document.parked_reason is not None:
        parked = f"{document.parked_reason}, {counted(document.waiting, 'event')} waiting"
    return (
        one.pipeline,
        document.document,
        document.status,
        document.since,
        durations.shown(timedelta(seconds=document.age_s)),
        one.due[document.status],
        parked,
    )


def _notes(found: Sequence[OverdueList]) -> list[str]:
    """Return what the table does not show: how many more, and what makes it doubtful."""
    notes = []
    for one in found:
        if not one.total:
            notes.append(f"{one.pipeline}: no document is overdue")
        elif len(one.documents) < one.total:
            notes.append(
                f"{one.pipeline}: {len(one.documents)} of {one.total} overdue documents;"
                " -n shows more"
            )
        if one.unknown:
            notes.append(
                f"{one.pipeline}: of {counted(one.unknown, 'document')} with such a status the time"
                " of its last change is not known: the history has no event of it, and no column"
                " stores the time"
            )
        if one.total and one.run.state != "running":
            notes.append(
                f"{one.pipeline}: {one.run.description}, so events that change these documents may"
                " be waiting in the topic"
            )
    return notes
