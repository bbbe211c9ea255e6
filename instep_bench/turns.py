"""Rounds in which contestants take turns, and the check of the numbers that are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from instep import errors

Result = TypeVar("Result")


def alternate(
    names: Sequence[str],
    rounds: int,
    measure: Callable[[str, int], Result],
    describe: Callable[[Result], str],
    say: Callable[[str], None],
) -> dict[str, list[Result]]:
    """Measure each contestant in each round, after a round -1 that only warms up.

    The order is turned round by round: whoever is second finds warmer caches.
    """
    measured: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(-1, rounds):
        for name in names[:: 1 if number % 2 else -1]:
            result = measure(name, number)
            if number < 0:
                say(f"{name}: warmed up")
                continue
            measured[name].append(result)
            say(f"{name}: {describe(result)}")
    return measured


def require_positive(options: Any, *names: str) -> None:
    """Raise SettingsError if one of these options is less than 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise errors.SettingsError(f"{name} is {getattr(options, name)}", "give at least 1")
