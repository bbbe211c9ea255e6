"""`--help`: commands grouped by purpose, each with its whole summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Set up": ("demo", "init", "up", "down", "settings", "doctor"),
    "Run": ("emit", "relay", "poll", "run", "load", "sink", "archive", "stream"),
    "Inspect": ("status", "overdue", "console", "show", "await", "history", "explain"),
    "Quarantine": ("dead", "parked"),
    "Check and repair": ("vet", "reconcile", "replay", "rewind"),
    "Kafka": ("topics", "groups", "offsets", "peek"),
    "Lab and benchmarks": ("lab", "bench"),
}
OTHER = "Commands"
WIDTH_MAX = 100
NO_LIMIT = 10_000  # click would cut a summary after 45 characters


class GroupedCommands(TyperGroup):
    """Commands under headings. Subcommands, which are in no group, share one heading."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its summary. A narrow terminal wraps it; nothing is cut."""
        summaries = {
            name: command.get_short_help_str(NO_LIMIT)
            for name, command in self.commands.items()
            if not command.hidden
        }
        # Click aligns each section by itself. With names of one width, all have the same columns.
        width = max(map(len, summaries), default=0)
        for heading, names in grouped(list(summaries), GROUPS if ctx.parent is None else {}):
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summaries[name]) for name in names])


def command_group(name: str, help_text: str) -> typer.Typer:
    """Return an empty group of subcommands."""
    return typer.Typer(
        name=name,
        no_args_is_help=True,
        cls=GroupedCommands,
        rich_markup_mode=None,
        help=help_text,
    )


def grouped(
    names: list[str], groups: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each heading with those of its commands that exist, then commands without a group."""
    for heading, members in groups.items():
        if present := [name for name in members if name in names]:
            yield heading, present
    in_groups = {name for members in groups.values() for name in members}
    if rest := [name for name in names if name not in in_groups]:
        yield OTHER, rest
