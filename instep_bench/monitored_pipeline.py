"""A pipeline under watch: `instep run` in a process of its own, its commits noted by its tasks, its memory and CPU metered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from instep import errors
from instep.demo import pipeline_process
from instep.sinks.sink import Sink
from instep_bench import bench_servers, commit_log, latency_join, meters
from instep_bench.latency_join import Life, SentEvent

START_PATIENCE_S = 180.0
APPLY_PATIENCE_S = 180.0
NOTE_PATIENCE_S = 10.0
LOOK_S = 0.05
METER_S = 1.0
ROLES = ("driver", "jvm", "workers")


class MonitoredPipeline:
    """The pipeline, and what is known of its commits. Ended with the block."""

    def __init__(
        self, declared: bench_servers.BenchPipeline, folder: Path, others: dict[str, meters.Pids]
    ) -> None:
        self._notes = folder / f"{declared.name}-notes"
        self._notes.mkdir()
        self._process = pipeline_process.PipelineProcess(
            declared.config,
            declared.name,
            log=folder / f"{declared.name}.log",
            environment=commit_log.environment(self._notes),
        )
        self._declared = declared
        self._others = others
        self._stack = contextlib.ExitStack()
        self._sink: Sink | None = None
        self._began = time.monotonic()
        self.memory: dict[
            str, list[tuple[float, float]]
        ] = {}  # MB over the seconds since the beginning, by role

    def start(self) -> float:
        """Start the process; the seconds until its first commit. There must be something to commit."""
        began_ns = time.monotonic_ns()
        self._process.start()
        self._wait(
            lambda: self._first_after(began_ns) is not None, START_PATIENCE_S, "its first commit"
        )
        first_ns = self._first_after(began_ns)
        assert first_ns is not None
        return (first_ns - began_ns) / 1e9

    def kill(self) -> None:
        """Kill the driver, its JVM and its workers with SIGKILL."""
        self._process.kill()

    def stop(self) -> None:
        """End it as SIGTERM does."""
        status = self._process.stop(START_PATIENCE_S)
        self._process.close()
        if status != 0:
            raise errors.InstepError(
                f"the pipeline ended with status {status}; the end of its log:\n{self._process.tail()}"
            )

    def lives(self, sent: Iterable[SentEvent]) -> list[Life]:
        """Wait until every event is committed; the life of each. One that never is fails the benchmark."""
        events = list(sent)
        ends: dict[int, int] = {}
        for event in events:
            ends[event.partition] = max(ends.get(event.partition, 0), event.offset + 1)
        self._wait(
            lambda: self._reached(ends), APPLY_PATIENCE_S, f"the commit of {len(events):,} events"
        )
        deadline = time.monotonic() + NOTE_PATIENCE_S
        while True:  # a commit is in the ledger a moment before its note is in the file
            lives, missing = latency_join.join(events, commit_log.read(self._notes))
            if not missing:
                return lives
            if time.monotonic() > deadline:
                where = f"partition {missing[0].partition} from offset {missing[0].offset} on"
                raise errors.InstepError(
                    f"{len(missing):,} of {len(events):,} events were sent, and nobody saw their commit: {where};"
                    f" the end of the pipeline's log:\n{self._process.tail()}"
                )
            time.sleep(LOOK_S)

    def idle(self, seconds: float) -> None:
        """Let it be, and make sure that it lives on."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self._refuse_dead("being idle")
            time.sleep(min(1.0, left_s))

    @contextlib.contextmanager
    def metered(self) -> Iterator[dict[str, meters.Usage]]:
        """What each role used within the block; there when it is left."""
        used: dict[str, meters.Usage] = {}
        since = time.monotonic() - self._began
        meter = meters.Meter(
            {**{role: self._pids(role) for role in ROLES}, **self._others}, METER_S
        )
        with meter:
            yield used
        stopped = meter.stop()
        used |= {
            **meters.present(stopped),
            **{role: stopped[role] for role in ROLES},
        }  # of a pause too, so that turns agree
        for role, usage in used.items():
            self.memory.setdefault(role, []).extend(
                (round(since + one.at_s, 1), one.pss_mb) for one in usage.samples
            )

    def close(self) -> None:
        self._process.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _pids(self, role: str) -> meters.Pids:
        """Of the process that runs at the time: it may be killed and started again meanwhile."""
        return lambda: meters.spark(self._process.pid)[role]() if self._process.pid else ()

    def _first_after(self, began_ns: int) -> int | None:
        return next(
            (commit.committed_ns for commit in commit_log.read(self._notes, began_ns)), None
        )

    def _reached(self, ends: dict[int, int]) -> bool:
        if self._sink is None:
            self._sink = self._stack.enter_context(self._declared.sink())
        with self._sink.translated():
            positions = self._sink.ledger.positions()
        return all(
            partition in positions and positions[partition].next_offset >= end
            for partition, end in ends.items()
        )

    def _wait(self, reached: Callable[[], bool], patience_s: float, what: str) -> None:
        deadline = time.monotonic() + patience_s
        while not reached():
            self._refuse_dead(f"waiting for {what}")
            if time.monotonic() > deadline:
                raise errors.InstepError(
                    f"waited {patience_s:.0f} s for {what} in vain; the end of the pipeline's log:\n{self._process.tail()}"
                )
            time.sleep(LOOK_S)

    def _refuse_dead(self, when: str) -> None:
        if self._process.poll() is not None:
            raise errors.InstepError(
                f"the pipeline ended while {when}; the end of its log:\n{self._process.tail()}"
            )
