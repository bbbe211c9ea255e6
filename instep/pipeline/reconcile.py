"""`instep reconcile`: what each document should be, recomputed from the topic, against what the target's table holds.

Exact while the pipeline runs, because of the order of reading:

1. the log's committed end E, and a while for the ledger to reach it
2. the target in one snapshot: the table's rows and the ledger's position L belong together
3. the topic from where the pipeline began up to L, folded as the guard does, one event at a time per document
4. both sides through one sort by document, compared column by column

So lag explains no difference: what waits in the log, from L to E, is counted apart. With another source (a file, a query of the
source's own table) its rows are read after the snapshot, and the log's end after them: a document that differs and has
events at or beyond L is behind, and all other differences are real. The weaker guarantees move table and ledger in two
transactions, so the same holds for them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from instep import errors, settings, sinks
from instep.document import comparison, folding, kinds
from instep.document.comparison import Kind, Question
from instep.document.mapping import TIMESTAMP
from instep.kafka import offsets, places, topics
from instep.kafka.connection import Cluster, java_config
from instep.kafka.topics import Topic
from instep.pipeline import arrow, continuity, failures, mending, parts, runner, session, source, steps
from instep.pipeline.mending import Difference, Mended
from instep.sinks import inspection, target
from instep.sinks.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOK_INTERVAL_S = 0.2
STANDSTILL_S = 3.0
ROWS_PER_TASK = 250_000
FEW_ROWS = 10_000
SHOWN_MAX = 20

Say = Callable[[str], None]
Offsets = dict[int, int]


class Request(msgspec.Struct, frozen=True):
    """What is asked of one reconciliation."""

    begin: str | None = None
    wait_s: float = 10.0
    source: source.Source | None = None
    out: Path | None = None
    fix: mending.Fix | None = None


class Range(msgspec.Struct, frozen=True):
    """One partition: recomputed from an offset up to another; and where the log ended."""

    partition: int
    begin: int
    applied: int
    end: int


class Behind(msgspec.Struct, frozen=True):
    """What waits in the log."""

    records: int = 0
    documents: int = 0


class Report(msgspec.Struct, frozen=True):
    """One pipeline's proof. `in_step` is the verdict."""

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
    partitions: list[Range]
    notes: list[str]
    rows_file: str | None
    first_rows: list[dict[str, Any]]
    mended: Mended | None = None


