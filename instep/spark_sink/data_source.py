"""The format door: `df.writeStream.format("instep")` and `df.write.format("instep")`.

Spark pickles a writer to its tasks, and makes a new one in a worker of the driver for every commit.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from instep import errors, sinks
from instep.sinks import batches as stored_batches
from instep.sinks.target import Target
from instep.spark_sink import definition, encoding, session, task
from instep.spark_sink.decision import IncomingBatch
from instep.spark_sink.merge import TaskMessage
from instep.spark_sink.targets import SinkSchema

# What Spark runs in the driver's worker that commits and aborts micro-batches.
COMMIT_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"


@dataclass
class SinkCommit(WriterCommitMessage):
    """The message of a task, as Spark carries it to the driver."""

    packed: bytes


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query."""
    if overwrite:
        raise errors.SettingsError(
            'outputMode("complete") writes the whole result at every batch, which the sink does not'
            " support",
            'use outputMode("append"), or outputMode("update") with foreachBatch(instep.sink(...))',
        )
    writer = StreamWriter(options, schema)
    # A commit inspects the tables itself. An abort must not fail: Spark would only report that.
    if COMMIT_WORKER not in sys.modules:
        writer.check()
        if warning := definition.unsafe_checkpoint(options):
            session.log.warning("%s", warning)
    return writer


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a batch job."""
    if overwrite:
        raise errors.SettingsError(
            'mode("overwrite") would replace the table, which the sink does not support',
            'use mode("append"): rows of existing keys are updated',
        )
    writer = BatchWriter(options, schema)
    writer.check()
    return writer


class _SinkWriter:
    """What both writers do: check everything before the first row, and encode rows in tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._definition = definition.from_options(options)
        self._schema = SinkSchema(schema.json())
        self._targets: list[Target] = []

    def check(self) -> None:
        """Compare the schema with the tables. Tasks use what is found."""
        with session.session_of(self._definition, self._schema) as opened:
            self._targets = opened.inspect()

    def _encode(self, batches: Iterator[pa.RecordBatch], write: str | None = None) -> SinkCommit:
        message = task.run(batches, self._definition, self._targets, write=write)
        return SinkCommit(msgspec.msgpack.encode(message))

    def _merge(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batch_id: int,
        *,
        is_stream: bool,
    ) -> None:
        found = [
            msgspec.msgpack.decode(message.packed, type=TaskMessage)
            for message in messages
            if isinstance(message, SinkCommit)
        ]
        batch = IncomingBatch(
            found[0].query_id,
            found[0].run_id,
            batch_id,
            encoding.combined(message.digest for message in found),
        )
        with session.session_of(self._definition, self._schema) as opened:
            opened.merge(batch, found, is_stream=is_stream)


class StreamWriter(_SinkWriter, DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        return self._encode(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._merge(messages, batchId, is_stream=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave staged rows alone: the next merge removes them."""


class BatchWriter(_SinkWriter, DataSourceArrowWriter):
    """Writes the rows of a batch job in one transaction. All its tasks know its id."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._write = stored_batches.new_write()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        return self._encode(iterator, self._write)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if any(message is not None for message in messages):
            self._merge(messages, 0, is_stream=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Remove what its tasks have staged. If that fails, a later write does it."""
        with contextlib.suppress(errors.InstepError):
            sink = sinks.open_sink(self._targets[0])
            try:
                with sink.transaction():
                    state = stored_batches.Batches(sink.connection, self._definition.name)
                    state.remove_write(self._write)
            finally:
                sink.close()
