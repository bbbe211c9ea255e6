"""`instep dead`: list, show, replay and drop dead letters."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from instep.pipeline.apply.maintenance import Change
    from instep.sinks.journal_entries import QuarantinedRecord, RecordPosition, Selection

GROUP_COLUMNS = ("PIPELINE", "REASON", "COUNT", "FIRST", "LAST")
LETTER_COLUMNS = ("PIPELINE", "TOPIC", "PLACE", "KEY", "REASON", "AT", "DETAIL")

app = help_pages.command_group("dead", "Handle dead letters: records that cannot be understood.")

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PARTITION:OFFSET]...", help="Dead letters. Default: those the options select."
    ),
]
Document = Annotated[
    str | None, typer.Option("--document", metavar="ID", help="Only this document.")
]


@app.command("list")
def list_letters(
    pipelines: PipelineNames = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    document: Document = None,
    each: Annotated[
        bool, typer.Option("--each", help="One line per dead letter, not per reason.")
    ] = False,
    limit: Limit = output.SHOWN_MAX,
    url: SinkUrl = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show dead letters by reason, with the first and last time, or each of them."""
    owners = quarantine.Owners(url)
    groups: list[Sequence[Any]] = []
    letters: list[tuple[str, QuarantinedRecord]] = []
    for name in options.select_pipelines(owners.settings, pipelines):
        with owners.session(name, reads=True) as session, session.read() as sink:
            selection = quarantine.select(session, (), reason, since, until, document)
            if each:
                letters += [(name, one) for one in sink.journal.dead_letters(selection, limit)]
            else:
                groups += [
                    (name, one.reason, one.count, one.first, one.last)
                    for one in sink.journal.dead_letter_reasons(selection)
                ]
    if as_json and each:
        shown = [quarantine.json_record(name, letter) for name, letter in letters]
        output.print_json({"letters": shown})
    elif as_json:
        keys = [name.lower() for name in GROUP_COLUMNS]
        output.print_json({"reasons": [dict(zip(keys, group, strict=True)) for group in groups]})
    elif letters:
        typer.echo(output.table(LETTER_COLUMNS, [_row(*letter) for letter in letters]))
        if len(letters) >= limit:
            output.say(f"showing the first {limit} of each pipeline; -n shows more")
    elif groups:
        typer.echo(output.table(GROUP_COLUMNS, groups))
    else:
        output.say("no dead letters")


@app.command("show")
def show(
    place: Annotated[
        str,
        typer.Argument(metavar="PARTITION:OFFSET", help="Its place, from `dead list --each`."),
    ],
    pipeline: PipelineName = None,
    url: SinkUrl = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show one dead letter in full: its bytes, its reason, and decisions about it."""
    from instep.document import reasons
    from instep.operate import selection
    from instep.sinks.journal_entries import Selection

    owners = quarantine.Owners(url)
    name = owners.selected(pipeline)
    with owners.session(name, reads=True) as session, session.read() as sink:
        position = selection.parse_position(session.sink.target.topic, place)
        letters = sink.journal.dead_letters(Selection(positions=(position,)))
        decisions = sink.journal.decisions(position=position)
    # A letter that was replayed or dropped is gone, but the decisions about it are kept.
    if not letters and not decisions:
        raise errors.SettingsError(
            f"pipeline {name!r} has no dead letter at {place}", "run: instep dead list --each"
        )
    if as_json:
        letter_json = quarantine.json_record(name, letters[0]) if letters else None
        output.print_json({"letter": letter_json, "decisions": decisions})
        return
    for letter in letters:
        where = letter.position
        explanation = reasons.EXPLANATIONS[reasons.Reason(letter.reason)]
        facts = {
            "place": f"topic {where.topic}, partition {where.partition}, offset {where.offset}",
            "reason": f"{letter.reason}: {explanation}",
            "detail": letter.detail,
            "at": letter.at,
            "key": output.shown_bytes(letter.record.key),
            "value": output.shown_bytes(letter.record.value),
        }
        for fact, value in facts.items():
            typer.echo(f"{fact:8}{output.cell(value)}")
    quarantine.print_decisions(decisions)


@app.command("replay")
def replay(
    places: Places = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    document: Document = None,
    everything: All = False,
    why: Why = None,
    pipeline: PipelineName = None,
    execute: Execute = False,
    url: SinkUrl = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Apply dead letters again, under the guard, after the settings or the table were fixed."""
    from instep.operate import dead_letters

    owners = quarantine.Owners(url)
    changes: list[Change] = []
    with (
        owners.session(owners.selected(pipeline)) as session,
        terminal.ProgressLine(sys.stderr) as line,
    ):
        selection = quarantine.select(session, places or (), reason, since, until, document)
        _require_selection(selection, everything)
        missing = dead_letters.missing(session, selection)
        overtaken = owners.overtaken(session)
        for change in dead_letters.replay(
            session, selection, overtaken, execute=execute, reason=why
        ):
            changes.append(change)
            line.update("replaying dead letters", len(changes), None, "events")
    _print_changes(changes, missing, execute, as_json)
    # A script must notice that letters were refused again.
    if any(change.verdict == dead_letters.DEAD for change in changes):
        raise typer.Exit(1)


@app.command("drop")
def drop(
    why: RequiredWhy,
    places: Places = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    document: Document = None,
    everything: All = False,
    pipeline: PipelineName = None,
    execute: Execute = False,
    url: SinkUrl = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Remove dead letters for good.

    instep_decisions keeps their places, their reasons and your --why. Their keys and values are
    deleted.
    """
    from instep.operate import dead_letters

    owners = quarantine.Owners(url)
    options.require_reason(why)
    name = owners.selected(pipeline)
    with owners.session(name) as session:
        selection = quarantine.select(session, places or (), reason, since, until, document)
        _require_selection(selection, everything)
        missing = dead_letters.missing(session, selection)
        changes = dead_letters.drop(session, selection, why, execute=execute)
    _print_changes(changes, missing, execute, as_json)


def _row(pipeline: str, letter: QuarantinedRecord) -> Sequence[Any]:
    return (
        pipeline,
        letter.position.topic,
        letter.position,
        output.shortened(output.shown_bytes(letter.record.key), 30),
        letter.reason,
        letter.at,
        output.shortened(letter.detail, 80),
    )


def _require_selection(selection: Selection, everything: bool) -> None:
    if not selection and not everything:
        raise errors.SettingsError(
            "no dead letters are selected",
            "name places, or give --reason, --since, --until, --document or --all",
        )


def _print_changes(
    changes: Sequence[Change], missing: Sequence[RecordPosition], execute: bool, as_json: bool
) -> None:
    quarantine.print_changes(
        changes,
        execute,
        as_json,
        nothing="no dead letter matches",
        missing={str(place): f"there is no dead letter at {place}" for place in missing},
        list_command="instep dead list --each",
    )
