"""Compares two results: each figure that both have, with its noise. Pure.

The range of a figure goes from its lowest round to its highest. If the two ranges overlap, the
difference may be noise and is reported as such. If they do not overlap, the ratio of the medians is
a real difference. A single round has no range; then the noise is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from instep_bench.result import BenchResult, Figure

Word = Literal["faster", "slower", "better", "worse", "within noise", "the same"]
TIMES = ("s", "ms", "µs", "us", "ns")


class FigureRange(msgspec.Struct, frozen=True):
    """A figure's rounds in one result."""

    median: float
    low: float
    high: float
    rounds: int


class FigureComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that both have: the ratio of B's median to A's, and a word for how B compares."""

    name: str
    labels: dict[str, str]
    unit: str
    a: FigureRange
    b: FigureRange
    ratio: float | None
    word: Word
    noise_known: bool


class ConditionChange(msgspec.Struct, frozen=True):
    """A condition that differs between the results and may explain different figures."""

    what: str
    a: str
    b: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    differences: list[ConditionChange]
    lines: list[FigureComparison]
    only_a: list[str]
    only_b: list[str]
    widest_a: float | None  # the widest range, as a share of its median
    widest_b: float | None


def compare(a: BenchResult, b: BenchResult) -> Comparison:
    in_a, in_b = (
        {figure.key: figure for figure in a.figures},
        {figure.key: figure for figure in b.figures},
    )
    return Comparison(
        differences=list(_differences(a, b)),
        lines=[_line(figure, in_b[key]) for key, figure in in_a.items() if key in in_b],
        only_a=[described(figure) for key, figure in in_a.items() if key not in in_b],
        only_b=[described(figure) for key, figure in in_b.items() if key not in in_a],
        widest_a=_widest(a.figures),
        widest_b=_widest(b.figures),
    )


def described(figure: Figure | FigureComparison) -> str:
    """Return the identity of a figure: its name and labels."""
    labels = "; ".join(f"{name}={value}" for name, value in figure.labels.items())
    if not labels:
        return figure.name
    return f"{figure.name} ({labels})"


def _line(a: Figure, b: Figure) -> FigureComparison:
    return FigureComparison(
        name=a.name,
        labels=a.labels,
        unit=a.unit,
        a=_range(a),
        b=_range(b),
        ratio=b.median / a.median if a.median else None,
        word=_word(a, b),
        noise_known=len(a.values) > 1 and len(b.values) > 1,
    )


def _word(a: Figure, b: Figure) -> Word:
    if a.low == a.high == b.low == b.high:
        return "the same"
    if a.low <= b.high and b.low <= a.high:
        return "within noise"
    won = (b.median > a.median) == (a.better == "more")
    is_speed = a.unit.endswith("/s") or re.split(r"\W", a.unit)[0] in TIMES
    words: dict[tuple[bool, bool], Word] = {
        (True, True): "faster",
        (True, False): "slower",
        (False, True): "better",
        (False, False): "worse",
    }
    return words[is_speed, won]


def _range(figure: Figure) -> FigureRange:
    return FigureRange(figure.median, figure.low, figure.high, len(figure.values))


def _widest(figures: Iterable[Figure]) -> float | None:
    shares = [
        (one.high - one.low) / abs(one.median)
        for one in figures
        if len(one.values) > 1 and one.median
    ]
    return max(shares, default=None)


def _differences(a: BenchResult, b: BenchResult) -> Iterable[ConditionChange]:
    if a.bench != b.bench:
        yield ConditionChange("benchmark", a.bench, b.bench)
    for kind, in_a, in_b in (
        ("machine", a.machine, b.machine),
        ("release", a.releases, b.releases),
        ("option", a.options, b.options),
    ):
        yield from _unlike(kind, in_a, in_b)


def _unlike(
    kind: str, a: Mapping[str, object], b: Mapping[str, object]
) -> Iterable[ConditionChange]:
    for name in dict.fromkeys([*a, *b]):
        in_a, in_b = (str(side.get(name, "not known")) for side in (a, b))
        if in_a != in_b:
            yield ConditionChange(f"{kind}: {name}", in_a, in_b)
