"""One database's part of a campaign: its run, its publisher, its faults, and its end."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from instep import errors, settings
from instep.demo.pipeline_process import PipelineProcess
from instep.kafka import offsets, places, reading, topics
from instep.kafka.connection import Cluster
from instep.local import broker, keeper_client, processes
from instep.local.server import Server
from instep.operate import rewind
from instep.sinks import preparation
from tests.campaign.databases import Database
from tests.campaign.events import PARTITIONS, Publisher, Stream, settle
from tests.campaign.judgement import fact
from tests.campaign.scenario import Scenario, scenarios
from tests.support.model import Fact
from tests.support.waiting import wait_until

PATIENCE_S = 120.0
DRAIN_S = 300.0
GROWTH = 3  # partitions are added, once
REWIND_TRIES = 20
FAULTS_MIN = 6  # even if the machine is so busy that the time ends first
HASTY = 0.3  # of the faults do not wait until the pipelines work: they hit a starting run
ANY_TIME = (
    "run kill",
    "jvm kill",
    "stop",
    "second run",
    "paused run",
    "rewind back",
    "rewind forth",
    "grow",
    "lock",
)
AT_WORK = ("broker kill", "broker pause")  # a run that finds no server at its start may end


class Stage:
    """The system that the faults hit. Everything it starts ends with this process."""

    def __init__(
        self,
        kind: str,
        database: Database,
        brokers: broker.LocalCluster,
        folder: Path,
        seed: int,
        guarantee: str,
    ) -> None:
        self.folder, self.brokers, self.database = folder, brokers, database
        self.dice = random.Random(f"{seed}-{kind}")
        self.faults: Counter[str] = Counter()
        self.rewinds: Counter[str] = Counter()
        self.problems: list[str] = []
        ordered, unordered = f"{kind}-ordered", f"{kind}-unordered"
        self.scenarios = scenarios(kind, database.urls(), ordered, unordered, guarantee)
        self.config = folder / "instep.toml"
        tree = {
            "kafka": {"bootstrap": brokers.bootstrap},
            "pipelines": {one.name: one.settings() for one in self.scenarios},
        }
        self.config.write_text(tomli_w.dumps(tree), encoding="utf-8")
        self.declared = settings.load(self.config)
        self.cluster = Cluster(settings.Kafka(), brokers.bootstrap)
        streams = [
            Stream(name, name == ordered, random.Random(f"{seed}-{name}"))
            for name in (ordered, unordered)
        ]
        self.publisher = Publisher(
            brokers.bootstrap, streams, random.Random(f"{seed}-{kind}-publisher")
        )
        self.run: PipelineProcess | None = None
        self._runs = 0
        self._began = time.monotonic()
        self._timeline = (folder / "timeline.txt").open("w", encoding="utf-8", buffering=1)

    def prepare(self) -> None:
        for stream in self.publisher.streams:
            topics.create(self.cluster, stream.topic, PARTITIONS)
        for one in self.scenarios:
            one.make_tables()
            preparation.prepare(self.declared.pipelines[one.name])

    def note(self, what: str) -> None:
        self._timeline.write(f"{time.monotonic() - self._began:8.2f} {what}\n")

    def problem(self, what: str) -> None:
        """Record something that must not happen, whatever the tables contain."""
        self.note(f"PROBLEM {what}")
        self.problems.append(what)

    # --- the faults -------------------------------------------------------------------------------

    def play(self, seconds: float) -> None:
        """Publish, run and inject faults for this time.

        Inject at least a few: all kinds in random order, then all again.
        """
        self.publisher.start()
        self.run = self._start()
        deadline = time.monotonic() + seconds
        waiting: list[str] = []
        while time.monotonic() < deadline or self.faults.total() < FAULTS_MIN:
            if not waiting:
                waiting = [
                    kind for kind in self._kinds() if kind != "grow" or not self.faults["grow"]
                ]
                self.dice.shuffle(waiting)
            kind = waiting.pop()
            hasty = self.dice.random() < HASTY and bool(self.faults) and kind in ANY_TIME
            delay = self.dice.random() * 2
            if not hasty:
                self._wait_for_work()
            time.sleep(delay)
            self.note(f"fault: {kind}{' in haste' if hasty else ''}")
            self.faults[kind] += 1
            self._inject(kind)
            self.note(f"done: {kind}")

    def _kinds(self) -> list[str]:
        database = ["database kill", "database pause"] if self.database.server else []
        return [
            *ANY_TIME,
            *AT_WORK,
            *database,
            *(["disconnect"] if self.database.has_sessions else []),
        ]

    def _inject(self, kind: str) -> None:
        faults: dict[str, Callable[[], None]] = {
            "run kill": self._kill_run,
            "jvm kill": self._kill_jvm,
            "stop": self._stop_run,
            "second run": lambda: self._second_run(paused_s=0),
            "paused run": lambda: self._second_run(paused_s=5 + 10 * self.dice.random()),
            "broker kill": lambda: self._kill(self.brokers),
            "broker pause": lambda: self._pause(self.brokers),
            "database kill": lambda: self._kill(self.database.server),
            "database pause": lambda: self._pause(self.database.server),
            "disconnect": self.database.disconnect,
            "rewind back": self._rewind_back,
            "rewind forth": self._rewind_forth,
            "grow": self._grow,
            "lock": self._lock,
        }
        faults[kind]()

    def _kill_run(self) -> None:
        self._current().kill()
        self.run = self._start()

    def _kill_jvm(self) -> None:
        """Kill only Spark's JVM and wait until the driver notices and ends.

        Kill the driver itself if it has no JVM yet.
        """
        run = self._current()
        machines = [pid for pid in processes.descendants(run.pid) if _program(pid) == "java"]
        if not machines:
            return self._kill_run()
        for pid in machines:
            processes.send(pid, signal.SIGKILL)
        self._ended(run, "killing its JVM", errors.SparkGone.exit_status)
        self.run = self._start()
        return None

    def _stop_run(self) -> None:
        run = self._current()
        run.signal(signal.SIGTERM)
        # the signal ends it at once if it has not installed a handler, or if Spark is starting
        self._ended(run, "SIGTERM", 0, -signal.SIGTERM, 128 + signal.SIGTERM)
        self.run = self._start()

    def _second_run(self, paused_s: float) -> None:
        """Start a second run beside the first one, which may be paused meanwhile.

        One of them must end as fenced, and the other one must continue.
        """
        older = self._current()
        if paused_s:
            processes.freeze_tree(older.pid)
        newer = self._start()
        if paused_s:
            time.sleep(paused_s)
            processes.thaw_tree(older.pid)
        wait_until(
            lambda: older.poll() is not None or newer.poll() is not None,
            "one of two runs to end",
            PATIENCE_S,
        )
        ended, self.run = (older, newer) if older.poll() is not None else (newer, older)
        self._ended(ended, "starting another one", errors.Fenced.exit_status)

    def _ended(self, run: PipelineProcess, after: str, *expected: int) -> None:
        """Wait for the end of a run, and check its exit status."""
        code = run.wait(PATIENCE_S)
        self.note(f"{run.log.name} ended with {code}")
        if code not in expected:
            self.problem(f"{run.log.name} ended with {code} after {after}")
        run.close()

    def _kill(self, server: broker.LocalCluster | Server | None) -> None:
        assert server is not None
        server.kill()
        time.sleep(self.dice.random() * 4)
        server.start()

    def _pause(self, server: broker.LocalCluster | Server | None) -> None:
        assert server is not None
        server.pause()
        time.sleep(1 + self.dice.random() * 9)
        server.resume()

    def _lock(self) -> None:
        scenario = self.dice.choice(self.scenarios)
        seconds = 1 + self.dice.random() * 4
        self.note(f"lock {scenario.table} for {seconds:.1f} s")
        self.database.lock(scenario, seconds)

    def _grow(self) -> None:
        for stream in self.publisher.streams:
            topics.grow(self.cluster, stream.topic, PARTITIONS + GROWTH)
        self.publisher.grow(PARTITIONS + GROWTH)

    def _rewind_back(self) -> None:
        """Move one pipeline back by a random part of what it has applied, while it runs."""
        scenario = self.dice.choice(self.scenarios)
        share = self.dice.random()
        stood = scenario.positions()
        for partition, offset in sorted(stood.items()):
            if offset and self.dice.random() < 0.7:
                self._rewind(scenario, places.Offset(int(offset * share)), [partition])
        self.rewinds[scenario.name] += 1

    def _rewind_forth(self) -> None:
        """Move one pipeline to the end of the log and back to where it was, while nothing runs."""
        scenario = self.dice.choice(self.scenarios)
        self._current().kill()
        # a commit that was in progress may follow the read of the ledger
        self.rewinds[scenario.name] += 1
        stood = scenario.positions()
        if stood:  # otherwise the pipeline has never started
            self._rewind(scenario, places.FromEnd())
            for partition in scenario.positions():
                self._rewind(scenario, places.Offset(stood.get(partition, 0)), [partition])
        self.run = self._start()

    def _rewind(
        self, scenario: Scenario, place: places.Place, partitions: list[int] | None = None
    ) -> None:
        """Plan and execute a rewind. Plan again if a running pipeline made the plan out of date."""
        pipeline = self.declared.pipelines[scenario.name]
        for attempt in range(REWIND_TRIES):
            prepared = rewind.prepare(
                self.cluster, scenario.name, pipeline, place, partitions or []
            )
            try:
                rewind.execute(scenario.name, pipeline, prepared, actor="campaign", reason="fault")
            except errors.SettingsError:
                if attempt == REWIND_TRIES - 1:
                    raise
            else:
                moves = [
                    f"{move.partition}: {move.current} -> {move.new}"
                    for move in prepared.plan.moves
                ]
                return self.note(f"rewind of {scenario.name}: {', '.join(moves)}")
        return None

    # --- the run ----------------------------------------------------------------------------------

    def _start(self) -> PipelineProcess:
        self._runs += 1
        run = PipelineProcess(
            self.config, "--master", "local[8]", log=self.folder / f"run-{self._runs}.log"
        )
        run.start()
        self.note(f"run {self._runs} started")
        return run

    def _current(self) -> PipelineProcess:
        if self.run is None:
            raise AssertionError("no run was started")
        return self.run

    def _wait_for_work(self) -> None:
        """Wait until a pipeline has committed something: a fault must hit a working run."""
        before = {one.name: self._positions(one) for one in self.scenarios}
        deadline = time.monotonic() + PATIENCE_S
        while not any(_moved(before[one.name], self._positions(one)) for one in self.scenarios):
            code = self._current().poll()
            if code is not None:
                self.problem(f"{self._current().log.name} ended by itself with {code}")
                self._current().close()
                self.run = self._start()
            if time.monotonic() > deadline:
                return self.problem(
                    f"no commit within {PATIENCE_S:.0f} s: {self._current().log.name}"
                )
            time.sleep(0.2)
        return None

    def _positions(self, scenario: Scenario) -> dict[int, int]:
        try:
            return scenario.positions()
        except errors.InstepError:  # busy, or not back yet
            return {}

    # --- the end ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Stop publishing, then apply all remaining records with one more `run`."""
        settle(self.publisher)
        if self.run is not None:
            self.run.stop(PATIENCE_S)
            self.run.close()
            self.run = None
        code = self._command("run", "--once", "--master", "local[8]", log="run-once")
        if code != 0:
            self.problem(f"instep run --once ended with {code}: run-once.log")
        for log in sorted(self.folder.glob("run-*.log")):
            if "Traceback" in log.read_text(encoding="utf-8", errors="replace"):
                self.problem(f"a traceback was printed: {log.name}")

    def reconcile(self) -> dict[str, int]:
        """Return the exit status of `instep reconcile` for each scenario.

        Reconcile all at once, then one by one unless the status is 0.
        """
        names = [one.name for one in self.scenarios]
        if self._reconcile(names, "reconcile") == 0:
            return dict.fromkeys(names, 0)
        return {name: self._reconcile([name], f"reconcile-{name}") for name in names}

    def _reconcile(self, names: list[str], log: str) -> int:
        return self._command(
            "reconcile",
            *names,
            "--master",
            "local[2]",
            "--out",
            str(self.folder / f"{log}.jsonl"),
            log=log,
        )

    def _command(self, *arguments: str, log: str) -> int:
        """Run a command of instep to its end, under a keeper that ends it with this process."""
        keeper = keeper_client.KeeperClient(end_signal=signal.SIGTERM)
        try:
            argv = [sys.executable, "-m", "instep", "--config", str(self.config), *arguments]
            keeper.launch(argv, log=self.folder / f"{log}.log")
            wait_until(
                lambda: keeper.poll() is not None,
                f"instep {arguments[0]} to end: {log}.log",
                DRAIN_S,
            )
            code = keeper.poll()
            return -1 if code is None else code
        finally:
            keeper.close()

    def facts(self, topic: str) -> list[Fact]:
        """Read all committed records of a topic, and write them to a file."""
        ends = offsets.latest(self.cluster, topic, topics.describe(self.cluster, topic).partitions)
        records = reading.messages(
            self.cluster, topic, {partition: (0, end) for partition, end in ends.items()}
        )
        found = []
        with (self.folder / f"{topic}.log.txt").open("w", encoding="utf-8") as file:
            for partition, message in records:
                key, value, offset = message.key(), message.value(), message.offset()
                assert isinstance(key, bytes)
                assert offset is not None
                file.write(f"{partition} {offset} {key!r} {value!r}\n")
                found.append(
                    fact(
                        (partition, offset),
                        key.decode(),
                        value if isinstance(value, bytes) else None,
                    )
                )
        return found

    def close(self) -> None:
        if self.run is not None:
            self.run.kill()
        self.cluster.close()
        self._timeline.close()


def _moved(before: dict[int, int], after: dict[int, int]) -> bool:
    """Return whether a partition advanced. Rows that a start adds to the ledger do not count."""
    return any(offset != before.get(partition, 0) for partition, offset in after.items())


def _program(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return ""


def dump(folder: Path, name: str, found: Any, decisions: list[Any]) -> None:
    """Write the contents of the database to files, to help explain a difference."""
    with (folder / f"{name}.txt").open("w", encoding="utf-8") as file:
        for document, row in sorted(found.rows.items()):
            file.write(f"row {document} {row}\n")
        for kind in ("history", "dead", "parked", "audit"):
            file.writelines(f"{kind} {row}\n" for row in getattr(found, kind))
        file.writelines(f"decision {row}\n" for row in decisions)
