"""Plots as SVG, drawn with matplotlib: lines, grouped bars and heat maps.

The same plot always gives the same bytes. Text stays text, so that it can be searched and read
aloud. A value that is not known is a gap in a line or a question mark. If a value is the median of
several, an error bar shows the lowest and the highest.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from instep import extras
from instep.document.showing import plain
from instep.report.markup import figure, shortened
from instep.report.tables import Cell, Plot, PlotKind, ReportTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 7.5
HEIGHT_IN = 3.6
LARGEST = 1e100  # beyond this, ticks of an axis overflow
LABEL_MAX = 34
LABEL_LINE = 14
LABELS_FLAT_MAX = 8
TITLE_MAX = 90
VALUES_SHOWN_MAX = 40
MARKERS_MAX = 60
COLOURS = ("#0b66c3", "#c45500", "#00805a", "#a03d98", "#876a00", "#007a99", "#c22f3d", "#5b6672")
MARKERS = ("o", "s", "D", "^")
DASHES = ("-", "--", ":", "-.")
SETTINGS: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "instep",  # the same ids in every process
    "text.parse_math": False,  # a dollar sign in data is a dollar sign
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def svg(plot: Plot) -> str:
    """Draw a plot as an SVG document. Raise MissingPart if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise extras.missing("matplotlib", "report") from error
    written = io.StringIO()
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that the font for measuring lacks
        metadata = {**NO_METADATA, "Title": describe(plot)}
        draw(plot).savefig(written, format="svg", metadata=metadata)
    text = written.getvalue()
    return text[text.index("<svg") :]


def describe(plot: Plot) -> str:
    """Return a plot's title and axes, for readers who cannot see it."""
    return plain(f"{plot.title}: {plot.y} by {plot.x}")


