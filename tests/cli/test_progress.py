"""Test what commands report: bars on a terminal, lines elsewhere, and JSON at the end of a run."""

from __future__ import annotations

import io
import json
import sys
import threading
from pathlib import Path

import pytest

from instep import errors, settings, terminal
from instep.cli import emit, output, relay_report
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster
from instep.relay.session import RelayProgress
from tests.support.cli import instep, refused_in_process, reported
from tests.support.databases import run_sql
from tests.support.terminals import HIDE_CURSOR, SHOW_CURSOR
from tests.support.waiting import wait_until


class Tty(io.StringIO):
    """A terminal that keeps what is drawn."""

    def isatty(self) -> bool:
        return True


def terminal_as_stderr(monkeypatch: pytest.MonkeyPatch) -> Tty:
    """Make stderr a terminal. A fixture cannot: pytest replaces stderr before each test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Tty()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_emit_shows_the_share_of_the_file_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = terminal_as_stderr(monkeypatch)
    file = tmp_path / "events.jsonl"
    file.write_bytes(b" " * 4_000_000)
    with terminal.ProgressLine(shown, after_s=0.0) as line:
        emit._progress(line, str(file))(1_000, 1_000_000)
    assert "1.0 of 4.0 MB" in shown.getvalue()
    with terminal.ProgressLine(shown, after_s=0.0) as line:
        emit._progress(line, "-")(1_000, 0)
    assert "1,000 records" in shown.getvalue()


def test_emit_prints_a_line_at_intervals_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(emit, "SAY_INTERVAL_S", 0.0)
    with terminal.ProgressLine(sys.stderr) as line:
        emit._progress(line, "-")(1_000, 0)
    assert capsys.readouterr().err == "1,000 records sent\n"


def test_a_relay_that_ends_has_a_bar_below_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal_as_stderr(monkeypatch)
    monkeypatch.setattr(relay_report, "BAR_INTERVAL_S", 0.01)
    progress = RelayProgress(rows=7)
    report = relay_report.RelayReport("print", progress, threading.Event(), once=True)
    report._line = terminal.ProgressLine(shown, after_s=0.0)
    report.start()
    wait_until(lambda: "7 rows" in shown.getvalue())
    report.say("print: standing by")
    assert "print: standing by\n" in shown.getvalue()
    report.end()
    drawn = shown.getvalue()
    assert drawn.count(HIDE_CURSOR) == drawn.count(SHOW_CURSOR) > 0
    assert not report._thread.is_alive()


def test_a_relay_elsewhere_prints_lines_when_something_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(relay_report, "SAY_INTERVAL_S", 0.01)
    stop, progress = threading.Event(), RelayProgress(rows=7)
    report = relay_report.RelayReport("print", progress, stop, once=False)
    printed: list[str] = []

    def has_printed(text: str) -> bool:
        printed.append(capsys.readouterr().err)
        return text in "".join(printed)

    report.start()
    wait_until(lambda: has_printed("7 rows"), "the first line")
    progress.rows = 8
    wait_until(lambda: has_printed("8 rows"), "the second line")
    stop.set()
    report.end()
    lines = "print: starting; 7 rows published\nprint: starting; 8 rows published\n"
    assert "".join([*printed, capsys.readouterr().err]) == lines


def test_a_relay_run_to_the_end_reports_its_totals_as_json(
    broker: LocalCluster, tmp_path: Path
) -> None:
    source = f"sqlite:///{tmp_path}/shop.db"
    name = f"relay-{tmp_path.name.replace('_', '-')}"
    (tmp_path / "instep.toml").write_text(
        f"[kafka]\nbootstrap = {broker.bootstrap!r}\n"
        f"[relays.{name}]\nsource = {source!r}\ntopic = {name!r}\nversion = 'version'\n",
        encoding="utf-8",
    )
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, name, 2)
    assert instep(tmp_path, "relay", "init").returncode == 0
    run_sql(source, "INSERT INTO instep_outbox (document, value) VALUES ('a', '{}'), ('b', '{}')")
    assert reported(tmp_path, "relay", "run", "--once") == {
        "relay": name,
        "state": "ended",
        "totals": {"rows": 2, "transactions": 1, "dead": 0},
        "error": None,
    }
    (tmp_path / "shop.db").unlink()
    assert instep(tmp_path, "relay", "init").returncode == 0
    ended = instep(tmp_path, "relay", "run", "--once", "--json")
    assert ended.returncode == 3
    assert json.loads(ended.stdout)["error"]["code"] == "SOURCE_RESTORED"


@pytest.mark.parametrize("command", [("run",), ("relay", "run")])
def test_json_is_for_a_run_that_ends(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refused_in_process(tmp_path, monkeypatch, *command, "--json")
    assert said.startswith("--json needs --once")


def test_the_json_of_an_error_has_the_code_of_a_named_stop() -> None:
    assert output.error_for_json(None) is None
    assert output.error_for_json(errors.Unreachable("no answer", "start it")) == {
        "code": None,
        "what": "no answer",
        "remedy": "start it",
    }
    fenced = output.error_for_json(errors.Fenced("a newer run"))
    assert fenced is not None
    assert fenced["code"] == "FENCED"
