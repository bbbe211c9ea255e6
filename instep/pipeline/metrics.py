"""Prometheus metrics of the running pipelines, served on this machine only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import prometheus_client
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from instep import errors
from instep.document.guard import Verdict
from instep.pipeline import counts
from instep.pipeline.runner import Runner, RunnerState

HOST = "127.0.0.1"


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
                [runner.name], _cumulative(totals), totals["freshness_us"] / 1_000_000
            )
            if runner.progress.lag is not None:
                lag.add_metric([runner.name], runner.progress.lag)
            held.add_metric([runner.name], runner.progress.held_back)
            up.add_metric([runner.name], 1.0 if runner.state is RunnerState.RUNNING else 0.0)
        yield from (events, freshness, lag, held, up)
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
            "instep_restarts", "Restarts of the query.", lambda runner: runner.restarts
        )

    def _counter(self, name: str, text: str, value: Callable[[Runner], int]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=["pipeline"])
        for runner in self._runners:
            family.add_metric([runner.name], value(runner))
        return family


class MetricsServer:
    """The HTTP server that Prometheus scrapes. Port 0 takes a free one."""

    def __init__(self, port: int, runners: Sequence[Runner]) -> None:
        registry = CollectorRegistry()
        registry.register(Pipelines(runners))
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                port, addr=HOST, registry=registry
            )
        except OSError as error:
            raise errors.SettingsError(
                f"metrics cannot be served on port {port}: {error.strerror}",
                "give --metrics another port",
            ) from error
        self.address = f"http://{HOST}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _cumulative(totals: dict[str, int]) -> list[tuple[str, float]]:
    seen = 0
    buckets = []
    for name, bound in zip(counts.BUCKETS, (*counts.FRESHNESS_BOUNDS_S, float("inf")), strict=True):
        seen += totals[name]
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(seen)))
    return buckets
