"""Test the worked example: a change in the print system reaches the contract system."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import pytest

from instep.local import ports
from instep.local.broker import LocalCluster
from tests.support.waiting import wait_until

PROGRAM = Path(__file__).parents[1] / "examples" / "print_shop" / "run.py"


def ask(port: int, path: str, method: str = "GET") -> Any:
    with urlopen(Request(f"http://127.0.0.1:{port}{path}", method=method), timeout=10) as answer:
        return json.loads(answer.read())


def documents(port: int) -> dict[str, tuple[str, int]]:
    return {one["id"]: (one["status"], one["version"]) for one in ask(port, "/contracts/documents")}


def test_a_printed_job_is_printed_in_the_contract_system(
    broker: LocalCluster, tmp_path: Path
) -> None:
    prints(tmp_path, "--bootstrap", broker.bootstrap, "--topic", f"shop-{uuid.uuid4().hex[:8]}")


@pytest.mark.long
def test_without_brokers_it_starts_one_and_stops_it_at_the_end(tmp_path: Path) -> None:
    """Give it a state folder of its own, where no broker runs yet."""
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    (tmp_path / "run").mkdir()
    prints(tmp_path / "run", **state)
    done = subprocess.run(
        [sys.executable, "-m", "instep", "up", "status", "--json"],
        env={**os.environ, **state},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(done.stdout)["servers"] == []


def prints(folder: Path, *options: str, **environment: str) -> None:
    """Run the example, print a job, and see everything end that it started."""
    [port] = ports.free(1)
    shop = subprocess.Popen(
        [sys.executable, str(PROGRAM), "--port", str(port), *options],
        env={**os.environ, "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert shop.stdout is not None
        for line in shop.stdout:
            if line.startswith("open http"):
                break
        wait_until(lambda: is_up(port), "the page")
        wait_until(lambda: len(documents(port)) == 3, "the first three documents")
        ask(port, "/print/jobs/C-2/print", "POST")
        wait_until(lambda: documents(port)["C-2"] == ("PRINTED", 4), "the printed document")
        children = psutil.Process(shop.pid).children(recursive=True)
        shop.send_signal(signal.SIGTERM)
        assert shop.stdout.read().endswith("stopped\n")
        assert shop.wait(60) == 0
        wait_until(lambda: not any(map(is_alive, children)), "the end of all processes")
        assert list(folder.iterdir()) == []
    finally:
        shop.kill()
        shop.wait()
        if shop.stdout is not None:
            shop.stdout.close()


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs; one that only waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_up(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            return b"Contract system" in answer.read()
    except (URLError, ConnectionError):
        return False
