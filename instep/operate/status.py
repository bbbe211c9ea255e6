"""`instep status`: the state of a pipeline, from the database and the log.

It works whether the pipeline runs or not. It starts nothing, changes nothing, and needs only
permission to read. Without a broker it shows what the database knows.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import msgspec

from instep import errors, settings
from instep.document import due
from instep.document.due import OverdueSummary
from instep.kafka import backlog, topics
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster
from instep.pipeline import retry_policy
from instep.sinks import ledger_reader, runs, target
from instep.sinks.ledger_reader import LedgerView
from instep.sinks.target import Position

RATES = ("applied_per_s", "freshness_p50_s", "freshness_p99_s")
NO_BROKER = "the local Kafka is not running, so the lag is unknown\nstart it: instep up"


class RunStatus(msgspec.Struct, frozen=True, rename={"description": "words"}):
    """The latest run of a pipeline, by its heartbeat. Times are those of the database's clock."""

    state: str  # running, waiting, starting, stopped, dead or never
    description: str  # the state as a sentence
    since: datetime | None = None  # when the state began; the last heartbeat of a dead run
    started_at: datetime | None = None
    host: str | None = None
    pid: int | None = None
    epoch: int | None = None
    heartbeat_at: datetime | None = None
    heartbeat_age_s: float | None = None
    code: str | None = None  # the code of the error that ended it
    detail: str | None = None  # what it waits for, or why it ended
    applied_per_s: float | None = None  # over the last seconds; None unless it runs
    freshness_p50_s: float | None = None  # None: no events in the last seconds
    freshness_p99_s: float | None = None


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition. None means unknown, not 0."""

    partition: int
    next_offset: int | None
    end_offset: int | None
    lag_records: int | None
    lag_seconds: float | None
    committed_at: datetime | None
    epoch: int | None
    held_back: int | None = None  # the part of the lag that is behind an open transaction


class OpenTransactionStatus(msgspec.Struct, frozen=True):
    """An open transaction that holds readers back. None means that the cluster does not say."""

    partition: int
    producer_id: int
    transactional_id: str | None
    since: datetime | None
    start_offset: int


class PipelineStatus(msgspec.Struct, frozen=True):
    """The state of one pipeline, or the error that kept it from being read."""

    pipeline: str
    topic: str
    target: str
    guarantee: str
    run: RunStatus | None = None
    lag_records: int | None = None
    lag_seconds: float | None = None
    held_back: int | None = None
    open_transactions: list[OpenTransactionStatus] = []
    dead_letters: int | None = None
    parked_documents: int | None = None
    committed_at: datetime | None = None
    partitions: list[PartitionStatus] = []
    given_up: int | None = None  # parked documents that redrive gave up; None: no redrive
    overdue: OverdueSummary | None = None  # as the latest run found it; None: not known
    notes: list[str] = []
    error: str | None = None


def read(cluster: Cluster | None, name: str, pipeline: settings.Pipeline) -> PipelineStatus:
    """Return the pipeline's status. An error is part of it, so that it does not hide the others."""
    shown = target.shown(target.database_url(pipeline.target))
    status = PipelineStatus(name, pipeline.topic, shown, pipeline.guarantee)
    try:
        view = ledger_reader.read(name, pipeline)
        status = _with_overdue(_with_database(status, view), pipeline, view)
        status = _with_given_up(status, pipeline)
        if cluster is None:
            return msgspec.structs.replace(status, error=NO_BROKER)
        return _with_log(status, cluster, pipeline, view)
    except errors.InstepError as error:
        return msgspec.structs.replace(status, error=str(error))


