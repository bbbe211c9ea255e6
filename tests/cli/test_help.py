"""Test `--help`: commands in groups, summaries on one line, and one help text per option."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from instep import cli
from instep.cli import help as help_pages

ROOT: Any = get_command(cli.build_app())
GROUPS: dict[str, Any] = {
    "instep": ROOT,
    **{
        f"instep {name}": command
        for name, command in ROOT.commands.items()
        if hasattr(command, "commands")
    },
}

# Options that mean different things on different commands, and why they share their name.
DIFFERENT = {
    "--archive": "reads from an archive (replay), or compares one (reconcile)",
    "--bootstrap": "a benchmark starts its own broker; the lab starts what a claim needs",
    "--force": "what a topic or a file is protected against",
    "--from": "a place in the log, or what load reads",
    "--history": "a benchmark keeps a history, or makes one of this size",
    "--key": "the field that becomes the key, the source's field, or a key itself",
    "--older-than": "an age or a time for prune, the time in a status for overdue",
    "--out": "a report, or the rows that differ",
    "--port": "the console has one port, `up` has one per server",
    "--rate": "load has a limit; a benchmark sets the rate",
    "--rows": "each benchmark counts its own rows",
    "--seconds": "each benchmark measures its own part",
    "--source": "a file (reconcile), or a database (bench)",
    "--target": "demo takes a URL; some benchmarks start only their own servers",
    "--to": "a place in the log; resets also have their own words",
    "--topic": "one topic, or several with their partitions",
    "-p": "--partition, and --partitions where a topic is created or grown, as in rpk",
}
# Sentences that may follow the one that says what an option does.
NOTE = re.compile(r"Default: |Can be |Needed if |Needs ")


def parameters(command: Any, path: str = "instep") -> Iterator[tuple[str, str, str]]:
    """Yield each command with the names and help of its options and arguments."""
    for parameter in command.params:
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
        for name in names:
            yield path, name, parameter.help or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(below, f"{path} {name}")


def options_with_values(command: Any, path: str = "instep") -> Iterator[tuple[str, Any]]:
    """Yield each command with its options that take a value."""
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.is_flag:
            yield path, parameter
    for name, below in getattr(command, "commands", {}).items():
        yield from options_with_values(below, f"{path} {name}")


def sentences(help_text: str) -> list[str]:
    """Return the sentences of a help text, without the notes behind them."""
    parts = re.split(r"(?<=\.) (?=[A-Z])", help_text)
    return [part for part in parts if not NOTE.match(part)]


def texts_of_options() -> dict[str, dict[str, list[str]]]:
    """Return for each option its help texts, without notes, and the commands of each text."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, name, help_text in parameters(ROOT):
        if name.startswith("-"):
            found[name][" ".join(sentences(help_text))].append(path)
    return found


def shown(name: str, columns: int) -> str:
    """Return the help of a group of commands at this width."""
    parent = None if name == "instep" else ROOT.make_context("instep", [], resilient_parsing=True)
    context = GROUPS[name].make_context(name, [], parent=parent, resilient_parsing=True)
    context.terminal_width = None
    formatter = context.make_formatter()
    formatter.width = min(columns, help_pages.WIDTH_MAX) - 2
    GROUPS[name].format_help(context, formatter)
    return str(formatter.getvalue())


def test_every_command_is_in_one_group() -> None:
    named = [name for names in help_pages.GROUPS.values() for name in names]
    assert sorted(named) == sorted(ROOT.commands)
    for heading in help_pages.GROUPS:
        assert f"\n{heading}:\n" in shown("instep", 100)


@pytest.mark.parametrize("name", GROUPS)
def test_every_summary_fits_on_one_line_of_100_columns(name: str) -> None:
    wide, narrow = shown(name, 100), " ".join(shown(name, 80).split())
    for command, below in GROUPS[name].commands.items():
        summary = below.get_short_help_str(help_pages.NO_LIMIT)
        assert summary.endswith(".")
        assert re.search(rf"^  {command} +{re.escape(summary)}$", wide, re.MULTILINE), (
            f"{name} {command}: shorten its first sentence"
        )
        assert f"{command} {summary}" in narrow
    assert max(map(len, shown(name, 80).splitlines())) <= 80


def test_a_command_without_a_group_is_listed_too() -> None:
    assert list(
        help_pages.grouped(["run", "new"], {"Run": ("run", "gone"), "Empty": ("gone",)})
    ) == [
        ("Run", ["run"]),
        (help_pages.OTHER, ["new"]),
    ]


def test_an_option_has_one_help_text_on_all_commands() -> None:
    several = {name: dict(texts) for name, texts in texts_of_options().items() if len(texts) > 1}
    assert {name: texts for name, texts in several.items() if name not in DIFFERENT} == {}
    assert DIFFERENT.keys() - several.keys() == set(), "these have one text now"


def test_every_help_text_is_one_sentence() -> None:
    wrong = [
        (path, name, help_text)
        for path, name, help_text in parameters(ROOT)
        if len(sentences(help_text)) != 1 or not help_text.endswith(".")
    ]
    assert wrong == []


def test_every_option_with_a_value_names_what_the_value_is() -> None:
    """Choices show themselves; anything else would show its Python type.

    The options of bench and lab are counts and seconds, as their names say.
    """
    unnamed = [
        (path, option.opts[0])
        for path, option in options_with_values(ROOT)
        if option.metavar is None and option.type.name != "choice"
        if not path.startswith(("instep bench", "instep lab"))
    ]
    assert unnamed == []
