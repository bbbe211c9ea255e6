"""The driver's part of the resident engine: the Spark job, its tasks, and the flows they serve.

Spark starts the tasks, distributes them over the executors and starts them again if they are lost.
Each task connects to the driver, which assigns partitions to it. If a task is lost, the others get
its partitions until Spark has started it again. That is safe: two tasks that read the same
partition cannot apply a record twice, because the position is in the same transaction.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from instep import errors
from instep.pipeline import failures
from instep.pipeline.engine import Report
from instep.pipeline.resident import channel, messages, worker
from instep.pipeline.resident.assignments import FlowKey, FlowPartitions, Moves

if TYPE_CHECKING:
    from pyspark import SparkContext

PORT_SETTING = "spark.instep.port"  # for clusters whose executors reach chosen ports only
# A run has an engine for each of these kinds of jobs. Each listens on the next port.
KINDS = ("pipeline", "stream", "archive")
GATHER_S = 0.5  # wait this long for all tasks before the first one gets every partition
ALIVE_PATIENCE_S = 30.0  # a task that is silent for this long counts as lost
CORE_PATIENCE_S = 10.0  # without any task for this long, flows wait for a core
STOP_PATIENCE_S = 2.5
END_PATIENCE_S = 1.0
CHECK_INTERVAL_S = 1.0
RESTART_PAUSE_FIRST_S = 0.2
RESTART_PAUSE_MAX_S = 15.0


class ResidentEngine:
    """One job of long-running tasks, shared by all flows."""

    def __init__(
        self,
        context: SparkContext,
        kind: str,
        open_share: worker.OpenShare,
        *,
        tasks: int,
    ) -> None:
        """Start the job with this number of tasks, for flows of one kind.

        `open_share` opens the part of a flow that a task does.
        """
        self._context, self._kind, self._tasks_wanted = context, kind, tasks
        self._group = f"instep-resident-{kind}"
        # The state below is guarded by this lock.
        self._lock = threading.Condition()
        self._tasks: dict[int, _Task] = {}
        self._flows: dict[FlowKey, ResidentFlow] = {}
        self._started_at = time.monotonic()
        self._any_connected = False
        self._without_tasks_since = self._started_at
        self._numbers = itertools.count()
        self._closed = threading.Event()
        self._listener = channel.listen(self._host(), self._port())
        self._key = secrets.token_bytes(32)
        address = (self._advertised(), self._listener.getsockname()[1])
        self._job = worker.ResidentJob(address, self._key, open_share)
        self._job_thread = threading.Thread(target=self._run_jobs, name="resident job", daemon=True)
        self._threads = [
            self._job_thread,
            threading.Thread(target=self._accept, name="resident listener", daemon=True),
            threading.Thread(target=self._watch, name="resident watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def start(
        self,
        key: FlowKey,
        plan: bytes,
        partitions: Collection[int],
        *,
        ends: dict[int, int] | None,
        wake: Callable[[], None],
    ) -> ResidentFlow:
        """Start a flow of these partitions; with `ends` it ends there.

        The tasks find out themselves where to continue. `plan` is what `open_share` understands.
        """
        flow = ResidentFlow(self, key, plan, partitions, ends, next(self._numbers), wake)
        with self._lock:
            self._flows[flow.key] = flow
            self._balance()
        return flow

    def close(self) -> None:
        """End the tasks after their current transactions, and the job."""
        self._closed.set()
        with self._lock:
            for task in self._tasks.values():
                task.channel.send(messages.End())
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait of the listening thread
        self._listener.close()
        self._job_thread.join(END_PATIENCE_S)
        if self._job_thread.is_alive():
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                self._context.cancelJobGroup(self._group)

    # --- the job ----------------------------------------------------------------------------------

    def _run_jobs(self) -> None:
        """Run the job, and run it again if it ends: its tasks may fail a few times only."""
        pause_s = RESTART_PAUSE_FIRST_S
        while not self._closed.is_set():
            self._started_at, self._any_connected = time.monotonic(), False
            failure = self._run_job()
            if self._closed.is_set():
                return
            with self._lock:
                # A job whose tasks never connect would fail again and again.
                if failure is not None and not self._any_connected:
                    error = failures.read(str(failure)) or failures.unexplained(failure)
                    for flow in list(self._flows.values()):
                        self._end(flow, error)
                else:
                    pause_s = RESTART_PAUSE_FIRST_S
                for task in list(self._tasks.values()):
                    self._lose(task)
            self._closed.wait(pause_s)
            pause_s = min(pause_s * 2, RESTART_PAUSE_MAX_S)

    def _run_job(self) -> Exception | None:
        try:
            self._context.setJobGroup(
                self._group, f"resident tasks of {self._kind}s", interruptOnCancel=True
            )
            numbers = self._context.parallelize(range(self._tasks_wanted), self._tasks_wanted)
            numbers.foreachPartition(functools.partial(worker.serve, self._job))
        except Exception as error:  # noqa: BLE001 - of Spark, its JVM or a task
            return error
        return None

    # --- the tasks --------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(
                target=self._serve, args=(accepted,), name="resident task", daemon=True
            ).start()

    def _serve(self, accepted: socket.socket) -> None:
        """Listen to one task until its connection is lost."""
        try:
            one = channel.accept(accepted, self._key, messages.FROM_TASK)
            hello = one.receive(channel.HANDSHAKE_TIMEOUT_S)
        except channel.LOST:
            return  # a stranger, or a task that died
        if not isinstance(hello, messages.Hello) or self._closed.is_set():
            one.close()
            return
        task = _Task(hello.task, one)
        with self._lock:
            if earlier := self._tasks.get(task.number):
                self._lose(earlier)  # Spark has started the task again
            self._tasks[task.number] = task
            self._any_connected = True
            self._balance()
        with contextlib.suppress(EOFError):
            while (message := one.receive()) is not None:
                with self._lock:
                    task.heard_at = time.monotonic()
                    self._handle(task, message)
        with self._lock:
            self._lose(task)

    def _watch(self) -> None:
        """Balance when the first tasks have waited long enough; drop tasks that are silent."""
        while not self._closed.wait(CHECK_INTERVAL_S if self._is_gathered() else GATHER_S / 5):
            with self._lock:
                silent_since = time.monotonic() - ALIVE_PATIENCE_S
                for task in list(self._tasks.values()):
                    if task.heard_at < silent_since:
                        self._lose(task)
                self._balance()

    def _is_gathered(self) -> bool:
        return (
            len(self._tasks) >= self._tasks_wanted
            or time.monotonic() - self._started_at >= GATHER_S + self._spark_starts_s()
        )

    def _spark_starts_s(self) -> float:
        """Return the time that Spark takes to start the first task; unlimited until then."""
        if not self._tasks:
            return float("inf")
        return min(task.connected_at for task in self._tasks.values()) - self._started_at

    def _lose(self, task: _Task) -> None:
        """Take a task's partitions from it."""
        task.channel.close()
        if self._tasks.get(task.number) is task:
            del self._tasks[task.number]
            self._without_tasks_since = time.monotonic()
            for flow in list(self._flows.values()):
                flow.partitions.unassign(task.number)
                self._stopped(flow, task)
            self._balance()

    def _handle(self, task: _Task, message: messages.FromTask) -> None:
        if isinstance(message, messages.Hello | messages.Alive):
            return
        flow = self._flows.get((message.job, message.epoch))
        if flow is None:
            return
        match message:
            case messages.Applied():
                flow.reported.append(Report(message.counts, message.positions))
                flow.wake()
            case messages.Revoked():
                flow.partitions.unassign(task.number, message.partitions)
                self._balance()
            case messages.Finished():
                flow.partitions.finish(message.partitions)
                if flow.partitions.is_finished():
                    self._end(flow, None)
            case messages.Failed():
                self._end(flow, message.error())
            case messages.Stopped():
                self._stopped(flow, task)

    # --- the flows --------------------------------------------------------------------------------

    def _balance(self) -> None:
        """Tell the tasks which partitions to read now."""
        if not self._is_gathered():
            return
        numbers = sorted(self._tasks)
        for flow in self._flows.values():
            if flow.is_active():
                self._send(flow, flow.partitions.balance(numbers, flow.number))

    def _send(self, flow: ResidentFlow, moves: Moves) -> None:
        for number, partitions in moves.revoke.items():
            self._tasks[number].channel.send(messages.Revoke(*flow.key, partitions))
        for number, partitions in moves.assign.items():
            ends = flow.ends and {part: flow.ends[part] for part in partitions}
            self._tasks[number].channel.send(
                messages.Assign(*flow.key, flow.plan, partitions, ends)
            )

    def _end(self, flow: ResidentFlow, error: errors.InstepError | None) -> None:
        """End a flow: it is finished, has failed or must stop."""
        if not flow.is_active():
            return
        flow.error = error
        flow.active = False
        flow.wake()
        flow.stopping = set(self._tasks)  # one that does not know the flow answers at once
        for number in flow.stopping:
            self._tasks[number].channel.send(messages.StopFlow(*flow.key))
        self._stopped(flow, None)

    def _stopped(self, flow: ResidentFlow, task: _Task | None) -> None:
        """Note that a task no longer serves a flow that has ended."""
        if task is not None:
            flow.stopping.discard(task.number)
        if not flow.active and not flow.stopping:
            self._flows.pop(flow.key, None)
            self._lock.notify_all()

    def stop(self, flow: ResidentFlow) -> None:
        """Stop a flow, and wait for its tasks for a short time."""
        deadline = time.monotonic() + STOP_PATIENCE_S
        with self._lock:
            self._end(flow, None)
            while flow.stopping and (left_s := deadline - time.monotonic()) > 0:
                self._lock.wait(left_s)
            self._flows.pop(flow.key, None)

    def waits_for(self) -> str | None:
        """Return what all flows wait for, if no task has run for a while."""
        if self._tasks or time.monotonic() - self._without_tasks_since < CORE_PATIENCE_S:
            return None
        return f"a free core of Spark at {self._context.master}; other jobs may use all of them"

    def add_partitions(self, flow: ResidentFlow, partitions: Collection[int]) -> None:
        """Let the flow read these partitions too; a run with `--once` keeps its own."""
        if flow.ends is None:
            with self._lock:
                flow.partitions.add(partitions)
                self._balance()

    # --- the address ------------------------------------------------------------------------------

    def _host(self) -> str:
        """Return where to listen: on this machine only, unless tasks run on others."""
        if self._is_local():
            return "127.0.0.1"
        return str(self._context.getConf().get("spark.driver.bindAddress") or self._advertised())

    def _advertised(self) -> str:
        """Return the address that tasks connect to."""
        if self._is_local():
            return "127.0.0.1"
        return str(self._context.getConf().get("spark.driver.host"))

    def _port(self) -> int:
        return port_of(self._kind, int(str(self._context.getConf().get(PORT_SETTING) or 0)))

    def _is_local(self) -> bool:
        return str(self._context.master).startswith("local")


