"""Prometheus metrics of the running streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from instep.pipeline import metrics
from instep.pipeline.job import RunnerState
from instep.streams.runner import StreamRunner


class Streams(Collector):
    """Collects the metrics from the runners; keeps nothing itself."""

    def __init__(self, runners: Sequence[StreamRunner]) -> None:
        self._runners = runners

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        label = ["stream"]
        counters = {
            name: CounterMetricFamily(f"instep_stream_{metric}", text, labels=label)
            for name, metric, text in (
                ("records", "records", "Records that a stream has read."),
                ("applied", "published", "Records that a stream has published."),
                ("dead", "dead_letters", "Records that a stream could not publish."),
            )
        }
        restarts = CounterMetricFamily(
            "instep_stream_restarts", "Restarts of a stream's flow.", labels=label
        )
        freshness = HistogramMetricFamily(
            "instep_stream_freshness_seconds",
            "Time from a record's timestamp to the commit of what a stream published of it.",
            labels=label,
        )
        gauges = {
            name: GaugeMetricFamily(f"instep_stream_{name}", text, labels=label)
            for name, text in (
                ("lag_records", "Offsets up to the end of the log that are not published yet."),
                ("held_back_records", "The part of the lag that waits behind a transaction."),
                ("up", "1 while the stream runs, 0 while it waits or has ended."),
            )
        }
        for runner in self._runners:
            name, progress = [runner.name], runner.progress
            for total, counter in counters.items():
                counter.add_metric(name, progress.totals[total])
            restarts.add_metric(name, runner.restarts)
            freshness.add_metric(
                name,
                metrics.cumulative(progress.totals),
                progress.totals["freshness_us"] / 1_000_000,
            )
            if progress.lag is not None:
                gauges["lag_records"].add_metric(name, progress.lag)
            gauges["held_back_records"].add_metric(name, progress.held_back)
            gauges["up"].add_metric(name, float(runner.state is RunnerState.RUNNING))
        yield from (*counters.values(), restarts, freshness, *gauges.values())
