"""Plots of measurements, from figures and samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from instep.report.percentiles import percentile_values
from instep.report.tables import Plot, PlotKind, Series
from instep_bench.result import Figure

PERCENTILES = (
    0.0,
    1.0,
    5.0,
    *(float(part) for part in range(10, 100, 10)),
    95.0,
    99.0,
    99.5,
    99.9,
    100.0,
)


def bars(title: str, figures: Sequence[Figure], *, x: str, by: str = "", log: bool = False) -> Plot:
    """Plot medians with their spread as bars.

    The label `x` is on the axis, and each value of the label `by` has its own colour.
    """
    return _of_figures(title, figures, x, by, PlotKind.BARS, log_x=False, log_y=log)


def curves(
    title: str,
    figures: Sequence[Figure],
    *,
    x: str,
    by: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> Plot:
    """Plot medians as lines over the label `x`, which is a number."""
    return _of_figures(title, figures, x, by, PlotKind.LINES, log_x=log_x, log_y=log_y)


def percentiles(
    title: str, samples: Mapping[str, Sequence[float]], *, unit: str, log: bool = True
) -> Plot:
    """Plot distributions, one line each: the value that a percentage of values does not exceed."""
    series = [
        Series(name, list(zip(PERCENTILES, percentile_values(values, PERCENTILES), strict=True)))
        for name, values in samples.items()
        if values
    ]
    return Plot(title, "percentile", unit, series, kind=PlotKind.LINES, log_y=log)


def over_time(
    title: str, samples: Mapping[str, Sequence[tuple[float, float]]], *, unit: str
) -> Plot:
    """Plot samples of (second, value), such as memory over time, with one line each."""
    series = [
        Series(name, [(at, value) for at, value in values]) for name, values in samples.items()
    ]
    return Plot(title, "seconds", unit, series, kind=PlotKind.LINES)


def _of_figures(
    title: str,
    figures: Sequence[Figure],
    x: str,
    by: str,
    kind: PlotKind,
    *,
    log_x: bool,
    log_y: bool,
) -> Plot:
    groups: dict[str, list[Figure]] = {}
    for figure in figures:
        groups.setdefault(figure.labels.get(by, "") if by else figure.name, []).append(figure)
    series = [
        Series(
            name,
            [(_place(one.labels.get(x, one.name), kind), one.median) for one in group],
            [(one.low, one.high) if len(one.values) > 1 else None for one in group],
        )
        for name, group in groups.items()
    ]
    return Plot(
        title, x, figures[0].unit if figures else "", series, kind=kind, log_x=log_x, log_y=log_y
    )


def _place(label: str, kind: PlotKind) -> str | float:
    if kind is PlotKind.LINES:
        try:
            return float(label)
        except ValueError:
            return label
    return label
