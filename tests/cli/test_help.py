"""Test `--help`: every command is in a group, and every summary fits a line of 100 columns."""

from __future__ import annotations

import re
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
