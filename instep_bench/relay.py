"""`instep bench relay`: how fast a relay publishes a backlog, and how late a steady load is.

Each source is measured in rounds. In a round, the relay publishes the same number of rows exactly
once and at least once, in turn, so that both meet the same machine. The delay is measured after
that: one process commits rows at an even rate, `instep relay run` publishes them, and this process,
a read-committed reader, notes when each becomes visible. Every row must be read exactly once, or
there is no result.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import tomli_w

from instep import errors, settings
from instep.kafka import offsets, position_topic, reading
from instep.local import keeper_client, paths
from instep.relay import relay as relays
from instep.relay.session import RelayProgress
from instep.report.tables import Cell, ReportTable
from instep.sources import tables
from instep.sources.connection import SourceConnection
from instep.waiting import wait_until
from instep_bench import bench_servers, machine, outbox_load, turns
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure

GUARANTEES: tuple[settings.RelayGuarantee, ...] = ("exactly-once", "at-least-once")
FILLED_AT_ONCE = 5_000  # rows of one transaction that fills the outbox
WARM_UP_ROWS = 2_000
SETTLE_S = 60.0
READ_WAIT_S = 0.002

Say = Callable[[str], None]


class RelayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    sources: tuple[str, ...] = ("postgres", "mariadb", "sqlite")
    rows: int = 300_000
    size: int = 200
    rate: int = 1_000
    seconds: float = 20
    documents: int = 10_000
    partitions: int = 4
    rounds: int = 3
    bootstrap: str | None = None


class RelayRound(msgspec.Struct, frozen=True):
    """Rows per second of one source and one guarantee."""

    source: str
    guarantee: str
    rows_per_s: float
    transactions: int


class RelayDelay(msgspec.Struct, frozen=True):
    """From the commit in the source until a read-committed reader sees the row."""

    source: str
    p50_ms: float
    p99_ms: float
    max_ms: float
    rows: int


def run(options: RelayOptions, say: Say, command: str) -> BenchResult:
    """Run the benchmark. Every process that it starts ends with it."""
    _check(options)
    recorder = Recorder("relay", command)
    rounds: list[RelayRound] = []
    delays: list[RelayDelay] = []
    urls: dict[str, str] = {}
    with bench_servers.BenchServers(options.bootstrap, say) as servers:
        for name in options.sources:
            database = servers.database(name)
            urls[database.label] = database.url
            bench = _SourceBench(options, servers, database, say)
            try:
                rounds += bench.backlogs()
                if options.seconds:
                    delays.append(bench.delay())
            finally:
                bench.close()
        releases = machine.releases(urls, bootstrap=options.bootstrap)
    return recorder.close(
        options,
        {"sources": ",".join(urls)},
        releases,
        figures=figures(rounds, delays),
        tables=report_tables(rounds, delays),
        notes=[
            "Rows per second count from the start of a session to its end, with its login and its"
            " look for the position.",
            "The delay counts from the moment at which the application sends COMMIT. Application,"
            " relay (`instep relay run`) and reader are processes of their own.",
        ],
    )


def _check(options: RelayOptions) -> None:
    for source in options.sources:
        bench_servers.check_target(source)
    turns.require_positive(options, "rows", "rate", "documents", "rounds")


class _SourceBench:
    """The measurements of one source."""

    def __init__(
        self,
        options: RelayOptions,
        servers: bench_servers.BenchServers,
        database: bench_servers.TargetDatabase,
        say: Say,
    ) -> None:
        self._options, self._servers, self._say = options, servers, say
        self._label, self._url = database.label, database.url
        self._declared: list[tuple[str, settings.Relay]] = []
        self._has_created = False  # whether instep's own tables were created here
        self._value = b'{"status":"PRINTED","pad":"' + b"x" * max(0, options.size - 30) + b'"}'

    def backlogs(self) -> list[RelayRound]:
        found: list[RelayRound] = []
        relays_of = {guarantee: self._declare(guarantee) for guarantee in GUARANTEES}
        for name, relay in relays_of.values():
            self._fill(relay, WARM_UP_ROWS)
            self._publish(name, relay, WARM_UP_ROWS)
        for number in range(self._options.rounds):
            for guarantee, (name, relay) in relays_of.items():
                self._fill(relay, self._options.rows)
                seconds, transactions = self._publish(name, relay, self._options.rows)
                rate = self._options.rows / seconds
                self._say(
                    f"{self._label}, {guarantee}, round {number + 1}: {rate:,.0f} rows/s"
                    f" in {transactions} transactions"
                )
                found.append(RelayRound(self._label, guarantee, rate, transactions))
        return found

    def delay(self) -> RelayDelay:
        name, relay = self._declare("exactly-once")
        count = round(self._options.rate * self._options.seconds)
        times = self._servers.folder / f"{name}.times"
        load = outbox_load.OutboxLoad(
            relay.source,
            relay.outbox,
            count,
            self._options.rate,
            self._options.documents,
            str(times),
        )
        log = self._servers.folder / f"{name}.log"
        with contextlib.ExitStack() as processes:
            self._launch(
                processes,
                log,
                "instep",
                "relay",
                "run",
                name,
                "--config",
                self._config(name, relay),
            )
            self._fill(relay, 1)  # shows that the relay works
            self._wait_for(lambda: any(self._ends(relay).values()), "relay published nothing", log)
            starts = self._ends(relay)
            self._launch(processes, log, outbox_load.MODULE, msgspec.json.encode(load).decode())
            seen = self._read(relay.topic, starts, count)
            self._wait_for(times.exists, "application did not finish", log)
        committed = outbox_load.commit_times(times)
        delays = sorted(at - committed[number] for number, at in seen.items())
        found = RelayDelay(
            self._label,
            statistics.median(delays) / 1e6,
            delays[int(len(delays) * 0.99)] / 1e6,
            delays[-1] / 1e6,
            count,
        )
        self._say(
            f"{self._label}: commit to visible at {self._options.rate:,} rows/s:"
            f" p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms"
        )
        return found

    def _config(self, name: str, relay: settings.Relay) -> str:
        """Write the settings file of a relay, and return its name."""
        tree = {
            "kafka": {"bootstrap": self._servers.bootstrap},
            "relays": {
                name: {"source": relay.source, "topic": relay.topic, "outbox": relay.outbox}
            },
        }
        file = self._servers.folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(tree), encoding="utf-8")
        return str(file)

    def _launch(self, processes: contextlib.ExitStack, log: Path, *command: str) -> None:
        """Run a Python module in a process that ends with the block, and with this process."""
        keeper = keeper_client.KeeperClient(end_signal=signal.SIGTERM)
        processes.callback(keeper.close)
        keeper.launch([sys.executable, "-m", *command], log=log, env=paths.python_environment())

    def _ends(self, relay: settings.Relay) -> dict[int, int]:
        return offsets.latest(self._servers.cluster, relay.topic, range(self._options.partitions))

    def _wait_for(self, condition: Callable[[], bool], what: str, log: Path) -> None:
        if not wait_until(condition, SETTLE_S):
            said = log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise errors.InstepError(
                "\n".join([f"the benchmark's {what}; its log ends:", *said[-5:]])
            )

    def _declare(self, guarantee: settings.RelayGuarantee) -> tuple[str, settings.Relay]:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        relay = settings.Relay(
            source=self._url,
            topic=self._servers.new_topic(self._options.partitions),
            outbox=name.replace("-", "_"),
            guarantee=guarantee,
        )
        created = tables.prepare(relay, name)
        self._has_created |= tables.creates_own(created)
        position_topic.create(self._servers.cluster, position_topic.of_relay(name).topic)
        self._servers.remove_topic_later(position_topic.of_relay(name).topic)
        self._declared.append((name, relay))
        return name, relay

    def close(self) -> None:
        """Remove what was created in the source."""
        for number, (name, relay) in enumerate(self._declared, start=1):
            is_last = number == len(self._declared)
            tables.remove(relay, name, with_own=is_last and self._has_created)

    def _fill(self, relay: settings.Relay, rows: int) -> None:
        """Add rows in large transactions. It is not measured."""
        with SourceConnection(relay.source) as opened:
            table = opened.dialect.identifier_preparer.quote_identifier(relay.outbox)
            for first in range(0, rows, FILLED_AT_ONCE):
                values = [
                    (f"d{number % self._options.documents}", self._value)
                    for number in range(first, min(first + FILLED_AT_ONCE, rows))
                ]
                with opened.transaction():
                    opened.execute_many(
                        f"INSERT INTO {table} (document, value) VALUES (?, ?)",  # noqa: S608
                        values,
                    )

    def _publish(self, name: str, relay: settings.Relay, rows: int) -> tuple[float, int]:
        began = time.perf_counter()
        progress = self._run(name, relay, once=True, stop=threading.Event())
        seconds = time.perf_counter() - began
        if progress.rows != rows:
            raise errors.InstepError(f"{progress.rows} of {rows} rows were published")
        return seconds, progress.transactions

    def _run(
        self, name: str, relay: settings.Relay, *, once: bool, stop: threading.Event
    ) -> RelayProgress:
        progress = RelayProgress()
        relays.run(
            name,
            relay,
            self._servers.cluster,
            once=once,
            stop=stop,
            say=self._say,
            progress=progress,
        )
        return progress

    def _read(self, topic: str, starts: dict[int, int], count: int) -> dict[int, int]:
        """Return when a read-committed reader saw each row, by its number."""
        seen: dict[int, int] = {}
        quiet_since = time.monotonic()
        for messages in reading.follow(self._servers.cluster, topic, starts, wait_s=READ_WAIT_S):
            now = time.monotonic_ns()
            for _, message in messages:
                number: int = msgspec.json.decode(message.value() or b"{}")["version"]
                if seen.setdefault(number, now) != now:
                    raise errors.InstepError(f"row {number} was published more than once")
                quiet_since = time.monotonic()
            if len(seen) >= count or time.monotonic() - quiet_since > SETTLE_S:
                break
        if len(seen) != count:
            raise errors.InstepError(f"{len(seen)} of {count} rows were read")
        ends = offsets.latest(self._servers.cluster, topic, range(self._options.partitions))
        ranges = {part: (starts[part], end) for part, end in ends.items()}
        if sum(1 for _ in reading.read(self._servers.cluster, topic, ranges)) != count:
            raise errors.InstepError("rows were published more than once")
        return seen


def figures(rounds: list[RelayRound], delays: list[RelayDelay]) -> list[Figure]:
    """Return the figures of all sources."""
    found: list[Figure] = []
    keys = dict.fromkeys((one.source, one.guarantee) for one in rounds)
    for source, guarantee in keys:
        values = [
            one.rows_per_s for one in rounds if (one.source, one.guarantee) == (source, guarantee)
        ]
        found.append(
            Figure(
                name="published",
                unit="rows/s",
                better="more",
                labels={"source": source, "guarantee": guarantee},
                values=values,
            )
        )
    for delay in delays:
        for quantile, value in (("p50", delay.p50_ms), ("p99", delay.p99_ms)):
            found.append(
                Figure(
                    name="commit to visible",
                    unit="ms",
                    better="less",
                    labels={"source": delay.source, "quantile": quantile},
                    values=[value],
                )
            )
    return found


def report_tables(rounds: list[RelayRound], delays: list[RelayDelay]) -> list[ReportTable]:
    """Return the tables of the report."""
    speeds: list[list[Cell]] = []
    for source in dict.fromkeys(one.source for one in rounds):
        medians = {
            guarantee: statistics.median(
                one.rows_per_s
                for one in rounds
                if (one.source, one.guarantee) == (source, guarantee)
            )
            for guarantee in GUARANTEES
        }
        ratio = medians["exactly-once"] / medians["at-least-once"]
        speeds.append(
            [source, *(round(medians[guarantee]) for guarantee in GUARANTEES), round(ratio, 2)]
        )
    found = [
        ReportTable(
            "Backlog, rows per second (median)",
            ["source", *GUARANTEES, "exactly-once / at-least-once"],
            speeds,
        )
    ]
    if delays:
        found.append(
            ReportTable(
                "Commit to visible for read-committed readers, ms",
                ["source", "p50", "p99", "max", "rows"],
                [
                    [
                        one.source,
                        round(one.p50_ms, 1),
                        round(one.p99_ms, 1),
                        round(one.max_ms, 1),
                        one.rows,
                    ]
                    for one in delays
                ],
            )
        )
    return found
