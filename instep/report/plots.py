"""Plots as SVG: lines, grouped bars and heat maps. Pure, and every text in them escaped.

`draw` makes one for a page that has `STYLE` already, `standalone` one that is a file of its own. Colours are CSS variables, for a
light and a dark surrounding. A mark tells its value when pointed at; a value that could not be had is a gap or a question mark.
What a value is the median of, from the lowest to the highest, is a line through its bar or point.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from instep.report import scales
from instep.report.markup import element, escaped, figure, shortened
from instep.report.tables import Cell, Plot, PlotKind, ReportTable

WIDTH = 720
HEIGHT = 230
RIGHT = 24
CHARACTER = 6.8
ROW = 19
LABEL_MAX = 34
LABEL_LINES_MAX = 3
ASLANT = math.radians(40)
ASLANT_MAX = 26
BAR_MAX = 54
VALUES_SHOWN_MAX = 40
MARKERS_MAX = 60

LIGHT = ("#0b66c3", "#c45500", "#00805a", "#a03d98", "#876a00", "#007a99", "#c22f3d", "#5b6672")
DARK = ("#6cb2ff", "#ffa35f", "#4fd0a0", "#e294da", "#dcc04f", "#62cde8", "#ff858b", "#adb7c1")
LIGHT_PAPER = "--ink:#1b2330;--muted:#5a6472;--rule:#dde2e8;--paper:#ffffff;--heat:#0b4f9c"
DARK_PAPER = "--ink:#e6eaf0;--muted:#9aa5b3;--rule:#333c49;--paper:#151a22;--heat:#8cc3ff"
DASHES = ("", "7 3", "2 3", "9 3 2 3")
SHAPES = (
    "M{x} {y}m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
    "M{x} {y}m-3.2 -3.2h6.4v6.4h-6.4z",
    "M{x} {y}m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
    "M{x} {y}m0 -4.3l4.3 7.6h-8.6z",
)


def _variables(paper: str, colours: Sequence[str]) -> str:
    return ";".join([paper, *(f"--c{number}:{colour}" for number, colour in enumerate(colours))])


STYLE = (
    f".plot{{{_variables(LIGHT_PAPER, LIGHT)}}}\n"
    f"@media (prefers-color-scheme:dark){{.plot{{{_variables(DARK_PAPER, DARK)}}}}}\n"
    + "".join(f".plot .c{number}{{--c:var(--c{number})}}" for number in range(len(LIGHT)))
    + """
.plot{max-width:100%;height:auto;display:block}
.plot .paper{fill:var(--paper)}
.plot text{font:12px system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--ink)}
.plot .title{font-size:14px;font-weight:600}
.plot .muted{fill:var(--muted)}
.plot .small{font-size:11px}
.plot .rule{stroke:var(--rule);fill:none}
.plot .base{stroke:var(--muted);fill:none}
.plot .mark{fill:var(--c)}
.plot .line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.plot .spread{fill:none;stroke:var(--ink);stroke-width:1.3}
.plot .cell{fill:var(--heat)}
.plot .none{fill:none;stroke:var(--rule);stroke-dasharray:3 3}
.plot .strong{fill:var(--paper)}
"""
)


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle in which values are drawn."""

    left: float
    top: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def across(self, part: float) -> float:
        return self.left + part * self.width

    def up(self, part: float) -> float:
        return self.bottom - part * self.height


Ends: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """A value of a line: where it stands, and what it tells when pointed at."""

    across: float | None
    up: float | None
    ends: Ends | None
    tip: str


def draw(plot: Plot) -> str:
    """The plot as one SVG element."""
    return _svg(plot, "")


def standalone(plot: Plot) -> str:
    """The plot as an SVG file."""
    return _svg(plot, element("style", STYLE)) + "\n"


def names(plot: Plot) -> list[str]:
    """What stands along the x axis of bars and heat maps, in the order in which it came."""
    return list(dict.fromkeys(figure(x) for series in plot.series for x, _ in series.points))


