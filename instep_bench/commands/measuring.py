"""Run a benchmark, store its result and show it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from instep import extras, terminal
from instep.cli import output, pages

if TYPE_CHECKING:
    from instep_bench.result import BenchResult

# Options that do not affect the measurement; they are not part of the recorded command.
NOT_REPEATED = ("as_json", "html", "_debug")

Options = TypeVar("Options")


def measure(
    run: Callable[[Options, Callable[[str], None], str], BenchResult],
    options: Options,
    context: typer.Context,
    *,
    as_json: bool,
    html: Path | None,
) -> None:
    """Run a benchmark, store its result, and show it."""
    from instep_bench import page, store

    extras.require_spark()
    if html:
        # Now, not after minutes of measuring.
        pages.refuse_file(page.KIND, html, force=False, option="--html")
    into = store.folder()
    steps = 0
    with terminal.ProgressLine(sys.stderr) as line:

        def say(text: str) -> None:
            nonlocal steps
            line.clear()
            output.say(text)
            line.update("measuring", steps := steps + 1, None, "steps")

        file = store.keep(run(options, say, command_of(context)), into)
    output.say(f"stored as {file.stem}: {file}")
    # Show what was stored: without passwords, and without values that are not finite.
    result = store.read(file)
    if as_json:
        output.print_json({"result": file.stem, "file": str(file), **_all_of(result)})
    else:
        _show(result)
    if html:
        pages.write(
            page.KIND, lambda: page.render({file.stem: result}), html, force=False, option="--html"
        )
        output.say(f"page: {html.absolute()}")


def command_of(context: typer.Context) -> str:
    """Return the command that repeats the benchmark, with its options."""
    parts = ["instep", "bench", str(context.info_name)]
    for option in context.command.params:
        source, value = (
            context.get_parameter_source(str(option.name)),
            context.params.get(str(option.name)),
        )
        if option.name in NOT_REPEATED or source is None or source.name != "COMMANDLINE":
            continue
        if isinstance(value, bool):
            parts.append((option.opts if value else option.secondary_opts)[0])
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            parts += [option.opts[0], str(one)]
    return shlex.join(parts)


def _all_of(result: BenchResult) -> dict[str, Any]:
    """Return the result with a summary of the rounds of each figure."""
    figures = [
        {**msgspec.structs.asdict(one), "median": one.median, "low": one.low, "high": one.high}
        for one in result.figures
    ]
    return {**msgspec.structs.asdict(result), "figures": figures}


def _show(result: BenchResult) -> None:
    from instep_bench import page

    typer.echo(
        "\n\n".join(
            output.titled_table(table) for table in [*result.tables, *page.figures(result.figures)]
        )
    )
    typer.echo("\n" + "\n".join(output.cell(note) for note in result.notes))
