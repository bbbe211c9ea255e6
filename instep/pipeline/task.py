"""What runs inside a Spark task: read records, commit transactions, return one row of counts.

Spark uses a worker process for many tasks. The connection to the target is kept between them as a
global of this module: Spark imports a module once per worker, while it would rebuild a function
from the driver's `__main__` for every task.
"""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sized

import msgspec
import pyarrow as pa

from instep import errors, settings, sinks
from instep.document.decoding import Decoder, Record
from instep.document.guard import Verdict
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.pipeline import arrow_records, continuity, failures
from instep.pipeline.apply import transaction
from instep.pipeline.apply.batch import BatchOutcome, Probe, ProbeEvent, Writer, no_probe
from instep.sinks import inspection
from instep.sinks.sink import Sink
from instep.sinks.target import Target

RUN_BYTES_MAX = 32 * 1024 * 1024
RUN_RECORDS_MAX = 100_000
TRANSIENT_TRIES_MAX = 8
RECONNECT_PATIENCE_S = 2.0
BROKER_PATIENCE_S = 5.0  # short, because a transaction is open meanwhile
TOPIC_DOUBT_S = 2.0  # a broker that has just started may not know its topics yet
FRESHNESS_BOUNDS_S = (
    0.025,
    0.05,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)

COUNTS = ("records", *(verdict.value for verdict in Verdict), "dead", "freshness_us")
BUCKETS = tuple(f"bucket_{number}" for number in range(len(FRESHNESS_BOUNDS_S) + 1))
SCHEMA = pa.schema([(name, pa.int64()) for name in (*COUNTS, *BUCKETS)])
SPARK_SCHEMA = ", ".join(f"{name} long" for name in SCHEMA.names)


class TaskPlan(msgspec.Struct, frozen=True):
    """Everything that a task needs besides its records."""

    target: Target
    pipeline: settings.Pipeline
    writer: Writer
    kafka: settings.Kafka
    bootstrap: str


_tasks_done = 0
_opened: dict[Target, tuple[Sink, Decoder]] = {}
_clusters: dict[str, Cluster] = {}


def run(plan: TaskPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply every run of records of one partition; yield the counts of each."""
    _calm_collector()
    probe = _probe()
    probe(ProbeEvent(plan.target.pipeline, 0))
    try:
        for partition, records in _runs(batches):
            yield _count_row(_apply(plan, partition, records, probe))
    except errors.InstepError as error:
        # Without its cause, which may quote a record that looks like an error of ours.
        raise failures.TaskFailed(error) from None


def apply_here(plan: TaskPlan, partition: int, records: list[Record]) -> BatchOutcome:
    """Apply records without Spark, in the driver."""
    try:
        return _apply(plan, partition, records, _probe())
    finally:
        _forget(plan.target)


def ping(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep workers and their connections alive: Spark ends those that are idle for a minute."""
    for batch in batches:
        time.sleep(0.05)  # long enough that every worker gets one of these tasks
        yield batch


def _apply(plan: TaskPlan, partition: int, records: list[Record], probe: Probe) -> BatchOutcome:
    """Run the transaction; retry it if the type of the error allows that."""
    work = transaction.BatchTransaction(
        plan.writer,
        partition,
        records,
        functools.partial(_log_holds, plan),
        probe,
        same_topic=SameTopic(plan),
        same_table=functools.partial(_refuse_changed, plan),
    )
    tries, give_up_at, wait_s = 0, time.monotonic() + RECONNECT_PATIENCE_S, 0.05
    while True:
        try:
            return work.apply(*_sink(plan.target))
        except errors.Transient:
            tries += 1
            if tries >= TRANSIENT_TRIES_MAX:
                raise
        except errors.Unreachable:
            _forget(plan.target)
            if time.monotonic() >= give_up_at:
                raise
        except BaseException:
            _forget(plan.target)
            raise
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, 1.0)


