"""`instep bench freshness`: the age of events at commit, at even rates, after a pause, with faults.

The load is open: a separate process sends events by a schedule, and their age counts from the time
when they were due. A late sender, a full queue or an unavailable broker makes events older, never
fewer. At the end the commit of every event must have been recorded and the table must hold the
expected rows; otherwise there is no result.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from instep import errors, settings
from instep_bench import bench_servers, freshness_report, latency_join, machine, row_check, turns
from instep_bench.monitored_run import MonitoredRun
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult
from instep_bench.sender import EventSender, EventSource, Leg

FIRST_EVENTS = 200  # published before the pipeline starts
SETTLE_S_MAX = 5.0
WARM_UP_RATE_MAX = 1_000
SINGLES = 5
FAULT_RATE_MAX = 1_000
FAULT_AFTER_S = 5.0
FAULT_LOAD_S = 35.0

Say = Callable[[str], None]


class FreshnessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. Each rate lasts `seconds`; before the first, the load warms up."""

    target: str = "postgres"
    rates: tuple[int, ...] = (10, 100, 1000, 5000)
    seconds: float = 60
    warm_up_s: float = 20
    idle_s: float = 300
    faults: bool = True
    documents: int = 10_000
    partitions: int = 4
    history: bool = False
    engine: settings.EngineName = "resident"
    bootstrap: str | None = None
    seed: int = 1


def run(options: FreshnessOptions, say: Say, command: str) -> BenchResult:
    """Run the benchmark. Every process that it starts ends with it."""
    _check(options)
    recorder = Recorder("freshness", command)
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
            bench = _FreshnessBench(options, servers, declared, sender, monitored, say)
            measurements = bench.measure()
        row_check.refuse_differences(declared, bench.next, options.documents)
        releases = machine.releases({database.label: database.url}, bootstrap=options.bootstrap)
    return recorder.close(
        options,
        {"target": database.label},
        releases,
        figures=freshness_report.figures(measurements),
        tables=freshness_report.tables(measurements),
        plots=freshness_report.plots(measurements),
        notes=freshness_report.notes(measurements),
    )


def _check(options: FreshnessOptions) -> None:
    bench_servers.check_target(options.target)
    if not options.rates or min(options.rates) < 1:
        raise errors.SettingsError(
            "a rate must be at least 1 event per second", "give one or more rates"
        )
    if options.seconds <= 0 or options.warm_up_s < 0 or options.idle_s < 0:
        raise errors.SettingsError(
            "a load must last longer than 0 seconds, and no time may be negative",
            "give durations above 0",
        )
    turns.require_positive(options, "documents", "partitions")


class _FreshnessBench:
    def __init__(
        self,
        options: FreshnessOptions,
        servers: bench_servers.BenchServers,
        declared: bench_servers.BenchPipeline,
        sender: EventSender,
        monitored: MonitoredRun,
        say: Say,
    ) -> None:
        self._options, self._servers, self._say = options, servers, say
        self._declared, self._sender, self._run = declared, sender, monitored
        self.next = 0  # the number of the next event

    def measure(self) -> freshness_report.FreshnessRun:
        options = self._options
        self._sender.send(self._leg(FIRST_EVENTS, WARM_UP_RATE_MAX))
        self._say("starting the pipeline")
        starts = {"fresh": self._run.start()}
        if options.warm_up_s:
            rate = min(max(options.rates), WARM_UP_RATE_MAX)
            self._say(f"warming up: {options.warm_up_s:g} s at {rate:,} events/s")
            self._run.timings(
                self._declared, self._sender.send(self._leg(options.warm_up_s * rate, rate))
            )
        loads = [self._load(rate) for rate in options.rates]
        idle = None
        if options.idle_s:
            idle = self._idle()
        faults = [self._fault(name, fault, starts) for name, fault in self._faults().items()]
        self._run.stop()
        return freshness_report.FreshnessRun(
            starts_s=starts,
            loads=loads,
            idle=idle,
            faults=faults,
            memory=self._run.memory,
            own_broker=not options.bootstrap,
        )

    def _leg(self, count: float, rate: float) -> Leg:
        leg = Leg(self.next, max(1, round(count)), rate)
        self.next += leg.count
        return leg

    def _load(self, rate: int) -> freshness_report.RateResult:
        """Measure one rate. Events that are sent while the load settles are not counted."""
        seconds, settle_s = self._options.seconds, min(SETTLE_S_MAX, self._options.warm_up_s)
        self._say(f"{rate:,} events/s for {seconds:g} s")
        with self._run.metered() as used:
            sent = self._sender.send(self._leg((settle_s + seconds) * rate, rate))
            timings = self._run.timings(self._declared, sent)
        # By due time: an event that was due before counts nowhere, however late it came.
        from_ns = sent[0].due_ns + settle_s * 1e9
        counted = [timing for timing in timings if timing.due_ns >= from_ns]
        return freshness_report.RateResult(
            rate,
            counted or timings,
            {role: usage.cpu_s / (settle_s + seconds) for role, usage in used.items()},
        )

    def _idle(self) -> freshness_report.Idle:
        """Send one event after a long pause, then a few more after shorter pauses."""
        idle_s = self._options.idle_s
        self._say(f"idle for {idle_s:g} s, then one event")
        with self._run.metered() as used:
            self._run.idle(idle_s)
        [first] = self._run.timings(self._declared, self._sender.send(self._leg(1, 1)))
        pause_s, later = min(10.0, idle_s / 10), []
        for number in range(SINGLES):
            # Vary the pause, so that the events fall at different points of the pipeline's cycle.
            self._run.idle(pause_s + number * 0.037)
            later += self._run.timings(self._declared, self._sender.send(self._leg(1, 1)))
        return freshness_report.Idle(
            idle_s,
            first,
            pause_s,
            later,
            {role: usage.cpu_s / idle_s for role, usage in used.items()},
        )

    def _faults(self) -> dict[str, Callable[[], float | None]]:
        """Return the faults by name.

        A fault that starts a new pipeline process returns the seconds until its first commit.
        """
        if not self._options.faults:
            return {}
        faults: dict[str, Callable[[], float | None]] = {
            "kill -9": self._kill,
            "planned restart": self._restart,
        }
        if not self._options.bootstrap:
            faults["broker kill -9"] = self._kill_broker
        return faults

    def _kill(self) -> float:
        self._run.kill()
        return self._run.start()

    def _restart(self) -> float:
        self._run.stop()
        return self._run.start()

    def _kill_broker(self) -> None:
        self._servers.broker.kill()
        self._servers.broker.start()

    def _fault(
        self, name: str, fault: Callable[[], float | None], starts: dict[str, float]
    ) -> freshness_report.FaultEffect:
        """Inject a fault under load and measure its effect."""
        rate = max(
            (rate for rate in self._options.rates if rate <= FAULT_RATE_MAX),
            default=min(self._options.rates),
        )
        self._say(f"{name} at {rate:,} events/s")
        with self._run.metered():
            self._sender.begin(self._leg(FAULT_LOAD_S * rate, rate))
            time.sleep(FAULT_AFTER_S)
            fault_ns = time.monotonic_ns()
            start_s = fault()
            up_ns = time.monotonic_ns()
            timings = self._run.timings(self._declared, self._sender.finish())
        broker_down_s = None
        if start_s is None:
            broker_down_s = (up_ns - fault_ns) / 1e9
        else:
            starts[f"after {name}"] = start_s
        delayed, back_s = latency_join.period(timings, fault_ns)
        return freshness_report.FaultEffect(
            name,
            rate,
            fault_ns,
            broker_down_s,
            timings,
            delayed,
            back_s,
        )
