"""Transform records with Spark, and find those on which the transformation fails.

Spark gives up a whole batch if one record fails, for example on a text that is no number. The
record is found by halving: each half is tried alone, so that only the record itself fails.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses
from pyspark.sql import types as T  # noqa: N812 - the name that everybody uses

from instep import errors, settings
from instep.document import results
from instep.document.decoding import Record
from instep.document.mapping import KEY, Mapping
from instep.document.results import Result
from instep.pipeline import failures, transformation
from instep.pipeline.micro_batch import arrow
from instep.pipeline.transformation import PREFIX, Transformation, Transformed
from instep.pipeline.transformed import worker
from instep.pipeline.transformed.batches import TaskBatch
from instep.pipeline.transformed.collector import ResultCollector
from instep.pipeline.transformed.worker import RecordSource
from instep.settings import nearest

Made = TypeVar("Made")

RECORDS_MAX = 10_000  # of one job; they travel in its description
BYTES_MAX = 8 * 1024 * 1024
JSON_OPTIONS = {
    "ignoreNullFields": "false",  # null is a value; a field that is missing leaves the column alone
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*?(?= SQLSTATE|\n|$)")
_PYTHON_ERROR = re.compile(r"^(\w*(?:Error|Exception|Warning)\b.*)$", re.MULTILINE)


def record_frame(spark: SparkSession, source: RecordSource, tasks: int) -> DataFrame:
    """Return the records of a batch, in a session for one transformation."""
    starts = transformation.session_for(spark).range(0, tasks, 1, tasks)
    return arrow.map_batches(
        starts, functools.partial(worker.read, source), transformation.CARRIED_SCHEMA
    )


class EventFrame(msgspec.Struct, frozen=True):
    """The events of records, one per row, with what is carried of their record."""

    frame: DataFrame  # columns of `collector.COLUMNS`, without those that nothing fills
    fields: T.StructType  # the columns that the transformation yields
    headers: bool  # whether headers are needed


def event_frame(
    name: str, transform: settings.Transform, mapping: Mapping, records: DataFrame, topic: str
) -> EventFrame:
    """Return the events of records; raise SettingsError if the transformation does not fit."""
    declared = Transformation(
        f"pipelines.{name}.transform", sql=transform.sql, python=transform.python
    )
    found = declared.apply(records, topic)
    transformation.refuse_moved_rows(found, declared.place)
    headers = found.reads_headers or mapping.reads_headers
    frame = _events(declared.place, found, transform, mapping, headers=headers)
    return EventFrame(frame, found.fields, headers)


class EventPlan:
    """The plan that turns a batch of records into events. It is made once and executed often."""

    def __init__(
        self,
        spark: SparkSession,
        source: RecordSource,
        name: str,
        transform: settings.Transform,
        mapping: Mapping,
        *,
        tasks: int = 1,
    ) -> None:
        """Load and check the transformation; raise SettingsError if it does not fit."""
        records = record_frame(spark, source, tasks)
        found = event_frame(name, transform, mapping, records, source.topic)
        self.context, self.events, self.headers = spark.sparkContext, found.frame, found.headers

    def given(self, records: Sequence[Record]) -> list[Result]:
        """Return the results of records, in their order."""
        TaskBatch(given=list(records), headers=self.headers).announce(self.context)
        collected = ResultCollector()
        for rows in self.events.toArrow().to_batches():
            collected.add(rows)
        partitions = dict.fromkeys(record.partition for record in records)
        return [one for partition in partitions for one in collected.take_rest(partition)]

    def failed(self, record: Record, why: str) -> Result:
        """Return the result of a record on which the transformation fails."""
        return Result(
            results.number(record.offset),
            record.timestamp_ms,
            record.key,
            None,
            record.partition,
            record.headers,
            source_key=record.key,
            source_value=record.value,
            failure=why,
            records=1,
        )


class RecordPlan(Protocol[Made]):
    """A plan that turns records into something: events, or records of another topic."""

    def given(self, records: Sequence[Record]) -> list[Made]:
        """Return what is made of records, in their order."""

    def failed(self, record: Record, why: str) -> Made:
        """Return what stands for a record on which the transformation fails."""


class Transformer(Generic[Made]):
    """Transforms records one by one or many at once, and says which of them fail.

    A stop cancels jobs of Spark, and a cancelled job looks like one that fails on its records.
    """

    def __init__(
        self, plan: RecordPlan[Made], is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Take the plan, and what says that jobs may have been cancelled."""
        self._plan, self._is_stopped = plan, is_stopped

    def __call__(self, records: Sequence[Record]) -> list[Made]:
        """Return what is made of records of the log, in order; a failure is a result too."""
        found: list[Made] = []
        chunk: list[Record] = []
        size = 0
        for record in records:
            chunk.append(record)
            size += size_of(record)
            if len(chunk) >= RECORDS_MAX or size >= BYTES_MAX:
                found += self._halved(chunk)
                chunk, size = [], 0
        return found + self._halved(chunk)

    def _halved(self, records: Sequence[Record]) -> list[Made]:
        if not records:
            return []
        try:
            return self._plan.given(records)
        except (PySparkException, Py4JJavaError) as error:
            self._refuse_other_causes(error)
        if len(records) == 1:
            return self._tried_again(records[0])
        middle = len(records) // 2
        return self._halved(records[:middle]) + self._halved(records[middle:])

    def _tried_again(self, record: Record) -> list[Made]:
        """Transform a record that has failed alone; if it fails again, say so.

        A lost executor, or somebody who ends a job in Spark's pages, would fail any record once.
        """
        try:
            return self._plan.given([record])
        except (PySparkException, Py4JJavaError) as error:
            self._refuse_other_causes(error)
            self._refuse_broken_spark()
            return [self._plan.failed(record, readable(error))]

    def _refuse_broken_spark(self) -> None:
        """Raise if it is not the record: then Spark fails without any, too."""
        try:
            self._plan.given([])
        except (PySparkException, Py4JJavaError) as error:
            self._refuse_other_causes(error)
            raise failures.unexplained(error) from error

    def _refuse_other_causes(self, error: Exception) -> None:
        """Raise if the flow was stopped, or if a task has failed with an error of ours."""
        if self._is_stopped():
            raise errors.StartAgain("the flow was stopped while it transformed records") from error
        if (known := failures.read(str(error))) is not None:
            raise known from error


