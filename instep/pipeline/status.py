"""`instep status`: where every pipeline stands, from the ledger and the log. Works whether the pipeline runs or not."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from instep import errors, settings, sinks
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.sinks import inspection, target


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition. What is not known is None, which is not 0."""

    partition: int
    next_offset: int | None
    end_offset: int
    lag_records: int | None
    lag_seconds: float | None
    committed_at: datetime | None
    epoch: int | None


class PipelineStatus(msgspec.Struct, frozen=True):
    """One pipeline, or why it could not be looked at."""

    pipeline: str
    topic: str
    target: str
    guarantee: str
    lag_records: int | None = None
    lag_seconds: float | None = None
    dead_letters: int | None = None
    parked_documents: int | None = None
    committed_at: datetime | None = None
    partitions: list[PartitionStatus] = []
    error: str | None = None


def read(cluster: Cluster, name: str, pipeline: settings.Pipeline) -> PipelineStatus:
    """The pipeline's status; an error of one pipeline must not hide the others, so it is part of the answer."""
    shown = target.shown(target.database_url(pipeline.target))
    blank = PipelineStatus(name, pipeline.topic, shown, pipeline.guarantee)
    try:
        return _read(cluster, blank, name, pipeline)
    except errors.InstepError as error:
        return msgspec.structs.replace(blank, error=str(error))


def _age_s(record: offsets.Record, now_ms: float) -> float | None:
    """How old a record is; one without a timestamp does not say."""
    return max(0.0, (now_ms - record.timestamp_ms) / 1000) if record.timestamp_ms >= 0 else None


def _read(cluster: Cluster, blank: PipelineStatus, name: str, pipeline: settings.Pipeline) -> PipelineStatus:
    sink = sinks.open_sink(inspection.inspect(name, pipeline))
    try:
        with sink.translated():
            ledger = sink.positions()
            dead, parked = sink.dead_count(), sink.parked_count()
    finally:
        sink.close()
    topic = topics.describe(cluster, pipeline.topic)
    ends = offsets.latest(cluster, topic.name, topic.partitions)
    behind = {p: ledger[p].next_offset for p in topic.partitions if p in ledger and ledger[p].next_offset < ends[p]}
    # what lies ahead may be transaction markers only: those are no records, and no lag
    waiting = offsets.first_records(cluster, topic.name, behind)
    now_ms = datetime.now(UTC).timestamp() * 1000
    partitions = []
    for partition in topic.partitions:
        position = ledger.get(partition)
        record = waiting.get(partition)
        lag = None if position is None else ends[partition] - position.next_offset if record else 0
        seconds = None if position is None else _age_s(record, now_ms) if record else 0.0
        partitions.append(
            PartitionStatus(
                partition=partition,
                next_offset=position.next_offset if position else None,
                end_offset=ends[partition],
                lag_records=lag,
                lag_seconds=seconds,
                committed_at=position.committed_at if position else None,
                epoch=position.epoch if position else None,
            )
        )
    known = all(part.lag_records is not None for part in partitions)
    timed = all(part.lag_seconds is not None for part in partitions)
    return msgspec.structs.replace(
        blank,
        lag_records=sum(part.lag_records or 0 for part in partitions) if known else None,
        lag_seconds=max((part.lag_seconds or 0.0 for part in partitions), default=0.0) if timed else None,
        dead_letters=dead,
        parked_documents=parked,
        committed_at=max((part.committed_at for part in partitions if part.committed_at), default=None),
        partitions=partitions,
    )
