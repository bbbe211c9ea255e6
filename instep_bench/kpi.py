"""`instep bench kpi`: how far the rows of a KPI are behind the end of their minute.

A publisher sends status events at an even rate, each with the time at which it is sent. `instep
run` counts them in a process of its own, and this process reads the table again and again. A
minute's rows are complete when they count all its events; what is measured is the time from the end
of the minute until then. At the end the rows must count every event once, or there is no result.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec
import tomli_w

from instep import errors, settings, sinks
from instep.demo.pipeline_process import PipelineProcess
from instep.emit import Publisher, StatusEvent
from instep.kpis import definition
from instep.kpis.counting import MINUTE_MS, KpiKind, minute_of
from instep.kpis.definition import KpiDefinition
from instep.report.tables import Cell, ReportTable
from instep.sinks import inspection, kpi_store, preparation
from instep.waiting import wait_until
from instep_bench import bench_servers, load, machine, turns
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure

NAME = "bench_kpis"
BAR_S = 2.0
TICK_S = 0.01
READ_INTERVAL_S = 0.05
SETTLE_S = 180.0

Say = Callable[[str], None]
Sums = dict[int, int]  # events by minute


class KpiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured: whole minutes at an even rate, after a warm-up up to the first of them."""

    target: str = "postgres"
    rate: int = 1_000
    minutes: int = 5
    documents: int = 100_000
    partitions: int = 4
    bootstrap: str | None = None


class TableReading(msgspec.Struct, frozen=True):
    """What the table counted at a time: events by minute."""

    at_s: float
    sums: Sums


