"""Options that several benchmarks share, and the lists that they take.

The same option has the same name and the same help on every command.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from instep import errors, settings

NONE = "none"

Number = TypeVar("Number", int, float)


def target(default: str, repeatable: str = "") -> Any:
    """Return the option of a database, with its default."""
    known = "sqlite, postgres or mariadb (started for you), or the URL of your database"
    return typer.Option(metavar="TARGET", help=f"{known}{repeatable}. Default: {default}.")


def comma_list(help_: str) -> Any:
    """Return an option that takes a comma-separated list."""
    return typer.Option(metavar="LIST", help=help_)


def documents(default: int) -> Any:
    """Return the option of the number of documents, with its default."""
    return typer.Option(min=1, help=f"Number of documents. Default: {default}.")


def events(default: int) -> Any:
    """Return the option of the number of events, with its default."""
    return typer.Option(min=1, help=f"Number of events. Default: {default}.")


def size(default: int) -> Any:
    """Return the option of the size of an event, with its default."""
    return typer.Option(
        metavar="BYTES", help=f"Approximate size of an event's value. Default: {default}."
    )


def rate(default: int) -> Any:
    """Return the option of the rate of events, with its default."""
    return typer.Option(min=1, help=f"Events per second. Default: {default}.")


def warm_up(default: int) -> Any:
    """Return the option of the duration of the warm-up, with its default."""
    return typer.Option(metavar="SECONDS", help=f"Duration of the warm-up. Default: {default}.")


Bootstrap = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESSES",
        help="Your brokers; a new topic is used. Default: start a local broker.",
    ),
]
Partitions = Annotated[int | None, typer.Option(min=1, help="Number of partitions. Default: 4.")]
Share = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="SHARE", help="Share of such events, 0 to 1. Default: 0."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the random workload. Default: 1.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Number of measurements each. Default: 3.")]
Engine = Annotated[
    settings.EngineName | None, typer.Option(help="Engine of the pipeline. Default: resident.")
]
History = Annotated[
    bool | None,
    typer.Option("--history/--no-history", help="Keep every event in instep_history. Default: no."),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write the result as an HTML page."),
]


def without_omitted(**options: Any) -> dict[str, Any]:
    """Return the options of the command line without those that were omitted."""
    return {name: value for name, value in options.items() if value is not None}


def names(text: str | None) -> tuple[str, ...] | None:
    """Parse a comma-separated list; `none` is the empty list."""
    if text is None:
        return None
    return tuple(name for name in text.replace(" ", "").split(",") if name and name != NONE)


def numbers(
    option: str, text: str | None, kind: Callable[[str], Number]
) -> tuple[Number, ...] | None:
    """Parse a comma-separated list of numbers."""
    try:
        return None if text is None else tuple(map(kind, names(text) or ()))
    except ValueError:
        raise errors.SettingsError(
            f"{option} {text!r} is not a list of numbers",
            f"write for example {option} 1,10,50",
        ) from None


def booleans(option: str, text: str | None) -> tuple[bool, ...] | None:
    """Parse a comma-separated list of yes and no."""
    words = {"no": False, "yes": True}
    if text is None:
        return None
    if unknown := [name for name in names(text) or () if name not in words]:
        raise errors.SettingsError(
            f"{option} {unknown[0]!r} is neither yes nor no", f"write {option} no, yes or no,yes"
        )
    return tuple(words[name] for name in names(text) or ())


def engines(text: str | None) -> tuple[settings.EngineName, ...] | None:
    """Parse a comma-separated list of engines."""
    known: tuple[settings.EngineName, ...] = get_args(settings.EngineName)
    given = names(text)
    if given is None:
        return None
    if unknown := [name for name in given if name not in known]:
        raise errors.SettingsError(
            f"there is no engine {unknown[0]!r}{settings.nearest(unknown[0], known)}",
            f"known engines: {', '.join(known)}",
        )
    return tuple(name for name in known if name in given)
