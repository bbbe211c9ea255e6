"""The foreachBatch door: `foreachBatch(instep.sink(...))`, for update mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from instep import errors
from instep.spark_sink import definition
from instep.spark_sink.calls import CALLS
from instep.spark_sink.collecting import RowCollector
from instep.spark_sink.definition import SinkDefinition, SinkTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from instep.spark_sink.merge import MergeResult


def sink(
    url: str, *tables: SinkTable, name: str | None = None, on_error: str = "stop"
) -> BatchSink:
    """Return a function for `foreachBatch` that writes each micro-batch exactly once.

    All tables are written in one transaction. `name` identifies the sink in the database; without
    it, the names of the tables do. `on_error` is what becomes of rows that a table refuses: "stop"
    fails the query before anything is written, "park" keeps them in quarantine.
    """
    return BatchSink(definition.define(url, tables, name=name, on_error=on_error))


class BatchSink:
    """Writes the micro-batches of one streaming query."""

    def __init__(self, defined: SinkDefinition) -> None:
        self._definition = defined
        self._collector = RowCollector(defined)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, unless it was written before."""
        self.write(rows, batch_id)

    def write(self, rows: DataFrame, batch_id: int) -> MergeResult:
        """Do the same, and return what became of the rows: for a function of your own."""
        try:
            return self._write(rows, batch_id)
        except Exception:
            raise
        except BaseException as error:
            # Spark would wait for ever for an answer of this function.
            raise RuntimeError(f"the batch was interrupted: {error!r}") from error

    def _write(self, rows: DataFrame, batch_id: int) -> MergeResult:
        from instep.spark_sink import encoding, session
        from instep.spark_sink.decision import IncomingBatch
        from instep.spark_sink.targets import SinkSchema

        schema = SinkSchema(rows.schema.json())
        planned = _Planned.of(rows)
        if planned.is_complete:
            raise errors.SettingsError(
                'outputMode("complete") brings the whole result at every batch: rows that leave it'
                " would stay in the table",
                'use outputMode("update")',
            )
        CALLS.refuse_second(self._definition, planned.run_id, batch_id)
        with session.session_of(self._definition, schema) as opened:
            targets = opened.inspect()
        messages = self._collector.collect(rows, targets, only_count=planned.offsets is not None)
        batch = IncomingBatch(
            planned.query_id,
            planned.run_id,
            batch_id,
            encoding.combined(one.digest for one in messages),
            planned.offsets,
        )
        with session.session_of(self._definition, schema) as opened:
            result = opened.merge(batch, messages)
        CALLS.finish(self._definition, planned.run_id, batch_id)
        return result


class _Planned(msgspec.Struct, frozen=True):
    """What the driver knows of a batch."""

    query_id: str
    run_id: str
    offsets: str | None = None
    is_complete: bool = False

    @classmethod
    def of(cls, rows: DataFrame) -> _Planned:
        """Return what Spark has planned.

        The planned offsets count, not those of the checkpoint's file: with two drivers and a file
        system that is not atomic, the file may be the other driver's.
        """
        from instep.spark_sink import decision

        if not hasattr(rows, "_jdf"):
            return cls._of_connect(rows)
        running = _running(rows)
        if running is None:
            raise errors.SettingsError(
                "the rows do not come from a streaming query",
                "pass the sink to writeStream.foreachBatch, or write a batch:"
                ' df.write.format("instep")',
            )
        execution = running.execution
        return cls(
            running.query_id,
            running.run_id,
            decision.planned(
                _offsets(execution, execution.committedOffsets()),
                _offsets(execution, execution.availableOffsets()),
            ),
            running.is_complete,
        )

    @classmethod
    def _of_connect(cls, rows: DataFrame) -> _Planned:
        """Return the only query of the session.

        Spark Connect calls the function in a process that knows neither query nor offsets.
        """
        active = rows.sparkSession.streams.active
        if len(active) != 1:
            raise errors.SettingsError(
                f"the session of Spark Connect runs {len(active)} streaming queries, and does not"
                " tell which of them the rows are from",
                "run a query with foreachBatch in a session of its own, or use"
                ' writeStream.format("instep")',
            )
        return cls(str(active[0].id), str(active[0].runId))


class _Running(msgspec.Struct, frozen=True):
    """A query that runs: its object in Spark's JVM, and what does not change while it runs."""

    execution: Any
    query_id: str
    run_id: str
    is_complete: bool


_known: dict[tuple[str, str], _Running] = {}  # by query and run; calls into the JVM take time
KNOWN_MAX = 8


def _running(rows: DataFrame) -> _Running | None:
    """Return the running query; None if the rows are not of a stream."""
    context: Any = rows.sparkSession.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        return None
    run_id = context.getLocalProperty("spark.jobGroup.id")
    found = _known.get((query_id, run_id))
    if found is None:
        session: Any = rows.sparkSession
        # Not from the session's own list of queries: this session is a copy of the one with it.
        running = session._jsparkSession.sharedState().activeStreamingQueries()
        execution = running.get(context._jvm.java.util.UUID.fromString(query_id))
        if execution is None:
            return None
        is_complete = execution.outputMode().toString() == "Complete"
        found = _Running(execution, query_id, execution.runId().toString(), is_complete)
        # A user may have set a job group of their own, which would name all later runs too.
        if run_id == found.run_id:
            while len(_known) >= KNOWN_MAX:
                _known.pop(next(iter(_known)), None)
            _known[query_id, run_id] = found
    return found


def _offsets(execution: Any, progress: Any) -> str:
    """Return the offsets of each source as JSON, in the order of the sources in the query.

    A source is known by its place, as in Spark's own log: its name may have the address of an
    object, which is another one in each run.
    """
    sources, found = execution.sources(), []
    for number in range(sources.size()):
        offset = progress.get(sources.apply(number))
        if offset.isDefined():
            found.append(f"{number}={_canonical(offset.get().json())}")
    return ";".join(found)


def _canonical(offsets: str) -> str:
    """Return JSON with its fields in order: a restarted query may write them in another."""
    try:
        parsed = msgspec.json.decode(offsets)
    except msgspec.DecodeError:
        return offsets
    return msgspec.json.encode(parsed, order="deterministic").decode()
