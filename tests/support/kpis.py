"""KPIs for tests: settings, records of the log, and a simple model of the rows."""

from __future__ import annotations

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from confluent_kafka import Producer

from instep import settings
from instep.kafka.connection import Cluster
from instep.kpis import definition
from instep.kpis.definition import KpiDefinition
from instep.kpis.group import KpiRunner
from instep.sinks import preparation
from tests.support.databases import run_sql
from tests.support.producing import IN_ORDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "print_kpis"
DURATIONS = {"printing": ["QUEUED", "PRINTED"], "delivery": ["PRINTED", "DELIVERED"]}
WATERMARK_S = 600
T0_MS = 1_790_000_040_000  # the beginning of a minute
YEAR_2060_MS = 2_840_140_800_000
STATUSES = ("QUEUED", "PRINTING", "PRINTED", "DELIVERED")


class KpiRecord(NamedTuple):
    """A record of the log as a test publishes it."""

    partition: int
    timestamp_ms: int
    document: str
    value: bytes | None


def settings_of(url: str, topic: str, **changes: Any) -> settings.Settings:
    """Return settings with one KPI, which names its topic itself."""
    kpi = {
        "topic": topic,
        "target": url,
        "table": NAME,
        "event": {
            "document": "doc_id",
            "status": "status",
            "order": "version",
            "at": "updated_at",
        },
        "durations": DURATIONS,
        "watermark_s": WATERMARK_S,
        **changes,
    }
    return msgspec.convert({"kpis": {NAME: kpi}}, settings.Settings)


def define(url: str, topic: str, **changes: Any) -> KpiDefinition:
    """Return a KPI that names its topic itself."""
    return definition.define(settings_of(url, topic, **changes), NAME)


def record(partition: int, timestamp_ms: int, document: str, **fields: Any) -> KpiRecord:
    """Return a record with these fields."""
    body = {"doc_id": document, **fields}
    return KpiRecord(partition, timestamp_ms, document, msgspec.json.encode(body))


