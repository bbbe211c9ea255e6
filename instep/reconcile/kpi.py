"""`instep reconcile --kpi`: compare KPI rows with a recomputation from the log, or count again.

1. Read the rows and the ledger in one snapshot.
2. Recompute the rows from the log, from where the KPI began up to the ledger's position, in Spark:
   the same rules, but all events at once instead of batch by batch.
3. Compare every row. A row whose count is 0 is the same as no row.

If the log no longer holds the beginning, only rows of minutes that it explains are compared: they
begin one watermark after its first record. A duration of a document that may have had earlier
events is not compared either.

With `fix` the log is read up to its end. The plan shows what would change. To execute it, one
transaction locks the ledger, writes rows, remembered documents and the partitions' times, and moves
the ledger to that end, whatever the KPI has counted meanwhile. A running KPI notices that the
ledger was moved, and continues there. So this also counts again after the settings were changed, or
the topic was replaced. Rows that the log does not explain stay as they are.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException

from instep import settings, sinks
from instep.kafka import offsets
from instep.kafka.connection import Cluster, java_config
from instep.kafka.topics import Topic
from instep.kpis import counting, definition, merge
from instep.kpis.counting import MINUTE_MS, Additions, Cells, KpiKey, KpiKind, KpiValues
from instep.kpis.definition import KpiDefinition
from instep.pipeline import continuity, failures, pending
from instep.pipeline.micro_batch import arrow, query
from instep.reconcile import kpi_steps, log, report, spark_progress, spark_session
from instep.reconcile.kpi_steps import FoldPlan
from instep.reconcile.log import Offsets
from instep.reconcile.report import Behind, ComparedRange, ReconcileVerdict
from instep.sinks import inspection, kpi_store, target
from instep.sinks.kpi_store import ClockTimes, KpiStore, RememberedDocument, RowKey, StoredKpi
from instep.sinks.sink import Sink
from instep.sinks.target import Position
from instep.spark_options import SparkFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DOCUMENTS_AT_ONCE = 50_000
ALL_MINUTES = -(2**62)

Say = Callable[[str], None]
KpiRows = dict[KpiKey, KpiValues]


class KpiRequest(msgspec.Struct, frozen=True):
    """The options of the reconciliation of a KPI."""

    wait_s: float = 10.0
    fix: bool = False
    execute: bool = False


class KpiDifference(msgspec.Struct, frozen=True):
    """A row that is not as recomputed. None is no row."""

    kind: str  # missing, extra or different
    minute: str
    counts: str  # the kind of the row: status, duration or too_late
    name: str
    expected: KpiValues | None
    found: KpiValues | None


class KpiReport(msgspec.Struct, frozen=True):
    """The result of comparing one KPI."""

    kpi: str
    topic: str
    target: str
    table: str
    in_step: bool
    verdict: ReconcileVerdict
    rows: int
    rows_in_step: int
    missing: int
    extra: int
    different: int
    not_compared: int
    behind: Behind
    held_back: int
    partitions: list[ComparedRange]
    notes: list[str]
    differences: list[KpiDifference]
    fixed: bool = False


def run(
    declared: settings.Settings,
    names: Sequence[str],
    cluster: Cluster,
    files: SparkFiles,
    request: KpiRequest,
    *,
    say: Say,
    progress: spark_progress.Progress,
    verbose: bool = False,
) -> Iterator[KpiReport]:
    """Reconcile the named KPIs one after the other in one Spark session."""
    defined = [definition.define(declared, name) for name in dict.fromkeys(names)]
    for kpi in defined:  # wrong settings end the run before Spark starts
        inspection.inspect(kpi.name, kpi.table)
        kpi_store.check(kpi.table.target, kpi.name)
    with spark_session.opened(declared.spark, files, verbose=verbose) as (spark, _):
        for kpi in defined:
            yield reconcile(spark, cluster, kpi, request, say=say, progress=progress)


def reconcile(
    spark: SparkSession,
    cluster: Cluster,
    kpi: KpiDefinition,
    request: KpiRequest,
    *,
    say: Say = lambda _: None,
    progress: spark_progress.Progress = lambda *_: None,
) -> KpiReport:
    """Reconcile one KPI."""
    sink = sinks.open_sink(inspection.inspect(kpi.name, kpi.table))
    try:
        compared = _KpiComparison(spark, cluster, kpi, sink, request, say, progress)
        return compared.run()
    except (PySparkException, Py4JError) as error:
        raise failures.read(str(error)) or failures.unexplained(error) from error
    finally:
        sink.close()


class _Range(msgspec.Struct, frozen=True):
    """The part of the log that is counted, and whether the KPI began before it."""

    topic: Topic
    begin: Offsets
    end: Offsets
    known_from_ms: int | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the log holds everything that was counted."""
        return self.known_from_ms is None


