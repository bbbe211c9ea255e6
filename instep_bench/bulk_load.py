"""`instep bench load`: how fast `instep load` is, and what it costs the events that flow beside it.

A pipeline receives events at an even rate. Their freshness is measured without a load, while
`instep load` brings existing documents into the same table, and without it again. The load is the
command itself, in its own process. It has the documents that the events change, and others. At the
end the commit of every event must have been recorded, and the table must hold for each document the
newest of both; otherwise there is no result.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec

from instep import errors, settings
from instep.operate.load import LoadReport
from instep.report.tables import Cell, ReportTable
from instep_bench import (
    bench_servers,
    compared_delays,
    freshness_report,
    load,
    machine,
    row_check,
    turns,
)
from instep_bench.latency_join import EventTiming
from instep_bench.monitored_run import MonitoredRun
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure
from instep_bench.sender import EventSender, EventSource, Leg

FIRST_EVENTS = 200  # published before the pipeline starts
FIRST_RATE = 1_000
ROWS_PER_S_LEAST = 500
BEFORE, BESIDE, AFTER = "before the load", "beside the load", "after the load"
ROWS_PER_S_BAR = 40_000
FRESHNESS_BAR = 1.5

Say = Callable[[str], None]


class BulkLoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. The events flow for `seconds` before and after the load."""

    target: str = "postgres"
    rows: int = 1_000_000
    rate: int = 1_000
    seconds: float = 30
    warm_up_s: float = 10
    documents: int = 100_000
    partitions: int = 4
    history: bool = False
    engine: settings.EngineName = "resident"
    bootstrap: str | None = None


