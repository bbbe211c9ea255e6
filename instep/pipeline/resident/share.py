"""One pipeline's share of a resident task: a thread that reads partitions and applies records.

It has its own Kafka client and its own connection to the target. So a target that is slow or
unreachable holds up no other pipeline of the task.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from instep import errors
from instep.document.decoding import Record
from instep.kafka import offsets
from instep.kafka.partition_reader import PartitionReader
from instep.pipeline import counts
from instep.pipeline.applier import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    Applier,
    TaskPlan,
    cluster_of,
)
from instep.pipeline.apply.batch import BatchOutcome, ProbeEvent, find_probe
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
from instep.sinks.ledger import fenced

WAIT_S = 0.25  # for the first record; an instruction is noticed after this time at the latest
REPORT_INTERVAL_S = 0.25
# Of all partitions together. In a large batch, several events of a document become one write.
READ_RECORDS_MAX = 160_000
# Up to this number, the records of several partitions are applied in one transaction. With more,
# the rows cost more than the transactions.
TOGETHER_RECORDS_MAX = 1_000


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


class PipelineShare(threading.Thread):
    """Reads the partitions that the driver assigns, until it is stopped or fails."""

    def __init__(self, plan: TaskPlan, send: Callable[[FromTask], object]) -> None:
        super().__init__(name=f"{plan.target.pipeline} share", daemon=True)
        self._plan, self._send = plan, send
        self._key = (plan.target.pipeline, plan.writer.epoch)
        self._instructions: queue.SimpleQueue[Assign | Revoke] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._applier = Applier(plan, self._stopped)
        self._linger = Linger(plan.pipeline.linger_ms / 1000)
        self._probe = find_probe()
        self._ends: dict[int, int] | None = None
        # The offset after the last record of each partition that was read here.
        self._read_to: dict[int, int] = {}
        self._outcomes: list[BatchOutcome] = []  # since the last report
        self._positions: dict[int, int] = {}
        self._report_due = 0.0
        self._applied_at = time.monotonic()

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
            # The next start compares the log with the ledger, and names what is lost.
            self._fail(errors.StartAgain(error.what))
        except errors.InstepError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the driver must hear of every end
            self._fail(errors.InstepError(f"a task failed: {type(error).__name__}: {error}"[:500]))
        finally:
            self._applier.close()
            self._send(Stopped(*self._key))

    def _fail(self, error: errors.InstepError) -> None:
        self._report()
        self._send(Failed(*self._key, type(error).__name__, error.what, error.remedy))

    def _work(self) -> None:
        first = self._instructions.get()
        once = isinstance(first, Assign) and first.ends is not None
        reader = PartitionReader(
            cluster_of(self._plan),
            self._plan.target.topic,
            headers=self._plan.target.mapping.reads_headers,
            once=once,
        )
        with contextlib.closing(reader):
            self._obey(reader, first)
            while not self._stopped.is_set():
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._obey(reader, self._instructions.get_nowait())
                self._cycle(reader)
        self._report()

    # --- orders -----------------------------------------------------------------------------------

    def _obey(self, reader: PartitionReader, instruction: Assign | Revoke) -> None:
        if isinstance(instruction, Revoke):
            reader.remove(instruction.partitions)
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

    def _starts(self, partitions: list[int]) -> dict[int, int]:
        """Return the ledger's offsets; a partition that is not in it yet begins at its first."""
        ledger = self._applier.positions()
        epoch = self._plan.writer.epoch
        newest = max((position.epoch for position in ledger.values()), default=0)
        if newest > epoch:
            raise fenced(self._plan.target.pipeline, newest, epoch)
        new = [partition for partition in partitions if partition not in ledger]
        firsts: Mapping[int, int] = {}
        if new:
            firsts = offsets.earliest(cluster_of(self._plan), self._plan.target.topic, new)
        return {
            partition: ledger[partition].next_offset if partition in ledger else firsts[partition]
            for partition in partitions
        }

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
        limit = min(READ_RECORDS_MAX, self._plan.pipeline.batch_rows_max)
        read = reader.read(wait_s, self._linger.wait_s(), limit, BATCH_BYTES_MAX)
        if read:
            self._probe(ProbeEvent(self._plan.target.pipeline, 0))
            began = time.monotonic()
            self._apply(read)
            self._note_read(sum(map(len, read.values())), began)
        for partition, end in reader.ended.items():
            if end > self._read_to.get(partition, end):
                self._positions[partition] = end
        if self._ends is not None:
            self._finish(reader, read)
        if time.monotonic() >= self._report_due:
            self._report()

    def _apply(self, read: Mapping[int, list[Record]]) -> None:
        """Apply what was read: a few records in one transaction, more in one per partition."""
        # Requested after all these records were read, so one answer serves them all.
        same_topic = self._applier.same_topic()
        few = len(read) > 1 and sum(map(len, read.values())) <= TOGETHER_RECORDS_MAX
        if few and (
            outcomes := self._applier.apply_together(
                read, same_topic=same_topic, log_holds=self._log_holds
            )
        ):
            for partition, outcome in outcomes.items():
                self._note_applied(partition, read[partition], outcome)
            return
        for partition, records in read.items():
            for start in range(0, len(records), BATCH_RECORDS_MAX):
                batch = records[start : start + BATCH_RECORDS_MAX]
                outcome = self._applier.apply(
                    partition, batch, same_topic=same_topic, log_holds=self._log_holds
                )
                self._note_applied(partition, batch, outcome)

    def _note_applied(
        self, partition: int, records: Sequence[Record], outcome: BatchOutcome
    ) -> None:
        self._read_to[partition] = self._positions[partition] = records[-1].offset + 1
        self._outcomes.append(outcome)

    def _note_read(self, records: int, began: float) -> None:
        before, self._applied_at = self._applied_at, time.monotonic()
        self._linger.see(records, self._applied_at - before, self._applied_at - began)

    def _log_holds(self, partition: int, start: int, end: int) -> bool:
        """Return whether the log may have a committed record between two offsets.

        What was read here from the ledger's offset on is known: offsets without a record are
        markers, aborted, or compacted. Only a ledger that was moved back leaves a doubt.
        """
        return start < self._read_to.get(partition, end)

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
