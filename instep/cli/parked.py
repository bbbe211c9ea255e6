"""`instep parked`: list, show and release parked documents, and skip the event that blocks one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from instep import errors, terminal
from instep.cli import help as help_pages
from instep.cli import options, output, quarantine
from instep.cli.options import (
    All,
    AsJson,
    Config,
    Debug,
    Execute,
    Limit,
    PipelineName,
    PipelineNames,
    Reason,
    RequiredWhy,
    Since,
    SinkUrl,
    Until,
    Why,
)
from instep.document import showing

if TYPE_CHECKING:
    from instep.pipeline.apply.maintenance import Change, MaintenanceSession
    from instep.pipeline.retry_policy import RetryOutlook
    from instep.sinks.journal_entries import ParkedHead

LIST_COLUMNS = (
    "PIPELINE",
    "DOCUMENT",
    "WAITING",
    "SINCE",
    "RETRIED",
    "PLACE",
    "REASON",
    "DETAIL",
)

app = help_pages.command_group(
    "parked", "Handle parked documents: an event was refused, and later events wait."
)

Document = Annotated[str, typer.Argument(help="The document's id.")]


@app.command("list")
def list_parked(
    pipelines: PipelineNames = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = output.SHOWN_MAX,
    url: SinkUrl = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show parked documents: why and since when each waits, and how long it is retried."""
    from instep.pipeline import retry_policy
    from instep.pipeline.apply import maintenance

    owners = quarantine.Owners(url)
    heads: list[tuple[str, ParkedHead, RetryOutlook]] = []
    now, total = maintenance.now(), 0
    for name in options.select_pipelines(owners.settings, pipelines):
        with owners.session(name, reads=True) as session, session.read() as sink:
            selection = quarantine.select(session, (), reason, since, until)
            for head in sink.journal.parked_heads(selection, limit):
                declared = owners.settings.pipelines[name]
                outlook = retry_policy.outlook(declared, head.reason, head.parked, now)
                heads.append((name, head, outlook))
            total += sink.journal.parked_count(selection)
    if as_json:
        documents = [
            {"pipeline": name, **msgspec.to_builtins(head), **msgspec.structs.asdict(outlook)}
            for name, head, outlook in heads
        ]
        output.print_json({"total": total, "documents": documents})
    elif heads:
        typer.echo(output.table(LIST_COLUMNS, [_row(*head) for head in heads]))
        if len(heads) < total:
            output.say(f"{len(heads)} of {total} parked documents; -n shows more")
    else:
        output.say("no document is parked")


@app.command("show")
def show(
    document: Document,
    pipeline: PipelineName = None,
    url: SinkUrl = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show the waiting events of a parked document in the order in which they are released."""
    from instep.pipeline import retry_policy
    from instep.pipeline.apply import maintenance

    owners = quarantine.Owners(url)
    name, document = owners.selected(pipeline), owners.document(document)
    with owners.session(name, reads=True) as session, session.read() as sink:
        waiting = sink.journal.waiting_events(document)
        decisions = sink.journal.decisions(document=document)
    if not waiting:
        raise errors.SettingsError(
            f"document {document!r} of pipeline {name!r} is not parked", "run: instep parked list"
        )
    first, declared = waiting[0], owners.settings.pipelines[name]
    outlook = retry_policy.outlook(declared, first.reason, first.parked, maintenance.now())
    if as_json:
        events = [quarantine.json_record(name, event) for event in waiting]
        output.print_json(
            {"waiting": events, "decisions": decisions, **msgspec.structs.asdict(outlook)}
        )
        return
    rows = [
        (
            event.position,
            event.at,
            event.reason,
            output.shortened(event.detail, 100),
            output.shortened(output.shown_bytes(event.record.value), 200),
        )
        for event in waiting
    ]
    typer.echo(output.table(("PLACE", "SINCE", "REASON", "DETAIL", "VALUE"), rows))
    if (retried := outlook.describe()) != retry_policy.NOT_RETRIED:
        typer.echo(f"retried: {retried}")
    quarantine.print_decisions(decisions)


@app.command("release")
def release(
    documents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DOCUMENT]...", help="Documents. Default: those the options select."
        ),
    ] = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    why: Why = None,
    pipeline: PipelineName = None,
    execute: Execute = False,
    url: SinkUrl = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Apply the waiting events of parked documents, in order, one transaction per document."""
    from instep.document.guard import Verdict
    from instep.pipeline.apply import release as releasing

    owners = quarantine.Owners(url)
    if not documents and not any((reason, since, until, everything)):
        raise errors.SettingsError(
            "no documents are selected",
            "name documents, or give --reason NAME, --since, --until or --all",
        )
    changes: list[Change] = []
    missing: list[str] = []
    with (
        owners.session(owners.selected(pipeline)) as session,
        terminal.ProgressLine(sys.stderr) as line,
    ):
        names = list(dict.fromkeys(map(owners.document, documents or ()))) or _parked_documents(
            session, reason, since, until
        )
        for number, name in enumerate(names):
            line.update("releasing", number, len(names), "documents")
            try:
                changes += releasing.release(session, name, execute=execute, reason=why)
            except errors.NotParked:
                missing.append(name)
    is_refused = any(change.verdict == Verdict.PARKED.value for change in changes)
    if is_refused:
        output.say(
            "events that are refused again stay parked: fix the cause, or skip the blocking event"
            " with: instep parked skip"
        )
    quarantine.print_changes(
        changes,
        execute,
        as_json,
        nothing="no parked document matches",
        missing={name: f"document {name!r} is not parked" for name in missing},
        list_command="instep parked list",
    )
    if is_refused:
        raise typer.Exit(1)


@app.command("skip")
def skip(
    document: Document,
    why: RequiredWhy,
    blocking: Annotated[
        str | None,
        typer.Option(
            "--event", metavar="PARTITION:OFFSET", help="Only if this event blocks the document."
        ),
    ] = None,
    pipeline: PipelineName = None,
    execute: Execute = False,
    url: SinkUrl = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Skip the event that blocks a document, with a reason; then run `parked release`."""
    from instep.operate import parked, selection

    owners = quarantine.Owners(url)
    options.require_reason(why)
    name = owners.selected(pipeline)
    with owners.session(name) as session:
        planned = None
        if blocking:
            planned = selection.parse_position(session.sink.target.topic, blocking)
        event, waiting = parked.skip(session, document, why, execute=execute, planned=planned)
    if as_json:
        output.print_json(
            {
                "executed": execute,
                "skipped": quarantine.json_record(name, event),
                "waiting": waiting,
            }
        )
    else:
        verb = "skipped" if execute else "would skip"
        typer.echo(f"{verb} {event.position} of {showing.plain(document)}: {event.reason}")
    if not execute:
        output.say_dry_run()
    elif waiting:
        quoted = showing.shell_word(document)
        output.say(f"{waiting} still waiting: instep parked release {quoted} --execute")
    else:
        output.say("the document is no longer parked")


def _parked_documents(
    session: MaintenanceSession, reason: str | None, since: str | None, until: str | None
) -> list[str]:
    with session.read() as sink:
        chosen = quarantine.select(session, (), reason, since, until)
        heads = sink.journal.parked_heads(chosen)
    return [head.document for head in heads]


def _row(pipeline: str, head: ParkedHead, outlook: RetryOutlook) -> Sequence[Any]:
    return (
        pipeline,
        head.document,
        head.waiting,
        head.since,
        outlook.describe(),
        head.position,
        head.reason,
        output.shortened(head.detail, 80),
    )
