"""One run of one contestant: started on an empty table, observed through the database, checked.

All contestants are observed in the same way: when the first row appears in the table, and when the
last event of each partition has appeared. Both are cheap queries, repeated every hundredth of a
second, so that observing costs the database next to nothing.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from instep import errors
from instep.demo import pipeline_process
from instep.sinks.sink import Sink
from instep_bench import bench_servers, contestant_program, load, meters

POLL_INTERVAL_S = 0.01
POLLS_PER_CHECK = 50
PATIENCE_S = 600.0


class Contestant(abc.ABC):
    """A program that applies a topic to a table. It starts once and then receives orders."""

    name: str

    @abc.abstractmethod
    def begin(self, declared: bench_servers.BenchPipeline) -> None:
        """Start the process if necessary, begin to apply, and return at once."""

    @abc.abstractmethod
    def roles(self) -> Mapping[str, meters.Pids]:
        """Return the processes by role."""

    @abc.abstractmethod
    def check(self) -> bool:
        """Return whether the contestant reports the end of its run; raise if the run failed."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Wait until the run is over and the next one can begin."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the processes of the contestant."""


class ProgramContestant(Contestant):
    """A program of the benchmark that takes orders."""

    def __init__(self, name: str, module: str, folder: Path, *, is_spark: bool) -> None:
        self.name = name
        self._program = contestant_program.ContestantProgram(module, folder)
        self._is_spark = is_spark
        self._answer: contestant_program.OrderResult | None = None

    def begin(self, declared: bench_servers.BenchPipeline) -> None:
        if not self._program.pid:
            self._program.start()
        self._program.send(contestant_program.Order(str(declared.config), declared.name))

    def roles(self) -> Mapping[str, meters.Pids]:
        if self._is_spark:
            return meters.spark(self._program.pid)
        return {"process": meters.tree(self._program.pid)}

    def check(self) -> bool:
        if self._answer is None and self._program.has_answered():
            self._read_answer()
        self._program.check()
        return self._answer is not None

    def finish(self) -> None:
        if self._answer is None:
            self._read_answer()
        self._answer = None

    def close(self) -> None:
        self._program.close()

    def _read_answer(self) -> None:
        self._answer = self._program.receive(PATIENCE_S)
        if self._answer.error:
            raise errors.InstepError(f"{self.name} failed: {self._answer.error}")


class CommandContestant(Contestant):
    """The pipeline as users run it: one process of `instep run --once` per run."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._log = log
        self._running: pipeline_process.PipelineProcess | None = None

    def begin(self, declared: bench_servers.BenchPipeline) -> None:
        self._running = pipeline_process.PipelineProcess(
            declared.config, declared.name, "--once", log=self._log
        )
        self._running.start()

    def roles(self) -> Mapping[str, meters.Pids]:
        return meters.spark(self._running.pid) if self._running else {}

    def check(self) -> bool:
        if self._running is None:
            return False
        status = self._running.poll()
        if status:
            raise errors.InstepError(
                f"{self.name} failed; the end of its log:\n{self._running.tail()}"
            )
        return status == 0

    def finish(self) -> None:
        if self._running:
            self._running.wait(PATIENCE_S)
            self.check()

    def close(self) -> None:
        if self._running:
            self._running.close()


class ContestRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run. Times are seconds since the order, or since a cold process started."""

    first_row_s: float
    last_commit_s: float
    differences: int
    usage: dict[str, meters.Usage]


def measure(
    contestant: Contestant,
    declared: bench_servers.BenchPipeline,
    expected: load.ExpectedState,
    servers: Mapping[str, meters.Pids],
) -> ContestRun:
    """Let the contestant apply the whole load to an empty table; measure the servers as well."""
    declared.empty()
    with declared.sink() as sink:
        began = time.time()
        contestant.begin(declared)
        with meters.Meter({**contestant.roles(), **servers}) as meter:
            first_row, last_commit = _watch(contestant, sink, expected)
            # Up to the last commit: what a contestant does to end a run is not counted.
            usage = meter.stop()
        contestant.finish()
        differences = differing(sink, expected)
    return ContestRun(
        first_row_s=first_row - began,
        last_commit_s=last_commit - began,
        differences=differences,
        usage=usage,
    )


def _watch(contestant: Contestant, sink: Sink, expected: load.ExpectedState) -> tuple[float, float]:
    """Return when the first row and when the last event of every partition appeared."""
    deadline = time.monotonic() + PATIENCE_S
    first_row = 0.0
    polls = 0
    is_over = False
    any_row = f"SELECT 1 FROM {sink.table.name} LIMIT 1"  # noqa: S608 - our names
    while True:
        if not first_row and sink.connection.select(any_row):
            first_row = time.time()
        if first_row and _arrived(sink, expected.sentinels):
            return first_row, time.time()
        # The table was read once more since the contestant reported its end.
        if is_over:
            raise errors.InstepError(
                f"{contestant.name} reports that it is done, but the last events are not in the"
                " table"
            )
        if time.monotonic() > deadline:
            raise errors.InstepError(
                f"{contestant.name} has not applied everything within {PATIENCE_S:.0f} s"
            )
        polls += 1
        # Asking the contestant is expensive (Kafka Connect: a request), so do it now and then.
        if polls % POLLS_PER_CHECK == 0:
            is_over = contestant.check()
        time.sleep(POLL_INTERVAL_S)


def _arrived(sink: Sink, sentinels: Mapping[str, load.ExpectedRow]) -> bool:
    marks = ", ".join([sink.connection.placeholder] * len(sentinels))
    key = sink.table.key
    columns, table = f"{key}, version", sink.table.name
    statement = f"SELECT {columns} FROM {table} WHERE {key} IN ({marks})"  # noqa: S608 - our names
    found = dict(sink.connection.select(statement, tuple(sentinels)))
    return all(found.get(name, 0) == row.version for name, row in sentinels.items())


def differing(sink: Sink, expected: load.ExpectedState) -> int:
    """Return the number of wrong rows, including missing and unexpected documents.

    A further table has a line for each applied event.
    """
    rows = sink.connection.select(
        f"SELECT {sink.table.key}, status, version FROM {sink.table.name}"  # noqa: S608 - our names
    )
    found = {name: (status, version) for name, status, version in rows}
    wrong = sum(found.get(name) != (row.status, row.version) for name, row in expected.rows.items())
    for further in sink.further:
        count = f"SELECT count(*) FROM {further.table.name}"  # noqa: S608 - our names
        wrong += abs(sink.connection.select(count)[0][0] - expected.applied)
    return wrong + len(found.keys() - expected.rows.keys())
