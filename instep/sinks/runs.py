"""The heartbeat of a run: who runs a pipeline, since when, and in which state.

Kept in `instep_runs`, one row per pipeline. It is written on a connection and in a short
transaction of its own, never together with the data. All times are the database's, so that a
reader can tell how old a heartbeat is, whatever the clocks of the machines show.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from instep.sinks import connecting, tables
from instep.sinks.stored_values import kept_text, utc_time

INTERVAL_S = 5.0
DEAD_AFTER_S = 30.0  # without a heartbeat
TREND_INTERVAL_S = 60.0
TREND_SAMPLES_MAX = 60
STOPPED = "stopped"
FRESHNESS_MAX_S = 1e6  # stands for any freshness beyond the last bucket of the histogram
CLOCKS = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "clock_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
    "mariadb": "UTC_TIMESTAMP(6)",
}

RUNS = tables.RUNS


class Run(msgspec.Struct, frozen=True):
    """A pipeline's latest run, as it last reported itself."""

    run: str
    epoch: int
    host: str
    pid: int
    started_at: datetime
    heartbeat_at: datetime
    state: str
    state_at: datetime  # since when it is in that state
    code: str | None  # of the error that ended it
    detail: str | None  # what it waits for, or why it ended
    overdue: str | None = None  # an OverdueSummary as JSON, if statuses have a limit
    applied_per_s: float | None = None
    freshness_p50_s: float | None = None  # None: no events in the last seconds
    freshness_p99_s: float | None = None

    def is_silent(self, now: datetime) -> bool:
        """Return whether a run that did not stop has been silent long enough to be dead."""
        return self.state != STOPPED and (now - self.heartbeat_at).total_seconds() > DEAD_AFTER_S


class MinuteFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did in a minute. Freshness is None without events."""

    lag: int | None = None
    applied_per_s: float | None = None
    freshness_p50_s: float | None = None
    freshness_p99_s: float | None = None


class MinuteSample(MinuteFigures, frozen=True, kw_only=True, array_like=True):
    """The figures of a minute, and when it ended, by the database's clock."""

    at: float  # seconds since 1970


class RunReport(msgspec.Struct, frozen=True):
    """What a run reports. Durations are measured on its own machine, with a monotonic clock."""

    epoch: int  # 0: none yet
    state: str
    running_s: float
    state_s: float
    code: str | None = None
    detail: str | None = None
    overdue: str | None = None
    applied_per_s: float | None = None
    freshness_p50_s: float | None = None
    freshness_p99_s: float | None = None
    minute: MinuteFigures | None = None  # when a minute has ended


def clock(opened: sa.Connection) -> datetime:
    """Return the database's time."""
    now = utc_time(opened.exec_driver_sql(f"SELECT {CLOCKS[opened.dialect.name]}").scalar())
    assert now is not None
    return now


def read(opened: sa.Connection, pipeline: str) -> Run | None:
    """Return the latest run of a pipeline; None if it never ran."""
    columns = [RUNS.c[name] for name in Run.__struct_fields__]
    row = opened.execute(sa.select(*columns).where(RUNS.c.pipeline == pipeline)).one_or_none()
    if row is None:
        return None
    facts: list[Any] = [utc_time(value) if isinstance(value, datetime) else value for value in row]
    return Run(*facts)


def trend(opened: sa.Connection, pipeline: str) -> list[MinuteSample]:
    """Return the figures of the last hour's minutes in which the pipeline ran, oldest first."""
    text = opened.execute(sa.select(RUNS.c.trend).where(RUNS.c.pipeline == pipeline)).scalar()
    return msgspec.json.decode(text, type=list[MinuteSample]) if text else []


class Heartbeat:
    """The row of one run. Not for use by several threads."""

    def __init__(self, pipeline: str, url: sa.URL) -> None:
        self._pipeline, self._url = pipeline, url
        self._identity = {
            "run": str(uuid.uuid4()),
            "host": kept_text(socket.gethostname())[:255],
            "pid": os.getpid(),
        }
        self._resources = contextlib.ExitStack()
        self._opened: sa.Connection | None = None
        self._trend: list[MinuteSample] | None = None  # None: not read yet

    def beat(self, report: RunReport) -> bool:
        """Write the row, or return False if it belongs to another run.

        Raises the driver's own errors; the next beat connects again.
        """
        try:
            return self._write(self._connection(), report)
        except BaseException:
            self.close()
            raise
        finally:
            if self._url.get_backend_name() == "sqlite":
                # an open connection would keep using the file after it was replaced
                self.close()

    def close(self) -> None:
        """Close the connection."""
        self._opened = None
        with contextlib.suppress(Exception):  # it may be broken already
            self._resources.close()

    def _connection(self) -> sa.Connection:
        if self._opened is None:
            self._resources = contextlib.ExitStack()
            opened = self._resources.enter_context(connecting.connection(self._url))
            self._opened = opened.execution_options(isolation_level="AUTOCOMMIT")
        return self._opened

    def _write(self, opened: sa.Connection, report: RunReport) -> bool:
        now = clock(opened)
        report_columns = {
            "heartbeat_at": now,
            "state": report.state,
            "state_at": now - timedelta(seconds=report.state_s),
            "code": report.code,
            "detail": None if report.detail is None else kept_text(report.detail),
            "overdue": report.overdue,
            "applied_per_s": report.applied_per_s,
            "freshness_p50_s": report.freshness_p50_s,
            "freshness_p99_s": report.freshness_p99_s,
        }
        if report.minute is not None:
            report_columns["trend"] = self._trend_with(opened, report.minute, now)
        if report.epoch:
            report_columns["epoch"] = report.epoch
        started_at = now - timedelta(seconds=report.running_s)
        row = {**self._identity, **report_columns, "started_at": started_at}
        update = sa.update(RUNS).where(RUNS.c.pipeline == self._pipeline)
        own = update.where(RUNS.c.run == self._identity["run"]).values(report_columns)
        if opened.execute(own).rowcount:
            return True
        if opened.execute(update.where(self._may_take(report.epoch, now)).values(row)).rowcount:
            return True
        try:
            opened.execute(sa.insert(RUNS).values({"pipeline": self._pipeline, "epoch": 0, **row}))
        except sa.exc.IntegrityError:  # another run has just inserted it
            return False
        return True

    def _trend_with(self, opened: sa.Connection, minute: MinuteFigures, now: datetime) -> str:
        """Return the trend as JSON, with another minute behind those of earlier runs."""
        if self._trend is None:
            self._trend = trend(opened, self._pipeline)
        sample = MinuteSample(at=now.timestamp(), **msgspec.structs.asdict(minute))
        self._trend = [*self._trend, sample][-TREND_SAMPLES_MAX:]
        return msgspec.json.encode(self._trend).decode()

    def _may_take(self, epoch: int, now: datetime) -> sa.ColumnElement[bool]:
        """Return the condition under which this run may take over the row of another run.

        That run is older, has ended, or is presumed dead. A run without an epoch has not fenced
        the others yet, so it does not take the row of a live run.
        """
        silent = RUNS.c.heartbeat_at < now - timedelta(seconds=DEAD_AFTER_S)
        ended = RUNS.c.state == STOPPED
        if not epoch:
            return sa.or_(ended, silent)
        return sa.or_(RUNS.c.epoch < epoch, sa.and_(ended, RUNS.c.epoch <= epoch), silent)
