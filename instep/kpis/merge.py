"""The one transaction of a KPI: everything that a micro-batch says, and that it is counted.

In the driver, in one transaction of the target database:

1. Lock the KPI's rows of the ledger. A newer epoch than ours means that we are fenced. An older
   one, or a position before the one that we know, means that the ledger was moved: start again.
2. Check that the rows were counted with the same settings. Drop records that are counted already.
3. Advance the clock of each partition, and find the events that are too late.
4. Read the events that are remembered of the documents.
5. Subtract what each document added before, and add what it adds now (`counting.py`).
6. Write documents, buckets and KPI rows; forget documents that no event can reach any more.
7. Check that the records came from the topic that the ledger knows. Advance the ledger.
8. Commit. On any error everything is rolled back.

Only the ledger says what is counted. Spark's checkpoint is a cache, as for a pipeline: every start
takes a fresh one, and a lost one costs nothing.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from instep import errors
from instep.document.decoding import Event
from instep.document.guard import Verdict
from instep.kpis import counting, definition
from instep.kpis.counting import (
    Additions,
    Cells,
    KpiRules,
    PartitionClock,
    StatusChange,
)
from instep.kpis.definition import KpiDefinition
from instep.kpis.reading import ReadRecords, by_partition
from instep.pipeline.apply import batch, fast, rows
from instep.pipeline.apply.batch import BatchOutcome, Probe, ProbeEvent, Writer
from instep.pipeline.apply.transaction import Check, no_check
from instep.pipeline.continuity import PLAN_FIRST, LogReader
from instep.sinks.kpi_store import ClockTimes, KpiStore, RememberedDocument, StoredKpi
from instep.sinks.ledger import fenced
from instep.sinks.sink import Sink
from instep.sinks.target import Position

OUTRUN_MAX = 3
FORGET_INTERVAL_MS = 10_000

decode_changes = msgspec.json.Decoder(list[StatusChange]).decode
_encode = msgspec.json.Encoder().encode


class KpiMerge:
    """Counts micro-batches of one run of a KPI, one after the other."""

    def __init__(
        self,
        kpi: KpiDefinition,
        writer: Writer,
        positions: Mapping[int, int],
        *,
        probe: Probe = batch.no_probe,
    ) -> None:
        """Take who writes, and the ledger's next offsets at the start of the run."""
        self._kpi, self._writer, self._probe = kpi, writer, probe
        self.positions = dict(positions)
        self._forgotten_ms: dict[int, int] = {}

    def apply(
        self, sink: Sink, reads: Sequence[ReadRecords], same_topic: Check = no_check
    ) -> dict[int, BatchOutcome]:
        """Count what the tasks have read, in one transaction; return the outcome by partition.

        `same_topic` raises if the records are not of the topic that the writer knows.
        """
        stage_first, outrun = False, 0
        while True:
            try:
                return self._run(sink, reads, same_topic, stage_first)
            except fast.LateRows:
                stage_first = True
            except errors.Outrun:
                outrun += 1
                if outrun >= OUTRUN_MAX:
                    raise

    def _run(
        self, sink: Sink, reads: Sequence[ReadRecords], same_topic: Check, stage_first: bool
    ) -> dict[int, BatchOutcome]:
        store = KpiStore(sink.connection, self._kpi.name)
        read_by_partition = by_partition(reads)
        with sink.transaction():
            self._at(1)
            ledger = self._locked(sink, read_by_partition)
            self._at(2)
            stored = self._stored(store)
            fresh = {p: self._fresh(ledger[p], some) for p, some in read_by_partition.items()}
            self._at(3)
            counts = _BatchCounts(self._kpi.rules, stored.clocks)
            for partition, some in fresh.items():
                counts.take(partition, some)
            self._at(4)
            remembered = store.events(counts.documents)
            self._at(5)
            added, documents = counts.count(remembered)
            self._at(6)
            store.replace_documents(documents)
            self._write_rows(sink, store, added, stage_first)
            self._forget(store, counts.clocks)
            store.set_clocks({p: clock.times_ms for p, clock in counts.clocks.items()})
            self._at(7)
            same_topic()
            moves, outcomes = self._moves(ledger, fresh, counts)
            sink.ledger.advance(moves)
            self._at(8)
        self.positions |= {after.partition: after.next_offset for _, after in moves}
        self._at(9)
        return outcomes

    def _locked(
        self, sink: Sink, reads: Mapping[int, Sequence[ReadRecords]]
    ) -> dict[int, Position]:
        """Do step 1. A partition that was added after the start has no row yet: it begins at 0."""
        ledger = sink.ledger.positions(lock=True)
        writer, name = self._writer, self._kpi.name
        newest = max((position.epoch for position in ledger.values()), default=0)
        if newest > writer.epoch:
            raise fenced(name, newest, writer.epoch)
        for partition in reads:
            if partition not in ledger and partition not in self.positions:
                new = Position(partition, 0, writer.epoch, writer.cluster_id, writer.topic_id)
                sink.ledger.create(new)
                ledger[partition] = new
        for partition in self.positions.keys() | reads.keys():
            position, known = ledger.get(partition), self.positions.get(partition, 0)
            if position is None or (position.epoch, position.topic_id) != (
                writer.epoch,
                writer.topic_id,
            ):
                raise _moved(name, partition, position)
            if position.next_offset < known:
                raise _moved(name, partition, position)
        return ledger

    def _stored(self, store: KpiStore) -> StoredKpi:
        stored = store.stored()
        if stored is None:
            stored = StoredKpi(self._kpi.text, {})
            store.replace(stored)
        refuse_changed(self._kpi, stored)
        return stored

    def _fresh(self, position: Position, reads: Sequence[ReadRecords]) -> list[ReadRecords]:
        """Drop records that are counted already: the answer of their commit was lost."""
        fresh = [one for one in reads if one.last_offset >= position.next_offset]
        if fresh and fresh[0].first_offset < position.next_offset:
            raise _moved(self._kpi.name, position.partition, position)
        return fresh

    def _write_rows(self, sink: Sink, store: KpiStore, added: Additions, stage_first: bool) -> None:
        """Write the KPI rows that have changed, and what they are computed from."""
        changed = {key for (key, _), count in added.items() if count}
        known = store.buckets({key.minute_ms for key in changed})
        cells: Cells = {
            key: known.get((key.minute_ms, key.kind.value, key.name), {}) for key in changed
        }
        counting.apply(cells, added)
        store.replace_buckets(
            {(key.minute_ms, key.kind.value, key.name): one for key, one in cells.items()}
        )
        write_rows(sink, cells, stage_first=stage_first)

    def _forget(self, store: KpiStore, clocks: Mapping[int, PartitionClock]) -> None:
        for partition, clock in clocks.items():
            now_ms = clock.now_ms
            if (
                now_ms is not None
                and now_ms - self._forgotten_ms.get(partition, 0) >= FORGET_INTERVAL_MS
            ):
                self._forgotten_ms[partition] = now_ms
                since_ms = now_ms - 2 * self._kpi.rules.watermark_ms
                store.forget_documents(partition, since_ms)

    def _moves(
        self,
        ledger: Mapping[int, Position],
        fresh: Mapping[int, Sequence[ReadRecords]],
        counts: _BatchCounts,
    ) -> tuple[list[tuple[Position, Position]], dict[int, BatchOutcome]]:
        """Return how the ledger advances, and what became of the records."""
        moves, outcomes, now = [], {}, datetime.now(UTC)
        for partition, reads in fresh.items():
            if not reads:
                continue
            before, outcome = ledger[partition], counts.outcome(partition, reads)
            totals = {
                name: before.totals.get(name, 0) + count for name, count in outcome.totals.items()
            }
            after = msgspec.structs.replace(
                before,
                next_offset=reads[-1].last_offset + 1,
                last_digest=reads[-1].digest,
                committed_at=now,
                totals=totals,
            )
            moves.append((before, after))
            outcomes[partition] = outcome
        return moves, outcomes

    def _at(self, step: int) -> None:
        self._probe(ProbeEvent(self._kpi.name, step))


