"""`instep bench report`: write results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from instep.cli import output, pages
from instep.cli.options import AsJson, Debug
from instep_bench.commands import stored

REPORT_FILE = Path("bench-report.html")
LATEST = "latest"

app = typer.Typer()


@app.command("report")
def write_report(
    results: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RESULT]...",
            help="Ids, files, or latest. Default: latest.",
            autocompletion=stored.complete,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = REPORT_FILE,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not such a report.")
    ] = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Write results as one self-contained HTML page, with spread, plots and machine."""
    from instep_bench import page

    found = dict(stored.find(named) for named in results or [LATEST])
    pages.write(page.KIND, lambda: page.render(found), out, force=force)
    if as_json:
        output.print_json({"file": str(out.absolute()), "results": list(found)})
    else:
        output.say(f"{out.absolute()}: {', '.join(found)}")
