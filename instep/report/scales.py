"""Axes: where a value stands between the two ends (0 to 1), and which ticks are shown. Pure.

A logarithmic axis has no place for 0, and zeros are what a lab wants to see: they stand at its end, in a band of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

LARGEST = 1e300
ZERO_BAND = 0.08
UNITS = ((1e9, "G"), (1e6, "M"), (1e4, "k"))


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Scale:
    """`place` is None for a value that the axis cannot show."""

    place: Callable[[float | None], float | None]
    ticks: tuple[Tick, ...]


def shown(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and abs(value) <= LARGEST


def linear(values: Iterable[float | None], *, from_zero: bool = True, ticks: int = 5) -> Scale:
    """With 0 for amounts (`from_zero`), whose ends are ticks; without, the axis ends where the values do."""
    found = [value for value in values if value is not None and shown(value)]
    low, high = (
        (min([0.0, *found]), max([0.0, *found]))
        if from_zero
        else (min(found, default=0.0), max(found, default=0.0))
    )
    if high - low <= max(abs(low), abs(high), 1e-290) * 1e-9:
        low, high = (
            (low, low + 1.0)
            if from_zero
            else (low - 0.5 - abs(low) / 10, high + 0.5 + abs(high) / 10)
        )
    step = _nice((high - low) / ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if from_zero:
        low, high = first * step, last * step
    marks = [
        number * step
        for number in range(first, last + 1)
        if low <= number * step + step / 1e6 <= high + step / 1e3
    ]

    def place(value: float | None) -> float | None:
        return (value - low) / (high - low) if value is not None and shown(value) else None

    return Scale(place, tuple(Tick((mark - low) / (high - low), label(mark)) for mark in marks))


def logarithmic(values: Iterable[float | None], *, whole: bool = True) -> Scale:
    """From one power of ten to another (`whole`), or from the least value to the greatest. Below 0 there is nothing to show."""
    found = [value for value in values if value is not None and shown(value) and value >= 0]
    above = [math.log10(value) for value in found if value > 0]
    low, high = min(above, default=0.0), max(above, default=1.0)
    if whole:
        low, high = math.floor(low + 1e-9), math.ceil(high - 1e-9)
    if high - low < 1e-9:
        low, high = (low - 1, high) if whole else (low - 0.5, high + 0.5)
    band = ZERO_BAND if len(above) < len(found) else 0.0

    def place(value: float | None) -> float | None:
        if value is None or not shown(value) or value < 0:
            return None
        return 0.0 if value == 0 else band + (math.log10(value) - low) / (high - low) * (1 - band)

    ends = range(math.floor(low), math.ceil(high) + 1)
    every = max(1, math.ceil(len(ends) / 8))
    powers = [(10.0**power, power) for power in ends if power % every == 0]
    marks = [mark for mark, power in powers if low - 1e-9 <= power <= high + 1e-9]
    if high - low < 2:
        marks += [
            part * 10.0**power
            for power in ends
            for part in (2, 5)
            if low <= math.log10(part) + power <= high
        ]
    zero = (Tick(0.0, "0"),) if band else ()
    return Scale(place, (*zero, *(Tick(place(mark) or 0.0, label(mark)) for mark in sorted(marks))))


def label(value: float) -> str:
    """A tick's number, short."""
    for size, unit in UNITS:
        if size <= abs(value) < 1e15:
            return f"{value / size:.4g}{unit}" if unit != "k" else f"{value / 1e3:.4g}{unit}"
    return f"{value:,.6g}" if value == 0 or 1e-6 <= abs(value) < 1e15 else f"{value:.0e}"


def _nice(rough: float) -> float:
    """The next step of 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(part * power for part in (1, 2, 2.5, 5, 10) if part * power >= rough * (1 - 1e-9))