def tabulated(plot: Plot) -> ReportTable:
    """The plot's values, for who cannot see it; where there are spreads, their ends beside them."""
    columns: list[tuple[str, dict[str, float | None]]] = []
    for series in plot.series:
        known = [figure(x) for x, _ in series.points]
        columns.append((series.name, dict(zip(known, (y for _, y in series.points), strict=True))))
        if any(series.spreads()):
            for word, end in (("lowest", 0), ("highest", 1)):
                values = (spread[end] if spread else None for spread in series.spreads())
                columns.append((f"{series.name}, {word}", dict(zip(known, values, strict=True))))
    rows: list[list[Cell]] = [
        [name, *(held.get(name) for _, held in columns)] for name in names(plot)
    ]
    return ReportTable(f"{plot.title}: {plot.y}", [plot.x, *(name for name, _ in columns)], rows)


def _svg(plot: Plot, style: str) -> str:
    legend, top = _head(plot)
    values = [y for series in plot.series for _, y in series.points]
    if not any(scales.shown(value) for value in values):
        body, height = _text(WIDTH / 2, top + 40, "no values", "muted", anchor="middle"), top + 70
    else:
        body, height = {PlotKind.LINES: _lines, PlotKind.BARS: _bars, PlotKind.HEAT: _heat}[
            plot.kind
        ](plot, top)
    told = f"{plot.title}: {plot.y} by {plot.x}"
    return element(
        "svg",
        element("title", escaped(told))
        + style
        + element("rect", class_="paper", width=WIDTH, height=height, rx=6)
        + _text(16, 25, plot.title, "title", most=90)
        + _text(16, 44, plot.y, "muted", most=100)
        + legend
        + body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        width=WIDTH,
        height=height,
        class_="plot",
        role="img",
    )


def _head(plot: Plot) -> tuple[str, float]:
    """The legend, where there is something to tell apart, and where the values may begin."""
    top, x = 62.0, 16.0
    if plot.kind is PlotKind.HEAT or len(plot.series) < 2:
        return "", top
    drawn = []
    for number, series in enumerate(plot.series):
        width = 34 + CHARACTER * len(shortened(series.name, LABEL_MAX))
        if x > 16 and x + width > WIDTH - RIGHT:
            top, x = top + ROW, 16.0
        drawn.append(_key(plot.kind, number, x, top) + _text(x + 20, top + 4, series.name))
        x += width
    return element("g", "".join(drawn), class_="legend"), top + 18


def _key(kind: PlotKind, number: int, x: float, y: float) -> str:
    if kind is PlotKind.BARS:
        return element(
            "rect", class_=f"mark {_colour(number)}", x=x, y=y - 5, width=11, height=11, rx=2
        )
    line = element(
        "path",
        class_=f"line {_colour(number)}",
        d=f"M{x:.1f} {y:.1f}h16",
        stroke_dasharray=DASHES[number % 4],
    )
    return line + _marker(number, x + 8, y)


def _lines(plot: Plot, top: float) -> tuple[str, float]:
    xs = [x for series in plot.series for x, _ in series.points]
    numbers = [float(x) for x in xs if isinstance(x, int | float)]
    y_scale = _amounts(plot)
    frame, bottom = _frame(top, y_scale), top + HEIGHT
    places: dict[Cell, float | None]
    if len(numbers) == len(xs):
        make = (
            scales.logarithmic(numbers, whole=False)
            if plot.log_x
            else scales.linear(numbers, from_zero=False, ticks=8)
        )
        ticks = _sparse(make.ticks, frame.width)
        places = {x: make.place(float(x)) for x in xs if isinstance(x, int | float)}
    else:
        known = names(plot)
        ticks = [
            scales.Tick((number + 0.5) / len(known), name) for number, name in enumerate(known)
        ]
        places = {x: (known.index(figure(x)) + 0.5) / len(known) for x in xs}
    labels, below = _x_labels(frame, ticks)
    drawn = [_y_axis(frame, y_scale), labels, _x_title(plot, bottom + below)]
    for number, series in enumerate(plot.series):
        points = [
            PlotPoint(
                places[x],
                y_scale.place(y),
                _ends(y_scale, spread),
                f"{series.name}, {plot.x} {figure(x)}: {_ranged(y, spread)}",
            )
            for (x, y), spread in zip(series.points, series.spreads(), strict=True)
        ]
        points.sort(key=lambda point: -1.0 if point.across is None else point.across)
        drawn.append(_line(frame, number, points))
    return "".join(drawn), bottom + below + 20


