"""What a task does with its rows: encode them, and stage them if they are many."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext

from instep import errors, sinks
from instep.pipeline.apply.batch import ProbeEvent, find_probe
from instep.sinks.batches import Batches
from instep.sinks.sink import Sink
from instep.sinks.target import Target
from instep.spark_sink import encoding, remedies
from instep.spark_sink.definition import SinkDefinition
from instep.spark_sink.merge import TaskMessage
from instep.waiting import retrying

MESSAGE_BYTES_MAX = 256 * 1024
STAGE_BYTES = 4 * 1024 * 1024  # in one transaction
TRIES_MAX = 8
QUERY_ID, RUN_ID, BATCH_ID = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"


class Counted:
    """Arrow batches, with the rows and bytes that have passed."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = self.bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            self.bytes += batch.nbytes
            yield batch


def run(
    batches: Iterable[pa.RecordBatch],
    definition: SinkDefinition,
    targets: Sequence[Target],
    *,
    write: str | None = None,
    only_count: bool = False,
    message_bytes: int | None = None,
) -> TaskMessage:
    """Return the message for the driver, with the rows or with the token of staged ones.

    `write` is the run id of a single write; the job of a stream knows that of its run.
    A message has at most `message_bytes`. With `only_count`, the digest is the number of rows.
    """
    query_id, run_id, batch_id = (_property(name) for name in (QUERY_ID, RUN_ID, BATCH_ID))
    run_id = write or run_id
    probe, number = find_probe(), int(batch_id or 0)
    probe(ProbeEvent(definition.name, 0, 0, number, number))
    digest = encoding.RowDigest(only_count=only_count)
    chunks: list[bytes] = []
    size = 0
    stage: _Stage | None = None
    try:
        for chunk in encoding.encode(batches, definition.tables, digest):
            chunks.append(chunk)
            size += len(chunk)
            if stage is None and size > (message_bytes or MESSAGE_BYTES_MAX):
                stage = _Stage(definition, targets[0], run_id, number)
            if stage is not None and size > STAGE_BYTES:
                stage.add(chunks)
                chunks, size = [], 0
        if stage is None:
            return TaskMessage(query_id, run_id, digest.text, chunks)
        stage.add(chunks)
        return TaskMessage(query_id, run_id, digest.text, [], stage.token, stage.count)
    finally:
        if stage is not None:
            stage.close()


class _Stage:
    """The staged rows of one attempt of a task."""

    def __init__(
        self, definition: SinkDefinition, target: Target, run_id: str, batch_id: int
    ) -> None:
        self.token, self.count = secrets.token_hex(16), 0
        self._definition, self._target = definition, target
        self._run_id, self._batch_id = run_id, batch_id
        self._sink: Sink | None = None

    def add(self, chunks: Sequence[bytes]) -> None:
        """Stage chunks in a transaction."""
        with remedies.in_terms_of_a_sink():
            self.count += retrying(
                lambda: self._add(chunks),
                lambda error: isinstance(error, errors.Transient),
                tries_max=TRIES_MAX,
            )

    def _add(self, chunks: Sequence[bytes]) -> int:
        if self._sink is None:
            self._sink = sinks.open_sink(self._target)
        with self._sink.transaction():
            state = Batches(self._sink.connection, self._definition.name)
            return state.stage(self.token, self._run_id, self._batch_id, self.count, chunks)

    def close(self) -> None:
        if self._sink is not None:
            with contextlib.suppress(Exception):
                self._sink.close()


def _property(name: str) -> str:
    """Return a property of the task's job; empty if it has none, as in a batch job."""
    context = TaskContext.get()
    return (context.getLocalProperty(name) if context else None) or ""
