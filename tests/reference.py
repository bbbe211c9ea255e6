"""Writes docs/reference and docs/rules from the code; `make docs` runs it, and a test keeps the pages current."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

import typer
from typer.main import get_command

from instep import errors, settings
from instep.cli import assembled
from instep.document.reasons import EXPLANATIONS, PARKS
from instep.pipeline.metrics import Pipelines
from instep.vet import judgement, rules
from tests import error_codes

FOLDER = Path(__file__).parent.parent / "docs"


@functools.cache
def pages() -> dict[str, str]:
    """The text of every page, by its path below docs."""
    return {
        "reference/settings.md": _settings(),
        "reference/commands.md": _commands(),
        "reference/reasons.md": _reasons(),
        "reference/errors.md": _errors(),
        "reference/database-errors.md": error_codes.page(),
        "reference/metrics.md": _metrics(),
        "reference/rules.md": _rules(),
        **{f"rules/{one.id}.md": judgement.page(one) for one in rules.ALL.values()},
    }


def _settings() -> str:
    rows = [
        f"| `{key}` | {kind} | {f'`{default}`' if default else ''} | {text} |"
        for key, kind, default, text in settings.describe()
    ]
    head = (
        "# Settings\n\n`instep.toml` in the working directory, or the file named by `--config` or `INSTEP_CONFIG`."
        " `NAME` is a pipeline's name. Any value can be overridden by a variable: `INSTEP__KAFKA__BOOTSTRAP`."
        " An unknown key is an error.\n\n"
    )
    return (
        head
        + "\n".join(["| key | type | default | what it is |", "|---|---|---|---|", *rows])
        + "\n"
    )


def _commands() -> str:
    parts = ["# Commands\n"]
    root = get_command(assembled())
    _command(parts, root, "instep", None)
    return "\n".join(parts)


def _command(parts: list[str], command: object, name: str, parent: typer.Context | None) -> None:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)  # type: ignore[attr-defined]
    context.terminal_width = context.max_content_width = 110
    parts.append(f"## {name}\n\n```text\n{command.get_help(context).strip()}\n```\n")  # type: ignore[attr-defined]
    for child, below in getattr(command, "commands", {}).items():
        _command(parts, below, f"{name} {child}", None)


def _reasons() -> str:
    head = (
        "# Reasons\n\nWhy an event was set aside: the column `reason` of `instep_dead_letters` and `instep_parked`."
        " The names stay. A number or a time out of range parks the document where its column cannot hold it, and is a"
        " dead letter where it could not be read at all.\n\n| reason | becomes | what it says |\n|---|---|---|\n"
    )
    return head + "".join(
        f"| `{reason.value}` | {'a parked document' if reason in PARKS else 'a dead letter'} | {text} |\n"
        for reason, text in EXPLANATIONS.items()
    )


def _errors() -> str:
    found = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.InstepError)
    ]
    rows = []
    for kind in sorted(found, key=lambda kind: (kind.exit_status, kind.__name__)):
        name = kind.code if issubclass(kind, errors.NamedStop) else kind.__name__
        rows.append(f"| `{name}` | {kind.exit_status} | {' '.join((kind.__doc__ or '').split())} |")
    head = "# Errors\n\nEach says what happened, to what, and what to do next. Those in capitals are named stops.\n\n"
    return (
        head + "\n".join(["| error | exit status | what happened |", "|---|---|---|", *rows]) + "\n"
    )


def _metrics() -> str:
    rows = []
    for family in Pipelines([]).collect():
        suffix = "_total" if family.type == "counter" else ""
        rows.append(f"| `{family.name}{suffix}` | {family.type} | {family.documentation} |")
    head = "# Metrics\n\n`instep run --metrics PORT` serves them on 127.0.0.1. Each has the label `pipeline`.\n\n"
    return head + "\n".join(["| metric | type | what it counts |", "|---|---|---|", *rows]) + "\n"


def _rules() -> str:
    head = (
        "# Rules of `instep vet`\n\nEach is judged against the guarantee that a pipeline declares; how bad a finding is depends"
        " on it. `instep vet explain RULE` prints a rule's page.\n"
    )
    parts = [head]
    for part in judgement.PARTS:
        rows = [
            f"| [{one.id}](../rules/{one.id}.md) | {one.threat} | {one.what} |"
            for one in rules.ALL.values()
            if one.part == part
        ]
        parts.append(
            "\n".join(
                [
                    f"## {part.capitalize()}\n",
                    "| rule | threat | what it finds |",
                    "|---|---|---|",
                    *rows,
                    "",
                ]
            )
        )
    return "\n".join(parts)


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text, encoding="utf-8")
