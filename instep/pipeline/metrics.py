"""Prometheus metrics of the running pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from instep.document.guard import Verdict
from instep.pipeline import counts
from instep.pipeline.runner import Runner, RunnerState


class Pipelines(Collector):
    """Collects the metrics from the runners; keeps nothing itself."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = runners

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        label = ["pipeline"]
        yield self._counter(
            "instep_applied",
            "Events applied to the target table.",
            lambda runner: runner.progress.totals["applied"],
        )
        events = CounterMetricFamily(
            "instep_events", "Events by verdict.", labels=["pipeline", "verdict"]
        )
        freshness = HistogramMetricFamily(
            "instep_freshness_seconds",
            "Time from an event's own time to its commit in the target.",
            labels=label,
        )
        lag = GaugeMetricFamily(
            "instep_lag_records",
            "Offsets up to the end of the log that are not applied yet.",
            labels=label,
        )
        held = GaugeMetricFamily(
            "instep_held_back_records",
            "The part of the lag that waits behind an open Kafka transaction.",
            labels=label,
        )
        up = GaugeMetricFamily(
            "instep_pipeline_up",
            "1 while the pipeline runs, 0 while it waits or has ended.",
            labels=label,
        )
        for runner in self._runners:
            totals = runner.progress.totals
            for verdict in Verdict:
                events.add_metric([runner.name, verdict.value], totals[verdict.value])
            freshness.add_metric(
                [runner.name], cumulative(totals), totals["freshness_us"] / 1_000_000
            )
            if runner.progress.lag is not None:
                lag.add_metric([runner.name], runner.progress.lag)
            held.add_metric([runner.name], runner.progress.held_back)
            up.add_metric([runner.name], 1.0 if runner.state is RunnerState.RUNNING else 0.0)
        yield from (events, freshness, lag, held, up)
        yield from self._overdue()
        yield from self._redriven()
        yield self._counter(
            "instep_records",
            "Records read from the log.",
            lambda runner: runner.progress.totals["records"],
        )
        yield self._counter(
            "instep_dead_letters",
            "Records that became dead letters.",
            lambda runner: runner.progress.totals["dead"],
        )
        yield self._counter(
            "instep_restarts", "Restarts of the flow.", lambda runner: runner.restarts
        )

    def _overdue(self) -> Iterator[Metric]:
        """Yield the overdue documents by status: 0 for a status with a limit but none overdue."""
        labels = ["pipeline", "status"]
        documents = GaugeMetricFamily(
            "instep_overdue_documents",
            "Documents that have had a status for longer than [pipelines.NAME.due] allows.",
            labels=labels,
        )
        oldest = GaugeMetricFamily(
            "instep_overdue_oldest_seconds",
            "How long the first of the overdue documents has had its status.",
            labels=labels,
        )
        for runner in self._runners:
            summary = runner.progress.overdue
            for status in runner.pipeline.due if summary is not None else ():
                assert summary is not None
                count = summary.statuses.get(status)
                documents.add_metric([runner.name, status], count.documents if count else 0)
                if count:
                    age = summary.at - count.oldest
                    oldest.add_metric([runner.name, status], age.total_seconds())
        yield from (documents, oldest)

    def _redriven(self) -> Iterator[Metric]:
        """Yield the attempts of redrive, and the documents that it gave up."""
        attempts = CounterMetricFamily(
            "instep_redrives",
            "Attempts of redrive for parked documents, by outcome.",
            labels=["pipeline", "outcome"],
        )
        given_up = GaugeMetricFamily(
            "instep_given_up_documents",
            "Parked documents that redrive does not try any more.",
            labels=["pipeline"],
        )
        for runner in self._runners:
            if runner.pipeline.redrive is not None:
                for outcome in ("released", "refused"):
                    attempts.add_metric([runner.name, outcome], runner.progress.redriven[outcome])
            if runner.progress.given_up is not None:
                given_up.add_metric([runner.name], runner.progress.given_up)
        yield from (attempts, given_up)

    def _counter(self, name: str, text: str, value: Callable[[Runner], int]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=["pipeline"])
        for runner in self._runners:
            family.add_metric([runner.name], value(runner))
        return family


def cumulative(totals: dict[str, int]) -> list[tuple[str, float]]:
    """Return the buckets of freshness, each with those below it."""
    seen = 0
    buckets = []
    for name, bound in zip(counts.BUCKETS, (*counts.FRESHNESS_BOUNDS_S, float("inf")), strict=True):
        seen += totals[name]
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(seen)))
    return buckets