class SameTopic:
    """Checks that the records in memory came from the topic that the ledger knows.

    The topic's id is requested after the records were read, and the id of a deleted topic never
    comes back. So an equal id proves that they came from this topic, and one answer serves all
    retries. The request is sent at once, and its answer awaited only when the check is called, so
    that the broker's answer and the database's work overlap.
    """

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._confirmed = False
        self._answer: Callable[[], str] | None = self._request_id()

    def __call__(self) -> None:
        """Raise if the topic was replaced or deleted."""
        if self._confirmed:
            return
        answer, self._answer = self._answer or self._request_id(), None
        try:
            topic_id = answer()
        except errors.TopicMissing:
            time.sleep(TOPIC_DOUBT_S)
            topic_id = self._request_again()
        if topic_id != self._plan.writer.topic_id:
            raise continuity.replaced(self._plan.target.pipeline, self._plan.target.topic)
        self._confirmed = True

    def _request_id(self) -> Callable[[], str]:
        return topics.request_id(_cluster(self._plan), self._plan.target.topic)

    def _request_again(self) -> str:
        try:
            return self._request_id()()
        except errors.TopicMissing as error:
            raise continuity.gone(
                self._plan.target.pipeline, self._plan.target.topic, ()
            ) from error


def _log_holds(plan: TaskPlan, partition: int, start: int, end: int) -> bool:
    """Return whether the log holds, or may have lost, a committed record between two offsets.

    This is called only if offsets are missing between two records.
    """
    cluster, topic = _cluster(plan), plan.target.topic
    if offsets.earliest(cluster, topic, [partition])[partition] > start:
        return True
    record = offsets.first_records(cluster, topic, {partition: start})[partition]
    return record is not None and record.offset < end


def _refuse_changed(plan: TaskPlan) -> None:
    """Raise a named stop if the table was altered: its refusals must not park documents."""
    inspection.refuse_constrained(plan.target, plan.pipeline)


def _cluster(plan: TaskPlan) -> Cluster:
    if plan.bootstrap not in _clusters:
        _clusters[plan.bootstrap] = Cluster(plan.kafka, plan.bootstrap, BROKER_PATIENCE_S)
    return _clusters[plan.bootstrap]


def _sink(target: Target) -> tuple[Sink, Decoder]:
    if target not in _opened:
        sink = sinks.open_sink(target)
        _opened[target] = (sink, Decoder(target.mapping, sink.record_bytes_max))
    return _opened[target]


def _forget(target: Target) -> None:
    opened = _opened.pop(target, None)
    if opened:
        opened[0].close()


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[Record]]]:
    """Yield runs of consecutive records of one partition, each small enough for memory."""
    current, size = -1, 0
    records: list[Record] = []
    for batch in batches:
        for partition, offset, timestamp_ms, key, value, headers in arrow_records.rows(batch):
            if records and (partition != current or is_full(records, size)):
                yield current, records
                records, size = [], 0
            current = partition
            records.append(Record(offset, timestamp_ms, key, value, partition, headers))
            size += len(value) if value is not None else 0
    if records:
        yield current, records


def is_full(records: Sized, size: int) -> bool:
    """Return whether these records, of `size` bytes, must be applied before more are read."""
    return size > RUN_BYTES_MAX or len(records) >= RUN_RECORDS_MAX


def _count_row(outcome: BatchOutcome) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([count], pa.int64()) for count in counts(outcome).values()], schema=SCHEMA
    )


def counts(outcome: BatchOutcome) -> dict[str, int]:
    """Return the counts of a transaction by the names of SCHEMA."""
    ranked = sorted(outcome.freshness_us)
    ends = [
        0,
        *(bisect_right(ranked, bound * 1_000_000) for bound in FRESHNESS_BOUNDS_S),
        len(ranked),
    ]
    buckets = [end - start for start, end in itertools.pairwise(ends)]
    totals = [
        outcome.records,
        *(outcome.verdicts[verdict] for verdict in Verdict),
        outcome.dead,
        sum(outcome.freshness_us),
    ]
    return dict(zip(SCHEMA.names, (*totals, *buckets), strict=True))


def _calm_collector() -> None:
    """Exclude what is loaded by the second task from garbage collection.

    PySpark collects garbage after every task, and would scan the loaded modules each time.
    """
    global _tasks_done
    _tasks_done += 1
    if _tasks_done == 2:
        gc.collect()
        gc.freeze()


def _probe() -> Probe:
    """Return the function, named by INSTEP_PROBE as module:function, that observes transactions.

    Tests and experiments use it to act between two steps.
    """
    name = os.environ.get("INSTEP_PROBE")
    if not name:
        return no_probe
    module, _, function = name.partition(":")
    probe: Probe = getattr(importlib.import_module(module), function)
    return probe