class BulkLoadRun(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of a run: freshness in ms, and the load."""

    rate: int
    freshness: dict[str, list[float]]
    rows: int
    load_s: float  # by the load itself: from its first row to its last commit
    command_s: float  # of the whole process
    cores: dict[str, float]  # by role, beside the load
    late_ms: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.load_s


def run(options: BulkLoadOptions, say: Say, command: str) -> BenchResult:
    """Run the benchmark. Every process that it starts ends with it."""
    _check(options)
    recorder = Recorder("load", command)
    with bench_servers.BenchServers(options.bootstrap, say) as servers:
        database = servers.database(options.target)
        topic = servers.new_topic(options.partitions)
        declared = database.declare(
            servers.bootstrap, topic, history=options.history, engine=options.engine
        )
        source = EventSource(servers.bootstrap, topic, options.documents)
        others = {"broker": servers.broker_pids, "database": database.pids}
        with (
            EventSender(source) as sender,
            MonitoredRun([declared], servers.folder, others) as monitored,
        ):
            bench = _LoadBench(options, declared, sender, monitored, servers.folder, say)
            measured = bench.measure()
        row_check.refuse_differences(declared, bench.next, options.documents, loaded=options.rows)
        releases = machine.releases({database.label: database.url}, bootstrap=options.bootstrap)
    return recorder.close(
        options,
        {"target": database.label},
        releases,
        figures=figures(measured),
        tables=report_tables(measured),
        notes=notes(measured),
    )


def _check(options: BulkLoadOptions) -> None:
    bench_servers.check_target(options.target)
    turns.require_positive(options, "rows", "rate", "documents", "partitions")
    if options.seconds <= 0 or options.warm_up_s < 0:
        raise errors.SettingsError(
            "the events must flow for longer than 0 seconds, and no time may be negative",
            "give durations above 0",
        )


class _LoadBench:
    def __init__(
        self,
        options: BulkLoadOptions,
        declared: bench_servers.BenchPipeline,
        sender: EventSender,
        monitored: MonitoredRun,
        folder: Path,
        say: Say,
    ) -> None:
        self._options, self._declared, self._say = options, declared, say
        self._sender, self._run, self._folder = sender, monitored, folder
        self.next = 0  # the number of the next event

    def measure(self) -> BulkLoadRun:
        options = self._options
        self._say(f"writing {options.rows:,} rows to load")
        file = self._write_rows()
        self._flow(FIRST_EVENTS / FIRST_RATE, FIRST_RATE)
        self._say("starting the pipeline")
        self._run.start()
        self._say(
            f"{options.rate:,} events/s: {options.warm_up_s:g} s to warm up, then"
            f" {options.seconds:g} s"
        )
        if options.warm_up_s:
            self._timed(options.warm_up_s)
        before = self._timed(options.seconds)
        self._say(f"{options.rate:,} events/s beside the load of {options.rows:,} rows")
        with self._run.metered() as used:
            beside, report, began_ns, ended_ns = self._beside(file)
        command_s = (ended_ns - began_ns) / 1e9
        self._say(f"{options.rate:,} events/s after the load, for {options.seconds:g} s")
        after = self._timed(options.seconds)
        self._run.stop()
        timings = {BEFORE: before, BESIDE: beside, AFTER: after}
        return BulkLoadRun(
            rate=options.rate,
            freshness={when: [one.total for one in found] for when, found in timings.items()},
            rows=report.rows,
            load_s=report.seconds,
            command_s=command_s,
            cores={role: usage.cpu_s / command_s for role, usage in used.items()},
            late_ms=max((one.late_ms for found in timings.values() for one in found), default=0),
        )

    def _write_rows(self) -> Path:
        """Write the existing documents, with the first version of each."""
        file = self._folder / "documents.jsonl"
        with file.open("wb") as opened:
            for number in range(self._options.rows):
                at = load.BEGIN + timedelta(milliseconds=number)
                opened.write(load.value(load.document(number), 1, at, 150) + b"\n")
        return file

    def _flow(self, seconds: float, rate: int) -> None:
        """Send events that are not measured."""
        leg = Leg(self.next, max(1, round(seconds * rate)), rate)
        self.next += len(self._sender.send(leg))

    def _timed(self, seconds: float) -> list[EventTiming]:
        rate = self._options.rate
        sent = self._sender.send(Leg(self.next, max(1, round(seconds * rate)), rate))
        self.next += len(sent)
        return self._run.timings(self._declared, sent)

    def _beside(self, file: Path) -> tuple[list[EventTiming], LoadReport, int, int]:
        """Load while events flow; return the events that were due meanwhile, and the report."""
        rate, rows = self._options.rate, self._options.rows
        patience_s = 60 + rows / ROWS_PER_S_LEAST
        self._sender.begin(Leg(self.next, round((patience_s + 60) * rate), rate))
        began_ns = time.monotonic_ns()
        report = self._load(file, patience_s)
        ended_ns = time.monotonic_ns()
        self._sender.end()
        sent = self._sender.finish()
        self.next += len(sent)
        timings = self._run.timings(self._declared, sent)
        during = [one for one in timings if began_ns <= one.due_ns <= ended_ns]
        return during, report, began_ns, ended_ns

    def _load(self, file: Path, patience_s: float) -> LoadReport:
        command = [sys.executable, "-m", "instep", "--config", str(self._declared.config), "load"]
        command += [self._declared.name, "--from", str(file), "--execute", "--no-reconcile"]
        try:
            done = subprocess.run(
                [*command, "--json"],
                capture_output=True,
                text=True,
                timeout=patience_s,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise errors.InstepError(
                f"instep load did not end within {patience_s:.0f} s", "give fewer --rows"
            ) from late
        if done.returncode != 0:
            raise errors.InstepError(
                f"instep load ended with status {done.returncode}:\n{done.stderr[-1_000:]}"
            )
        answer = msgspec.json.decode(done.stdout)
        return msgspec.convert(answer["load"], LoadReport)


def figures(run: BulkLoadRun) -> list[Figure]:
    """Return the figures of a run."""
    return [
        Figure(name="loaded", unit="rows/s", better="more", values=[round(run.rows_per_s, 1)]),
        *compared_delays.figures("freshness", run.freshness),
        *freshness_report.cpu_figures("CPU beside the load", run.cores, {}),
    ]


def report_tables(run: BulkLoadRun) -> list[ReportTable]:
    """Return the tables of the report."""
    ratio = compared_delays.ratio(run.freshness, BESIDE, BEFORE)
    rows: list[list[Cell]] = [
        ["rows", run.rows, "rows", ""],
        ["speed", round(run.rows_per_s), "rows/s", f"at least {ROWS_PER_S_BAR:,}"],
        ["the load itself", round(run.load_s, 2), "s", ""],
        ["the whole command", round(run.command_s, 2), "s", ""],
        [
            "p99 beside the load / before it",
            None if ratio is None else round(ratio, 2),
            "times",
            f"at most {FRESHNESS_BAR}",
        ],
    ]
    return [
        ReportTable("Load", ["what", "value", "unit", "goal"], rows),
        compared_delays.table(f"Freshness in ms at {run.rate:,} events/s", run.freshness),
    ]


def notes(run: BulkLoadRun) -> list[str]:
    """Return notes that help to read the figures correctly."""
    found = [
        "Freshness is the time from the moment an event was due to the return of its commit in the"
        " task. The commit of every event was recorded.",
        "The speed counts from the first row that the load read to its last commit, while events"
        " flow. The start of the process is not in it; events count for the whole process.",
    ]
    if run.late_ms > freshness_report.LATE_MS:
        found.append(
            f"The sender itself was late, at most {run.late_ms:.1f} ms. The figures include this."
        )
    return found
