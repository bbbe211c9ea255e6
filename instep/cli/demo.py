"""`instep demo`: compare polling with events in a terminal, and keep a folder to explore."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from instep import errors, extras, terminal
from instep.cli import output
from instep.cli.options import AsJson, Debug
from instep.terminal import Tone

if TYPE_CHECKING:
    from instep.demo.story import DemoResult

app = typer.Typer()

PAGE = "demo.html"
SETTINGS_NOTE = """\
# Written by `instep demo`. Its broker has stopped, so only commands that use just the database
# work: show, dead, parked, history, and their pages in the console.

"""


@app.command()
def demo(
    target: Annotated[
        str | None,
        typer.Option(metavar="URL", help="URL of the database to use instead of a SQLite file."),
    ] = None,
    documents: Annotated[
        int, typer.Option(min=100, max=99_999, metavar="N", help="Number of documents.")
    ] = 9_000,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A new folder for the results. Default: ./instep-demo, numbered if it exists.",
        ),
    ] = None,
    console: Annotated[
        bool,
        typer.Option(
            "--console", help="Instead, keep events flowing and show them in a web console."
        ),
    ] = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Compare polling with events while processes are killed, in about 90 seconds."""
    from instep.demo import report, stage, story
    from instep.report import web_page

    if console:
        _show_flow(target, documents, folder)
        return

    results = story.new_folder(folder)
    try:
        with stage.DemoTerminal(sys.stderr) as shown:
            result, samples = story.run(
                target_url=target, documents=documents, folder=results.absolute(), stage=shown
            )
    except SystemExit:  # interrupted; after an error the folder stays, because its logs help
        story.discard(results)
        output.say("interrupted: the demo's servers were stopped, and its folder was removed")
        raise
    # With --target, nothing is left to look at: the demo has removed its tables.
    commands = [] if target else _commands(results, result)
    page: Path | None = results / PAGE
    try:
        web_page.write(report.render(result, samples, commands), results / PAGE)
    except errors.MissingPart as error:
        page = None
        output.say(f"no report: {error.what}; install it with: {error.remedy}")
    if not target:
        _annotate(results / "instep.toml")
    if as_json:
        output.print_json(
            {
                **msgspec.to_builtins(result),
                "folder": str(results),
                "page": str(page) if page else None,
                "commands": commands,
            }
        )
    else:
        _print(result, page, commands)
    if result.differences:
        raise typer.Exit(1)


def _show_flow(target: str | None, documents: int, folder: Path | None) -> None:
    """Keep events flowing, and serve the console until it is stopped."""
    if target:
        raise errors.SettingsError(
            "--console uses a SQLite file of its own", "leave out --target or --console"
        )
    extras.require_console()
    from instep.cli import console
    from instep.demo import flowing, story

    results = story.new_folder(folder)
    with flowing.flowing(documents, results.absolute(), output.say) as config:
        console.serve(config, port=0, open_browser=True)


def _print(result: DemoResult, page: Path | None, commands: Sequence[str]) -> None:
    from instep.demo import story

    typer.echo(f"\nthe life of {result.document}:\n")
    rows: list[Sequence[Any]] = [
        (
            step.place,
            step.status,
            step.version,
            step.happened,
            _milliseconds(step.freshness_ms),
            step.verdict,
        )
        for step in result.life
    ]
    typer.echo(
        output.table(("PLACE", "STATUS", "VERSION", "HAPPENED", "FRESHNESS", "VERDICT"), rows)
    )
    typer.echo("")
    for line in story.table(result).splitlines():
        typer.echo(terminal.paint(line, _tone(line, result), sys.stdout))
    if page:
        typer.echo(f"\na page to share with colleagues: {page}")
    if commands:
        typer.echo("commands to try while the folder exists:")
        for command in commands:
            typer.echo(f"  {command}")
    if page and commands:
        config = str(page.with_name("instep.toml"))
        console = shlex.join([*_program(), "--config", config, "console", "--open"])
        typer.echo(f"the same in a browser:\n  {console}")


def _tone(line: str, result: DemoResult) -> Tone:
    """Return green for the correct result of the comparison and red for a wrong one."""
    if line.startswith("differences"):
        return Tone.BAD if result.differences else Tone.GOOD
    if line.startswith("naive loop") and result.naive.differences:
        return Tone.BAD
    return Tone.NONE


def _commands(folder: Path, result: DemoResult) -> list[str]:
    """Return commands that work on the folder and can be pasted into the shell."""
    start = [*_program(), "--config", str(folder / "instep.toml")]
    examples = (
        ["show", result.document],
        ["dead", "list", "--each"],
        ["dead", "show", result.dead_letter],
    )
    return [shlex.join([*start, *arguments]) for arguments in examples]


def _program() -> list[str]:
    """Return how instep is started here: `make demo` runs one that is not on PATH."""
    if shutil.which("instep"):
        return ["instep"]
    beside = Path(sys.executable).with_name("instep")
    if beside.exists():
        return [os.path.relpath(beside)]
    return [sys.executable, "-m", "instep"]


def _annotate(config: Path) -> None:
    config.write_text(SETTINGS_NOTE + config.read_text(encoding="utf-8"), encoding="utf-8")


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} ms"
