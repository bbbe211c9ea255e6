"""Commands for what was set aside: dead letters and parked documents."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import errors, settings
from instep.cli import grouping, shared
from instep.cli.shared import GIVEN, AsJson, Config, Debug, Execute, Named, Pipelines
from instep.document import showing

if TYPE_CHECKING:
    from instep.pipeline.apply.maintenance import Change, MaintenanceSession
    from instep.sinks.journal_entries import (
        ParkedHead,
        QuarantinedRecord,
        RecordPosition,
        Selection,
    )

app = typer.Typer()
dead_app = typer.Typer(
    name="dead",
    no_args_is_help=True,
    cls=grouping.GroupedCommands,
    rich_markup_mode=None,
    help="Dead letters: events that nobody could understand.",
)
parked_app = typer.Typer(
    name="parked",
    no_args_is_help=True,
    cls=grouping.GroupedCommands,
    rich_markup_mode=None,
    help="Documents whose event was refused for a business reason; later events wait.",
)
app.add_typer(dead_app)
app.add_typer(parked_app)

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PARTITION:OFFSET]...", help="Which; left out: those that the options choose."
    ),
]
Reasoned = Annotated[
    str | None, typer.Option("--reason", metavar="NAME", help="Only those with this reason.")
]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Set aside at or after: 2026-11-01T08:00 (UTC) or -1h."),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Set aside before this time.")]
OfDocument = Annotated[
    str | None,
    typer.Option("--document", metavar="ID", help="Only those of this document (by key)."),
]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]
Limit = Annotated[int, typer.Option("-n", "--limit", min=1, help="How many to show at most.")]
NeedsWhy = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="Why; kept in instep_decisions.")
]


@dead_app.command("list")
def list_dead(
    pipelines: Pipelines = None,
    reason: Reasoned = None,
    since: Since = None,
    until: Until = None,
    document: OfDocument = None,
    each: Annotated[bool, typer.Option("--each", help="One line a letter, not a reason.")] = False,
    limit: Limit = shared.SHOWN_MAX,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Dead letters by reason, with first and last seen; or each of them."""
    declared = settings.load(GIVEN.config)
    groups: list[Sequence[Any]] = []
    letters: list[tuple[str, QuarantinedRecord]] = []
    for name in shared.chosen(declared, pipelines):
        with shared.session(declared, name) as session, session.read() as sink:
            chosen = _choice(session, [], reason, since, until, document)
            if each:
                letters += [(name, one) for one in sink.journal.dead_letters(chosen, limit)]
            else:
                groups += [
                    (name, one.reason, one.count, one.first, one.last)
                    for one in sink.journal.dead_letter_reasons(chosen)
                ]
    head = ("PIPELINE", "REASON", "COUNT", "FIRST", "LAST")
    if as_json:
        keys = [name.lower() for name in head]
        shared.print_json(
            [_json_letter(*one) for one in letters]
            if each
            else [dict(zip(keys, g, strict=True)) for g in groups]
        )
    elif each and letters:
        rows = [
            (
                name,
                one.place.topic,
                one.place,
                shared.shortened(shared.shown_bytes(one.record.key), 30),
                one.reason,
                one.at,
                shared.shortened(one.detail, 80),
            )
            for name, one in letters
        ]
        typer.echo(
            shared.table(("PIPELINE", "TOPIC", "PLACE", "KEY", "REASON", "AT", "DETAIL"), rows)
        )
        if len(letters) >= limit:
            shared.say(f"the first {limit} of each pipeline; -n shows more")
    elif groups:
        typer.echo(shared.table(head, groups))
    else:
        shared.say("no dead letters")