def _line(frame: Frame, number: int, points: Sequence[PlotPoint]) -> str:
    drawn = []
    for has, group in itertools.groupby(
        points, key=lambda point: None not in (point.across, point.up)
    ):
        if has:
            way = "L".join(
                f"{frame.across(point.across or 0):.1f} {frame.up(point.up or 0):.1f}"
                for point in group
            )
            drawn.append(
                element("path", class_="line", d=f"M{way}", stroke_dasharray=DASHES[number % 4])
            )
    if len(points) <= MARKERS_MAX:
        for point in points:
            if point.across is not None and point.up is not None:
                x = frame.across(point.across)
                drawn.append(
                    _spread(frame, x, 4, point.ends)
                    + _marker(number, x, frame.up(point.up), point.tip)
                )
    return element("g", "".join(drawn), class_=_colour(number))


def _marker(number: int, x: float, y: float, tip: str = "") -> str:
    shape = SHAPES[number % 4].format(x=f"{x:.1f}", y=f"{y:.1f}")
    return element("path", _tip(tip), class_=f"mark {_colour(number)}", d=shape)


def _bars(plot: Plot, top: float) -> tuple[str, float]:
    known = names(plot)
    y_scale = _amounts(plot, floor=0.5)
    frame, bottom = _frame(top, y_scale), top + HEIGHT
    slot = frame.width / len(known)
    width = min(BAR_MAX, slot * 0.76 / len(plot.series))
    labels, below = _x_labels(
        frame, [scales.Tick((number + 0.5) / len(known), name) for number, name in enumerate(known)]
    )
    drawn = [_y_axis(frame, y_scale), labels, _x_title(plot, bottom + below)]
    base = 0.0 if plot.log_y else y_scale.place(0.0) or 0.0
    told = sum(len(series.points) for series in plot.series) <= VALUES_SHOWN_MAX
    for number, series in enumerate(plot.series):
        bars = []
        for (x, y), spread in zip(series.points, series.spreads(), strict=True):
            middle = frame.left + slot * (known.index(figure(x)) + 0.5)
            left = middle + (number - len(plot.series) / 2) * width
            tip = f"{series.name}, {figure(x)}: {_ranged(y, spread)}"
            bars.append(
                _bar(
                    frame, left, width, base, y_scale.place(y), y, _ends(y_scale, spread), tip, told
                )
            )
        drawn.append(element("g", "".join(bars), class_=_colour(number)))
    return "".join(drawn), bottom + below + 20


def _bar(
    frame: Frame,
    left: float,
    width: float,
    base: float,
    place: float | None,
    value: float | None,
    ends: Ends | None,
    tip: str,
    told: bool,
) -> str:
    middle = left + width / 2
    if place is None:
        return _text(middle, frame.up(base) - 4, "?", "muted", anchor="middle", tip=tip)
    top, foot = frame.up(max(place, base)), frame.up(min(place, base))
    rect = element(
        "rect",
        _tip(tip),
        class_="mark",
        x=left + width * 0.06,
        y=top,
        width=width * 0.88,
        height=max(foot - top, 0.6),
        rx=1.5,
    )
    drawn = rect + _spread(frame, middle, min(width * 0.3, 8), ends)
    text = _brief(value)
    if not told or len(text) * CHARACTER > max(width * 1.15, 12):
        return drawn
    return drawn + _text(
        middle, min(top, frame.up(max(ends)) if ends else top) - 4, text, "small", anchor="middle"
    )


