"""`instep show`: the timeline of one document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from instep import errors, settings
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, AnyPipeline, AsJson, Config, Debug
from instep.cli.quarantine import print_decisions
from instep.document import showing
from instep.document.showing import counted

if TYPE_CHECKING:
    from instep.operate.timeline import Timeline

EVENT_COLUMNS = (
    "PLACE",
    "EVENT-TIME",
    "COMMITTED",
    "FRESHNESS",
    "STATUS",
    "ORDER",
    "VERDICT",
    "REASON",
)

app = typer.Typer()


@app.command()
def show(
    document: Annotated[str, typer.Argument(help="The document's id.")],
    pipeline: AnyPipeline = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show the timeline of a document: events with verdicts, decisions, and its rows."""
    from instep.operate import timeline

    declared = settings.load(GLOBAL.config)
    names = options.select_pipelines(declared, [pipeline] if pipeline else None)
    timelines, mismatches = [], []
    for name in names:
        with resources.maintenance_session(declared, name, reads=True) as session:
            if not session.sink.target.history:
                output.say(
                    f"{name}: history is off (history = false), so the topic is read instead:"
                    " commit times are unknown"
                )
            try:
                timelines.append(
                    timeline.read(session, document, lambda: resources.cluster(declared))
                )
            except errors.NoSuchDocument as error:  # another pipeline's key may have another type
                mismatches.append(error)
    if mismatches and not timelines:
        raise mismatches[0]
    found = [one for one in timelines if one]
    if as_json:
        output.print_json({"pipelines": [_json(one) for one in found]})
    else:
        for one in found:
            _print_timeline(one)
    if not found:
        raise errors.SettingsError(
            f"no pipeline knows document {document!r} (searched: {', '.join(names)})",
            "ids are compared exactly, including case and spaces",
        )


def _print_timeline(one: Timeline) -> None:
    document = showing.plain(one.document)
    typer.echo(f"document {document} of pipeline {one.pipeline}, from the {one.source}")
    if one.waiting:
        quoted = showing.shell_word(one.document)
        typer.echo(f"parked: {one.waiting} events wait (instep parked show {quoted})")
    topics = [event.position.topic for event in one.events if not event.position.is_loaded]
    newest_topic = topics[-1] if topics else None
    rows = []
    for event in one.events:
        place = str(event.position)
        # After a rewind to a recreated topic, older events are kept under another name.
        if event.position.topic != newest_topic and not event.position.is_loaded:
            place = f"{event.position.topic} {place}"
        freshness = "unknown"
        if event.freshness_s is not None:
            freshness = f"{event.freshness_s:.3f} s"
        rows.append(
            (
                place,
                event.event_time,
                event.committed_at,
                freshness,
                event.status or "",
                "" if event.order is None else event.order,
                event.verdict,
                output.shortened(": ".join(filter(None, (event.reason, event.detail))), 100),
            )
        )
    if rows:
        typer.echo(output.table(EVENT_COLUMNS, rows))
    print_decisions(one.decisions)
    if one.row is None:
        typer.echo("\nthe table has no row for it")
    else:
        values = [(column, _shown(value)) for column, value in one.row.items()]
        typer.echo("\n" + output.table(("COLUMN", "VALUE"), values))
    for table, further_rows in one.further.items():
        typer.echo(f"\n{table}: {counted(len(further_rows), 'row')}")
        if further_rows:
            cells = [[_shown(value) for value in row.values()] for row in further_rows]
            typer.echo(output.table([name.upper() for name in further_rows[0]], cells))


def _shown(value: Any) -> Any:
    return "null" if value is None else value


def _json(one: Timeline) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(one)
    # A property, which msgspec leaves out.
    for shown_event, event in zip(shown["events"], one.events, strict=True):
        shown_event["freshness_s"] = event.freshness_s
    return shown
