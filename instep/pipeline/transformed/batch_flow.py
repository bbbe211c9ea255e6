"""A flow that works in batches: one Spark job for each, with a plan that is made once.

Planning a query costs Spark about 100 ms of CPU time. Structured Streaming plans each batch;
here the plan stays, and only the ranges that its tasks read change. The position is kept where the
results go, so there is no checkpoint.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from instep import errors
from instep.document.decoding import Record, record_of
from instep.kafka import offsets, reading
from instep.kafka.connection import Cluster
from instep.pipeline import failures
from instep.pipeline.engine import Report
from instep.pipeline.transformed.batches import Range
from instep.pipeline.transformed.transformer import BYTES_MAX, RECORDS_MAX, size_of

IDLE_S = 0.1  # between two looks for new records
STOP_PATIENCE_S = 10.0


class BatchFlow:
    """One flow, in a thread of its own. A subclass says what happens to a batch."""

    poll_interval_s = 0.1

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        name: str,
        topic: str,
        next_offsets: Mapping[int, int],
        *,
        batch_rows_max: int,
        once: bool,
        wake: Callable[[], None],
    ) -> None:
        """Take where each partition begins; `wake` is called when there is something to see."""
        self._cluster, self._name, self._topic = cluster, name, topic
        self._rows_max, self._once, self._wake = batch_rows_max, once, wake
        self._context = spark.sparkContext
        self._offsets = dict(next_offsets)
        self._tasks = max(1, min(self._context.defaultParallelism, len(self._offsets)))
        self._group = f"instep-{uuid.uuid4().hex}"
        self._stopped = threading.Event()
        self._error: errors.InstepError | None = None
        self._reports: list[Report] = []
        self._lock = threading.Lock()  # of what the runner's thread shares: reports and offsets
        self._thread = threading.Thread(target=self._run, name=f"{name} batches", daemon=True)

    # --- what a subclass does ---------------------------------------------------------------------

    @abstractmethod
    def _apply(self, ranges: Sequence[Range], ends: Mapping[int, int]) -> Mapping[int, int]:
        """Work on the records of these ranges; return the offsets up to which they were read."""

    def _open(self) -> None:
        """Prepare the work, before the first batch."""

    def _settle(self, ends: Mapping[int, int]) -> None:
        """Wait until everything that was read is committed."""

    def _close(self) -> None:
        """Close what the flow has opened."""

    # --- the flow ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_active(self) -> bool:
        """Return whether it still runs."""
        return self._thread.is_alive()

    def failure(self) -> errors.InstepError | None:
        """Return why it ended; None if it reached the end of the log or was stopped."""
        return self._error

    def waits_for(self) -> str | None:
        """Return None: a job that waits for a core does not say so."""
        return None

    def reports(self) -> list[Report]:
        """Return the reports that are new since the last call."""
        with self._lock:
            reports, self._reports = self._reports, []
        return reports

    def add_partitions(self, partitions: Collection[int]) -> None:
        """Read these partitions too, from their start."""
        with self._lock:
            self._offsets = dict.fromkeys(partitions, 0) | self._offsets

    def stop(self) -> None:
        """Stop it. What is not committed is rolled back."""
        self._stopped.set()
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            self._context.cancelJobGroup(self._group)
        if self._thread.ident and self._thread is not threading.current_thread():
            self._thread.join(STOP_PATIENCE_S)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, self._name)
            self._context.setLocalProperty("spark.scheduler.pool", self._name)
            self._open()
            self._work()
        except Exception as error:  # noqa: BLE001 - the runner reports it
            self._note_failure(error)
        finally:
            self._close()
            self._wake()

    def _note_failure(self, failure: Exception) -> None:
        """Keep why the flow ended, unless it was stopped: then an error is a consequence."""
        if self._stopped.is_set():
            return
        if isinstance(failure, errors.InstepError):
            error = failure
        else:
            error = failures.read(str(failure)) or failures.unexplained(failure)
        if isinstance(error, errors.OffsetsExpired):
            # The next start compares the log with the position, and names what is lost.
            error = errors.StartAgain(error.what)
        self._error = error

    def _work(self) -> None:
        last = self._ends() if self._once else None
        while not self._stopped.is_set():
            ends = last or self._ends()
            ranges = self._ranges(ends)
            if ranges:
                reached = self._apply(ranges, ends)
                with self._lock:
                    self._offsets = self._offsets | dict(reached)
                continue
            self._settle(ends)
            if last is not None:
                return
            self._stopped.wait(IDLE_S)

    def _report(
        self, counted: dict[str, int], positions: Mapping[int, int], ends: Mapping[int, int]
    ) -> None:
        """Report what was committed, and the position of each partition."""
        report = Report(counted, dict(positions), dict(ends))
        with self._lock:
            self._reports.append(report)
        self._wake()

    def _ends(self) -> dict[int, int]:
        return offsets.latest(self._cluster, self._topic, list(self._offsets))

    def _ranges(self, ends: Mapping[int, int]) -> list[Range]:
        """Return what the next batch reads of each partition: an equal share at most."""
        offsets_now = self._offsets  # replaced as a whole when a partition is added
        waiting = [p for p, start in offsets_now.items() if start < ends.get(p, 0)]
        share = max(1, self._rows_max // max(1, len(waiting)))
        return [(p, s := offsets_now[p], min(ends[p], s + share)) for p in sorted(waiting)]

    def _chunks(self, partition: int, start: int, end: int) -> Iterator[list[Record]]:
        """Yield the records of a range in chunks, each small enough for one job.

        A chunk is read when the one before it is done, so that only one is in memory. Its reader is
        given back before: to find the records of a chunk that fail may take minutes.
        """
        while chunk := self._chunk(partition, start, end):
            yield chunk
            start = chunk[-1].offset + 1

    def _chunk(self, partition: int, start: int, end: int) -> list[Record]:
        """Return the first records of a range."""
        if self._stopped.is_set():
            raise errors.StartAgain(f"{self._name} was stopped")
        chunk: list[Record] = []
        size = 0
        ranges = {partition: (start, end)}
        with contextlib.closing(
            reading.read(self._cluster, self._topic, ranges, whole=True)
        ) as found:
            for one in found:
                chunk.append(record_of(one))
                size += size_of(chunk[-1])
                if len(chunk) >= RECORDS_MAX or size >= BYTES_MAX:
                    break
        return chunk
