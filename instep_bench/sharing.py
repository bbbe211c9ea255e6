"""`instep bench sharing`: the freshness of pipelines while another one of their run catches up.

Steady pipelines receive events at an even rate. They are measured twice: alone, and while a further
pipeline of the same process applies a backlog. All pipelines of a process share its tasks, so the
difference is what the backlog costs the others. The backlog is published while nothing runs. At the
end the commit of every event must have been recorded and every table must hold the expected rows;
otherwise there is no result.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

import msgspec

from instep import errors, settings
from instep.kafka import offsets
from instep_bench import bench_servers, load, machine, meters, row_check, sharing_report, turns
from instep_bench.latency_join import EventTiming, SentEvent
from instep_bench.monitored_run import START_PATIENCE_S, MonitoredRun
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult
from instep_bench.sender import EventSender, EventSource, Leg

FIRST_EVENTS = 100  # for each pipeline before its run starts
FIRST_RATE = 1_000
PUBLISHED_AT_ONCE = 1_000_000
EVENTS_PER_S_LEAST = 2_000

Say = Callable[[str], None]


class SharingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. The steady pipelines have `rate` events/s each, alone for `seconds`."""

    target: str = "postgres"
    backlog: int = 10_000_000
    others: int = 3
    rate: int = 100
    seconds: float = 30
    warm_up_s: float = 10
    documents: int = 100_000
    partitions: int = 4
    history: bool = False
    engine: settings.EngineName = "resident"
    bootstrap: str | None = None
    seed: int = 1


def run(options: SharingOptions, say: Say, command: str) -> BenchResult:
    """Run the benchmark. Every process that it starts ends with it."""
    _check(options)
    recorder = Recorder("sharing", command)
    with bench_servers.BenchServers(options.bootstrap, say) as servers:
        database = servers.database(options.target)
        backlog, *others = database.declare_together(
            servers.bootstrap,
            [servers.new_topic(options.partitions) for _ in range(1 + options.others)],
            history=options.history,
            engine=options.engine,
        )
        with contextlib.ExitStack() as stack:
            steady = [
                _Steady(
                    declared,
                    stack.enter_context(
                        EventSender(
                            EventSource(
                                servers.bootstrap, declared.pipeline.topic, options.documents
                            )
                        )
                    ),
                )
                for declared in others
            ]
            measured_pids = {"broker": servers.broker_pids, "database": database.pids}
            measurements = _SharingBench(
                options, servers, backlog, steady, measured_pids, say
            ).measure()
        row_check.refuse_differences(backlog, options.backlog, options.documents)
        for one in steady:
            row_check.refuse_differences(one.declared, one.next, options.documents)
        releases = machine.releases({database.label: database.url}, bootstrap=options.bootstrap)
    return recorder.close(
        options,
        {"target": database.label},
        releases,
        figures=sharing_report.figures(measurements),
        tables=sharing_report.tables(measurements),
        plots=sharing_report.plots(measurements),
        notes=sharing_report.notes(measurements),
    )


def _check(options: SharingOptions) -> None:
    bench_servers.check_target(options.target)
    if options.backlog < 1 or options.others < 1:
        raise errors.SettingsError(
            "one pipeline must have events to catch up with, and others must run beside it",
            "give a backlog and a number of others of at least 1",
        )
    if options.rate < 1:
        raise errors.SettingsError(
            "a rate must be at least 1 event per second", "give a rate of 1 or more"
        )
    if options.seconds <= 0 or options.warm_up_s < 0:
        raise errors.SettingsError(
            "a load must last longer than 0 seconds, and no time may be negative",
            "give durations above 0",
        )
    turns.require_positive(options, "documents", "partitions")


class _Steady:
    """A pipeline with an even rate, and its sender."""

    def __init__(self, declared: bench_servers.BenchPipeline, sender: EventSender) -> None:
        self.declared, self.sender = declared, sender
        self.next = 0  # the number of the next event

    def begin(self, count: float, rate: int) -> None:
        self.sender.begin(Leg(self.next, max(1, round(count)), rate))

    def finish(self) -> list[SentEvent]:
        sent = self.sender.finish()
        self.next += len(sent)
        return sent


