"""`instep bench scale`: the cost per event as rows, events, partitions or distance grow.

Every point has its own topic and table. Its table is filled first. In each round the given number
of further events is published, and a pipeline in a warm Spark session applies them up to the end of
the log. The events are spread over the whole table, and each raises the version of its document by
one. At the end the sum of the versions shows whether each event was applied exactly once.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec

from instep import errors, settings
from instep.local.proxy import NetworkFault, Proxy
from instep.local.spark_cluster import CONF, SparkCluster
from instep.sinks import target
from instep_bench import (
    backlog_writer,
    bench_servers,
    contestant_program,
    load,
    machine,
    meters,
    scale_report,
)
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult
from instep_bench.scale_report import Conditions, ScaleRound

BASE = Conditions(documents=100_000, events=0, partitions=4, delay_ms=None, master="local[2]")
SIZE = 150
PRIMER = Conditions(documents=10_000, events=1_000, partitions=4, delay_ms=None, master="")
WARM_UPS = 3  # a JVM processes its first 300,000 events at a third of its later speed
ROUND_TRIPS = 21
ANSWER_PATIENCE_S = 180.0
EVENTS_PER_S_LEAST = 2_000
CLUSTER = "cluster"

Say = Callable[[str], None]


class ScaleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is varied, one dimension at a time; an empty tuple leaves it out.

    Delays are one-way: a round trip takes twice as long.
    """

    target: str = "postgres"
    documents: tuple[int, ...] = (10_000, 1_000_000, 10_000_000)
    events: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    partitions: tuple[int, ...] = (1, 4, 12, 48)
    delays_ms: tuple[float, ...] = (0, 1, 5, 20)
    masters: tuple[str, ...] = ("local[1]", "local[2]", CLUSTER)
    rounds: int = 3
    base_events: int = 100_000
    engine: settings.EngineName = "resident"
    bootstrap: str | None = None
    seed: int = 1


def run(options: ScaleOptions, say: Say, command: str) -> BenchResult:
    """Run the benchmark. Every process that it starts ends with it."""
    _check(options)
    recorder = Recorder("scale", command)
    with bench_servers.BenchServers(options.bootstrap, say) as servers:
        database = servers.database(options.target)
        varied = points(options, has_distance=database.kind != bench_servers.SQLITE)
        wanted = list(
            dict.fromkeys(point for values in varied.values() for point in values.values())
        )
        measured: dict[Conditions, list[ScaleRound]] = {}
        trips_ms: dict[Conditions, float] = {}
        for master in dict.fromkeys(point.master for point in wanted):
            own = [point for point in wanted if point.master == master]
            with _MasterPoints(options, servers, database, master, say) as group:
                measured |= group.measure(own)
                trips_ms |= group.trips_ms
        releases = machine.releases({database.label: database.url}, bootstrap=options.bootstrap)
        measurements = scale_report.ScaleRun(varied, measured, trips_ms, database.label)
    return recorder.close(
        options,
        {"target": database.label},
        releases,
        figures=scale_report.figures(measurements),
        tables=scale_report.tables(measurements),
        plots=scale_report.plots(measurements),
        notes=scale_report.notes(measurements),
    )


def _check(options: ScaleOptions) -> None:
    bench_servers.check_target(options.target)
    counts = (
        *options.documents,
        *options.events,
        *options.partitions,
        options.rounds,
        options.base_events,
    )
    if min(counts) < 1:
        raise errors.SettingsError(
            "documents, events, partitions and rounds must be at least 1", "give numbers above 0"
        )
    if min(options.delays_ms, default=0) < 0:
        raise errors.SettingsError("a delay cannot be negative", "give delays of 0 ms or more")
    for master in options.masters:
        if master != CLUSTER and not re.fullmatch(r"local\[([1-9]\d*|\*)\]", master):
            raise errors.SettingsError(
                f"the master {master!r} cannot be measured", f"give local[N] or {CLUSTER}"
            )
    if not (
        options.documents
        or options.events
        or options.partitions
        or options.delays_ms
        or options.masters
    ):
        raise errors.SettingsError(
            "there is nothing to vary", "give values for at least one dimension"
        )


def points(options: ScaleOptions, *, has_distance: bool) -> dict[str, dict[str, Conditions]]:
    """Return for each dimension its values and their points: the base with one value changed."""
    base = msgspec.structs.replace(BASE, events=options.base_events)
    replace = msgspec.structs.replace
    varied = {
        "documents": {str(count): replace(base, documents=count) for count in options.documents},
        "events": {str(count): replace(base, events=count) for count in options.events},
        "partitions": {str(count): replace(base, partitions=count) for count in options.partitions},
        # All of these go through the proxy, so that only the distance differs.
        "distance": {
            f"{ms:g}": replace(base, delay_ms=float(ms)) for ms in options.delays_ms if has_distance
        },
        "master": {master: replace(base, master=master) for master in options.masters},
    }
    return {name: values for name, values in varied.items() if values}


def stride(documents: int) -> int:
    """Return a step that visits every document once per cycle, each far from the one before."""
    return next(
        step
        # About the golden ratio: successive documents are then far apart in the table.
        for step in range(max(1, int(documents * 0.618)), documents + 2)
        if math.gcd(step, documents) == 1
    )


def events(documents: int, first: int, count: int) -> Iterator[load.LoadRecord]:
    """Yield events by number; each raises the version of the next document of the stride by one."""
    step = stride(documents)
    for number in range(first, first + count):
        version, position = divmod(number, documents)
        name = load.document(position * step % documents)
        at = load.BEGIN + timedelta(milliseconds=number)
        yield load.LoadRecord(
            "fresh", number, name.encode(), load.value(name, version + 1, at, SIZE)
        )


