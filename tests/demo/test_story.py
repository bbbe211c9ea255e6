"""Test the demo as a user runs it, what it leaves behind, and its parts."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from instep import errors
from instep.demo import polling, story
from instep.local import processes
from instep.local.broker import LocalCluster
from instep.report import web_page
from tests.support import commands
from tests.support.databases import run_sql


@pytest.mark.timeout(900)
def test_the_demo_ends_with_no_differences_and_leaves_a_folder_to_try_things_on(
    tmp_path: Path,
) -> None:
    documents = 600
    command = [sys.executable, "-m", "instep", "demo", "--json", "--documents", str(documents)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=840, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr
    assert done.stderr.count("ledger: ") == 3
    found = json.loads(done.stdout)
    judge(found, documents)
    assert [path.name for path in tmp_path.iterdir()] == ["instep-demo"]
    assert web_page.is_one("demo", tmp_path / found["page"])
    life, letters, letter = (tried(line, tmp_path) for line in found["commands"])
    assert "stale" in life
    assert len(letters.splitlines()) == 1 + 8
    assert found["dead_letter"] in letters
    assert letter


def test_ctrl_c_stops_the_servers_and_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "instep", "demo", "--documents", "100"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stderr is not None
        # by then the broker runs, and the pipeline is being started
        for line in demo.stderr:
            if line == "starting the pipeline\n":
                break
        started = [psutil.Process(pid) for pid in processes.descendants(demo.pid)]
        assert any(process.name() == "java" for process in started)
        demo.send_signal(signal.SIGINT)
        printed = demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert printed == (
        "",
        "interrupted: the demo's servers were stopped, and its folder was removed\n",
    )
    assert [process for process in started if process.is_running()] == []
    assert list(tmp_path.iterdir()) == []


def judge(found: dict[str, Any], documents: int) -> None:
    """Check what is true of every demo, however fast the machine is."""
    assert found["differences"] == 0
    assert (found["documents"], found["applied"], found["dead_letters"]) == (
        documents,
        4 * documents,
        8,
    )
    assert found["events"] == found["applied"] + 65
    assert found["restarts"] >= 1
    assert found["polling_sampled"] > 0
    assert found["polling_s"] >= 0.3 * documents
    assert found["apply_s"] > 0
    assert set(found["freshness_ms"]) == {"p50", "p99"}
    naive = found["naive"]
    assert naive["older"] >= 25
    assert naive["differences"] == naive["older"] + naive["missing"] + naive["extra"]
    assert [one["what"].split()[0] for one in found["faults"]] == ["kill", "another", "kill"]
    for fault in found["faults"]:
        assert all(
            fault["after"][partition] >= offset for partition, offset in fault["before"].items()
        )
    assert [one["version"] for one in found["life"] if one["verdict"] == "applied"] == [1, 2, 3, 4]
    assert (found["life"][-1]["version"], found["life"][-1]["verdict"]) == (3, "stale")


def tried(command: str, folder: Path) -> str:
    """Run a command that the demo names with the instep under test, and return what it prints."""
    program, *arguments = shlex.split(command)
    assert Path(program).name in ("instep", Path(sys.executable).name)
    done = commands.run(arguments[arguments.index("--config") :], cwd=folder, env=os.environ)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_a_users_database_is_left_unchanged(
    new_database: Callable[[str], str], broker: LocalCluster, tmp_path: Path
) -> None:
    url = new_database("postgres")
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    with story.prepared(broker.bootstrap, url, 100, tmp_path) as system:
        assert system.folder != tmp_path
        assert len(run_sql(url, tables)) > 1
    assert run_sql(url, tables) == []
    assert not system.folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_never_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [str(story.new_folder(None)) for _ in range(3)] == [
        "instep-demo",
        "instep-demo-2",
        "instep-demo-3",
    ]
    with pytest.raises(errors.SettingsError, match="already exists"):
        story.new_folder(Path("instep-demo"))
    (tmp_path / "file").touch()
    with pytest.raises(errors.SettingsError, match="--folder"):
        story.new_folder(Path("file/below"))


def test_the_naive_loops_differences_are_distinguished() -> None:
    expected = {"a": ("PRINTED", 4), "b": ("PRINTED", 4), "c": ("FAILED", 4)}
    found = story._compared(
        {"a": ("PRINTED", 4), "b": ("PRINTING", 3), "": ("PRINTED", 3)}, expected
    )
    assert found == story.Naive(differences=3, older=1, missing=1, extra=1)
    assert story.naive_words(found) == "1 with an older status, 1 missing, 1 unknown document"


def test_the_query_service_takes_its_time() -> None:
    with polling.QueryService({"d 1": "PRINTED"}, call_s=0.05) as service:
        found, seconds = polling.poll(service.port, ["d 1", "other/ü"])
    assert found == {"d 1": "PRINTED", "other/ü": None}
    assert seconds >= 0.1


def test_polling_over_several_connections_asks_for_every_document_once() -> None:
    documents = [f"doc-{number}" for number in range(7)]
    with polling.QueryService(dict.fromkeys(documents, "PRINTED"), call_s=0.01) as service:
        found, seconds = polling.poll_at_once(service.port, documents, 3)
    assert found == dict.fromkeys(documents, "PRINTED")
    assert seconds >= 0.03


def test_a_poller_works_in_the_background_and_knows_how_long_a_round_takes() -> None:
    documents = [f"doc-{number}" for number in range(4)]
    with polling.QueryService(dict.fromkeys(documents, "PRINTED"), call_s=0.01) as service:
        poller = polling.Poller(service.port, documents)
        assert poller.round_s() == 0.0
        poller.start()
        poller.join()
        assert (poller.count, poller.round_s()) == (4, poller.seconds)
        poller.stop()
    assert poller.seconds >= 0.04
