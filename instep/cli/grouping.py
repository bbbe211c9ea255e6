"""`--help`: commands by what they are for, each with its whole summary. A narrow terminal wraps it and cuts nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from typer.core import TyperGroup

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Set up": ("demo", "init", "up", "down", "settings", "doctor"),
    "Run": ("emit", "run"),
    "Look": ("status", "show", "history", "explain"),
    "Set aside": ("dead", "parked"),
    "Check and repair": ("vet", "reconcile", "replay", "rewind"),
    "Kafka": ("topics", "groups", "offsets", "peek"),
    "Lab and benchmarks": ("lab", "bench"),
}
REST = "Commands"
WIDTH_MAX = 100
NO_LIMIT = 10_000


class GroupedCommands(TyperGroup):
    """Commands under headings; those of no group, as in every subcommand, under one."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        summaries = {
            name: command.get_short_help_str(NO_LIMIT)
            for name, command in self.commands.items()
            if not command.hidden
        }
        column = max(map(len, summaries), default=0)
        for heading, names in grouped(list(summaries), GROUPS if ctx.parent is None else {}):
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(column), summaries[name]) for name in names])


def grouped(
    names: list[str], groups: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each heading with its commands that exist; then those that no heading has."""
    for heading, wanted in groups.items():
        if found := [name for name in wanted if name in names]:
            yield heading, found
    known = {name for wanted in groups.values() for name in wanted}
    if rest := [name for name in names if name not in known]:
        yield REST, rest
