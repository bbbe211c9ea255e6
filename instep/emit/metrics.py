"""Metrics of a publisher: counts of records, and how long acknowledgements take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from instep.emit.deliveries import DeliveryCounter

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LABELS = ("topic", "source")


class PublisherMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What a publisher has done so far."""

    topic: Annotated[str, msgspec.Meta(description="The topic that it sends to.")]
    source: Annotated[str, msgspec.Meta(description="The name of the source system.")]
    sent: Annotated[int, msgspec.Meta(description="Records sent.")] = 0
    delivered: Annotated[int, msgspec.Meta(description="Records that the broker confirmed.")] = 0
    failed: Annotated[int, msgspec.Meta(description="Records that were not delivered.")] = 0
    open: Annotated[int, msgspec.Meta(description="Records that wait for their answer.")] = 0
    open_bytes: Annotated[int, msgspec.Meta(description="Bytes of their keys and values.")] = 0
    last_error: Annotated[
        str | None, msgspec.Meta(description="The last failure of a record or of the connection.")
    ] = None
    latency_p50_ms: Annotated[
        float | None,
        msgspec.Meta(description="Time to an acknowledgement: the median of the last 10,000."),
    ] = None
    latency_p99_ms: Annotated[
        float | None, msgspec.Meta(description="The same: 99 of 100 took at most this long.")
    ] = None

    def prometheus(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return prometheus_text([self])


def measured(
    topic: str, source: str, counter: DeliveryCounter, client_error: str | None = None
) -> PublisherMetrics:
    """Return the metrics of a publisher from its counter."""
    failure = counter.last_failure
    # The thread that reports deliveries may add one meanwhile; `copy` is atomic, a loop is not.
    latencies_s = sorted(counter.latencies_s.copy())
    return PublisherMetrics(
        topic=topic,
        source=source,
        sent=counter.sent,
        delivered=counter.delivered,
        failed=counter.failed,
        open=counter.open,
        open_bytes=counter.open_bytes,
        last_error=client_error or (failure.what if failure else None),
        latency_p50_ms=_percentile_ms(latencies_s, 0.5),
        latency_p99_ms=_percentile_ms(latencies_s, 0.99),
    )


def families(publishers: Sequence[PublisherMetrics]) -> Iterator[Metric]:
    """Yield the metrics of publishers as Prometheus collects them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    described = (
        ("counter", "instep_publisher_sent", "Records sent.", "sent"),
        ("counter", "instep_publisher_delivered", "Records that were confirmed.", "delivered"),
        ("counter", "instep_publisher_failed", "Records that were not delivered.", "failed"),
        ("gauge", "instep_publisher_open_records", "Records that wait for their answer.", "open"),
        ("gauge", "instep_publisher_open_bytes", "Their keys and values.", "open_bytes"),
    )
    for kind, name, text, field in described:
        family = kinds[kind](name, text, labels=LABELS)
        for one in publishers:
            family.add_metric([one.topic, one.source], getattr(one, field))
        yield family
    latency = GaugeMetricFamily(
        "instep_publisher_latency_seconds",
        "Time from sending a record to its acknowledgement, of the last 10,000.",
        labels=[*LABELS, "quantile"],
    )
    for one in publishers:
        for quantile, value_ms in (("0.5", one.latency_p50_ms), ("0.99", one.latency_p99_ms)):
            if value_ms is not None:
                latency.add_metric([one.topic, one.source, quantile], value_ms / 1000)
    yield latency


def prometheus_text(publishers: Sequence[PublisherMetrics]) -> str:
    """Return the metrics of several publishers as one text."""
    import prometheus_client
    from prometheus_client.registry import Collector, CollectorRegistry

    class Publishers(Collector):
        def collect(self) -> Iterator[Metric]:
            return families(publishers)

    registry = CollectorRegistry()
    registry.register(Publishers())
    return prometheus_client.generate_latest(registry).decode()


def _percentile_ms(ordered_s: Sequence[float], share: float) -> float | None:
    """Return the smallest value that this share of the values does not exceed."""
    if not ordered_s:
        return None
    index = max(0, -(-len(ordered_s) * share // 1) - 1)
    return round(ordered_s[int(index)] * 1000, 3)