class _BatchCounts:
    """The events of a micro-batch, by document."""

    def __init__(self, rules: KpiRules, clocks: Mapping[int, ClockTimes]) -> None:
        self._rules = rules
        self.clocks = {partition: PartitionClock(*times) for partition, times in clocks.items()}
        self._too_late: Additions = Counter()
        self._changes: dict[str, list[tuple[int, StatusChange]]] = {}
        self._verdicts: dict[int, Counter[Verdict]] = {}
        self._ages_us: dict[int, list[int]] = {}
        self._now_us = time.time_ns() // 1_000

    @property
    def documents(self) -> list[str]:
        """Return the documents with events that are not too late."""
        return list(self._changes)

    def take(self, partition: int, reads: Sequence[ReadRecords]) -> None:
        """Take a partition's events in the order of its log."""
        clock = self.clocks.setdefault(partition, PartitionClock())
        verdicts = self._verdicts.setdefault(partition, Counter())
        ages_us = self._ages_us.setdefault(partition, [])
        for one in reads:
            for read in one.changes:
                ages_us.append(self._now_us - read.change.at_ms * 1_000)
                if late := clock.take(read, self._rules):
                    self._too_late[late, counting.NO_BUCKET] += 1
                    verdicts[Verdict.STALE] += 1
                else:
                    self._changes.setdefault(read.document, []).append((partition, read.change))

    def count(self, remembered: Mapping[str, str]) -> tuple[Additions, list[RememberedDocument]]:
        """Return what to add to the KPI rows, and the documents to remember."""
        added, documents = Counter(self._too_late), []
        for document, arrived in self._changes.items():
            before = decode_changes(remembered[document]) if document in remembered else []
            known = set(before)
            for partition, change in arrived:
                verdict = Verdict.REPEATED if change in known else Verdict.APPLIED
                self._verdicts[partition][verdict] += 1
                known.add(change)
            if len(known) == len(before):
                continue
            added.update(counting.additions(known, self._rules))
            added.subtract(counting.additions(before, self._rules))
            partition = arrived[-1][0]
            kept = counting.remembered(known, self._rules, self.clocks[partition].now_ms)
            if kept:  # otherwise the row that there may be is about to be forgotten
                documents.append(remember(document, partition, kept))
        return added, documents

    def outcome(self, partition: int, reads: Sequence[ReadRecords]) -> BatchOutcome:
        """Return what became of a partition's records."""
        verdicts = dict.fromkeys(Verdict, 0) | self._verdicts.get(partition, Counter())
        verdicts[Verdict.IGNORED] = sum(one.ignored for one in reads)
        return BatchOutcome(
            partition,
            sum(one.records for one in reads),
            verdicts,
            sum(one.unreadable for one in reads),
            batch.bounded(self._ages_us.get(partition, [])),
        )


