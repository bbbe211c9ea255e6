"""Outcomes: a command on several things reports each of them, even if some fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from instep import errors


@dataclass(frozen=True, slots=True)
class AdminResult:
    """What was done to one thing, or why it failed."""

    name: str
    done: str | None
    error: errors.InstepError | None = None


def of_each(names: Iterable[str], do: Callable[[str], str]) -> list[AdminResult]:
    """Run an action on each thing; a failure does not stop the others."""
    return [_outcome(name, do) for name in dict.fromkeys(names)]


def _outcome(name: str, do: Callable[[str], str]) -> AdminResult:
    try:
        return AdminResult(name, do(name))
    except errors.InstepError as failure:
        return AdminResult(name, None, failure)