@dead_app.command("show")
def show_dead(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PARTITION:OFFSET", help="Where the letter lies, as `dead list --each` says."
        ),
    ],
    pipeline: Named = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """One dead letter whole: its bytes, its reason, and what was decided about it."""
    from instep.document.reasons import EXPLANATIONS, Reason
    from instep.sinks.journal_entries import Selection

    declared = settings.load(GIVEN.config)
    name = shared.named(declared, pipeline)
    with shared.session(declared, name) as session, session.read() as sink:
        where = _place(session, place)
        letters = sink.journal.dead_letters(Selection(places=(where,)))
        decided = sink.journal.decisions(place=where)
    if not letters and not decided:
        raise errors.SettingsError(
            f"pipeline {name!r} has no dead letter at {place}", "run: instep dead list --each"
        )
    if as_json:
        shared.print_json(
            {"letter": _json_letter(name, letters[0]) if letters else None, "decisions": decided}
        )
        return
    for letter in letters:
        explained = EXPLANATIONS[Reason(letter.reason)]
        facts = [
            (
                "place",
                f"topic {letter.place.topic}, partition {letter.place.partition}, offset {letter.place.offset}",
            ),
            ("reason", f"{letter.reason}: {explained}"),
            ("detail", letter.detail),
            ("at", letter.at),
            ("key", shared.shown_bytes(letter.record.key)),
            ("value", shared.shown_bytes(letter.record.value)),
        ]
        for what, value in facts:
            typer.echo(f"{what:8}{shared.cell(value)}")
    _print_decisions(decided)