class _SharingBench:
    def __init__(
        self,
        options: SharingOptions,
        servers: bench_servers.BenchServers,
        backlog: bench_servers.BenchPipeline,
        steady: list[_Steady],
        measured_pids: Mapping[str, meters.Pids],
        say: Say,
    ) -> None:
        self._options, self._servers, self._say = options, servers, say
        self._backlog, self._steady, self._measured_pids = backlog, steady, measured_pids

    def measure(self) -> sharing_report.SharingRun:
        alone = self._alone()
        self._publish()
        return self._while_catching_up(alone)

    def _alone(self) -> list[list[EventTiming]]:
        """Measure the steady pipelines in a run of their own: the reference."""
        options = self._options
        # A start waits for the first commit of each pipeline.
        for one in self._steady:
            one.begin(FIRST_EVENTS, FIRST_RATE)
        for one in self._steady:
            one.finish()
        with self._run([one.declared for one in self._steady]) as monitored:
            self._say(f"starting {options.others} pipelines")
            monitored.start()
            self._say(
                f"{options.rate:,} events/s each, alone: {options.warm_up_s:g} s to warm up,"
                f" then {options.seconds:g} s"
            )
            for one in self._steady:
                one.begin((options.warm_up_s + options.seconds) * options.rate, options.rate)
            found = []
            for one in self._steady:
                sent = one.finish()
                timings = monitored.timings(one.declared, sent)
                from_ns = sent[0].due_ns + options.warm_up_s * 1e9
                counted = [timing for timing in timings if timing.due_ns >= from_ns]
                found.append(counted or timings)
            monitored.stop()
        return found

    def _publish(self) -> None:
        """Publish the backlog, a part at a time to show the progress."""
        count = self._options.backlog
        workload = load.Load(
            events=count,
            documents=min(self._options.documents, count),
            seed=self._options.seed,
        )
        self._say(f"publishing {count:,} events to catch up with")
        for first in range(0, count, PUBLISHED_AT_ONCE):
            end = min(first + PUBLISHED_AT_ONCE, count)
            load.send_all(
                (load.fresh(workload, number) for number in range(first, end)),
                self._servers.bootstrap,
                self._backlog.pipeline.topic,
            )
            if end < count:
                self._say(f"published {end:,} of {count:,} events")

    def _while_catching_up(self, alone: list[list[EventTiming]]) -> sharing_report.SharingRun:
        """Measure the steady pipelines from the start of a run of all until it has caught up."""
        options, count = self._options, self._options.backlog
        patience_s = START_PATIENCE_S + count / EVENTS_PER_S_LEAST
        with self._run([self._backlog, *(one.declared for one in self._steady)]) as monitored:
            # The load begins before the run, so that none of the catching up goes unobserved.
            for one in self._steady:
                one.begin((START_PATIENCE_S + patience_s) * options.rate, options.rate)
            self._say(f"starting {options.others + 1} pipelines, one of them to catch up")
            monitored.start()
            self._say(f"{options.rate:,} events/s each, while another catches up")
            with monitored.metered() as used:
                began = time.monotonic()
                what = f"the commit of {count:,} events"
                monitored.wait_for(self._backlog, self._ends(), what, patience_s)
                seconds = time.monotonic() - began
            for one in self._steady:
                one.sender.end()
            timings = [monitored.timings(one.declared, one.finish()) for one in self._steady]
            monitored.stop()
            # Only now: a commit is in the ledger shortly before its line is in the file.
            period = sharing_report.period_of(monitored.commits(self._backlog), count)
        return sharing_report.SharingRun(
            rate=options.rate,
            alone=alone,
            shared=[sharing_report.during(period, one) for one in timings],
            catch_up=period,
            cores={role: usage.cpu_s / seconds for role, usage in used.items()},
            memory=monitored.memory,
        )

    def _run(self, pipelines: list[bench_servers.BenchPipeline]) -> MonitoredRun:
        return MonitoredRun(pipelines, self._servers.folder, self._measured_pids)

    def _ends(self) -> dict[int, int]:
        """Return the ends of the backlog by partition; an empty one never enters the ledger."""
        topic, partitions = self._backlog.pipeline.topic, range(self._options.partitions)
        found = offsets.latest(self._servers.cluster, topic, partitions)
        return {partition: end for partition, end in found.items() if end}