def draw(plot: Plot) -> Figure:
    """Draw a plot as a matplotlib figure."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = drawn.subplots()
    axes.set_title(_label(plot.title, TITLE_MAX), loc="left", fontweight="bold")
    axes.set_xlabel(_label(plot.x, TITLE_MAX))
    axes.set_ylabel(_label(plot.y, LABEL_MAX))
    if not any(_is_shown(y, plot) for series in plot.series for _, y in series.points):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no values", ha="center", transform=axes.transAxes)
        return drawn
    match plot.kind:
        case PlotKind.LINES:
            _draw_lines(axes, plot)
        case PlotKind.BARS:
            _draw_bars(axes, plot)
        case PlotKind.HEAT:
            _draw_heat(axes, plot)
    if plot.kind is not PlotKind.HEAT:
        axes.grid(axis="y", color="#dde2e8")
        axes.set_axisbelow(True)
        if len(plot.series) > 1:
            axes.legend(fontsize="small", frameon=False)
    return drawn


def names(plot: Plot) -> list[str]:
    """Return the names along the x axis of bars and heat maps, in the order of the data."""
    return list(dict.fromkeys(figure(x) for series in plot.series for x, _ in series.points))


def tabulated(plot: Plot) -> ReportTable:
    """Return the values of a plot as a table, with lowest and highest values where known."""
    columns: list[tuple[str, dict[str, float | None]]] = []
    for series in plot.series:
        known = [figure(x) for x, _ in series.points]
        columns.append((series.name, dict(zip(known, (y for _, y in series.points), strict=True))))
        if any(series.spreads()):
            for word, end in (("lowest", 0), ("highest", 1)):
                values = (spread[end] if spread else None for spread in series.spreads())
                columns.append((f"{series.name}, {word}", dict(zip(known, values, strict=True))))
    rows: list[list[Cell]] = [
        [name, *(values.get(name) for _, values in columns)] for name in names(plot)
    ]
    return ReportTable(f"{plot.title}: {plot.y}", [plot.x, *(name for name, _ in columns)], rows)


def _draw_lines(axes: Axes, plot: Plot) -> None:
    xs: list[float] = []
    for number, series in enumerate(plot.series):
        points = [
            (x, y if _is_shown(y, plot) else math.nan, spread)
            for (x, y), spread in zip(series.points, series.spreads(), strict=True)
            if isinstance(x, int | float) and _is_finite(x) and not (plot.log_x and x < 0)
        ]
        if not points:
            continue
        xs += [float(x) for x, _, _ in points]
        axes.errorbar(
            [float(x) for x, _, _ in points],
            [y for _, y, _ in points],
            yerr=_error_bars([(y, spread) for _, y, spread in points], plot),
            label=_label(series.name),
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
            marker=MARKERS[number % len(MARKERS)] if len(points) <= MARKERS_MAX else None,
            markersize=4,
            capsize=3,
        )
    if plot.log_x and xs:
        _set_log_scale(axes, "x", xs)
    _set_y_scale(axes, plot)


def _draw_bars(axes: Axes, plot: Plot) -> None:
    places = {name: place for place, name in enumerate(names(plot))}
    width = 0.8 / max(len(plot.series), 1)
    values_shown = len(places) * len(plot.series) <= VALUES_SHOWN_MAX
    for number, series in enumerate(plot.series):
        shift = (number - (len(plot.series) - 1) / 2) * width
        at = [places[figure(x)] + shift for x, _ in series.points]
        ys = [y if _is_shown(y, plot) else math.nan for _, y in series.points]
        bars = axes.bar(
            at,
            [0.0 if math.isnan(y) else y for y in ys],
            width,
            label=_label(series.name),
            color=COLOURS[number % len(COLOURS)],
            yerr=_error_bars(list(zip(ys, series.spreads(), strict=True)), plot),
            capsize=3,
        )
        if values_shown and at:
            texts = ["?" if math.isnan(y) else figure(y) for y in ys]
            axes.bar_label(bars, texts, padding=2, fontsize="small")
    _set_y_scale(axes, plot)
    _name_ticks(axes, list(places))


def _draw_heat(axes: Axes, plot: Plot) -> None:
    columns = names(plot)
    rows = [
        {figure(x): y for x, y in series.points if _is_shown(y, plot)} for series in plot.series
    ]
    grid = [[row.get(name, math.nan) for name in columns] for row in rows]
    # pcolormesh, not imshow, which would put a bitmap into the file
    mesh = axes.pcolormesh(grid, cmap="Blues", edgecolors="white")
    axes.invert_yaxis()
    low, high = mesh.get_clim()
    for y, row in enumerate(grid):
        for x, value in enumerate(row):
            dark = value > (low + high) / 2
            axes.text(
                x + 0.5,
                y + 0.5,
                "?" if math.isnan(value) else figure(value),
                ha="center",
                va="center",
                color="white" if dark else "black",
            )
    axes.set_yticks(
        [number + 0.5 for number in range(len(rows))],
        [_label(series.name) for series in plot.series],
    )
    _name_ticks(axes, columns, 0.5)


def _name_ticks(axes: Axes, labels: Sequence[str], shift: float = 0.0) -> None:
    """Label the x axis with names: in lines if there is room, slanted otherwise."""
    places = [number + shift for number in range(len(labels))]
    if len(labels) <= LABELS_FLAT_MAX:
        axes.set_xticks(places, [textwrap.fill(_label(name), LABEL_LINE) for name in labels])
    else:
        axes.set_xticks(places, [_label(name) for name in labels], rotation=40, ha="right")


def _set_y_scale(axes: Axes, plot: Plot) -> None:
    values = [y for series in plot.series for _, y in series.points if _is_shown(y, plot)]
    if plot.log_y:
        _set_log_scale(axes, "y", values)
    elif min(values, default=0.0) >= 0:
        axes.set_ylim(bottom=0)


def _set_log_scale(axes: Axes, axis: str, values: Sequence[float]) -> None:
    """Use a logarithmic scale; with zeros, one that is linear below the smallest value."""
    positive = [value for value in values if value > 0]
    if not positive:
        return
    set_scale = axes.set_xscale if axis == "x" else axes.set_yscale
    if len(positive) < len(values):
        set_scale("symlog", linthresh=min(positive), linscale=0.3)
    else:
        set_scale("log")
        if axis == "y":
            axes.set_ylim(bottom=10.0 ** math.floor(math.log10(min(positive)) - 0.01))
    # the default labels are formulas, which SETTINGS turns off
    ticks = axes.xaxis if axis == "x" else axes.yaxis
    ticks.set_major_formatter(lambda value, _: figure(float(value)))
    ticks.set_minor_formatter(lambda _, __: "")


def _error_bars(
    points: Sequence[tuple[float, tuple[float, float] | None]], plot: Plot
) -> list[list[float]] | None:
    """Return the distances to the lowest and highest values; None if no point has them."""
    if not any(spread for _, spread in points):
        return None
    below, above = [], []
    for y, spread in points:
        low, high = y, y
        if spread and all(_is_shown(end, plot) for end in spread):
            low, high = spread
        # a point that is not shown has no bar
        distances = (0.0, 0.0)
        if not math.isnan(y):
            distances = (max(y - low, 0.0), max(high - y, 0.0))
        below.append(distances[0])
        above.append(distances[1])
    return [below, above]


def _is_shown(value: float | None, plot: Plot) -> TypeGuard[float]:
    """Return whether the plot can show a value: a logarithmic axis has no place below zero."""
    return _is_finite(value) and not (plot.log_y and plot.kind is not PlotKind.HEAT and value < 0)


def _is_finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and abs(value) <= LARGEST


def _label(text: str, most: int = LABEL_MAX) -> str:
    # matplotlib hides labels that begin with an underscore from the legend
    return shortened(plain(text), most).removeprefix("_") or " "