def size_of(record: Record) -> int:
    """Return the bytes of a record's key, value and headers."""
    in_headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + in_headers


def readable(error: Exception) -> str:
    """Return why a transformation failed: Spark's own condition, or the exception of a UDF."""
    text = str(error)
    if "Traceback (most recent call last)" in text and (found := _PYTHON_ERROR.findall(text)):
        return str(found[-1])[:400]
    condition = _CONDITION.search(text)
    return condition[0][:400] if condition else transformation.readable(error)


def _events(
    place: str,
    found: Transformed,
    transform: settings.Transform,
    mapping: Mapping,
    *,
    headers: bool,
) -> DataFrame:
    """Return the carried columns, and each result as the JSON that pipelines decode."""
    names = found.fields.names
    used = [name for name in _used(mapping) if _require(place, name, names)]
    for name in used:
        if isinstance(found.fields[name].dataType, T.BinaryType):
            raise errors.SettingsError(
                f"{place} yields the binary column {name!r}, which no column of a table can take",
                f"decode it: base64({name}) or decode({name}, 'UTF-8')",
            )
    event = F.to_json(F.struct(*[F.col(_quoted(name)) for name in used]), JSON_OPTIONS)
    event, deleted = event.cast("binary"), None
    if transform.delete_when is not None:
        _require(place, transform.delete_when, names)
        kind = found.fields[transform.delete_when].dataType
        if not isinstance(kind, T.BooleanType):
            raise errors.SettingsError(
                f"delete_when names {transform.delete_when!r}, which is {kind.simpleString()},"
                " not boolean",
                f"let {place} yield a condition: value IS NULL AS {transform.delete_when}",
            )
        is_delete = F.coalesce(F.col(_quoted(transform.delete_when)), F.lit(False))
        event, deleted = F.when(~is_delete, event), F.when(is_delete, _document(mapping))
    # A column of lists that are null costs Spark more than all others together: before each row,
    # it counts what is in the batch so far, from the first row on.
    columns = [
        F.col(PREFIX + name).alias(name)
        for name in transformation.CARRIED
        if headers or name != "headers"
    ]
    columns.append(event.alias("event"))
    if deleted is not None:
        columns.append(deleted.cast("binary").alias("deleted"))
    return found.frame.select(*columns)


def _document(mapping: Mapping) -> Column:
    """Return the id of a result's document as text, as a record without a value has it as key."""
    names = [
        f"{PREFIX}key" if path == (KEY,) else ".".join(map(_quoted, path))
        for path in mapping.documents
    ]
    parts = [F.col(name).cast("string") for name in names]
    return F.concat(*_joined(parts, F.lit(mapping.separator)))


def _joined(parts: Sequence[Column], separator: Column) -> list[Column]:
    """Return the parts with a separator between each two."""
    return [one for part in parts for one in (separator, part)][1:]


def _used(mapping: Mapping) -> list[str]:
    """Return the columns of the result that the mapping names."""
    paths = [
        *mapping.documents,
        *filter(None, (mapping.status, mapping.order)),
        mapping.at,
        *(field.path for field in mapping.fields),
    ]
    return sorted({path[0] for path in paths if not path[0].startswith("@")})


def _require(place: str, name: str, names: Sequence[str]) -> bool:
    if name not in names:
        raise errors.SettingsError(
            f"{place} does not yield the column {name!r}{nearest(name, names)}",
            f"it yields {', '.join(map(json.dumps, names))}; correct it, or the mapping",
        )
    return True


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