class _Recomputed(msgspec.Struct, frozen=True):
    """What the log says."""

    cells: Cells
    unsure: set[KpiKey]
    clocks: dict[int, ClockTimes]


class _KpiComparison:
    """One comparison, from the first read to the report."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        kpi: KpiDefinition,
        sink: Sink,
        request: KpiRequest,
        say: Say,
        progress: spark_progress.Progress,
    ) -> None:
        self._spark, self._cluster, self._kpi, self._sink = spark, cluster, kpi, sink
        self._request, self._say_all, self._progress = request, say, progress
        self._reader = merge.log_reader(kpi.name)
        self._store = KpiStore(sink.connection, kpi.name)
        self._notes: list[str] = []

    def run(self) -> KpiReport:
        """Read both sides, compare them, count again if asked to, and return the report."""
        behind, held_back = 0, 0
        if not self._request.fix:
            behind, held_back = self._wait()
        with self._sink.snapshot():  # 1
            ledger = self._sink.ledger.positions()
            stored = self._store.stored()
            found = self._rows()
        part = self._range(ledger, stored)
        self._say(f"recomputing from {sum(part.end.values()) - sum(part.begin.values()):,} offsets")
        folded = self._folded(part).persist(StorageLevel.DISK_ONLY)
        try:
            with spark_progress.followed(self._spark, "recomputing", self._progress):
                recomputed = _recomputed(folded)  # 2
            differences, rows, left_out = self._differences(found, recomputed, part)  # 3
            if self._request.execute:
                self._count_again(part, recomputed, folded, found)
        finally:
            folded.unpersist()
        return self._report(part, differences, rows, left_out, behind, held_back)

    def _say(self, text: str) -> None:
        self._say_all(f"{self._kpi.name}: {text}")

    def _wait(self) -> tuple[int, int]:
        """Wait until a running KPI is at the end of the log.

        Return the number of records that it has not counted then, and of those that wait behind an
        open transaction.
        """
        followed = log.PipelineLog(
            self._cluster,
            self._sink,
            self._kpi.table,
            None,
            from_source=False,
            reader=self._reader,
        )
        ends = followed.wait_for_ledger(self._request.wait_s, self._say, self._progress)
        with self._sink.translated():
            ledger = self._sink.ledger.positions()
        positions = {p: row.next_offset for p, row in ledger.items()}
        waiting = followed.waiting(positions, ends)
        behind = sum(ends[p] - at for p, at in waiting.items())
        held_back = sum(end - ends.get(p, 0) for p, end in followed.held_back.items())
        return behind, held_back

    def _rows(self) -> KpiRows:
        """Read the rows that count anything."""
        kinds = {kind.value: kind for kind in KpiKind}
        return {
            KpiKey(int(minute_ms), kinds[kind], name): KpiValues(int(count), p50, p95)
            for minute_ms, kind, name, count, p50, p95 in kpi_store.table_rows(self._sink)
            if count and kind in kinds
        }

    def _range(self, ledger: Mapping[int, Position], stored: StoredKpi | None) -> _Range:
        """Return what is counted: up to the ledger, or to fix the rows, up to the log's end."""
        topic = continuity.describe(self._cluster, self._reader, self._kpi.table.topic, {})
        first = offsets.earliest(self._cluster, topic.name, topic.partitions)
        begins = pending.begins(self._cluster, topic, self._kpi.table.start, {})
        is_other = any(continuity.is_other(topic, position) for position in ledger.values())
        if not self._request.fix:
            merge.refuse_changed(self._kpi, stored)
            end = {p: row.next_offset for p, row in ledger.items()}
        else:
            end = offsets.latest(self._cluster, topic.name, topic.partitions)
        lost = []
        for partition in topic.partitions:
            row = None if is_other else ledger.get(partition)
            if row is not None and row.since_offset is not None:
                begins[partition] = row.since_offset
            counted_before = is_other or (row is not None and row.next_offset > begins[partition])
            if counted_before and (is_other or first[partition] > begins[partition]):
                lost.append(partition)
            begins[partition] = max(begins[partition], first[partition])
        end = {p: max(end.get(p, begins[p]), begins[p]) for p in topic.partitions}
        known = self._known_from_ms(topic, first, lost)
        if stored is not None and stored.known_from_ms is not None:
            known = max(known or ALL_MINUTES, stored.known_from_ms)
        if known is not None:
            self._notes.append(
                "the log does not hold the beginning: rows of earlier minutes, and durations that"
                " may have begun earlier, are neither compared nor changed"
            )
        return _Range(topic, begins, end, known)

    def _known_from_ms(self, topic: Topic, first: Offsets, lost: Sequence[int]) -> int | None:
        """Return the time of the first records, if records before them were counted."""
        if not lost:
            return None
        records = offsets.first_records(
            self._cluster, topic.name, {partition: first[partition] for partition in lost}
        )
        now_ms = time.time_ns() // 1_000_000
        times = [record.timestamp_ms for record in records.values() if record is not None]
        # A timestamp ahead of this machine's clock is wrong: it would leave out every minute.
        return min(max(times, default=now_ms), now_ms)

    def _folded(self, part: _Range) -> DataFrame:
        topic, kpi = part.topic.name, self._kpi
        kafka = java_config(self._cluster.kafka, self._cluster.bootstrap)
        records = query.read(
            self._spark,
            topic,
            kafka,
            part.begin,
            part.end,
            headers=kpi.event.reads_headers,
            whole_partitions=True,
        )
        changes = arrow.map_batches(
            records, functools.partial(kpi_steps.changes_of_partitions, kpi), kpi_steps.CHANGES
        )
        tasks = self._spark.sparkContext.defaultParallelism
        together = changes.repartition(tasks, "document").sortWithinPartitions("document")
        plan = FoldPlan(kpi.rules, part.known_from_ms, remembers=self._request.execute)
        return arrow.map_batches(
            together,
            functools.partial(kpi_steps.additions_of_documents, plan),
            kpi_steps.FOLDED,
        )

    def _compared_from_ms(self, part: _Range) -> int:
        """Return the first minute that the log explains."""
        if part.known_from_ms is None:
            return ALL_MINUTES
        since_ms = part.known_from_ms + self._kpi.rules.watermark_ms
        return counting.minute_of(since_ms) + MINUTE_MS

    def _differences(
        self, found: KpiRows, recomputed: _Recomputed, part: _Range
    ) -> tuple[list[KpiDifference], int, int]:
        """Return the differences, and how many rows were compared and left out."""
        expected = {
            key: counting.values_of(key, buckets)
            for key, buckets in recomputed.cells.items()
            if buckets
        }
        since_ms = self._compared_from_ms(part)
        keys = found.keys() | expected.keys()
        compared = {
            key for key in keys if key.minute_ms >= since_ms and key not in recomputed.unsure
        }
        differences = [
            _difference(key, expected.get(key), found.get(key))
            for key in sorted(compared)
            if expected.get(key) != found.get(key)
        ]
        return differences, len(compared), len(keys) - len(compared)

    def _report(
        self,
        part: _Range,
        differences: list[KpiDifference],
        rows: int,
        left_out: int,
        behind: int,
        held_back: int,
    ) -> KpiReport:
        differs = bool(behind) or (bool(differences) and not self._request.execute)
        verdict = report.verdict(differs=differs, held_back=held_back)
        ends = offsets.latest(self._cluster, part.topic.name, part.topic.partitions)
        count = {
            kind: sum(one.kind == kind for one in differences)
            for kind in ("missing", "extra", "different")
        }
        return KpiReport(
            kpi=self._kpi.name,
            topic=part.topic.name,
            target=target.shown(self._sink.url),
            table=str(self._sink.target.table),
            in_step=verdict is ReconcileVerdict.IN_STEP,
            verdict=verdict,
            rows=rows,
            rows_in_step=rows - len(differences),
            missing=count["missing"],
            extra=count["extra"],
            different=count["different"],
            not_compared=left_out,
            behind=Behind(behind),
            held_back=held_back,
            partitions=[
                ComparedRange(p, part.begin[p], part.end[p], ends[p]) for p in part.topic.partitions
            ],
            notes=self._notes,
            differences=differences,
            fixed=self._request.execute,
        )

    # --- counting again ---------------------------------------------------------------------------

    def _count_again(
        self, part: _Range, recomputed: _Recomputed, folded: DataFrame, found: KpiRows
    ) -> None:
        """Replace everything that the KPI has counted by what the log says, in one transaction."""
        sink, store = self._sink, self._store
        positions = self._positions(part)
        with sink.transaction():
            ledger = sink.ledger.positions(lock=True)
            kept = store.stored()
            clocks = dict(recomputed.clocks)
            if kept is not None and not part.is_complete:
                # What is left of the log may not tell the time of a partition.
                known = {p: times for p, times in clocks.items() if times[0] is not None}
                clocks |= kept.clocks | known
            store.replace(StoredKpi(self._kpi.text, clocks, part.known_from_ms))
            self._replace_documents(folded, clocks, is_complete=part.is_complete)
            self._replace_rows(recomputed, found, self._compared_from_ms(part))
            for partition in ledger.keys() - positions.keys():
                sink.ledger.remove(partition)
            epoch = max((row.epoch for row in ledger.values()), default=0)
            for partition, position in positions.items():
                if partition not in ledger:
                    sink.ledger.create(msgspec.structs.replace(position, epoch=epoch))
                sink.ledger.move(position, part.begin[partition])

    def _positions(self, part: _Range) -> dict[int, Position]:
        topic = part.topic
        last = {p: end - 1 for p, end in part.end.items() if end > part.begin[p]}
        digests = continuity.digests(self._cluster, topic, last)
        return {
            p: Position(p, end, 0, topic.cluster_id, topic.id, digests.get(p))
            for p, end in part.end.items()
        }

    def _replace_documents(
        self, folded: DataFrame, clocks: Mapping[int, ClockTimes], *, is_complete: bool
    ) -> None:
        """Replace the remembered documents; with an incomplete log, only add to them."""
        if is_complete:
            self._store.forget_all_documents()
        waiting: list[RememberedDocument] = []
        rows = folded.where("document is not null").select("document", "partition", "events")
        for document, partition, events in rows.toLocalIterator():
            changes = merge.decode_changes(events)
            if kept := counting.remembered(changes, self._kpi.rules, clocks[partition][0]):
                waiting.append(merge.remember(document, partition, kept))
            if len(waiting) >= DOCUMENTS_AT_ONCE:
                self._remember(waiting, clocks, is_complete=is_complete)
                waiting = []
        self._remember(waiting, clocks, is_complete=is_complete)

    def _remember(
        self,
        documents: list[RememberedDocument],
        clocks: Mapping[int, ClockTimes],
        *,
        is_complete: bool,
    ) -> None:
        if is_complete:
            self._store.add_documents(documents)
            return
        before = self._store.events([one.document for one in documents])
        merged = []
        for one in documents:
            changes = {*merge.decode_changes(one.events)}
            changes |= {*merge.decode_changes(before.get(one.document, "[]"))}
            kept = counting.remembered(changes, self._kpi.rules, clocks[one.partition][0])
            merged.append(merge.remember(one.document, one.partition, kept))
        self._store.replace_documents(merged)

    def _replace_rows(self, recomputed: _Recomputed, found: KpiRows, since_ms: int) -> None:
        """Replace the rows from a minute on, except those that are not known for sure."""
        old = self._store.buckets_from(since_ms)
        cells = {key: one for key, one in recomputed.cells.items() if key.minute_ms >= since_ms}
        gone = {key for key in found if key.minute_ms >= since_ms} - cells.keys()
        cells |= {key: {} for key in gone}
        for key in recomputed.unsure:
            cells.pop(key, None)
        kept: dict[RowKey, dict[int, int]] = {}
        for key in recomputed.unsure:
            if _row_key(key) in old:
                kept[_row_key(key)] = old[_row_key(key)]
        self._store.forget_buckets_from(since_ms)
        self._store.add_buckets(kept | {_row_key(key): one for key, one in cells.items()})
        changed = {key: one for key, one in cells.items() if _values(key, one) != found.get(key)}
        merge.write_rows(self._sink, changed)


