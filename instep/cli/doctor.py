"""`instep doctor`: check the installation, the servers and the permissions that instep needs."""

from __future__ import annotations

import typer

from instep.cli import output
from instep.cli.options import GLOBAL, AsJson, Config, Debug

app = typer.Typer()


@app.command()
def doctor(as_json: AsJson = False, _config: Config = None, _debug: Debug = False) -> None:
    """Check that everything instep needs is installed, reachable and permitted."""
    from instep.vet import doctor as checks

    results = []
    for check in checks.examine(GLOBAL.config):
        results.append(check)
        # At once: a server that does not answer holds up the checks behind it.
        if not as_json:
            typer.echo(f"{check.state:6}{output.cell(check.part)}: {output.cell(check.found)}")
            if check.fix:
                typer.echo(f"{'':6}{output.cell(check.fix)}")
    if as_json:
        output.print_json({"checks": results})
    failed = sum(check.state == checks.CheckState.WRONG for check in results)
    if failed:
        output.say(f"{failed} of {len(results)} checks failed")
        raise typer.Exit(1)
    output.say(f"all {len(results)} checks passed")