def log(
    seed: int,
    documents: int = 40,
    partitions: int = 2,
    begin_ms: int = T0_MS,
    *,
    wrong_clocks: bool = False,
) -> list[KpiRecord]:
    """Return records of documents on their way: repeated, out of order, late and too late.

    With `wrong_clocks`, each partition has records whose timestamps are no times, or far ahead.
    """
    chance = random.Random(seed)
    events: list[tuple[int, KpiRecord]] = []
    for number in range(documents):
        document, at_ms = f"D-{number}", begin_ms + chance.randrange(3_600_000)
        for version, status in enumerate(STATUSES[: chance.randint(1, 4)], 1):
            at_ms += chance.choice((40, 900, 25_000, 130_000, 700_000))
            # Sometimes it arrives late, sometimes too late, and sometimes twice.
            for _ in range(chance.choice((1, 1, 1, 2))):
                arrives = at_ms + chance.choice((5, 20, 3_000, 3_000, 90_000, 500_000, 1_500_000))
                one = record(
                    number % partitions,
                    arrives,
                    document,
                    status=status,
                    version=version,
                    updated_at=at_ms,
                )
                events.append((arrives, one))
    records = [one for _, one in sorted(events, key=lambda pair: pair[0])]
    for place in sorted(chance.sample(range(len(records)), 4), reverse=True):
        noise = chance.choice((b"not JSON", None, b'{"doc_id": "D-1", "version": 9}'))
        records.insert(place, KpiRecord(0, records[place].timestamp_ms, "D-0", noise))
    if wrong_clocks:
        for partition in range(partitions):
            places = [at for at, one in enumerate(records) if one.partition == partition]
            for part, wrong_ms in enumerate((YEAR_2060_MS, begin_ms * 1_000, YEAR_2060_MS), 1):
                at = places[len(places) * part // 4]
                records[at] = records[at]._replace(timestamp_ms=wrong_ms)
    return records


def recent_ms() -> int:
    """Return a time some hours ago: a broker removes records that are older than the retention."""
    return int(time.time()) // 60 * 60_000 - 8 * 3_600_000


def publish(cluster: Cluster, topic: str, records: Sequence[KpiRecord]) -> None:
    """Publish records with their own timestamps."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for one in records:
        producer.produce(
            topic, one.value, one.document, partition=one.partition, timestamp=one.timestamp_ms
        )
    assert producer.flush(30) == 0


class KpiRuns:
    """Starts KPIs in the session of the tests."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path) -> None:
        self._spark, self._cluster, self._folder = spark, cluster, folder
        self._started: list[KpiRunner] = []

    def start(self, kpi: KpiDefinition, *, once: bool = False) -> KpiRunner:
        """Start a KPI."""
        from instep.kpis.engine import KpiEngine

        preparation.prepare(kpi.table, is_kpi=True)
        folder = self._folder / f"kpi-{len(self._started)}"
        engine = KpiEngine(self._spark, self._cluster, folder, {kpi.name: kpi})
        self._started.append(KpiRunner(kpi, self._cluster, engine, once=once))
        self._started[-1].start()
        return self._started[-1]

    def stop(self) -> None:
        """Stop all of them."""
        for one in self._started:
            one.stop(patience_s=60)


KpiTable = dict[tuple[int, str, str], tuple[int, int | None, int | None]]


def table(url: str, name: str = NAME) -> KpiTable:
    """Return the KPI rows that count anything."""
    rows = run_sql(
        url, f"SELECT minute_ms, kind, name, count, p50_ms, p95_ms FROM {name} WHERE count > 0"
    )
    return {(minute_ms, kind, of): tuple(values) for minute_ms, kind, of, *values in rows}


def model(
    records: Sequence[KpiRecord],
    durations: Mapping[str, Sequence[str]] = DURATIONS,
    watermark_s: int = WATERMARK_S,
) -> KpiTable:
    """Return the rows that these records make, computed in the plainest way.

    Quantiles are those of the durations themselves, so they may differ by 0.8 %.
    """
    counts: dict[tuple[int, str, str], int] = defaultdict(int)
    events: dict[str, set[tuple[int, str, int]]] = defaultdict(set)
    seen_ms: dict[int, list[int]] = defaultdict(list)
    for one in records:
        body = _body(one.value)
        if body is None or "status" not in body:
            continue
        if one.timestamp_ms <= 253_402_300_799_999:
            seen_ms[one.partition].append(one.timestamp_ms)
        now = _clock(seen_ms[one.partition], watermark_s * 1_000)
        if body["updated_at"] < now - watermark_s * 1_000:
            counts[_minute(now), "too_late", body["status"]] += 1
            continue
        change = (body["updated_at"], body["status"], body["version"])
        events[one.document].add(change)
    spans: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for changes in events.values():
        for life in _lives(sorted(changes), watermark_s * 1_000):
            first = {version: (at, status) for at, status, version in reversed(life)}
            for at, status in first.values():
                counts[_minute(at), "status", status] += 1
            for name, (begin, end) in durations.items():
                begins = [at for at, status in first.values() if status == begin]
                ends = [
                    at
                    for at, status in first.values()
                    if status == end and begins and at >= min(begins)
                ]
                if ends:
                    key = (_minute(min(ends)), "duration", name)
                    spans[key].append(min(ends) - min(begins))
    rows: KpiTable = {key: (count, None, None) for key, count in counts.items()}
    for key, found in spans.items():
        rows[key] = (len(found), _rank(found, 50), _rank(found, 95))
    return rows


def assert_same(found: KpiTable, expected: KpiTable) -> None:
    """Compare rows: counts exactly, quantiles within the error of a bucket."""
    assert found.keys() == expected.keys()
    for key, (count, *quantiles) in found.items():
        assert count == expected[key][0], key
        for here, there in zip(quantiles, expected[key][1:], strict=True):
            assert (here is None) is (there is None), key
            if here is not None and there is not None:
                assert abs(here - there) <= there / 125, key


def _body(value: bytes | None) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(value, type=dict[str, Any]) if value else None
    except msgspec.DecodeError:
        return None


def _clock(times_ms: Sequence[int], watermark_ms: int) -> int:
    """Return the time of a partition with records of these times: no jump of one record alone."""
    now = 0
    for before_ms, at_ms in itertools.pairwise([0, *times_ms]):
        if min(before_ms, at_ms) > now + watermark_ms:
            now = min(before_ms, at_ms)
        if at_ms <= now + watermark_ms:
            now = max(now, at_ms)
        elif now < before_ms <= now + watermark_ms:
            now = before_ms
    return now


def _minute(at_ms: int) -> int:
    return at_ms // 60_000 * 60_000


def _lives(changes: list[tuple[int, str, int]], pause_ms: int) -> list[list[tuple[int, str, int]]]:
    lives: list[list[tuple[int, str, int]]] = []
    for change in changes:
        if not lives or change[0] - lives[-1][-1][0] > pause_ms:
            lives.append([])
        lives[-1].append(change)
    return lives


def _rank(found: list[int], percent: int) -> int:
    """Return the smallest duration that `percent` of the durations do not exceed."""
    return sorted(found)[-(-len(found) * percent // 100) - 1]
