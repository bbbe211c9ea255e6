"""What runs inside a Spark task: records in, transactions done, one row of counts out.

A worker process is used by many tasks; the connection to the target is kept between them, here, in an importable
module (a function shipped from the driver's `__main__` would be made anew for every task).
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
from typing import Any

import msgspec
import pyarrow as pa

from instep import errors, settings, sinks
from instep.document.decoding import Decoder, Record
from instep.document.guard import Verdict
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.pipeline import arrow_records as arriving
from instep.pipeline import continuity, failures
from instep.pipeline.apply import transaction
from instep.pipeline.apply.batch import BatchOutcome, Probe, ProbeEvent, Writer, no_probe
from instep.sinks import inspection
from instep.sinks.sink import Sink
from instep.sinks.target import Target

RUN_BYTES_MAX = 32 * 1024 * 1024
RUN_RECORDS_MAX = 100_000
TRANSIENT_TRIES_MAX = 8
RECONNECT_PATIENCE_S = 2.0
BROKER_PATIENCE_S = 5.0  # a transaction is open meanwhile
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
    """Everything a task needs besides its records."""

    target: Target
    pipeline: settings.Pipeline
    writer: Writer
    kafka: settings.Kafka
    bootstrap: str


_tasks_done = 0
_opened: dict[Target, tuple[Sink, Decoder]] = {}
_clusters: dict[str, Cluster] = {}


def run(plan: TaskPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply every run of records of one partition, and give back what was done."""
    _calm_collector()
    probe = _probe()
    probe(ProbeEvent(plan.target.pipeline, 0))
    try:
        for partition, records in _runs(batches):
            yield _counted(_apply(plan, partition, records, probe))
    except errors.InstepError as error:
        raise failures.TaskFailed(
            error
        ) from None  # the cause may quote a record, which must not be read as an error


def apply_here(plan: TaskPlan, partition: int, records: list[Record]) -> BatchOutcome:
    """The same without Spark, in the driver."""
    try:
        return _apply(plan, partition, records, _probe())
    finally:
        _forget(plan.target)


def ping(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keeps idle workers, and with them their connections, alive: Spark ends those that did nothing for a minute."""
    for batch in batches:
        time.sleep(0.05)  # long enough for every worker to get one of these
        yield batch


def _apply(plan: TaskPlan, partition: int, records: list[Record], probe: Probe) -> BatchOutcome:
    """The transaction, tried again by the type of what went wrong."""
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
    """Makes sure that records which are in memory came from the topic that the ledger knows.

    The topic is asked for its id after they were read, and a deleted topic's id never returns: so the answer is about them, and
    one is enough for all tries. The question is put at once and the answer awaited when called, behind the database's work.
    """

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._sure = False
        self._answer: Callable[[], str] | None = self._ask()

    def __call__(self) -> None:
        if self._sure:
            return
        answer, self._answer = self._answer or self._ask(), None
        try:
            found = answer()
        except errors.TopicMissing:
            time.sleep(TOPIC_DOUBT_S)
            found = self._ask_again()
        if found != self._plan.writer.topic_id:
            raise continuity.replaced(self._plan.target.pipeline, self._plan.target.topic)
        self._sure = True

    def _ask(self) -> Callable[[], str]:
        return topics.ask_id(_cluster(self._plan), self._plan.target.topic)

    def _ask_again(self) -> str:
        try:
            return self._ask()()
        except errors.TopicMissing as error:
            raise continuity.gone(
                self._plan.target.pipeline, self._plan.target.topic, ()
            ) from error


def _log_holds(plan: TaskPlan, partition: int, start: int, end: int) -> bool:
    """Whether the log has a committed record of the partition between two offsets, or may have lost one there.

    Asked only where offsets are missing.
    """
    cluster, topic = _cluster(plan), plan.target.topic
    if offsets.earliest(cluster, topic, [partition])[partition] > start:
        return True
    found = offsets.first_records(cluster, topic, {partition: start})[partition]
    return found is not None and found.offset < end


def _refuse_changed(plan: TaskPlan) -> None:
    """A table that was altered refuses every row: that is a stop, and no reason to set documents aside."""
    inspection.refuse_restrained(plan.target, plan.pipeline)


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
    """Consecutive records of one partition; a run is cut when it grows large, as memory must stay bounded."""
    current, size = -1, 0
    records: list[Record] = []
    for batch in batches:
        for partition, offset, timestamp_ms, key, value, headers in arriving.rows(batch):
            if records and (partition != current or is_full(records, size)):
                yield current, records
                records, size = [], 0
            current = partition
            records.append(Record(offset, timestamp_ms, key, value, partition, headers))
            size += len(value) if value is not None else 0
    if records:
        yield current, records


def is_full(records: Sized, size: int) -> bool:
    """Whether these records, with so many bytes, are to be applied before more of them are taken."""
    return size > RUN_BYTES_MAX or len(records) >= RUN_RECORDS_MAX


def _counted(outcome: BatchOutcome) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([count], pa.int64()) for count in counts(outcome).values()], schema=SCHEMA
    )


def counts(outcome: BatchOutcome) -> dict[str, int]:
    """What a transaction did, in numbers, by the names of SCHEMA."""
    ranked = sorted(outcome.freshness_us)
    ends = [
        0,
        *(bisect_right(ranked, bound * 1_000_000) for bound in FRESHNESS_BOUNDS_S),
        len(ranked),
    ]
    buckets = [end - start for start, end in itertools.pairwise(ends)]
    done = [
        outcome.records,
        *(outcome.verdicts[verdict] for verdict in Verdict),
        outcome.dead,
        sum(outcome.freshness_us),
    ]
    return dict(zip(SCHEMA.names, (*done, *buckets), strict=True))


def _calm_collector() -> None:
    """PySpark collects all garbage after every task. What is loaded by the second task stays, so take it out of the count."""
    global _tasks_done
    _tasks_done += 1
    if _tasks_done == 2:
        gc.collect()
        gc.freeze()


def _probe() -> Probe:
    """Trials watch the steps of the transaction: INSTEP_PROBE names their function, as module:function."""
    named = os.environ.get("INSTEP_PROBE")
    if not named:
        return no_probe
    module, _, function = named.partition(":")
    probe: Any = getattr(importlib.import_module(module), function)
    watch: Probe = probe
    return watch
