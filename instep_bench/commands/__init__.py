"""The `instep bench` commands, one module per command.

A command turns its options into those of a benchmark, which it imports when it runs.
"""

from __future__ import annotations

import importlib

import typer

from instep.cli import help as help_pages

# in the order of the help
MODULES = (
    "polling",
    "publish",
    "apply",
    "freshness",
    "relay",
    "sharing",
    "load",
    "outbox",
    "console",
    "kpi",
    "sink",
    "stream",
    "archive",
    "scale",
    "compare",
    "report",
    "list_command",
)

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    cls=help_pages.GroupedCommands,
    rich_markup_mode=None,
    help="Measure speed and freshness on this machine and your servers.",
)
for _module in MODULES:
    app.add_typer(importlib.import_module(f"instep_bench.commands.{_module}").app)
