"""`instep reconcile`: what each document should be, recomputed from the topic, against what the target's table holds.

Exact while the pipeline runs, because of the order of reading:

1. the log's end E, and a while for open transactions to end and for the ledger to reach it
2. the target in one snapshot: the table's rows and the ledger's position L belong together
3. the topic from where the pipeline began up to L, folded as the guard does, one event at a time per document
4. both sides through one sort by document, compared column by column

So lag explains no difference: what waits in the log, from L to E, is counted apart. With another source (a file, a query of the
source's own table) its rows are read after the snapshot, and the log's end after them: a document that differs and has
events at or beyond L is behind, and all other differences are real. The weaker guarantees move table and ledger in two
transactions, so the same holds for them.

Only rows that the pipeline wrote, or should have written, can be differences:

- An event counts if the pipeline has applied it. Records that it has passed over, before its `start` or by a rewind, are not
  folded, unless `instep replay` has applied them since (`coverage.py`). `--from` overrules that: everything from there counts.
- A row that no such event names is *extra* if the pipeline is known to have written it. The history, instep_deleted or a
  decision says so; these records are read in pages and join the sort as marks. Without a history, or with another source, a
  value in the guard column says so too (with another source and no guard column: a value in any mapped column).
- Every other row is the application's own. Such rows are counted as not ours, and neither compared nor mended.
- In a log that was cut, a row without an event and without a value in the guard column (or in any mapped column, if there is
  no guard column) is not ours; the rest count as not in the log.
- `strict` takes every row with a value in a mapped column for one that the pipeline wrote. Mending still deletes only rows that
  a record names.

Records behind a transaction that is still open cannot be read, though their publishers were told that they are in the log. While
such records wait, nobody can say that the table is in step: they are counted as held back, and the verdict says so.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from instep import errors, settings, sinks
from instep.document import comparison, kinds
from instep.document.comparison import DocumentState, Question
from instep.document.mapping import TIMESTAMP
from instep.document.showing import counted
from instep.kafka import backlog, offsets, places, reading, topics
from instep.kafka.connection import Cluster, java_config
from instep.kafka.topics import Topic
from instep.pipeline import arrow, continuity, failures, query, runner, session
from instep.reconcile import (
    coverage,
    findings,
    repair,
    source,
    spark_input,
    spark_progress,
    spark_steps,
)
from instep.reconcile.findings import RowDifference
from instep.reconcile.repair import RepairResult
from instep.sinks import inspection, target
from instep.sinks.ledger import AppliedRanges
from instep.sinks.sink import Sink
from instep.sinks.target import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOK_INTERVAL_S = 0.2
STANDSTILL_S = 5.0
ROWS_PER_TASK = 250_000
FEW_ROWS = 10_000
SHOWN_MAX = 20

Say = Callable[[str], None]
Offsets = dict[int, int]


def _unseen(_what: str, _done: int, _total: int, _unit: str) -> None:
    """Progress that nobody looks at."""


class Request(msgspec.Struct, frozen=True):
    """What is asked of one reconciliation."""

    begin: str | None = None
    wait_s: float = 10.0
    source: source.RowSource | None = None
    out: Path | None = None
    fix: repair.RepairRequest | None = None
    strict: bool = False  # every row that the topic does not explain is extra, whoever wrote it


class ComparedRange(msgspec.Struct, frozen=True):
    """One partition: recomputed from an offset up to another; and where the log ended."""

    partition: int
    begin: int
    applied: int
    end: int


class Behind(msgspec.Struct, frozen=True):
    """What waits in the log."""

    records: int = 0
    documents: int = 0


class ReconcileVerdict(StrEnum):
    """What a reconciliation came to."""

    IN_STEP = "in step"
    NOT_IN_STEP = "not in step"
    HELD_BACK = "held back by an open transaction"  # nothing else differs, but records wait that nobody can read yet


class ReconcileReport(msgspec.Struct, frozen=True):
    """One pipeline's proof."""

    pipeline: str
    topic: str
    target: str
    compared_with: str
    in_step: bool
    documents: int
    documents_in_step: int
    missing: int
    extra: int
    different: int
    columns: dict[str, int]
    parked: int
    behind: Behind
    not_in_log: int
    unreadable: int
    places_left_out: int
    partitions: list[ComparedRange]
    notes: list[str]
    rows_file: str | None
    first_rows: list[dict[str, Any]]
    repaired: RepairResult | None = None
    verdict: ReconcileVerdict = ReconcileVerdict.IN_STEP
    held_back: int = 0  # offsets that an open transaction kept out of the comparison
    not_ours: int = 0  # rows that the pipeline never wrote, which are not compared
    passed_over: int = (
        0  # offsets that the pipeline never applied: before its start, or skipped by a rewind
    )


