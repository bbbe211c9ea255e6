"""What runs inside the Spark task of a micro-batch: apply records, return one row of counts.

Spark uses a worker process for many tasks. The connection to the target is kept between them as a
global of this module: Spark imports a module once per worker, while it would rebuild a function
from the driver's `__main__` for every task.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pyarrow as pa

from instep import errors
from instep.document.decoding import Record
from instep.pipeline import counts, failures
from instep.pipeline.applier import Applier, TaskPlan, is_full
from instep.pipeline.apply.batch import BatchOutcome, ProbeEvent, find_probe
from instep.pipeline.micro_batch import arrow_records
from instep.sinks.target import Target

SCHEMA = pa.schema([(name, pa.int64()) for name in counts.NAMES])
SPARK_SCHEMA = ", ".join(f"{name} long" for name in counts.NAMES)

_tasks_done = 0
_appliers: dict[Target, Applier] = {}


def run(plan: TaskPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply every run of records of one partition; yield the counts of each."""
    calm_collector()
    find_probe()(ProbeEvent(plan.target.pipeline, 0))
    applier = applier_for(plan)
    try:
        for partition, records in runs(batches):
            yield count_row(applier.apply(partition, records))
    except errors.InstepError as error:
        # Without its cause, which may quote a record that looks like an error of ours.
        raise failures.TaskFailed(error) from None


def ping(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep workers and their connections alive: Spark ends those that are idle for a minute."""
    for batch in batches:
        time.sleep(0.05)  # long enough that every worker gets one of these tasks
        yield batch


def applier_for(plan: TaskPlan) -> Applier:
    """Return the applier with this target's connection; a restarted query has another plan."""
    applier = _appliers.setdefault(plan.target, Applier(plan))
    applier.plan = plan
    return applier


def runs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[Record]]]:
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


def count_row(outcome: BatchOutcome) -> pa.RecordBatch:
    """Return the counts of a transaction as a row."""
    row = counts.counts(outcome)
    return pa.RecordBatch.from_arrays(
        [pa.array([count], pa.int64()) for count in row.values()], schema=SCHEMA
    )


def calm_collector() -> None:
    """Exclude what is loaded by the second task from garbage collection.

    PySpark collects garbage after every task, and would scan the loaded modules each time.
    """
    global _tasks_done
    _tasks_done += 1
    if _tasks_done == 2:
        gc.collect()
        gc.freeze()
