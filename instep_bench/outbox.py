"""`instep bench outbox`: from the commit in the source to the commit in the target.

An application commits events to an outbox at an even rate. A relay publishes them, and a pipeline
applies them, each in its own process. The time counts from just before the commit in the source to
the return of the commit in the target. Then another session takes a snapshot of the source and
holds it, as a long report or a backup does. The same is measured at the end of that time, and once
more after the snapshot is released.

How much a held snapshot slows the relay is measured by a backlog: the relay publishes the same
number of rows before the snapshot is taken, while it is held and after it, with nothing else
running. Every event must be published once, the commit of every event must have been recorded, and
the table must hold the expected rows; otherwise there is no result.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import tomli_w

from instep import errors, settings
from instep.demo.pipeline_process import PipelineProcess
from instep.emit import outgoing
from instep.kafka import offsets, position_topic, reading
from instep.relay import relay as relays
from instep.relay.session import RelayProgress
from instep.report.tables import Cell, ReportTable
from instep.sources import tables
from instep.sources.connection import SourceConnection
from instep.waiting import wait_until
from instep_bench import (
    bench_servers,
    compared_delays,
    freshness_report,
    machine,
    row_check,
    turns,
)
from instep_bench.latency_join import SentEvent
from instep_bench.monitored_run import MonitoredRun
from instep_bench.outbox_writer import OutboxSource, OutboxWriter, event
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure
from instep_bench.sender import Leg

FILLED_AT_ONCE = 5_000  # rows of one transaction that fills the outbox
PUBLISH_PATIENCE_S = 120.0
ALONE, HELD, RELEASED = "no snapshot", "snapshot held", "snapshot released"
P50_BAR_MS, P99_BAR_MS = 150, 300
SLOWDOWN_BAR = 0.10
SNAPSHOTS = {
    "postgresql": ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT 1"),
    "mysql": ("START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT 1"),
    "mariadb": ("START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT 1"),
    # SQLite takes the snapshot at the first read of a table.
    "sqlite": ("BEGIN", "SELECT count(*) FROM sqlite_master"),
}

Say = Callable[[str], None]


class OutboxOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. With `hold_s` 0, no snapshot is held and no backlog is published."""

    source: str = "postgres"
    target: str = "postgres"
    rate: int = 1_000
    seconds: float = 60
    warm_up_s: float = 10
    hold_s: float = 600
    backlog: int = 200_000
    rounds: int = 3
    documents: int = 100_000
    partitions: int = 4
    bootstrap: str | None = None


