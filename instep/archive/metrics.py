"""Prometheus metrics of the running archives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from instep.archive.runner import ArchiveRunner
from instep.pipeline.job import RunnerState


class Archives(Collector):
    """Collects the metrics from the runners; keeps nothing itself."""

    def __init__(self, runners: Sequence[ArchiveRunner]) -> None:
        self._runners = runners

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        label = ["archive"]
        archived = CounterMetricFamily("instep_archived", "Records archived.", labels=label)
        restarts = CounterMetricFamily(
            "instep_archive_restarts", "Restarts of the flow.", labels=label
        )
        lag = GaugeMetricFamily(
            "instep_archive_lag_records",
            "Offsets up to the end of the log that are not archived yet.",
            labels=label,
        )
        up = GaugeMetricFamily(
            "instep_archive_up",
            "1 while the archive runs, 0 while it waits or has ended.",
            labels=label,
        )
        for runner in self._runners:
            archived.add_metric([runner.name], runner.progress.totals["records"])
            restarts.add_metric([runner.name], runner.restarts)
            if runner.progress.lag is not None:
                lag.add_metric([runner.name], runner.progress.lag)
            up.add_metric([runner.name], 1.0 if runner.state is RunnerState.RUNNING else 0.0)
        yield from (archived, restarts, lag, up)
