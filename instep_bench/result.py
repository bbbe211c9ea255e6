"""The result of a benchmark: figures with a value for each round, the machine and the command."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

from instep.report.tables import Cell, Plot, ReportTable

BenchName = Literal[
    "polling",
    "publish",
    "apply",
    "freshness",
    "sharing",
    "load",
    "relay",
    "outbox",
    "sink",
    "stream",
    "console",
    "archive",
    "kpi",
    "scale",
]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured quantity with a value per round; labels distinguish figures of the same name."""

    name: str
    unit: str
    better: Literal["more", "less"]
    labels: dict[str, str] = {}
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Identifies the same figure in another result."""
        return self.name, tuple(sorted(self.labels.items()))


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one benchmark: stored as JSON, shown as a page, compared with another."""

    bench: BenchName
    command: str
    begun_at: str
    seconds: float
    options: dict[str, Cell]
    machine: dict[str, str]
    releases: dict[str, str]
    figures: list[Figure]
    tables: list[ReportTable] = []
    plots: list[Plot] = []
    notes: list[str] = []  # what a reader must know to interpret the figures


def recorded_options(options: msgspec.Struct) -> dict[str, Cell]:
    """Return a benchmark's options as a result stores them; a list is joined with commas."""
    return {name: _cell(value) for name, value in msgspec.structs.asdict(options).items()}


def _cell(value: object) -> Cell:
    match value:
        case bool():
            return "yes" if value else "no"
        case None | str() | int() | float():
            return value
        case list() | tuple():
            return ",".join(str(_cell(one)) for one in value)
        case _:
            return str(value)
