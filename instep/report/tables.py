"""Tables and plots as data: what a report shows, before it is drawn."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

Cell: TypeAlias = str | int | float | None


class PlotKind(enum.StrEnum):
    LINES = "lines"
    BARS = "bars"
    HEAT = "heat"


class ReportTable(msgspec.Struct, frozen=True):
    title: str
    columns: list[str]
    rows: list[list[Cell]]


class Series(msgspec.Struct, frozen=True):
    """One line, or one colour of bars: a value for each x. In a heat map: one row, its name the y.

    Where a value is the median of several, `spread` has the lowest and the highest, point by point.
    """

    name: str
    points: list[tuple[Cell, float | None]]
    spread: list[tuple[float, float] | None] = []

    def spreads(self) -> Iterator[tuple[float, float] | None]:
        """Yield the spread of each point; None if it is not known."""
        return (
            spread
            for _, spread in itertools.zip_longest(self.points, self.spread[: len(self.points)])
        )


class Plot(msgspec.Struct, frozen=True):
    """A plot. Bars and heat maps take x as names, lines as numbers; None is a missing value."""

    title: str
    x: str
    y: str
    series: list[Series]
    kind: PlotKind = PlotKind.BARS
    log_x: bool = False
    log_y: bool = False
