"""Charts as SVG: lines over time, with gaps where a value is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from markupsafe import Markup

WIDTH, HEIGHT = 560, 160
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 10, 22
SPAN_LEAST_S = 120.0
GAP_S = 90.0  # a line does not cross a longer time without samples
SPARK_WIDTH, SPARK_HEIGHT = 120, 24

Points = Sequence[tuple[float, float | None]]  # seconds before now, as negative numbers; value


Place = Callable[[float, float], tuple[float, float]]


class ChartLine(msgspec.Struct, frozen=True):
    """One line of a chart."""

    name: str
    points: Points


def chart(title: str, unit: str, lines: Sequence[ChartLine], span_s: float) -> Markup:
    """Return a chart of the last `span_s` seconds."""
    known = [value for line in lines for _, value in line.points if value is not None]
    if not known:
        return Markup('<p class="muted">{}: no values yet</p>').format(title)
    highest = max(known) or 1.0
    # a chart that has just begun is as wide as what it knows
    span_s = min(span_s, max(SPAN_LEAST_S, *(-at for line in lines for at, _ in line.points)))
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(at: float, value: float) -> tuple[float, float]:
        return (
            LEFT + inner_width * (1 + at / span_s),
            TOP + inner_height * (1 - value / highest),
        )

    drawn = Markup().join(
        _segments(line.points, place, f"line line-{number}") for number, line in enumerate(lines)
    )
    legend = Markup().join(
        Markup('<li class="key-{}">{}</li>').format(number, line.name)
        for number, line in enumerate(lines)
    )
    bottom = TOP + inner_height
    return Markup(
        '<figure class="chart"><figcaption>{title} <span class="muted">({unit})</span></figcaption>'
        '<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        '<line class="axis" x1="{left}" y1="{top}" x2="{right}" y2="{top}"/>'
        '<line class="axis" x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'
        '<text class="tick" x="{tick}" y="{high}" text-anchor="end">{most}</text>'
        '<text class="tick" x="{tick}" y="{bottom}" text-anchor="end">0</text>'
        '<text class="tick" x="{left}" y="{below}">{span}</text>'
        '<text class="tick" x="{right}" y="{below}" text-anchor="end">now</text>'
        '{drawn}</svg><ul class="legend">{legend}</ul></figure>'
    ).format(
        title=title,
        unit=unit,
        label=f"{title}: at most {_amount(highest)} {unit}",
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=bottom,
        tick=LEFT - 6,
        high=TOP + 8,
        below=HEIGHT - 6,
        most=_amount(highest),
        span=f"{span_s / 60:.0f} min ago",
        drawn=drawn,
        legend=legend,
    )


def spark(title: str, points: Points, span_s: float) -> Markup:
    """Return a small line without axes, for a table."""
    known = [value for _, value in points if value is not None]
    if len(known) < 2:
        return Markup('<span class="unknown">no trend yet</span>')
    highest = max(known) or 1.0

    def place(at: float, value: float) -> tuple[float, float]:
        return (
            SPARK_WIDTH * (1 + at / span_s),
            2 + (SPARK_HEIGHT - 4) * (1 - value / highest),
        )

    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(
        SPARK_WIDTH,
        SPARK_HEIGHT,
        f"{title}: from {_amount(known[0])} to {_amount(known[-1])}, at most {_amount(highest)}",
        _segments(points, place, "line line-0"),
    )


def _segments(points: Points, place: Place, style: str) -> Markup:
    """Return a polyline for each stretch of known values."""
    stretches: list[list[str]] = [[]]
    previous = float("-inf")
    for at, value in points:
        if value is None or at - previous > GAP_S:
            stretches.append([])
        previous = at
        if value is None:
            continue
        x, y = place(at, value)
        stretches[-1].append(f"{x:.1f},{y:.1f}")
    return Markup().join(
        Markup('<polyline class="{}" points="{}"/>').format(style, " ".join(stretch))
        for stretch in stretches
        if stretch
    )


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
