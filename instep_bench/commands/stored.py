"""Find stored results by id, file or `latest`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from instep.cli import completion

if TYPE_CHECKING:
    from instep_bench.result import BenchResult


def complete(_context: typer.Context, incomplete: str) -> list[str]:
    from instep_bench import store

    return completion.matching(
        incomplete, lambda: [store.LATEST, *(file.stem for file in store.results(store.folder()))]
    )


def find(named: str) -> tuple[str, BenchResult]:
    """Return a stored result with its id."""
    from instep_bench import store

    file = store.find(store.folder(), named)
    return file.stem, store.read(file)


def head(id_: str, result: BenchResult) -> dict[str, Any]:
    return {
        "result": id_,
        "bench": result.bench,
        "begun": result.begun_at,
        "seconds": result.seconds,
        "figures": len(result.figures),
        "command": result.command,
    }