@dead_app.command("replay")
def replay_dead(
    places: Places = None,
    reason: Reasoned = None,
    since: Since = None,
    until: Until = None,
    document: OfDocument = None,
    everything: Everything = False,
    pipeline: Named = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Apply dead letters again, under the guard, after the settings or the table were fixed."""
    from instep.operate import dead_letters, replay

    declared = settings.load(GIVEN.config)
    with shared.session(declared, shared.named(declared, pipeline)) as session:
        chosen = _choice(session, places or [], reason, since, until, document)
        _need_choice(chosen, everything)
        missing = dead_letters.missing(session, chosen)
        overtaken = replay.Overtaken(session, lambda: shared.cluster(declared))
        lines = list(dead_letters.replay(session, chosen, overtaken, execute=execute))
    _print_dead(lines, missing, execute, as_json)
    if any(line.verdict == dead_letters.DEAD for line in lines):
        raise typer.Exit(1)


@dead_app.command("drop")
def drop_dead(
    why: NeedsWhy,
    places: Places = None,
    reason: Reasoned = None,
    since: Since = None,
    until: Until = None,
    document: OfDocument = None,
    everything: Everything = False,
    pipeline: Named = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Take dead letters out for good. Their places, the reason and your words stay in instep_decisions; their bytes go."""
    from instep.operate import dead_letters

    declared = settings.load(GIVEN.config)
    _need_words(why)
    with shared.session(declared, shared.named(declared, pipeline)) as session:
        chosen = _choice(session, places or [], reason, since, until, document)
        _need_choice(chosen, everything)
        missing = dead_letters.missing(session, chosen)
        lines = dead_letters.drop(session, chosen, why, execute=execute)
    _print_dead(lines, missing, execute, as_json)


@parked_app.command("list")
def list_parked(
    pipelines: Pipelines = None,
    reason: Reasoned = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = shared.SHOWN_MAX,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Parked documents: why each waits, since when, and until when it is retried."""
    from instep.pipeline import retries
    from instep.pipeline.apply import maintenance

    declared = settings.load(GIVEN.config)
    found: list[tuple[str, ParkedHead]] = []
    now = maintenance.now()
    totals = 0
    for name in shared.chosen(declared, pipelines):
        with shared.session(declared, name) as session, session.read() as sink:
            found += [
                (name, one)
                for one in sink.journal.parked_heads(
                    _choice(session, [], reason, since, until, None), limit
                )
            ]
            totals += sink.journal.parked_count()
    ends = [
        retries.retried_until(declared.pipelines[name], one.reason, one.since, now)
        for name, one in found
    ]
    if as_json:
        shared.print_json(
            [
                {"pipeline": name, **_json(one), "retried_until": at}
                for (name, one), at in zip(found, ends, strict=True)
            ]
        )
    elif found:
        head = (
            "PIPELINE",
            "DOCUMENT",
            "WAITING",
            "SINCE",
            "RETRIED UNTIL",
            "PLACE",
            "REASON",
            "DETAIL",
        )
        rows = [
            (
                name,
                one.document,
                one.waiting,
                one.since,
                at or "-",
                one.place,
                one.reason,
                shared.shortened(one.detail, 80),
            )
            for (name, one), at in zip(found, ends, strict=True)
        ]
        typer.echo(shared.table(head, rows))
        if len(found) < totals:
            shared.say(f"{len(found)} of {totals} parked documents; -n shows more")
    else:
        shared.say("no document is parked")


@parked_app.command("show")
def show_parked(
    document: str,
    pipeline: Named = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """A parked document's waiting events, in the order in which a release applies them."""

    declared = settings.load(GIVEN.config)
    name = shared.named(declared, pipeline)
    with shared.session(declared, name) as session, session.read() as sink:
        waiting = sink.journal.waiting_events(document)
        decided = sink.journal.decisions(document=document)
    if not waiting:
        raise errors.SettingsError(
            f"document {document!r} of pipeline {name!r} is not parked", "run: instep parked list"
        )
    if as_json:
        shared.print_json(
            {"waiting": [_json_letter(name, one) for one in waiting], "decisions": decided}
        )
        return
    rows = [
        (
            one.place,
            one.at,
            one.reason,
            shared.shortened(one.detail, 100),
            shared.shortened(shared.shown_bytes(one.record.value), 200),
        )
        for one in waiting
    ]
    typer.echo(shared.table(("PLACE", "SINCE", "REASON", "DETAIL", "VALUE"), rows))
    _print_decisions(decided)


@parked_app.command("release")
def release(
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOCUMENT]...", help="Which documents.")
    ] = None,
    reason: Reasoned = None,
    everything: Everything = False,
    pipeline: Named = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would happen.")
    ] = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Apply the waiting events of parked documents, in order, a document in one transaction."""
    from instep.document.guard import Verdict
    from instep.pipeline.apply import release
    from instep.sinks.journal_entries import Selection

    declared = settings.load(GIVEN.config)
    if not documents and not reason and not everything:
        raise errors.SettingsError(
            "no document is named", "name documents, or say --reason NAME or --all"
        )
    lines: list[Change] = []
    missing: list[str] = []
    with shared.session(declared, shared.named(declared, pipeline)) as session:
        names = list(dict.fromkeys(documents or []))
        if not names:
            with session.read() as sink:
                names = [
                    one.document for one in sink.journal.parked_heads(Selection(reason=reason))
                ]
        for name in names:
            try:
                lines += release.release(session, name, execute=not dry_run)
            except release.NotParked:
                missing.append(name)
    if lines or not missing:
        shared.print_lines(
            lines,
            not dry_run,
            as_json,
            nothing="no document is parked for that reason",
            how="without --dry-run it is",
            not_found=missing,
        )
    if waits := any(line.verdict == Verdict.PARKED.value for line in lines):
        shared.say(
            "what is refused again goes on waiting: mend its reason, or pass the first over: instep parked skip"
        )
    _refuse_missing(
        [f"document {name!r} is not parked" for name in missing], "instep parked list", lines
    )
    if waits:
        raise typer.Exit(1)


@parked_app.command("skip")
def skip(
    document: str,
    why: NeedsWhy,
    pipeline: Named = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Pass over the event that holds a document, with a reason. What waits behind it is released by `parked release`."""
    from instep.operate import parked

    declared = settings.load(GIVEN.config)
    _need_words(why)
    with shared.session(declared, shared.named(declared, pipeline)) as session:
        passed, left = parked.skip(session, document, why)
    if as_json:
        shared.print_json({"skipped": _json_letter(session.name, passed), "waiting": left})
    else:
        typer.echo(f"skipped {passed.place} of {showing.plain(document)}: {passed.reason}")
    shown = showing.plain(shlex.quote(document))
    shared.say(
        f"{left} still wait: instep parked release {shown}" if left else "the document is free"
    )


