"""`instep settings`: every setting with its origin, and the state machines."""

from __future__ import annotations

from typing import Any

import msgspec
import typer

from instep import settings
from instep.cli import options, output
from instep.cli.options import GLOBAL, AsJson, Config, Debug, PipelineName
from instep.document import showing

app = typer.Typer()


@app.command("settings")
def show_settings(
    pipeline: PipelineName = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show every setting with its origin (secrets masked), and the state machines."""
    from instep.document import transitions

    loaded = settings.load_with_origins(GLOBAL.config)
    declared = loaded.settings
    names: list[str] = []
    if pipeline or declared.pipelines:
        names = options.select_pipelines(declared, [pipeline] if pipeline else None)
    values = loaded.shown()
    machines = {
        name: transitions.declare(settings.pipeline(declared, name).transitions) for name in names
    }
    findings = {
        name: transitions.findings(machine) for name, machine in machines.items() if machine
    }
    if as_json:
        origins = {key: loaded.origin(key) for key, _ in values}
        output.print_json({"settings": dict(values), "origins": origins, "findings": findings})
        return
    rows = [(key, _text(value), loaded.origin(key)) for key, value in values]
    typer.echo(output.table(("SETTING", "VALUE", "ORIGIN"), rows))
    for name, machine in machines.items():
        if machine:
            typer.echo(f"\nstatuses of {name}:\n")
            typer.echo("\n".join(map(showing.plain, transitions.picture(machine).split("\n"))))
            for finding in findings[name]:
                output.say(f"{name}: {finding}")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