def run(options: KpiOptions, say: Say, command: str) -> BenchResult:
    """Run the benchmark. Every process that it starts ends with it."""
    _check(options)
    recorder = Recorder("kpi", command)
    with bench_servers.BenchServers(options.bootstrap, say) as servers:
        database = servers.database(options.target)
        topic = servers.new_topic(options.partitions)
        kpi, config = _declare(servers.bootstrap, topic, database.url)
        file = servers.folder / "instep.toml"
        file.write_text(tomli_w.dumps(config), encoding="utf-8")
        preparation.prepare(kpi.table, is_kpi=True)
        with (
            _KpiReader(kpi) as reader,
            PipelineProcess(file, log=servers.folder / "run.log") as process,
            _SteadyPublisher(servers.bootstrap, topic, options) as publisher,
        ):
            say("starting the KPI")
            if not wait_until(lambda: any(reader.read().sums.values()), SETTLE_S):
                raise errors.InstepError(f"the KPI counted nothing:\n{process.tail()}")
            first_ms = minute_of(time.time_ns() // 1_000_000) + MINUTE_MS
            end_ms = first_ms + options.minutes * MINUTE_MS
            say(f"{options.minutes} minutes at {options.rate:,} events/s")
            readings = reader.read_until(end_ms / 1_000 + BAR_S)
            sent = publisher.stop()
            readings += reader.read_until_counted(sum(sent.values()))
        minutes = range(first_ms, end_ms, MINUTE_MS)
        behind = [behind_s(readings, minute, sent[minute]) for minute in minutes]
        releases = machine.releases({database.label: database.url}, bootstrap=options.bootstrap)
    return recorder.close(
        options,
        {},
        releases,
        figures=[figure(behind)],
        tables=[report_table(list(minutes), sent, behind)],
        notes=[
            "Behind: from the end of a minute until its rows count all its events.",
            f"At most {BAR_S:g} s are wanted.",
        ],
    )


def behind_s(readings: Sequence[TableReading], minute_ms: int, sent: int) -> float:
    """Return how long after the end of a minute its rows counted all its events."""
    for reading in readings:
        counted = reading.sums.get(minute_ms, 0)
        if counted > sent:
            raise errors.InstepError(
                f"the rows of a minute count {counted:,} events, but {sent:,} were sent"
            )
        if counted == sent:
            return max(0.0, reading.at_s - (minute_ms + MINUTE_MS) / 1_000)
    raise errors.InstepError(f"the rows of a minute never counted all its {sent:,} events")


def figure(behind: Sequence[float]) -> Figure:
    """Return the figure, with a value for each minute."""
    return Figure(name="behind the end of a minute", unit="s", better="less", values=[*behind])


def report_table(minutes: Sequence[int], sent: Sums, behind: Sequence[float]) -> ReportTable:
    """Return the minutes, one in each row."""
    rows: list[list[Cell]] = [
        [f"{datetime.fromtimestamp(minute / 1_000, UTC):%H:%M}", sent[minute], round(late, 2)]
        for minute, late in zip(minutes, behind, strict=True)
    ]
    return ReportTable("Rows behind the end of their minute", ["minute", "events", "s"], rows)


def _check(options: KpiOptions) -> None:
    bench_servers.check_target(options.target)
    turns.require_positive(options, "rate", "minutes", "documents", "partitions")


def _declare(bootstrap: str, topic: str, url: str) -> tuple[KpiDefinition, dict[str, object]]:
    kpi = {
        "topic": topic,
        "target": url,
        "table": NAME,
        "durations": {"printing": ["QUEUED", "PRINTED"]},
        "event": {
            "document": "doc_id",
            "status": "status",
            "order": "version",
            "at": "updated_at",
        },
    }
    config: dict[str, object] = {"kafka": {"bootstrap": bootstrap}, "kpis": {NAME: kpi}}
    return definition.define(msgspec.convert(config, settings.Settings), NAME), config


class _KpiReader:
    """Reads the KPI table on a connection of its own."""

    def __init__(self, kpi: KpiDefinition) -> None:
        self._sink = sinks.open_sink(inspection.inspect(NAME, kpi.table))

    def __enter__(self) -> _KpiReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.close()

    def read(self) -> TableReading:
        with self._sink.translated():
            rows = kpi_store.table_rows(self._sink)
        at_s = time.time()
        sums: Counter[int] = Counter()
        for minute_ms, kind, _, count, _, _ in rows:
            if kind == KpiKind.STATUS.value:
                sums[minute_ms] += count
        return TableReading(at_s, dict(sums))

    def read_until(self, end_s: float) -> list[TableReading]:
        readings = []
        while time.time() < end_s:
            readings.append(self.read())
            time.sleep(READ_INTERVAL_S)
        return readings

    def read_until_counted(self, events: int) -> list[TableReading]:
        """Read until all events are counted, for a limited time."""
        readings: list[TableReading] = []
        end_s = time.time() + SETTLE_S
        while not readings or sum(readings[-1].sums.values()) < events:
            if time.time() > end_s:
                raise errors.InstepError(
                    f"{sum(readings[-1].sums.values()):,} of {events:,} events were counted"
                )
            readings.append(self.read())
            time.sleep(READ_INTERVAL_S)
        return readings


class _SteadyPublisher:
    """Publishes events at an even rate in a thread, each with the time at which it is sent."""

    def __init__(self, bootstrap: str, topic: str, options: KpiOptions) -> None:
        self._bootstrap, self._topic, self._options = bootstrap, topic, options
        self._sent: Counter[int] = Counter()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def __enter__(self) -> _SteadyPublisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> Counter[int]:
        """Stop, and return how many events were sent, by minute."""
        self._stopped.set()
        self._thread.join()
        return self._sent

    def _publish(self) -> None:
        with Publisher(self._bootstrap, self._topic, source="bench") as publisher:
            began, number = time.monotonic(), 0
            while not self._stopped.wait(TICK_S):
                due = int((time.monotonic() - began) * self._options.rate)
                for one in range(number, due):
                    self._send(publisher, one)
                number = due

    def _send(self, publisher: Publisher, number: int) -> None:
        at = datetime.now(UTC)
        version = number // self._options.documents + 1
        event = StatusEvent(
            document=load.document(number % self._options.documents),
            status=load.status(version),
            version=version,
            at=at,
        )
        publisher.send(event)
        self._sent[minute_of(round(at.timestamp() * 1_000_000) // 1_000)] += 1
