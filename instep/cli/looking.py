"""Commands that look: a document's timeline, the settings in force, the history's size."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from instep import errors, settings
from instep.cli import grouping, shared
from instep.cli.shared import GIVEN, AsJson, Config, Debug, Named, Pipelines
from instep.document import showing

PRUNED_SAID_EVERY = 100_000

app = typer.Typer()
history_app = typer.Typer(
    name="history",
    no_args_is_help=True,
    cls=grouping.GroupedCommands,
    rich_markup_mode=None,
    help="The history of every event.",
)
app.add_typer(history_app)


@app.command()
def show(
    document: Annotated[str, typer.Argument(help="The document's id.")],
    pipeline: Annotated[
        str | None,
        typer.Option("--pipeline", metavar="NAME", help="Which pipeline; left out: all."),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show the timeline of a document: events with verdicts, decisions, and its row."""
    from instep.operate import timeline

    declared = settings.load(GIVEN.config)
    names = shared.chosen(declared, [pipeline] if pipeline else None)
    found, unfit = [], []
    for name in names:
        with shared.session(declared, name) as session:
            if not session.sink.target.history:
                shared.say(
                    f"{name}: no history is kept (history = false), so the topic is read: times of commits are unknown"
                )
            try:
                found.append(timeline.read(session, document, lambda: shared.cluster(declared)))
            except errors.NoSuchDocument as error:  # another pipeline's key may be of another type
                unfit.append(error)
    if unfit and not found:
        raise unfit[0]
    known = [one for one in found if one]
    if as_json:
        shared.print_json([_json(one) for one in known])
    else:
        for one in known:
            _print_timeline(one)
    if not known:
        raise errors.SettingsError(
            f"no pipeline knows document {document!r} (asked: {', '.join(names)})",
            "ids are compared exactly, case and spaces included",
        )


@history_app.command("prune")
def prune(
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE|TIME", help="Remove what was committed before: 90d, 12h or a time."
        ),
    ],
    pipelines: Pipelines = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Remove old rows of instep_history, in chunks, while the pipeline runs. The tables it follows are not touched."""
    from instep.operate import history

    declared = settings.load(GIVEN.config)
    age = older_than.removeprefix("@").removeprefix("-")
    before = shared.when(f"-{age}" if age[-1:] in "smhd" and age[:-1].isdigit() else older_than)
    assert before is not None
    for name in shared.chosen(declared, pipelines):
        with shared.session(declared, name) as session:
            gone = history.prune(session, before, execute=not dry_run, progress=_Steps(name))
        verb = "would go" if dry_run else "removed"
        typer.echo(f"{name}: {gone} rows {verb}, committed before {shared.cell(before)}")


@app.command("settings")
def show_settings(
    pipeline: Named = None, as_json: AsJson = False, _config: Config = None, _debug: Debug = False
) -> None:
    """Show every setting with its origin (secrets masked), and the state machines."""
    from instep.document import transitions

    loaded = settings.load_with_origins(GIVEN.config)
    declared = loaded.settings
    names = (
        shared.chosen(declared, [pipeline] if pipeline else None)
        if pipeline or declared.pipelines
        else []
    )
    values = loaded.shown()
    machines = {
        name: transitions.declare(settings.pipeline(declared, name).transitions) for name in names
    }
    said = {name: transitions.findings(machine) for name, machine in machines.items() if machine}
    if as_json:
        origins = {key: loaded.origin(key) for key, _ in values}
        shared.print_json({"settings": dict(values), "origins": origins, "findings": said})
        return
    rows = [
        (key, "" if value is None else _text(value), loaded.origin(key)) for key, value in values
    ]
    typer.echo(shared.table(("SETTING", "VALUE", "ORIGIN"), rows))
    for name, machine in machines.items():
        if machine:
            typer.echo(f"\nstatuses of {name}:\n")
            typer.echo("\n".join(map(showing.plain, transitions.picture(machine).split("\n"))))
            for finding in said[name]:
                shared.say(f"{name}: {finding}")


class _Steps:
    """Says how far a long work is, now and then."""

    def __init__(self, name: str) -> None:
        self._name, self._next = name, PRUNED_SAID_EVERY

    def __call__(self, gone: int) -> None:
        if gone >= self._next:
            self._next = gone + PRUNED_SAID_EVERY
            shared.say(f"{self._name}: {gone:,} rows so far")


def _print_timeline(one: Any) -> None:
    typer.echo(
        f"document {showing.plain(one.document)} of pipeline {one.pipeline}, from the {one.source}"
    )
    if one.waiting:
        typer.echo(
            f"parked: {one.waiting} events wait (instep parked show {showing.plain(one.document)})"
        )
    head = ("PLACE", "EVENT-TIME", "COMMITTED", "FRESHNESS", "STATUS", "ORDER", "VERDICT", "WHY")
    rows = [
        (
            moment.place
            if moment.place.topic == one.events[-1].place.topic
            else f"{moment.place.topic} {moment.place}",
            moment.event_time,
            moment.committed_at,
            f"{moment.freshness_s:.3f} s" if moment.freshness_s is not None else "unknown",
            moment.status or "",
            "" if moment.order is None else moment.order,
            moment.verdict,
            shared.shortened(": ".join(filter(None, (moment.reason, moment.detail))), 100),
        )
        for moment in one.events
    ]
    if rows:
        typer.echo(shared.table(head, rows))
    if one.decisions:
        decided = [
            (d.at, d.action, d.place, d.outcome, d.actor, shared.shortened(d.reason, 100))
            for d in one.decisions
        ]
        typer.echo(
            "\n" + shared.table(("DECIDED", "DEED", "PLACE", "OUTCOME", "WHO", "WHY"), decided)
        )
    if one.row is None:
        typer.echo("\nthe table has no row of it")
    else:
        typer.echo(
            "\n"
            + shared.table(
                ("COLUMN", "VALUE"), [(k, "null" if v is None else v) for k, v in one.row.items()]
            )
        )


def _json(one: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(one)
    for event, moment in zip(found["events"], one.events, strict=True):
        event["freshness_s"] = moment.freshness_s
    return found


def _text(value: Any) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
