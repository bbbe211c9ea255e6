"""A trial: one run of an experiment, with its clients, its faults and its observations.

A trial is divided into scenarios, each with its own history: the same workload with one thing
changed. Everything that a trial creates in the cluster is named after the trial, recorded before it
is created, and removed afterwards.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from instep import errors
from instep.kafka import offsets, topics
from instep.kafka.admin import consumer_groups
from instep.local import broker, processes
from instep.report.tables import Cell, Plot, PlotKind, ReportTable, Series
from instep.waiting import wait_until
from instep_lab import history, store, verdict
from instep_lab.claim import Tier
from instep_lab.clients import consuming, process, publishing
from instep_lab.clients.consuming import CommitMode, Consuming
from instep_lab.clients.publishing import Publishing
from instep_lab.cluster_pool import LabCluster
from instep_lab.history import ClientOperation, HistoryWriter, OperationKind
from instep_lab.verdict import Role, VerdictPart

PREFIX = "instep-lab"
PATIENCE_S = 60.0
JOIN_S = 90.0
STABLE_S = 0.5

Number = TypeVar("Number", int, float)
Result = TypeVar("Result")


class TimelineStep(msgspec.Struct, frozen=True):
    """A line of the timeline: seconds since the trial began, and what happened."""

    at_s: float
    what: str


class Scenario:
    """One scenario of a trial: a name, a history, and the clients that write it."""

    def __init__(self, trial: Trial, name: str) -> None:
        self.name = name
        self._trial = trial
        self._file = trial.folder / f"history-{store.file_name(name)}.jsonl"
        self._parts: list[Path] = []
        self._history_writer = HistoryWriter(self._file)

    def publish(self, plan: Publishing, connection: Mapping[str, Any] | None = None) -> None:
        """Publish in this process until the plan is complete."""
        self._trial.store_plan(self.name, plan)
        publishing.publish(plan, connection or self._trial.cluster.connection, self._history_writer)

    def consume(
        self, plan: Consuming, connection: Mapping[str, Any] | None = None
    ) -> consuming.ConsumerProgress:
        """Consume in this process until the end that the plan defines."""
        self._trial.store_plan(self.name, plan)
        progress = consuming.ConsumerProgress()
        consuming.consume(
            plan,
            connection or self._trial.cluster.connection,
            self._history_writer,
            progress=progress,
        )
        return progress

    def read_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        by: str = "reader",
        config: Mapping[str, Any] | None = None,
    ) -> consuming.ConsumerProgress:
        """Read the whole topic into the history, without a consumer group.

        Wait first until the end of the log stops moving: unanswered sends may still arrive, and the
        high watermark of a new leader may be behind its log.
        """
        self._trial.wait_for_stable_end(topic, partitions)
        plan = Consuming(
            topic=topic,
            group=by,
            assigned=list(range(partitions)),
            commit=CommitMode.NEVER,
            to_end=True,
            from_start=True,
            idle_s=PATIENCE_S,
            batch=1_000,
            config=dict(config or {}),
        )
        return self.consume(plan)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged sends of clients in this process so far."""
        return self._history_writer.count(OperationKind.SEND)

    @contextlib.contextmanager
    def background(
        self, plan: Publishing | Consuming, connection: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[consuming.ConsumerProgress, threading.Event]]:
        """Run a client in a thread; stop it and wait for it at the end of the block."""
        self._trial.store_plan(self.name, plan)
        stop, progress, failures = (
            threading.Event(),
            consuming.ConsumerProgress(),
            list[BaseException](),
        )

        def run() -> None:
            try:
                config = connection or self._trial.cluster.connection
                if isinstance(plan, Publishing):
                    publishing.publish(plan, config, self._history_writer, stop)
                else:
                    consuming.consume(plan, config, self._history_writer, stop, progress)
            except BaseException as failure:  # noqa: BLE001 - raised again in the calling thread
                failures.append(failure)

        thread = threading.Thread(target=run, name=plan.member, daemon=True)
        thread.start()
        try:
            yield progress, stop
        except SystemExit:
            # the process ends: do not wait for threads that may be waiting for a frozen broker
            stop.set()
            raise
        except Exception:
            self._join(thread, stop, failures)
            raise
        self._join(thread, stop, failures)

    def _join(
        self, thread: threading.Thread, stop: threading.Event, failures: Sequence[BaseException]
    ) -> None:
        """Stop a client and wait for it.

        Raise the client's own failure, even if the block failed too: it is the cause.
        """
        stop.set()
        thread.join(JOIN_S)
        if failures:
            raise failures[0]
        if thread.is_alive():
            raise errors.InstepError(
                f"{thread.name} of scenario {self.name!r} did not end within {JOIN_S:.0f} s"
            )

    def start(
        self, plan: Publishing | Consuming, connection: Mapping[str, Any] | None = None
    ) -> process.ClientProcess:
        """Start a client in its own process; it ends with the trial at the latest."""
        self._trial.store_plan(self.name, plan)
        part = self._file.with_name(f"{self._file.stem}-{len(self._parts) + 1}.jsonl")
        self._parts.append(part)
        started = process.ClientProcess(plan, connection or self._trial.cluster.connection, part)
        self._trial.callback(started.close)
        self._trial.note(f"{self.name}: started {plan.member} (pid {started.pid})")
        return started

    def run(
        self,
        plan: Publishing | Consuming,
        connection: Mapping[str, Any] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> int:
        """Run a client in its own process and wait for it.

        Return its exit status, which is negative for the signal that killed it.
        """
        started = self.start(plan, connection)
        status = started.wait(timeout_s)
        started.close()
        self._trial.note(f"{self.name}: {plan.member} (pid {started.pid}) ended with {status}")
        if isinstance(plan, Publishing):
            may_die = plan.dies_after is not None
        else:
            may_die = plan.dies_at is not None
        if status > 0 or (status < 0 and not may_die):
            raise errors.InstepError(
                f"a client of scenario {self.name!r} ended with {status}:\n{started.output()}"
            )
        return status

    def note(self, operation: ClientOperation) -> None:
        """Record an operation that no client in `clients/` performed."""
        self._history_writer.note(operation)

    def history(self) -> list[ClientOperation]:
        """Return all operations of the scenario's clients so far, by time."""
        return history.merge(history.read(file) for file in (self._file, *self._parts))

    def close(self) -> None:
        self._history_writer.close()


class Trial:
    """The tools of an experiment, and the place for its observations."""

    def __init__(
        self,
        claim: str,
        *,
        run: Path,
        tier: Tier,
        seed: int,
        cluster: LabCluster | None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.claim, self.tier, self.seed, self.run = claim, tier, seed, run
        self.folder = run / claim
        self.folder.mkdir(parents=True, exist_ok=True)
        self.parts: list[VerdictPart] = []
        self.tables: list[ReportTable] = []
        self.plots: list[Plot] = []
        # By claim: the choices are the same whether it runs alone or with others.
        self.random = random.Random(f"{seed}-{claim}")  # noqa: S311 - no secret
        self._cluster = cluster
        self._say = say
        self._began = time.monotonic()
        # Unbuffered: a kill loses nothing.
        self._timeline = (self.folder / "timeline.jsonl").open("ab", buffering=0)
        self._settings: dict[str, list[Any]] = {}
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._timeline.close)
        self._own_name = f"{PREFIX}-{uuid.uuid4().hex[:8]}-{claim}"
        self._names = 0
        self._abandoned = False
        self._lock = threading.Lock()

    # --- tools ---------------------------------------------------------------------------------

    @property
    def cluster(self) -> LabCluster:
        if self._cluster is None:
            raise errors.InstepError(f"{self.claim} was declared to need no brokers")
        return self._cluster

    def scaled(self, quick: Number, full: Number) -> Number:
        """Return a size by tier."""
        return quick if self.tier is Tier.QUICK else full

    def rounds(self, quick: int = 1, full: int = 5) -> Iterator[int]:
        """Yield the numbers of the rounds and report progress."""
        count = self.scaled(quick, full)
        for number in range(count):
            if count > 1:
                self._say(f"{self.claim}: round {number + 1} of {count}")
            yield number

    def together(self, functions: Mapping[str, Callable[[], Result]]) -> dict[str, Result]:
        """Run functions that mostly wait at the same time; return their results by name."""
        with futures.ThreadPoolExecutor(len(functions)) as pool:
            started = {name: pool.submit(function) for name, function in functions.items()}
            return {name: future.result() for name, future in started.items()}

    def topic(
        self,
        partitions: int = 1,
        replicas: int | None = None,
        *,
        brokers: Sequence[int] | None = None,
        **config: str,
    ) -> str:
        """Create a topic for this trial and return its name.

        Settings have underscores for dots. `brokers` has the replicas, leader first.
        """
        name = self._named("topic")
        settings_ = {key.replace("_", "."): value for key, value in config.items()}
        topics.create(self.cluster.kafka, name, partitions, replicas, settings_, brokers=brokers)
        self._to_remove(lambda: topics.delete(self.cluster.kafka, name))
        return name

    def group(self) -> str:
        """Return the name of a consumer group for this trial."""
        name = self._named("group")
        self._to_remove(lambda: self._forget_group(name))
        return name

    def name(self, kind: str) -> str:
        """Return a unique name for something that needs no removal, such as a transactional id."""
        with self._lock:
            self._names += 1
            return f"{self._own_name}-{kind}-{self._names}"

    def scenario(self, name: str) -> Scenario:
        scenario = Scenario(self, name)
        self.callback(scenario.close)
        return scenario

    def callback(self, clean_up: Callable[[], object]) -> None:
        """Run this when the trial ends, in reverse order of registration.

        A failure does not keep the other callbacks from running.
        """

        def quietly() -> None:
            try:
                clean_up()
            except errors.InstepError as error:
                self.note(f"could not clean up: {error}")
                self._say(f"{self.claim}: could not clean up: {error.what}")

        self._stack.callback(quietly)

    def wait(self, reached: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for a condition; raise if it stays false, which makes the claim inconclusive."""
        if not wait_until(reached, patience_s):
            raise errors.InstepError(f"waited {patience_s:.0f} s in vain for {what}")

    def wait_for_more(self, scenarios: Iterable[Scenario], more: int) -> None:
        """Wait until each scenario has this many more acknowledged sends than now."""
        targets = {one: one.acknowledged + more for one in scenarios}
        self.wait(
            lambda: all(one.acknowledged >= count for one, count in targets.items()),
            f"{more} more acknowledged sends",
        )

    def wait_for_stable_end(self, topic: str, partitions: int) -> None:
        """Wait until the ends of the partitions have not moved for a while."""
        ends, since = None, time.monotonic()

        def is_stable() -> bool:
            nonlocal ends, since
            now = offsets.latest(self.cluster.kafka, topic, range(partitions), committed=False)
            if now != ends:
                ends, since = now, time.monotonic()
            return time.monotonic() - since > STABLE_S

        self.wait(is_stable, f"the end of topic {topic!r} to stop moving")

    # --- faults, each verified -----------------------------------------------------------------

    def kill(self, node: int) -> None:
        """Kill a broker of the lab with SIGKILL."""
        target = self.cluster.node(node)
        pid = target.pid
        target.kill()
        self.note(f"fault: kill -9 of broker {node} (pid {pid}): {_state(target)}")
        if target.alive:
            raise errors.InstepError(f"broker {node} survived kill -9")

    def stop(self, node: int) -> None:
        """Shut down a broker of the lab cleanly: it hands over its leaderships."""
        target = self.cluster.node(node)
        target.stop()
        self.note(f"broker {node} stopped: {_state(target)}")

    def freeze(self, node: int) -> None:
        """Freeze a broker of the lab with SIGSTOP: connections stay open, but nothing answers."""
        target = self.cluster.node(node)
        target.pause()
        self.wait(lambda: processes.paused(target.pid), f"broker {node} to stop", 10)
        self.note(f"fault: SIGSTOP of broker {node} (pid {target.pid}): verified (state T)")

    def thaw(self, node: int) -> None:
        self.cluster.node(node).resume()
        self.note(f"SIGCONT of broker {node}")

    def restart(self, node: int) -> None:
        """Restart a broker with its data and wait until it answers."""
        self.cluster.node(node).start()
        self.note(f"broker {node} restarted (pid {self.cluster.node(node).pid})")

    def wipe(self, node: int) -> None:
        """Delete the data of a dead broker of the lab, as if its disk was lost."""
        target = self.cluster.node(node)
        if target.alive:
            raise errors.InstepError(f"broker {node} is alive: its data cannot be deleted")
        shutil.rmtree(target.root / "data")
        self.note(f"fault: deleted the data of broker {node}")

    # --- observations --------------------------------------------------------------------------

    def statement(self, statement: str, holds: bool | None, evidence: str) -> None:
        """Record whether a statement of the claim holds; None if the run could not determine it."""
        self._add(Role.STATEMENT, statement, holds, evidence)

    def control(self, statement: str, holds: bool | None, evidence: str) -> None:
        """Record whether a control holds, without which the rest means nothing.

        Examples: a fault was active; records are lost without the protection.
        """
        self._add(Role.CONTROL, statement, holds, evidence)

    def limit(self, statement: str, holds: bool | None, evidence: str) -> None:
        """Record whether the run showed a condition under which the claim does not hold."""
        self._add(Role.LIMIT, statement, holds, evidence)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self.tables.append(ReportTable(title, list(columns), [list(row) for row in rows]))

    def plot(
        self,
        title: str,
        x: str,
        y: str,
        series: Mapping[str, Sequence[tuple[Cell, float | None]]],
        kind: PlotKind = PlotKind.BARS,
        *,
        log_x: bool = False,
        log_y: bool = False,
    ) -> None:
        lines = [Series(name, list(points)) for name, points in series.items()]
        self.plots.append(Plot(title, x, y, lines, kind, log_x, log_y))

    def note(self, what: str) -> None:
        """Add a line to the timeline."""
        if not self._timeline.closed:
            step = TimelineStep(round(time.monotonic() - self._began, 3), what)
            self._timeline.write(msgspec.json.encode(step) + b"\n")

    def store_plan(self, scenario: str, plan: Publishing | Consuming) -> None:
        """Store the settings of a client, without the connection, which may contain a password."""
        with self._lock:
            self._settings.setdefault(scenario, []).append(msgspec.to_builtins(plan))
            store.write_settings(self.folder, self._settings)

    def close(self) -> None:
        """Stop everything that the trial started and remove what it created in the cluster."""
        self._stack.close()

    def abandon(self) -> None:
        """Close quickly: leave topics and groups on the lab's own brokers.

        They disappear with the brokers, some of which may be dead.
        """
        self._abandoned = True
        self.close()

    def _to_remove(self, remove: Callable[[], object]) -> None:
        """Remove something from the cluster when the trial ends."""

        def remove_unless_abandoned() -> None:
            if not (self._abandoned and self.cluster.own):
                remove()

        self.callback(remove_unless_abandoned)

    def _add(self, role: Role, statement: str, holds: bool | None, evidence: str) -> None:
        part = VerdictPart(role, statement, verdict.outcome(holds), evidence)
        self.parts.append(part)
        self.note(f"{part.outcome}: {role}: {statement}: {evidence}")

    def _named(self, kind: str) -> str:
        name = self.name(kind)
        store.record_created(self.run, store.CreatedResource(kind, name))
        return name

    def _forget_group(self, name: str) -> None:
        if self.cluster.own is None:
            # a member that died without leaving stays until its session expires
            self.wait(
                lambda: not consumer_groups.members(self.cluster.kafka, name),
                f"the members of group {name!r} to be gone",
            )
        if consumer_groups.exists(self.cluster.kafka, name):
            consumer_groups.delete(self.cluster.kafka, name)


def _state(node: broker.Broker) -> str:
    if node.alive:
        return "still alive"
    return "gone"


def spread(values: Sequence[float], unit: str = "", digits: int = 1) -> str:
    """Return the median of some values, with the lowest and the highest."""
    if not values:
        return "none"
    median = f"{statistics.median(values):,.{digits}f}{unit}"
    if len(values) == 1:
        return median
    return f"{median} ({min(values):,.{digits}f} to {max(values):,.{digits}f} in {len(values)})"
