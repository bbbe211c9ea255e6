"""One run of an experiment: its clients, its faults, what it saw.

A trial is divided into cases, each with a history of its own: the same workload with one thing changed. Everything that a trial
makes in the cluster is named after the run, written down before it is made, and removed afterwards.
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
from instep.local import processes
from instep.report.tables import Cell, Plot, PlotKind, ReportTable, Series
from instep_lab import history, store, verdict
from instep_lab.claim import Tier
from instep_lab.clients import consuming, process, publishing
from instep_lab.clients.consuming import CommitMode, Consuming
from instep_lab.clients.publishing import Publishing
from instep_lab.cluster_pool import LabCluster
from instep_lab.history import HistoryWriter, Operation, OperationKind
from instep_lab.verdict import Role, VerdictPart

PREFIX = "instep-lab"
PATIENCE_S = 60.0
JOIN_S = 90.0
STILL_S = 0.5

Number = TypeVar("Number", int, float)
Made = TypeVar("Made")


class TimelineStep(msgspec.Struct, frozen=True):
    """A line of the timeline: seconds since the trial began, and what was done, to what, with what proof."""

    at_s: float
    what: str


class Scenario:
    """One case of a trial: a name, its history, and the clients that write it."""

    def __init__(self, trial: Trial, name: str) -> None:
        self.name = name
        self._trial = trial
        self._file = trial.folder / f"history-{store.file_name(name)}.jsonl"
        self._pieces: list[Path] = []
        self._notebook = HistoryWriter(self._file)

    def publish(self, plan: Publishing, connection: Mapping[str, Any] | None = None) -> None:
        """Publish in this process, to the end."""
        self._trial.remember(self.name, plan)
        publishing.publish(plan, connection or self._trial.ground.connection, self._notebook)

    def consume(
        self, plan: Consuming, connection: Mapping[str, Any] | None = None
    ) -> consuming.Counted:
        """Consume in this process, to the end: the plan says where that is."""
        self._trial.remember(self.name, plan)
        counted = consuming.Counted()
        consuming.consume(
            plan, connection or self._trial.ground.connection, self._notebook, counted=counted
        )
        return counted

    def read_whole(
        self,
        topic: str,
        partitions: int = 1,
        *,
        by: str = "reader",
        config: Mapping[str, Any] | None = None,
    ) -> consuming.Counted:
        """Read what the topic holds, once its end stands still, for the history; no group has a part in it.

        A send without an answer may still be on its way, and a new leader's high watermark behind what it has.
        """
        self._trial.wait_still(topic, partitions)
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
        """How many sends of clients in this process were acknowledged so far."""
        return self._notebook.count(OperationKind.SEND)

    @contextlib.contextmanager
    def beside(
        self, plan: Publishing | Consuming, connection: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[consuming.Counted, threading.Event]]:
        """A client in a thread, told to stop when the block is left, and waited for."""
        self._trial.remember(self.name, plan)
        stop, counted, failures = threading.Event(), consuming.Counted(), list[BaseException]()

        def run() -> None:
            try:
                reach = connection or self._trial.ground.connection
                if isinstance(plan, Publishing):
                    publishing.publish(plan, reach, self._notebook, stop)
                else:
                    consuming.consume(plan, reach, self._notebook, stop, counted)
            except BaseException as failure:  # noqa: BLE001 - raised again where it can be seen
                failures.append(failure)

        thread = threading.Thread(target=run, name=plan.member, daemon=True)
        thread.start()
        try:
            yield counted, stop
        except SystemExit:
            # the process ends, and its threads with it: they may be waiting for answers of a broker that is frozen
            stop.set()
            raise
        except Exception:
            self._let_end(thread, stop, failures)
            raise
        self._let_end(thread, stop, failures)

    def _let_end(
        self, thread: threading.Thread, stop: threading.Event, failures: Sequence[BaseException]
    ) -> None:
        """Raise the client's own failure, also where somebody waited in vain for it: it is why."""
        stop.set()
        thread.join(JOIN_S)
        if failures:
            raise failures[0]
        if thread.is_alive():
            raise errors.InstepError(
                f"{thread.name} of case {self.name!r} did not end within {JOIN_S:.0f} s"
            )

    def start(
        self, plan: Publishing | Consuming, connection: Mapping[str, Any] | None = None
    ) -> process.ClientProcess:
        """A client in a process of its own. The trial ends it, if nobody did before."""
        self._trial.remember(self.name, plan)
        piece = self._file.with_name(f"{self._file.stem}-{len(self._pieces) + 1}.jsonl")
        self._pieces.append(piece)
        started = process.ClientProcess(plan, connection or self._trial.ground.connection, piece)
        self._trial.callback(started.close)
        self._trial.note(f"{self.name}: started {plan.member} (pid {started.pid})")
        return started

    def run(
        self,
        plan: Publishing | Consuming,
        connection: Mapping[str, Any] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> int:
        """A client in a process of its own, waited for; its exit status, negative for the signal that killed it."""
        started = self.start(plan, connection)
        status = started.wait(timeout_s)
        started.close()
        self._trial.note(f"{self.name}: {plan.member} (pid {started.pid}) ended with {status}")
        meant_to_die = (
            plan.dies_after if isinstance(plan, Publishing) else plan.dies_at
        ) is not None
        if status > 0 or (status < 0 and not meant_to_die):
            raise errors.InstepError(
                f"a client of case {self.name!r} ended with {status}:\n{started.said()}"
            )
        return status

    def note(self, operation: Operation) -> None:
        """For what is done by no client of `clients/`."""
        self._notebook.note(operation)

    def history(self) -> list[Operation]:
        """Everything that the case's clients did so far, in the order of time."""
        return history.joined(history.read(file) for file in (self._file, *self._pieces))

    def close(self) -> None:
        self._notebook.close()


class Trial:
    """What an experiment works with, and where it puts down what it saw."""

    def __init__(
        self,
        claim: str,
        *,
        run: Path,
        tier: Tier,
        seed: int,
        ground: LabCluster | None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.claim, self.tier, self.seed, self.run = claim, tier, seed, run
        self.folder = run / claim
        self.folder.mkdir(parents=True, exist_ok=True)
        self.parts: list[VerdictPart] = []
        self.tables: list[ReportTable] = []
        self.plots: list[Plot] = []
        self.random = random.Random(f"{seed}-{claim}")  # noqa: S311 - a repeatable trial, nothing secret
        self._ground = ground
        self._say = say
        self._began = time.monotonic()
        self._timeline = (self.folder / "timeline.jsonl").open("ab", buffering=0)
        self._settings: dict[str, list[Any]] = {}
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._timeline.close)
        self._own_name = f"{PREFIX}-{uuid.uuid4().hex[:8]}-{claim}"
        self._made = 0
        self._abandoned = False
        self._lock = threading.Lock()

    # --- what it works with ----------------------------------------------------------------------------

    @property
    def ground(self) -> LabCluster:
        if self._ground is None:
            raise errors.InstepError(f"{self.claim} was said to need no brokers")
        return self._ground

    def scaled(self, quick: Number, full: Number) -> Number:
        """The size of something, by the tier."""
        return quick if self.tier is Tier.QUICK else full

    def rounds(self, quick: int = 1, full: int = 5) -> Iterator[int]:
        """Repetitions, said while they go on."""
        count = self.scaled(quick, full)
        for number in range(count):
            if count > 1:
                self._say(f"{self.claim}: round {number + 1} of {count}")
            yield number

    def together(self, cases: Mapping[str, Callable[[], Made]]) -> dict[str, Made]:
        """Run cases at the same time, those that mostly wait; what each returns, by its name."""
        with futures.ThreadPoolExecutor(len(cases)) as pool:
            started = {name: pool.submit(case) for name, case in cases.items()}
            return {name: case.result() for name, case in started.items()}

    def topic(
        self,
        partitions: int = 1,
        replicas: int | None = None,
        *,
        on: Sequence[int] | None = None,
        **config: str,
    ) -> str:
        """A topic of its own; settings with underscores for dots. On these brokers, if named, of which the first leads."""
        name = self._named("topic")
        settings_ = {key.replace("_", "."): value for key, value in config.items()}
        topics.create(self.ground.cluster, name, partitions, replicas, settings_, on=on)
        self._to_remove(lambda: topics.delete(self.ground.cluster, name))
        return name

    def group(self) -> str:
        """The name of a group of its own."""
        name = self._named("group")
        self._to_remove(lambda: self._forget_group(name))
        return name

    def name(self, kind: str) -> str:
        """A name that nobody has, for something that the caller removes himself, such as a transactional id."""
        with self._lock:
            self._made += 1
            return f"{self._own_name}-{kind}-{self._made}"

    def case(self, name: str) -> Scenario:
        made = Scenario(self, name)
        self.callback(made.close)
        return made

    def callback(self, clean_up: Callable[[], object]) -> None:
        """Do this when the trial ends, the last first; whatever fails then leaves the rest to be done."""

        def quietly() -> None:
            try:
                clean_up()
            except errors.InstepError as error:
                self.note(f"could not clean up: {error}")
                self._say(f"{self.claim}: could not clean up: {error.what}")

        self._stack.callback(quietly)

    def wait(self, reached: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Return once it is reached; the trial is inconclusive when it is not for a long time."""
        deadline = time.monotonic() + patience_s
        while not reached():
            if time.monotonic() > deadline:
                raise errors.InstepError(
                    f"waited {patience_s:.0f} s for {what}, which did not happen"
                )
            time.sleep(0.02)

    def wait_for_more(self, cases: Iterable[Scenario], more: int) -> None:
        """Return when each case has so many more acknowledged sends than now."""
        wanted = {case: case.acknowledged + more for case in cases}
        self.wait(
            lambda: all(case.acknowledged >= count for case, count in wanted.items()),
            f"{more} more acknowledged sends",
        )

    def wait_still(self, topic: str, partitions: int) -> None:
        """Return when the ends of the partitions have not moved for a while."""
        ends, since = None, time.monotonic()

        def stands() -> bool:
            nonlocal ends, since
            found = offsets.latest(self.ground.cluster, topic, range(partitions), committed=False)
            if found != ends:
                ends, since = found, time.monotonic()
            return time.monotonic() - since > STILL_S

        self.wait(stands, f"the end of topic {topic!r} to stand still")

    # --- faults, each with its proof -------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """kill -9 a broker of the lab's own."""
        target = self.ground.node(node)
        pid = target.pid
        target.kill()
        self.note(
            f"fault: kill -9 of broker {node} (pid {pid}): {'still alive' if target.alive else 'gone'}"
        )
        if target.alive:
            raise errors.InstepError(f"broker {node} survived kill -9")

    def stop(self, node: int) -> None:
        """End a broker of the lab's own as an operator does: it hands over what it leads."""
        self.ground.node(node).stop()
        self.note(
            f"broker {node} stopped: {'still alive' if self.ground.node(node).alive else 'gone'}"
        )

    def freeze(self, node: int) -> None:
        """SIGSTOP a broker of the lab's own: its connections stay open and nothing answers."""
        target = self.ground.node(node)
        target.pause()
        self.wait(lambda: processes.paused(target.pid), f"broker {node} to stop", 10)
        self.note(f"fault: SIGSTOP of broker {node} (pid {target.pid}): state T seen")

    def thaw(self, node: int) -> None:
        self.ground.node(node).resume()
        self.note(f"SIGCONT of broker {node}")

    def restart(self, node: int) -> None:
        """Start a broker again on its data, and wait until it answers."""
        self.ground.node(node).start()
        self.note(f"broker {node} started again (pid {self.ground.node(node).pid})")

    def wipe(self, node: int) -> None:
        """Remove the data of a dead broker of the lab's own: its disk is lost, and it starts again on an empty one."""
        target = self.ground.node(node)
        if target.alive:
            raise errors.InstepError(f"broker {node} is alive: its data stays")
        shutil.rmtree(target.root / "data")
        self.note(f"fault: the data of broker {node} is removed")

    # --- what it saw -----------------------------------------------------------------------------------

    def told(self, statement: str, holds: bool | None, evidence: str) -> None:
        """What the claim says; None when the run could not find out."""
        self._add(Role.TOLD, statement, holds, evidence)

    def control(self, statement: str, holds: bool | None, evidence: str) -> None:
        """What must be so for the rest to mean anything: a fault that was active, a loss without the protection."""
        self._add(Role.CONTROL, statement, holds, evidence)

    def limit(self, statement: str, holds: bool | None, evidence: str) -> None:
        """A condition under which the claim does not hold, when the run showed so."""
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
        made = [Series(name, list(points)) for name, points in series.items()]
        self.plots.append(Plot(title, x, y, made, kind, log_x, log_y))

    def note(self, what: str) -> None:
        """A line of the timeline."""
        if not self._timeline.closed:
            step = TimelineStep(round(time.monotonic() - self._began, 3), what)
            self._timeline.write(msgspec.json.encode(step) + b"\n")

    def remember(self, case: str, plan: Publishing | Consuming) -> None:
        """Keep what was run; the connection, which may hold a password, is no part of it."""
        with self._lock:
            self._settings.setdefault(case, []).append(msgspec.to_builtins(plan))
            store.write_settings(self.folder, self._settings)

    def close(self) -> None:
        """Remove what the trial made in the cluster, and end what it started."""
        self._stack.close()

    def abandon(self) -> None:
        """The same in haste: what is on brokers of our own, some of them dead perhaps, goes with them."""
        self._abandoned = True
        self.close()

    def _to_remove(self, remove: Callable[[], object]) -> None:
        """Take this out of the cluster when the trial ends."""
        self.callback(lambda: None if self._abandoned and self.ground.own else remove())

    def _add(self, role: Role, statement: str, holds: bool | None, evidence: str) -> None:
        part = VerdictPart(role, statement, verdict.outcome(holds), evidence)
        self.parts.append(part)
        self.note(f"{part.outcome}: {role}: {statement}: {evidence}")

    def _named(self, kind: str) -> str:
        name = self.name(kind)
        store.note_made(self.run, store.Made(kind, name))
        return name

    def _forget_group(self, name: str) -> None:
        if self.ground.own is None:
            # one that went without a word is a member until its session is over; brokers of our own go anyway
            self.wait(
                lambda: not consumer_groups.members(self.ground.cluster, name),
                f"the members of group {name!r} to be gone",
            )
        if consumer_groups.exists(self.ground.cluster, name):
            consumer_groups.delete(self.ground.cluster, name)


def spread(values: Sequence[float], unit: str = "", digits: int = 1) -> str:
    """The median, with the least and the most of several."""
    if not values:
        return "none"
    middle = f"{statistics.median(values):,.{digits}f}{unit}"
    return (
        middle
        if len(values) == 1
        else f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f} in {len(values)})"
    )
