"""Figures and a table that compare delays in several situations of one run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from instep.report.tables import Cell, ReportTable
from instep_bench import freshness_report, latency_join
from instep_bench.latency_join import PERCENTILES
from instep_bench.result import Figure

Delays = Mapping[str, Sequence[float]]  # in ms, by situation


def figures(name: str, delays: Delays, labels: Mapping[str, str] | None = None) -> list[Figure]:
    """Return a figure per situation and percentile."""
    return [
        freshness_report.less(
            name, "ms", {**(labels or {}), "when": when, "percentile": percentile}, [value]
        )
        for when, values in delays.items()
        for percentile, value in latency_join.percentiles(values).items()
    ]


def ratio(delays: Delays, when: str, usual: str, percentile: str = "p99") -> float | None:
    """Return how many times longer a percentile is than usual."""
    found = latency_join.percentiles(delays[when]).get(percentile)
    before = latency_join.percentiles(delays[usual]).get(percentile)
    return found / before if found is not None and before else None


def table(title: str, delays: Delays) -> ReportTable:
    """Return a row per situation."""
    rows: list[list[Cell]] = []
    for when, values in delays.items():
        found = latency_join.percentiles(values)
        rows.append(
            [when, len(values), *(_rounded(found.get(percentile)) for percentile in PERCENTILES)]
        )
    return ReportTable(title, ["when", "events", *PERCENTILES], rows)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