def remember(document: str, partition: int, changes: Sequence[StatusChange]) -> RememberedDocument:
    """Return the row that keeps the events of a document."""
    return RememberedDocument(document, partition, changes[-1].at_ms, _encode(changes).decode())


def write_rows(sink: Sink, cells: Cells, *, stage_first: bool = False) -> None:
    """Upsert KPI rows through the write path of pipelines. Raise if the table refuses one."""
    row_id = definition.row_id(sink.target.mapping)
    names = [column.name for column in sink.target.mapping.columns]
    events = []
    for number, (key, buckets) in enumerate(sorted(cells.items(), key=lambda cell: cell[0])):
        values = msgspec.structs.asdict(counting.values_of(key, buckets))
        values["minute"] = definition.minute(key)
        columns = tuple(values[name] for name in names)
        events.append(Event(number, row_id(key), None, None, None, columns))
    rows.write(sink, events, isolate_failures=False, parked=(), stage_first=stage_first)


class KpiLogReader(LogReader, frozen=True):
    """A KPI as the reader of its topic: its position is moved by counting again."""

    def move_to(self, _place: str, *_options: str) -> str:
        """Return the command that counts again."""
        return f"{self.move} {PLAN_FIRST}"


def log_reader(kpi: str) -> LogReader:
    """Return a KPI as the reader of its topic."""
    count_again = f"instep reconcile --kpi {shlex.quote(kpi)} --fix"
    return KpiLogReader(f"KPI {kpi!r}", "the ledger", "counted", count_again, "")


def refuse_changed(kpi: KpiDefinition, stored: StoredKpi | None) -> None:
    """Raise a named stop if the rows were counted with other settings than these."""
    if stored is not None and stored.definition != kpi.text:
        raise errors.KpiChanged(
            f"the rows of KPI {kpi.name!r} were counted with other settings: its topic,"
            " event fields, durations or watermark were changed",
            "undo the change, or count again what the log still holds: instep reconcile --kpi"
            f" {shlex.quote(kpi.name)} --fix --execute; or give the KPI another name and"
            " table",
        )


def _moved(name: str, partition: int, position: Position | None) -> errors.LedgerMoved:
    where = "was removed" if position is None else f"is at {position.next_offset} now"
    return errors.LedgerMoved(f"the ledger of KPI {name!r}, partition {partition}, {where}")