def run(
    declared: settings.Settings,
    names: Sequence[str],
    cluster: Cluster,
    jars: Sequence[Path],
    request: Request,
    *,
    say: Say,
    progress: spark_progress.Progress = _unseen,
    verbose: bool = False,
) -> Iterator[ReconcileReport]:
    """Reconcile the named pipelines one after the other in one Spark session.

    A pipeline that cannot be compared does not keep the others from it; the first such error is raised after them.
    """
    chosen = {name: settings.pipeline(declared, name) for name in names}
    for name, pipeline in chosen.items():  # before Spark starts: wrong settings end it at once
        inspection.inspect(name, pipeline)
        refuse_unfit_source(name, pipeline, request)
    place = session.RunFolder()
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        spark = session.open_session(declared.spark, jars, place, verbose=verbose)
        for wanted, handler in handlers:
            signal.signal(wanted, handler)  # Spark sets one of its own when it starts
        try:
            failed: list[errors.InstepError] = []
            for number, (name, pipeline) in enumerate(chosen.items()):
                folder = place.path / f"reconcile-{number}"
                try:
                    report = reconcile(
                        spark, folder, cluster, name, pipeline, request, say=say, progress=progress
                    )
                except errors.InstepError as error:
                    if len(chosen) > 1:
                        say(f"{name}: not compared: {error.what}")
                    failed.append(error)
                else:
                    yield report
            if failed:
                raise failed[0]
        finally:
            with contextlib.suppress(Py4JError, OSError):
                spark.stop()
    finally:
        place.remove()


def reconcile(
    spark: SparkSession,
    folder: Path,
    cluster: Cluster,
    name: str,
    pipeline: settings.Pipeline,
    request: Request,
    *,
    say: Say,
    progress: spark_progress.Progress = _unseen,
) -> ReconcileReport:
    """Reconcile one pipeline; `folder` is for its own files."""
    refuse_unfit_source(name, pipeline, request)
    sink = sinks.open_sink(inspection.inspect(name, pipeline))
    work = _Work(
        spark, folder, cluster, pipeline, request, sink, lambda text: say(f"{name}: {text}")
    )
    work.progress = lambda what, done, total, unit: progress(f"{name}: {what}", done, total, unit)
    try:
        try:
            return work.done()
        except (PySparkException, Py4JJavaError) as error:
            # a record that Spark cannot read, such as one of the year 300,000, fails whatever it is read with
            if request.source is not None or failures.read(str(error)) is not None:
                raise
            work.say("Spark could not read the topic: once more, without its source")
            return work.done(through_spark=False)
    except (PySparkException, Py4JError) as error:
        raise failures.read(str(error)) or runner.unexplained(error) from error
    finally:
        sink.close()


