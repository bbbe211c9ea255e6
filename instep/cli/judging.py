"""Commands that judge: settings end to end against the declared guarantee."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from instep import settings, terminal
from instep.cli import completing, grouping, shared
from instep.cli.shared import GIVEN, AsJson, Config, Debug

if TYPE_CHECKING:
    from instep.vet.snapshot import Snapshot

app = typer.Typer()
vet_app = typer.Typer(name="vet", cls=grouping.GroupedCommands, rich_markup_mode=None)
app.add_typer(vet_app)


@vet_app.callback(invoke_without_command=True)
def vet(
    context: typer.Context,
    pipeline: Annotated[
        list[str] | None,
        typer.Option(
            "--pipeline",
            metavar="NAME",
            help="Only this pipeline; may be given again.",
            autocompletion=completing.pipelines,
        ),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Judge what this file holds, asking nobody; if it is not there, write what is found to it.",
        ),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Check cluster, topic, publishers, pipeline and database against the guarantee."""
    if context.invoked_subcommand is not None:
        return
    from instep.vet import judgement, report

    verdict = judgement.judge(_snapshot(snapshot, pipeline))
    if as_json:
        shared.print_json(verdict)
    else:
        typer.echo(_coloured(report.text(verdict)))
        shared.say("the page of a rule: instep vet explain RULE")
    if verdict.errors:
        raise typer.Exit(1)


@vet_app.command("explain")
def explain(
    rule: Annotated[
        str | None,
        typer.Argument(
            help="A rule's name; left out: all of them, a line each.",
            autocompletion=completing.rules,
        ),
    ] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """What a rule looks for, why it matters, how to fix it, and when this is fine."""
    from instep.vet import judgement, rules

    chosen = [judgement.explained(rule)] if rule else list(rules.ALL.values())
    if as_json:
        keys = ("id", "part", "threat", "when", "what", "why", "mend", "fine")
        shared.print_json([{key: getattr(one, key) for key in keys} for one in chosen])
    elif rule:
        typer.echo(judgement.page(chosen[0]))
    else:
        typer.echo(
            shared.table(
                ("RULE", "THREAT", "WHAT"), [(one.id, one.threat, one.what) for one in chosen]
            )
        )


@app.command()
def doctor(as_json: AsJson = False, _config: Config = None, _debug: Debug = False) -> None:
    """Check that everything instep needs is installed, reachable and permitted."""
    from instep.vet import doctor as examining

    found = []
    for check in examining.examine(GIVEN.config):
        found.append(check)
        if not as_json:
            typer.echo(f"{check.state:6}{shared.cell(check.part)}: {shared.cell(check.found)}")
            if check.fix:
                typer.echo(f"{'':6}{shared.cell(check.fix)}")
    if as_json:
        shared.print_json(found)
    wrong = sum(check.state == examining.CheckState.WRONG for check in found)
    shared.say(
        f"{wrong} of {len(found)} checks found something wrong"
        if wrong
        else f"all {len(found)} checks are well"
    )
    if wrong:
        raise typer.Exit(1)


def _snapshot(file: Path | None, names: list[str] | None) -> Snapshot:
    from instep.vet import gathering, snapshot

    if file is not None and file.exists():
        held = snapshot.only(snapshot.load(file), names or [])
        shared.say(f"judged as of {shared.cell(held.taken_at)}, from {file}: nobody was asked")
        return held
    loaded = settings.load_with_origins(GIVEN.config)
    chosen = shared.chosen(loaded.settings, names)
    with shared.cluster(loaded.settings) as cluster:
        taken = gathering.gather(cluster, loaded.settings, chosen, loaded)
    if file is not None:
        snapshot.save(taken, file)
        shared.say(f"what was found is in {file}")
    return taken


def _coloured(report: str) -> str:
    """Colour the severity that a finding begins with."""
    lines = []
    for line in report.splitlines():
        severity, _, rest = line.partition(" ")
        tone = terminal.tone_of(severity) if severity.isupper() else terminal.Tone.NONE
        lines.append(f"{terminal.paint(severity, tone, sys.stdout)} {rest}" if tone else line)
    return "\n".join(lines)
