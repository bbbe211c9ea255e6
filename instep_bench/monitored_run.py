"""A run under observation: `instep run` in its own process, with its commits, memory and CPU.

The tasks of the run record their commits; the benchmark samples memory and CPU.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from instep import errors
from instep.demo import pipeline_process
from instep.sinks.sink import Sink
from instep.waiting import wait_until
from instep_bench import commit_log, latency_join, meters
from instep_bench.bench_servers import BenchPipeline
from instep_bench.commit_log import CommitTimes
from instep_bench.latency_join import EventTiming, SentEvent

START_PATIENCE_S = 180.0
APPLY_PATIENCE_S = 180.0
NOTE_PATIENCE_S = 10.0
POLL_S = 0.05
METER_S = 1.0
ROLES = ("driver", "jvm", "workers")


class MonitoredRun:
    """One run of pipelines that share a settings file. The process ends with the block."""

    def __init__(
        self, pipelines: list[BenchPipeline], folder: Path, others: Mapping[str, meters.Pids]
    ) -> None:
        own = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        self._notes = own / "notes"
        self._notes.mkdir()
        self._process = pipeline_process.PipelineProcess(
            pipelines[0].config,
            *(pipeline.name for pipeline in pipelines),
            log=own / "run.log",
            environment=commit_log.environment(self._notes),
        )
        self._pipelines = pipelines
        self._others = others
        self._stack = contextlib.ExitStack()
        self._sinks: dict[str, Sink] = {}
        self._began = time.monotonic()
        # By role: seconds since the beginning, and MB.
        self.memory: dict[str, list[tuple[float, float]]] = {}

    def start(self) -> float:
        """Start the process and return the seconds until every pipeline had its first commit.

        There must be something to commit for each.
        """
        began_ns = time.monotonic_ns()
        self._process.start()
        firsts_ns: dict[str, int] = {}

        def all_have_committed() -> bool:
            for pipeline in self._pipelines:
                if pipeline.name not in firsts_ns and (found := self.commits(pipeline, began_ns)):
                    firsts_ns[pipeline.name] = found[0].committed_ns
            return len(firsts_ns) == len(self._pipelines)

        self._wait(all_have_committed, START_PATIENCE_S, "the first commit")
        return (max(firsts_ns.values()) - began_ns) / 1e9

    def kill(self) -> None:
        """Kill the driver, its JVM and its workers with SIGKILL."""
        self._process.kill()

    def stop(self) -> None:
        """Stop the process with SIGTERM."""
        status = self._process.stop(START_PATIENCE_S)
        self._process.close()
        if status != 0:
            raise errors.InstepError(
                f"the run ended with status {status}; the end of its log:\n{self._process.tail()}"
            )

    def commits(self, pipeline: BenchPipeline, since_ns: int = 0) -> list[CommitTimes]:
        """Return the recorded commits of a pipeline, by tasks that were started since then."""
        return commit_log.read(self._notes, pipeline.name, since_ns)

    def wait_for(
        self,
        pipeline: BenchPipeline,
        ends: Mapping[int, int],
        what: str,
        patience_s: float = APPLY_PATIENCE_S,
    ) -> None:
        """Wait until the ledger of a pipeline has reached these offsets by partition."""
        self._wait(lambda: self._reached(pipeline, ends), patience_s, what)

    def timings(self, pipeline: BenchPipeline, sent: Iterable[SentEvent]) -> list[EventTiming]:
        """Wait until every event is committed and return their timings; raise if one never is."""
        events = list(sent)
        ends: dict[int, int] = {}
        for event in events:
            ends[event.partition] = max(ends.get(event.partition, 0), event.offset + 1)
        self.wait_for(pipeline, ends, f"the commit of {len(events):,} events")
        timings: list[EventTiming] = []
        missing: list[SentEvent] = []

        def all_recorded() -> bool:
            nonlocal timings, missing
            timings, missing = latency_join.join(events, self.commits(pipeline))
            return not missing

        # A commit is in the ledger shortly before its line is in the file.
        if not wait_until(all_recorded, NOTE_PATIENCE_S, interval_s=POLL_S):
            where = f"partition {missing[0].partition} from offset {missing[0].offset} on"
            raise errors.InstepError(
                f"{len(missing):,} of {len(events):,} events were sent, but their commit was"
                f" not recorded: {where};"
                f" the end of the run's log:\n{self._process.tail()}"
            )
        return timings

    def idle(self, seconds: float) -> None:
        """Wait, and raise if the run ends meanwhile."""
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
        # Keep all of the run's roles, so that their samples stay aligned while it is down.
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
        """Return a role's current processes: the run may be restarted meanwhile."""
        return lambda: meters.spark(self._process.pid)[role]() if self._process.pid else ()

    def _reached(self, pipeline: BenchPipeline, ends: Mapping[int, int]) -> bool:
        if pipeline.name not in self._sinks:
            self._sinks[pipeline.name] = self._stack.enter_context(pipeline.sink())
        sink = self._sinks[pipeline.name]
        with sink.translated():
            positions = sink.ledger.positions()
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
                f" the end of the run's log:\n{self._process.tail()}"
            )

    def _refuse_dead(self, when: str) -> None:
        if self._process.poll() is not None:
            raise errors.InstepError(
                f"the run ended while {when}; the end of its log:\n{self._process.tail()}"
            )
