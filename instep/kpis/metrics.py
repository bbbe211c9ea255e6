"""Prometheus metrics of the running KPIs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from instep.pipeline.job import RunnerState
from instep.pipeline.runner import Runner

# The outcomes of a KPI's events, and the totals of a job that count them.
OUTCOMES = {
    "counted": "applied",
    "repeated": "repeated",
    "too_late": "stale",
    "ignored": "ignored",
    "unreadable": "dead",
}


class KpiMetrics(Collector):
    """Collects the metrics from the runners; keeps nothing itself."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = runners

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        events = CounterMetricFamily(
            "instep_kpi_events", "Events of a KPI by outcome.", labels=["kpi", "outcome"]
        )
        lag = GaugeMetricFamily(
            "instep_kpi_lag_records",
            "Offsets up to the end of the log that a KPI has not counted yet.",
            labels=["kpi"],
        )
        up = GaugeMetricFamily(
            "instep_kpi_up",
            "1 while the KPI is counted, 0 while it waits or has ended.",
            labels=["kpi"],
        )
        restarts = CounterMetricFamily(
            "instep_kpi_restarts", "Restarts of a KPI's query.", labels=["kpi"]
        )
        for runner in self._runners:
            for outcome, total in OUTCOMES.items():
                events.add_metric([runner.name, outcome], runner.progress.totals[total])
            if runner.progress.lag is not None:
                lag.add_metric([runner.name], runner.progress.lag)
            up.add_metric([runner.name], 1.0 if runner.state is RunnerState.RUNNING else 0.0)
            restarts.add_metric([runner.name], runner.restarts)
        yield from (events, lag, up, restarts)