def run(
    declared: settings.Settings,
    names: Sequence[str],
    cluster: Cluster,
    jars: Sequence[Path],
    request: Request,
    *,
    say: Say,
    verbose: bool = False,
) -> Iterator[Report]:
    """Reconcile the named pipelines one after the other in one Spark session."""
    chosen = {name: settings.pipeline(declared, name) for name in names}
    for name, pipeline in chosen.items():  # before Spark starts: wrong settings end it at once
        inspection.inspect(name, pipeline)
        refuse_unclear_start(name, pipeline, request)
    place = session.Workplace()
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        spark = session.open_session(declared.spark, jars, place, verbose=verbose)
        for wanted, handler in handlers:
            signal.signal(wanted, handler)  # Spark sets one of its own when it starts
        try:
            for number, (name, pipeline) in enumerate(chosen.items()):
                yield reconcile(spark, place.path / f"reconcile-{number}", cluster, name, pipeline, request, say=say)
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
) -> Report:
    """Reconcile one pipeline; `folder` is for its own files."""
    refuse_unclear_start(name, pipeline, request)
    sink = sinks.open_sink(inspection.inspect(name, pipeline))
    try:
        return _Work(spark, folder, cluster, pipeline, request, sink, lambda text: say(f"{name}: {text}")).done()
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
        self.notes: list[str] = []

    def done(self) -> Report:
        request, sink = self.request, self.sink
        self.topic, self.begin = self._log()
        end = self._wait()  # 1
        snapshot = parts.take(sink, self.folder / "table", self.say)  # 2
        applied = self._applied(snapshot)
        self.say(f"{snapshot.documents:,} rows in the table")
        rows = source.records(request.source, sink.to.mapping) if request.source else None
        kept = parts.keep_records(rows, self.folder / "source", self.say) if rows is not None else None
        apart = kept is not None or self._moves_apart(snapshot, applied)
        if apart:
            end = self._ends()
        end = {partition: max(end.get(partition, 0), applied[partition]) for partition in applied}
        asked = self._question(kept is not None, snapshot)
        plan = steps.Plan(
            sink.to.mapping, sink.url.get_backend_name(), asked, {} if kept else snapshot.left_out, kept is not None
        )
        self.plan = plan
        records = kept.frame(self.spark) if kept else self._records(self.begin, applied)  # 3
        sides = [arrow.map_batches(records, functools.partial(steps.from_records, plan), steps.SPARK_SCHEMA)]
        sides.append(snapshot.parts.frame(self.spark))
        behind, marks = self._behind(applied, end)
        if marks is not None and apart:
            sides.append(marks)
        weight = snapshot.parts.rows + (kept.rows if kept else sum(applied[p] - self.begin[p] for p in applied))
        self.say(f"comparing with {kept.rows if kept else sum(applied[p] - self.begin[p] for p in applied):,} "
                 + ("rows of the source" if kept else "offsets of the log"))  # fmt: skip
        findings = self._findings(sides, weight)  # 4
        try:
            return self._report(findings, asked, snapshot, applied, end, behind, kept is not None, apart)
        finally:
            findings.unpersist()

    # --- the log ---------------------------------------------------------------------------------------

    def _log(self) -> tuple[Topic, Offsets]:
        """The topic that the ledger knows, and where the pipeline began in it."""
        sink = self.sink
        with sink.translated():
            known = sink.positions()
        topic = continuity.describe(self.cluster, sink.to.pipeline, sink.to.topic, known)
        continuity.refuse_replaced(sink.to.pipeline, topic, known)
        continuity.refuse_expired(self.cluster, sink.to.pipeline, topic, known)
        continuity.refuse_diverged(self.cluster, sink.to.pipeline, topic, known)
        if not known and self.request.source is None:
            raise errors.SettingsError(
                f"pipeline {sink.to.pipeline!r} has no ledger: it has never run", "run it first: instep run --once"
            )
        return topic, beginning(self.cluster, topic, self.pipeline, self.request.begin)

    def _ends(self) -> Offsets:
        return offsets.latest(self.cluster, self.topic.name, self.topic.partitions)

    def _wait(self) -> Offsets:
        """Step 1: a running pipeline gets to the end in a moment; one that stands still is not waited for."""
        ends = self._ends()
        deadline, moved_at, seen = time.monotonic() + self.request.wait_s, time.monotonic(), None
        while True:
            with self.sink.translated():
                positions = {p: row.next_offset for p, row in self.sink.positions().items()}
            if positions != seen:
                moved_at, seen = time.monotonic(), positions
                if not self._open(positions, ends):
                    return ends
                if self.request.wait_s > 0:
                    self.say("waiting for the pipeline to reach the end of the log")
            if time.monotonic() >= min(deadline, moved_at + STANDSTILL_S):
                return ends
            time.sleep(LOOK_INTERVAL_S)

    def _open(self, positions: Mapping[int, int], ends: Offsets) -> Offsets:
        """Partitions with records between a position and the end; markers of transactions are none."""
        begun = {p: positions.get(p, self.begin.get(p, 0)) for p in ends}
        asked = {p: at for p, at in begun.items() if at < ends[p]}
        found = offsets.first_records(self.cluster, self.topic.name, asked) if asked else {}
        return {p: asked[p] for p, record in found.items() if record is not None and record.offset < ends[p]}

    def _applied(self, snapshot: parts.Snapshot) -> Offsets:
        """L: up to where each partition is applied, by the ledger as the snapshot saw it."""
        applied = {p: self.begin[p] for p in self.topic.partitions}
        applied |= {p: row.next_offset for p, row in snapshot.ledger.items()}
        for partition, at in applied.items():
            self.begin[partition] = min(self.begin.get(partition, 0), at)
        return applied

    def _moves_apart(self, snapshot: parts.Snapshot, applied: Offsets) -> bool:
        """Whether the table may be ahead of the ledger: a weaker guarantee's two transactions, or a rewind not made up for."""
        ahead = any(applied.get(partition, at) < at for partition, at in snapshot.rewound_from.items())
        return ahead or self.sink.to.guarantee != "exactly-once"

    def _records(self, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
        """The committed records of the topic between offsets."""
        return read_topic(self.spark, self.cluster, self.topic.name, start, end)

    def _behind(self, applied: Offsets, end: Offsets) -> tuple[Behind, DataFrame | None]:
        """Records and documents that wait between L and the end, and a mark for each of the documents."""
        waiting = self._open(applied, end)
        if not waiting:
            return Behind(), None
        records = self._records(waiting, {p: end[p] for p in waiting})
        marks = arrow.map_batches(records, functools.partial(steps.waiting, self.plan), steps.SPARK_SCHEMA)
        totals = marks.agg(F.sum("offset"), F.count_distinct("document")).collect()[0]
        return Behind(int(totals[0] or 0), int(totals[1])), marks.where(F.col("document").isNotNull())

    # --- the comparison --------------------------------------------------------------------------------

    def _question(self, from_source: bool, snapshot: parts.Snapshot) -> Question:
        mapping, rules = self.sink.to.mapping, self.sink.to.rules
        names = [column.name for column in mapping.columns]
        guard = names.index(mapping.guard) if mapping.guard and rules.ordered else None
        is_time = guard is not None and isinstance(mapping.columns[guard].kind, kinds.Time)
        return Question(rules=rules, whole=from_source or self._whole(snapshot), guard=guard, guard_is_time=is_time)

    def _whole(self, snapshot: parts.Snapshot) -> bool:
        """Whether the log still says everything: nothing was cut from it, and it is read from its first record."""
        late = {p: at for p, at in self.begin.items() if at > 0}
        if late:
            where = ", ".join(f"partition {partition}: {at}" for partition, at in sorted(late.items()))
            self.notes.append(f"the log is read from where it was cut or the pipeline began ({where})")
        compacted = False
        try:
            compacted = topics.is_compacted(self.cluster, self.topic.name)
        except errors.NotAuthorised:
            self.notes.append("whether the topic is compacted could not be asked: no right to read its settings")
        if compacted:
            self.notes.append("the topic is compacted: it keeps only the last event of each document")
        if snapshot.followed_another:
            self.notes.append("the pipeline has followed another topic before, whose rows may still be in the table")
        if late or compacted or snapshot.followed_another:
            self.notes.append("rows that such a log does not mention are not judged: they count as not in the log")
        return not late and not compacted and not snapshot.followed_another

    def _findings(self, sides: list[DataFrame], weight: int) -> DataFrame:
        """Both sides through one sort. What is found is kept on disk, as it is counted first and then gone through."""
        together = functools.reduce(lambda one, other: one.union(other), sides)
        cores = self.spark.sparkContext.defaultParallelism
        pieces = 1 if weight <= FEW_ROWS else max(cores, weight // ROWS_PER_TASK + 1)
        ranked = together.repartition(pieces, "document").sortWithinPartitions("document", "partition", "offset")
        judged = arrow.map_batches(ranked, functools.partial(steps.judge, self.plan), steps.FINDINGS_SPARK)
        return judged.persist(StorageLevel.DISK_ONLY)

    def _report(
        self,
        findings: DataFrame,
        asked: Question,
        snapshot: parts.Snapshot,
        applied: Offsets,
        end: Offsets,
        behind: Behind,
        from_source: bool,
        apart: bool,
    ) -> Report:
        request, to = self.request, self.sink.to
        counts = _counted(findings)
        listed = sum(counts.get(kind, 0) for kind in (*LISTED, steps.UNREADABLE_KIND))
        if apart:
            behind = Behind(behind.records, counts.get(Kind.BEHIND, 0))
        columns = [column.name for column in to.mapping.columns]
        ledger = mending.Ledger(applied, self._touched)
        fixer = mending.Fixer(self.sink, ledger, asked, request.fix, from_source=from_source) if request.fix else None
        differences = functools.partial(_differences, findings, listed)
        out = None
        first: list[dict[str, Any]] = []
        if listed or request.out:
            out = request.out or default_file(to.pipeline)
            first = self._write(out, differences(), columns, fixer, from_source)
            self.say(f"{listed:,} documents that differ are in {out}")
        mended = None
        if fixer is not None and request.fix is not None and request.fix.execute:
            real = (one for one in differences() if one.kind in comparison.REAL)
            with (out or default_file(to.pipeline)).open("ab") if out else contextlib.nullcontext() as rows:
                mended = fixer.mend(real, functools.partial(_append, rows, to.pipeline), self.say)
        real_count = sum(counts.get(kind, 0) for kind in comparison.REAL)
        left = real_count - (mended.done if mended else 0)
        in_step = not left and not behind.documents and not counts.get(steps.UNREADABLE_KIND, 0)
        if not from_source:
            in_step = in_step and not behind.records
        return Report(
            pipeline=to.pipeline,
            topic=to.topic,
            target=target.shown(self.sink.url),
            compared_with=request.source.named if request.source else f"topic {to.topic}",
            in_step=in_step,
            documents=counts["documents"],
            documents_in_step=counts.get(Kind.IN_STEP, 0),
            missing=counts.get(Kind.MISSING, 0),
            extra=counts.get(Kind.EXTRA, 0),
            different=counts.get(Kind.DIFFERENT, 0),
            columns={name: counts["columns"][name] for name in columns if name in counts["columns"]},
            parked=counts.get(Kind.PARKED, 0),
            behind=behind,
            not_in_log=counts.get(Kind.NOT_IN_LOG, 0),
            unreadable=counts.get(steps.UNREADABLE_KIND, 0),
            places_left_out=sum(map(len, snapshot.left_out.values())),
            partitions=[Range(p, self.begin[p], applied[p], end[p]) for p in sorted(applied)],
            notes=self.notes,
            rows_file=str(out) if out else None,
            first_rows=first,
            mended=mended,
        )

    def _write(
        self,
        out: Path,
        differences: Iterator[Difference],
        columns: list[str],
        fixer: mending.Fixer | None,
        from_source: bool,
    ) -> list[dict[str, Any]]:
        """The rows to the file, and the first of them."""
        first: list[dict[str, Any]] = []
        try:
            with out.open("ab") as file:
                for one in differences:
                    for row in shown(one, columns, fixer, from_source):
                        file.write(msgspec.json.encode({"pipeline": self.sink.to.pipeline, **row}) + b"\n")
                        if len(first) < SHOWN_MAX:
                            first.append(row)
        except OSError as error:
            raise errors.SettingsError(f"{out} cannot be written: {error.strerror}", "name another file with --out") from error
        return first

    def _touched(self, since: Mapping[int, int], until: Mapping[int, int], documents: Sequence[str]) -> set[str]:
        """Which of these documents have events between offsets."""
        start = {p: since.get(p, 0) for p in until}
        if not any(start[p] < until[p] for p in until):
            return set()
        records = self._records(start, until)
        marks = arrow.map_batches(records, functools.partial(steps.waiting, self.plan), steps.SPARK_SCHEMA)
        return {row[0] for row in marks.where(F.col("document").isin(list(documents))).select("document").distinct().collect()}


LISTED = (*comparison.REAL, Kind.PARKED, Kind.BEHIND)


def refuse_unclear_start(name: str, pipeline: settings.Pipeline, request: Request) -> None:
    """A pipeline that began at the latest record began at a place that nobody wrote down."""
    if request.source is None and request.begin is None and pipeline.start == "latest":
        raise errors.SettingsError(
            f'pipeline {name!r} has start = "latest", so the log does not say where it began',
            "say it with --from, e.g. --from @2026-11-01T08:00:00Z",
        )
    if request.source is not None and pipeline.event.order == TIMESTAMP:
        raise errors.SettingsError(
            f"pipeline {name!r} is ordered by the record's own time, which a row of the source does not have",
            "reconcile it with the topic: leave --source and --source-url out",
        )


def beginning(cluster: Cluster, topic: Topic, pipeline: settings.Pipeline, asked: str | None) -> Offsets:
    """Where the recompute begins: at the place that was named, else where the pipeline's `start` says."""
    moment = settings.start_time(pipeline.start)
    place = places.parse_place(asked) if asked is not None else places.FromStart() if moment is None else places.Time(moment)
    return dict(places.resolve(cluster, topic.name, topic.partitions, place))


def read_topic(spark: SparkSession, cluster: Cluster, topic: str, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
    """The committed records of a topic between offsets, as a batch."""
    asked = sorted(partition for partition in end if start[partition] < end[partition])
    if not asked:
        return spark.createDataFrame([], parts.RECORD_SPARK)
    reader = spark.read.format("kafka")
    for name, value in java_config(cluster.kafka, cluster.bootstrap).items():
        reader = reader.option(f"kafka.{name}", value)
    return (
        # assigned, not subscribed: partitions with nothing to read, or that came to be just now, are not asked for
        reader.option("assign", json.dumps({topic: asked}))
        .option("startingOffsets", json.dumps({topic: {str(partition): start[partition] for partition in asked}}))
        .option("endingOffsets", json.dumps({topic: {str(partition): end[partition] for partition in asked}}))
        .option("failOnDataLoss", "true")
        .option("minPartitions", spark.sparkContext.defaultParallelism)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", "1")
        .load()
        .select("partition", "offset", F.unix_millis("timestamp").alias("timestamp_ms"), "key", "value")
    )


def default_file(pipeline: str) -> Path:
    """In the working directory, named after the pipeline and the moment."""
    name = re.sub(r"[^\w.-]", "_", pipeline)
    return Path(f"reconcile-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl")


def shown(one: Difference, columns: list[str], fixer: mending.Fixer | None, from_source: bool) -> Iterator[dict[str, Any]]:
    """A difference as rows of the file: one a column where columns differ, else one."""
    place = None
    if one.offset is not None:
        place = {"row": one.offset} if from_source else {"partition": one.partition, "offset": one.offset}
    row: dict[str, Any] = {"document": one.document, "kind": one.kind, "column": None, "expected": None, "found": None}
    row["place"] = place
    if one.kind != one.seems and one.seems:
        row["seems"] = one.seems
    if fixer is not None and one.kind in comparison.REAL:
        deed, why = fixer.plan(one)
        row["mend"] = f"{deed}: {why}" if why else deed
    if one.kind == steps.UNREADABLE_KIND:
        yield row | {"expected": (one.expected or b"").decode()}
        return
    expected, found = _by_name(columns, one.expected), _by_name(columns, one.found)
    if one.seems != Kind.DIFFERENT:
        yield row | {"expected": expected, "found": found}
        return
    for number in one.columns:
        name = columns[number]
        yield row | {"column": name, "expected": (expected or {}).get(name), "found": (found or {}).get(name)}


def _by_name(columns: list[str], line: bytes | None) -> dict[str, Any] | None:
    if line is None:
        return None
    return {name: value for name, value in zip(columns, folding.unpack(line), strict=True) if value != folding.ABSENT}


def _append(file: Any, pipeline: str, document: str, why: str) -> None:
    file.write(msgspec.json.encode({"pipeline": pipeline, "document": document, "kind": "left_alone", "why": why}) + b"\n")


def _counted(findings: DataFrame) -> dict[str, Any]:
    totals: dict[str, Any] = {"documents": 0, "columns": {}}
    for row in findings.where(F.col("kind") == steps.COUNTS).select("expected").collect():
        for kind, count in msgspec.json.decode(bytes(row[0])).items():
            if kind == "columns":
                for name, many in count.items():
                    totals["columns"][name] = totals["columns"].get(name, 0) + many
            else:
                totals[kind] = totals.get(kind, 0) + count
    return totals


def _differences(findings: DataFrame, listed: int) -> Iterator[Difference]:
    """What was found, by document, a piece at a time."""
    if not listed:
        return
    rows = findings.where(F.col("kind") != steps.COUNTS)
    pieces = listed // FEW_ROWS + 1
    ranked = rows.repartition(1) if pieces == 1 else rows.repartitionByRange(pieces, "document")
    for row in ranked.sortWithinPartitions("document").toLocalIterator():
        yield Difference(
            row.kind, row.seems, row.document, row.partition, row.offset, row.order_value, bool(row.known), bool(row.split),
            tuple(row.columns or ()), _bytes(row.expected), _bytes(row.found),
        )  # fmt: skip


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
