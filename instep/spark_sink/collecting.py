"""Bring the rows of a micro-batch to the driver, for the foreachBatch door.

There are two ways:

- **Through tasks** of Python (`task.py`), which stage rows in the database if they are many. The
  driver's memory is bounded, whatever comes. The first batch of a query takes this way.
- **Directly**, as Spark's JVM makes Arrow batches of rows, without a Python worker: that costs
  about a third of the time. The driver gets all rows at once, so a batch takes this way only if
  the one before it was small. Each partition returns a limited number of rows. If one has more,
  the batch is done again, through tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from instep.spark_sink.definition import SinkDefinition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from instep.sinks.target import Target
    from instep.spark_sink.merge import TaskMessage

DIRECT_BYTES_MAX = 32 * 1024 * 1024  # of a batch that is expected to have a quarter of it
GROWTH = 4
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
ROWS_MIN = 1_000  # of a partition
COUNT_EVERY = 50  # batches; the number of partitions may have changed
# What Spark's monotonically_increasing_id has: the number of a row in its partition, and above it
# that of the partition.
NUMBER = "instep_row_number"
NUMBER_BITS = 33


class RowCollector:
    """Collects the batches of one query. It remembers how large the last one was."""

    def __init__(self, definition: SinkDefinition) -> None:
        self._definition = definition
        self._rows_max = 0  # of each partition, if rows come directly
        self._message_bytes: int | None = None
        self._partitions, self._direct = 1, 0

    def collect(
        self, rows: DataFrame, targets: list[Target], *, only_count: bool
    ) -> list[TaskMessage]:
        """Return the messages with the rows; with `only_count`, their digest is only a number."""
        messages = None
        if self._rows_max and NUMBER not in rows.columns:
            messages = self._directly(rows, only_count)
        return messages or self._through_tasks(rows, targets, only_count)

    def _directly(self, rows: DataFrame, only_count: bool) -> list[TaskMessage] | None:
        """Return the rows in one message; None if they are too many."""
        import pyarrow as pa

        from instep.spark_sink import encoding
        from instep.spark_sink.merge import TaskMessage

        self._direct += 1
        one_partition = self._partitions == 1 and self._direct % COUNT_EVERY != 0
        limited: Any = _limited(rows, self._rows_max, one_partition=one_partition)
        found = pa.Table.from_batches(limited._collect_as_arrow(empty_list_if_zero_records=False))
        partitions: Counter[int] = Counter()
        if NUMBER in found.column_names:
            partitions.update(at >> NUMBER_BITS for at in found.column(NUMBER).to_pylist())
            found = found.drop_columns([NUMBER])
            self._partitions = max(1, len(partitions))
        else:
            partitions[0] = found.num_rows
        if max(partitions.values(), default=0) > self._rows_max:
            self._rows_max = 0
            return None
        digest = encoding.RowDigest(only_count=only_count)
        chunks = list(encoding.encode(found.to_batches(), self._definition.tables, digest))
        self._note(found.num_rows, found.nbytes, self._partitions)
        return [TaskMessage("", "", digest.text, chunks)]

    def _through_tasks(
        self, rows: DataFrame, targets: list[Target], only_count: bool
    ) -> list[TaskMessage]:
        from instep.spark_sink.merge import TaskMessage

        defined, message_bytes = self._definition, self._message_bytes

        def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            from instep.spark_sink import task

            counted = task.Counted(batches)
            message = task.run(
                counted, defined, targets, only_count=only_count, message_bytes=message_bytes
            )
            packed = msgspec.msgpack.encode(message)
            yield pa.record_batch(
                [pa.array([packed]), pa.array([counted.rows]), pa.array([counted.bytes])],
                names=["message", "rows", "bytes"],
            )

        schema = "message binary, rows long, bytes long"
        if hasattr(rows, "_jdf"):
            from instep.pipeline.micro_batch.arrow import map_batches

            mapped = map_batches(rows, encode, schema)
        else:
            mapped = rows.mapInArrow(encode, schema)
        found = mapped.collect()
        if hasattr(rows, "_jdf"):
            self._note(
                sum(row["rows"] for row in found), sum(row["bytes"] for row in found), len(found)
            )
        return [msgspec.msgpack.decode(bytes(row[0]), type=TaskMessage) for row in found]

    def _note(self, rows: int, size: int, partitions: int) -> None:
        """Note the size of a batch, which says how the next one comes."""
        self._partitions = max(1, partitions)
        self._message_bytes = min(MESSAGE_BYTES_MAX, DIRECT_BYTES_MAX // self._partitions)
        self._rows_max = 0
        if size * GROWTH <= DIRECT_BYTES_MAX:
            of_row = size / rows if rows else 1_000
            self._rows_max = max(ROWS_MIN, int(DIRECT_BYTES_MAX / of_row / self._partitions))


def _limited(rows: DataFrame, rows_max: int, *, one_partition: bool) -> DataFrame:
    """Return at most one row more than `rows_max` of each partition.

    Of one partition this is LIMIT. Of several, LIMIT would shuffle rows: then they are numbered,
    which also shows how many partitions there are.
    """
    if one_partition:
        return rows.limit(rows_max + 1)
    numbered = rows.selectExpr("*", f"monotonically_increasing_id() AS {NUMBER}")
    return numbered.where(f"({NUMBER} & {2**NUMBER_BITS - 1}) <= {rows_max}")