class OutboxRun(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of a run."""

    rate: int
    hold_s: float
    delays: dict[str, list[float]]  # ms from commit to commit
    late_ms: list[float]  # of the application, compared with its schedule
    backlogs: dict[str, list[float]]  # rows per second of each round

    @property
    def slowdown(self) -> float | None:
        """Return the share of its speed that the relay loses while a snapshot is held."""
        if not self.backlogs:
            return None
        return 1 - self._median(HELD) / self._median(ALONE)

    @property
    def drift(self) -> float | None:
        """Return by what share the speed without a snapshot changed in the meantime."""
        if not self.backlogs:
            return None
        return abs(1 - self._median(RELEASED) / self._median(ALONE))

    def _median(self, when: str) -> float:
        return statistics.median(self.backlogs[when])


def run(options: OutboxOptions, say: Say, command: str) -> BenchResult:
    """Run the benchmark. Every process that it starts ends with it."""
    _check(options)
    recorder = Recorder("outbox", command)
    with bench_servers.BenchServers(options.bootstrap, say) as servers:
        database = servers.database(options.target)
        # Not the target's: there a held snapshot would slow down the pipeline, too.
        source = servers.database(options.source, "source")
        topic = servers.new_topic(options.partitions)
        declared = database.declare(servers.bootstrap, topic)
        with _MeasuredRelay(servers, source.url, topic, declared.config) as relay:
            others = {"broker": servers.broker_pids, "database": database.pids}
            with (
                OutboxWriter(relay.outbox_source(options.documents)) as writer,
                MonitoredRun([declared], servers.folder, others) as monitored,
            ):
                bench = _OutboxBench(options, servers, declared, relay, writer, monitored, say)
                measured = bench.measure()
        releases = machine.releases(
            {source.label: source.url, database.label: database.url}, bootstrap=options.bootstrap
        )
    return recorder.close(
        options,
        {"source": source.label, "target": database.label},
        releases,
        figures=figures(measured),
        tables=report_tables(measured),
        notes=notes(measured),
    )


def _check(options: OutboxOptions) -> None:
    bench_servers.check_target(options.target)
    bench_servers.check_target(options.source)
    turns.require_positive(options, "rate", "backlog", "rounds", "documents", "partitions")
    if options.seconds <= 0 or options.warm_up_s < 0 or options.hold_s < 0:
        raise errors.SettingsError(
            "the events must flow for longer than 0 seconds, and no time may be negative",
            "give durations above 0",
        )


class _MeasuredRelay:
    """A relay with an outbox of its own, declared in the settings file of the pipeline."""

    def __init__(
        self, servers: bench_servers.BenchServers, url: str, topic: str, config: Path
    ) -> None:
        self._servers, self._config = servers, config
        self.name = config.stem
        self.settings = settings.Relay(
            source=url, topic=topic, outbox=f"{self.name.replace('-', '_')}_outbox"
        )
        tree = tomllib.loads(config.read_text(encoding="utf-8"))
        declared = {"source": url, "topic": topic, "outbox": self.settings.outbox}
        tree["relays"] = {self.name: declared}
        config.write_text(tomli_w.dumps(tree), encoding="utf-8")
        self._has_created = False

    def outbox_source(self, documents: int) -> OutboxSource:
        return OutboxSource(self.settings.source, self.settings.outbox, documents)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run `instep relay run` in its own process within the block."""
        log = self._servers.folder / f"{self.name}-relay.log"
        process = PipelineProcess(self._config, self.name, log=log, command=("relay", "run"))
        process.start()
        try:
            yield
            if process.stop(30) != 0:
                raise errors.InstepError(f"the relay failed; its log:\n{process.tail()}")
        finally:
            process.close()

    def publish_backlog(self, rows: int) -> float:
        """Publish what waits in the outbox, within this process; return rows per second."""
        progress, began = RelayProgress(), time.perf_counter()
        relays.run(
            self.name,
            self.settings,
            self._servers.cluster,
            once=True,
            stop=threading.Event(),
            say=lambda _: None,
            progress=progress,
        )
        if progress.rows != rows:
            raise errors.InstepError(f"{progress.rows:,} of {rows:,} rows were published")
        return rows / (time.perf_counter() - began)

    def __enter__(self) -> _MeasuredRelay:
        created = tables.prepare(self.settings, self.name)
        self._has_created = tables.creates_own(created)
        position_topic.create(self._servers.cluster, position_topic.of_relay(self.name).topic)
        self._servers.remove_topic_later(position_topic.of_relay(self.name).topic)
        return self

    def __exit__(self, *_: object) -> None:
        tables.remove(self.settings, self.name, with_own=self._has_created)


class _OutboxBench:
    def __init__(
        self,
        options: OutboxOptions,
        servers: bench_servers.BenchServers,
        declared: bench_servers.BenchPipeline,
        relay: _MeasuredRelay,
        writer: OutboxWriter,
        monitored: MonitoredRun,
        say: Say,
    ) -> None:
        self._options, self._servers, self._declared = options, servers, declared
        self._relay, self._writer, self._run, self._say = relay, writer, monitored, say
        self.next = 0  # the number of the next event
        self._places: dict[int, tuple[int, int]] = {}  # of the events in the log, by number
        self._read_to: dict[int, int] = dict.fromkeys(range(options.partitions), 0)
        self._late_ms: list[float] = []

    def measure(self) -> OutboxRun:
        options = self._options
        backlogs: dict[str, list[float]] = {}
        delays: dict[str, list[float]] = {}
        held_s = 0.0
        if options.hold_s:
            self._say("publishing backlogs; the first one warms up")
            self._backlogs(1)
            backlogs[ALONE] = self._backlogs(options.rounds)
        with contextlib.ExitStack() as snapshot:
            with self._flow():
                delays[ALONE] = self._timed(options.seconds)
                if options.hold_s:
                    snapshot.enter_context(self._held_snapshot())
                    held_at = time.monotonic()
                    self._say(f"the same while a snapshot is held, after {options.hold_s:g} s")
                    self._write(max(1.0, options.hold_s - options.seconds))
                    delays[HELD] = self._timed(options.seconds)
            if options.hold_s:
                backlogs[HELD] = self._backlogs(options.rounds)
                held_s = time.monotonic() - held_at
        if options.hold_s:
            # Again without it: what differs from the beginning is not due to the snapshot.
            backlogs[RELEASED] = self._backlogs(options.rounds)
            with self._flow():
                delays[RELEASED] = self._timed(options.seconds)
        return OutboxRun(
            rate=options.rate,
            hold_s=held_s,
            delays=delays,
            late_ms=self._late_ms,
            backlogs=backlogs,
        )

    @contextlib.contextmanager
    def _flow(self) -> Iterator[None]:
        """Let relay and pipeline run, warmed up, until the end of the block."""
        options = self._options
        with self._relay.running():
            self._write(max(1.0, options.warm_up_s))
            self._say("starting the pipeline")
            self._run.start()
            self._catch_up()
            self._write(max(1.0, options.warm_up_s))
            self._say(f"{options.rate:,} events/s for {options.seconds:g} s")
            yield
            self._run.stop()
            row_check.refuse_differences(self._declared, self.next, options.documents)

    @contextlib.contextmanager
    def _held_snapshot(self) -> Iterator[None]:
        """Let another session of the source see the state of now, until the end of the block."""
        with SourceConnection(self._relay.settings.source) as opened:
            begin, read = SNAPSHOTS[opened.dialect.name]
            opened.run(begin)
            opened.select(read)
            yield

    def _backlogs(self, rounds: int) -> list[float]:
        """Fill the outbox and publish it, in rounds."""
        found = []
        for number in range(rounds):
            self._fill(self._options.backlog)
            speed = self._relay.publish_backlog(self._options.backlog)
            self._say(f"backlog, round {number + 1}: {speed:,.0f} rows/s")
            found.append(speed)
        return found

    def _fill(self, rows: int) -> None:
        """Add rows in large transactions."""
        source = self._relay.outbox_source(self._options.documents)
        with SourceConnection(source.url) as opened:
            table = opened.dialect.identifier_preparer.quote_identifier(source.outbox)
            insert = f"INSERT INTO {table} (document, value) VALUES (?, ?)"  # noqa: S608
            for first in range(0, rows, FILLED_AT_ONCE):
                records = [
                    outgoing.from_event(event(source, self.next + number), "outbox")
                    for number in range(first, min(first + FILLED_AT_ONCE, rows))
                ]
                with opened.transaction():
                    opened.execute_many(
                        insert, [(record.key.decode(), record.value) for record in records]
                    )
        self.next += rows

    def _write(self, seconds: float) -> list[SentEvent]:
        """Commit events at the even rate, and wait until all of them are published."""
        rate = self._options.rate
        sent = self._writer.send(Leg(self.next, max(1, round(seconds * rate)), rate))
        self.next += len(sent)
        if not wait_until(self._is_all_published, PUBLISH_PATIENCE_S, interval_s=0.1):
            raise errors.InstepError(
                f"{len(self._places):,} of {self.next:,} events were published after"
                f" {PUBLISH_PATIENCE_S:.0f} s"
            )
        return sent

    def _catch_up(self) -> None:
        """Wait until the pipeline has applied everything that is published."""
        ends: dict[int, int] = {}
        for partition, offset in self._places.values():
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        self._run.wait_for(self._declared, ends, "the commit of the backlog")

    def _timed(self, seconds: float) -> list[float]:
        """Return the ms from commit to commit of each event."""
        written = self._write(seconds)
        sent = [
            # Counted from the commit, not from when it was due: late_ms is reported beside it.
            SentEvent(
                one.number,
                one.sent_ns,
                one.sent_ns,
                one.answered_ns,
                *self._places[one.number],
            )
            for one in written
        ]
        timings = self._run.timings(self._declared, sent)
        self._late_ms += [one.late_ms for one in written]
        return [one.total for one in timings]

    def _is_all_published(self) -> bool:
        """Read what was published since; refuse an event that was published twice."""
        topic = self._declared.pipeline.topic
        ends = offsets.latest(self._servers.cluster, topic, self._read_to)
        ranges = {part: (self._read_to[part], end) for part, end in ends.items()}
        for record in reading.read(self._servers.cluster, topic, ranges):
            number = json.loads(record.value or b"{}")["number"]
            if number in self._places:
                raise errors.InstepError(f"event {number} was published twice")
            self._places[number] = (record.partition, record.offset)
        self._read_to = dict(ends)
        return len(self._places) >= self.next


def figures(run: OutboxRun) -> list[Figure]:
    """Return the figures of a run."""
    found = compared_delays.figures("commit to commit", run.delays)
    for when, values in run.backlogs.items():
        found.append(
            Figure(
                name="published", unit="rows/s", better="more", labels={"when": when}, values=values
            )
        )
    if run.slowdown is not None:
        share = round(run.slowdown * 100, 1)
        found.append(freshness_report.less("slow-down by a held snapshot", "%", {}, [share]))
    return found


def report_tables(run: OutboxRun) -> list[ReportTable]:
    """Return the tables of the report."""
    found = [
        compared_delays.table(
            f"Commit in the source to commit in the target, ms, at {run.rate:,} events/s"
            f" (goal: p50 {P50_BAR_MS}, p99 {P99_BAR_MS})",
            run.delays,
        )
    ]
    if run.backlogs:
        rows: list[list[Cell]] = [
            [when, round(statistics.median(values)), round(min(values)), round(max(values))]
            for when, values in run.backlogs.items()
        ]
        share = round((run.slowdown or 0) * 100, 1)
        found.append(
            ReportTable(
                f"Relay, rows per second: a snapshot held for {run.hold_s:.0f} s slows it by"
                f" {share} % (goal: at most {SLOWDOWN_BAR:.0%})",
                ["when", "median", "lowest", "highest"],
                rows,
            )
        )
    return found


def notes(run: OutboxRun) -> list[str]:
    """Return notes that help to read the figures correctly."""
    found = [
        "The time counts from just before the COMMIT in the source to the return of the commit in"
        " the task. Application, relay and pipeline are separate processes on one machine.",
    ]
    if run.backlogs:
        found.append(
            "Backlogs are published while neither the application nor the pipeline runs. Rows per"
            " second count from the start of a session to its end."
        )
    if run.drift is not None and run.drift > SLOWDOWN_BAR:
        found.append(
            f"Without a snapshot, the speed differs by {run.drift:.0%} between the beginning and"
            " the end: the machine was not quiet, and the slow-down means nothing."
        )
    late = sorted(run.late_ms)
    if late and late[int(len(late) * 0.99)] > freshness_report.LATE_MS:
        found.append(
            f"The application itself was late, p99 {late[int(len(late) * 0.99)]:.1f} ms: it could"
            " not commit at the rate. The times do not include this."
        )
    return found
