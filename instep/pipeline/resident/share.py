"""The part of a job that one resident task does: the partitions that it reads, and their records.

What happens to the records is the matter of a subclass: a pipeline applies them to a table.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping

import msgspec

from instep import errors
from instep.document.decoding import Record
from instep.kafka.connection import Cluster
from instep.kafka.partition_reader import PartitionReader
from instep.pipeline import counts
from instep.pipeline.apply.batch import BatchOutcome
from instep.pipeline.resident.assignments import FlowKey
from instep.pipeline.resident.messages import (
    Applied,
    Assign,
    Failed,
    Finished,
    FromTask,
    Revoke,
    Revoked,
    Stopped,
)

WAIT_S = 0.25  # for the first record; an instruction is noticed after this time at the latest
REPORT_INTERVAL_S = 0.25
READ_BYTES_MAX = 32 * 1024 * 1024

Send = Callable[[FromTask], object]


class Linger:
    """How long to wait for more records before a transaction.

    A transaction costs about the same for one record as for ten. The wait is a multiple of what the
    last ones cost, so that they take a small share of the time, and it never exceeds the setting.
    If records arrive so slowly that none is expected meanwhile, there is no wait.
    """

    SHARE = 0.1  # of the time that transactions take, as long as the setting allows it
    SMOOTHING = 0.2

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._cost_s = 0.0
        self._rate = 0.0  # records per second

    def wait_s(self) -> float:
        """Return the wait after the first record."""
        wait_s = min(self._limit_s, self._cost_s / self.SHARE)
        return wait_s if self._rate * wait_s >= 1 else 0.0

    def see(self, records: int, elapsed_s: float, cost_s: float) -> None:
        """Note how many records one read had, the time since the last, and what it cost."""
        self._cost_s += (cost_s - self._cost_s) * self.SMOOTHING
        self._rate += (records / max(elapsed_s, 0.001) - self._rate) * self.SMOOTHING


class ShareSource(msgspec.Struct, frozen=True):
    """What a share reads, and how much at once."""

    topic: str
    headers: bool
    linger_s: float
    records_max: int


class Share(threading.Thread):
    """Reads the partitions that the driver assigns, until it is stopped or fails."""

    def __init__(self, key: FlowKey, source: ShareSource, send: Send) -> None:
        """Take the flow's job and epoch, what is read, and how to answer the driver."""
        super().__init__(name=f"{key[0]} share", daemon=True)
        self._key, self._source, self._send = key, source, send
        self._instructions: queue.SimpleQueue[Assign | Revoke] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._linger = Linger(source.linger_s)
        self._ends: dict[int, int] | None = None
        # The offset after the last record of each partition that was read here.
        self._read_to: dict[int, int] = {}
        self._outcomes: list[BatchOutcome] = []  # since the last report
        self._positions: dict[int, int] = {}
        self._report_due = 0.0
        self._applied_at = time.monotonic()

    # --- what a subclass does ---------------------------------------------------------------------

    @abstractmethod
    def _cluster(self) -> Cluster:
        """Return the cluster to read from."""

    @abstractmethod
    def _starts(self, partitions: Collection[int]) -> dict[int, int]:
        """Take over these partitions, and return the offsets at which they continue."""

    @abstractmethod
    def _apply(self, read: Mapping[int, list[Record]]) -> None:
        """Do what is to be done with the records; call `_note_applied` when they are committed."""

    def _settle(self, partitions: Collection[int]) -> None:
        """Wait until everything that was read from these partitions is committed."""

    def _collect(self) -> None:
        """Note what was committed meanwhile, if that happens in other threads."""

    def _has_open(self, partition: int) -> bool:  # noqa: ARG002 - nothing is, by default
        """Return whether records of this partition were read and are not committed yet."""
        return False

    def _give_up(self, partitions: Collection[int]) -> None:
        """Let go of these partitions: another task may read them."""

    def _close(self) -> None:
        """Close what the share has opened."""

    # --- instructions -----------------------------------------------------------------------------

    def instruct(self, instruction: Assign | Revoke) -> None:
        """Pass on an instruction of the driver."""
        self._instructions.put(instruction)

    def stop(self) -> None:
        """End the thread after its current transaction."""
        self._stopped.set()

    def run(self) -> None:
        """Work until stopped; report an error that ends the work."""
        try:
            self._work()
        except errors.OffsetsExpired as error:
            # The next start compares the log with the position, and names what is lost.
            self._fail(errors.StartAgain(error.what))
        except errors.InstepError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the driver must hear of every end
            self._fail(errors.InstepError(f"a task failed: {type(error).__name__}: {error}"[:500]))
        finally:
            self._close()
            self._send(Stopped(*self._key))

    def _fail(self, error: errors.InstepError) -> None:
        self._report()
        self._send(Failed(*self._key, type(error).__name__, error.what, error.remedy))

    def _work(self) -> None:
        first = self._instructions.get()
        once = isinstance(first, Assign) and first.ends is not None
        reader = PartitionReader(
            self._cluster(), self._source.topic, headers=self._source.headers, once=once
        )
        with contextlib.closing(reader):
            self._obey(reader, first)
            while not self._stopped.is_set():
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._obey(reader, self._instructions.get_nowait())
                self._cycle(reader)
            self._settle(tuple(self._read_to))
        self._report()

    def _obey(self, reader: PartitionReader, instruction: Assign | Revoke) -> None:
        if isinstance(instruction, Revoke):
            reader.remove(instruction.partitions)
            self._settle(instruction.partitions)
            self._give_up(instruction.partitions)
            for partition in instruction.partitions:
                self._read_to.pop(partition, None)
            self._report()
            self._send(Revoked(*self._key, instruction.partitions))
            return
        starts = self._starts(instruction.partitions)
        if instruction.ends is not None:
            self._ends = (self._ends or {}) | instruction.ends
            starts = self._without_finished(starts)
        self._read_to |= starts
        if starts:
            reader.add(starts)

    def _without_finished(self, starts: Mapping[int, int]) -> dict[int, int]:
        assert self._ends is not None
        left = {part: start for part, start in starts.items() if start < self._ends[part]}
        if finished := [partition for partition in starts if partition not in left]:
            self._send(Finished(*self._key, finished))
        return left

    # --- records ----------------------------------------------------------------------------------

    def _cycle(self, reader: PartitionReader) -> None:
        """Read what has arrived and apply it."""
        wait_s = REPORT_INTERVAL_S if self._positions else WAIT_S
        read = reader.read(wait_s, self._linger.wait_s(), self._source.records_max, READ_BYTES_MAX)
        if read:
            began = time.monotonic()
            self._apply(read)
            self._note_read(sum(map(len, read.values())), began)
        self._collect()
        for partition, end in reader.ended.items():
            if end > self._read_to.get(partition, end) and not self._has_open(partition):
                self._positions[partition] = end
        if self._ends is not None:
            self._finish(reader, read)
        if time.monotonic() >= self._report_due:
            self._report()

    def _note_applied(self, partition: int, next_offset: int, outcome: BatchOutcome) -> None:
        """Note what was committed, for the next report."""
        self._positions[partition] = next_offset
        self._outcomes.append(outcome)

    def _note_read(self, records: int, began: float) -> None:
        before, self._applied_at = self._applied_at, time.monotonic()
        self._linger.see(records, self._applied_at - before, self._applied_at - began)

    def _finish(self, reader: PartitionReader, read: Mapping[int, list[Record]]) -> None:
        """Report the partitions that have reached the end of a run with `--once`."""
        assert self._ends is not None
        reached = {
            partition
            for partition, records in read.items()
            if records[-1].offset >= self._ends[partition] - 1
        }
        finished = sorted((reached | reader.ended.keys()) & self._read_to.keys())
        if finished:
            reader.remove(finished)
            self._settle(finished)
            for partition in finished:
                self._read_to.pop(partition, None)
            self._report()
            self._send(Finished(*self._key, finished))

    # --- reports ----------------------------------------------------------------------------------

    def _report(self) -> None:
        if self._positions:
            self._send(Applied(*self._key, counts.total(self._outcomes), self._positions))
            self._outcomes, self._positions = [], {}
            self._report_due = time.monotonic() + REPORT_INTERVAL_S
