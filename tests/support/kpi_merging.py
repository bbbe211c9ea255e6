"""Runs of a KPI without Spark: a log in memory, and the real transaction on a real database."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from instep import sinks
from instep.document.decoding import Decoder, Record
from instep.kpis import reading
from instep.kpis.definition import KpiDefinition
from instep.kpis.merge import KpiMerge
from instep.kpis.reading import ReadRecords
from instep.pipeline.apply.batch import ProbeEvent, Writer
from instep.sinks import inspection, preparation
from instep.sinks.target import Position
from tests.support.kpis import NAME, KpiRecord

CLUSTER, TOPIC_ID = "cluster", "topic-id"


class LogReader:
    """Reads a log in batches, as the tasks of a KPI do."""

    def __init__(self, definition: KpiDefinition, records: Sequence[KpiRecord]) -> None:
        self._decoder = Decoder(definition.event)
        self._partitions: dict[int, list[Record]] = {0: [], 1: []}
        for one in records:
            of_partition = self._partitions[one.partition]
            offset = len(of_partition)
            key = one.document.encode()
            of_partition.append(Record(offset, one.timestamp_ms, key, one.value, one.partition))

    def batch(self, starts: dict[int, int], sizes: dict[int, int]) -> list[ReadRecords]:
        """Return the next records of each partition."""
        read = []
        for partition, records in self._partitions.items():
            at = starts[partition]
            if some := records[at : at + sizes[partition]]:
                read.append(reading.read(self._decoder, partition, some))
        return read


class KpiRun:
    """One run of a KPI on a database, without Spark."""

    def __init__(
        self, definition: KpiDefinition, probe: Callable[[ProbeEvent], None] = lambda _: None
    ) -> None:
        preparation.prepare(definition.table, is_kpi=True)
        self.sink = sinks.open_sink(inspection.inspect(NAME, definition.table))
        begins = [Position(p, 0, 0, CLUSTER, TOPIC_ID) for p in (0, 1)]
        epoch, ledger = self.sink.ledger.take_epoch(begins)
        self._positions = {p: one.next_offset for p, one in ledger.items()}
        writer = Writer(epoch, CLUSTER, TOPIC_ID)
        self._merge = KpiMerge(definition, writer, self._positions, probe=probe)

    @property
    def positions(self) -> dict[int, int]:
        """Return the positions of this run."""
        return self._merge.positions

    def apply(self, reads: Sequence[ReadRecords]) -> None:
        """Count a micro-batch."""
        self._merge.apply(self.sink, reads)


def fork(work: Callable[[], None]) -> int:
    """Do the work in another process; return its id. Its status is 0 when the work is done."""
    pid = os.fork()
    if pid:
        return pid
    status = 9
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def strike(
    step: int, after: int, with_signal: signal.Signals = signal.SIGKILL
) -> Callable[[ProbeEvent], None]:
    """Return a probe that kills this process at a step, when it came there often enough.

    Another signal is sent only once.
    """
    count = [0]

    def probe(event: ProbeEvent) -> None:
        count[0] += event.step == step
        if event.step == step and count[0] == after + 1:
            os.kill(os.getpid(), with_signal)

    return probe