def _ends(scale: scales.Scale, spread: tuple[float, float] | None) -> Ends | None:
    """Where a spread begins and ends on the axis; None where the axis cannot show it."""
    if spread is None:
        return None
    low, high = map(scale.place, spread)
    return (low, high) if low is not None and high is not None else None


def _spread(frame: Frame, x: float, half: float, ends: Ends | None) -> str:
    """A line from the lowest to the highest value, with a bar at both ends."""
    if ends is None:
        return ""
    low, high = (frame.up(end) for end in ends)
    bars = "".join(f"M{x - half:.1f} {y:.1f}h{2 * half:.1f}" for y in (low, high))
    return element("path", class_="spread", d=f"M{x:.1f} {low:.1f}V{high:.1f}{bars}")


def _ranged(value: float | None, spread: tuple[float, float] | None) -> str:
    return (
        f"{figure(value)} ({figure(spread[0])} to {figure(spread[1])})" if spread else figure(value)
    )


def _heat(plot: Plot, top: float) -> tuple[str, float]:
    known = names(plot)
    left = 24 + CHARACTER * max(len(shortened(series.name, LABEL_MAX)) for series in plot.series)
    frame = Frame(left, top, WIDTH - RIGHT - left, max(30 * len(plot.series), 60))
    values = [y for series in plot.series for _, y in series.points]
    depth = scales.logarithmic(values) if plot.log_y else scales.linear(values)
    found = [part for part in map(depth.place, values) if part is not None]
    least, most = min(found), max(found)
    slot, row = frame.width / len(known), frame.height / len(plot.series)
    drawn = []
    for number, series in enumerate(plot.series):
        y = frame.top + number * row
        drawn.append(_text(frame.left - 8, y + row / 2 + 4, series.name, anchor="end"))
        held = {figure(x): value for x, value in series.points}
        for column, name in enumerate(known):
            tip = f"{plot.y} {series.name}, {plot.x} {name}: {figure(held.get(name))}"
            place = depth.place(held.get(name))
            part = (
                None if place is None else (place - least) / (most - least) if most > least else 0.5
            )
            drawn.append(_cell(frame.left + column * slot, y, slot, row, part, held.get(name), tip))
    labels, below = _x_labels(
        frame, [scales.Tick((number + 0.5) / len(known), name) for number, name in enumerate(known)]
    )
    return "".join(drawn) + labels + _x_title(plot, frame.bottom + below), frame.bottom + below + 20


def _cell(
    x: float,
    y: float,
    width: float,
    height: float,
    part: float | None,
    value: float | None,
    tip: str,
) -> str:
    place = {
        "x": x + 1,
        "y": y + 1,
        "width": max(width - 2, 1),
        "height": max(height - 2, 1),
        "rx": 2,
    }
    if part is None:
        return element("rect", _tip(tip), class_="none", **place) + _text(
            x + width / 2, y + height / 2 + 4, "?", "muted", "middle"
        )
    rect = element(
        "rect", _tip(tip), class_="cell", fill_opacity=f"{0.08 + 0.92 * part:.3f}", **place
    )
    text = _brief(value)
    if len(text) * CHARACTER > width:
        return rect
    return rect + _text(
        x + width / 2, y + height / 2 + 4, text, "strong" if part > 0.5 else "", anchor="middle"
    )


def _amounts(plot: Plot, floor: float = 1.0) -> scales.Scale:
    """The y axis. With a floor below 1 a logarithmic one begins so much below the least value that its bar can be seen."""
    values = [y for series in plot.series for _, y in series.points]
    values += [end for series in plot.series for spread in series.spreads() for end in spread or ()]
    if not plot.log_y:
        return scales.linear(values)
    least = min(
        (value for value in values if value is not None and scales.shown(value) and value > 0),
        default=None,
    )
    return scales.logarithmic([*values, least and least * floor])


def _frame(top: float, y_scale: scales.Scale) -> Frame:
    left = 24 + CHARACTER * max(len(tick.text) for tick in y_scale.ticks)
    return Frame(left, top + 8, WIDTH - RIGHT - left, HEIGHT - 8)


