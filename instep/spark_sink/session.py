"""The open connection of a sink, and how its transactions are repeated by the type of an error.

A process keeps the connection of a sink between micro-batches: in the driver behind foreachBatch,
in Spark's commit worker behind the format.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from instep import errors, sinks
from instep.document.showing import counted
from instep.sinks.sink import Sink
from instep.sinks.target import Target
from instep.spark_sink import remedies, targets
from instep.spark_sink.decision import IncomingBatch
from instep.spark_sink.definition import SinkDefinition
from instep.spark_sink.merge import Merge, MergeResult, TaskMessage
from instep.spark_sink.targets import SinkSchema
from instep.waiting import retrying

log = logging.getLogger("instep.spark_sink")

INSPECTED_S = 30.0  # as in a pipeline: how long a constraint that is added may go unnoticed
TRIES_MAX = 8
RECONNECT_S = 20.0  # for a server that restarts; then the query fails, and Spark may restart it
SESSIONS_MAX = 8


class SinkSession:
    """A sink with its tables inspected. Not for use by several threads at once."""

    def __init__(self, definition: SinkDefinition, schema: SinkSchema) -> None:
        self.definition, self._schema = definition, schema
        self.targets: list[Target] = []
        self._sinks: list[Sink] = []
        self._inspected_at = 0.0
        self.lock = threading.Lock()

    def inspect(self) -> list[Target]:
        """Return the targets; inspect the tables if that was some time ago.

        A table with another constraint, trigger or key needs other statements: the connection is
        opened again.
        """
        if self.targets and time.monotonic() - self._inspected_at < INSPECTED_S:
            return self.targets
        fields = self._schema.fields
        if not self.targets:
            self.targets = targets.inspect(self.definition, fields)
        else:
            current = self._current()
            if current != self.targets:
                self.close()
                self.targets = current
        self._inspected_at = time.monotonic()
        return self.targets

    def merge(
        self, batch: IncomingBatch, messages: Sequence[TaskMessage], *, is_stream: bool = True
    ) -> MergeResult:
        """Apply a batch; repeat it if the database aborted it, or is away for a moment."""
        started = time.monotonic()
        tries = 0

        def may_retry(error: Exception) -> bool:
            nonlocal tries
            if isinstance(error, errors.TableConstrained):
                return True
            if isinstance(error, errors.Transient):
                tries += 1
                return tries < TRIES_MAX
            return (
                isinstance(error, errors.DatabaseUnreachable)
                and time.monotonic() - started < RECONNECT_S
            )

        result = retrying(lambda: self._merge(batch, messages, is_stream), may_retry)
        if result.reasons:
            log.warning("%s", self._warning(batch, result))
        return result

    def _warning(self, batch: IncomingBatch, result: MergeResult) -> str:
        """Return the warning for a batch with rows in quarantine."""
        reasons = ", ".join(f"{name}: {count}" for name, count in sorted(result.reasons.items()))
        return (
            f"sink {self.definition.name!r}, batch {batch.batch_id}: {result.quarantined} of"
            f" {counted(result.rows, 'row')} went to quarantine ({reasons}); see:"
            " instep parked list --url URL, instep dead list --url URL"
        )

    def _merge(
        self, batch: IncomingBatch, messages: Sequence[TaskMessage], is_stream: bool
    ) -> MergeResult:
        try:
            self.inspect()
            if not self._sinks:
                self._sinks = sinks.open_sinks(self.targets)
            return Merge(
                self.definition,
                self._sinks,
                batch,
                messages,
                same_tables=self._refuse_other_tables,
                is_stream=is_stream,
            ).apply()
        except BaseException:
            self.close()
            raise

    def _refuse_other_tables(self) -> None:
        """Raise if a table is not as it was inspected."""
        self._inspected_at = 0.0
        known = self.targets
        current = self._current()
        if current != known:
            self.targets = current
            raise errors.TableConstrained(
                f"the constraints, triggers or keys of a table of sink {self.definition.name!r}"
                " were changed"
            )

    def _current(self) -> list[Target]:
        """Return the targets as they are now; raise TargetChanged if columns have changed.

        The query ends then. The next one in this process begins with the tables as they are.
        """
        try:
            return targets.refuse_changed(self.definition, self._schema.fields, self.targets)
        except errors.TargetChanged:
            self.targets = []
            raise

    def close(self) -> None:
        """Close the connection. It is opened again when it is needed."""
        for sink in self._sinks[:1]:  # the others share its connection
            with contextlib.suppress(Exception):
                sink.close()
        self._sinks = []


_sessions: dict[tuple[SinkDefinition, SinkSchema], SinkSession] = {}
_sessions_lock = threading.Lock()


@contextmanager
def session_of(definition: SinkDefinition, schema: SinkSchema) -> Iterator[SinkSession]:
    """Yield this process's session of a sink, for one thread at a time."""
    with _sessions_lock:
        key = (definition, schema)
        found = _sessions.pop(key, None) or SinkSession(definition, schema)
        _sessions[key] = found
        if len(_sessions) > SESSIONS_MAX:
            oldest = next(iter(_sessions))
            if not _sessions[oldest].lock.locked():
                _sessions.pop(oldest).close()
    with found.lock, remedies.in_terms_of_a_sink():
        yield found