class _Work:
    """One reconciliation on its way through the steps."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        cluster: Cluster,
        pipeline: settings.Pipeline,
        request: Request,
        sink: Sink,
        say: Say,
    ) -> None:
        self.spark, self.folder, self.cluster, self.pipeline = spark, folder, cluster, pipeline
        self.request, self.sink, self.say = request, sink, say
        self.progress: spark_progress.Progress = _unseen
        self.notes: list[str] = []
        self.held: Offsets = {}  # ends that were seen and that an open transaction keeps readers from
        self._folders = itertools.count()

    def done(self, *, through_spark: bool = True) -> ReconcileReport:
        """The report; the topic is read through Spark's own source, or by our client in the driver."""
        request, sink = self.request, self.sink
        self.through_spark, self.notes = through_spark, []
        self.topic, self.begin = self._log()
        end = self._wait()  # 1
        first = offsets.earliest(self.cluster, self.topic.name, self.topic.partitions)
        self.snapshot = spark_input.take(
            sink, self._folder("table"), functools.partial(self._covered, first), self.say
        )  # 2
        self.say(f"{self.snapshot.documents:,} rows in the table")
        self.applied = self._applied()
        rows = source.records(request.source, sink.target.mapping) if request.source else None
        kept = (
            spark_input.keep_records(rows, self._folder("source"), self.say)
            if rows is not None
            else None
        )
        self.from_source = kept is not None
        self.apart = self.from_source or self._moves_apart()
        end = self._ends() if self.apart else end
        self.end = {
            partition: max(end.get(partition, 0), at) for partition, at in self.applied.items()
        }
        left_out = {} if self.from_source else self.snapshot.left_out
        self.plan = spark_steps.ComparisonPlan(
            sink.target.mapping,
            sink.url.get_backend_name(),
            self._question(),
            left_out,
            self.from_source,
            applied={} if self.from_source else self.snapshot.coverage.applied,
            replayed={p: last for p, (_, last) in self.snapshot.replayed.items()},
        )
        self.behind, marks = self._behind()
        start = {
            p: min(at, self.snapshot.replayed.get(p, (at, at))[0]) for p, at in self.begin.items()
        }
        count = (
            kept.rows if kept is not None else sum(at - start[p] for p, at in self.applied.items())
        )
        self.say(
            f"comparing with {count:,} {'rows of the source' if self.from_source else 'offsets of the log'}"
        )
        records = (
            kept.frame(self.spark) if kept is not None else self._records(start, self.applied)
        )  # 3
        sides = [
            arrow.map_batches(
                records,
                functools.partial(spark_steps.from_records, self.plan),
                spark_steps.SPARK_SCHEMA,
            )
        ]
        sides.append(self.snapshot.parts.frame(self.spark))
        if marks is not None and self.apart:
            sides.append(marks)
        judged = self._judged(sides, count + self.snapshot.parts.rows)  # 4
        try:
            return self._report(judged)
        finally:
            judged.unpersist()

    # --- the log ---------------------------------------------------------------------------------------

    def _log(self) -> tuple[Topic, Offsets]:
        """The topic that the ledger knows, and where the pipeline began in it."""
        sink = self.sink
        with sink.translated():
            known = sink.ledger.positions()
        topic = continuity.describe(self.cluster, sink.target.pipeline, sink.target.topic, known)
        continuity.refuse_replaced(sink.target.pipeline, topic, known)
        continuity.refuse_expired(self.cluster, sink.target.pipeline, topic, known)
        continuity.refuse_diverged(self.cluster, sink.target.pipeline, topic, known)
        if not known and self.request.source is None:
            raise errors.SettingsError(
                f"pipeline {sink.target.pipeline!r} has no ledger: it has never run",
                "run it first: instep run --once",
            )
        refuse_unknown_start(sink.target.pipeline, self.pipeline, self.request, known)
        return topic, beginning(self.cluster, topic, self.pipeline, self.request.begin)

    def _ends(self) -> Offsets:
        return offsets.latest(self.cluster, self.topic.name, self.topic.partitions)

    def _wait(self) -> Offsets:
        """Step 1: a running pipeline gets to the end in a moment; one that stands still is not waited for."""
        goal = offsets.latest(self.cluster, self.topic.name, self.topic.partitions, committed=False)
        deadline, moved_at, seen = time.monotonic() + self.request.wait_s, time.monotonic(), None
        began: Offsets = {}
        while True:
            committed = self._ends()
            ends = {p: min(end, goal[p]) for p, end in committed.items()}
            self.held = backlog.still_held(goal, committed)
            with self.sink.translated():
                positions = {p: row.next_offset for p, row in self.sink.ledger.positions().items()}
            began = began or positions
            if began and self.request.wait_s > 0:
                done, total = (
                    sum(at.get(p, 0) - first for p, first in began.items())
                    for at in (positions, ends)
                )
                self.progress("waiting for the pipeline", done, total, "records")
            if (positions, ends) != seen:
                if not self.held and not self._open(positions, ends):
                    return ends
                if seen is None and self.request.wait_s > 0:
                    self.say("waiting for the pipeline to reach the end of the log")
                moved_at, seen = time.monotonic(), (positions, ends)
            if time.monotonic() >= min(deadline, moved_at + STANDSTILL_S):
                return ends
            time.sleep(LOOK_INTERVAL_S)

    def _held_back(self) -> int:
        """Offsets that were in the log before the comparison, and that an open transaction kept out of it; notes say whose."""
        counts = {
            p: end - max(self.end.get(p, 0), self.applied.get(p, 0)) for p, end in self.held.items()
        }
        counts = {p: count for p, count in counts.items() if count > 0}
        if counts:
            self.notes += backlog.explained(
                counts, backlog.open_transactions(self.cluster, self.topic.name, counts)
            )
        return sum(counts.values())

    def _open(self, positions: Mapping[int, int], ends: Offsets) -> Offsets:
        """Partitions with records between a position and the end; markers of transactions are none."""
        begun = {p: positions.get(p, self.begin.get(p, 0)) for p in ends}
        asked = {p: at for p, at in begun.items() if at < ends[p]}
        found = offsets.first_records(self.cluster, self.topic.name, asked) if asked else {}
        return {
            p: asked[p]
            for p, record in found.items()
            if record is not None and record.offset < ends[p]
        }

    def _covered(
        self, first: Offsets, ledger: dict[int, Position], before: AppliedRanges
    ) -> coverage.Coverage:
        if self.request.begin is not None:
            return coverage.begun(ledger, self.begin)
        return coverage.covered(ledger, before, first, self.begin)

    def _applied(self) -> Offsets:
        """L: up to where each partition is applied, by the ledger as the snapshot saw it; `begin` becomes where it began."""
        applied = {p: self.begin[p] for p in self.topic.partitions}
        applied |= {p: row.next_offset for p, row in self.snapshot.ledger.items()}
        for partition, ranges in self.snapshot.coverage.applied.items():
            self.begin[partition] = ranges[0][0] if ranges else applied[partition]
        for partition, at in applied.items():
            self.begin[partition] = min(self.begin.get(partition, 0), at)
        return applied

    def _moves_apart(self) -> bool:
        """Whether the table may be ahead of the ledger: a weaker guarantee's two transactions, or a rewind not made up for."""
        ahead = any(
            self.applied.get(partition, at) < at
            for partition, at in self.snapshot.rewound_from.items()
        )
        return ahead or self.sink.target.guarantee != "exactly-once"

    def _records(self, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
        """The committed records of the topic between offsets."""
        headers = self.sink.target.mapping.reads_headers
        if self.through_spark:
            kafka = java_config(self.cluster.kafka, self.cluster.bootstrap)
            return query.read(self.spark, self.topic.name, kafka, start, end, headers=headers)
        found = reading.read(
            self.cluster,
            self.topic.name,
            {partition: (start[partition], end[partition]) for partition in end},
        )
        rows = (
            (*_place(one), one.key, one.value, one.headers)
            if headers
            else (*_place(one), one.key, one.value)
            for one in found
        )
        return spark_input.keep_records(rows, self._folder("log"), self.say, headers=headers).frame(
            self.spark
        )

    def _folder(self, name: str) -> Path:
        return self.folder / f"{name}-{next(self._folders)}"

    def _behind(self) -> tuple[Behind, DataFrame | None]:
        """Records and documents that wait between L and the end, and a mark for each of the documents."""
        waiting = self._open(self.applied, self.end)
        if not waiting:
            return Behind(), None
        records = self._records(waiting, {p: self.end[p] for p in waiting})
        marks = arrow.map_batches(
            records, functools.partial(spark_steps.waiting, self.plan), spark_steps.SPARK_SCHEMA
        )
        totals = marks.agg(F.sum("offset"), F.count_distinct("document")).collect()[0]
        return Behind(int(totals[0] or 0), int(totals[1])), marks.where(
            F.col("document").isNotNull()
        )

    # --- the comparison --------------------------------------------------------------------------------

    def _question(self) -> Question:
        mapping, rules = self.sink.target.mapping, self.sink.target.rules
        names = [column.name for column in mapping.columns]
        guard = names.index(mapping.guard) if mapping.guard and rules.ordered else None
        is_time = guard is not None and isinstance(mapping.columns[guard].kind, kinds.Timestamp)
        whole = self.from_source or self._whole()
        signs = self._signs(guard, whole=whole)
        return Question(rules=rules, whole=whole, guard=guard, guard_is_time=is_time, signs=signs)

    def _signs(self, guard: int | None, *, whole: bool) -> tuple[int, ...]:
        """The columns in which a value shows that the pipeline wrote a row that the other side does not name.

        Needed where no record is complete: the history may be switched off or pruned, and the log cut or not read at all.
        """
        every = tuple(range(len(self.sink.target.mapping.columns)))
        if self.request.strict:
            return every
        if self.from_source or not whole:
            return every if guard is None else (guard,)
        return () if self.sink.target.history or guard is None else (guard,)

    def _whole(self) -> bool:
        """Whether the log still says everything: nothing was cut from it, and it is read from its first record."""
        late = {p: at for p, at in self.begin.items() if at > 0}
        if late:
            where = ", ".join(
                f"partition {partition}: {at}" for partition, at in sorted(late.items())
            )
            self.notes.append(
                f"the log is read from where it was cut or the pipeline began ({where})"
            )
        compacted = False
        try:
            compacted = topics.is_compacted(self.cluster, self.topic.name)
        except errors.NotAuthorised:
            self.notes.append(
                "whether the topic is compacted could not be asked: no right to read its settings"
            )
        if compacted:
            self.notes.append(
                "the topic is compacted: it keeps only the last event of each document"
            )
        if self.snapshot.followed_another:
            self.notes.append(
                "the pipeline has followed another topic before, whose rows may still be in the table"
            )
        if late or compacted or self.snapshot.followed_another:
            self.notes.append(
                "rows that the pipeline may have written and that such a log does not mention are not judged"
            )
        return not late and not compacted and not self.snapshot.followed_another

    def _judged(self, sides: list[DataFrame], weight: int) -> DataFrame:
        """Both sides through one sort. What is found is kept on disk, as it is counted first and then gone through."""
        together = functools.reduce(lambda one, other: one.union(other), sides)
        cores = self.spark.sparkContext.defaultParallelism
        pieces = 1 if weight <= FEW_ROWS else max(cores, weight // ROWS_PER_TASK + 1)
        ranked = together.repartition(pieces, "document").sortWithinPartitions(
            "document", "partition", "offset"
        )
        judged = arrow.map_batches(
            ranked, functools.partial(spark_steps.judge, self.plan), spark_steps.FINDINGS_SPARK
        )
        return judged.persist(StorageLevel.DISK_ONLY)

    def _report(self, judged: DataFrame) -> ReconcileReport:
        with spark_progress.followed(self.spark, "comparing", self.progress):
            counts = findings.counted(judged)
        request, to = self.request, self.sink.target
        count = sum(counts.get(kind, 0) for kind in LISTED)
        if self.apart:
            self.behind = Behind(self.behind.records, counts.get(DocumentState.BEHIND, 0))
        fixer = None
        if request.fix is not None:
            ledger = repair.ComparedLedger(self.applied, self._touched)
            fixer = repair.Repairer(
                self.sink, ledger, self.plan.asked, request.fix, from_source=self.from_source
            )
        out, first, mended = None, list[dict[str, Any]](), None
        if count or request.out:
            out = request.out or findings.default_file(to.pipeline)
            first = self._write(out, findings.listed(judged, count), fixer)
            differ = sum(counts.get(kind, 0) for kind in comparison.REAL)
            self.say(
                f"{counted(differ, 'difference')} and {count - differ:,} parked, waiting or unreadable: see {out}"
            )
            if fixer is not None and request.fix is not None and request.fix.execute:
                real = (
                    one for one in findings.listed(judged, count) if one.kind in comparison.REAL
                )
                with out.open("ab") as rows:
                    mended = fixer.mend(real, functools.partial(self._left_alone, rows), self.say)
        left = sum(counts.get(kind, 0) for kind in comparison.REAL) - (mended.done if mended else 0)
        waits = self.behind.documents or (self.behind.records and not self.from_source)
        held = self._held_back()
        not_ours, passed_over = counts.get(DocumentState.NOT_OURS, 0), self._passed_over()
        if not_ours:
            self.notes.append(f"{_rows(not_ours)} never written by this pipeline, and not compared")
        verdict = ReconcileVerdict.HELD_BACK if held else ReconcileVerdict.IN_STEP
        if left or waits or counts.get(spark_steps.UNREADABLE_KIND, 0):
            verdict = ReconcileVerdict.NOT_IN_STEP
        return ReconcileReport(
            pipeline=to.pipeline,
            topic=to.topic,
            target=target.shown(self.sink.url),
            compared_with=request.source.named if request.source else f"topic {to.topic}",
            in_step=verdict is ReconcileVerdict.IN_STEP,
            documents=counts["documents"],
            documents_in_step=counts.get(DocumentState.IN_STEP, 0),
            missing=counts.get(DocumentState.MISSING, 0),
            extra=counts.get(DocumentState.EXTRA, 0),
            different=counts.get(DocumentState.DIFFERENT, 0),
            columns={
                name: counts["columns"][name]
                for name in self.sink.table.columns
                if name in counts["columns"]
            },
            parked=counts.get(DocumentState.PARKED, 0),
            behind=self.behind,
            not_in_log=counts.get(DocumentState.NOT_IN_LOG, 0),
            unreadable=counts.get(spark_steps.UNREADABLE_KIND, 0),
            places_left_out=sum(map(len, self.snapshot.left_out.values())),
            partitions=[
                ComparedRange(p, self.begin[p], self.applied[p], self.end[p])
                for p in sorted(self.applied)
            ],
            notes=self.notes,
            rows_file=str(out) if out else None,
            first_rows=first,
            repaired=mended,
            verdict=verdict,
            held_back=held,
            not_ours=not_ours,
            passed_over=passed_over,
        )

    def _passed_over(self) -> int:
        """Offsets that were never applied, with a note. They do not matter for another source."""
        count = 0 if self.from_source else self.snapshot.coverage.offsets_passed_over
        if count:
            where = "before the pipeline's start, or passed over by a rewind"
            self.notes.append(
                f"up to {count:,} records of the log were never applied ({where}) and are not compared"
            )
        return count

    def _write(
        self, out: Path, differences: Iterator[RowDifference], fixer: repair.Repairer | None
    ) -> list[dict[str, Any]]:
        """The rows to the file, and the first of them."""
        first: list[dict[str, Any]] = []
        try:
            with out.open("ab") as file:
                for one in differences:
                    action = (
                        fixer.words(one)
                        if fixer is not None and one.kind in comparison.REAL
                        else None
                    )
                    for row in findings.shown(
                        one,
                        list(self.sink.table.columns),
                        mend=action,
                        from_source=self.from_source,
                    ):
                        file.write(
                            msgspec.json.encode({"pipeline": self.sink.target.pipeline, **row})
                            + b"\n"
                        )
                        if len(first) < SHOWN_MAX:
                            first.append(row)
        except OSError as error:
            raise errors.SettingsError(
                f"{out} cannot be written: {error.strerror}", "name another file with --out"
            ) from error
        return first

    def _left_alone(self, file: BinaryIO, document: str, why: str) -> None:
        row = {
            "pipeline": self.sink.target.pipeline,
            "document": document,
            "kind": "left_alone",
            "why": why,
        }
        file.write(msgspec.json.encode(row) + b"\n")

    def _touched(
        self, since: Mapping[int, int], until: Mapping[int, int], documents: Sequence[str]
    ) -> set[str]:
        """Which of these documents have events between offsets."""
        start = {p: since.get(p, 0) for p in until}
        if not any(start[p] < until[p] for p in until):
            return set()
        records = self._records(start, until)
        marks = arrow.map_batches(
            records, functools.partial(spark_steps.waiting, self.plan), spark_steps.SPARK_SCHEMA
        )
        return {
            row[0]
            for row in marks.where(F.col("document").isin(list(documents)))
            .select("document")
            .distinct()
            .collect()
        }


LISTED = (*comparison.REAL, DocumentState.PARKED, DocumentState.BEHIND, spark_steps.UNREADABLE_KIND)


def _rows(count: int) -> str:
    return "1 row was" if count == 1 else f"{count:,} rows were"


def _place(record: offsets.LogRecord) -> tuple[int, int, int]:
    return record.partition, record.offset, record.timestamp_ms


def refuse_unfit_source(name: str, pipeline: settings.Pipeline, request: Request) -> None:
    """The record's own time cannot be compared with another source."""
    if request.source is not None and pipeline.event.order == TIMESTAMP:
        raise errors.SettingsError(
            f"pipeline {name!r} is ordered by the record's own time, which a row of the source does not have",
            "reconcile it with the topic: leave --source and --source-url out",
        )


def refuse_unknown_start(
    name: str, pipeline: settings.Pipeline, request: Request, ledger: Mapping[int, Position]
) -> None:
    """A ledger of an earlier release does not say where a pipeline that began at the latest record did so."""
    unknown = any(row.since_offset is None for row in ledger.values())
    if request.source is None and request.begin is None and pipeline.start == "latest" and unknown:
        raise errors.SettingsError(
            f'pipeline {name!r} has start = "latest", and its ledger does not say where it began',
            "say it with --from, e.g. --from @2026-11-01T08:00:00Z",
        )


def beginning(
    cluster: Cluster, topic: Topic, pipeline: settings.Pipeline, asked: str | None
) -> Offsets:
    """Where the recompute begins: at the place that was named, else where the pipeline's `start` says."""
    moment = settings.start_time(pipeline.start)
    place = (
        places.parse_place(asked)
        if asked is not None
        else places.FromStart()
        if moment is None
        else places.AtTime(moment)
    )
    return dict(places.resolve(cluster, topic.name, topic.partitions, place))