def _y_axis(frame: Frame, scale: scales.Scale) -> str:
    drawn = []
    for tick in scale.ticks:
        y = frame.up(tick.at)
        drawn.append(
            element("path", class_="rule", d=f"M{frame.left:.1f} {y:.1f}h{frame.width:.1f}")
        )
        drawn.append(_text(frame.left - 8, y + 4, tick.text, "muted small", anchor="end"))
    drawn.append(
        element("path", class_="base", d=f"M{frame.left:.1f} {frame.bottom:.1f}h{frame.width:.1f}")
    )
    return "".join(drawn)


def _x_labels(frame: Frame, ticks: Sequence[scales.Tick]) -> tuple[str, float]:
    """The labels below the axis, in several lines or aslant where they would touch, and how much room they take."""
    nearest = (
        min((after.at - before.at for before, after in itertools.pairwise(ticks)), default=1.0)
        * frame.width
    )
    across = max(1, int((nearest - 8) / CHARACTER))
    lines = [textwrap.wrap(tick.text, across, break_long_words=False) for tick in ticks]
    if any(len(one) > LABEL_LINES_MAX or max(map(len, one), default=0) > across for one in lines):
        return _aslant(frame, ticks[:: max(1, math.ceil(14 / max(nearest, 0.1)))])
    drawn = [
        _text(
            frame.across(tick.at), frame.bottom + 17 + number * 14, line, "small", anchor="middle"
        )
        for tick, one in zip(ticks, lines, strict=True)
        for number, line in enumerate(one)
    ]
    return "".join(drawn), 24 + 14 * max(map(len, lines), default=1)


def _aslant(frame: Frame, ticks: Sequence[scales.Tick]) -> tuple[str, float]:
    """Labels that end below their tick, each as long as there is room to its left."""
    drawn, longest = [], 0
    for tick in ticks:
        x, y = frame.across(tick.at), frame.bottom + 16
        most = max(4, min(ASLANT_MAX, int((x - 6) / (CHARACTER * math.cos(ASLANT)))))
        drawn.append(
            _text(
                x,
                y,
                tick.text,
                "small",
                "end",
                most,
                f"rotate(-{math.degrees(ASLANT):.0f} {x:.1f} {y:.1f})",
            )
        )
        longest = max(longest, min(len(tick.text), most))
    return "".join(drawn), 36 + longest * CHARACTER * math.sin(ASLANT)


def _sparse(ticks: Iterable[scales.Tick], width: float) -> list[scales.Tick]:
    """Ticks of numbers that would touch are left out."""
    kept: list[scales.Tick] = []
    for tick in ticks:
        if (
            not kept
            or (tick.at - kept[-1].at) * width
            > CHARACTER * (len(tick.text) + len(kept[-1].text)) / 2 + 8
        ):
            kept.append(tick)
    return kept


def _x_title(plot: Plot, y: float) -> str:
    return _text(WIDTH - RIGHT, y + 4, plot.x, "muted", anchor="end", most=100)


def _text(
    x: float,
    y: float,
    text: str,
    class_: str = "",
    anchor: str = "",
    most: int = LABEL_MAX,
    transform: str = "",
    tip: str = "",
) -> str:
    """A text, cut where it is too long; then it tells all of it when pointed at."""
    cut = shortened(text, most)
    content = escaped(cut) + _tip(tip or (text if cut != text else ""))
    return (
        element("text", content, x=x, y=y, class_=class_, text_anchor=anchor, transform=transform)
        if content
        else ""
    )


def _tip(text: str) -> str:
    return element("title", escaped(text)) if text else ""


def _brief(value: float | None) -> str:
    """A value where there is little room."""
    if value is None:
        return "?"
    return scales.label(float(f"{value:.3g}")) if abs(value) >= 1e4 else figure(value)


def _colour(number: int) -> str:
    return f"c{number % len(LIGHT)}"