class _PointSetup:
    """A point's topic and table."""

    def __init__(
        self,
        point: Conditions,
        servers: bench_servers.BenchServers,
        database: bench_servers.TargetDatabase,
        engine: settings.EngineName,
        spark: settings.Spark,
        url: str,
    ) -> None:
        self.point = point
        self._bootstrap = servers.bootstrap
        self._topic = servers.new_topic(point.partitions)
        self.declared = database.declare(
            servers.bootstrap, self._topic, spark=spark, url=url, engine=engine
        )
        self._next = 0
        column = {field: name for name, field in self.declared.pipeline.columns.items()}
        self._version = column["version"]
        with self.declared.sink() as sink:
            backlog_writer.fill(sink, column["status"], self._version, point.documents)

    def publish(self, count: int) -> None:
        load.send_all(events(self.point.documents, self._next, count), self._bootstrap, self._topic)
        self._next += count

    def last_commit(self) -> float:
        """Return when the newest row of the ledger was written, by the wall clock."""
        with self.declared.sink() as sink:
            times = [
                position.committed_at
                for position in sink.ledger.positions().values()
                if position.committed_at
            ]
        return max(times).timestamp()

    def trip_ms(self) -> float:
        """Measure the current round trip to the database."""
        took = []
        with self.declared.sink() as sink:
            for _ in range(ROUND_TRIPS):
                began = time.perf_counter()
                sink.connection.select("SELECT 1")
                took.append(1000 * (time.perf_counter() - began))
        return statistics.median(took)

    def refuse_difference(self) -> None:
        with self.declared.sink() as sink:
            backlog_writer.refuse_difference(sink, self._version, self.point.documents, self._next)


class _MasterPoints:
    """The points of one master, in one Spark session. Their rounds are interleaved."""

    def __init__(
        self,
        options: ScaleOptions,
        servers: bench_servers.BenchServers,
        database: bench_servers.TargetDatabase,
        master: str,
        say: Say,
    ) -> None:
        self._options, self._servers, self._database, self._master, self._say = (
            options,
            servers,
            database,
            master,
            say,
        )
        self._stack = contextlib.ExitStack()
        self._folder = servers.folder / f"master-{re.sub(r'[^a-z0-9]+', '-', master)}"
        self._cluster: SparkCluster | None = None
        self.trips_ms: dict[Conditions, float] = {}

    def __enter__(self) -> _MasterPoints:
        self._folder.mkdir()
        self._program = contestant_program.ContestantProgram(
            "instep_bench.host", self._folder / "host"
        )
        if self._master == CLUSTER:
            self._say("starting a Spark cluster of two workers on this machine")
            self._cluster = self._stack.enter_context(
                SparkCluster(_new_folder(self._folder / "cluster"))
            )
        self._stack.callback(self._program.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self, wanted: list[Conditions]) -> dict[Conditions, list[ScaleRound]]:
        primer = self._site(PRIMER)
        sites = []
        for point in wanted:
            self._say(f"filling a table with {point.documents:,} rows")
            sites.append(self._site(point))
        self._program.start()
        for _ in range(WARM_UPS):
            self._say(f"warming up, {self._master}")
            primer.publish(self._options.base_events)
            self._apply(primer, self._options.base_events)
        measured: dict[Conditions, list[ScaleRound]] = {point: [] for point in wanted}
        for number in range(1, self._options.rounds + 1):
            for site in sites:
                self._say(f"round {number} of {self._options.rounds}: {site.point}")
                site.publish(site.point.events)
                # Python workers end after a minute without work. Wake them up before measuring.
                primer.publish(PRIMER.events)
                self._apply(primer, PRIMER.events)
                measured[site.point].append(self._apply(site, site.point.events))
        for site in (primer, *sites):
            site.refuse_difference()
        return measured

    def _site(self, point: Conditions) -> _PointSetup:
        spark = settings.Spark(master=self._master)
        if self._cluster:
            spark = settings.Spark(master=self._cluster.url, conf=CONF)
        site = _PointSetup(
            point,
            self._servers,
            self._database,
            self._options.engine,
            spark,
            self._url(point),
        )
        if point.delay_ms is not None:
            self.trips_ms[point] = site.trip_ms()
        return site

    def _url(self, point: Conditions) -> str:
        """Return the address of the database, or of a proxy in front of it."""
        if point.delay_ms is None:
            return self._database.url
        url = target.database_url(self._database.url)
        proxy = Proxy(
            url.port or DEFAULT_PORTS[url.get_backend_name()], server_host=url.host or "localhost"
        )
        self._stack.enter_context(proxy)
        proxy.inject(NetworkFault(delay_s=point.delay_ms / 1000))
        return url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)

    def _apply(self, site: _PointSetup, count: int) -> ScaleRound:
        """Apply the published events; the time counts from the order to the last commit."""
        others = {"broker": self._servers.broker_pids, "database": self._database.pids}
        if self._cluster:
            others["executors"] = self._cluster.pids
        with meters.Meter({**meters.spark(self._program.pid), **others}) as meter:
            began = time.time()
            self._program.send(
                contestant_program.Order(str(site.declared.config), site.declared.name)
            )
            answer = self._program.receive(ANSWER_PATIENCE_S + count / EVENTS_PER_S_LEAST)
            used = meters.present(meter.stop())
        if answer.error:
            raise errors.InstepError(f"the pipeline failed at {site.point}: {answer.error}")
        seconds = site.last_commit() - began
        cpu_s = {role: usage.cpu_s for role, usage in used.items()}
        return ScaleRound(
            count,
            seconds,
            cpu_s,
            scale_report.together_mb({role: usage.samples for role, usage in used.items()}),
        )


DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}


def _new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder
