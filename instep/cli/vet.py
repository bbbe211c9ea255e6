"""`instep vet`: check settings, cluster, topics, publishers and databases against the guarantee."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from instep import settings, terminal
from instep.cli import completion, options, output, resources
from instep.cli import help as help_pages
from instep.cli.options import GLOBAL, AsJson, Config, Debug

if TYPE_CHECKING:
    from instep.vet.snapshot import Snapshot

RULE_KEYS = ("id", "part", "threat", "when", "what", "consequence", "remedy", "acceptable_when")

app = typer.Typer(name="vet", cls=help_pages.GroupedCommands, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def vet(
    context: typer.Context,
    pipeline: Annotated[
        list[str] | None,
        typer.Option(
            "--pipeline",
            metavar="NAME",
            help="Pipeline. Can be repeated. Default: all.",
            autocompletion=completion.pipelines,
        ),
    ] = None,
    relay: Annotated[
        list[str] | None,
        typer.Option(
            "--relay",
            metavar="NAME",
            help="Relay. Can be repeated. Default: all.",
            autocompletion=completion.relays,
        ),
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            "--stream",
            metavar="NAME",
            help="Stream. Can be repeated. Default: all.",
            autocompletion=completion.streams,
        ),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Check the snapshot in this file without any server, or write it to a new file.",
        ),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Check publishers, pipelines, relays, streams and their servers against the guarantee."""
    # Typer also calls this function before a subcommand.
    if context.invoked_subcommand is not None:
        return
    from instep.vet import judgement, report

    verdict = judgement.judge(_snapshot(snapshot, pipeline or [], relay or [], stream or []))
    if as_json:
        output.print_json(verdict)
    else:
        typer.echo(_coloured(report.text(verdict)))
        output.say("about a rule: instep vet explain RULE")
    if verdict.errors:
        raise typer.Exit(1)


@app.command("explain")
def explain(
    rule: Annotated[
        str | None,
        typer.Argument(
            help="A rule's id. Default: list all rules.", autocompletion=completion.rules
        ),
    ] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Explain a rule: what it checks, why it matters, the remedy, and when it is acceptable."""
    from instep.vet import judgement, rules

    selected = [judgement.find_rule(rule)] if rule else list(rules.ALL.values())
    if as_json:
        shown = [{key: getattr(entry, key) for key in RULE_KEYS} for entry in selected]
        output.print_json({"rules": shown})
    elif rule:
        typer.echo(judgement.page(selected[0]))
    else:
        rows = [(entry.id, entry.threat, entry.what) for entry in selected]
        typer.echo(output.table(("RULE", "THREAT", "CHECKS"), rows))


def _snapshot(
    file: Path | None, pipelines: list[str], relays: list[str], streams: list[str]
) -> Snapshot:
    from instep.vet import gathering, snapshot

    # One option for both: the first run saves the snapshot, later runs check it.
    if file is not None and file.exists():
        saved = snapshot.only(snapshot.load(file), pipelines, relays, streams)
        output.say(
            f"checked the snapshot of {output.cell(saved.taken_at)} in {file};"
            " no server was contacted"
        )
        return saved
    loaded = settings.load_with_origins(GLOBAL.config)
    declared = loaded.settings
    if not pipelines and not relays and not streams:
        relays, streams = [*declared.relays], [*declared.streams]
        # Settings with relays or streams only are complete.
        if declared.pipelines or not (relays or streams):
            pipelines = options.select_pipelines(declared, None)
    with (
        resources.cluster(declared) as cluster,
        terminal.busy(sys.stderr, "reading cluster and databases"),
    ):
        taken = gathering.gather(cluster, declared, pipelines, loaded, relays, streams)
    if file is not None:
        snapshot.save(taken, file)
        output.say(f"the snapshot is in {file}")
    return taken


def _coloured(report: str) -> str:
    """Colour the severity at the start of each finding."""
    lines = []
    for line in report.splitlines():
        severity, _, rest = line.partition(" ")
        # Only findings begin with a word in capitals.
        tone = terminal.tone_of(severity) if severity.isupper() else terminal.Tone.NONE
        lines.append(f"{terminal.paint(severity, tone, sys.stdout)} {rest}" if tone else line)
    return "\n".join(lines)
