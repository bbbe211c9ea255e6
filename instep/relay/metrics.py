"""Prometheus metrics of a running relay."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from instep import errors, settings
from instep.relay import backlog
from instep.relay.session import RelayProgress


class RelayMetrics(Collector):
    """Collects the metrics from the progress of a relay, and counts the rows that wait."""

    def __init__(self, name: str, relay: settings.Relay, progress: RelayProgress) -> None:
        self._name, self._relay, self._progress = name, relay, progress

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Only the active process knows what waits."""
        progress = self._progress
        for name, text, count in (
            ("instep_relay_rows", "Rows that this process published.", progress.rows),
            ("instep_relay_transactions", "Kafka transactions.", progress.transactions),
            ("instep_relay_dead", "Rows that the topic did not accept.", progress.dead),
        ):
            family = CounterMetricFamily(name, text, labels=["relay"])
            family.add_metric([self._name], count)
            yield family
        is_active = progress.caught_up_at is not None
        yield self._gauge(
            "instep_relay_active", "1: this process publishes; 0: it waits.", float(is_active)
        )
        yield self._gauge(
            "instep_relay_behind_seconds",
            "How long there have been rows to publish: the oldest one is no older.",
            self._behind_s(),
        )
        yield self._gauge(
            "instep_relay_waiting_rows",
            "Rows that are committed and not published.",
            self._waiting() if is_active else None,
        )

    def _behind_s(self) -> float | None:
        caught_up_at = self._progress.caught_up_at
        if caught_up_at is None:
            return None
        return 0.0 if self._progress.state == "idle" else time.monotonic() - caught_up_at

    def _waiting(self) -> int | None:
        try:
            return backlog.waiting(self._name, self._relay, self._progress.position)
        except errors.InstepError:
            return None

    def _gauge(self, name: str, text: str, value: float | None) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["relay"])
        if value is not None:
            family.add_metric([self._name], value)
        return family