def port_of(kind: str, first: int) -> int:
    """Return the port of the engine for this kind of jobs; 0, any free one, if none is set."""
    return first + KINDS.index(kind) if first else 0


class _Task:
    """A task that is connected."""

    def __init__(self, number: int, connected: channel.Channel[messages.FromTask]) -> None:
        self.number, self.channel = number, connected
        self.connected_at = self.heard_at = time.monotonic()


class ResidentFlow:
    """One flow in the resident tasks. Its state belongs to the engine, under its lock."""

    poll_interval_s = 0.5

    def __init__(
        self,
        engine: ResidentEngine,
        key: FlowKey,
        plan: bytes,
        partitions: Collection[int],
        ends: dict[int, int] | None,
        number: int,
        wake: Callable[[], None],
    ) -> None:
        self._engine, self.wake = engine, wake
        self.key, self.plan = key, plan
        self.number, self.ends = number, ends
        self.partitions = FlowPartitions(partitions)
        self.active = True
        self.error: errors.InstepError | None = None
        self.reported: deque[Report] = deque()
        self.stopping: set[int] = set()  # tasks that have not answered Stop

    def is_active(self) -> bool:
        """Return whether it still runs."""
        return self.active

    def failure(self) -> errors.InstepError | None:
        """Return why it failed, if it did."""
        return self.error

    def waits_for(self) -> str | None:
        """Return what it waits for, if it has been unable to work for a while."""
        return self._engine.waits_for()

    def reports(self) -> Sequence[Report]:
        """Return what the tasks have reported since the last call."""
        return [self.reported.popleft() for _ in range(len(self.reported))]

    def add_partitions(self, partitions: Collection[int]) -> None:
        """Read these partitions too, if it does not read them yet."""
        self._engine.add_partitions(self, partitions)

    def stop(self) -> None:
        """Stop it after the current transactions, or after a short time."""
        self._engine.stop(self)
