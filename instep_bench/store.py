"""Stored results: one file ID.json each, with the options, the machine and every round's value.

Passwords in URLs are masked everywhere.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from instep import errors, masking
from instep.local import paths
from instep.report import files
from instep.report.tables import Plot
from instep_bench.result import BenchResult, Figure

LATEST = "latest"


def folder() -> Path:
    """Return the folder of stored results; create it if necessary."""
    kept = paths.state() / "bench"
    with paths.explained(kept):
        kept.mkdir(exist_ok=True)
    return kept


def keep(result: BenchResult, into: Path) -> Path:
    """Write a result under a new id and return its file."""
    at = datetime.now(UTC)
    # Two results of one second need different names.
    while (file := into / f"{at:%Y%m%dT%H%M%S}-{result.bench}.json").exists():
        at += timedelta(seconds=1)
    with paths.explained(into):
        files.write(file, storable(result))
    return file


def storable(result: BenchResult) -> BenchResult:
    """Return the result as it can be stored: without secrets and without non-finite values.

    A note names the figures from which values were removed.
    """
    figures = [
        msgspec.structs.replace(
            figure, values=[value for value in figure.values if math.isfinite(value)]
        )
        for figure in result.figures
    ]
    lost = [
        _named(figure)
        for figure, before in zip(figures, result.figures, strict=True)
        if figure.values != before.values
    ]
    notes = [f"some rounds gave no finite number: {', '.join(lost)}"] if lost else []
    kept = msgspec.structs.replace(
        result,
        figures=[figure for figure in figures if figure.values],
        plots=list(map(_with_known_spreads, result.plots)),
        notes=[*result.notes, *notes],
    )
    return msgspec.convert(_plain(msgspec.to_builtins(kept)), BenchResult)


def results(kept: Path) -> list[Path]:
    """Return the files of all results, oldest first."""
    return sorted(kept.glob("*.json"))


def find(kept: Path, named: str) -> Path:
    """Return the file of the result with this id or path; `latest` is the newest."""
    known = results(kept)
    if named == LATEST and known:
        return known[-1]
    for file in known:
        if file.stem == named:
            return file
    if files.exists(Path(named)):
        return Path(named)
    if not known:
        raise errors.SettingsError(
            f"there are no benchmark results in {kept}",
            "run a benchmark first, for example: instep bench polling",
        )
    newest = ", ".join(file.stem for file in known[-3:])
    raise errors.SettingsError(
        f"there is no result {named!r} in {kept}, and no such file", f"the newest are: {newest}"
    )


def read(file: Path) -> BenchResult:
    """Return a stored result."""
    try:
        found = files.read(file, BenchResult)
    except errors.InstepError as error:
        raise errors.SettingsError(
            error.what, "name another result: instep bench list shows them"
        ) from error
    if not all(figure.values for figure in found.figures):
        raise errors.SettingsError(
            f"{file} cannot be read: a figure has no values",
            "name another result: instep bench list shows them",
        )
    return found


def _named(figure: Figure) -> str:
    return " ".join([figure.name, *figure.labels.values()])


def _with_known_spreads(plot: Plot) -> Plot:
    series = [
        msgspec.structs.replace(
            one,
            spread=[
                ends if ends and all(map(math.isfinite, ends)) else None for ends in one.spread
            ],
        )
        for one in plot.series
    ]
    return msgspec.structs.replace(plot, series=series)


def _plain(value: Any, *, in_cell: bool = False) -> Any:
    """Return the value without secrets and without numbers that are not finite.

    In table cells and options a boolean becomes yes or no.
    """
    match value:
        case str():
            return masking.masked_text(value)
        case dict():
            return {
                _plain(key): _plain(one, in_cell=in_cell or key in ("rows", "options"))
                for key, one in value.items()
            }
        case list() | tuple():
            return [_plain(one, in_cell=in_cell) for one in value]
        case bool() if in_cell:
            return "yes" if value else "no"
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
