"""Questions before something is deleted for good. `--yes` skips them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from instep import errors


def confirm_deletion(kind: str, names: Sequence[str], *, yes: bool) -> None:
    """Ask the user to type each name again. Raise an error if one is not confirmed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise errors.SettingsError(
            f"nothing was deleted: {kind} {', '.join(map(repr, names))} was not confirmed,"
            " because stdin is not a terminal",
            "confirm with --yes",
        )
    for name in names:
        # On stderr: stdout may be read by another program.
        answer = typer.prompt(f"Type the name of {kind} {name} to delete it", err=True)
        if answer != name:
            raise errors.SettingsError(
                f"nothing was deleted: {answer!r} is not the name of {kind} {name!r}",
                "run the command again and type the name, or confirm with --yes",
            )