def run_status(run: runs.Run | None, now: datetime) -> RunStatus:
    """Describe the latest run. `now` is the time of the database's clock."""
    if run is None:
        return RunStatus("never", "never run")
    where = f"on {run.host}, pid {run.pid}"
    age_s = max(0.0, (now - run.heartbeat_at).total_seconds())
    state, since, detail = run.state, run.state_at, run.detail
    if run.is_silent(now):
        state, since = "dead", run.heartbeat_at
        description = f"presumed dead: no heartbeat since {_clock(since)} ({where})"
    elif state == runs.STOPPED:
        description = f"stopped at {_clock(since)}"
        if run.code:
            description += f" with {run.code}: {detail}"
    elif state == "waiting":
        description = f"waiting since {_clock(since)} {where}: {detail}"
    else:
        description = f"{state} since {_clock(run.started_at)} {where}"
    rates = {}
    if state == "running":
        rates = {name: getattr(run, name) for name in RATES}
    return RunStatus(
        state,
        description,
        since,
        run.started_at,
        run.host,
        run.pid,
        run.epoch,
        run.heartbeat_at,
        age_s,
        run.code,
        detail,
        **rates,
    )


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _with_database(status: PipelineStatus, view: LedgerView) -> PipelineStatus:
    """Add what the database knows."""
    commits = [row.committed_at for row in view.ledger.values() if row.committed_at]
    return msgspec.structs.replace(
        status,
        run=run_status(view.run, view.now),
        dead_letters=view.dead_letters,
        parked_documents=view.parked_documents,
        committed_at=max(commits, default=None),
        partitions=[
            _partition(partition, row, None, None) for partition, row in sorted(view.ledger.items())
        ],
    )


def _with_overdue(
    status: PipelineStatus, pipeline: settings.Pipeline, view: LedgerView
) -> PipelineStatus:
    """Add what the latest run found overdue."""
    if not pipeline.due or view.run is None or view.run.overdue is None:
        return status
    summary = msgspec.json.decode(view.run.overdue, type=OverdueSummary)
    notes = list(status.notes)
    if sentence := due.describe(summary, pipeline.due):
        seen = "" if status.run and status.run.state == "running" else f" at {_clock(summary.at)}"
        notes.append(f"{sentence}{seen}; list them: instep overdue {shlex.quote(status.pipeline)}")
    return msgspec.structs.replace(status, overdue=summary, notes=notes)


def _with_given_up(status: PipelineStatus, pipeline: settings.Pipeline) -> PipelineStatus:
    """Add the parked documents that redrive does not try any more."""
    if pipeline.redrive is None:
        return status
    count = ledger_reader.given_up(status.pipeline, pipeline)
    notes = list(status.notes)
    if count:
        notes.append(retry_policy.given_up(count, pipeline.redrive.attempts, status.pipeline))
    return msgspec.structs.replace(status, given_up=count, notes=notes)


def _with_log(
    status: PipelineStatus, cluster: Cluster, pipeline: settings.Pipeline, view: LedgerView
) -> PipelineStatus:
    """Add what the log knows."""
    topic = topics.describe(cluster, pipeline.topic)
    # If the ledger lacks a partition, only the end of its log is reported, so 0 does no harm.
    positions = {}
    for partition in topic.partitions:
        row = view.ledger.get(partition)
        positions[partition] = row.next_offset if row else 0
    backlogs = backlog.read(cluster, topic.name, positions)
    now = datetime.now(UTC)
    partitions = [_partition(p, view.ledger.get(p), backlogs[p], now) for p in topic.partitions]
    held_back = {part.partition: part.held_back for part in partitions if part.held_back}
    transactions = backlog.open_transactions(cluster, topic.name, held_back)
    records = [part.lag_records for part in partitions if part.lag_records is not None]
    seconds = [part.lag_seconds for part in partitions if part.lag_seconds is not None]
    return msgspec.structs.replace(
        status,
        lag_records=sum(records) if len(records) == len(partitions) else None,
        lag_seconds=max(seconds, default=0.0) if len(seconds) == len(partitions) else None,
        held_back=sum(held_back.values()),
        open_transactions=[
            OpenTransactionStatus(
                transaction.partition,
                transaction.producer,
                transaction.transactional_id,
                transaction.since,
                transaction.start_offset,
            )
            for transaction in transactions
        ],
        partitions=partitions,
        notes=backlog.describe_held_back(held_back, transactions) + status.notes,
    )


def _partition(
    partition: int, row: Position | None, unread: PartitionBacklog | None, now: datetime | None
) -> PartitionStatus:
    return PartitionStatus(
        partition=partition,
        next_offset=row.next_offset if row else None,
        end_offset=unread.end if unread else None,
        lag_records=unread.records if row and unread else None,
        lag_seconds=unread.age_s(now) if row and unread and now else None,
        committed_at=row.committed_at if row else None,
        epoch=row.epoch if row else None,
        held_back=unread.held_back if unread else None,
    )
