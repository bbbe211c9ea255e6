"""Percentiles of measured values. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

PARTS = 10_000  # 99.99 is the finest percentile that a report shows


def percentile_values(values: Iterable[float], percents: Iterable[float]) -> list[float]:
    """Return the values at these percentiles, interpolated between the two nearest values.

    0 is the lowest value and 100 the highest. At least one value is required.
    """
    ordered = sorted(values)
    # Before Python 3.13 `quantiles` needs two values: a single one is its own percentile.
    pair = ordered * 2 if len(ordered) == 1 else ordered
    inner = statistics.quantiles(pair, n=PARTS, method="inclusive")
    cuts = [ordered[0], *inner, ordered[-1]]
    return [cuts[round(percent * PARTS / 100)] for percent in percents]
