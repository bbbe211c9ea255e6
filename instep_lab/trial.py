"""A trial: one run of an experiment, with its clients, its faults and its observations.

A trial is divided into scenarios, each with its own history: the same workload with one thing
changed. Everything that a trial creates in the cluster is named after the trial, recorded before it
is created, and removed afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from instep import errors, settings
from instep.document.showing import counted
from instep.kafka import layout, offsets, topics
from instep.kafka.admin import consumer_groups
from instep.local import broker, processes, proxy
from instep.report.tables import Cell, Plot, PlotKind, ReportTable, Series
from instep.waiting import wait_until
from instep_lab import checkers, history, integrity, store, verdict
from instep_lab.claim import AnomalyExample, Tier
from instep_lab.clients import bulk, consuming, java_host, process, publishing
from instep_lab.clients.consuming import CommitMode, Consuming, Pool
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Measuring, Publishing
from instep_lab.cluster_pool import LabCluster
from instep_lab.history import (
    ClientOperation,
    HistoryTail,
    HistoryWriter,
    OperationKind,
    OperationStatus,
)
from instep_lab.verdict import Dependence, Role, VerdictPart

PREFIX = "instep-lab"
PATIENCE_S = 60.0
JOIN_S = 90.0
STABLE_S = 0.5
FOLLOW_INTERVAL_S = 0.05

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
        self._plans: list[Publishing | Consuming] = []
        # set by an experiment whose log has gaps, such as after compaction, or begins again
        self.gaps_allowed = self.disk_lost = False
        # what the check of the clients must leave to the experiment
        self.keys_move = self.commits_move = self.judges_idempotence = False
        self._lock = threading.Lock()
        self._acknowledged_elsewhere = 0
        self._history_writer = HistoryWriter(self._file)

    def publish(self, plan: Publishing, connection: Mapping[str, Any] | None = None) -> None:
        """Publish until the plan is complete, in this process unless the client is Java's."""
        self._store(plan)
        self._run_client(plan, connection, threading.Event(), consuming.ConsumerProgress())

    def consume(
        self, plan: Consuming, connection: Mapping[str, Any] | None = None
    ) -> consuming.ConsumerProgress:
        """Consume until the end that the plan defines, in this process unless it is Java's."""
        self._store(plan)
        progress = consuming.ConsumerProgress()
        self._run_client(plan, connection, threading.Event(), progress)
        return progress

    def _run_client(
        self,
        plan: Publishing | Consuming,
        connection: Mapping[str, Any] | None,
        stop: threading.Event,
        progress: consuming.ConsumerProgress,
    ) -> None:
        """Run a client until its end, or until it is stopped."""
        config = connection or self._trial.cluster.connection
        if plan.library is Library.JAVA:
            self._run_java(plan, config, stop, progress)
        elif plan.sampled:
            with HistoryWriter(self._new_part(), sampled=True) as history_writer:
                self._run_here(plan, config, history_writer, stop, progress)
        else:
            self._run_here(plan, config, self._history_writer, stop, progress)

    def _run_here(
        self,
        plan: Publishing | Consuming,
        config: Mapping[str, Any],
        history_writer: HistoryWriter,
        stop: threading.Event,
        progress: consuming.ConsumerProgress,
    ) -> None:
        """Run a client in this process."""
        if isinstance(plan, Publishing):
            publishing.publish(plan, config, history_writer, stop)
        else:
            consuming.consume(plan, config, history_writer, stop, progress)

    def _run_java(
        self,
        plan: Publishing | Consuming,
        connection: Mapping[str, Any],
        stop: threading.Event,
        progress: consuming.ConsumerProgress,
    ) -> None:
        started = self._launch(plan, connection, may_share=True)
        tail = HistoryTail(started.file)
        try:
            while started.status is None:
                if stop.wait(FOLLOW_INTERVAL_S):
                    started.terminate()
                    started.wait(JOIN_S)
                self._follow(plan, tail, progress)
            self._follow(plan, tail, progress)
            self._refuse_failed(plan, started)
        finally:
            tail.close()
            started.close()

    def _follow(
        self, plan: Publishing | Consuming, tail: HistoryTail, progress: consuming.ConsumerProgress
    ) -> None:
        """Count what a client in another process has done since the last call."""
        for one in tail.read():
            match one.kind, one.outcome:
                case OperationKind.SEND, OperationStatus.OK:
                    with self._lock:
                        self._acknowledged_elsewhere += 1
                case OperationKind.READ, OperationStatus.OK:
                    progress.read += 1
                case OperationKind.READ, OperationStatus.FAIL:
                    progress.errors.append(one.note)
                case OperationKind.POSITION, _:
                    progress.ends[one.partition or 0] = one.offset or 0
                case ((OperationKind.ASSIGN | OperationKind.REVOKE), _):
                    changed = {(plan.topic, one.partition or 0)}
                    held = set(progress.held)
                    progress.hold(
                        plan.topic,
                        held | changed if one.kind is OperationKind.ASSIGN else held - changed,
                    )
                case _:
                    pass

    def read_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        by: str = "reader",
        config: Mapping[str, Any] | None = None,
    ) -> consuming.ConsumerProgress:
        """Read the whole topic into the history, without a consumer group.

        Wait first until the log ends with what was acknowledged, or else until its end stops
        moving: unanswered sends may still arrive, and the high watermark of a new leader may be
        behind its log.
        """
        if not self._has_all(topic, partitions):
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

    def _has_all(self, topic: str, partitions: int) -> bool:
        """Return whether every send was acknowledged, and the log ends with the last ones."""
        ends = dict.fromkeys(range(partitions), 0)
        for one in history.of(self.history(), OperationKind.SEND, None):
            if one.outcome is not OperationStatus.OK or one.offset is None or one.offset < 0:
                return False
            if one.topic == topic:
                part = one.partition or 0
                ends[part] = max(one.offset + 1, ends.get(part, 0))
        senders = [plan for plan in self._plans if isinstance(plan, Publishing)]
        if not any(ends.values()) or any(one.dies_after is not None for one in senders):
            return False  # a process that was killed has not recorded everything
        kafka = self._trial.cluster.kafka
        return ends == offsets.latest(kafka, topic, range(partitions), committed=False)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged sends of clients that this scenario follows so far."""
        return self._history_writer.count(OperationKind.SEND) + self._acknowledged_elsewhere

    @contextlib.contextmanager
    def background(
        self, plan: Publishing | Consuming, connection: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[consuming.ConsumerProgress, threading.Event]]:
        """Run a client in a thread; stop it and wait for it at the end of the block."""
        self._store(plan)
        stop, progress, failures = (
            threading.Event(),
            consuming.ConsumerProgress(),
            list[BaseException](),
        )

        def run() -> None:
            try:
                self._run_client(plan, connection, stop, progress)
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
        self._store(plan)
        return self._launch(plan, connection)

    @overload
    def _launch(
        self, plan: Publishing | Consuming, connection: Mapping[str, Any] | None
    ) -> process.ClientProcess: ...

    @overload
    def _launch(
        self,
        plan: Publishing | Consuming,
        connection: Mapping[str, Any] | None,
        *,
        may_share: bool,
    ) -> process.ClientProcess | java_host.HostedClient: ...

    def _launch(
        self,
        plan: Publishing | Consuming,
        connection: Mapping[str, Any] | None,
        *,
        may_share: bool = False,
    ) -> process.ClientProcess | java_host.HostedClient:
        """Start a client in its own process, or in a JVM that others share."""
        part = self._new_part()
        config = connection or self._trial.cluster.connection
        if plan.library is Library.JAVA:
            config = self._trial.cluster.java_connection(config)
        started: process.ClientProcess | java_host.HostedClient
        if may_share and plan.library is Library.JAVA and java_host.can_host(plan):
            started = self._trial.cluster.java_host().start(plan, config, part)
        else:
            started = process.ClientProcess(plan, config, part)
        self._trial.callback(started.close)
        self._trial.note(f"{self.name}: started {plan.member} (pid {started.pid})")
        return started

    def _new_part(self) -> Path:
        """Return a new file of the history, for a client that writes it alone."""
        with self._lock:
            part = self._file.with_name(f"{self._file.stem}-{len(self._parts) + 1}.jsonl")
            # before others see it: they may read the history at any time
            part.touch()
            self._parts.append(part)
        return part

    def run(
        self,
        plan: Publishing | Consuming,
        connection: Mapping[str, Any] | None = None,
        timeout_s: float = PATIENCE_S,
        *,
        may_share: bool = False,
    ) -> int:
        """Run a client in its own process, or in one that it may share, and wait for it.

        Return its exit status, which is negative for the signal that killed it.
        """
        self._store(plan)
        started = self._launch(plan, connection, may_share=may_share)
        started.wait(timeout_s)
        status = self._refuse_failed(plan, started)
        started.close()
        return status

    def _refuse_failed(
        self, plan: Publishing | Consuming, ended: process.ClientProcess | java_host.HostedClient
    ) -> int:
        """Return the exit status; raise if the client failed, or died without a plan to."""
        status = ended.wait()
        self._trial.note(f"{self.name}: {plan.member} (pid {ended.pid}) ended with {status}")
        if isinstance(plan, Publishing):
            may_die = plan.dies_after is not None
        else:
            may_die = plan.dies_at is not None
        if status > 0 or (status < 0 and not may_die):
            raise errors.InstepError(
                f"a client of scenario {self.name!r} ended with {status}:\n{ended.output()}"
            )
        return status

    def _store(self, plan: Publishing | Consuming) -> None:
        with self._lock:
            self._plans.append(plan)
        self._trial.store_plan(self.name, plan)

    def check(self) -> integrity.Checked:
        """Check that the clients did what they recorded, and read the log as it is.

        A sampled history says too little for that: its experiment checks log, table or commits.
        """
        if any(plan.sampled for plan in self._plans):
            return integrity.Checked(0, [])
        senders = [plan for plan in self._plans if isinstance(plan, Publishing)]
        consumers = [plan for plan in self._plans if isinstance(plan, Consuming)]
        keyed = {one.member for one in senders if one.keyed and one.by_number is None}
        once = {one.topic for one in senders} - {one.topic for one in senders if not one.idempotent}
        after_work = {(one.group, one.member) for one in consumers if one.commits_after_work}
        at_commit = {(one.group, one.member) for one in consumers if one.continues_at_commit}
        at_end = {(one.group, one.member) for one in consumers if one.commits_at_end}
        automatic = {one.group for one in consumers if not one.records_commits}
        return integrity.check(
            self.history(),
            integrity.Expected(
                commits_after_work=after_work,
                commits_at_end=at_end,
                continues_at_commit=() if self.commits_move else at_commit,
                knows_commits={one.group for one in consumers} - automatic,
                reads_to_end={(one.group, one.member) for one in consumers if one.reads_to_end},
                routes_by_key={
                    (one.group, one.member) for one in consumers if one.pool is Pool.BY_KEY
                },
                learns_offsets={one.member for one in senders if self._learns_offsets(one)},
                sends_keys=() if self.keys_move else keyed,
                sends_once=() if self.judges_idempotence else once,
                sets_timestamps=self._senders_on_this_clock(senders),
                gaps_allowed=self.gaps_allowed,
                disk_lost=self.disk_lost,
            ),
        )

    def _senders_on_this_clock(self, senders: Sequence[Publishing]) -> set[str]:
        """Return the senders whose records have the time of this machine.

        The brokers of a user's cluster may set the timestamps by their own clocks.
        """
        if self._trial.is_on_users_cluster:
            return set()
        names = {one.member for one in senders}
        return names - {one.member for one in senders if not one.sets_timestamps}

    def _learns_offsets(self, sender: Publishing) -> bool:
        """Return whether every acknowledgement must have an offset.

        A broker that lost its disk may answer an idempotent producer that a record is a duplicate,
        and then does not know its offset. librdkafka takes that for an acknowledgement.
        """
        return sender.learns_offsets and not (self.disk_lost and sender.idempotent)

    def note(self, operation: ClientOperation) -> None:
        """Record an operation that no client in `clients/` performed."""
        self._history_writer.note(operation)

    def note_fault(self, what: str) -> None:
        """Record a fault, or its end, so that an example shows it between the operations."""
        self.note(ClientOperation(kind=OperationKind.FAULT, note=what))

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
        self.examples: list[AnomalyExample] = []
        # By claim: the choices are the same whether it runs alone or with others.
        self.random = random.Random(f"{seed}-{claim}")  # noqa: S311 - no secret
        self._cluster = cluster
        self._say = say
        self._began = time.monotonic()
        # Unbuffered: a kill loses nothing.
        self._timeline = (self.folder / "timeline.jsonl").open("ab", buffering=0)
        self._settings: dict[str, list[Any]] = {}
        self._scenarios: list[Scenario] = []
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._timeline.close)
        self._own_name = f"{PREFIX}-{uuid.uuid4().hex[:8]}-{claim}"
        self._names = 0
        self._abandoned = self._disposable = False
        self._bulk: list[tuple[int, int]] = []  # records that were sent at full speed, and stored
        self._lock = threading.Lock()

    # --- tools ---------------------------------------------------------------------------------

    @property
    def cluster(self) -> LabCluster:
        if self._cluster is None:
            raise errors.InstepError(f"{self.claim} was declared to need no brokers")
        return self._cluster

    @property
    def is_on_users_cluster(self) -> bool:
        return self._cluster is not None and self._cluster.own is None

    @contextlib.contextmanager
    def own_broker(self, properties: Mapping[str, str]) -> Iterator[None]:
        """Run the block on a broker of its own, which has these properties and ends with it."""
        shared = self._cluster
        own = broker.LocalCluster(1, properties=properties, short_lived=True)
        own.start()
        cluster = LabCluster(settings.Kafka(), own.bootstrap, own)
        self.note(f"started a broker of its own with {dict(properties)}")
        self._cluster, self._disposable = cluster, True
        try:
            yield
        finally:
            self._cluster, self._disposable = shared, False
            cluster.close()

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
        self._wait_until_served(name, partitions)
        return name

    def _wait_until_served(self, topic: str, partitions: int) -> None:
        """Wait until the leaders serve the partitions: the metadata names them a moment earlier.

        A broker may refuse the first batch of an idempotent producer in that moment, and accept the
        second one. It then rejects the first one until delivery.timeout.ms is over (KAFKA-15591).
        """

        def is_served() -> bool:
            try:
                offsets.latest(self.cluster.kafka, topic, range(partitions), committed=False)
            except errors.InstepError:
                return False
            return True

        self.wait(is_served, f"the leaders of topic {topic!r} to serve it")

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

    def scenario(
        self,
        name: str,
        *,
        keys_move: bool = False,
        commits_move: bool = False,
        judges_idempotence: bool = False,
    ) -> Scenario:
        """Return a new scenario: the workload with one thing changed.

        An experiment says so if it moves keys to other partitions, if it moves the commits of its
        groups, or if it judges itself whether idempotent senders write each record once.
        """
        scenario = Scenario(self, name)
        scenario.keys_move, scenario.commits_move = keys_move, commits_move
        scenario.judges_idempotence = judges_idempotence
        self._scenarios.append(scenario)
        self.callback(scenario.close)
        return scenario

    @contextlib.contextmanager
    def running(
        self,
        plans: Mapping[Scenario, Publishing | Consuming],
        connection: Mapping[str, Any] | None = None,
    ) -> Iterator[list[threading.Event]]:
        """Run a client for each scenario in threads; stop all of them at the end of the block.

        They are stopped before the first of them is waited for. Yield the events that stop them.
        """
        with contextlib.ExitStack() as started:
            stops = [
                started.enter_context(scenario.background(plan, connection))[1]
                for scenario, plan in plans.items()
            ]
            yield stops
            for stop in stops:
                stop.set()

    def read_topics(
        self, topics_: Mapping[Scenario, str], partitions: int = 1, *, by: str = "reader"
    ) -> None:
        """Read a topic into the history of each scenario, all at the same time."""
        self.together(
            {
                scenario.name: functools.partial(scenario.read_topic, topic, partitions, by=by)
                for scenario, topic in topics_.items()
            }
        )

    def fill(
        self,
        topic: str,
        count: int,
        size: int = 100,
        config: Mapping[str, Any] | None = None,
    ) -> float:
        """Send records at full speed, without a history; return the seconds it took.

        The time to connect, which ends with the first record, does not count. The end of the log
        says whether it has all of them: see `check_clients`.
        """
        partitions = layout.read_topic(self.cluster.kafka, topic).partitions
        with self.expect_records(topic, len(partitions), count):
            return bulk.fill(self.cluster.connection, topic, count, size, config)

    @contextlib.contextmanager
    def expect_records(
        self, topic: str, partitions: int, count: int, cluster: LabCluster | None = None
    ) -> Iterator[None]:
        """Compare the growth of a log in the block with the number of records that it sends.

        Without acknowledgements, the last records may arrive a moment later.
        """
        kafka = (cluster or self.cluster).kafka

        def end() -> int:
            found = offsets.latest(kafka, topic, range(partitions), committed=False)
            return sum(found.values())

        before = end()
        yield
        if not wait_until(lambda: end() - before >= count, PATIENCE_S):
            self.note(f"the log of {topic} has {end() - before:,} of {count:,} new records")
        self._bulk.append((count, end() - before))

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
            raise errors.InstepError(f"timed out after {patience_s:.0f} s waiting for {what}")

    def wait_for_more(self, scenarios: Iterable[Scenario], more: int) -> None:
        """Wait until each scenario has this many more acknowledged sends than now."""
        targets = {one: one.acknowledged + more for one in scenarios}
        self.wait(
            lambda: all(one.acknowledged >= count for one, count in targets.items()),
            f"{more} more acknowledged sends",
        )

    def wait_for_stable_end(
        self, topic: str, partitions: int, cluster: LabCluster | None = None
    ) -> None:
        """Wait until the ends of the partitions have not moved for a while."""
        kafka = (cluster or self.cluster).kafka
        ends, since = None, time.monotonic()

        def is_stable() -> bool:
            nonlocal ends, since
            now = offsets.latest(kafka, topic, range(partitions), committed=False)
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

    def cut(self, through: proxy.Proxy) -> None:
        """Cut all connections through a proxy, of which there must be some."""
        before = through.counts.cut_connections
        through.cut()
        cut = through.counts.cut_connections - before
        self.note(f"fault: {counted(cut, 'connection')} cut")
        if not cut:
            raise errors.InstepError(
                "no connection was cut", "the lab's own proxy is at fault, not Kafka"
            )

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

    def statement(
        self,
        statement: str,
        holds: bool | None,
        evidence: str,
        *,
        client: Library | None = None,
        on: Dependence | None = None,
    ) -> None:
        """Record whether a statement of the claim holds; None if the run could not determine it.

        With `client`, the statement is about one client library.
        """
        self._add(Role.STATEMENT, statement, holds, evidence, client, on)

    def control(self, statement: str, holds: bool | None, evidence: str) -> None:
        """Record whether a control holds, without which the rest means nothing.

        Examples: a fault was active; records are lost without the protection.
        """
        self._add(Role.CONTROL, statement, holds, evidence)

    def limit(
        self,
        statement: str,
        holds: bool | None,
        evidence: str,
        *,
        client: Library | None = None,
        on: Dependence | None = None,
    ) -> None:
        """Record whether the run showed a condition under which the claim does not hold.

        `on` says what the condition is; by default it is a setting.
        """
        self._add(Role.LIMIT, statement, holds, evidence, client, on)

    def check_clients(self) -> None:
        """Record whether the clients of all scenarios can be trusted."""
        checked = {scenario.name: scenario.check() for scenario in self._scenarios}
        faults = [f"{name}: {fault}" for name, one in checked.items() for fault in one.faults]
        operations = sum(one.operations for one in checked.values())
        if operations:
            self.control(
                integrity.CLIENTS_CHECKED, not faults, str(integrity.Checked(operations, faults))
            )
        if self._bulk:
            sent, stored = (sum(counts) for counts in zip(*self._bulk, strict=True))
            self.control(
                integrity.LOG_CHECKED,
                all(count == grown for count, grown in self._bulk),
                f"{sent:,} sent, {stored:,} in the log",
            )

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

    def example(
        self, scenario: Scenario, found: checkers.Anomalies, *, unread_by: str = ""
    ) -> None:
        """Show the first anomaly that was found in a scenario, with the operations around it.

        Only the first example of each anomaly is kept; without an anomaly this does nothing. A
        record that a group did not read is shown with what the group did at that time.
        """
        if not found or not found.examples:
            return
        record = found.examples[0]
        if any(one.title.startswith(f"{found.anomaly}:") for one in self.examples):
            return
        operations = scenario.history()
        if unread_by:
            lines = history.around_unread(operations, record, unread_by)
        else:
            # the order of a whole topic shows only among the records of all keys
            lines = history.around(operations, record, any_key=found.anomaly == checkers.UNSORTED)
        self.examples.append(AnomalyExample(f"{found.anomaly}: {record} ({scenario.name})", lines))

    def show(self, title: str, lines: Sequence[str]) -> None:
        """Show an anomaly that no history has; only the first one with this title is kept."""
        if lines and not any(one.title == title for one in self.examples):
            self.examples.append(AnomalyExample(title, list(lines)))

    def note(self, what: str) -> None:
        """Add a line to the timeline."""
        if not self._timeline.closed:
            step = TimelineStep(round(time.monotonic() - self._began, 3), what)
            self._timeline.write(msgspec.json.encode(step) + b"\n")

    def store_plan(self, scenario: str, plan: Publishing | Consuming | Measuring) -> None:
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
        if self._disposable:
            return

        def remove_unless_abandoned() -> None:
            if not (self._abandoned and self.cluster.own):
                remove()

        self.callback(remove_unless_abandoned)

    def _add(
        self,
        role: Role,
        statement: str,
        holds: bool | None,
        evidence: str,
        client: Library | None = None,
        on: Dependence | None = None,
    ) -> None:
        part = VerdictPart(role, statement, verdict.outcome(holds), evidence, str(client or ""), on)
        self.parts.append(part)
        self.note(f"{part.outcome}: {role}: {part.title}: {evidence}")

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
            try:
                consumer_groups.delete(self.cluster.kafka, name)
            except errors.SettingsError:
                # the broker removes an empty group without commits by itself
                if consumer_groups.exists(self.cluster.kafka, name):
                    raise


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