# --- parts --------------------------------------------------------------------------------------------


def _choice(
    session: MaintenanceSession,
    places: list[str],
    reason: str | None,
    since: str | None,
    until: str | None,
    document: str | None,
) -> Selection:
    from instep.document.reasons import Reason
    from instep.sinks.journal_entries import Selection

    if reason is not None and reason not in set(Reason):
        raise errors.SettingsError(
            f"there is no reason {reason!r}{settings.nearest(reason, [one.value for one in Reason])}",
            "run: instep dead list",
        )
    where = tuple(_place(session, text) for text in places)
    return Selection(
        reason=reason,
        since=shared.when(since),
        until=shared.when(until),
        document=document,
        places=where,
    )


def _place(session: MaintenanceSession, text: str) -> RecordPosition:
    from instep.sinks.journal_entries import RecordPosition

    partition, _, offset = text.partition(":")
    if not (
        partition.isascii()
        and partition.isdigit()
        and offset.isascii()
        and offset.isdigit()
        and len(text) < 30
    ):
        raise errors.SettingsError(
            f"{text!r} is no place", "write PARTITION:OFFSET, such as 2:1745"
        )
    return RecordPosition(session.sink.target.topic, int(partition), int(offset))


def _need_choice(chosen: Selection, everything: bool) -> None:
    if not chosen and not everything:
        raise errors.SettingsError(
            "nothing is chosen",
            "name places, say --reason, --since, --until or --document, or --all",
        )


def _need_words(why: str) -> None:
    if not why.strip():
        raise errors.SettingsError(
            "--why is empty", "say why: whoever looks at it later will want to know"
        )


def _print_dead(
    lines: Sequence[Change], missing: Sequence[RecordPosition], execute: bool, as_json: bool
) -> None:
    """What became of dead letters; ends with an error when one that was named is not there."""
    if lines or not missing:
        shared.print_lines(
            lines,
            execute,
            as_json,
            nothing="no dead letter is chosen",
            not_found=list(map(str, missing)),
        )
    _refuse_missing(
        [f"there is no dead letter at {place}" for place in missing],
        "instep dead list --each",
        lines,
    )


def _refuse_missing(texts: Sequence[str], remedy: str, lines: Sequence[Change]) -> None:
    """End with an error when something was named that is not there; what was there has been done, unless nothing was."""
    if texts and not lines:
        raise errors.SettingsError(f"nothing was done: {'; '.join(texts)}", f"run: {remedy}")
    for text in texts:
        shared.say(f"instep: {text}")
    if texts:
        shared.say(f"run: {remedy}")
        raise typer.Exit(1)


def _print_decisions(decided: Sequence[Any]) -> None:
    if decided:
        rows = [
            (
                one.at,
                one.action,
                one.place,
                one.outcome,
                one.actor,
                shared.shortened(one.reason, 100),
            )
            for one in decided
        ]
        typer.echo("\n" + shared.table(("DECIDED", "DEED", "PLACE", "OUTCOME", "WHO", "WHY"), rows))


def _json(value: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def _json_letter(pipeline: str, one: QuarantinedRecord) -> dict[str, Any]:
    return {
        "pipeline": pipeline,
        "place": one.place,
        "document": one.document,
        "reason": one.reason,
        "detail": one.detail,
        "at": one.at,
        "timestamp_ms": one.record.timestamp_ms,
        "key": shared.json_bytes(one.record.key),
        "value": shared.json_bytes(one.record.value),
    }
