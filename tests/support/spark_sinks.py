"""Micro-batches for a sink, without Spark: as its tasks would hand them to the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from instep import sinks
from instep.sinks.sink import Sink
from instep.spark_sink import definition, encoding
from instep.spark_sink.decision import IncomingBatch
from instep.spark_sink.definition import SinkDefinition, SinkTable
from instep.spark_sink.merge import MergeResult, TaskMessage
from instep.spark_sink.session import SinkSession
from instep.spark_sink.targets import SinkSchema


class SinkQuery:
    """A streaming query that writes to a sink; each batch is given by hand."""

    def __init__(
        self,
        url: str,
        *tables: SinkTable,
        schema: pa.Schema,
        on_error: str = "stop",
        query_id: str = "query",
        name: str | None = None,
    ) -> None:
        self.definition: SinkDefinition = definition.define(
            url, tables, name=name, on_error=on_error
        )
        self._schema = schema
        self._query_id = query_id
        self.session = SinkSession(self.definition, SinkSchema(from_arrow_schema(schema).json()))

    def write(
        self,
        batch_id: int,
        rows: Sequence[dict[str, Any]],
        *,
        run_id: str = "run",
        offsets: str | None = None,
    ) -> MergeResult:
        """Write one batch, as two tasks."""
        messages = [self.message(rows[0::2], run_id), self.message(rows[1::2], run_id)]
        return self.merge(batch_id, messages, run_id=run_id, offsets=offsets)

    def merge(
        self,
        batch_id: int,
        messages: Sequence[TaskMessage],
        *,
        run_id: str = "run",
        offsets: str | None = None,
    ) -> MergeResult:
        """Write the batch of these messages."""
        digest = encoding.combined(message.digest for message in messages)
        batch = IncomingBatch(self._query_id, run_id, batch_id, digest, offsets)
        return self.session.merge(batch, messages)

    def message(self, rows: Sequence[dict[str, Any]], run_id: str = "run") -> TaskMessage:
        """Return the message of a task with these rows."""
        digest = encoding.RowDigest()
        batch = pa.RecordBatch.from_pylist(list(rows), schema=self._schema)
        chunks = list(encoding.encode([batch], self.definition.tables, digest))
        return TaskMessage(self._query_id, run_id, digest.text, chunks)

    @contextmanager
    def session_open(self) -> Iterator[Sink]:
        """Yield the connection that the session uses, in its own transaction."""
        if not self.session._sinks:
            self.session._sinks = sinks.open_sinks(self.session.inspect())
        opened = self.session._sinks[0]
        with opened.transaction():
            yield opened

    def close(self) -> None:
        self.session.close()
