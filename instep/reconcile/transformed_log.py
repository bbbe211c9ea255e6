"""The log of a pipeline with a transformation: the results of its records, as records.

A result has the event as its value, and its number in place of the offset.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses

from instep import settings
from instep.document.decoding import record_of
from instep.document.plain import PlainRecord
from instep.document.results import Result
from instep.pipeline.micro_batch import arrow, query
from instep.pipeline.transformed import collector, transformer
from instep.pipeline.transformed.transformer import EventPlan, Transformer
from instep.pipeline.transformed.worker import RecordSource
from instep.sinks.journal_entries import RecordPosition
from instep.sinks.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def results(
    target: Target,
    transform: settings.Transform,
    records: DataFrame,
    failed: Iterable[RecordPosition],
) -> DataFrame:
    """Return the results of records, without those on which the transformation has failed.

    If it fails on others, so does the comparison, which then reads the log with `one_by_one`.
    """
    left_out: dict[int, list[int]] = {}
    for position in failed:
        left_out.setdefault(position.partition, []).append(position.offset)
    for partition, offsets in left_out.items():
        is_one = (F.col("partition") == partition) & F.col("offset").isin(offsets)
        records = records.where(~is_one)
    mapping = target.mapping
    found = transformer.event_frame(target.pipeline, transform, mapping, records, target.topic)
    return arrow.map_batches(
        found.frame,
        functools.partial(collector.as_records, mapping.reads_headers),
        query.record_schema(headers=mapping.reads_headers),
    )


def one_by_one(
    spark: SparkSession,
    target: Target,
    transform: settings.Transform,
    records: Iterable[PlainRecord],
) -> Iterator[Result]:
    """Yield the results of records, without those on which the transformation fails."""
    source = RecordSource(settings.Kafka(), "", target.topic)  # the records are given
    plan = EventPlan(spark, source, target.pipeline, transform, target.mapping)
    transform_all = Transformer(plan)
    found = map(record_of, records)
    while chunk := list(itertools.islice(found, transformer.RECORDS_MAX)):
        for result in transform_all(chunk):
            if result.failure is None:
                yield result
