"""A pipeline under observation: `instep run` in its own process, with its commits, memory and CPU.

The tasks of the pipeline record their commits; the benchmark samples memory and CPU.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

from instep import errors
from instep.demo import pipeline_process
from instep.sinks.sink import Sink
from instep.waiting import wait_until
from instep_bench import bench_servers, commit_log, latency_join, meters
from instep_bench.latency_join import EventTiming, SentEvent

START_PATIENCE_S = 180.0
APPLY_PATIENCE_S = 180.0
NOTE_PATIENCE_S = 10.0
POLL_S = 0.05
METER_S = 1.0
ROLES = ("driver", "jvm", "workers")


class MonitoredPipeline:
    """The pipeline and its recorded commits. The process ends with the block."""

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
        # By role: seconds since the beginning, and MB.
        self.memory: dict[str, list[tuple[float, float]]] = {}

    def start(self) -> float:
        """Start the process and return the seconds until its first commit.

        There must be something to commit.
        """
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
        """Stop the process with SIGTERM."""
        status = self._process.stop(START_PATIENCE_S)
        self._process.close()
        if status != 0:
            raise errors.InstepError(
                f"the pipeline ended with status {status};"
                f" the end of its log:\n{self._process.tail()}"
            )

    def timings(self, sent: Iterable[SentEvent]) -> list[EventTiming]:
        """Wait until every event is committed and return their timings; raise if one never is."""
        events = list(sent)
        ends: dict[int, int] = {}
        for event in events:
            ends[event.partition] = max(ends.get(event.partition, 0), event.offset + 1)
        self._wait(
            lambda: self._reached(ends), APPLY_PATIENCE_S, f"the commit of {len(events):,} events"
        )
        timings: list[EventTiming] = []
        missing: list[SentEvent] = []

        def all_recorded() -> bool:
            nonlocal timings, missing
            timings, missing = latency_join.join(events, commit_log.read(self._notes))
            return not missing

        # A commit is in the ledger shortly before its line is in the file.
        if not wait_until(all_recorded, NOTE_PATIENCE_S, interval_s=POLL_S):
            where = f"partition {missing[0].partition} from offset {missing[0].offset} on"
            raise errors.InstepError(
                f"{len(missing):,} of {len(events):,} events were sent, but their commit was"
                f" not recorded: {where};"
                f" the end of the pipeline's log:\n{self._process.tail()}"
            )
        return timings

    def idle(self, seconds: float) -> None:
        """Wait, and raise if the pipeline ends meanwhile."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self._refuse_dead("being idle")
            time.sleep(min(1.0, left_s))

    @contextlib.contextmanager
    def metered(self) -> Iterator[dict[str, meters.Usage]]:
        """Measure what each role uses within the block; the result is filled in at its end."""
        used: dict[str, meters.Usage] = {}
        since = time.monotonic() - self._began
        meter = meters.Meter(
            {**{role: self._pids(role) for role in ROLES}, **self._others}, METER_S
        )
        with meter:
            yield used
        stopped = meter.stop()
        # Keep all of the pipeline's roles, so that their samples stay aligned while it is down.
        used |= {**meters.present(stopped), **{role: stopped[role] for role in ROLES}}
        for role, usage in used.items():
            self.memory.setdefault(role, []).extend(
                (round(since + one.at_s, 1), one.pss_mb) for one in usage.samples
            )

    def close(self) -> None:
        self._process.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pids(self, role: str) -> meters.Pids:
        """Return a role's processes of the current run: the pipeline may be restarted meanwhile."""
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
        def is_reached() -> bool:
            if reached():
                return True
            self._refuse_dead(f"waiting for {what}")
            return False

        if not wait_until(is_reached, patience_s, interval_s=POLL_S):
            raise errors.InstepError(
                f"{what} did not happen within {patience_s:.0f} s;"
                f" the end of the pipeline's log:\n{self._process.tail()}"
            )

    def _refuse_dead(self, when: str) -> None:
        if self._process.poll() is not None:
            raise errors.InstepError(
                f"the pipeline ended while {when}; the end of its log:\n{self._process.tail()}"
            )
