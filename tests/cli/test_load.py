"""Test `instep load` as a command: killed and started again, its plan, its output and errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from instep.cli.output import DRY_RUN
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.sinks.target import Position
from tests.support.cli import instep, refused_in_process, reported, settings_text
from tests.support.databases import declare
from tests.support.loading import history, row, write_lines
from tests.support.terminals import OnTerminal
from tests.support.transactions import Open, begun, table

NewDatabase = Callable[[str], str]

ROWS = 300
# steps of the transaction at which it is killed, and rows
KILLS = {
    "sqlite": ("6:40", "9:120", "7:200"),
    "postgres": ("6:40", "8:120"),
    "mariadb": ("6:120", "9:200"),
}
NO_CLUSTER = "127.0.0.1:1"


def prepare(folder: Path, target: str, *, bootstrap: str = NO_CLUSTER, topic: str = "t") -> None:
    text = settings_text(bootstrap=bootstrap, topic=topic, target=target)
    (folder / "instep.toml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("kind", KILLS)
def test_every_row_is_applied_once_whenever_the_load_is_killed(
    kind: str, new_database: NewDatabase, open_sink: Open, tmp_path: Path
) -> None:
    url = new_database(kind)
    prepare(tmp_path, url)
    begun(open_sink(declare(url, topic="t")))
    write_lines(tmp_path / "source.jsonl", [row(f"d{n:03}", 1) for n in range(ROWS)])
    command = ("load", "contracts", "--from", "source.jsonl", "--no-reconcile", "--execute")
    options = (*command, "--batch-rows", "50")
    for kill in KILLS[kind]:
        environment = {"INSTEP_PROBE": "tests.support.probes:kill_at", "INSTEP_TEST_KILL": kill}
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        done = instep(tmp_path, *options, **environment, PYTHONPATH=path)
        assert done.returncode == -9, (kill, done.stderr)
    report = reported(tmp_path, *options)["load"]
    assert report["start"] == "continued"
    assert report["totals"]["applied"] == report["totals"]["records"] == ROWS
    applied = [(number, verdict) for _, number, verdict in history(url)]
    assert applied == [(number, "applied") for number in range(1, ROWS + 1)]
    assert len(table(url)) == ROWS


def test_the_plan_the_rows_and_their_quarantine(
    new_database: NewDatabase, open_sink: Open, tmp_path: Path
) -> None:
    prepare(tmp_path, "sqlite:///contracts.db")
    url = f"sqlite:///{tmp_path}/contracts.db"
    begun(open_sink(declare(url, topic="t")))
    write_lines(tmp_path / "source.jsonl", [row("a", 1), "{", row("b", 1, "S" * 300), row("a", 2)])
    command = ("load", "contracts", "--from", "source.jsonl", "--no-reconcile")
    planned = instep(tmp_path, *command)
    assert (planned.returncode, planned.stderr.splitlines()[-1]) == (0, DRY_RUN)
    assert "contracts  -     4     2        0      0         0        1       1" in planned.stdout
    assert "2    " in planned.stdout
    assert table(url) == []
    done = instep(tmp_path, *command, "--execute")
    assert done.returncode == 1, done.stderr
    assert "contracts  1     4     2        0      0         0        1       1" in done.stdout
    assert "1 row cannot be understood and was kept as a dead letter." in done.stderr
    assert table(url) == [("a", "LOADED", 2)]
    listed = instep(tmp_path, "dead", "list", "--reason", "ROW_UNREADABLE").stdout
    assert "ROW_UNREADABLE" in listed
    shown = instep(tmp_path, "dead", "show", "load:1:2").stdout
    assert "source.jsonl, line 2: not valid JSON" in shown
    assert "load:1:4" in instep(tmp_path, "show", "a").stdout
    assert "b" in instep(tmp_path, "parked", "list").stdout
    again = instep(tmp_path, *command, "--execute")
    assert "load 1 is complete already" in again.stderr


def test_wrong_options_name_their_remedy(
    tmp_path: Path, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, "sqlite:///contracts.db")
    url = f"sqlite:///{tmp_path}/contracts.db"
    begun(open_sink(declare(url, topic="t")))
    for options, words in {
        ("contracts", "--from", "none.csv"): "none.csv cannot be read",
        ("contracts", "--from", "x.txt"): "x.txt cannot be read",
        ("contracts", "--from", "-"): "write it to a file first",
        ("contracts", "--from", "SELECT 1"): "add --source-url URL",
        ("contracts", "--from", "none", "--source-url", url): "correct the query or the table",
        ("contracts", "--from", "SELECT 1 AS x", "--source-url", url): "no column 'doc_id'",
        ("nobody", "--from", "x.csv"): "nobody",
    }.items():
        assert words in refused_in_process(tmp_path, monkeypatch, "load", *options), options


@pytest.mark.long
def test_a_load_ends_with_a_comparison(
    cluster: Cluster, topic: str, open_sink: Open, tmp_path: Path
) -> None:
    prepare(tmp_path, "sqlite:///contracts.db", bootstrap=cluster.bootstrap, topic=topic)
    sink = open_sink(declare(f"sqlite:///{tmp_path}/contracts.db", topic=topic))
    found = topics.describe(cluster, topic)
    sink.ledger.take_epoch(Position(p, 0, 0, found.cluster_id, found.id) for p in found.partitions)
    write_lines(tmp_path / "source.jsonl", [row(f"d{n}", 1) for n in range(5)])
    done = instep(tmp_path, "load", "contracts", "--from", "source.jsonl", "--execute")
    assert done.returncode == 0, done.stderr
    assert "5          5        0      0        0          0       0" in done.stdout
    assert done.stderr.splitlines()[-1] == "contracts: in step with file source.jsonl"


def test_a_terminal_shows_the_progress_of_a_slow_load(tmp_path: Path, open_sink: Open) -> None:
    prepare(tmp_path, "sqlite:///contracts.db")
    begun(open_sink(declare(f"sqlite:///{tmp_path}/contracts.db", topic="t")))
    write_lines(tmp_path / "source.jsonl", [row(f"d{n}", 1) for n in range(100)])
    command = ("load", "contracts", "--from", "source.jsonl", "--no-reconcile", "--execute")
    with OnTerminal(tmp_path, *command, "--rate", "50", columns=120) as run:
        run.wait_for(r"loading [\u2501\u2500]+ \d+ of 100 rows \d:\d\d:\d\d left:")
        assert run.rest() == 0
        assert run.wait_for(r"^contracts +1 +100 +100 ")
    done = instep(tmp_path, *command, "--restart", "--rate", "1000")
    assert (done.returncode, "loading" in done.stderr) == (0, False), done.stderr
