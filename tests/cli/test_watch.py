"""Test the live view of `run` and `status --watch`: both restore the terminal."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from rich.errors import MarkupError
from rich.text import Text

from instep.cli import watch
from instep.local.broker import LocalCluster
from tests.support.cli import EVENTS, instep, settings_text
from tests.support.terminals import HIDE_CURSOR, SHOW_CURSOR, OnTerminal

ODD = "[bold]x[/nothing]"  # markup to rich, a name to us


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, broker: LocalCluster) -> Path:
    """Make a folder with two pipelines, one with an odd name, and events that wait."""
    folder, topic = tmp_path_factory.mktemp("watching"), f"cli-{uuid.uuid4().hex[:8]}"
    one = settings_text(bootstrap=broker.bootstrap, topic=topic)
    other = (
        one.split("\n\n", 1)[1]
        .replace("pipelines.contracts", f'pipelines."{ODD}"')
        .replace("contracts.db", "odd.db")
    )
    (folder / "instep.toml").write_text(f"{one}\n{other}", encoding="utf-8")
    (folder / "events.jsonl").write_text(
        f"{EVENTS}\n{json.dumps({'doc_id': 'bad'})}\n", encoding="utf-8"
    )
    assert instep(folder, "topics", "create", topic, "-p", "2", "--execute").returncode == 0
    assert instep(folder, "init").returncode == 0
    assert instep(folder, "emit", "events.jsonl").returncode == 0
    return folder


def test_the_odd_name_is_invalid_markup() -> None:
    with pytest.raises(MarkupError):
        Text.from_markup(ODD)


def test_a_run_shows_a_row_per_pipeline_and_leaves_the_terminal_clean(place: Path) -> None:
    with OnTerminal(place, "run") as run:
        for name in ("contracts", re.escape(ODD)):
            run.wait_for(rf"^{name} +running +\d+ +0 +━+ .* 1 +0 *$")
        assert "\x1b[32m" in run.drawn
        assert HIDE_CURSOR in run.drawn
        assert run.end(signal.SIGINT) == 0
        after = run.drawn[run.drawn.rindex(HIDE_CURSOR) :]
        left = after[after.index(SHOW_CURSOR) :]
        assert "PIPELINE" not in left
        for name in ("contracts", ODD):
            assert f"{name}: 21 records: 20 applied" in left


def test_a_dumb_terminal_gets_plain_lines(place: Path) -> None:
    with OnTerminal(place, "run", "--once", TERM="dumb") as run:
        assert run.rest() == 0
        assert "contracts: running" in run.text
        assert "\x1b" not in run.drawn


def test_status_is_redrawn_in_place_until_interrupted(place: Path) -> None:
    with OnTerminal(
        place, "status", "--watch", "0.2", "contracts", columns=160, NO_COLOR="1"
    ) as status:
        status.wait_for(
            r"(?s)every 0\.2 s · Ctrl-C to stop.*\bcontracts .*every 0\.2 s · Ctrl-C to"
            r" stop.*\bcontracts "
        )
        assert "\x1b[1A" in status.drawn
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", status.drawn)
        assert status.end(signal.SIGTERM) == 128 + signal.SIGTERM
        assert status.drawn.rindex(SHOW_CURSOR) > status.drawn.rindex(HIDE_CURSOR)


def test_status_prints_block_after_block_where_there_is_no_terminal(place: Path) -> None:
    command = [sys.executable, "-m", "instep", "status", "--watch", "0.2"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        blocks = 0
        for line in process.stdout:
            assert "\x1b" not in line
            blocks += line.startswith("PIPELINE ")
            if blocks == 2:
                process.terminate()
                break
        process.stdout.read()
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], []),
        (["--watch"], ["--watch", "2.0"]),
        (["--watch", "5"], ["--watch", "5"]),
        (["--watch", "contracts"], ["--watch", "2.0", "contracts"]),
        (["contracts", "--watch", "--json"], ["contracts", "--watch", "2.0", "--json"]),
        (["--watch=0.5"], ["--watch=0.5"]),
    ],
)
def test_the_interval_may_be_left_out(given: list[str], meant: list[str]) -> None:
    assert watch.with_interval(given) == meant


@pytest.mark.parametrize("seconds", ["0", "nan", "inf", "1e9"])
def test_an_impossible_interval_is_refused(seconds: str, tmp_path: Path) -> None:
    refused = instep(tmp_path, "status", f"--watch={seconds}")
    assert refused.returncode == 2
    assert "is not between 0.1 and 86,400 seconds" in refused.stderr
