"""Test the heartbeat of a run, and read-only access to a pipeline's state, on every database."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlparse, urlunparse

import msgspec
import pytest

from instep import errors, sinks
from instep.pipeline import monitors
from instep.pipeline.monitors import HeartbeatWatch
from instep.pipeline.progress import Progress
from instep.sinks import inspection, ledger_reader, preparation, runs, target
from instep.sinks.runs import Heartbeat, MinuteFigures, RunReport
from instep.sinks.sink import Sink
from instep.sinks.target import Position
from tests.support.databases import declare, run_sql
from tests.support.waiting import wait_until


def test_only_a_newer_run_takes_over_the_row(database_url: str) -> None:
    """Let a newer run take the row over.

    An older or a starting run leaves it alone, unless the other run has ended or is presumed dead.
    """
    pipeline = declare(database_url)
    preparation.prepare(pipeline)
    url = target.database_url(database_url)
    first, second, third = (Heartbeat("contracts", url) for _ in range(3))
    try:
        assert first.beat(RunReport(0, "starting", 1.0, 1.0))
        assert first.beat(RunReport(1, "running", 10.0, 4.0))
        found = ledger_reader.read("contracts", pipeline)
        assert found.run is not None
        assert (found.run.epoch, found.run.state, found.run.is_silent(found.now)) == (
            1,
            "running",
            False,
        )
        assert found.run.heartbeat_at - found.run.state_at == timedelta(seconds=4)
        assert not second.beat(RunReport(0, "starting", 0.0, 0.0))
        assert second.beat(RunReport(2, "waiting", 2.0, 1.0, detail="no answer from 😀"))
        assert not first.beat(RunReport(1, "stopped", 11.0, 0.0, code="FENCED"))
        assert second.beat(
            RunReport(2, "stopped", 3.0, 0.0, code="TOPIC_GONE", detail="topic 'x' is gone")
        )
        assert not first.beat(RunReport(1, "stopped", 12.0, 0.0, code="FENCED"))
        ended = ledger_reader.read("contracts", pipeline).run
        assert ended is not None
        assert (ended.code, ended.detail, ended.epoch) == ("TOPIC_GONE", "topic 'x' is gone", 2)
        assert third.beat(RunReport(0, "starting", 0.0, 0.0))
        assert third.beat(RunReport(3, "running", 1.0, 1.0))
        run_sql(database_url, "UPDATE instep_runs SET heartbeat_at = '2026-01-01 00:00:00.000000'")
        silent = ledger_reader.read("contracts", pipeline)
        assert silent.run is not None
        assert silent.run.is_silent(silent.now)
        assert first.beat(RunReport(0, "starting", 0.0, 0.0))
    finally:
        for one in (first, second, third):
            one.close()


def test_the_figures_of_the_last_hours_minutes_are_kept(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep those of an earlier run, and no more than the newest."""
    monkeypatch.setattr(runs, "TREND_SAMPLES_MAX", 3)
    pipeline = declare(database_url)
    preparation.prepare(pipeline)
    url = target.database_url(database_url)
    assert ledger_reader.trend("contracts", pipeline) == []
    for epoch, lags in ((1, [10, 11]), (2, [None, 12])):
        heartbeat = Heartbeat("contracts", url)
        for lag in lags:
            minute = MinuteFigures(lag=lag, applied_per_s=0.5, freshness_p50_s=0.1)
            assert heartbeat.beat(RunReport(epoch, "running", 60.0, 60.0, minute=minute))
            assert heartbeat.beat(RunReport(epoch, "running", 65.0, 65.0))
        heartbeat.close()
    kept = ledger_reader.trend("contracts", pipeline)
    assert [minute.lag for _, minute in kept] == [11, None, 12]
    ages = [age_s for age_s, _ in kept]
    assert ages == sorted(ages, reverse=True)
    assert -1 < ages[-1] < 60
    assert kept[0][1].freshness_p99_s is None