def _recomputed(folded: DataFrame) -> _Recomputed:
    """Add up what the documents of all tasks add."""
    added: Additions = Counter()
    unsure: set[KpiKey] = set()
    clocks: dict[int, ClockTimes] = {}
    rows: list[Any] = folded.where("document is null").drop("document", "events").collect()
    for minute_ms, kind, name, bucket, count, partition in rows:
        if kind is None:
            clocks[partition] = minute_ms, bucket
            continue
        key = KpiKey(minute_ms, KpiKind(kind), name)
        if count:
            added[key, bucket] += count
        else:
            unsure.add(key)
    cells: Cells = {}
    counting.apply(cells, added)
    return _Recomputed(cells, unsure, clocks)


def _values(key: KpiKey, buckets: Mapping[int, int]) -> KpiValues | None:
    return counting.values_of(key, buckets) if buckets else None


def _row_key(key: KpiKey) -> RowKey:
    return key.minute_ms, key.kind.value, key.name


def _difference(key: KpiKey, expected: KpiValues | None, found: KpiValues | None) -> KpiDifference:
    kind = "different"
    if found is None:
        kind = "missing"
    elif expected is None:
        kind = "extra"
    minute = f"{definition.minute(key):%Y-%m-%dT%H:%M:%SZ}"
    return KpiDifference(kind, minute, key.kind.value, key.name, expected, found)
