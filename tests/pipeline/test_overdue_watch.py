"""Test that a run finds overdue documents in time, and what it says about them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from instep.kafka.connection import Cluster
from instep.operate import status
from instep.pipeline import metrics, overdue_watch, reporter
from instep.pipeline.overdue_watch import ALARM, LATE_ALARM, OverdueWatch
from instep.pipeline.progress import Progress
from instep.pipeline.runner import Runner
from instep.sinks import runs, status_ages
from tests.support.databases import declare, run_sql
from tests.support.pipelines import following
from tests.support.runs import event as published
from tests.support.runs import send
from tests.support.transactions import Open, apply, begun, event
from tests.support.waiting import wait_until

START_MS = 1_790_000_000_000
START = datetime.fromtimestamp(START_MS / 1000, UTC)


class Clock:
    """The database's clock, and the number of scans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.minute, self.scans = 0.0, 0
        self._pages = status_ages.pages
        monkeypatch.setattr(status_ages, "clock", self._now)
        monkeypatch.setattr(status_ages, "pages", self._counted)

    def _now(self, _: Any) -> datetime:
        return START + timedelta(minutes=self.minute)

    def _counted(self, *arguments: Any) -> Iterator[Any]:
        self.scans += 1
        return self._pages(*arguments)


def test_between_two_scans_only_documents_that_are_due_are_read(
    new_database: Callable[[str], str], open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = declare(new_database("sqlite"), due={"QUEUED": "1h"})
    sink = begun(open_sink(pipeline))
    minutes = {"a": 0, "b": 0, "late": 200}
    apply(
        sink,
        [
            event(offset, name, 1, "QUEUED", updated_at=START_MS + minute * 60_000)
            for offset, (name, minute) in enumerate(minutes.items())
        ],
    )
    clock, progress = Clock(monkeypatch), Progress()
    monkeypatch.setattr(overdue_watch, "REFRESH_INTERVAL_S", 10_000)  # the next scan comes late
    watch = OverdueWatch("contracts", pipeline, progress, lambda: 1)

    def found(minute: float) -> int:
        clock.minute = minute
        watch.refresh()
        assert progress.overdue is not None
        return progress.overdue.total

    assert found(30) == 0
    apply(sink, [event(3, "b", 2, "PRINTED", updated_at=START_MS + 60_000)])
    assert found(59.9) == 0
    assert found(60) == 1
    assert clock.scans == 1
    assert progress.alarms[ALARM].startswith("1 document overdue: 1 QUEUED (longer than 1h, ")
    assert found(95) == 1
    assert clock.scans == 2, "the first scan says nothing about the time after its horizon"
    apply(sink, [event(4, "a", 2, "PRINTED", updated_at=START_MS + 60_000)])
    watch._counter = None
    assert found(259) == 0
    assert ALARM not in progress.alarms
    assert found(260) == 1
    watch._close()


def test_a_run_says_if_its_scans_are_too_rare_for_a_limit(
    new_database: Callable[[str], str], open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = declare(new_database("sqlite"), due={"QUEUED": "2m", "FAILED": "2d"})
    begun(open_sink(pipeline))
    progress = Progress()
    watch = OverdueWatch("contracts", pipeline, progress, lambda: 1)
    watch.refresh()
    assert LATE_ALARM not in progress.alarms
    monkeypatch.setattr(overdue_watch, "REFRESH_INTERVAL_S", 3_600)  # as after a slow scan
    watch._counter = None
    watch.refresh()
    assert "up to 1h late" in progress.alarms[LATE_ALARM]
    assert "the limit of QUEUED (2m) is shorter" in progress.alarms[LATE_ALARM]
    watch._close()


def test_a_run_raises_an_alarm_and_ends_it(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    runner: Callable[..., Runner],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("START_PAUSE_S", "REFRESH_INTERVAL_S"):
        monkeypatch.setattr(overdue_watch, name, 0.2)
    monkeypatch.setattr(runs, "INTERVAL_S", 10_000.0)  # so that only changes are reported
    pipeline = following(new_database("postgres"), topic, due={"QUEUED": "2h", "FAILED": "1h"})
    send(cluster, topic, published("a", 1, "QUEUED"), published("b", 1, "PRINTED"))
    run = runner(pipeline)
    wait_until(lambda: bool(run.progress.alarms), "the alarm")
    written = io.StringIO()
    shown = reporter.Reporter([run], written)
    shown.tick()
    shown.tick()
    assert written.getvalue().count("1 document overdue: 1 QUEUED (longer than 2h") == 1
    assert "list them: instep overdue contracts" in written.getvalue()
    registry = CollectorRegistry()
    registry.register(metrics.Pipelines([run]))
    exposed = generate_latest(registry).decode()
    assert 'instep_overdue_documents{pipeline="contracts",status="QUEUED"} 1.0' in exposed
    assert 'instep_overdue_documents{pipeline="contracts",status="FAILED"} 0.0' in exposed
    assert 'instep_overdue_oldest_seconds{pipeline="contracts",status="QUEUED"}' in exposed
    wait_until(
        lambda: any("1 document overdue" in note for note in _notes(cluster, pipeline)),
        "the heartbeat to report it",
    )
    send(cluster, topic, published("a", 2, "PRINTED"))
    wait_until(lambda: not run.progress.alarms, "the end of the alarm")
    shown.tick()
    assert written.getvalue().rstrip().endswith("contracts: no more overdue documents")
    run.stop(patience_s=60)
    assert _notes(cluster, pipeline) == []
    assert run_sql(pipeline.target, "SELECT count(*) FROM instep_history") == [(3,)]


def _notes(cluster: Cluster, pipeline: Any) -> list[str]:
    return status.read(cluster, "contracts", pipeline).notes
