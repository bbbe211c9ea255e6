"""`instep reconcile`: compare the target table with what the topic, or another source, says.

The comparison is exact while the pipeline runs, because of the order in which things are read:

1. Read the end E of the log. Wait a while for open transactions to end and for the ledger to
   reach E.
2. Read the target in one snapshot, so that the table's rows and the ledger's position L belong
   together.
3. Read the topic from where the pipeline began up to L, and fold the events of each document in
   the same way as the guard does.
4. Sort both sides together by document and compare them column by column.

Lag therefore never shows up as a difference: the records between L and E are counted separately.
With another source (a file, or a query of the source's own table) its rows are read after the
snapshot, and the end of the log after them. A document that differs and has events at or beyond L
is behind; all other differences are real. The weaker guarantees move table and ledger in two
transactions, so they are treated in the same way.

Only rows that the pipeline wrote, or should have written, can be differences:

- An event counts if the pipeline has applied it. Records before its `start`, and records that a
  rewind skipped, do not count, unless `instep replay` has applied them since (`coverage.py`).
  `--from` overrides this: everything from that place counts.
- A row without such an event is *extra* if the pipeline is known to have written it. The history,
  `instep_deleted` or a decision shows that; their documents are read in pages and join the sort as
  marks. Without a history, or with another source, a value in the guard column shows it too (with
  another source and no guard column: a value in any mapped column).
- Every other row belongs to the application. Such rows are counted as not ours. They are neither
  compared nor repaired.
- In an incomplete log, a row without an event and without a value in the guard column (or in any
  mapped column, if there is no guard column) is not ours. The rest count as not in the log.
- `strict` treats every row with a value in a mapped column as written by the pipeline. A repair
  still deletes only rows that instep's tables record.

Records behind an open transaction cannot be read, although they are in the log and may have been
acknowledged. While such records exist, nobody can say that the table is in step: they are counted
as held back, and the verdict says so.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses

from instep import errors, settings, sinks
from instep.document import comparison, kinds, plain
from instep.document.comparison import DocumentState, Question
from instep.document.mapping import TIMESTAMP
from instep.document.showing import counted
from instep.kafka import backlog, reading, topics
from instep.kafka.connection import Cluster, java_config
from instep.operate import row_source
from instep.pipeline import failures, transformation
from instep.pipeline.micro_batch import arrow, query
from instep.reconcile import (
    coverage,
    findings,
    repair,
    report,
    spark_input,
    spark_progress,
    spark_session,
    spark_steps,
    transformed_log,
)
from instep.reconcile.coverage import Ranges
from instep.reconcile.log import Offsets, PipelineLog
from instep.reconcile.report import Behind, ComparedRange, ReconcileReport
from instep.sinks import inspection, target
from instep.sinks.ledger import AppliedRanges
from instep.sinks.sink import Sink
from instep.sinks.target import Position
from instep.spark_options import SparkFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_TASK = 250_000
ONE_TASK_ROWS_MAX = 10_000

Say = Callable[[str], None]


class Request(msgspec.Struct, frozen=True):
    """The options of one reconciliation."""

    begin: str | None = None
    wait_s: float = 10.0
    source: row_source.RowSource | None = None
    out: Path | None = None
    fix: repair.RepairRequest | None = None
    strict: bool = False  # every row that the topic does not explain is extra, whoever wrote it
    # The source was loaded: only its documents are compared, and newer rows of the table agree.
    loaded: bool = False


def _no_progress(_what: str, _done: int, _total: int, _unit: str) -> None:
    """Ignore progress."""


def run(
    declared: settings.Settings,
    names: Sequence[str],
    cluster: Cluster,
    files: SparkFiles,
    request: Request,
    *,
    say: Say,
    progress: spark_progress.Progress = _no_progress,
    verbose: bool = False,
) -> Iterator[ReconcileReport]:
    """Reconcile the tables of the named pipelines, one after the other, in one Spark session.

    If a pipeline cannot be compared, the others still are. The first error is raised at the end.
    """
    pipelines = {name: settings.pipeline(declared, name) for name in names}
    for name, pipeline in pipelines.items():  # wrong settings end the run before Spark starts
        inspection.inspect(name, pipeline)
        refuse_unfit_source(name, pipeline, request)
    # Another source has no rows for further tables.
    comparisons = [
        (name, number)
        for name, pipeline in pipelines.items()
        for number in (None, *range(0 if request.source else len(pipeline.tables)))
    ]
    with spark_session.opened(declared.spark, files, verbose=verbose) as (spark, place):
        failed: list[errors.InstepError] = []
        for index, (name, number) in enumerate(comparisons):
            try:
                compared = reconcile(
                    spark,
                    place / f"reconcile-{index}",
                    cluster,
                    name,
                    pipelines[name],
                    request,
                    number=number,
                    say=say,
                    progress=progress,
                )
            except errors.InstepError as error:
                if len(comparisons) > 1:
                    say(f"{name}: not compared: {error.what}")
                failed.append(error)
            else:
                yield compared
        if failed:
            raise failed[0]


def reconcile(
    spark: SparkSession,
    folder: Path,
    cluster: Cluster,
    name: str,
    pipeline: settings.Pipeline,
    request: Request,
    *,
    number: int | None = None,
    say: Say,
    progress: spark_progress.Progress = _no_progress,
) -> ReconcileReport:
    """Reconcile the main table of a pipeline, or the further table with this number.

    Temporary files go to `folder`.
    """
    refuse_unfit_source(name, pipeline, request)
    sink = sinks.open_sink(inspection.inspect(name, pipeline))

    shown = name
    if number is not None:
        shown += f", table {pipeline.tables[number].table}"

    def say_named(text: str) -> None:
        say(f"{shown}: {text}")

    def progress_named(what: str, done: int, total: int, unit: str) -> None:
        progress(f"{shown}: {what}", done, total, unit)

    def comparison_with(reader: str) -> _TableComparison:
        log = PipelineLog(
            cluster, sink, pipeline, request.begin, from_source=request.source is not None
        )
        own_folder = folder.with_name(f"{folder.name}-{reader}")
        return _TableComparison(
            spark,
            own_folder,
            log,
            request,
            say_named,
            progress_named,
            through_spark=reader == "spark",
            number=number,
        )

    try:
        try:
            return comparison_with("spark").run()
        except (PySparkException, Py4JJavaError) as error:
            # Spark's Kafka source fails on a record that it cannot represent, such as one of the
            # year 300,000; instep's own client can read it.
            if request.source is not None or failures.read(str(error)) is not None:
                raise
            say_named("Spark could not read the topic: comparing again with instep's own client")
            return comparison_with("client").run()
    except (PySparkException, Py4JError) as error:
        raise failures.read(str(error)) or failures.unexplained(error) from error
    finally:
        sink.close()


class _TableComparison:
    """One comparison, from the first read to the report.

    The topic is read by Spark's Kafka source (`through_spark`) or by instep's client in the driver.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        log: PipelineLog,
        request: Request,
        say: Say,
        progress: spark_progress.Progress,
        *,
        through_spark: bool,
        number: int | None,
    ) -> None:
        if log.pipeline.transform is not None:
            spark = transformation.session_for(spark)
        self.spark, self.folder, self.log, self.request = spark, folder, log, request
        self.say, self.progress, self.through_spark = say, progress, through_spark
        self.sink: Sink = log.sink
        self.number = number
        self.further = None if number is None else log.sink.further[number]
        self.compared: Sink = self.further or log.sink
        self.from_source = request.source is not None
        self.notes: list[str] = []
        self._folder_numbers = itertools.count()

    def run(self) -> ReconcileReport:
        """Read both sides, compare them and return the report."""
        ends = self.log.wait_for_ledger(self.request.wait_s, self.say, self.progress)  # 1
        self.snapshot = self._snapshot()  # 2
        self.begin, self.applied = self._compared_offsets()
        source_rows = self._source_rows()
        # The table may be ahead of the ledger, or newer than the source: what is behind is then
        # decided per document, with the log's end as it is after everything else was read.
        self.marks_decide_behind = self.from_source or self._table_may_be_ahead()
        if self.marks_decide_behind:
            ends = self.log.ends()
        self.end = {p: max(ends.get(p, 0), at) for p, at in self.applied.items()}
        self.plan = self._plan()
        self.behind, waiting_marks = self._behind()
        records, count = self._expected_records(source_rows)  # 3
        steps = functools.partial(spark_steps.steps_of_records, self.plan)
        sides = [
            arrow.map_batches(records, steps, spark_steps.SPARK_SCHEMA),
            self.snapshot.parts.frame(self.spark),
        ]
        if waiting_marks is not None and self.marks_decide_behind:
            sides.append(waiting_marks)
        compared = self._compared(sides, count + self.snapshot.parts.rows)  # 4
        try:
            return self._report(compared)
        finally:
            compared.unpersist()

    # --- what is read -----------------------------------------------------------------------------

    def _snapshot(self) -> spark_input.TargetSnapshot:
        """Read the target in one snapshot."""
        first = self.log.first_offsets()

        def covered(ledger: dict[int, Position], before: AppliedRanges) -> coverage.Coverage:
            if self.request.begin is not None:
                return coverage.from_offsets(ledger, self.log.begin)
            return coverage.covered(ledger, before, first, self.log.begin)

        snapshot = spark_input.take(
            self.sink,
            self._new_folder("table"),
            covered,
            self.say,
            after_load=self.request.loaded,
            further=self.further,
        )
        self.say(f"{snapshot.documents:,} rows in table {self.compared.target.table}")
        return snapshot

    def _compared_offsets(self) -> tuple[Offsets, Offsets]:
        """Return for each partition where the comparison begins, and L, where the ledger stood."""
        begin = dict(self.log.begin)
        applied = {p: begin[p] for p in self.log.topic.partitions}
        applied |= {p: row.next_offset for p, row in self.snapshot.ledger.items()}
        for partition, ranges in self.snapshot.coverage.applied.items():
            begin[partition] = ranges[0][0] if ranges else applied[partition]
        for partition, at in applied.items():
            begin[partition] = min(begin.get(partition, 0), at)
        return begin, applied

    def _source_rows(self) -> spark_input.Parts | None:
        """Read the rows of the other source, if there is one."""
        if self.request.source is None:
            return None
        rows = row_source.records(
            self.request.source, self.sink.target.mapping, skip_unloaded=self.request.loaded
        )
        return spark_input.store_records(rows, self._new_folder("source"), self.say)

    def _table_may_be_ahead(self) -> bool:
        """Return whether the table may be ahead of the ledger.

        A weaker guarantee commits table and ledger separately. After a rewind the table is ahead
        until the pipeline has reached its former position again.
        """
        rewound = any(
            self.applied.get(partition, at) < at
            for partition, at in self.snapshot.rewound_from.items()
        )
        return rewound or self.sink.target.guarantee != "exactly-once"

    def _expected_records(self, source_rows: spark_input.Parts | None) -> tuple[DataFrame, int]:
        """Return the records that say what the table should hold, and about how many they are."""
        if source_rows is not None:
            self.say(f"comparing with {source_rows.rows:,} rows of the source")
            return source_rows.frame(self.spark), source_rows.rows
        start = dict(self.begin)
        for partition, (first_replayed, _) in self.snapshot.replayed.items():
            if partition in start:
                start[partition] = min(start[partition], first_replayed)
        count = sum(at - start[p] for p, at in self.applied.items())
        self.say(f"comparing with {count:,} offsets of the log")
        return self._records(start, self.applied), count

    def _records(self, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
        """Return the committed records of the topic between two offsets of each partition.

        With a transformation these are its results.
        """
        cluster, topic = self.log.cluster, self.log.topic.name
        headers = self.sink.target.mapping.reads_headers
        transform = self.log.pipeline.transform
        if self.through_spark:
            kafka = java_config(cluster.kafka, cluster.bootstrap)
            if transform is None:
                return query.read(self.spark, topic, kafka, start, end, headers=headers)
            records = query.read(self.spark, topic, kafka, start, end, headers=True)
            failed = self.sink.journal.failed_transformations()
            return transformed_log.results(self.sink.target, transform, records, failed)
        ranges = {partition: (start[partition], end[partition]) for partition in end}
        found: Iterable[Any] = reading.read(cluster, topic, ranges)
        if transform is not None:
            found = transformed_log.one_by_one(self.spark, self.sink.target, transform, found)
        rows = (_record_row(record, headers=headers) for record in found)
        folder = self._new_folder("log")
        return spark_input.store_records(rows, folder, self.say, headers=headers).frame(self.spark)

    def _new_folder(self, name: str) -> Path:
        return self.folder / f"{name}-{next(self._folder_numbers)}"

    def _behind(self) -> tuple[Behind, DataFrame | None]:
        """Count what waits between L and the end; return also a mark for each waiting document."""
        waiting = self.log.waiting(self.applied, self.end)
        if not waiting:
            return Behind(), None
        marks = self._waiting_marks(waiting, {p: self.end[p] for p in waiting})
        totals = marks.agg(F.sum("offset"), F.count_distinct("document")).collect()[0]
        behind = Behind(int(totals[0] or 0), int(totals[1]))
        return behind, marks.where(F.col("document").isNotNull())

    def _waiting_marks(self, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
        """Return a mark for each document that has events between two offsets."""
        return arrow.map_batches(
            self._records(start, end),
            functools.partial(spark_steps.waiting_marks, self.plan),
            spark_steps.SPARK_SCHEMA,
        )

    def _documents_with_events(
        self, since: Mapping[int, int], until: Mapping[int, int], documents: Sequence[str]
    ) -> set[str]:
        """Return which of these documents have events between two offsets."""
        start = {p: since.get(p, 0) for p in until}
        if not any(start[p] < until[p] for p in until):
            return set()
        marks = self._waiting_marks(start, until)
        named = marks.where(F.col("document").isin(list(documents))).select("document").distinct()
        return {row[0] for row in named.collect()}

    # --- the comparison ---------------------------------------------------------------------------

    def _plan(self) -> spark_steps.ComparisonPlan:
        """Return what the tasks need to know."""
        snapshot, mapping, further = self.snapshot, self.sink.target.mapping, None
        if self.number is not None:
            further = spark_steps.FurtherPlan(
                self.number, self.compared.target.mapping, self.sink.target.rules
            )
        elif self.from_source:
            mapping = mapping.without_further
        slots = 1 if self.from_source else self.sink.target.slots
        return spark_steps.ComparisonPlan(
            mapping,
            self.sink.url.get_backend_name(),
            self._question(),
            {} if self.from_source else snapshot.excluded,
            self.from_source,
            applied={} if self.from_source else numbered(snapshot.coverage.applied, slots),
            replayed={p: (last + 1) * slots - 1 for p, (_, last) in snapshot.replayed.items()},
            after_load=self.request.loaded,
            further=further,
            slots=slots,
        )

    def _question(self) -> Question:
        """Return the rules by which a document and its row are compared."""
        mapping, rules = self.compared.target.mapping, self.compared.target.rules
        names = [column.name for column in mapping.columns]
        guard = names.index(mapping.guard) if mapping.guard in names and rules.ordered else None
        is_time = guard is not None and isinstance(mapping.columns[guard].kind, kinds.Timestamp)
        if self.request.loaded:  # as a load judges ties; and rows may be newer than the source
            rules = msgspec.structs.replace(rules, order_is_time=False)
            return Question(rules=rules, whole=False, guard=guard, guard_is_time=is_time)
        whole = self.from_source or self._log_is_complete()
        signs = self._sign_columns(guard, whole=whole)
        return Question(rules=rules, whole=whole, guard=guard, guard_is_time=is_time, signs=signs)

    def _sign_columns(self, guard: int | None, *, whole: bool) -> tuple[int, ...]:
        """Return the columns in which a value shows that the pipeline wrote an unexplained row.

        They are needed where instep's own tables are incomplete: the history may be off or pruned,
        and the log may be incomplete or not read at all.
        """
        every = tuple(range(len(self.compared.target.mapping.columns)))
        if self.request.strict:
            return every
        if self.from_source or not whole:
            return every if guard is None else (guard,)
        if self.sink.target.history or guard is None:
            return ()
        # The log is complete but there is no history: a value in the guard column is the only
        # sign that the pipeline wrote the row.
        return (guard,)

    def _log_is_complete(self) -> bool:
        """Return whether the log holds every event of the pipeline. Notes say why not."""
        reasons = []
        late = [f"partition {p}: {at}" for p, at in sorted(self.begin.items()) if at > 0]
        if late:
            reasons.append(
                "the log is read from where it now starts or the pipeline began"
                f" ({', '.join(late)})"
            )
        try:
            if topics.is_compacted(self.log.cluster, self.log.topic.name):
                reasons.append(
                    "the topic is compacted: it keeps only the last event of each document"
                )
        except errors.NotAuthorised:
            self.notes.append(
                "no permission to read the topic's settings: instep does not know whether the topic"
                " is compacted"
            )
        if self.snapshot.followed_another:
            reasons.append(
                "the pipeline followed another topic before; rows from it may still be in the table"
            )
        if self.snapshot.loaded and not self.sink.target.history:
            reasons.append(
                "documents were loaded from another source, and without a history instep does not"
                " know which"
            )
        if reasons:
            self.notes += reasons
            self.notes.append(
                "rows that the pipeline may have written and that are not in the log are not judged"
            )
        return not reasons

    def _compared(self, sides: list[DataFrame], rows: int) -> DataFrame:
        """Sort both sides together and compare them, document by document.

        The result is kept on disk, because it is counted first and listed afterwards.
        """
        together = functools.reduce(lambda frame, side: frame.union(side), sides)
        cores = self.spark.sparkContext.defaultParallelism
        tasks = 1 if rows <= ONE_TASK_ROWS_MAX else max(cores, rows // ROWS_PER_TASK + 1)
        # All steps of a document reach the same task. The sort puts its marks, which have negative
        # partition numbers, before its events, and the events into the order of the log.
        ranked = together.repartition(tasks, "document").sortWithinPartitions(
            "document", "partition", "offset"
        )
        compared = arrow.map_batches(
            ranked,
            functools.partial(spark_steps.compare_documents, self.plan),
            spark_steps.FINDINGS_SPARK,
        )
        return compared.persist(StorageLevel.DISK_ONLY)

    # --- the report -------------------------------------------------------------------------------

    def _report(self, compared: DataFrame) -> ReconcileReport:
        """Count the findings, write them to the file, repair them if asked to, and report."""
        with spark_progress.followed(self.spark, "comparing", self.progress):
            counts = findings.counts(compared)
        if self.marks_decide_behind:
            self.behind = Behind(self.behind.records, counts.of(DocumentState.BEHIND))
        rows_file, first_rows, repaired = self._list_and_repair(compared, counts)
        left = counts.of(*comparison.REAL) - (repaired.done if repaired else 0)
        waits = self.behind.documents or (self.behind.records and not self.from_source)
        unreadable = counts.of(spark_steps.UNREADABLE_KIND)
        held_back = self._held_back()
        not_ours, skipped = counts.of(DocumentState.NOT_OURS), self._never_applied()
        if not_ours:
            rows = f"{not_ours:,} rows were"
            if not_ours == 1:
                rows = "1 row was"
            self.notes.append(f"{rows} never written by this pipeline, and not compared")
        verdict = report.verdict(differs=bool(left or waits or unreadable), held_back=held_back)
        to = self.sink.target
        return ReconcileReport(
            pipeline=to.pipeline,
            topic=to.topic,
            target=target.shown(self.sink.url),
            table=str(self.compared.target.table),
            compared_with=self.request.source.named if self.request.source else f"topic {to.topic}",
            in_step=verdict is report.ReconcileVerdict.IN_STEP,
            documents=counts.documents,
            documents_in_step=counts.of(DocumentState.IN_STEP),
            missing=counts.of(DocumentState.MISSING),
            extra=counts.of(DocumentState.EXTRA),
            different=counts.of(DocumentState.DIFFERENT),
            columns={
                name: counts.columns[name]
                for name in self.compared.table.columns
                if name in counts.columns
            },
            parked=counts.of(DocumentState.PARKED),
            behind=self.behind,
            not_in_log=counts.of(DocumentState.NOT_IN_LOG),
            unreadable=unreadable,
            places_left_out=sum(map(len, self.snapshot.excluded.values())),
            partitions=[
                ComparedRange(p, self.begin[p], self.applied[p], self.end[p])
                for p in sorted(self.applied)
            ],
            notes=self.notes,
            rows_file=str(rows_file) if rows_file else None,
            first_rows=first_rows,
            repaired=repaired,
            verdict=verdict,
            held_back=held_back,
            not_ours=not_ours,
            skipped=skipped,
            is_further=self.further is not None,
        )

    def _list_and_repair(
        self, compared: DataFrame, counts: spark_steps.Counts
    ) -> tuple[Path | None, list[dict[str, Any]], repair.RepairResult | None]:
        """Write the findings to the file, and carry out the repair if it was asked for.

        Return the file, its first rows and what was repaired.
        """
        request = self.request
        count = counts.of(*report.LISTED)
        if not count and request.out is None:
            return None, [], None
        repairer = None
        if request.fix is not None:
            ledger = repair.ComparedLedger(self.applied, self._documents_with_events)
            repairer = repair.Repairer(
                self.sink,
                ledger,
                self.plan.question,
                request.fix,
                from_source=self.from_source,
                further=self.further,
            )
        pipeline = self.sink.target.pipeline
        out = request.out or report.default_file(pipeline)
        rows = report.RowsFile(out, pipeline, self.compared, repairer, from_source=self.from_source)
        first_rows = rows.write(findings.listed(compared, count))
        differences = counts.of(*comparison.REAL)
        self.say(
            f"{counted(differences, 'difference')} and {count - differences:,} parked, waiting or"
            f" unreadable: see {out}"
        )
        repaired = None
        if repairer is not None and request.fix is not None and request.fix.execute:
            listed = findings.listed(compared, count)
            real = (difference for difference in listed if difference.kind in comparison.REAL)
            with rows.left_alone() as write_left_alone:
                repaired = repairer.repair(real, write_left_alone, self.say)
        return out, first_rows, repaired

    def _held_back(self) -> int:
        """Count the offsets that an open transaction kept out of the comparison.

        Only offsets that were in the log before the comparison count. Notes name the transactions.
        """
        counts = {}
        for partition, end in self.log.held_back.items():
            count = end - max(self.end.get(partition, 0), self.applied.get(partition, 0))
            if count > 0:
                counts[partition] = count
        if counts:
            cluster, topic = self.log.cluster, self.log.topic.name
            transactions = backlog.open_transactions(cluster, topic, counts)
            self.notes += backlog.describe_held_back(counts, transactions)
        return sum(counts.values())

    def _never_applied(self) -> int:
        """Count the offsets that were never applied, with a note. Another source ignores them."""
        count = 0 if self.from_source else self.snapshot.coverage.offsets_skipped
        if count:
            self.notes.append(
                f"up to {count:,} records of the log were never applied (before the pipeline's"
                " start, or skipped by a rewind) and are not compared"
            )
        return count


def numbered(ranges: Mapping[int, Ranges], slots: int) -> dict[int, Ranges]:
    """Return ranges of offsets as ranges of the numbers that results have."""
    return {
        partition: [(start * slots, end * slots) for start, end in of_partition]
        for partition, of_partition in ranges.items()
    }


def _record_row(record: plain.PlainRecord, *, headers: bool) -> tuple[Any, ...]:
    row = (record.partition, record.offset, record.timestamp_ms, record.key, record.value)
    return (*row, record.headers) if headers else row


def refuse_unfit_source(name: str, pipeline: settings.Pipeline, request: Request) -> None:
    """Raise if another source is named for a pipeline that is ordered by the record's own time."""
    if request.source is not None and pipeline.event.order == TIMESTAMP:
        raise errors.SettingsError(
            f"pipeline {name!r} is ordered by the record's own time,"
            " which a row of the source does not have",
            "reconcile it with the topic: leave out --source and --source-url",
        )
