"""Prometheus metrics of a running bridge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from instep.bridge.progress import PollCounts


class BridgeMetrics(Collector):
    """Collects the metrics from the counts of a bridge; keeps nothing itself."""

    def __init__(self, name: str, counts: PollCounts, failures: Mapping[str, int]) -> None:
        self._name, self._counts, self._failures = name, counts, failures

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        counts = self._counts
        yield self._counter(
            "instep_bridge_requests",
            "Requests to the source, with retries and pages of lists.",
            counts.requests,
        )
        answers = CounterMetricFamily(
            "instep_bridge_answers", "Documents polled, by result.", labels=["bridge", "result"]
        )
        for result in ("changed", "unchanged", "missing", "stale", "failed"):
            answers.add_metric([self._name, result], getattr(counts, result))
        yield answers
        failures = CounterMetricFamily(
            "instep_bridge_failures", "Documents that failed, by code.", labels=["bridge", "code"]
        )
        for code, count in dict(self._failures).items():
            failures.add_metric([self._name, code], count)
        yield failures
        yield self._counter(
            "instep_bridge_published", "Changes that the broker acknowledged.", counts.published
        )
        for name, text, value in (
            ("instep_bridge_documents", "Documents that the bridge polls.", counts.documents),
            ("instep_bridge_final_documents", "Of them, those that are final.", counts.final),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["bridge"])
            gauge.add_metric([self._name], value)
            yield gauge

    def _counter(self, name: str, text: str, value: int) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=["bridge"])
        family.add_metric([self._name], value)
        return family