def test_a_run_keeps_its_figures_of_each_minute(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "TREND_INTERVAL_S", 0.3)
    monkeypatch.setattr(runs, "INTERVAL_S", 0.05)
    monkeypatch.setattr(monitors, "STATE_INTERVAL_S", 0.02)
    pipeline = declare(new_database("sqlite"))
    preparation.prepare(pipeline)
    progress = Progress()
    progress.begin({0: 2}, {0: 9})
    watch = HeartbeatWatch("contracts", pipeline, lambda: (1, "running", None, None), progress)
    watch.start()
    wait_until(lambda: len(ledger_reader.trend("contracts", pipeline)) > 1, "two minutes")
    watch.end()
    assert {minute.lag for _, minute in ledger_reader.trend("contracts", pipeline)} == {7}


def test_status_needs_only_the_right_to_read(
    new_database: Callable[[str], str], open_sink: Callable[..., Sink]
) -> None:
    for kind in ("postgres", "mariadb"):
        url = new_database(kind)
        sink = open_sink(declare(url))
        sink.ledger.take_epoch([Position(0, 7, 0, "c", "t")])
        reader = _reader(kind, url)
        found = ledger_reader.read("contracts", declare(reader))
        assert (
            {p: at.next_offset for p, at in found.ledger.items()},
            found.dead_letters,
            found.run,
        ) == ({0: 7}, 0, None)


def _reader(kind: str, url: str) -> str:
    """Create a database user who may only read its tables, and return the user's URL."""
    name = f"reader_{urlparse(url).path[1:]}"
    if kind == "postgres":
        run_sql(
            url,
            f"CREATE ROLE {name} LOGIN PASSWORD 'r'",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
        )
        run_sql(url, f"REVOKE TEMPORARY ON DATABASE {urlparse(url).path[1:]} FROM PUBLIC")
    else:
        name = name[:32]
        run_sql(
            url,
            f"CREATE USER {name}@'%' IDENTIFIED BY 'r'",
            f"GRANT SELECT ON {urlparse(url).path[1:]}.* TO {name}@'%'",
        )
    parts = urlparse(url)
    return urlunparse(parts._replace(netloc=f"{name}:r@{parts.hostname}:{parts.port}"))


LOOK = """
import os, sys
import msgspec, sqlite3, sqlalchemy.dialects.sqlite.pysqlite
from instep import settings
from instep.sinks import ledger_reader
os.chmod(sys.argv[1], 0o444)
os.chmod(os.path.dirname(sys.argv[1]), 0o555)
pipeline = msgspec.convert(msgspec.json.decode(sys.argv[2]), settings.Pipeline)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(ledger_reader.read("contracts", pipeline).ledger[0].next_offset)
"""


@pytest.mark.parametrize("in_use", [False, True])
def test_a_read_only_file_in_a_read_only_folder(in_use: bool) -> None:
    """Read it also while another user's pipeline has it open."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "target.db"
        pipeline = declare(f"sqlite:///{file}")
        preparation.prepare(pipeline)
        sink = sinks.open_sink(inspection.inspect("contracts", pipeline))
        sink.ledger.take_epoch([Position(0, 7, 0, "c", "t")])
        if not in_use:
            sink.close()
        try:
            command = [
                sys.executable,
                "-c",
                LOOK,
                str(file),
                msgspec.json.encode(pipeline).decode(),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            Path(folder).chmod(0o755)
            sink.close()
        assert done.stdout.strip() == "7", done.stderr


def test_tables_of_an_earlier_version_ask_for_init(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/target.db"
    pipeline = declare(url)
    preparation.prepare(pipeline)
    run_sql(url, "DROP TABLE instep_runs", "ALTER TABLE instep_ledger DROP COLUMN totals")
    for lacking in ("has no column totals", "has no table instep_runs"):
        with pytest.raises(errors.TargetUnfit, match=lacking) as raised:
            ledger_reader.read("contracts", pipeline)
        assert raised.value.remedy == "run: instep init"
        statement = next(
            one
            for one in preparation.statements(pipeline)
            if ("totals" in one) == ("totals" in lacking)
        )
        run_sql(url, statement)
    assert ledger_reader.read("contracts", pipeline).run is None
