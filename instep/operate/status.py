"""`instep status`: where every pipeline stands, from the database and the log. Works whether the pipeline runs or not.

It starts nothing, changes nothing, and needs only the right to read. Without a broker it shows what the database knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from instep import errors, settings
from instep.kafka import backlog, topics
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster
from instep.sinks import ledger_reader, runs, target
from instep.sinks.ledger_reader import LedgerView
from instep.sinks.target import Position

NO_BROKER = "the local Kafka is not running, so the lag is not known\nstart it: instep up"


class RunStatus(msgspec.Struct, frozen=True):
    """The latest run of a pipeline, by its heartbeat. Times are the database's."""

    state: str  # running, waiting, starting, stopped, dead or never
    words: str  # the same for people
    since: datetime | None = None  # when it came into that state; of a dead run: its last heartbeat
    started_at: datetime | None = None
    host: str | None = None
    pid: int | None = None
    epoch: int | None = None
    heartbeat_at: datetime | None = None
    heartbeat_age_s: float | None = None
    code: str | None = None  # of the error that ended it
    detail: str | None = None  # what it waits for, or why it ended


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition. What is not known is None, which is not 0."""

    partition: int
    next_offset: int | None
    end_offset: int | None
    lag_records: int | None
    lag_seconds: float | None
    committed_at: datetime | None
    epoch: int | None
    held_back: int | None = None  # of the lag: behind an open transaction


class HolderStatus(msgspec.Struct, frozen=True):
    """An open transaction that holds readers back. What the cluster does not say is None."""

    partition: int
    producer_id: int
    transactional_id: str | None
    since: datetime | None
    start_offset: int


class PipelineStatus(msgspec.Struct, frozen=True):
    """One pipeline, or why it could not be looked at."""

    pipeline: str
    topic: str
    target: str
    guarantee: str
    run: RunStatus | None = None
    lag_records: int | None = None
    lag_seconds: float | None = None
    held_back: int | None = None
    open_transactions: list[HolderStatus] = []
    dead_letters: int | None = None
    parked_documents: int | None = None
    committed_at: datetime | None = None
    partitions: list[PartitionStatus] = []
    notes: list[str] = []
    error: str | None = None


def read(cluster: Cluster | None, name: str, pipeline: settings.Pipeline) -> PipelineStatus:
    """The pipeline's status; an error of one pipeline must not hide the others, so it is part of the answer."""
    shown = target.shown(target.database_url(pipeline.target))
    found = PipelineStatus(name, pipeline.topic, shown, pipeline.guarantee)
    try:
        glanced = ledger_reader.read(name, pipeline)
        found = _with_database(found, glanced)
        if cluster is None:
            return msgspec.structs.replace(found, error=NO_BROKER)
        return _with_log(found, cluster, pipeline, glanced)
    except errors.InstepError as error:
        return msgspec.structs.replace(found, error=str(error))


def run_status(run: runs.Run | None, now: datetime) -> RunStatus:
    """The latest run in words; `now` is the database's time."""
    if run is None:
        return RunStatus("never", "never run")
    where = f"on {run.host}, pid {run.pid}"
    age_s = max(0.0, (now - run.heartbeat_at).total_seconds())
    state, since, detail = run.state, run.state_at, run.detail
    if run.is_silent(now):
        state, since = "dead", run.heartbeat_at
        words = f"presumed dead: no heartbeat since {_clock(since)} ({where})"
    elif state == runs.STOPPED:
        words = f"stopped at {_clock(since)}" + (f" with {run.code}: {detail}" if run.code else "")
    elif state == "waiting":
        words = f"waiting since {_clock(since)} {where}: {detail}"
    else:
        words = f"{state} since {_clock(run.started_at)} {where}"
    return RunStatus(
        state,
        words,
        since,
        run.started_at,
        run.host,
        run.pid,
        run.epoch,
        run.heartbeat_at,
        age_s,
        run.code,
        detail,
    )


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _with_database(found: PipelineStatus, glanced: LedgerView) -> PipelineStatus:
    """What is known without the log."""
    return msgspec.structs.replace(
        found,
        run=run_status(glanced.run, glanced.now),
        dead_letters=glanced.dead_letters,
        parked_documents=glanced.parked_documents,
        committed_at=max(
            (at.committed_at for at in glanced.ledger.values() if at.committed_at), default=None
        ),
        partitions=[
            _partition(partition, at, None, None)
            for partition, at in sorted(glanced.ledger.items())
        ],
    )


def _with_log(
    found: PipelineStatus, cluster: Cluster, pipeline: settings.Pipeline, glanced: LedgerView
) -> PipelineStatus:
    topic = topics.describe(cluster, pipeline.topic)
    # a partition that the ledger lacks is asked for its end only
    positions = {
        p: glanced.ledger[p].next_offset if p in glanced.ledger else 0 for p in topic.partitions
    }
    ahead = backlog.read(cluster, topic.name, positions)
    now = datetime.now(UTC)
    partitions = [_partition(p, glanced.ledger.get(p), ahead[p], now) for p in topic.partitions]
    known = all(part.lag_records is not None for part in partitions)
    timed = all(part.lag_seconds is not None for part in partitions)
    held = _held(partitions)
    holders = backlog.open_transactions(cluster, topic.name, held)
    return msgspec.structs.replace(
        found,
        lag_records=sum(part.lag_records or 0 for part in partitions) if known else None,
        lag_seconds=max((part.lag_seconds or 0.0 for part in partitions), default=0.0)
        if timed
        else None,
        held_back=sum(held.values()),
        open_transactions=[
            HolderStatus(
                one.partition, one.producer, one.transactional_id, one.since, one.start_offset
            )
            for one in holders
        ],
        partitions=partitions,
        notes=backlog.explained(held, holders),
    )


def _held(partitions: list[PartitionStatus]) -> Mapping[int, int]:
    return {part.partition: part.held_back for part in partitions if part.held_back}


def _partition(
    partition: int, at: Position | None, ahead: PartitionBacklog | None, now: datetime | None
) -> PartitionStatus:
    return PartitionStatus(
        partition=partition,
        next_offset=at.next_offset if at else None,
        end_offset=ahead.end if ahead else None,
        lag_records=ahead.records if at and ahead else None,
        lag_seconds=ahead.age_s(now) if at and ahead and now else None,
        committed_at=at.committed_at if at else None,
        epoch=at.epoch if at else None,
        held_back=ahead.held_back if ahead else None,
    )
